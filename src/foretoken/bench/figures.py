"""The newest figures, as pages show them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import records
from foretoken.bench.pages import how_sure, markdown, times
from foretoken.bench.runs import KIND
from foretoken.bench.side_by_side.tables import table as peers
from foretoken.bench.statistics import PLAIN

NOTHING = "No record is there yet."


def newest(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The records of `bench decode` of the machine and commit of the newest one, by the models' sizes: of each model
    and suite the newest. One that cannot be read is refused; other kinds are left out."""
    every = [(path, records.read(path)) for path in sorted(folder.glob("*.json")) if _kind(path) == KIND]
    every.sort(key=lambda each: str(each[1].get("date")))
    if not every:
        return []
    last = every[-1][1]
    found = {
        (record["model"], record["suite"].get("sha256"), record["max_new_tokens"]): (path, record)
        for path, record in every
        if (record["machine"], record["commit"]) == (last["machine"], last["commit"])
    }
    return sorted(found.values(), key=lambda each: (each[1]["model_bytes"], each[1]["model"]))


def _kind(path: Path) -> Any:
    record = json.loads(path.read_bytes())
    return record.get("kind") if isinstance(record, dict) else None


def table(folder: Path, beside: str) -> list[str]:
    """A row a model and draft, a column a temperature. beside: how to get from the page to the records."""
    found = newest(folder)
    if not found:
        return [NOTHING]
    temperatures = sorted({run["temperature"] for _, record in found for run in record["runs"]})
    rows = [_row(path, record, draft, temperatures, beside) for path, record in found for draft in _drafts(record)]
    head = ["model", "draft", *("greedily" if t == 0 else f"at {t:g}" for t in temperatures)]
    first = found[0][1]
    machine, sure = first["machine"], {how_sure(run["prompts"]) for _, record in found for run in record["runs"]}
    promises = {run["promise"] for _, record in found for run in record["runs"]}
    return [
        *markdown(head, rows),
        "",
        f"Plain decoding in tokens a second; drafts in how many times as fast decoding is, the median over prompts "
        f"({' or '.join(sorted(sure))}), measured in turn on {machine.get('processor')}, {machine.get('threads')} "
        f"threads, commit {first['commit']}; promise {', '.join(sorted(promises))}.",
    ]


def beside_others(folder: Path, beside: str) -> list[str]:
    """The table of the newest record of `bench peers`, and where that is."""
    every = [(path, records.read(path)) for path in sorted(folder.glob("*.json")) if _kind(path) == "peers"]
    if not every:
        return [NOTHING]
    path, record = max(every, key=lambda each: str(each[1].get("date")))
    return [f"[Record]({beside}{path.name}): {peers(record)}".rstrip()]


def _row(path: Path, record: dict[str, Any], draft: str, temperatures: Sequence[float], beside: str) -> list[str]:
    runs = {run["temperature"]: run for run in record["runs"] if run["draft"] == draft}
    cells = [_cell(runs[temperature]) if temperature in runs else "" for temperature in temperatures]
    model = f"[{record['model']}]({beside}{path.name})" if draft == PLAIN else ""
    return [model, "plain" if draft == PLAIN else f"`{draft}`", *cells]


def _cell(run: dict[str, Any]) -> str:
    if run["draft"] == PLAIN:
        return f"{run['tokens_per_second']:.1f}"
    return times(run["speedup"], run["speedup_interval"]) if run["identical"] else "NOT identical"


def _drafts(record: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(run["draft"] for run in record["runs"]))

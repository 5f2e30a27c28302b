"""The newest figures, as pages show them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import records
from foretoken.bench.pages import how_sure, many, markdown, times
from foretoken.bench.runs import KIND
from foretoken.bench.side_by_side.tables import table as peers
from foretoken.bench.statistics import PLAIN

NOTHING = "No record is there yet."


def newest(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The records of `bench decode` of the machine of the newest one, by the models' sizes: of each model and suite the
    newest. One that cannot be read is refused; other kinds are left out."""
    every = [(path, records.read(path)) for path in sorted(folder.glob("*.json")) if _kind(path) == KIND]
    every.sort(key=lambda each: str(each[1].get("date")))
    if not every:
        return []
    last = every[-1][1]
    found = {
        (record["model"], record["suite"].get("sha256"), record["max_new_tokens"]): (path, record)
        for path, record in every
        if record["machine"] == last["machine"]
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
    head = ["model", "draft"]
    for temperature in temperatures:
        head += ["greedily" if temperature == 0 else f"at {temperature:g}", "all of it"]
    machine, sure = found[0][1]["machine"], {how_sure(run["prompts"]) for _, record in found for run in record["runs"]}
    often = " or ".join(sorted({many(record["repeats"], "repeat") for _, record in found}))
    commits = {str(record["commit"]) for _, record in found}
    promises = {run["promise"] for _, record in found for run in record["runs"]}
    return [
        *markdown(head, rows),
        "",
        f"Plain decoding in tokens a second; drafts in how many times as fast decoding is, the median over prompts "
        f"({' or '.join(sorted(sure))}); *all of it*: with the reading of prompts, and of all prompts together. "
        f"{often}, measured in turn on {machine.get('processor')}, {machine.get('threads')} threads, "
        f"commit {', '.join(sorted(commits))}; promise {', '.join(sorted(promises))}.",
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
    cells = [cell for t in temperatures for cell in (_cells(runs[t]) if t in runs else ("", ""))]
    model = f"[{record['model']}]({beside}{path.name})" if draft == PLAIN else ""
    return [model, "plain" if draft == PLAIN else f"`{draft}`", *cells]


def _cells(run: dict[str, Any]) -> tuple[str, str]:
    """Of decoding, the median over prompts; and of everything."""
    if run["draft"] == PLAIN:
        return f"{run['tokens_per_second']:.1f}", f"{run['tokens_per_second_with_prefill']:.1f}"
    if not run["identical"]:
        return "NOT identical", ""
    return times(run["speedup"], run["speedup_interval"]), f"{run['speedup_with_prefill']:.2f}"


def _drafts(record: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(run["draft"] for run in record["runs"]))

"""The best current figures: tables of the newest records, for README and results/README.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import records
from foretoken.bench.report import markdown
from foretoken.bench.runs import KIND, PLAIN

NOTHING = "No record of `bench decode` is there yet."


def newest(folder: Path, kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """The newest record of a kind, of each model, in the order of the models' sizes and names. Files that are no record
    of `bench decode` or `bench peers` are left out; one that says it is and cannot be read is refused."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        if _kind(path) == kind:
            record = records.read(path)
            before = found.get(record["model"])
            if before is None or str(record.get("date")) >= str(before[1].get("date")):
                found[record["model"]] = path, record
    return sorted(found.values(), key=lambda each: (each[1].get("model_bytes") or 0, each[1]["model"]))


def _kind(path: Path) -> str | None:
    record = json.loads(path.read_bytes())
    return record.get("kind") if isinstance(record, dict) else None


def table(folder: Path, beside: str) -> list[str]:
    """A row a model and temperature: plain tokens a second, and how many times that each draft is, for all prompts
    together. beside: how to get from the page that shows it to the records."""
    found = newest(folder, KIND)
    if not found:
        return [NOTHING]
    drafts = list(dict.fromkeys(d for _, record in found for d in _drafts(record) if d != PLAIN))
    rows = [_row(path, record, t, drafts, beside) for path, record in found for t in _temperatures(record)]
    head = ["model", "temperature", "plainly, tokens/s", *(f"`{draft}`" for draft in drafts)]
    machines = dict.fromkeys(_machine(record) for _, record in found)
    return [
        *markdown(head, rows),
        "",
        f"Times as fast as plain decoding, for all prompts together; on {'; and on '.join(machines)}.",
    ]


def _row(path: Path, record: dict[str, Any], temperature: float, drafts: Sequence[str], beside: str) -> list[str]:
    runs = {run["draft"]: run for run in record["runs"] if run["temperature"] == temperature}
    plain = f"{runs[PLAIN]['tokens_per_second']:.1f}" if PLAIN in runs else ""
    gains = [f"{runs[draft]['speedup_of_total']:.2f}" if draft in runs else "" for draft in drafts]
    return [f"[{record['model']}]({beside}{path.name})", f"{temperature:g}", plain, *gains]


def _drafts(record: dict[str, Any]) -> list[str]:
    return [run["draft"] for run in record["runs"]]


def _temperatures(record: dict[str, Any]) -> list[float]:
    return list(dict.fromkeys(run["temperature"] for run in record["runs"]))


def _machine(record: dict[str, Any]) -> str:
    machine = record["machine"]
    return f"{machine.get('processor')}, {machine.get('threads')} threads"

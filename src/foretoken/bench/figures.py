"""The figures of the newest records, as pages show them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import records
from foretoken.bench.pages import many, markdown, times
from foretoken.bench.runs import KIND
from foretoken.bench.side_by_side.picture import draw
from foretoken.bench.side_by_side.tables import table as peers
from foretoken.bench.statistics import FEWEST, PLAIN

NOTHING = "No record is there yet."


def newest(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The `bench decode` records from the newest one's machine, by model size: for each model, suite and number of new
    tokens, the newest record. A record that cannot be read is refused; other kinds are left out."""
    every = _of_kind(KIND, folder)
    found = {
        (record["model"], record["suite"].get("sha256"), record["max_new_tokens"]): (path, record)
        for path, record in every
        if record["machine"] == every[-1][1]["machine"]
    }
    return sorted(found.values(), key=lambda each: (each[1]["model_bytes"], each[1]["model"]))


def _of_kind(kind: str, folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The records of a kind, the newest last."""
    said = ((path, json.loads(path.read_bytes())) for path in sorted(folder.glob("*.json")))
    its = [path for path, record in said if isinstance(record, dict) and record.get("kind") == kind]
    return sorted(((path, records.read(path)) for path in its), key=lambda each: str(each[1].get("date")))


def table(folder: Path, beside: str) -> list[str]:
    """A table with a row per model and draft, and two columns per temperature. beside: the path from the page to the
    records."""
    found = newest(folder)
    if not found:
        return [NOTHING]
    temperatures = sorted({run["temperature"] for _, record in found for run in record["runs"]})
    rows = [row for path, record in found for row in _rows(path, record, temperatures, beside)]
    head = ["model", "draft"]
    for temperature in temperatures:
        head += ["greedy" if temperature == 0 else f"temperature {temperature:g}", "with prompts"]
    machine = found[0][1]["machine"]
    often = " or ".join(sorted({many(record["repeats"], "time") for _, record in found}))
    promises = {run["promise"] for _, record in found for run in record["runs"]}
    return [
        *markdown(head, rows),
        "",
        "Rows of plain decoding show tokens a second (tok/s). The other rows show the speed-up (×): the speed with the "
        "draft divided by that of plain decoding. The figure is the median over prompts. The brackets hold "
        f"{_by_model(found, _interval, ' or ')}. "
        "The columns *with prompts* include the time of reading the prompts. There, a speed-up is one ratio for all "
        "prompts together: the total time of plain decoding, divided by the total time with the draft. "
        f"Each prompt was completed {often} with each draft, in turn, on {machine.get('processor')} with "
        f"{machine.get('threads')} threads; commit {_by_model(found, lambda record: str(record['commit']), ', ')}. "
        f"All outputs kept the promise `{'` or `'.join(sorted(promises))}`.",
    ]


def _interval(record: dict[str, Any]) -> str:
    """What the brackets hold."""
    few = min(run["prompts"] for run in record["runs"])
    return "its 95 % interval" if few >= FEWEST else f"the lowest and the highest of {few} prompts"


def _by_model(found: list[tuple[Path, dict[str, Any]]], said: Callable[[dict[str, Any]], str], between: str) -> str:
    """What is said of the records; with the models' names, if it is not the same for all."""
    models: dict[str, list[str]] = {}
    for _, record in found:
        models.setdefault(said(record), []).append(str(record["model"]))
    return between.join(its if len(models) == 1 else f"{its} ({', '.join(names)})" for its, names in models.items())


def beside_others(folder: Path, beside: str) -> list[str]:
    """The table of the newest `bench peers` record, with a link to the record."""
    every = _of_kind("peers", folder)
    if not every:
        return [NOTHING]
    path, record = every[-1]
    return [f"[Record]({beside}{path.name}): {peers(record)}".rstrip()]


def draw_beside_others(folder: Path, path: Path) -> None:
    """Draw the newest record of `bench peers`, if there is one."""
    every = _of_kind("peers", folder)
    if every:
        draw(path, every[-1][1])


def _rows(path: Path, record: dict[str, Any], temperatures: Sequence[float], beside: str) -> Iterator[list[str]]:
    runs = {(run["draft"], run["temperature"]): run for run in record["runs"]}
    for draft in dict.fromkeys(draft for draft, _ in runs):
        plain = draft == PLAIN
        cells = [cell for at in temperatures for cell in _cells(runs.get((draft, at)))]
        yield [f"[{record['model']}]({beside}{path.name})" * plain, "plain" if plain else f"`{draft}`", *cells]


def _cells(run: dict[str, Any] | None) -> tuple[str, ...]:
    """The cells of decoding alone and of decoding with prompts."""
    if run is None:
        return "", ""
    if run["draft"] == PLAIN:
        return tuple(f"{run[speed]:.1f} tok/s" for speed in ("tokens_per_second", "tokens_per_second_with_prefill"))
    if not run["identical"]:
        return "NOT identical", ""
    return times(run["speedup"], run["speedup_interval"], "×"), f"{run['speedup_with_prefill']:.2f}×"

"""Records of measurements as Markdown, which is also what a terminal shows: a section a model, a table a temperature.

Only what was measured on one machine, at one commit, is put side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench.runs import KIND
from foretoken.errors import InputError
from foretoken.progress import size

POSITIONS = 8  # of a draft that are shown


def report(records: Sequence[tuple[Path, dict[str, Any]]], pictures: dict[Path, str] | None = None) -> list[str]:
    """The lines of a report of records, each with the place it was read from; `pictures` are shown with theirs.

    Raises InputError if they are of different machines or commits.
    """
    expect_comparable(records)
    first = records[0][1]
    lines = ["# Decoding, measured", "", _where(first), ""]
    for path, record in records:
        lines += section(record)
        if path in (pictures or {}):
            lines += [f"![{record['model']}]({(pictures or {})[path]})", ""]
    return lines


def expect_comparable(records: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Refuse records that were not measured on one machine at one commit: what differs could be either."""
    path, first = records[0]
    for other_path, other in records[1:]:
        for name in ("machine", "commit"):
            if other[name] != first[name]:
                raise InputError(
                    f"{path.name} and {other_path.name} differ in {_what(name, first[name], other[name])}, so their "
                    "figures cannot be compared; measure both in one place, or make a report of each"
                )


def _what(name: str, one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in {**one, **other} if one.get(key) != other.get(key))
        return f"{name} ({key}: {one.get(key)!r} and {other.get(key)!r})"
    return f"{name} ({one!r} and {other!r})"


def section(record: dict[str, Any]) -> list[str]:
    """The lines of one record."""
    if record["kind"] != KIND:
        from foretoken.bench.side_by_side import table as peers

        return [f"## {record['model']}, beside others", "", *peers(record).splitlines(), ""]
    lines = [f"## {record['model']}", "", _about(record), ""]
    for temperature in dict.fromkeys(run["temperature"] for run in record["runs"]):
        runs = [run for run in record["runs"] if run["temperature"] == temperature]
        lines += [f"Temperature {temperature:g}" + (", greedy" if temperature == 0 else ""), ""]
        lines += [*table(runs), "", *_differences(runs), *_positions(runs)]
    return lines


def lines(record: dict[str, Any]) -> list[str]:
    """What a terminal shows of a measurement that has just ended: its section, and what was the fastest."""
    return [_where(record), "", *section(record)[:-1], *_best(record)]


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The runs of one temperature."""
    head = ["draft", "tokens/s", "with prompt", "speed-up (95 %)", "of the whole", "tokens a pass", "bytes a token"]
    rows = [
        [
            run["draft"],
            f"{run['tokens_per_second']:.1f}",
            f"{run['tokens_per_second_with_prefill']:.1f}",
            f"{run['speedup']:.2f} ({run['speedup_interval'][0]:.2f} to {run['speedup_interval'][1]:.2f})",
            f"{run['speedup_of_total']:.2f}",
            f"{run['mean_acceptance_length']:.2f}",
            size(int(run["bytes_per_token"])),
            "" if run["share_of_ceiling"] is None else f"{run['share_of_ceiling']:.2f}",
            run["promise"],
            "yes" if run["identical"] else "NO",
        ]
        for run in runs
    ]
    return markdown([*head, "of ceiling", "promise", "identical"], rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns stand under each other: the first to the left, all others to the right."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return f"| {' | '.join(padded)} |"

    under = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(cells[0]), f"| {' | '.join(under)} |", *map(line, cells[1:])]


def _where(record: dict[str, Any]) -> str:
    machine, bandwidth = record["machine"], record.get("read_bandwidth_gb_per_s")
    speed = "" if bandwidth is None else f", memory read at {bandwidth} GB/s"
    engine = machine.get("level") or "PyTorch"
    return (
        f"{machine.get('processor')}, {machine.get('threads')} threads, engine {engine}{speed}; "
        f"commit {record['commit'] or 'unknown'}"
    )


def _about(record: dict[str, Any]) -> str:
    suite, rehearsal = record["suite"], record.get("rehearsal")
    made = ""
    if isinstance(rehearsal, dict):
        source = rehearsal.get("source")
        name = source.get("name") if isinstance(source, dict) else source
        made = f" A rehearsal: the shape of {rehearsal.get('shape')}, the function of {name}."
    return (
        f"{size(record['model_bytes'])} of weights, {record['weights']};{made} {suite.get('prompts')} prompts of "
        f"{suite.get('name')}, {record['max_new_tokens']} new tokens each, {record['repeats']} times, in turn with "
        "plain decoding. Tokens per second are of decoding alone, and with the prompt's time; the speed-up is the "
        "median over prompts, and of the time of all together; bytes are those of weights; the ceiling is what reading "
        "them allows."
    )


def _differences(runs: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for run in runs:
        found = run["first_difference"]
        if isinstance(found, dict):
            lines.append(
                f"{run['draft']} differs from plain decoding first in prompt {found.get('prompt')}, token "
                f"{found.get('position')}: {found.get('token')} instead of {found.get('plain_token')}."
            )
    return [*lines, ""] if lines else []


def _positions(runs: Sequence[dict[str, Any]]) -> list[str]:
    """How many drafts in a hundred had their first, second, ... token accepted."""
    drafted = [run for run in runs if run["drafts"] > 0]
    if not drafted:
        return []
    most = min(POSITIONS, max(len(run["accepted_per_position"]) for run in drafted))
    rows = [
        [
            run["draft"],
            f"{100 * run['draft_acceptance_rate']:.0f}",
            *(f"{100 * count / run['drafts']:.0f}" for count in run["accepted_per_position"][:most]),
            *([""] * (most - len(run["accepted_per_position"]))),
        ]
        for run in drafted
    ]
    head = ["accepted, in 100", "tokens", *(f"at {place}" for place in range(1, most + 1))]
    return [*markdown(head, rows), ""]


def _best(record: dict[str, Any]) -> list[str]:
    """What to use here, in a sentence a temperature."""
    lines = [""]
    for temperature in dict.fromkeys(run["temperature"] for run in record["runs"]):
        runs = [run for run in record["runs"] if run["temperature"] == temperature]
        best = max(runs, key=lambda run: run["speedup_of_total"])
        at = f"At temperature {temperature:g}" if temperature else "Greedily"
        if best["speedup_of_total"] < 1.02:
            lines.append(f"{at}, nothing here is faster than plain decoding on these prompts.")
        else:
            lines.append(
                f"{at}, --draft {best['draft']} is fastest on these prompts: {best['speedup_of_total']:.2f} times "
                "plain decoding."
            )
    return lines

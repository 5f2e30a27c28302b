"""Records of measurements as Markdown, also shown on a terminal: a section per model, a table per temperature.

Only measurements on one machine, at one commit, are put side by side.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from foretoken.bench.fields import is_number
from foretoken.bench.pages import asked, how_sure, markdown, memory, rehearsed, shown, times, where
from foretoken.bench.runs import KIND
from foretoken.bench.side_by_side.tables import table as peers
from foretoken.bench.statistics import FEWEST
from foretoken.common.progress import size
from foretoken.errors import InputError

TITLE = "# Decoding, measured"
POSITIONS = 8  # positions of a draft that are shown
_MOST = 1.05  # of what memory allows: a larger share means that memory was faster than measured
_OFTEN = 10  # generations in a hundred with slow memory
# what two records of one measurement have in common
_ASKED = ("kind", "model", "model_sha256", "suite", "max_new_tokens", "drafts", "temperatures", "dtype", "weights")


def report(records: Sequence[tuple[Path, dict[str, Any]]], pictures: dict[Path, str] | None = None) -> list[str]:
    """The lines of a report on records, each given with its file; `pictures` are shown with their records.

    Raises InputError if the records are of different machines or commits.
    """
    _expect_comparable(records)
    first = records[0][1]
    lines = [TITLE, "", where(first), ""]
    for model in dict.fromkeys(record["model"] for _, record in records):
        lines += [f"## {model}", ""]
        for path, record in records:
            if record["model"] == model:
                lines += section(record)
                lines += [f"![{model}]({quote(pictures[path])})", ""] if pictures and path in pictures else []
    return list(map(shown, lines))


def _expect_comparable(records: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Refuse records of different machines or commits: either could cause a difference."""
    path, first = records[0]
    for other_path, other in records[1:]:
        commit = first["commit"]
        if commit is None or "-dirty" in commit:
            raise InputError(
                f"{path.name} was measured with code that no commit holds ({commit or 'unknown'}), so it cannot be "
                f"told whether {other_path.name} was measured with the same; commit, and measure both again"
            )
        for name in ("machine", "commit"):
            if other[name] != first[name]:
                raise InputError(
                    f"{path.name} and {other_path.name} differ in {_what(name, first[name], other[name])}, so their "
                    "figures cannot be compared; measure both in one place, or make a report of each"
                )
    seen: dict[str, Path] = {}
    for its_path, record in records:
        what = json.dumps([*(record.get(name) for name in _ASKED), sorted(record.get("peers", ()))], sort_keys=True)
        if what in seen:
            both = f"{seen[what].name} and {its_path.name}"
            raise InputError(f"{both} hold the same measurement of {record['model']}; name one of them")
        seen[what] = its_path


def _what(name: str, one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in {**one, **other} if one.get(key) != other.get(key))
        return f"{name} ({key}: {one.get(key)!r} and {other.get(key)!r})"
    return f"{name} ({one!r} and {other!r})"


def section(record: dict[str, Any]) -> list[str]:
    """The lines of one record."""
    if record["kind"] != KIND:
        return ["### Beside others", "", *peers(record).splitlines(), ""]
    lines = [_about(record), "", *_disturbed(record)]
    for temperature, runs in _by_temperature(record).items():
        lines += [f"Temperature {temperature:g}" + (", greedy" if temperature == 0 else ""), ""]
        lines += [*table(runs), "", *_differences(runs), *_positions(runs)]
    return lines


def _by_temperature(record: dict[str, Any]) -> dict[float, list[dict[str, Any]]]:
    runs: dict[float, list[dict[str, Any]]] = {}
    for run in record["runs"]:
        runs.setdefault(run["temperature"], []).append(run)
    return runs


def lines(record: dict[str, Any]) -> list[str]:
    """What a terminal shows after a measurement: the record's section and the fastest draft."""
    return list(map(shown, [where(record), "", *section(record)[:-1], *_best(record)]))


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The table of the runs at one temperature."""
    sure = how_sure(min(run["prompts"] for run in runs))
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "draft": lambda run: str(run["draft"]),
        "tokens/s": lambda run: f"{run['tokens_per_second']:.1f}",
        "with prompts": lambda run: f"{run['tokens_per_second_with_prefill']:.1f}",
        f"speed-up ({sure})": lambda run: times(run["speedup"], run["speedup_interval"]),
        "of all": lambda run: f"{run['speedup_of_total']:.2f}",
        "all with prompts": lambda run: f"{run['speedup_with_prefill']:.2f}",
        "tokens a check": lambda run: f"{run['mean_acceptance_length']:.2f}",
        "GFLOP a token": lambda run: "" if (flops := run.get("flops_per_token")) is None else f"{flops / 1e9:.3g}",
        "bytes a token": lambda run: size(int(run["bytes_per_token"])),
        "of ceiling": lambda run: "" if run["share_of_ceiling"] is None else f"{run['share_of_ceiling']:.2f}",
        "promise": lambda run: str(run["promise"]),
        "identical": lambda run: "yes" if run["identical"] else "NO",
    }
    if all(run.get("flops_per_token") is None for run in runs):  # older records have bytes alone
        del columns["GFLOP a token"]
    return markdown(list(columns), [[cell(run) for cell in columns.values()] for run in runs])


def _about(record: dict[str, Any]) -> str:
    return (
        f"{size(record['model_bytes'])} of weights, {record['weights']}.{rehearsed(record)} {asked(record)}, in turn "
        f"with plain decoding.{memory(record)} Tokens per second are of decoding alone, and with the prompt's time; "
        "speed-ups are the median over prompts, of all prompts together, and of those with their reading; bytes are "
        "those of weights; the ceiling is what reading them allows."
    )


def _disturbed(record: dict[str, Any]) -> list[str]:
    """A warning if something else ran meanwhile: memory was slow, or slower when measured than in between."""
    shares = [run["share_of_ceiling"] for run in record["runs"] if run["share_of_ceiling"] is not None]
    slow = record.get("slow_memory_percent")
    if max(shares, default=0) <= _MOST and not (is_number(slow) and slow > _OFTEN):
        return []
    return [
        "**Something else ran meanwhile**: speeds and ratios here say little; measure again on an idle machine.",
        "",
    ]


def _differences(runs: Sequence[dict[str, Any]]) -> list[str]:
    differing = [(run["draft"], run["first_difference"]) for run in runs if isinstance(run["first_difference"], dict)]
    lines = [
        f"{draft} differs from plain decoding first in prompt {found.get('prompt')}, token {found.get('position')}: "
        f"{found.get('token')} instead of {found.get('plain_token')}."
        for draft, found in differing
    ]
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
    """The draft to use, one sentence per temperature: the largest speed-up whose interval is above 1."""
    lines = [""]
    for temperature, runs in _by_temperature(record).items():
        same = [run for run in runs if run["identical"]]
        sure = [run for run in same if run["speedup_interval"][0] > 1 and run["mean_acceptance_length"] > 1]
        best = max(sure, key=lambda run: run["speedup"], default=None)
        at = f"At temperature {temperature:g}" if temperature else "Greedily"
        if best is None:
            lines.append(f"{at}, nothing here is surely faster than plain decoding on these prompts.")
        else:
            gain = times(best["speedup"], best["speedup_interval"])
            few = "; of so few prompts that says little" if best["prompts"] < FEWEST else ""
            draft = shlex.quote(best["draft"])
            lines.append(f"{at}, --draft {draft} is fastest: its speed-up is {gain} on these prompts{few}.")
    return lines

"""Whether a command took bad input as it should: one line and exit code 2, or through to a whole end."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.prove.bad_input.alter import read_header
from tests.prove.bad_input.sandbox import Outcome

CODES = (0, 1, 2, 141)
LONGEST = 1500  # characters of a message
# what no message may say: the words of interpreters and libraries for their own failures
INTERNAL = re.compile(
    r"Traceback|[pP]anic|unwrap\(\)|std::|c10|DefaultCPUAllocator|PyBytes|NoneType|<class |has no attribute"
    r"|object is not"
    r"|\w*(?:Runtime|Type|Attribute|Key|Index|Recursion|Overflow|Memory|Assertion|Unbound\w*|Validation)Error"
    r"|unsupported operand|list ind|index out of range|argument of type|positional argument|unhashable"
    r"|torch\.(?!float|bfloat|int|uint|bool|comp)"
)
CRASH = re.compile("Traceback|PanicException")  # what is not even quoted from a library
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]")


def refused(outcome: Outcome) -> bool:
    """Whether it was refused."""
    return outcome.code == 2


def message(outcome: Outcome) -> str:
    """The line that says why."""
    lines = [line for line in outcome.err.splitlines() if line.startswith("foretoken: ")]
    return lines[-1].removeprefix("foretoken: ") if lines else ""


def faults(
    outcome: Outcome,
    before: dict[str, tuple[int, int, int]],
    after: dict[str, tuple[int, int, int]],
    folder: Path,
    may_write: tuple[str, ...],
    may_warn: bool = False,
    may_quote: bool = False,
    is_report: bool = False,
) -> list[str]:
    """What is wrong with how it ended. may_write: the names that a command may write at, if it does not refuse.
    is_report: what it prints is its own words, not a model's."""
    found = []
    if outcome.ended_by == "time":
        return ["it does not end"]
    if outcome.ended_by is not None:
        return [f"the process was ended by {outcome.ended_by}"]
    if outcome.code not in CODES:
        found.append(f"exit code {outcome.code}")
    if said := (CRASH if may_quote else INTERNAL).search(outcome.err):
        found.append(f"it speaks of {said[0]!r}")
    lines = [line for line in outcome.err.splitlines() if line.startswith("foretoken: ")]
    helped = outcome.code == 2 and not lines and (b"Usage: " in outcome.out or "Usage: " in outcome.err)
    if len(lines) != (1 if outcome.code == 2 else 0) and not helped:  # of a group without a command, the help is shown
        found.append(f"{len(lines)} lines that refuse, with exit code {outcome.code}")
    if any(len(line) > LONGEST for line in lines):
        found.append(f"a message of {max(map(len, lines))} characters")
    if any(_CONTROL.search(line) for line in lines):
        found.append("a message with control characters")
    if is_report and _CONTROL.search(outcome.out.decode(errors="replace")):
        found.append("a report with control characters")
    if outcome.code == 2 and not may_warn:
        others = [line for line in outcome.err.splitlines() if line and not line.startswith(("foretoken: ", "-- "))]
        if others:
            found.append(f"other words on standard error: {others[0]:.200}")
    if "audit: differs" in outcome.err:
        found.append("drafting changed the output")
    return found + _left_behind(outcome, before, after, folder, may_write)


def _left_behind(
    outcome: Outcome,
    before: dict[str, tuple[int, int, int]],
    after: dict[str, tuple[int, int, int]],
    folder: Path,
    may_write: tuple[str, ...],
) -> list[str]:
    found = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name) or any(name == one or name.startswith(f"{one}/") for one in may_write):
            continue
        if outcome.code == 0 and any(one.startswith(f"{name}/") for one in may_write):
            continue  # a command makes the folders that its output lies in
        found.append(
            f"{name!a} was {'changed' if name in before and name in after else 'left' if name in after else 'lost'}"
        )
    for name in may_write:
        if name in after and after[name] != before.get(name) and (reason := _not_whole(folder / name)):
            found.append(f"{name!a} is not whole: {reason}")
        if outcome.code == 2 and name in after and name not in before:
            found.append(f"{name!a} was written by a command that refused")
    return found


def _not_whole(path: Path) -> str | None:
    """What is wrong with something that a command wrote."""
    try:
        if path.is_dir():
            json.loads((path / "config.json").read_bytes())
            for file in path.glob("*.safetensors"):
                header, numbers = read_header(file.read_bytes())
                header.pop("__metadata__", None)
                if max(about["data_offsets"][1] for about in header.values()) != len(numbers):
                    return f"{file.name} is cut"
        elif path.suffix == ".json":
            json.loads(path.read_bytes())
        elif (path.suffix == ".svg" and not path.read_text(encoding="utf-8").rstrip().endswith("</svg>")) or (
            path.suffix == ".png" and b"IEND" not in path.read_bytes()[-16:]
        ):
            return "a picture without an end"
    except (OSError, ValueError, KeyError) as error:
        return repr(error)
    return None

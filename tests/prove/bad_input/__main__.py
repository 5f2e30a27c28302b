"""The bad input sweep: `python -m tests.prove.bad_input`, as `make prove` runs it.

Checkpoints, configurations, prompts, talks, records, options, drafts, grammars and places are spoiled, by numbers that
are drawn from a seed and the case's own number, and a command meets them in a process of its own with limits of time
and memory. Each must refuse with one line and exit code 2, or come through to a whole end: no traceback, no crash, no
hang, nothing left behind. `--case N` runs one case again, and shows what it said.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretoken.common.files import expect_place, write_json
from foretoken.common.provenance import provenance
from foretoken.errors import InputError
from tests.prove.bad_input import checkpoints, grammars, inputs, measurements, methods, words
from tests.prove.bad_input.case import Case, Make
from tests.prove.bad_input.judge import faults, message
from tests.prove.bad_input.sandbox import Command, Outcome, all_of, warm
from tests.prove.bad_input.stage import CONTROLS, NEEDED, build, contents

# what is spoiled, and how many of the kinds that a case is dealt from
KINDS: dict[str, tuple[Make, int]] = {
    "configurations": (checkpoints.configs, 4),
    "weights": (checkpoints.weights, 3),
    "shards": (checkpoints.shards, 1),
    "files of a checkpoint": (checkpoints.files, 2),
    "bytes of a checkpoint": (checkpoints.any_bytes, 1),
    "tokenizers": (checkpoints.tokenizers, 3),
    "copies": (checkpoints.copies, 2),
    "prompts": (inputs.prompts, 1),
    "talks": (inputs.talks, 1),
    "records": (inputs.records, 3),
    "places": (inputs.places, 2),
    "suites": (measurements.suites, 1),
    "measurements": (measurements.measured, 1),
    "journals": (measurements.journals, 1),
    "rehearsals": (measurements.rehearsals, 1),
    "tuning": (methods.tuning, 1),
    "reproductions": (methods.reproductions, 1),
    "options": (words.options, 2),
    "drafts": (words.drafts, 2),
    "grammars": (grammars.grammars, 2),
    "commands": (words.commands, 1),
}
# what needs something measured to spoil
MEASURED = {"measurements": "measurement", "journals": "measurement", "reproductions": "reproduction"}
DEALT = [name for turn in range(4) for name, (_, often) in KINDS.items() if turn < often]


@dataclass
class Tally:
    """What came of the cases of a kind."""

    refused: int = 0
    ran_through: int = 0
    differs: int = 0  # exit code 1: a record that is not proven
    unread: int = 0  # exit code 141
    faults: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many there were."""
        return self.refused + self.ran_through + self.differs + self.unread


def make(seed: int, number: int, folder: Path, stage: Path) -> tuple[str, Case]:
    """A case by its number: its kind, and what its folder then holds."""
    kind = DEALT[number % len(DEALT)]
    return kind, KINDS[kind][0](random.Random(f"{seed}:{number}"), folder, stage)


class Sweep:
    """Some cases, in folders of their own under `work`."""

    def __init__(self, seed: int, numbers: list[int], work: Path, show: bool = False) -> None:
        self._seed, self._numbers, self._work, self._show = seed, numbers, work, show
        self._stage = work / "stage"
        self._made: dict[int, tuple[str, Case, dict[str, tuple[int, int, int]]]] = {}
        self.tallies: dict[str, Tally] = {}
        self.ends: list[tuple[int, str, str]] = []  # number, what, the message or the exit code
        self.slowest: tuple[float, int] = (0.0, -1)

    def controls(self, names: Iterable[str] = CONTROLS) -> dict[str, str]:
        """Make the sound world; what went wrong."""
        self._stage.mkdir()
        return build(self._stage, names)

    def run(self, jobs: int) -> None:
        """Run all cases."""
        began, asked = time.monotonic(), len(self._numbers)
        for done, (at, outcome) in enumerate(all_of(self._commands(), jobs), 1):
            self._judge(self._numbers[at], outcome)
            if done * 20 // asked > (done - 1) * 20 // asked and asked > 20:
                wrong = sum(len(tally.faults) for tally in self.tallies.values())
                print(
                    f"bad input: {done} of {asked} cases, {wrong} wrong, {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )

    def _commands(self) -> Iterator[tuple[Command, Path, Path]]:
        for number in self._numbers:
            folder, logs = self._work / f"case-{number}", self._work / f"logs-{number}"
            folder.mkdir()
            logs.mkdir()
            kind, case = make(self._seed, number, folder, self._stage)
            self._made[number] = kind, case, contents(folder)
            yield case.command, folder, logs

    def _judge(self, number: int, outcome: Outcome) -> None:
        kind, case, before = self._made.pop(number)
        folder = self._work / f"case-{number}"
        may = (case.may_write, case.may_warn, case.may_quote)
        is_report = case.command.words[:1] in (["bench"], ["doctor"], ["tune"], ["reproduce"])
        found = faults(outcome, before, contents(folder), folder, *may, is_report)
        tally = self.tallies.setdefault(kind, Tally())
        tally.refused += outcome.code == 2
        tally.differs += outcome.code == 1
        tally.unread += outcome.code == 141
        tally.ran_through += outcome.code not in (1, 2, 141)
        self.slowest = max(self.slowest, (outcome.seconds, number))
        self.ends.append((number, case.what, message(outcome) or f"exit code {outcome.code}"))
        if found:
            tally.faults.append(f"case {number}, {case.what}: {'; '.join(found)}")
            print(f"bad input: WRONG: {tally.faults[-1]!s:.600}", file=sys.stderr, flush=True)
        if self._show:
            print(f"{kind}: {case.what}\n$ foretoken {str(case.command.words)[:2000]}", file=sys.stderr)
            print(
                f"exit code {outcome.code}, {outcome.ended_by}, {outcome.seconds:.2f} s\n{outcome.err[-6000:]}",
                file=sys.stderr,
            )
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._work / f"logs-{number}", ignore_errors=True)


def record(
    seed: int, numbers: list[int], sweep: Sweep, wrong: dict[str, str], origin: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """What a sweep found, for results/."""
    outcomes: Counter[str] = Counter()
    for tally in sweep.tallies.values():
        outcomes.update(
            refused=tally.refused, ran_through=tally.ran_through, differs=tally.differs, unread=tally.unread
        )
    kinds = {
        name: {key: value for key, value in vars(tally).items() if key != "faults"}
        for name, tally in sorted(sweep.tallies.items())
    }
    return {
        **origin,
        "seed": seed,
        "cases": len(numbers),
        "controls": {name: wrong.get(name, "ran through") for name in CONTROLS},
        "outcomes": dict(outcomes),
        "kinds": kinds,
        "faults": [fault for tally in sweep.tallies.values() for fault in tally.faults],
        "slowest_case": {"case": sweep.slowest[1], "cpu_seconds": round(sweep.slowest[0], 2)},
        "seconds": round(seconds, 1),
    }


def empty_kinds(sweep: Sweep) -> list[str]:
    """Kinds of which nothing was refused, though there was enough to refuse: nothing would be shown by them."""
    return [name for name, tally in sweep.tallies.items() if tally.cases >= 10 and not tally.refused]


def main() -> None:
    """The command line."""
    try:
        _run()
    except InputError as error:
        raise SystemExit(f"bad input: {error}") from None


def _run() -> None:
    parser = argparse.ArgumentParser(description="Bad input is refused in one line, or run through.")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--cases", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--case", type=int, action="append", help="run this one, and show what it said; may come again")
    parser.add_argument("--kind", choices=KINDS, help="only of this kind")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (%(default)s)")
    parser.add_argument("--messages", action="store_true", help="show every case, and its message")
    parser.add_argument("--out", type=Path, help="write the record here")
    args = parser.parse_args()
    if args.out is not None:
        expect_place(args.out)
    if args.cases < 1 or args.jobs < 1:
        raise SystemExit("bad input: --cases and --jobs are 1 or more")
    numbers = args.case or [n for n in range(args.cases) if args.kind in (None, DEALT[n % len(DEALT)])]
    origin, began = provenance(), time.monotonic()
    warm()
    with tempfile.TemporaryDirectory(prefix="foretoken-bad-input-") as work:
        sweep = Sweep(args.seed, numbers, Path(work), show=args.case is not None)
        kinds = {DEALT[n % len(DEALT)] for n in numbers}
        measured = sorted({control for kind, control in MEASURED.items() if kind in kinds})
        wrong = sweep.controls(CONTROLS if args.case is None else (*NEEDED, *measured))
        for name, why in wrong.items():
            print(f"bad input: control {name!r} does not run through: {why}", file=sys.stderr, flush=True)
        if not wrong:
            sweep.run(args.jobs)
    told = record(args.seed, numbers, sweep, wrong, origin, time.monotonic() - began)
    if args.messages:
        for number, what, why in sorted(sweep.ends):
            print(f"{number}: {what}\n    {why}")
    for name, tally in told["kinds"].items():
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in tally.items())}")
    print(f"{told['cases']} cases in {told['seconds']} s: {told['outcomes']}, {len(told['faults'])} wrong")
    if args.out is not None:
        write_json(args.out, told)
    empty = empty_kinds(sweep)
    if wrong or told["faults"] or empty:
        raise SystemExit(
            f"bad input: {len(wrong)} controls and {len(told['faults'])} cases are wrong; no refusals of: {empty}"
        )


if __name__ == "__main__":
    main()

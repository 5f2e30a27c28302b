"""The proof: `python -m tests.prove --tokens 1000000`, as `make prove` runs it.

Random tiny models of every family, the embedded models, and those that --models names; every type, low-bit format,
instruction set and number of threads; every drafter and fake; random trees; several sequences in one pass. Each token
and each bit of its logits is compared with plain decoding. The record goes to results/.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from foretoken.common.files import expect_place, write_json
from foretoken.common.provenance import provenance
from foretoken.errors import InputError
from foretoken.kernels import native
from tests.prove.cases import ALWAYS, Difference, Size, counting_coded, prove
from tests.prove.models import makers

SMALL = Size()
LARGE = Size(prompts=2, longest_prompt=90, tokens=16)  # of models beyond tiny: plain C++ takes its time


def run(
    tokens: int,
    seed: int,
    models: list[str],
    progress: Progress | None = None,
    small: Size = SMALL,
    large: Size = LARGE,
) -> dict[str, object]:
    """The record of a proof of so many tokens."""
    origin = provenance()  # of what is running, whatever is committed until it ends
    rows, absent = makers(models)
    levels = native.testable()
    chance = random.Random(seed)
    events: Counter[str] = Counter()
    subjects: Counter[str] = Counter()
    order = [(name, make) for name, often, make in rows for _ in range(often)]
    once = {name: make for name, _, make in reversed(rows)}  # each at least once, those that were named first
    difference, began, done, asked = None, time.perf_counter(), 0, tokens
    task = progress.add_task("tokens", total=tokens) if progress else None
    turn = 0
    while done < tokens or (once and tokens):
        if once:
            name = next(iter(once))
            make = once.pop(name)
        else:
            if turn % len(order) == 0:
                chance.shuffle(order)
            name, make = order[turn % len(order)]
            turn += 1
        subject = make(chance)
        subjects[f"{subject.name}, {subject.kind}"] += 1
        try:
            size = small if name.startswith("tiny") or name == "stdlib-1m" else large
            with counting_coded(events):
                prove(subject, levels, size, chance, events)
        except Difference as found:
            difference = str(found)
        except KeyboardInterrupt:  # what was compared until then is compared
            tokens = 0
        before, done = done, sum(count for event, count in events.items() if event.startswith("tokens"))
        if progress and progress.disable and done * 20 // asked > before * 20 // asked:  # nobody sees a bar
            print(f"prove: {done:,} of {asked:,} tokens", file=sys.stderr, flush=True)
        if progress and task is not None:
            progress.update(task, completed=min(done, tokens))
        if difference:
            break
    return {
        **origin,
        "seed": seed,
        "tokens": done,
        "tokens_asked": asked,
        "differences": 0 if difference is None else 1,
        "first_difference": difference,
        "levels": levels,
        "events": dict(sorted(events.items())),
        "never_happened": [event for event in ALWAYS if not events[event]],
        "models": dict(sorted(subjects.items())),
        "left_out": absent,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """The command line."""
    try:
        _run()
    except InputError as error:
        raise SystemExit(f"prove: {error}") from None


def _run() -> None:
    parser = argparse.ArgumentParser(description="Proves that drafting changes nothing.")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="how many to compare (%(default)s)")
    parser.add_argument("--seed", type=int, default=20261121, help="of models, prompts and trees (%(default)s)")
    parser.add_argument("--models", default="", help="folders of checkpoints, with commas between them")
    parser.add_argument("--out", type=Path, help="write the record here")
    args = parser.parse_args()
    if args.tokens < 1:
        raise SystemExit(f"prove: --tokens is {args.tokens}; expected 1 or more")
    if args.out is not None:
        expect_place(args.out)
    names = [name for name in args.models.split(",") if name]
    for name in makers(names)[1]:
        print(f"prove: {name} is absent and is left out", file=sys.stderr, flush=True)
    if native.module() is None:
        raise SystemExit("prove: the native module is not there; install it first")
    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        record = run(args.tokens, args.seed, names, progress)
    print(json.dumps(record, indent=1))
    if args.out is not None:
        write_json(args.out, record)
    if record["differences"]:
        raise SystemExit(f"prove: {record['first_difference']}")
    if record["never_happened"]:
        missing = "; ".join(map(str, record["never_happened"]))  # type: ignore[call-overload]
        raise SystemExit(f"prove: no difference, but vacuous: these never happened: {missing}; compare more --tokens")


if __name__ == "__main__":
    main()

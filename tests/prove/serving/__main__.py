"""The server under load: `python -m tests.prove.serving --requests 10000`, as `make prove` runs it.

Clients ask a server in a process of its own for requests that are drawn from a seed, and compare each answer with plain
decoding. A fifth of them go away at a random moment. Then come clients that are slow, deaf, or talk garbage. There must
be no error, no difference, and no growing memory. The record goes to results/.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import foretoken
from foretoken.common.files import expect_place, write_json
from foretoken.common.provenance import provenance
from foretoken.errors import InputError
from tests.prove.serving import rough, soak
from tests.prove.serving.asks import Drawer
from tests.prove.serving.process import started
from tests.talks import talking

DRAFT = "mxfp4,lookup"
_SEQUENCES = 16  # texts at once


def run(
    requests: int,
    seed: int,
    model: str,
    distinct: int,
    clients: int,
    rough_too: rough.Size | None,
    longest: int = 3000,
) -> dict[str, Any]:
    """The record. rough_too: how much of rough use; None: none of it. longest: the most characters of a prompt."""
    origin, began = provenance(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="foretoken-talker-") as name:
        folder = talking(Path(name) / model, model=model)
        plain = foretoken.load(folder, draft="none")
        drawer = Drawer(plain, random.Random(seed), longest)
        asks = [drawer.draw() for _ in range(distinct)]
        _say(f"{distinct} distinct requests were answered plainly in {time.perf_counter() - began:.0f} s")
        record: dict[str, Any] = {**origin, "seed": seed, "model": model, "draft": DRAFT, "promise": plain.promise}
        with started(folder, ["--draft", DRAFT, "--max-num-seqs", str(_SEQUENCES)]) as process:
            its = soak.soak(process, asks, requests, seed, clients, lambda tally: _say(soak.told(tally)))
            record["soak"] = its
            if rough_too is not None:
                _say("rough use")
                record["rough"] = rough.rough(process, asks, seed, rough_too)
    record["seconds"] = round(time.perf_counter() - began, 1)
    return record


def faults(record: dict[str, Any], *, short: bool = False) -> list[str]:
    """What is wrong in a record. short: of so few requests that memory cannot be judged."""
    its = record["soak"]
    found = [*its["differences"], *its["errors"], *record.get("rough", {}).get("faults", ())]
    grew = soak.grew_too_much(its["memory"])
    if grew is not None and not short:
        found.append(grew)
    if not found and its["never_happened"]:
        found.append(f"vacuous: these never happened: {'; '.join(its['never_happened'])}; ask for more --requests")
    return found


def _say(what: str) -> None:
    print(f"serving: {what}", file=sys.stderr, flush=True)


def main() -> None:
    """The command line."""
    try:
        _run()
    except InputError as error:
        raise SystemExit(f"serving: {error}") from None


def _run() -> None:
    parser = argparse.ArgumentParser(description="Proves that a server answers many clients as plain decoding does.")
    parser.add_argument("--requests", type=int, default=10_000, help="how many to send (%(default)s)")
    parser.add_argument("--distinct", type=int, default=300, help="how many of them differ (%(default)s)")
    parser.add_argument("--clients", type=int, default=24, help="how many ask at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=20261126, help="of requests and clients (%(default)s)")
    parser.add_argument("--model", default="stdlib-7m", help="an embedded model (%(default)s)")
    parser.add_argument("--no-rough", action="store_true", help="leave out what is slow, deaf, or garbage")
    parser.add_argument("--out", type=Path, help="write the record here")
    args = parser.parse_args()
    if min(args.requests, args.distinct, args.clients) < 1:
        raise SystemExit("serving: --requests, --distinct and --clients are 1 or more")
    if args.out is not None:
        expect_place(args.out)
    its_rough = None if args.no_rough else rough.Size()
    record = run(args.requests, args.seed, args.model, args.distinct, args.clients, its_rough)
    print(json.dumps(record, indent=1))
    if args.out is not None:
        write_json(args.out, record)
    wrong = faults(record)
    if wrong:
        raise SystemExit("\n".join(f"serving: {each}" for each in wrong))


if __name__ == "__main__":
    main()

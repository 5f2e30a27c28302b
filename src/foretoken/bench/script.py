"""The common parts of measurements that run as modules: options, prompts, and a record."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretoken.api.model import Model
from foretoken.bench.samples import counted
from foretoken.bench.suites import HELD_OUT, Suite, first_turn, open_suite
from foretoken.common.files import expect_place, write_json
from foretoken.common.provenance import provenance
from foretoken.common.source import resolve
from foretoken.errors import ForetokenError
from foretoken.kernels import explain
from foretoken.results.completion import Completion
from foretoken.text.tokenizer import Tokenizer


def add_model_and_suite(parser: argparse.ArgumentParser, new_tokens: int, *, each: str = "prompt") -> None:
    """Add the options of a measurement that continues a suite's prompts, by at most `new_tokens` each by default."""
    parser.add_argument("--model", default="stdlib-7m", help="a folder, a hub id or an embedded model (%(default)s)")
    parser.add_argument("--suite", default=HELD_OUT, help="which prompts (%(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=new_tokens, help=f"of each {each} (%(default)s)")


def suite_for(model: str, suite: str, count: int | None = None) -> Suite:
    """A suite, or its first prompts, for a model. model: its name, so that only its tokenizer is loaded."""
    return open_suite(suite, Tokenizer.load(resolve(model)), count=count)


def first_turns(suite: Suite, model: Model) -> list[tuple[int, ...]]:
    """The token ids of each prompt's first turn, by a model's tokenizer."""
    return [first_turn(prompt, model.tokenizer) for prompt in suite.prompts]


def asked_of(model: str, suite: Suite) -> dict[str, Any]:
    """A record's fields on a model, the kernels that compute it, and the suite."""
    about = {"name": suite.name, "sha256": suite.sha256}
    return {"kernels": explain().splitlines(), "model": Path(model).name, "suite": about}


def drafting(completions: Sequence[Completion]) -> dict[str, Any]:
    """A record's fields on drafts: the fate of their tokens, and tokens per check."""
    counts = counted(completions)
    drafted, accepted, passes = counts["draft_tokens"], counts["accepted_tokens"], counts["passes"]
    return {
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "rejected_tokens": drafted - accepted,
        "mean_acceptance_length": round(counts["decoded"] / passes, 3) if passes else None,
    }


def changed(what: str, plain: Sequence[Completion], drafted: Sequence[Completion]) -> dict[str, int]:
    """How many completions differ from plain decoding in tokens or logits. what: a record's name for completions. All
    were made with `hash_logits`."""
    pairs = list(zip(plain, drafted, strict=True))
    return {
        f"{what}_with_other_tokens": sum(a.tokens != b.tokens for a, b in pairs),
        f"{what}_with_other_logits": sum(a.logits_sha256 != b.logits_sha256 for a, b in pairs),
    }


def carry_out(
    name: str, parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], dict[str, Any]]
) -> dict[str, Any]:
    """Measure, print the record and write it to `--out`, an option that is added here; returns the record.

    The provenance is taken before the measurement: it is that of the running code, whatever is committed meanwhile. A
    ForetokenError ends the program, with its `name`.
    """
    parser.add_argument("--out", type=Path, help="write the record here")
    args = parser.parse_args()
    try:
        if args.out is not None:
            expect_place(args.out)
        origin = provenance()
        record = {**origin, **measure(args)}
        print(json.dumps(record, indent=1))
        if args.out is not None:
            write_json(args.out, record)
    except ForetokenError as error:
        raise SystemExit(f"{name}: {error}") from None
    return record

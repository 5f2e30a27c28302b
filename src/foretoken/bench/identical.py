"""Does drafting change a token? `python -m foretoken.bench.identical --model MODEL --out results/NAME.json`.

Generates each prompt of a suite plainly and with each draft, in each type, and compares tokens and logits bit for bit.
The record says how much was drafted, accepted and rejected, so that "identical" cannot be vacuous. It is no benchmark:
times are in it to be looked at, not quoted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from rich.progress import track

from foretoken.api.build import load, with_draft
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, drafting, first_turns, suite_for
from foretoken.bench.suites import Suite
from foretoken.results.completion import Completion


def compare(model: str, suite: Suite, drafts: list[str], dtype: str, max_new_tokens: int) -> list[dict[str, Any]]:
    """One row a draft: how many completions and logits differ from plain decoding, and what drafting did."""
    plain_model = load(model, draft="none", dtype=dtype)
    prompts = first_turns(suite, plain_model)
    loaded = {draft: with_draft(plain_model, draft) for draft in drafts}
    done: dict[str, list[Completion]] = {draft: [] for draft in drafts}
    plain: list[Completion] = []
    for prompt in track(prompts, f"{dtype}", disable=not sys.stderr.isatty()):
        settings = {"max_new_tokens": max_new_tokens, "keep_logits": True}
        plain.append(plain_model.generate(prompt, **settings))
        for draft in drafts:
            done[draft].append(loaded[draft].generate(prompt, **settings))
    return [_row(draft, dtype, plain, done[draft]) for draft in drafts]


def _row(draft: str, dtype: str, plain: list[Completion], drafted: list[Completion]) -> dict[str, Any]:
    def equal_logits(a: Completion, b: Completion) -> bool:
        return a.logits is not None and b.logits is not None and torch.equal(a.logits, b.logits)

    pairs = list(zip(plain, drafted, strict=True))
    return {
        "draft": draft,
        "dtype": dtype,
        "prompts": len(pairs),
        "tokens": sum(len(a.tokens) for a in plain),
        "completions_with_other_tokens": sum(a.tokens != b.tokens for a, b in pairs),
        "completions_with_other_logits": sum(not equal_logits(a, b) for a, b in pairs),
        **drafting(drafted),
        "promise": sorted({a.promise for a in drafted}),
        **{
            f"{prefix}{rate}": round(statistics.median(getattr(a.stats, rate) for a in completions), 1)
            for prefix, completions in (("", drafted), ("plain_", plain))
            for rate in ("tokens_per_second", "tokens_per_second_with_prefill")
        },
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Does drafting change a token?")
    add_model_and_suite(parser, new_tokens=200)
    parser.add_argument("--draft", action="append", help="a draft to compare with plain decoding; may come again")
    parser.add_argument("--dtype", action="append", help="bfloat16, float16 or float32; may come again")
    rows = carry_out("identical", parser, _measure)["results"]
    if any(row["completions_with_other_tokens"] or row["completions_with_other_logits"] for row in rows):
        raise SystemExit("identical: drafting changed the output")


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    drafts = args.draft or ["lookup", "lookup:min_match=1:tokens=15"]
    suite = suite_for(args.model, args.suite)
    rows = [
        row
        for dtype in args.dtype or ["bfloat16", "float32"]
        for row in compare(args.model, suite, drafts, dtype, args.max_new_tokens)
    ]
    return {**asked_of(args.model, suite), "threads": torch.get_num_threads(), "temperature": 0, "results": rows}


if __name__ == "__main__":
    main()

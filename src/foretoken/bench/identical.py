"""Does drafting change a token? `python -m foretoken.bench.identical --model MODEL --out results/NAME.json`.

Each prompt of a suite is decoded plainly and with each draft, in each type. Tokens and logits are compared bit for bit.
The record has the drafted, accepted and rejected tokens, so that "identical" cannot be vacuous. This is no benchmark:
do not quote the record's times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from rich.progress import track

from foretoken.api.build import load, with_draft
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, changed, drafting, first_turns, suite_for
from foretoken.bench.suites import Suite
from foretoken.results.completion import Completion


def compare(model: str, suite: Suite, drafts: list[str], dtype: str, max_new_tokens: int) -> list[dict[str, Any]]:
    """One row per draft: how many completions and logits differ from plain decoding, and what drafting did."""
    plain_model = load(model, draft="none", dtype=dtype, pace="fixed")  # every draft is tried, worth its time or not
    models = [plain_model, *(with_draft(plain_model, draft) for draft in drafts)]
    done: list[list[Completion]] = [[] for _ in models]
    for prompt in track(first_turns(suite, plain_model), dtype, disable=not sys.stderr.isatty()):
        for each, its in zip(models, done, strict=True):
            its.append(each.generate(prompt, max_new_tokens=max_new_tokens, hash_logits=True))
    plain, *drafted = done
    return [
        {
            "draft": draft,
            "dtype": dtype,
            "prompts": len(plain),
            "tokens": sum(len(completion.tokens) for completion in plain),
            **changed("completions", plain, its),
            **drafting(its),
            "promise": sorted({completion.promise for completion in its}),
            **_speeds("", its),
            **_speeds("plain_", plain),
        }
        for draft, its in zip(drafts, drafted, strict=True)
    ]


def _speeds(prefix: str, completions: list[Completion]) -> dict[str, float]:
    return {
        f"{prefix}{rate}": round(statistics.median(getattr(done.stats, rate) for done in completions), 1)
        for rate in ("tokens_per_second", "tokens_per_second_with_prefill")
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

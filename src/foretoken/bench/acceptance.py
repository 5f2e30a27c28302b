"""How much of a draft is accepted, greedily and sampled? `python -m foretoken.bench.acceptance --model MODEL`.

The drafts are chains and trees, by a different checkpoint or by the model's own low-bit copies. A copy drafts on a view
of the model's keys and values or with its own cache. The walk with the target's noise or the rejection rule judges the
drafts. For comparison, some drafts do not know the noise: greedy chains for a sampled text, and trees whose children
are ranked by their probabilities alone. The record has no times. Tokens per pass depend on the arithmetic and on each
draft's format, inputs and quantiser, which the record has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from foretoken.api.build import load, with_draft
from foretoken.api.levels import Loaded
from foretoken.api.model import Model
from foretoken.bench.samples import counted
from foretoken.bench.script import add_model_and_suite, carry_out, drafting, first_turns, suite_for
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.drafters.recipe import Level, LoadedLevel
from foretoken.errors import InputError, quoted
from foretoken.formats.weight import QuantisedWeight
from foretoken.protocol.types import Request
from foretoken.sampling.sampler import Sampler
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import LoadSettings

OPTIONS = ("format", "group", "inputs", "kv")  # options of a draft that a user may give
KINDS = ("chain", "own-cache", "rejection", "greedy", "beam", "probability")


class WithoutNoise(Samplers):
    """Makes samplers that guess as if the text were greedy."""

    def target(self, request: Request) -> Sampler:
        """The target's sampler at temperature 0."""
        return super().target(replace(request, sampling=replace(request.sampling, temperature=0.0)))


@dataclass(frozen=True)
class Way:
    """One way to draft and to judge. kind: one of `KINDS`. options: the draft's. samplers: what the draft guesses with;
    None: the target's noise, or for the rejection rule the draft's own."""

    name: str
    kind: str
    options: str
    rule: str = "walk"
    samplers: Samplers | None = None
    greedy: bool = True  # whether to measure it at temperature 0


def ways(lengths: list[int], width: int, depth: int, sharpness: list[float]) -> Iterator[Way]:
    """Ways with chains of some lengths and with beams of `width` x `depth`."""
    for length in lengths:
        name, tokens = f"chain of {length}", f"tokens={length}"
        yield Way(f"{name}, target's noise", "chain", tokens)
        yield Way(f"{name}, target's noise, own cache", "own-cache", f"{tokens}:own-cache")
        yield Way(f"{name}, rejection rule", "rejection", tokens, rule="rejection", greedy=False)
        yield Way(f"{name}, greedy", "greedy", tokens, samplers=WithoutNoise(None), greedy=False)
    for sharp in sharpness:
        name, tree = f"beam {width} x {depth}, sharpness {sharp:g}", f"k={width}:depth={depth}:sharpness={sharp}"
        yield Way(f"{name}, target's noise", "beam", tree)
        yield Way(f"{name}, by probability", "probability", tree, samplers=WithoutNoise(None), greedy=False)


def measure(model: Model, prompts: list[tuple[int, ...]], new_tokens: int, temperature: float) -> dict[str, Any]:
    """How much of a model's draft is accepted on some prompts."""
    settings = {"max_new_tokens": new_tokens, "temperature": temperature, "ignore_eos": True}
    done = [model.generate(prompt, seed=number, **settings) for number, prompt in enumerate(prompts)]
    counts = counted(done)
    return {
        "mean_acceptance_length": drafting(done)["mean_acceptance_length"],
        "draft_acceptance_rate": round(counts["accepted_tokens"] / counts["draft_tokens"], 4),
        **{name: counts[name] for name in ("accepted_per_position", "drafts", "draft_tokens", "accepted_tokens")},
    }


def named(spec: str) -> Level:
    """The level of one checkpoint or format. This script, not the user, chooses how it drafts. Raises InputError."""
    levels = name_levels(LoadSettings(draft=spec))
    if len(levels) != 1 or not levels[0].has_decoder:
        raise InputError(f"--draft is {quoted(spec)}; expected a checkpoint or a low-bit format")
    others = [option for option in levels[0].options if option not in OPTIONS]
    if others:
        raise InputError(
            f"--draft is {quoted(spec)}, and {others[0]!r} is not a draft's to choose here: the ways to draft are; "
            f"expected {', '.join(OPTIONS)}"
        )
    return levels[0]


def describe(draft: LoadedLevel) -> dict[str, Any]:
    """What a draft's weights are. quantiser: how they were rounded. from_copy: whether they were read from a copy
    instead of rounded now."""
    head, arithmetic = draft.decoder.weights.head, {"arithmetic": draft.decoder.arithmetic}
    if not isinstance(head.weight, QuantisedWeight):
        return {"format": None, **arithmetic}
    made = {"quantiser": draft.copy.quantiser if draft.copy else "direct", "from_copy": draft.copy is not None}
    reads = {"inputs": head.inputs, "kv": "int8" if draft.decoder.codes_places else "full"}
    return {"format": head.weight.format.label, **reads, **arithmetic, **made}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="How much of a draft is accepted, greedily and sampled?")
    add_model_and_suite(parser, new_tokens=160)
    parser.add_argument(
        "--draft",
        nargs="+",
        default=["stdlib-1m", "int4"],
        help="checkpoints and low-bit formats, with inputs, kv, group or format (%(default)s)",
    )
    parser.add_argument("--prompts", type=int, default=20, help="how many of them (%(default)s)")
    parser.add_argument("--temperature", type=float, action="append", help="may come again (0 and 0.8)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8], help="of chains (%(default)s)")
    parser.add_argument("--beam", default="6x8", help="width and depth of a tree (%(default)s)")
    parser.add_argument("--sharpness", type=float, action="append", help="of trees; may come again (0.5)")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="these ways (all)")
    carry_out("acceptance", parser, _measure)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    width, depth = (int(number) for number in args.beam.split("x"))
    model = load(args.model, draft="none")
    suite = suite_for(args.model, args.suite, args.prompts)
    prompts = first_turns(suite, model)
    judged = {"walk": model}
    if "rejection" in args.only:
        judged["rejection"] = load(args.model, draft="none", rule="rejection")
    about, rows = [], []
    levels = [find_levels([named(spec)], model.folder)[0] for spec in args.draft]  # all, before the first is measured
    for spec, level in zip(args.draft, levels, strict=True):
        loaded = Loaded()
        with_draft(model, spec, loaded=loaded)
        name = spec if level.folder is None else Path(spec).name
        about.append({"draft": name, **describe(*loaded.values())})
        asked = [
            (temperature, way)
            for temperature in args.temperature or [0.0, 0.8]
            for way in ways(args.tokens, width, depth, args.sharpness or [0.5])
            if (way.greedy or temperature > 0) and way.kind in args.only and (level.is_copy or way.kind != "own-cache")
        ]
        for temperature, way in track(asked, name, console=Console(stderr=True), disable=not sys.stderr.isatty()):
            drafted = with_draft(judged[way.rule], f"{spec}:{way.options}", samplers=way.samplers, loaded=loaded)
            row = measure(drafted, prompts, args.max_new_tokens, temperature)
            rows.append({"draft": name, "way": way.name, "temperature": temperature, **row})
            print(f"{name}, {way.name}, {temperature:g}: {row['mean_acceptance_length']}", file=sys.stderr)
    return {
        "model": Path(args.model).name,
        "arithmetic": model.target.arithmetic,
        "promise": model.promise,
        "threads": torch.get_num_threads(),
        "suite": {"name": suite.name, "sha256": suite.sha256, "prompts": len(prompts)},
        "max_new_tokens": args.max_new_tokens,
        "drafts": about,
        "results": rows,
    }


if __name__ == "__main__":
    main()

"""How much of a draft is accepted, greedily and sampled? `python -m foretoken.bench.acceptance --model MODEL`.

Chains and trees of another checkpoint and of the model's own low-bit copies, on views of the model's keys and values or
with a cache of their own, judged by the walk with the target's dice and by the rejection rule; and for comparison
drafts that do not know the dice: greedy chains that a sampled text is matched with, trees whose children are ranked by
their probabilities alone. No times. Tokens a pass depend on the arithmetic, and on each draft's format, inputs and
quantiser: the record has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from foretoken.api.build import load, load_level
from foretoken.bench.samples import added
from foretoken.bench.script import add_model_and_suite, carry_out, first_turns, suite_for
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.drafters.recipe import Level, LoadedLevel
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import InputError, quoted
from foretoken.formats.weight import QuantisedWeight
from foretoken.loop.engine import Engine
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, Drafter, Request, SamplingParams
from foretoken.results.stats import Stats, summarise
from foretoken.sampling.sampler import DRAFT_DICE, Sampler
from foretoken.settings.load import LoadSettings
from foretoken.verification.local import LocalVerifier

Made = Callable[[Decoder, Decoder, Caches | None], Drafter]  # from a draft's decoder, the target, and what it may view
Samplers = Callable[[Request], Sampler]
OPTIONS = ("format", "group", "inputs")  # of a draft that may be given
KINDS = ("chain", "own-cache", "rejection", "greedy", "beam", "probability")


@dataclass(frozen=True)
class Way:
    """One way to draft and to judge. kind: one of `KINDS`."""

    name: str
    kind: str
    make: Made
    budget: Budget
    rule: str = "walk"
    greedy: bool = True  # whether it is of interest at temperature 0


def _chain(
    samplers: Samplers, draft: Decoder, target: Decoder, caches: Caches | None, independent: bool = False
) -> Drafter:
    size = target.config.valid_vocab_size
    return ModelDrafter(draft, samplers, name="chain", vocab_size=size, independent=independent, views=caches)


def _beam(samplers: Samplers, draft: Decoder, target: Decoder, caches: Caches | None, sharp: float = 0.5) -> Drafter:
    size = target.config.valid_vocab_size
    return TreeDrafter(draft, samplers, name="tree", vocab_size=size, shape="beam", sharpness=sharp, views=caches)


def _draft_dice(request: Request) -> Sampler:
    return Sampler(request, stream=DRAFT_DICE)


def ways(lengths: list[int], width: int, depth: int, sharpness: list[float]) -> Iterator[Way]:
    """Chains of some lengths and beams of `width` x `depth`."""
    told, untold = partial(_chain, Sampler), partial(_chain, without_dice)
    independent = partial(_chain, _draft_dice, independent=True)
    for length in lengths:
        name, budget = f"chain of {length}", Budget(length, length)
        yield Way(f"{name}, target's dice", "chain", told, budget)
        yield Way(f"{name}, target's dice, own cache", "own-cache", told, budget)
        yield Way(f"{name}, rejection rule", "rejection", independent, budget, "rejection", greedy=False)
        yield Way(f"{name}, greedy", "greedy", untold, budget, greedy=False)
    for sharp in sharpness:
        name, budget = f"beam {width} x {depth}, sharpness {sharp:g}", Budget(width * depth, depth, width)
        yield Way(f"{name}, target's dice", "beam", partial(_beam, Sampler, sharp=sharp), budget)
        by_probability = partial(_beam, without_dice, sharp=sharp)
        yield Way(f"{name}, by probability", "probability", by_probability, budget, greedy=False)


def without_dice(request: Request) -> Sampler:
    """What guesses as if the text were greedy."""
    return Sampler(replace(request, sampling=replace(request.sampling, temperature=0.0)))


def measure(
    target: Decoder,
    draft: Decoder,
    way: Way,
    prompts: list[tuple[int, ...]],
    new_tokens: int,
    temperature: float,
    *,
    shares: bool = False,
) -> dict[str, Any]:
    """One row: what a way to draft gains over some prompts."""
    stats: list[Stats] = []
    gained = 0
    for number, prompt in enumerate(prompts):
        records: list[RoundRecord] = []
        caches = Caches()
        engine = Engine(
            LocalVerifier(target, caches, rule=way.rule),
            way.make(draft, target, caches if shares and way.kind != "own-cache" else None),
            budgets=[way.budget],
            recorder=records.append,
        )
        sampling = SamplingParams(temperature=temperature, seed=number)
        for _ in engine.run([Request(0, prompt, new_tokens, sampling=sampling)]):
            pass
        stats.append(summarise(records, 0))
        gained += sum(record.new_tokens[0] for record in records if not record.read)
    counted = ("drafts", "draft_tokens", "accepted_tokens")
    totals = {name: sum(getattr(each, name) for each in stats) for name in counted}
    return {
        "way": way.name,
        "temperature": temperature,
        "mean_acceptance_length": round(gained / sum(each.passes for each in stats), 3),
        "draft_acceptance_rate": round(totals["accepted_tokens"] / totals["draft_tokens"], 4),
        "accepted_per_position": list(added(each.accepted_per_position for each in stats)),
        **totals,
    }


def named(spec: str) -> Level:
    """One checkpoint or one format; how it drafts is this script's to choose. Raises InputError."""
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
    """What a draft's weights are. quantiser: how they were rounded; from_copy: whether they were read from a copy, and
    not rounded now."""
    head, arithmetic = draft.decoder.weights.head, {"arithmetic": draft.decoder.arithmetic}
    if not isinstance(head.weight, QuantisedWeight):
        return {"format": None, **arithmetic}
    made = {"quantiser": draft.copy.quantiser if draft.copy else "direct", "from_copy": draft.copy is not None}
    return {"format": head.weight.format.label, "inputs": head.inputs, **arithmetic, **made}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="How much of a draft is accepted, greedily and sampled?")
    add_model_and_suite(parser, new_tokens=160)
    parser.add_argument(
        "--draft",
        nargs="+",
        default=["stdlib-1m", "int4"],
        help="checkpoints and low-bit formats, with inputs, group or format (%(default)s)",
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
    drafts: dict[str, tuple[Decoder, bool]] = {}
    about = []
    for spec in args.draft:
        (level,) = find_levels([named(spec)], model.folder)
        loaded = load_level(level, model.folder, model.target, model.settings)
        name = spec if level.folder is None else Path(spec).name
        drafts[name] = loaded.decoder, level.is_copy
        about.append({"draft": name, **describe(loaded)})
    asked = [
        (name, draft, way, temperature)
        for name, draft in drafts.items()
        for temperature in args.temperature or [0.0, 0.8]
        for way in ways(args.tokens, width, depth, args.sharpness or [0.5])
        if (way.greedy or temperature > 0) and way.kind in args.only and (draft[1] or way.kind != "own-cache")
    ]
    rows = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for name, (draft, shares), way, temperature in progress.track(asked, description="ways"):
            row = measure(model.target, draft, way, prompts, args.max_new_tokens, temperature, shares=shares)
            rows.append({"draft": name, **row})
            progress.console.print(f"{name}, {way.name}, {temperature:g}: {row['mean_acceptance_length']}")
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

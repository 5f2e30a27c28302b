"""Passes that are timed apart, for SubSpec's equations, its figure 5 and its table 3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import mean, median
from typing import Any

from foretoken.bench.reproduce.papers import REFERENCE, Row, beside, share
from foretoken.bench.reproduce.subspec_measured import (
    AS_ASKED,
    DEPTH,
    NEXT,
    SMALL,
    SMALL_DEPTH,
    K,
    a_check,
    chosen,
    measured,
    methods,
)
from foretoken.bench.reproduce.subspec_reported import L8, OFFLOADED, QUANTISED, SUBSPEC
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.streaming import stream_of
from foretoken.prices.measuring import clocked, one_pass, read_prompt, seconds_of


def low_bit_alone(bench: Workbench) -> Iterator[Row]:
    """Table 3: a low-bit model in place of the model."""
    subject, data = chosen(bench, L8)
    ours, copy = measured(bench, subject, data), bench.open(subject).copy("int4")
    seconds = seconds_of({"pass": partial(one_pass, copy, read_prompt(copy, 64), 1)})["pass"]
    found = {"HQQ, int4": 1 / seconds, SUBSPEC: ours.tokens_per_second(SUBSPEC)}
    found[OFFLOADED] = ours.tokens_per_second(REFERENCE.name)
    for name, paper in QUANTISED.items():
        yield {"ours on": subject.called, "model": name, "tokens/s": beside(paper, found.get(name))}


def equations(bench: Workbench) -> Iterator[Row]:
    """Equations 1 to 3, with passes that are timed apart."""
    subject, data = chosen(bench)
    ours, target = measured(bench, subject, data), bench.open(subject).plain.target
    prefix = round(median(each.prompt_tokens + each.tokens / 2 for each in ours.generations))
    depths = {SMALL: SMALL_DEPTH, SUBSPEC: DEPTH}
    for method in methods(bench.small(subject), 0.0):
        if method.name in depths:
            (draft,) = (each for each in bench.model(subject, method).decoders.values() if each is not target)
            bench.read_ahead(subject, method)
            passes = {"draft": (draft, K), "target": (target, 1), "check": (target, 1 + K * depths[method.name])}
            took = seconds_of({name: _pass(decoder, prefix, rows) for name, (decoder, rows) in passes.items()}, 3)
            gamma, plain = took["check"] / took["target"], took["target"]
            steps = sum(each.draft_passes for each in ours.of(method.name)) / ours.checks(method.name)
            tau = a_check(ours, method.name) or 1.0
            each_token = (steps * took["draft"] + gamma * plain) / tau
            gained = ours.mean_speedup(method.name, REFERENCE.name)
            yield {
                "ours on": subject.called,
                "draft": method.name,
                "D": beside(None, steps),
                "tau": beside(None, tau),
                "t target, s": beside(None, plain),
                "t draft, s": beside(None, took["draft"]),
                "gamma": beside(None, gamma),
                "(1), s a token": beside(None, plain),
                "(2), s a token": beside(None, each_token),
                "(3), times plain": beside(None, plain / each_token),
                "measured": beside(None, gained),
                "of the prediction": beside(None, share(gained, plain / each_token)),
            }


def _pass(decoder: Decoder, prefix: int, rows: int) -> Any:
    return partial(one_pass, decoder, read_prompt(decoder, prefix), rows)


def timelines(bench: Workbench) -> Iterator[Row]:
    """Figure 5: what a pass waits for."""
    subject = chosen(bench)[0]
    target = bench.open(subject).plain.target
    cache, stream, tree_rows = read_prompt(target, 64), stream_of(target.weights), 1 + K * DEPTH
    assert stream is not None
    passes = {"(a) one row": (1, AS_ASKED), "(b) a tree": (tree_rows, AS_ASKED), "(c) a tree, ahead": (tree_rows, NEXT)}
    for name, (rows, ahead) in passes.items():
        stream.read_ahead(ahead)
        one_pass(target, cache, rows)
        before = stream.traffic.waited
        seconds = mean(clocked(partial(one_pass, target, cache, rows)) for _ in range(3))
        waited = (stream.traffic.waited - before) / 3
        told = {"ours on": subject.called, "check": name, "rows": rows, "s": beside(None, seconds)}
        yield {**told, "waiting, s": beside(None, waited), "computing, s": beside(None, seconds - waited)}

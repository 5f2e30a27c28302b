"""What tables and figures of several papers share: predictions, guesses on the way to a draft, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from foretoken.acceptance.walk import agreeing
from foretoken.bench.decode import ask
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Row, Subject, beside, share
from foretoken.bench.reproduce.report import number as text
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.bench.suites import first_turn
from foretoken.common.pictures import new_figure, save, style
from foretoken.prices.measuring import measure
from foretoken.settings.generate import GenerateSettings

COST_NOTE = (
    "c is what an inner pass costs beside a plain one, both measured here, in turn: a pass of the low-bit copy over so "
    "many rows, over a pass of the model over one row, behind a prefix of the median length whose keys and values are "
    "there; without a cache both passes are over the prefix, too. That a check of more rows costs more than one of one "
    "row is in the measurement and not in the prediction."
)
DRAFT = "the draft"


class Predicted(NamedTuple):
    """A method whose round costs `plain_passes` of the model and `inner_passes` of its copy in a `format`, each of the
    latter over `inner_rows` rows. over: the method that it is compared with. most: tokens of a whole draft. cache:
    whether it keeps keys and values."""

    method: str
    over: str
    format: str
    plain_passes: int
    inner_passes: int
    inner_rows: int
    most: int
    cache: bool = True


def predict(bench: Workbench, ours: Measured, its: Predicted) -> Row:
    """A row: the speed-up predicted by passes' costs, (accepted + 1) / (plain + inner c), and the measured one."""
    assert ours.subject is not None
    target = bench.open(ours.subject)
    prices = measure(
        {"plain": target.plain.target, "inner": target.copy(its.format)},
        prefix=round(median(each.prompt_tokens + each.tokens / 2 for each in ours.generations)),
        rows=sorted({1, its.inner_rows}),
        cached=its.cache,
    )
    c = prices["inner"].whole(its.inner_rows) / prices["plain"].whole(1)
    accepted = ours.accepted(its.method, its.most)
    passes = its.plain_passes + its.inner_passes * c
    predicted = None if accepted.each is None else (accepted.each + 1) / passes
    gained, interval = ours.speedup(its.method, its.over)
    return {
        "ours on": ours.called,
        "method": its.method,
        "checks": accepted.checks,
        "accepted a check": beside(None, accepted.each),
        "inner passes": its.inner_passes,
        "rows of each": its.inner_rows,
        "c": beside(None, c),
        "predicted speed-up": beside(None, predicted),
        "measured": beside(None, gained, interval),
        "of the prediction": beside(None, share(gained, predicted)),
    }


def correct_tokens(bench: Workbench, subject: Subject, data: Data, method: Method, beyond: int) -> dict[str, list[int]]:
    """For each guess of a fractal drafter, how many tokens from the first on equal plain decoding's: by the layer
    before which the guess was made, and last for the draft.

    The reference text has `beyond` tokens more than the method's, so that it covers the last guesses. Guesses beyond
    its end are left out.
    """
    correct: dict[str, list[int]] = {}
    target, suite = bench.open(subject), bench.suite(subject, data)
    prompts, most = suite.prompts, data.max_new_tokens or suite.max_new_tokens
    reference = target.model(REFERENCE.draft, cache=REFERENCE.cache)
    model: Any = target.model(method.draft, cache=method.cache)
    for turn, prompt in enumerate(prompts):
        bench.progress(f"{bench.part}: {subject.called}, {method.name}, prompt {prompt.id}", turn, len(prompts))
        start = len(first_turn(prompt, model.tokenizer))
        truth, *_ = ask(reference, prompt, GenerateSettings(max_new_tokens=most + beyond, seed=turn))
        guesses = model.drafter.watch = []  # filled by a fractal drafter
        own, *_ = ask(model, prompt, GenerateSettings(max_new_tokens=most, seed=turn))
        model.drafter.watch = None
        bench.watched(subject, method, prompt, own.tokens, truth.tokens)
        for guess in guesses:
            right = truth.tokens[guess.position - start :]
            names = [f"layer {layer}" for layer in guess.layers[: len(guess.tokens) - 1]]
            for after, tokens in zip([*names, DRAFT], guess.tokens, strict=True):
                if len(tokens) <= len(right):
                    correct.setdefault(after, []).append(agreeing(tokens, right))
    layers = sorted((name for name in correct if name != DRAFT), key=lambda name: int(name.split()[1]))
    return {name: correct[name] for name in [*layers, DRAFT] if name in correct}


def heat_maps(path: Path, rows: Sequence[Row], title: str, panel: str, xy: tuple[str, str], value: str) -> None:
    """A map for each `panel`: our `value` by x and y, each number written into its field."""
    panels = _kinds(rows, panel)
    across, up = (sorted(_kinds(rows, name)) for name in xy)
    figure = new_figure(1.5 + 4.2 * len(panels), 4)
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        found = {tuple(row[each] for each in xy): row[value]["ours"] for row in rows if row[panel] == name}
        field = [[found.get((a, b)) or float("nan") for a in across] for b in up]
        image = axes.imshow(field, origin="lower", cmap="Blues", aspect="auto")
        middle = sum(image.get_clim()) / 2
        for at, line in enumerate(field):
            for place, number in enumerate(line):
                if number == number:  # not NaN: it was measured
                    ink = "white" if number > middle else "black"
                    axes.annotate(text(number), (place, at), ha="center", va="center", color=ink, fontsize=9)
        axes.set(xticks=range(len(across)), xticklabels=across, xlabel=xy[0])
        axes.set(yticks=range(len(up)), yticklabels=up, ylabel=xy[1])
        axes.set_title(f"{value}, {panel} = {name}" if isinstance(name, int) else f"{value}, {name}")
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)


def bars(path: Path, rows: Sequence[Row], title: str, by: str, x: str, value: str) -> None:
    """Our `value` by x, a colour for each `by`."""
    across, kinds = _kinds(rows, x), _kinds(rows, by)
    figure = new_figure(2 + 0.9 * len(across), 4)
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for at, kind in enumerate(kinds):
        found = {row[x]: row[value]["ours"] for row in rows if row[by] == kind}
        places = [place + (at - (len(kinds) - 1) / 2) * width for place in range(len(across))]
        axes.bar(places, [found.get(each) or 0 for each in across], width * 0.92, color=style(at + 1)[0], label=kind)
    axes.set(xticks=range(len(across)), xticklabels=across, xlabel=x, ylabel=value)
    axes.margins(y=0.25)  # room for the legend
    axes.legend(fontsize=8, ncols=3, loc="upper center")
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)


def lines(path: Path, rows: Sequence[Row], title: str, by: str, x: str, values: Sequence[str]) -> None:
    """A panel for each of our values by x, a line for each `by`."""
    figure = new_figure(2 + 4 * len(values), 4)
    for axes, value in zip(figure.subplots(1, len(values), squeeze=False)[0], values, strict=True):
        for at, kind in enumerate(_kinds(rows, by)):
            colour, mark = style(at + 1)
            points = [
                (row[x], row[value]["ours"]) for row in rows if row[by] == kind and row[value]["ours"] is not None
            ]
            axes.plot(*zip(*points, strict=True), color=colour, marker=mark, label=kind)
        axes.set(xlabel=x, title=value, ylim=(0, None), xticks=_kinds(rows, x))
        axes.legend(fontsize=8)
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)


def stacked(path: Path, rows: Sequence[Row], title: str, x: str, values: Sequence[str]) -> None:
    """A bar for each x, in which our values stand one on the other."""
    figure = new_figure(4 + len(rows), 4)
    axes, bottom = figure.subplots(), [0.0] * len(rows)
    for at, value in enumerate(values):
        heights = [row[value]["ours"] for row in rows]
        axes.bar(range(len(rows)), heights, 0.6, bottom=bottom, color=style(at + 1)[0], label=value)
        bottom = [one + other for one, other in zip(bottom, heights, strict=True)]
    axes.set(xticks=range(len(rows)), xlabel=x)
    axes.set_xticklabels([str(row[x]) for row in rows], fontsize=8)
    axes.margins(y=0.25)  # room for the legend
    axes.legend(fontsize=8, ncols=len(values), loc="upper center")
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)


def _kinds(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))

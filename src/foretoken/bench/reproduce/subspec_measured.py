"""How SubSpec's drafts, those beside it and ours are measured: the methods, what they are measured on, and lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

from foretoken.bench.reproduce.asked import checkpoint
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Row, Subject, beside, share
from foretoken.bench.reproduce.subspec_reported import Q7, SHARPNESS, SPECEXEC, SUBSPEC
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.common.source import resolve

SMALL = "the small model"
K, DEPTH, SMALL_DEPTH = 6, 48, 32  # section 5.1: nodes of a depth; depth of SubSpec's tree and of a small model's
AS_ASKED, NEXT = 0, 1  # how far is read ahead: not at all, or the next part, as in the paper

WITHOUT_CACHE, SHARED, SHARPER = "substitutes, shared layers", "+ shared keys and values", "+ sharpening"
FILLED, BEST, NOISE = "+ ring filled while drafting", "+ best-first tree", "+ ranked with the noise"
SHARPENED, LOOKUP, READING = "+ sharpened", "+ lookup inside", "+ drafting while reading"
OURS = (FILLED, BEST, NOISE, SHARPENED, LOOKUP, READING)
OF_SAMPLES = (NOISE, SHARPENED)  # greedy texts have no noise, and are sharpened from the start

_FEW = {"embedded": 1, "rehearsal": 2}  # prompts of sweeps; at scale paper all
_DEPTHS = {"embedded": (4, 16)}
_EVERY_DEPTH = (4, 8, 16, 32, 48, 64)
_SHARPNESS = {"embedded": (0.2, 1.0)}
_BUDGETS = {"embedded": (64, 128)}


def sharpness_values(bench: Workbench) -> tuple[float, ...]:
    """Table 5's temperatures of drafts."""
    return _SHARPNESS.get(bench.asked.scale, SHARPNESS)


def budgets(bench: Workbench) -> tuple[int, ...]:
    """Table 4's budgets."""
    return _BUDGETS.get(bench.asked.scale, tuple(SPECEXEC))


def tree(draft: str, depth: int, sharpness: float) -> str:
    """A beam as the paper grows it."""
    return f"{draft}:k={K}:depth={depth}:sharpness={sharpness}"


def methods(small: str, temperature: float) -> list[Method]:
    """Table 1's ways to decode, table 2's, and ours. The paper sharpens greedy drafts only, and its drafts know nothing
    of the noise with which the target samples. small: the small model; empty: there is none."""
    known = temperature > 0
    sharpness = 1.0 if known else 0.2
    paper = tree("subspec", DEPTH, sharpness)
    found = [REFERENCE]
    if small:
        found.append(Method(SMALL, tree(small, SMALL_DEPTH, 1.0), noise=False))
    if not known:
        found += [
            Method(WITHOUT_CACHE, tree("int4:own-cache:own-head", DEPTH, 1.0), read_ahead=AS_ASKED),
            Method(SHARED, tree("subspec", DEPTH, 1.0), read_ahead=AS_ASKED),
            Method(SHARPER, paper, read_ahead=AS_ASKED),
        ]
    found += [
        Method(SUBSPEC, paper, read_ahead=NEXT, noise=False),
        Method(FILLED, paper, noise=False),
        Method(BEST, f"subspec:shape=best-first:pauses:sharpness={sharpness}", noise=False),
    ]
    if known:
        found.append(Method(NOISE, "subspec:shape=best-first:pauses:sharpness=1.0"))
        found.append(Method(SHARPENED, "subspec:shape=best-first:pauses"))
    return [*found, Method(LOOKUP, "subspec:pauses,lookup"), Method(READING, "subspec,lookup")]


def measured(bench: Workbench, subject: Subject, data: Data, temperature: float = 0.0) -> Measured:
    """All methods of tables 1 and 2."""
    return bench.measured(subject, data, methods(bench.small(subject), temperature), temperature)


def chosen(bench: Workbench, model: str = Q7) -> tuple[Subject, Data]:
    """What is measured where the paper has one model and MT-Bench."""
    subject = next((each for each in bench.subjects if each.model == model), bench.subjects[0])
    return subject, next(iter(subject.data.values()))


def few(bench: Workbench, data: Data) -> Data:
    """The prompts of a sweep."""
    return data.first(_FEW.get(bench.asked.scale, data.count or 1))


def in_memory(subject: Subject) -> Subject:
    """A subject with all layers in memory."""
    return replace(subject, loading={"stream_layers": None, "disk_bandwidth": None})


def folder(bench: Workbench, subject: Subject) -> Path:
    """The folder of a subject's checkpoint."""
    return resolve(checkpoint(subject, bench.asked.work))


def by_depth(bench: Workbench, *, inside: bool) -> tuple[Measured, dict[tuple[str, int], str]]:
    """Trees of several depths, and the name of each. inside: with all layers in memory."""
    subject, data = chosen(bench)
    subject = in_memory(subject) if inside else subject
    drafts = {SMALL: (bench.small(subject), 1.0), SUBSPEC: ("subspec", 0.2)}
    depths = _DEPTHS.get(bench.asked.scale, _EVERY_DEPTH)
    names = {(name, depth): f"{name}, {depth} deep" for name in drafts for depth in depths}
    trees = [
        Method(names[name, depth], tree(draft, depth, sharpness))
        for name, (draft, sharpness) in drafts.items()
        for depth in depths
    ]
    return bench.measured(subject, few(bench, data), trees), names


def length(ours: Measured, method: str) -> float | None:
    """The average acceptance length as the paper's code has it: all tokens of a prompt over its passes, that of the
    prompt included; the mean over prompts."""
    lengths = [each.tokens / (len(each.rounds) + 1) for each in ours.of(method)]
    return mean(lengths) if lengths else None


def a_check(ours: Measured, method: str) -> float | None:
    """Tokens that a check gives: those behind the first, over the checks of all prompts."""
    return share(sum(each.decoded for each in ours.of(method)), ours.checks(method) or None)


def lengths(ours: Measured, method: str, paper: float | None = None) -> Row:
    """Both, as columns."""
    return {"length": beside(paper, length(ours, method)), "tokens a check": beside(None, a_check(ours, method))}


def figures(ours: Measured, method: str, paper: tuple[float | None, float | None, float | None] = (None,) * 3) -> Row:
    """The columns of most tables. paper: its tokens a second, times plain decoding, and length."""
    speed, gain, tokens = paper
    return {
        "tokens/s": beside(speed, ours.tokens_per_second(method)),
        "times plain": beside(gain, ours.mean_speedup(method, REFERENCE.name)),
        **lengths(ours, method, tokens),
    }

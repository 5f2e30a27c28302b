"""SubSpec (Wang et al. 2025): low-bit substitutes of the layers that do not fit into memory draft a deep tree.

Here the layers are read from the disk, where the paper has them in the memory of the host. All layers of the model are
read in each pass, with every draft. `python -m foretoken.bench.offload` compares drafts within equal memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, stdev

from foretoken.bench.reproduce import subspec_reported as reported
from foretoken.bench.reproduce.asked import low_bit_checkpoint
from foretoken.bench.reproduce.moa_heads import head
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Paper, Part, Row, Subject, beside
from foretoken.bench.reproduce.parts import lines, stacked
from foretoken.bench.reproduce.subspec_measured import (
    DEPTH,
    OF_SAMPLES,
    OURS,
    READING,
    SMALL,
    SMALL_DEPTH,
    K,
    budgets,
    by_depth,
    chosen,
    few,
    figures,
    folder,
    in_memory,
    lengths,
    measured,
    methods,
    sharpness_values,
    tree,
)
from foretoken.bench.reproduce.subspec_passes import equations, low_bit_alone, timelines
from foretoken.bench.reproduce.subspec_reported import L8, PLAIN, Q7, SELF, SUBSPEC, TABLE_1, TABLE_6, Reported
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.bench.suites import HELD_OUT
from foretoken.formats import format_of

_RUNS = 5  # section 5.2
_COMPLETE = "+ asynchronous transfer"  # the last row of table 2, which is the whole method


def _speeds(bench: Workbench, table: Sequence[Reported]) -> Iterator[Row]:
    """Table 1 or 6: the paper's lines; at scale paper ours by data set, otherwise what stands in for all models."""
    subjects = {each.model: each for each in bench.subjects} if bench.asked.scale == "paper" else {}
    for temperature in dict.fromkeys(line.temperature for line in table):
        for line in (line for line in table if line.temperature == temperature):
            its: Row = {"temperature": temperature, "target": line.target, "draft": line.draft}
            subject, name = subjects.get(line.target), _measures(line)
            if subject is not None and name is not None:
                for data, prompts in subject.data.items():
                    ours = measured(bench, subject, prompts, temperature)
                    speed, tokens = line.of(data)
                    yield {**its, "data": data, **figures(ours, name, (speed, None, tokens))}
            cells = zip(line.tokens_per_second, line.lengths, strict=True)
            yield {
                **its,
                "data": "mean",
                "the paper, by data": ", ".join(f"{speed:.2f} ({tokens:.2f})" for speed, tokens in cells),
                **_means(line),
            }
        if not subjects and table is TABLE_1:
            subject, prompts = chosen(bench)
            ours = measured(bench, subject, prompts, temperature)
            for name in (REFERENCE.name, SMALL, SUBSPEC, READING):
                called = {SMALL: subject.small_called, READING: "ours, with all of table 2"}.get(name, name)
                its = {"temperature": temperature, "target": subject.called, "draft": called, "data": ours.data}
                yield {**its, **figures(ours, name)}


def _means(line: Reported) -> Row:
    """The paper's means over its data sets."""
    return figures(Measured(), "", (line.mean, line.speedup, line.mean_length))


def _measures(line: Reported) -> str | None:
    """The method that measures a line of table 1 here; None if none does."""
    names = {PLAIN: REFERENCE.name, SUBSPEC: SUBSPEC, reported.SMALL_OF.get(line.target): SMALL}
    return names.get(line.draft)


def _eagle(bench: Workbench) -> Iterator[Row]:
    """EAGLE-2 under the same conditions: its drafter is trained now, unless it was before."""
    subject, data = chosen(bench)
    trains = bench.asked.scale != "paper"
    beam = f"{head(bench, subject, 'eagle2')}:k=10:depth=6:sharpness=1.0" if trains else ""
    for temperature in (0.0, 0.6):
        for line in TABLE_1:
            if (line.temperature, line.draft) == (temperature, reported.EAGLE):
                yield {"temperature": temperature, "target": line.target, **_means(line)}
        if trains:
            method = Method(reported.EAGLE, beam, noise=False)
            ours = bench.measured(subject, few(bench, data), [method], temperature)
            yield {"temperature": temperature, "target": subject.called, **figures(ours, reported.EAGLE)}


def _ablation(bench: Workbench) -> Iterator[Row]:
    """Table 2: the paper's parts, one after the other, then ours."""
    subject, data = chosen(bench)
    for temperature in (0.0, 0.6):
        ours = measured(bench, subject, data, temperature)
        nothing = (None, None, None)
        papers = dict(reported.ABLATION) if temperature == 0 else {PLAIN: nothing, _COMPLETE: nothing}
        papers |= {name: nothing for name in OURS if temperature or name not in OF_SAMPLES}
        for name, paper in papers.items():
            mine = {PLAIN: REFERENCE.name, _COMPLETE: SUBSPEC}.get(name, name)
            its = {"ours on": subject.called, "temperature": temperature, "method": name}
            yield {**its, **figures(ours, mine, paper)}


def _specexec(bench: Workbench) -> Iterator[Row]:
    """Table 4: trees of the small model, pruned to a budget, that end early."""
    subject, data = chosen(bench, L8)
    its = f"{bench.small(subject)}:shape=best-first:k=16:depth={SMALL_DEPTH}:sharpness=1.0"
    ends = {"SpecExec's": 1e-6, "ours, which end below 0.3 tokens a pass": 0.3}
    trees = [
        Method(f"{budget}, {name}", f"{its}:nodes={budget}:least={least:f}", noise=False)
        for budget in budgets(bench)
        for name, least in ends.items()
    ]
    ours = bench.measured(subject, few(bench, data), trees)
    for budget, (memory, speed, tokens) in reported.SPECEXEC.items():
        for name in ends:
            paper = (memory, speed, tokens) if name == "SpecExec's" else (None, None, None)
            told = {"ours on": subject.called, "budget": budget, "trees": name, "VRAM, GB": beside(paper[0], None)}
            yield {**told, **figures(ours, f"{budget}, {name}", (paper[1], None, paper[2]))}


def _sharpness(bench: Workbench) -> Iterator[Row]:
    """Table 5: acceptance by the temperature of the draft, in memory."""
    subject, data = chosen(bench)
    subject = in_memory(subject)
    itself = str(folder(bench, subject))
    drafts = {SELF: (itself, DEPTH), SMALL: (bench.small(subject), SMALL_DEPTH), SUBSPEC: ("subspec", DEPTH)}
    values = sharpness_values(bench)
    trees = [Method(f"{name}, {at}", tree(*its, at)) for name, its in drafts.items() for at in values]
    ours = bench.measured(subject, few(bench, data), trees)
    for name, papers in reported.LENGTHS.items():
        mine = SMALL if name == reported.SMALL_OF[Q7] else name
        for at, paper in zip(reported.SHARPNESS, papers, strict=True):
            told = {"ours on": subject.called, "draft": mine, "temperature of the draft": at}
            yield {**told, **lengths(ours, f"{mine}, {at}", paper)}


def _low_bit_target(bench: Workbench) -> Iterator[Row]:
    """Table 7: a target that has 8 bits itself."""
    subject, data = chosen(bench, L8)
    copy = low_bit_checkpoint(folder(bench, subject), format_of("int8", None), bench.asked.work)
    subjects = {"fp16": subject, "int8": replace(subject, checkpoint=copy, shape=None)}
    for name, (speed, tokens) in reported.LOW_BIT_TARGET.items():
        ours = bench.measured(subjects[name], few(bench, data), [_complete(bench, subject)])
        told = {"ours on": subjects[name].called, "target": name}
        yield {**told, **figures(ours, SUBSPEC, (speed, None, tokens))}


def _complete(bench: Workbench, subject: Subject) -> Method:
    """The paper's whole method."""
    return next(each for each in methods(bench.small(subject), 0.0) if each.name == SUBSPEC)


def _deviation(bench: Workbench) -> Iterator[Row]:
    """Section 5.2: the same again, five times."""
    subject, data = chosen(bench)
    paper = _complete(bench, subject)
    for method, deviation in ((paper, reported.DEVIATION), (Method(READING, "subspec,lookup"), None)):
        runs = [replace(method, name=f"{method.name}, run {run}") for run in range(1, _RUNS + 1)]
        ours = bench.measured(subject, few(bench, data), runs)
        speeds = [mean(1 / each.seconds_per_token for each in ours.of(run.name)) for run in runs]
        yield {
            "ours on": subject.called,
            "draft": method.name,
            "runs": _RUNS,
            "tokens/s, mean of the runs": beside(None, mean(speeds)),
            "deviation, tokens/s": beside(deviation, stdev(speeds)),
            "deviation, %": beside(None, 100 * stdev(speeds) / mean(speeds)),
        }


def _gains(bench: Workbench) -> Iterator[Row]:
    """Figure 1, left: speed-up by depth."""
    ours, names = by_depth(bench, inside=False)
    for (draft, depth), name in names.items():
        told = {"ours on": chosen(bench)[0].called, "draft": draft, "depth": depth}
        yield {**told, "times plain": beside(None, ours.mean_speedup(name, REFERENCE.name))}


def _latency(bench: Workbench) -> Iterator[Row]:
    """Figure 1, right: where the time of a token goes, with each draft's best depth."""
    ours, names = by_depth(bench, inside=False)
    fastest = sorted(names.values(), key=lambda name: ours.tokens_per_second(name) or 0)
    best = [next(name for name in reversed(fastest) if name.startswith(draft)) for draft in (SMALL, SUBSPEC)]
    for name in (REFERENCE.name, *best):
        yield {"ours on": chosen(bench)[0].called, "draft": name, **_phases(ours, name, "ms a token")}


def _phases(ours: Measured, name: str, unit: str) -> Row:
    """The time of drafting and of checking: of a token, or in percent."""
    own = ours.of(name)
    drafting, checking = sum(each.draft_seconds for each in own), sum(each.check_seconds for each in own)
    times = 100 / (drafting + checking) if unit == "%" else 1000 / sum(each.decoded for each in own)
    return {f"drafting, {unit}": beside(None, times * drafting), f"checking, {unit}": beside(None, times * checking)}


def _depths(bench: Workbench) -> Iterator[Row]:
    """Figure 2: lengths, and speed with and without reading, by depth."""
    (inside, names), (read, _) = by_depth(bench, inside=True), by_depth(bench, inside=False)
    for (draft, depth), name in names.items():
        yield {
            "ours on": chosen(bench)[0].called,
            "draft": draft,
            "depth": depth,
            **lengths(inside, name),
            "tokens/s in memory": beside(None, inside.tokens_per_second(name)),
            "tokens/s, layers read": beside(None, read.tokens_per_second(name)),
        }


def _split_by_depth(bench: Workbench) -> Iterator[Row]:
    """Figure 6: drafting and checking by depth."""
    ours, names = by_depth(bench, inside=False)
    for (draft, depth), name in names.items():
        if draft == SUBSPEC:
            told = {"ours on": chosen(bench)[0].called, "depth": depth, **_phases(ours, name, "%")}
            yield {**told, "tokens/s": beside(None, ours.tokens_per_second(name))}


_HOW = (
    "All layers of the target are read from the disk in each pass, with every draft; the paper has them in the "
    "memory of the host. There plain decoding keeps 11 of 32 layers in place, in the room of the substitutes, and "
    "so reads a third less than here: for equal memory see docs/larger-than-memory.md. Speeds are of the tokens "
    "after the first, without the prompt, which the paper's code counts, too: medians over prompts; *times plain* "
    "is the geometric mean. *Length* is the paper's tau as its code counts it: all tokens of a prompt over its "
    "passes, that of the prompt included. *Tokens a check* leaves prompt and first token out. In short texts, the "
    "end cuts deep trees."
)
_DRAFTS = (
    f"The paper's trees: {K} nodes of each depth, {DEPTH} deep for SubSpec and {SMALL_DEPTH} for a small model, "
    "sharpened to 0.2 for greedy SubSpec alone; for sampled texts the paper gives no value, and none is sharpened. "
    "They do not know the target's noise. EAGLE-2 has a table of its own (`--only eagle2`). *The paper, by data* has "
    f"tokens a second and lengths on {', '.join(reported.DATA)}."
)
_EAGLE = (
    "The tree of EAGLE-2: 10 nodes of each depth, 6 deep. Its drafter is trained for the small model, on all Python's "
    "standard library once (at scale embedded on a little), and padded to the size that it has beside a model of the "
    "rehearsal's. At scale paper nothing is trained."
)
_DOUBTS = "What does not fit together in the paper: " + " ".join(reported.DOUBTS)
_ABLATION = (
    "Each row adds to the one before it. Up to *+ sharpening*, a part of a layer is read when it is asked for, as "
    "the reference's plain offloader does; with *asynchronous transfer* the next part is read meanwhile. Then come "
    "ours: as much is read ahead as there is room for, while drafting, too; a best-first tree that ends where it is"
    " unsure; for sampled texts, ranks that know the noise, and then a sharper draft; and lookup, whose guesses ride "
    "in the substitutes' passes. With *drafting while reading* the substitutes no longer pause while the model checks. "
    "Cells of the paper that cannot be read in our copy "
    "are left empty."
)
_QUANTISED = (
    "Low-bit models that answer alone give other texts, so only their speed is shown: of one row's pass of our int4"
    " copy, in memory. GPTQ and AWQ are not loaded (docs/not-done.md)."
)
_SPECEXEC = (
    "The small model's best-first trees: of all nodes seen, the *budget* likeliest are sent (pruning), and a tree "
    "ends as soon as no other node can be among them (early exit). Ours end earlier, where a pass would add less "
    "than 0.3 accepted tokens."
)
_SHARPER = "Measured with all layers in memory, which changes no token. The model itself drafts with keys of its own."
_EIGHT_BITS = "The 8-bit copy of the model is the target, whose text is compared with its own plain decoding."
_DEVIATION = "Runs in one process, in turn, on the same prompts: the mean over prompts of tokens a second, by run."
_EQUATIONS = (
    "(1): t target, a pass of one row. (2): (D t draft + gamma t target) / tau. (3): the first over the second. D: "
    "passes of the draft a check; gamma: a check of the whole tree beside a pass of one row; tau: tokens a check, "
    "the bonus included. Passes are timed apart, behind a text of the median length."
)
_DRAWN = "The paper draws its values and does not print them."
_TIMELINES = (
    "(a) and (b) read each part of a layer when it is asked for, (c) reads the next part meanwhile. *Computing* is "
    "the rest of the pass."
)
_SPLIT = ("drafting, ms a token", "checking, ms a token")
_SPEED_BY_DEPTH = ("tokens a check", "tokens/s in memory", "tokens/s, layers read")
_LINES = partial(lines, by="draft", x="depth")
_PARTS = {
    "table1": Part("Table 1: speed and acceptance", partial(_speeds, table=TABLE_1), (_HOW, _DRAFTS, _DOUBTS)),
    "eagle2": Part("EAGLE-2 in table 1", _eagle, (_EAGLE,)),
    "table2": Part("Table 2: what each part adds", _ablation, (_ABLATION,)),
    "table3": Part("Table 3: low-bit models in place of the model", low_bit_alone, (_QUANTISED,)),
    "table4": Part("Table 4: SpecExec", _specexec, (_SPECEXEC,)),
    "table5": Part("Table 5: the temperature of the draft", _sharpness, (_SHARPER,)),
    "table6": Part(
        "Table 6: reasoning models", partial(_speeds, table=TABLE_6), ("At small scale nothing stands in.",)
    ),
    "table7": Part("Table 7: a target in 8 bits", _low_bit_target, (_EIGHT_BITS,)),
    "deviation": Part("Section 5.2: five runs", _deviation, (_DEVIATION,)),
    "equations": Part("Equations 1 to 3", equations, (_EQUATIONS,)),
    "figure1": Part(
        "Figure 1, left: speed-up by depth",
        _gains,
        (_DRAWN,),
        partial(_LINES, title="figure 1", values=["times plain"]),
    ),
    "figure1b": Part(
        "Figure 1, right: the time of a token",
        _latency,
        (_DRAWN,),
        partial(stacked, title="figure 1, right", x="draft", values=_SPLIT),
    ),
    "figure2": Part("Figure 2: depth", _depths, (_DRAWN,), partial(_LINES, title="figure 2", values=_SPEED_BY_DEPTH)),
    "figure5": Part(
        "Figure 5: what a check waits for",
        timelines,
        (_TIMELINES,),
        partial(stacked, title="figure 5", x="check", values=("waiting, s", "computing, s")),
    ),
    "figure6": Part(
        "Figure 6: drafting and checking",
        _split_by_depth,
        (_DRAWN,),
        partial(stacked, title="figure 6", x="depth", values=("drafting, %", "checking, %")),
    ),
}

_ALL_READ = {"stream_layers": "all"}
_SMALL_SHAPE = "hidden=1024,layers=10,heads=16,kv-heads=4,intermediate=4096,vocab=4096"  # a sixth, as 1B is of 8B
_SUITES = ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dailymail")
_REASONING = ("aime-2024", "math-500", "gpqa-diamond", "livecodebench")
_20 = {name: Data(suite, 20) for name, suite in zip(reported.DATA, _SUITES, strict=True)}
_THINKING = {name: Data(suite, 20) for name, suite in zip(reported.REASONING, _REASONING, strict=True)}
_QWEN, _R1 = "Qwen/Qwen2.5-{}B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-{}B"


_STAND_IN = Subject(Q7, "stdlib-7m", {"MT-Bench": Data(HELD_OUT, 2, 24)}, small="stdlib-1m", loading=_ALL_READ)
_REHEARSED = replace(
    _STAND_IN,
    data={"MT-Bench": Data(HELD_OUT, 4, 128)},
    shape="llama-3.2-1b",
    num_layers=16,
    small_shape=_SMALL_SHAPE,
    loading={**_ALL_READ, "disk_bandwidth": "1.4GB/s"},
)
PAPER = Paper(
    reported.TITLE,
    cited=f"{reported.TITLE} (Wang et al. 2025)",
    summary="tables 1 to 7, figures 1, 2, 5 and 6, equations 1 to 3, five runs; beside them our own drafts",
    parts=_PARTS,
    subjects={
        "embedded": (_STAND_IN,),
        "rehearsal": (_REHEARSED,),
        "paper": (
            Subject(
                L8, "meta-llama/Llama-3.1-8B-Instruct", _20, small="meta-llama/Llama-3.2-1B-Instruct", loading=_ALL_READ
            ),
            *(
                Subject(model, _QWEN.format(size), _20, small=_QWEN.format("1.5"), loading=_ALL_READ)
                for model, size in ((Q7, "7"), (reported.Q14, "14"), (reported.Q32, "32"))
            ),
            *(
                Subject(model, place, _THINKING, loading=_ALL_READ)
                for model, place in (
                    (reported.R1_L8, _R1.format("Llama-8")),
                    (reported.R1_Q7, _R1.format("Qwen-7")),
                    (reported.R1_Q14, _R1.format("Qwen-14")),
                    (reported.R1_Q32, _R1.format("Qwen-32")),
                    (reported.QWQ, "Qwen/QwQ-32B"),
                )
            ),
        ),
    },
)

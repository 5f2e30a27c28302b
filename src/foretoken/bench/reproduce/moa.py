"""Mixture of Attentions (Zimmer et al. 2025): a small trained drafter that sees the model's keys and values; and the
same drafter on a client, with the model on a host.

The paper's drafters are trained for 28 epochs of UltraChat and measured on SpecBench. Here they are trained for a small
model, on the text on which that was trained itself, and measured on held-out text of the same kind. At scale paper, the
one drafter that the authors have published drafts for its own model, on the paper's data sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from foretoken.bench import in_vllm
from foretoken.bench.generations import Generation
from foretoken.bench.reproduce import moa_far
from foretoken.bench.reproduce import moa_reported as reported
from foretoken.bench.reproduce.asked import checkpoint
from foretoken.bench.reproduce.moa_heads import (
    ABLATED,
    ALL,
    BESIDE,
    CHAIN,
    HEADS,
    TREE,
    head,
    is_real,
    learned,
    subject_of,
)
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Paper, Part, Row, Subject, beside, share
from foretoken.bench.reproduce.parts import lines
from foretoken.bench.reproduce.subspec_measured import a_check, length
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.bench.suites import HELD_OUT, open_suite
from foretoken.bench.vllm_engines import drafted, n_grams, vllm
from foretoken.errors import SettingError
from foretoken.training.losses import PAPER as AS_PUBLISHED

_IN_VLLM, _BATCHES = 3, (1, 2, 4, 8, 16)  # tokens of a chain, and texts at a time, in figure 4


def _measured(
    bench: Workbench, options: str, names: Mapping[str, str] = ALL, data: Data | None = None
) -> tuple[Subject, Measured]:
    """Drafters in turn, beside plain decoding. names: of rows, by the paper's names; at scale paper, the published
    drafter is the one that there is."""
    subject, usual = subject_of(bench)
    if is_real(bench):
        drafts = {reported.OURS: bench.small(subject)}
    else:
        drafts = {name: str(head(bench, subject, row)) for name, row in names.items()}
    methods = [Method(name, f"{draft}:{options}") for name, draft in drafts.items()]
    return subject, bench.measured(subject, usual if data is None else data, methods)


def _figures(ours: Measured, name: str, speedup: float | None, tokens: float | None) -> Row:
    return {
        "times plain": beside(speedup, ours.mean_speedup(name, REFERENCE.name)),
        "length": beside(tokens, length(ours, name)),
        "tokens a check": beside(None, a_check(ours, name)),
    }


def _single_device(bench: Workbench) -> Iterator[Row]:
    """Table 2: trees of all drafters, on one device."""
    if is_real(bench):
        yield from _by_data(bench)
        return
    subject, ours = _measured(bench, TREE)
    for name in (*reported.TABLE_2, *BESIDE):
        paper = reported.TABLE_2.get(name)
        told = {"ours on": subject.called, "draft": name}
        yield {**told, **_figures(ours, name, *((paper.speedup, paper.length) if paper else (None, None)))}


def _by_data(bench: Workbench) -> Iterator[Row]:
    """Table 2 at scale paper: a data set after the other."""
    subject, _ = subject_of(bench)
    for at, (called, data) in enumerate(subject.data.items()):
        _, ours = _measured(bench, TREE, data=data)
        for name, paper in reported.TABLE_2.items():
            told = {"ours on": subject.called, "data": called, "draft": name}
            yield {**told, **_figures(ours, name, paper.speedups[at], paper.lengths[at])}


def _full(bench: Workbench) -> Iterator[Row]:
    """Table 10: the same, in tokens a second; at scale paper on all of HumanEval."""
    _, data = subject_of(bench)
    every = replace(data, count=bench.asked.num_prompts) if is_real(bench) else data
    subject, ours = _measured(bench, TREE, data=every)
    for name, (speed, tokens) in reported.TABLE_10.items():
        mine = REFERENCE.name if name == "Vanilla" else name
        yield {
            "ours on": subject.called,
            "draft": name,
            "tokens/s": beside(speed, ours.tokens_per_second(mine)),
            "length": beside(tokens, length(ours, mine)),
        }


def _ablation(bench: Workbench) -> Iterator[Row]:
    """Table 5: parts of the network, left out one by one; chains."""
    if is_real(bench):
        for name, (speed, tokens) in reported.TABLE_5.items():
            yield {"draft": name, "tokens/s": beside(speed, None), "length": beside(tokens, None)}
        return
    subject, _ = subject_of(bench)
    trained = {name: learned(bench, subject, row) for name, row in ABLATED.items()}
    written = {name: row for name, row in ABLATED.items() if trained[name]["of_which_written"]}
    _, ours = _measured(bench, CHAIN, written)
    for name, (speed, tokens) in reported.TABLE_5.items():
        point = trained[name]["points"][-1]
        yield {
            "ours on": subject.called,
            "draft": name,
            "parameters": trained[name]["parameters"],
            "tokens/s": beside(speed, ours.tokens_per_second(name)),
            "length": beside(tokens, length(ours, name)),
            "tokens a check, held-out text, chains of 6": beside(None, point["acceptance"]),
        }


def _hyperparameters(bench: Workbench) -> Iterator[Row]:
    """Table 6: settings of the training."""
    ours = {
        "learning rate": "6e-4, falling (as in the published code)",
        "updates": "as many as the text has windows",
        "windows a step": "4 of 384 tokens",
        "weight of the KL loss": f"{AS_PUBLISHED.entropy:g}",
        "weight of the smooth L1 loss": f"{AS_PUBLISHED.state:g}",
        "gradients cut at": "1",
        "segments of the T-step bound": "5 to 15, uniform",
    }
    for name, value in reported.TABLE_6.items():
        yield {"setting": name, "paper": value, "preset paper": ours[name]}


def _quality(bench: Workbench) -> Iterator[Row]:
    """Table 8: what the texts are worth. They are the model's own."""
    _, ours = _measured(bench, TREE)
    for name, (programs, answers, summaries) in reported.TABLE_8.items():
        mine = ours.of(REFERENCE.name if name == reported.VANILLA else name)
        yield {
            "draft": name,
            "HumanEval, %": beside(programs, None),
            "GSM8K, %": beside(answers, None),
            "CNN/DM, ROUGE-L": beside(summaries, None),
            "texts": beside(None, len(mine) or None),
            "tokens that differ from plain decoding's": beside(None, _differing(mine)),
        }


def _differing(texts: Sequence[Generation]) -> int | None:
    return sum(each.differing for each in texts) if texts else None


def _qwen(bench: Workbench) -> Iterator[Row]:
    """Table 9: another model."""
    for name, paper in reported.TABLE_9.items():
        told = {"target": reported.QWEN, "draft": name}
        yield {**told, "times plain": beside(paper.speedup, None), "length": beside(paper.length, None)}


def _batches(bench: Workbench) -> Iterator[Row]:
    """Figure 4: several texts at a time inside vLLM, chains of three tokens."""
    if is_real(bench):
        if "figure4" in bench.asked.only:
            raise SettingError("figure 4 is measured at the scales embedded and rehearsal; give one of them")
        return
    subject, data = subject_of(bench)
    if (why := in_vllm.why_not()) is not None:
        if "figure4" in bench.asked.only:
            raise SettingError(why)
        return
    ours = {name: str(head(bench, subject, HEADS[name])) for name in (reported.OURS, reported.OURS_1)}
    ways = {in_vllm.PLAIN: {}, in_vllm.NGRAM: n_grams(_IN_VLLM)}
    ways |= {name: drafted(folder, _IN_VLLM, pace="fixed") for name, folder in ours.items()}
    bench.progress(f"{bench.part}: vLLM", 0, 1)
    turns = in_vllm.Turns(_BATCHES, 4, data.max_new_tokens or 64, 3)
    suite = open_suite(data.suite, bench.open(subject).plain.tokenizer, count=turns.most_prompts)
    opens = {name: partial(vllm, settings=its) for name, its in ways.items()}
    for row in in_vllm.compare(checkpoint(subject, bench.asked.work), opens, suite, turns, bench.asked.loading.dtype):
        yield {
            "ours on": subject.called,
            "draft": row["way"],
            "texts at a time": row["concurrency"],
            "tokens a second": beside(None, row["tokens_per_second"]),
            "times plain": beside(None, row["times_plain"]),
            "texts as plain": beside(None, row["texts_as_plain"]),
        }


def _costs(bench: Workbench) -> Iterator[Row]:
    """Appendix A.5: what is computed for a token."""
    subject, ours = _measured(bench, TREE)
    plain = _operations(ours, REFERENCE.name)
    for name in (REFERENCE.name, *([reported.OURS] if is_real(bench) else ALL)):
        its = _operations(ours, name)
        yield {
            "ours on": subject.called,
            "draft": name,
            "MFLOP a token": beside(None, None if its is None else its / 1e6),
            "times plain": beside(None, share(its, plain)),
        }


def _operations(ours: Measured, name: str) -> float | None:
    """Floating-point operations of drafting and checking, for each token."""
    own = ours.of(name)
    counted = [each.flops for each in own if each.flops is not None]
    return sum(counted) / sum(each.decoded for each in own) if own and len(counted) == len(own) else None


_HOW = (
    "At scale paper, the drafter is the one that the authors have published; what needs others of theirs stays empty. "
    "At other scales, the drafters are trained now, unless the work folder has them: each on the same windows of the "
    "same text, in as many steps, with the losses of the preset `best` (docs/drafters.md). *Length* is the paper's tau "
    "as its code counts it: all tokens of a prompt over its passes, that of the prompt included. *Tokens a check* "
    "leaves prompt and first token out. In a rehearsal, the drafters are padded to the size that they would have "
    "beside the large model."
)
_SHORT = (
    "At scale embedded a drafter reads a few thousand tokens, in seconds: that shows that everything runs, and says "
    "nothing of the drafters."
)
_DOUBTS = "What does not fit together in the paper: " + " ".join(reported.DOUBTS)
_INSIDE = (
    "Chains of three tokens, as in the paper, which shows curves and no numbers. Tokens a second include the reading "
    "of the prompts. vLLM's promise is algorithmic; *texts as plain* are those that are, token for token, vLLM's own "
    "without drafts. Figure 4 needs vLLM in the same environment (docs/vllm.md); else it is left out."
)
_LEFT_OUT = "Rows without LSA are not written as files, so only their acceptance on held-out text is known."
_SAME = "Every text is the model's own, token for token, so it is worth as much."
_NOT_HERE = "Not measured: the drafter of another model must be trained for it."
_DRAW_4 = partial(lines, title="figure 4", by="draft", x="texts at a time", values=("tokens a second", "times plain"))
_PARTS = {
    "table2": Part("Table 2: trees on one device", _single_device, (_HOW, _SHORT, _DOUBTS)),
    "table3": moa_far.TABLE_3,
    "table4": moa_far.TABLE_4,
    "table5": Part("Table 5: what each part of the network adds", _ablation, (_LEFT_OUT,)),
    "table6": Part("Table 6: hyper-parameters", _hyperparameters, ()),
    "table7": moa_far.TABLE_7,
    "table8": Part("Table 8: quality", _quality, (_SAME,)),
    "table9": Part("Table 9: Qwen2.5 3B", _qwen, (_NOT_HERE,)),
    "table10": Part(
        "Table 10: tokens a second",
        _full,
        ("In place of HumanEval, but at scale paper: the held-out text of table 2.",),
    ),
    "figure4": Part("Figure 4: several texts at a time, inside vLLM", _batches, (_INSIDE, _SHORT), _DRAW_4),
    "a5": Part("Appendix A.5: what a round computes", _costs, ("Counted from shapes, while decoding.",)),
    "a6": moa_far.A_6,
}
_SUITES = ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dailymail", "natural-questions")
_REAL = {name: Data(suite, 80) for name, suite in zip(reported.DATA, _SUITES, strict=True)}
_FEW = {"SpecBench": Data(HELD_OUT, 2, 32)}
_MORE = {"SpecBench": Data(HELD_OUT, 6, 96)}
PAPER = Paper(
    reported.TITLE,
    cited=f"{reported.TITLE} (Zimmer et al. 2025)",
    summary="tables 2 to 10, figure 4, appendices A.5 and A.6; EAGLE-3, a block and lookup beside them",
    parts=_PARTS,
    subjects={
        "embedded": (Subject(reported.TARGET, "stdlib-7m", _FEW),),
        "rehearsal": (Subject(reported.TARGET, "stdlib-7m", _MORE, shape="llama-3.2-1b", num_layers=16),),
        "paper": (
            Subject(
                reported.TARGET,
                "meta-llama/Meta-Llama-3-8B-Instruct",
                _REAL,
                small="huawei-noah/MOASpec-Llama-3-8B-Instruct",
            ),
        ),
    },
)

"""Mixture of Attentions (Zimmer et al. 2025): a small trained drafter that sees the model's keys and values; and the
same drafter on a client, with the model on a host.

The paper's drafters are trained for 28 epochs of UltraChat and measured on SpecBench. Here they are trained for a small
model, on the text on which that was trained itself, and measured on held-out text of the same kind. At scale paper, the
one drafter that the authors have published drafts for its own model, on the paper's data sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from foretoken.bench import cut_off, in_vllm, remote
from foretoken.bench.reproduce import moa_reported as reported
from foretoken.bench.reproduce.asked import checkpoint
from foretoken.bench.reproduce.moa_heads import ABLATED, BESIDE, HEADS, head, in_as_many_layers, learned
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Paper, Part, Row, Subject, beside, share
from foretoken.bench.reproduce.parts import lines
from foretoken.bench.reproduce.subspec_measured import a_check, length
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.bench.suites import HELD_OUT, open_suite
from foretoken.bench.vllm_engines import drafted, n_grams, vllm
from foretoken.errors import ForetokenError, SettingError
from foretoken.protocol.types import Features
from foretoken.remote.features import Part as Sent
from foretoken.remote.features import bytes_of_row, packed
from foretoken.remote.wire import DraftBody, VerdictBody
from foretoken.training.losses import PAPER as AS_PUBLISHED

_TREE = "k=8:depth=6"  # the paper's beam
_CHAIN = "tokens=4"  # of table 5
_SLOWER = 3.0  # section 4.2: the client's share of the server's speed
_ALL = {**HEADS, **BESIDE}  # the rows of drafters that are measured, by their names
_IN_VLLM, _BATCHES = 3, (1, 2, 4, 8, 16)  # tokens of a chain, and texts at a time, in figure 4
_NODES, _ACCEPTED = 62, 4  # of a message, in table 7


def _is_real(bench: Workbench) -> bool:
    return bench.asked.scale == "paper"


def _subject(bench: Workbench) -> tuple[Subject, Data]:
    subject = in_as_many_layers(bench.subjects[0])
    return subject, subject.data["HumanEval"] if _is_real(bench) else next(iter(subject.data.values()))


def _measured(
    bench: Workbench, options: str, names: Mapping[str, str] = _ALL, data: Data | None = None
) -> tuple[Subject, Measured]:
    """Drafters in turn, beside plain decoding. names: of rows, by the paper's names; at scale paper, the published
    drafter is the one that there is."""
    subject, usual = _subject(bench)
    if _is_real(bench):
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
    if _is_real(bench):
        yield from _by_data(bench)
        return
    subject, ours = _measured(bench, _TREE)
    for name in (*reported.TABLE_2, *BESIDE):
        paper = reported.TABLE_2.get(name)
        told = {"ours on": subject.called, "draft": name}
        yield {**told, **_figures(ours, name, *((paper.speedup, paper.length) if paper else (None, None)))}


def _by_data(bench: Workbench) -> Iterator[Row]:
    """Table 2 at scale paper: a data set after the other."""
    subject, _ = _subject(bench)
    for at, (called, data) in enumerate(subject.data.items()):
        _, ours = _measured(bench, _TREE, data=data)
        for name, paper in reported.TABLE_2.items():
            told = {"ours on": subject.called, "data": called, "draft": name}
            yield {**told, **_figures(ours, name, paper.speedups[at], paper.lengths[at])}


def _full(bench: Workbench) -> Iterator[Row]:
    """Table 10: the same, in tokens a second; at scale paper on all of HumanEval."""
    _, data = _subject(bench)
    every = replace(data, count=bench.asked.num_prompts) if _is_real(bench) else data
    subject, ours = _measured(bench, _TREE, data=every)
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
    if _is_real(bench):
        for name, (speed, tokens) in reported.TABLE_5.items():
            yield {"draft": name, "tokens/s": beside(speed, None), "length": beside(tokens, None)}
        return
    subject, _ = _subject(bench)
    trained = {name: learned(bench, subject, row) for name, row in ABLATED.items()}
    written = {name: row for name, row in ABLATED.items() if trained[name]["of_which_written"]}
    _, ours = _measured(bench, _CHAIN, written)
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


def _client_server(bench: Workbench) -> Iterator[Row]:
    """Table 3: the drafter on a client, the model on a host, over 5G and 4G."""
    if not _is_real(bench):
        yield from _over_networks(bench)
    for name in reported.TABLE_3 if _is_real(bench) else (reported.OFFICIAL,):
        speeds, tokens, calls = reported.TABLE_3[name]
        for network, speed in speeds.items():
            told = {"network": network, "draft": name, "tokens/s": beside(speed, None)}
            yield {"ours on": "", **told, "length": beside(tokens, None), "calls a text": beside(calls, None)}


def _over_networks(bench: Workbench) -> Iterator[Row]:
    subject, data = _subject(bench)
    drafts = {f"{head(bench, subject, row)}:{_TREE}": name for name, row in _ALL.items()}
    bench.progress(f"{bench.part}: over networks", 0, 1)
    found = remote.measure(_asked(bench, subject, data, network=["5g", "4g"], draft=["lookup", *drafts]))
    for row in found["rows"]:
        if row["texts_with_other_tokens"]:
            raise ForetokenError("a text over a network is not the model's; please report this")
        if row["network"] is None or row["ahead"]:
            continue
        name = drafts.get(row["draft"], {"none": "no draft"}.get(row["draft"], row["draft"]))
        speeds, tokens, calls = reported.TABLE_3.get(name, ({}, None, None))
        passes = row["rounds"] / found["num_prompts"] + 1  # with that of the prompt
        yield {
            "ours on": subject.called,
            "network": row["network"],
            "draft": name,
            "tokens/s": beside(speeds.get(row["network"]), row["tokens_per_second"]),
            "length": beside(tokens, found["new_tokens"] / passes),
            "tokens a check": beside(None, row["mean_acceptance_length"]),
            "calls a text": beside(calls, passes),
            "bytes to the client, a token": beside(None, row["bytes_received_per_token"]),
            "seconds a round": beside(None, row["seconds_per_round"]),
            "expected": beside(None, row.get("expected_seconds_per_round")),
        }


def _cut_off(bench: Workbench) -> Iterator[Row]:
    """Table 4: the connection is cut, and the client goes on alone."""
    if not _is_real(bench):
        yield from _behind_cuts(bench)
    for name in reported.TABLE_4 if _is_real(bench) else (reported.OFFICIAL, reported.LOWER_BOUND):
        for cut, passing in zip(reported.CUTS, reported.TABLE_4[name], strict=True):
            told = {"ours on": "", "draft": name, "cut behind": cut}
            yield {**told, "programs that pass, %": beside(passing, None)}


def _behind_cuts(bench: Workbench) -> Iterator[Row]:
    subject, data = _subject(bench)
    drafts = {f"{head(bench, subject, row)}:{_TREE}": name for name, row in HEADS.items()}
    bench.progress(f"{bench.part}: cutting connections", 0, 1)
    most = max(data.max_new_tokens or 0, max(reported.CUTS) + 32)
    asked = _asked(bench, subject, replace(data, max_new_tokens=most), draft=list(drafts), cut=list(reported.CUTS))
    for row in cut_off.measure(asked)["rows"]:
        name = drafts[row["draft"]]
        yield {
            "ours on": subject.called,
            "draft": name,
            "cut behind": row["cut"],
            "programs that pass, %": beside(reported.TABLE_4[name][reported.CUTS.index(row["cut"])], None),
            "tokens behind the cut": beside(None, row["behind"]),
            "of these right from the cut on": beside(None, row["right_from_the_cut_on"]),
            "log probability": beside(None, row["log_probability"]),
            "of the model's own text": beside(None, row["log_probability_of_the_models_own"]),
        }


def _asked(bench: Workbench, subject: Subject, data: Data, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        model=checkpoint(subject, bench.asked.work),
        suite=data.suite,
        num_prompts=data.count,
        max_new_tokens=data.max_new_tokens,
        temperature=0.0,
        pace="fixed",
        slowdown=_SLOWER,
        **more,
    )


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


def _messages(bench: Workbench) -> Iterator[Row]:
    """Table 7: bytes of messages, counted in the messages that are sent."""
    sizes = {"Llama3-8B": (4096, 8, 128), "Llama 3.2 1B": (2048, 8, 64)}
    draft = DraftBody(0, (0,) * _NODES, tuple(range(-1, _NODES - 1))).packed()
    for model, (hidden, heads, size) in sizes.items():
        for name, inferred in ((reported.OURS_3, 3), (reported.OURS_1, 1), (reported.OURS, 0), (reported.EAGLE, None)):
            layout: tuple[Sent, ...]
            if inferred is None:
                layout, numbers = (Sent("normed", 1, hidden),), hidden
            else:
                ends = [Sent(f"{what}.{at}", heads, size) for at in range(inferred) for what in ("keys", "values")]
                layout, numbers = (Sent("observed", 1, 2 * heads * size), *ends), 2 * heads * size * (inferred + 1)
            yield _message(model, name, draft, layout, numbers)
        yield _message(model, reported.SMALL, draft, (), 0)


def _message(model: str, name: str, draft: bytes, layout: tuple[Sent, ...], numbers: int) -> Row:
    zeros = {part.name: torch.zeros((_ACCEPTED, part.groups, part.size)) for part in layout}
    block = packed(Features(0, zeros), layout, 0, _ACCEPTED) if layout else b""
    answer = VerdictBody(0, (0,) * _ACCEPTED, None, block).packed()
    scales = _ACCEPTED * (bytes_of_row(layout) - numbers)
    return {
        "model": model,
        "draft": name,
        f"to the host, {_NODES} tokens": beside(4 * _NODES, len(draft)),
        f"to the client, {_ACCEPTED} accepted": beside(3 * _ACCEPTED + _ACCEPTED * numbers, len(answer)),
        "of ours, scales and headers": beside(None, scales + len(answer) - 3 * _ACCEPTED - len(block)),
    }


def _quality(bench: Workbench) -> Iterator[Row]:
    """Table 8: what the texts are worth. They are the model's own."""
    _, ours = _measured(bench, _TREE)
    for name, (programs, answers, summaries) in reported.TABLE_8.items():
        mine = ours.of(REFERENCE.name if name not in _ALL else name)
        yield {
            "draft": name,
            "HumanEval, %": beside(programs, None),
            "GSM8K, %": beside(answers, None),
            "CNN/DM, ROUGE-L": beside(summaries, None),
            "texts": beside(None, len(mine)),
            "tokens that differ from plain decoding's": beside(None, sum(each.differing for each in mine)),
        }


def _qwen(bench: Workbench) -> Iterator[Row]:
    """Table 9: another model."""
    for name, paper in reported.TABLE_9.items():
        told = {"target": reported.QWEN, "draft": name}
        yield {**told, "times plain": beside(paper.speedup, None), "length": beside(paper.length, None)}


def _batches(bench: Workbench) -> Iterator[Row]:
    """Figure 4: several texts at a time inside vLLM, chains of three tokens."""
    if _is_real(bench):
        return
    subject, data = _subject(bench)
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
    subject, ours = _measured(bench, _TREE)
    plain = _operations(ours, REFERENCE.name)
    for name in (REFERENCE.name, *([reported.OURS] if _is_real(bench) else _ALL)):
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
_FAR = (
    "Host, relay and client share this machine; the client's drafts take three times as long as they do. *Expected* is "
    "the same rounds on a clock of its own, with the times of passes in one process. It leaves out what a Mixture of "
    "Attentions observes on the host, so its rounds are expected too short. *Length* and *calls* count the prompt's "
    "pass."
)
_ALONE = (
    "The small model writes no programs that pass. In place of them: how many tokens behind the cut are the model's "
    "own, and how probable the model finds what was written there, in nats a token. Without a cut, 45.9 % pass in the "
    "paper."
)
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
    "table3": Part("Table 3: client and host, over 5G and 4G", _client_server, (_FAR,)),
    "table4": Part("Table 4: the connection is cut", _cut_off, (_ALONE,)),
    "table5": Part("Table 5: what each part of the network adds", _ablation, (_LEFT_OUT,)),
    "table6": Part("Table 6: hyper-parameters", _hyperparameters, ()),
    "table7": Part("Table 7: sizes of messages", _messages, ("Numbers have eight bits. Ours have scales, too.",)),
    "table8": Part("Table 8: quality", _quality, (_SAME,)),
    "table9": Part("Table 9: Qwen2.5 3B", _qwen, (_NOT_HERE,)),
    "table10": Part("Table 10: tokens a second", _full, ("In place of HumanEval: the held-out text of table 2.",)),
    "figure4": Part("Figure 4: several texts at a time, inside vLLM", _batches, (_INSIDE, _SHORT), _DRAW_4),
    "a5": Part("Appendix A.5: what a round computes", _costs, ("Counted from shapes, while decoding.",)),
}
_SUITES = ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dailymail", "natural-questions")
_REAL = {name: Data(suite, 80) for name, suite in zip(reported.DATA, _SUITES, strict=True)}
_FEW = {"SpecBench": Data(HELD_OUT, 2, 32)}
_MORE = {"SpecBench": Data(HELD_OUT, 6, 96)}
PAPER = Paper(
    reported.TITLE,
    cited=f"{reported.TITLE} (Zimmer et al. 2025)",
    summary="tables 2 to 10, figure 4 and appendix A.5; EAGLE-3, a block and lookup beside them",
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

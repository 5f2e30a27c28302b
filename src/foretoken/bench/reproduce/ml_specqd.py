"""ML-SpecQD (Georganas, Kalamkar, Kozlov and Heinecke 2025): the model's own MXFP4 copy drafts, and is itself sped
up by a small model.

The paper's four ways to decode are measured as it describes them: 8 draft tokens a round, chains that end where the
draft is unsure, and a copy with keys and values of its own. Beside them are this project's own: a copy on the model's
keys and values, lookup as the small model, and lengths that the pace chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from foretoken.bench import kernels
from foretoken.bench.decode import ask
from foretoken.bench.reproduce.ml_specqd_reported import (
    BANDWIDTH,
    COPY,
    LADDER,
    OF_8_ROWS,
    REPORTED,
    SMALL,
    TITLE,
    TOKENS,
    Reported,
)
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Paper, Part, Row, Subject, beside, share
from foretoken.bench.reproduce.parts import bars, heat_maps
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.bench.suites import HELD_OUT
from foretoken.kernels import native
from foretoken.prices.measuring import measure
from foretoken.settings.generate import GenerateSettings

OURS = {
    "ours: the copy on the model's keys and values": "mxfp4",
    "ours: the same, then lookup": "mxfp4,lookup",
    "ours: a tree of the copy's, then lookup": "mxfp4:k=2,lookup",
}
_FP32 = ", fp32 products"
_GUESSED = (0.2, 0.4, 0.6, 0.8, 1.0)  # acceptance, in figures 2 and 3
_FASTER = (4, 20, 100)  # times as fast as the model, in figure 2
_N = 4  # draft tokens a round, in figures 2 and 3
# figure 7: outputs and inputs of the product, and how often it is measured
_PRODUCT = {"embedded": ((1024, 1024), 1), "rehearsal": ((8192, 8192), 3)}
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8)


def speedup(accepted: float, tokens: float, faster: float) -> float:
    """Equation (1): what a draft gains whose passes are `faster` times as fast as the model's. accepted: the share of
    its `tokens` a round."""
    return (accepted * tokens + 1) / (1 + tokens / faster)


def _copy(inputs: str = ":inputs=int8") -> str:
    return f"mxfp4:tokens={TOKENS}:confidence=0.4:own-cache{inputs}"


def _methods(its: Reported, small: str) -> tuple[Method, ...]:
    last = f"{small}:tokens={TOKENS}:{its.last_options}"
    return (
        REFERENCE,
        Method(SMALL, f"{small}:tokens={TOKENS}:{its.small_options}"),
        Method(COPY, _copy()),
        Method(LADDER, f"{_copy()},{last}"),
        Method(COPY + _FP32, _copy(":inputs=fp32")),
        Method(LADDER + _FP32, f"{_copy(':inputs=fp32')},{last}"),
        *(Method(name, draft) for name, draft in OURS.items()),
    )


def _cells(bench: Workbench, where: str = "") -> Iterator[tuple[Reported | None, Measured, Row]]:
    """The paper's report on a use, what was measured beside it, and a row's labels. Stand-ins for the paper's models
    have rows of their own, after those of the paper and without its names."""
    stand_ins: dict[str, tuple[Measured, Row]] = {}
    for its in REPORTED:
        if not its.where.startswith(where):
            continue
        subject = next((each for each in bench.subjects if each.model == its.model and its.data in each.data), None)
        ours, labels = Measured(), {"model": its.model, "small model": its.small, "data": its.data}
        if subject is not None:
            ours = bench.measured(subject, subject.data[its.data], _methods(its, bench.small(subject)))
            if bench.asked.scale != "paper":
                told = {"model": subject.called, "small model": subject.small_called, "data": ours.data}
                stand_ins[f"{ours.called}, {its.small_options}"] = ours, told
                ours = Measured()
        yield its, ours, labels
    for ours, labels in stand_ins.values():
        yield None, ours, labels


def _speeds(bench: Workbench, where: str) -> Iterator[Row]:
    """Speed-ups of every way to decode."""
    for its, ours, labels in _cells(bench, where):
        papers: dict[str, float] = {REFERENCE.name: 1.0, **its.speedups} if its is not None else {}
        for name in ours.methods or papers:
            if not name.endswith(_FP32):
                accepted = None if its is None else its.accepted.get(name)
                yield {
                    **labels,
                    "draft": name,
                    "checks": ours.checks(name) or "",
                    "tokens/s": beside(None, ours.tokens_per_second(name)),
                    "speed-up, geometric mean": beside(papers.get(name), ours.mean_speedup(name, REFERENCE.name)),
                    "median": beside(None, *ours.speedup(name, REFERENCE.name)),
                    "accepted, %": beside(accepted, _accepted(ours, name)),
                    "the copies' MB": beside(None, (ours.copies.get(name) or 0) / 1e6 or None),
                }


def _accepted(ours: Measured, name: str, prompt: str | None = None) -> float | None:
    """The share of draft tokens that was accepted, in percent: of a prompt, or the mean over prompts."""
    shares = []
    for each in ours.of(name):
        drafted, accepted = (sum(counts[at] for counts in each.rounds) for at in (0, 1))
        if drafted and prompt in (None, each.prompt):
            shares.append(100 * accepted / drafted)
    return sum(shares) / len(shares) if shares else None


def _products(bench: Workbench) -> Iterator[Row]:
    """Table III: what int8 products are worth."""
    for its, ours, labels in _cells(bench):
        if its is None or its.without_int8 or ours.generations:
            for name in (COPY, LADDER):
                papers = (None, None) if its is None else (its.without_int8.get(name), its.speedups[name])
                slow, fast = (ours.mean_speedup(name + more, REFERENCE.name) for more in (_FP32, ""))
                yield {
                    **labels,
                    "draft": name,
                    "fp32": beside(papers[0], slow),
                    "int8": beside(papers[1], fast),
                    "int8 over it": beside(share(papers[1], papers[0]), share(fast, slow)),
                }


def _by_prompt(bench: Workbench, where: str) -> Iterator[Row]:
    """Acceptance by prompt."""
    for its, ours, labels in _cells(bench, where):
        prompts = list(dict.fromkeys(each.prompt for each in ours.generations))
        for name in (COPY, SMALL):
            for prompt in prompts:
                told = {"ours on": labels["model"], "draft": name, "prompt": prompt.rpartition("-")[2]}
                yield {**told, "accepted, %": beside(None, _accepted(ours, name, prompt))}
            paper = None if its is None else its.accepted.get(name)
            if its is not None and bench.asked.scale != "paper":
                yield {"ours on": "", "draft": name, "prompt": "mean", "accepted, %": beside(paper, None)}
            elif prompts:
                told = {"ours on": labels["model"], "draft": name, "prompt": "mean"}
                yield {**told, "accepted, %": beside(paper, _accepted(ours, name))}


def _expected(bench: Workbench) -> Iterator[Row]:
    """Figure 2: equation (1), for the paper's drafts."""
    for faster in _FASTER:
        for accepted in _GUESSED:
            told = {"ours on": "equation (1)", "a draft's pass": f"1/{faster} of a plain one", "accepted": accepted}
            yield {**told, "expected speed-up": {"ours": speedup(accepted, _N, faster)}}


def _expected_of_two(bench: Workbench) -> Iterator[Row]:
    """Figure 3: the same with a draft 4 times as fast as the model, which one 100 times as fast speeds up."""
    for last in _GUESSED:
        for copy in _GUESSED:
            faster = 4 * speedup(last, _N, 100 / 4)
            told = {
                "ours on": "equation (1)",
                "N": _N,
                "accepted of the last level": last,
                "accepted of the copy": copy,
            }
            yield {**told, "expected speed-up": {"ours": speedup(copy, _N, faster)}}


def _predicted(bench: Workbench) -> Iterator[Row]:
    """Equation (1) with the costs of passes here, beside what was measured, and where the time went."""
    for _, ours, labels in _cells(bench):
        if ours.subject is None:
            continue
        target, data = bench.open(ours.subject), next(iter(ours.subject.data.values()))
        prefix = round(median(each.prompt_tokens + each.tokens / 2 for each in ours.generations))
        prompt, *_ = bench.suite(ours.subject, data).prompts
        drafts = {method.name: method for method in _methods(_report_of(ours.subject), bench.small(ours.subject))}
        for name in (SMALL, COPY):
            model = target.model(drafts[name].draft, cache=True)
            (inner,) = (decoder for decoder in model.decoders.values() if decoder is not model.target)
            rounds = [each for own in ours.of(name) for each in own.rounds if each[0]]
            if not rounds:
                continue
            drafted, accepted = (sum(each[at] for each in rounds) / len(rounds) for at in (0, 1))
            checked = round(drafted) + 1
            prices = measure(
                {"plain": model.target, "inner": inner}, prefix=prefix, rows=sorted({1, checked}), cached=True
            )
            c = prices["inner"].whole(1) / prices["plain"].whole(1)
            predicted = speedup(accepted / drafted, drafted, 1 / c)
            gained = ours.mean_speedup(name, REFERENCE.name)
            done, *_ = ask(model, prompt, GenerateSettings(max_new_tokens=ours.new_tokens, keep_rounds=True))
            whole = done.stats.decode_seconds
            yield {
                **labels,
                "draft": name,
                "checks": len(rounds),
                "drafted a check": beside(None, drafted),
                "accepted a check": beside(None, accepted),
                "a draft's pass, in plain passes": beside(None, c),
                "a check, in plain passes": beside(None, prices["plain"].whole(checked) / prices["plain"].whole(1)),
                "predicted": beside(None, predicted),
                "measured": beside(None, gained),
                "of the prediction": beside(None, share(gained, predicted)),
                "time in checks, %": beside(None, share(100 * done.stats.check_seconds, whole)),
                "in drafts, %": beside(None, share(100 * done.stats.draft_seconds, whole)),
            }


def _report_of(subject: Subject) -> Reported:
    return next(each for each in REPORTED if each.model == subject.model)


def _bandwidths(bench: Workbench) -> Iterator[Row]:
    """Figures 7 and 8: products of 1 to 8 rows; none without the native module."""
    if native.module() is None:
        return
    shape, rounds = _PRODUCT.get(bench.asked.scale, ((8192, 8192), 5))
    told = kernels.bench(
        threads=bench.asked.loading.threads,
        formats=("bf16", "mxfp4"),
        shapes=(shape,),
        rows=_ROWS,
        rounds=rounds,
        progress=lambda share: bench.progress(f"{bench.part}: products", round(100 * share), 100),
    )
    roofs = {each["kernel"]: each["gflops"] for each in told["roofs"]}
    for each in told["results"]:
        inputs = each["kernel"].rpartition("_")[2]
        paper = OF_8_ROWS.get(inputs) if each["n"] == _ROWS[-1] and "mxfp4" in each["kernel"] else None
        yield {
            "ours on": bench.record["machine"].get("processor") or "this machine",
            "product": each["kernel"].removeprefix("linear_").replace("_", ", "),
            "N": each["n"],
            "GB/s": beside(paper, each["bytes"] / each["seconds"] / 1e9),
            "of the bandwidth": beside(share(paper, BANDWIDTH), each["fraction_of_bandwidth"]),
            "GFLOP/s": beside(None, each["gflops"]),
            "of the compute roof": beside(None, share(each["gflops"], roofs[each["kernel"]])),
        }


_HOW = (
    "Speed-ups are over plain decoding with a cache, of the tokens after the first: geometric means over prompts, as "
    "in the paper, and medians with the interval that holds them at 95 % (of fewer than six prompts, their range). "
    "What stands beside each other was decoded in turn. The paper's drafts have 8 tokens a round, and end after the "
    "first token to which the draft gives less than the confidence (0.4; 0.65 for Qwen's small model). The copy has "
    "keys and values of its own, as in the paper. Accepted: draft tokens in percent, the mean over prompts. In *ours*, "
    "the pace chooses the lengths."
)
_STAND_IN = (
    "At small scales a stand-in is measured: its text, and so what is accepted, is that of a small model. The paper's "
    "small models have a fourteenth to a hundredth of the target's weights; the rehearsal's has a fortieth."
)
_PRODUCTS = "fp32: the copy multiplies its weights with inputs that are not rounded."
_EQUATION = (
    "Equation (1) of the paper: (accepted + 1) / (1 + drafted c), where c is what a pass of the draft costs beside a "
    "plain one; here with the tokens and the costs that were measured. It counts a check as one plain pass. What a "
    "check of several rows costs more makes the measured speed-up smaller. So does the reading of the prompt: a draft "
    "with keys and values of its own reads it, too, before its first draft. In short texts that weighs most. The last "
    "two columns are of the first prompt, decoded once more."
)
_FIGURE = "Equation (1) with N = 4, and passes that cost what their bytes do: arithmetic, nothing measured."
_KERNELS = (
    "A product reads its weights from memory; GB/s are of codes and scales. The paper gives two of figure 7's values "
    "in its text: with N = 8, int8 products reach 84 GB/s of 104, 2.3 times what fp32 products reach. `foretoken "
    "doctor` says which instructions this machine has; the paper's has 256-bit ones."
)
_draw = {
    2: partial(bars, title="figure 2", by="a draft's pass", x="accepted", value="expected speed-up"),
    3: partial(
        heat_maps,
        title="figure 3",
        panel="N",
        xy=("accepted of the last level", "accepted of the copy"),
        value="expected speed-up",
    ),
    7: partial(bars, title="figure 7", by="product", x="N", value="GB/s"),
}


def _draw_by_prompt(path: Any, rows: Sequence[Row], title: str) -> None:
    bars(path, [row for row in rows if row["ours on"]], title=title, by="draft", x="prompt", value="accepted, %")


_QA, _CODE = (its.model for its in REPORTED)
_PARTS = {
    "table1": Part("Table I: question answering", partial(_speeds, where="table 1"), (_HOW, _STAND_IN)),
    "table2": Part("Table II: code", partial(_speeds, where="table 2"), (_HOW, _STAND_IN)),
    "table3": Part(
        "Table III: what int8 products are worth",
        _products,
        (_PRODUCTS,),
    ),
    "prediction": Part("Equation (1), and where the time went", _predicted, (_EQUATION,)),
    "figure2": Part("Figure 2: expected speed-up of one draft", _expected, (_FIGURE,), _draw[2]),
    "figure3": Part("Figure 3: expected speed-up of two levels", _expected_of_two, (_FIGURE,), _draw[3]),
    "figure5": Part(
        "Figure 5: acceptance by prompt, question answering",
        partial(_by_prompt, where="table 1"),
        (),
        partial(_draw_by_prompt, title="figure 5"),
    ),
    "figure6": Part(
        "Figure 6: acceptance by prompt, code",
        partial(_by_prompt, where="table 2"),
        (),
        partial(_draw_by_prompt, title="figure 6"),
    ),
    "figure7": Part("Figures 7 and 8: MXFP4 products of 1 to 8 rows", _bandwidths, (_KERNELS,), _draw[7]),
}


def _stand_ins(
    count: int, tokens: int, shape: str | None = None, layers: Sequence[int] = (0, 0)
) -> tuple[Subject, ...]:
    data, small = Data(HELD_OUT, count, tokens), None if shape is None else _SMALL_SHAPE
    return tuple(
        Subject(its.model, "stdlib-7m", {its.data: data}, shape, each, small="stdlib-1m", small_shape=small)
        for its, each in zip(REPORTED, layers, strict=True)
    )


_WIDTH, _SMALL_SHAPE = "llama-3.2-1b", "llama-68m"
_LLAMA_68M = "Felladrin/Llama-68M-Chat-v1"  # the paper names no checkpoint: "68M parameters, fine-tuned for chat"
PAPER = Paper(
    TITLE,
    cited=f"{TITLE} (Georganas et al. 2025)",
    summary="tables I to III, figures 2, 3, 5, 6, 7 and 8, equation (1); beside them our own drafts",
    parts=_PARTS,
    subjects={
        "embedded": _stand_ins(2, 8),
        "rehearsal": _stand_ins(4, 32, _WIDTH, (16, 16)),
        "geometry": _stand_ins(8, 64, _WIDTH, (32, 28)),  # the layers of Llama-2 7B and of Qwen2.5 7B
        "paper": (
            Subject(
                _QA,
                "meta-llama/Llama-2-7b-chat-hf",
                {"HAGRID": Data("hagrid", 100)},
                small=_LLAMA_68M,
            ),
            Subject(_CODE, "Qwen/Qwen2.5-Coder-7B", {"MBPP": Data("mbpp", 100)}, small="Qwen/Qwen2.5-Coder-0.5B"),
        ),
    },
    dtype="bfloat16",
)

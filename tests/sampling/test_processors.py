from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from foretoken.kernels.choosing import Floats, Warp, warped
from foretoken.protocol.types import SamplingParams
from foretoken.sampling.processors import History
from tests.oracles import edited_logits, sampled_distribution

ROWS = 300
WIDTHS = (1, 2, 7, 64, 509)
INFINITE = float("inf")


def rows(seed: int, count: int = ROWS) -> list[Floats]:
    """Random rows of several widths and spreads: some with ties, some with tokens that cannot come."""
    generator = np.random.default_rng(seed)
    made = []
    for i in range(count):
        row = (generator.standard_normal(WIDTHS[i % len(WIDTHS)]) * (0.1, 1.0, 4.0, 30.0)[i % 4]).astype(np.float32)
        if i % 3 == 1:
            row = np.round(row).astype(np.float32)
        if i % 5 == 2:
            row[generator.random(len(row)) < 0.3] = -np.inf
            row[0] = 0.5  # at least one is left
        made.append(row)
    return made


def edit(logits: Floats, prompt: list[int], output: list[int], params: SamplingParams) -> Floats:
    history = History(prompt)
    for token in output:
        history.add(token)
    row = logits.copy()
    history.edit(row, params)
    return row


def theirs(processor: LogitsProcessor, logits: Floats, text: tuple[int, ...] = (0,)) -> Floats:
    scores = torch.from_numpy(logits.copy())[None]
    result: Floats = processor(torch.tensor([text]), scores)[0].numpy()
    return result


# penalties and bias


@pytest.mark.parametrize("penalty", [0.3, 1.1, 1.7, 50.0])
def test_the_repetition_penalty_is_transformers_own(penalty: float) -> None:
    generator = np.random.default_rng(1)
    changed: Counter[str] = Counter()
    for logits in rows(2):
        text = generator.integers(0, len(logits), 9).tolist()
        got = edit(logits, text[:4], text[4:], SamplingParams(repetition_penalty=penalty))
        np.testing.assert_array_equal(got, theirs(RepetitionPenaltyLogitsProcessor(penalty), logits, tuple(text)))
        for token in set(text):
            changed["positive" if logits[token] > 0 else "negative"] += bool(got[token] != logits[token])
    assert min(changed["positive"], changed["negative"]) > 100, changed


def test_the_bias_is_transformers_own() -> None:
    generator = np.random.default_rng(3)
    for logits in rows(4):
        tokens = generator.permutation(len(logits))[:5].tolist()
        bias = tuple((token, float(generator.uniform(-20, 20))) for token in sorted(tokens))
        processor = SequenceBiasLogitsProcessor(sequence_bias={(token,): value for token, value in bias})
        got = edit(logits, [], [], SamplingParams(logit_bias=bias))
        np.testing.assert_array_equal(got, theirs(processor, logits))
        assert (got != logits).any() or not np.isfinite(logits[tokens]).any()


logit = st.one_of(st.floats(-50, 50, width=32), st.sampled_from([0.0, -0.0, -INFINITE, 1e30, -1e30]))
token = st.integers(0, 9)


@st.composite
def edits(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.5, 100.0])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.6, -2.0, 100.0])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.3, -1.1, 100.0])),
        "logit_bias": tuple(draw(st.lists(st.tuples(token, st.floats(-1000, 1000)), max_size=3))),
    }


@given(st.lists(logit, min_size=1, max_size=8), st.lists(token, max_size=5), st.lists(token, max_size=6), edits())
@settings(deadline=None, max_examples=400)
def test_every_edit_together_is_the_plain_definition(
    logits: list[float], prompt: list[int], output: list[int], chosen: dict[str, Any]
) -> None:
    # tokens up to 9 in rows of up to 8: histories and biases name tokens that the row does not have
    params = SamplingParams(**chosen)
    got = edit(np.array(logits, dtype=np.float32), prompt, output, params)
    np.testing.assert_array_equal(got, np.array(edited_logits(logits, prompt, output, params), dtype=np.float32))


def test_the_order_is_repetition_frequency_presence_bias() -> None:
    # token 1 twice in the output, token 2 in the prompt alone, token 3 in neither
    params = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((1, 8.0), (2, 8.0), (3, 8.0))
    )
    got = edit(np.array([4.0, 4.0, 4.0, 4.0], dtype=np.float32), [2], [1, 1], params)
    assert got.tolist() == [4.0, 4.0 / 2 - 2 * 0.5 - 0.25 + 8, 4.0 / 2 + 8, 4.0 + 8]
    # a negative logit is multiplied; had the bias come first, it would have been positive
    assert edit(np.array([0.0, -4.0], dtype=np.float32), [1], [], params).tolist() == [0.0, -4.0 * 2 + 8]


def test_nothing_said_and_nothing_asked_changes_nothing() -> None:
    logits = np.array([1.0, -1.0, -np.inf], dtype=np.float32)
    everything = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    np.testing.assert_array_equal(edit(logits, [], [], everything), logits)
    np.testing.assert_array_equal(edit(logits, [0, 1], [2, 2], SamplingParams()), logits)
    np.testing.assert_array_equal(edit(logits, [7], [9, 9], everything), logits)


@given(st.lists(token, max_size=8), st.lists(token, max_size=8))
@settings(deadline=None, max_examples=100)
def test_what_is_removed_was_never_there(kept: list[int], removed: list[int]) -> None:
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.25)
    history = History([3])
    for token in [*kept, *removed]:
        history.add(token)
    for token in reversed(removed):
        history.remove(token)
    logits = np.linspace(-2, 2, 10, dtype=np.float32)
    expected = edit(logits, [3], kept, params)
    history.edit(logits, params)
    np.testing.assert_array_equal(logits, expected)


tokens = st.integers(0, 300)  # more than stand in the arrays without their growing


@given(st.lists(tokens, max_size=30), st.lists(st.one_of(st.lists(tokens, max_size=150), st.integers(1, 120))))
@settings(deadline=None, max_examples=60)
def test_edits_between_what_comes_and_goes_are_those_of_the_text(
    prompt: list[int], steps: list[list[int] | int]
) -> None:
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=-0.3, presence_penalty=0.25)
    history, output = History(prompt), list[int]()
    logits = np.linspace(-2, 2, 251, dtype=np.float32)
    for step in steps:
        if isinstance(step, int):
            for _ in range(min(step, len(output))):
                history.remove(output.pop())
        else:
            for token in step:
                history.add(token)
            output += step
        got = logits.copy()
        history.edit(got, params)
        assert got.tobytes() == edit(logits, prompt, output, params).tobytes()
        np.testing.assert_array_equal(got, edited_logits(logits.tolist(), prompt, output, params))


# temperature, top-k, top-p, min-p


@pytest.mark.parametrize("temperature", [0.001, 0.3, 0.7, 1.0, 1.9, 100.0])
def test_temperature_is_transformers_own(temperature: float) -> None:
    for logits in rows(5):
        expected = theirs(TemperatureLogitsWarper(temperature), logits)
        np.testing.assert_array_equal(warped(logits, Warp(temperature)), expected)


@pytest.mark.parametrize("top_k", [1, 2, 5, 63, 64, 65, 1000])
def test_top_k_is_transformers_own(top_k: int) -> None:
    cut = tied = 0
    for logits in rows(6):
        got = warped(logits, Warp(top_k=top_k))
        assert got is not None
        np.testing.assert_array_equal(got, theirs(TopKLogitsWarper(top_k), logits))
        left = int((got > -np.inf).sum())
        cut += is_cut(logits, got)
        tied += left > top_k  # what equals the last of them stays, too
    if top_k < max(WIDTHS):
        assert cut > 20
        assert tied > 5, "ties at the border were among the rows"


def softmax(x: Floats) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = np.exp(x.astype(np.float64) - float(x.max()))
    probs: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum()
    return probs


def at_the_threshold(logits: Floats, top_p: float) -> bool:
    """Whether float32 sums may land on either side: some tail of the sorted row is within their rounding of 1 - p."""
    tails = np.cumsum(np.sort(softmax(logits)))
    return bool((np.abs(tails - (1.0 - top_p)) < (1.0 - top_p) * (len(logits) + 8) * 2.0**-24).any())


def is_cut(logits: Floats, cut: Floats) -> bool:
    return int((cut > -np.inf).sum()) < int((logits > -np.inf).sum())


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.8, 0.95, 0.999])
def test_top_p_is_transformers_own(top_p: float) -> None:
    """It sums probabilities in float32, we in whole numbers: rows may differ where a sum is at the threshold.

    Of equals at the border it keeps any, we the first: there the kept values are compared, not the tokens.
    """
    differ = cut = tied = 0
    for logits in rows(7, 500):
        got, expected = warped(logits, Warp(top_p=top_p)), theirs(TopPLogitsWarper(top_p), logits)
        assert got is not None
        border = np.flatnonzero(logits == got[got > -np.inf].min())
        kept = got[border] > -np.inf
        assert kept[: kept.sum()].all(), "of equals the first stay"
        cut += is_cut(logits, got)
        tied += not kept.all()
        if not np.array_equal(np.sort(got), np.sort(expected)):
            assert at_the_threshold(logits, top_p)
            differ += 1
            continue
        others = np.ones(len(logits), dtype=bool)
        others[border] = False
        np.testing.assert_array_equal(got[others], expected[others])
    assert differ <= 2, f"{differ} of 500 rows differ at the threshold"
    assert cut > 100
    assert tied > 20


@pytest.mark.parametrize("min_p", [0.001, 0.05, 0.3, 0.9, 1.0])
def test_min_p_is_transformers_own(min_p: float) -> None:
    """Its probabilities are float32: rows may differ where one is within rounding of the threshold."""
    differ = cut = 0
    for logits in rows(8, 500):
        got, expected = warped(logits, Warp(min_p=min_p)), theirs(MinPLogitsWarper(min_p), logits)
        assert got is not None
        cut += is_cut(logits, got)
        if not np.array_equal(got, expected):
            relative = softmax(logits) / softmax(logits).max()
            assert bool((np.abs(relative / min_p - 1.0) < 1e-6).any())
            differ += 1
    assert differ <= 2, f"{differ} of 500 rows differ at the threshold"
    assert cut > 100


def test_all_together_come_in_transformers_order() -> None:
    differ = cut = 0
    generator = np.random.default_rng(9)
    for logits in rows(10):
        temperature, top_k = float(generator.uniform(0.3, 2)), int(generator.integers(1, 40))
        top_p, min_p = float(generator.uniform(0.3, 1)), float(generator.uniform(0, 0.5))
        first = theirs(TopKLogitsWarper(top_k), theirs(TemperatureLogitsWarper(temperature), logits))
        expected = theirs(MinPLogitsWarper(min_p), theirs(TopPLogitsWarper(top_p), first))
        got = warped(logits, Warp(temperature, top_k, top_p, min_p))
        assert got is not None
        cut += is_cut(logits, got)
        if not np.array_equal(np.sort(got), np.sort(expected)):
            assert at_the_threshold(first, top_p)
            differ += 1
    assert differ <= 2, f"{differ} of {ROWS} rows differ at the threshold"
    assert cut > 100


def test_cuts_at_the_edges() -> None:
    row = np.array([1.0, 3.0, 3.0, -np.inf, 2.0], dtype=np.float32)

    def left(warp: Warp) -> list[int]:
        x = warped(row, warp)
        assert x is not None
        return np.flatnonzero(x > -np.inf).tolist()

    assert left(Warp()) == [0, 1, 2, 4]
    assert left(Warp(top_k=1)) == [1, 2], "what equals the last of the k stays"
    assert left(Warp(top_k=3)) == [1, 2, 4]
    assert left(Warp(top_k=4)) == left(Warp(top_k=5)) == left(Warp(top_k=2**31)) == [0, 1, 2, 4]
    assert left(Warp(top_p=1e-9)) == [1], "at least one stays, the first of equals"
    assert left(Warp(top_p=1.0)) == [0, 1, 2, 4]
    assert left(Warp(min_p=1.0)) == [1, 2]
    assert left(Warp(top_k=2, top_p=0.5, min_p=1.0)) == [1]
    for broken in (np.nan, np.inf):
        assert warped(np.array([1.0, broken], dtype=np.float32), Warp(top_k=1)) is None


def test_the_oracle_of_distributions_keeps_what_transformers_keeps() -> None:
    # the exact tests of the rules take their truth from this oracle
    generator = np.random.default_rng(11)
    kept: Counter[int] = Counter()
    for _ in range(100):
        logits = generator.standard_normal(6).astype(np.float32) * 2
        for warp in (Warp(0.7), Warp(1.0, 2), Warp(1.0, 0, 0.8), Warp(0.7, 4, 0.9, 0.2)):
            params = SamplingParams(warp.temperature, warp.top_k, warp.top_p, warp.min_p)
            x = theirs(TemperatureLogitsWarper(warp.temperature), logits)
            x = theirs(TopKLogitsWarper(warp.top_k), x) if warp.top_k else x
            x = theirs(TopPLogitsWarper(warp.top_p), x)
            x = theirs(MinPLogitsWarper(warp.min_p), x)
            np.testing.assert_allclose(sampled_distribution(logits.tolist(), params), softmax(x), rtol=1e-12, atol=0)
            kept[int((x > -np.inf).sum())] += 1
    assert len(kept) >= 5, kept

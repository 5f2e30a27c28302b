"""`rank`: the definition against plain loops, and the native module against the definition, bit for bit."""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken import kernels
from foretoken.errors import ContractError
from foretoken.kernels import choosing, native
from foretoken.kernels.choosing import Floats, Noise, Warp
from tests.chance import assert_drawn_from
from tests.isas import HERE, forget, with_isa
from tests.tiny import needs_native

Ranked = tuple[list[int], list[float]] | None
LARGEST = 2**64 - 1
KINDS = ("normal", "wide", "ties", "equal", "any", "tiny", "huge", "rising", "falling", "peaked")


def row(kind: str, size: int, seed: int) -> Floats:
    """Logits of a kind; float32, finite."""
    dice = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "any":  # any pattern of bits that is a number
        x = dice.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)
        return np.where(np.isfinite(x), x, np.float32(0))
    numbers = {
        "normal": lambda: dice.standard_normal(size),
        "wide": lambda: 30 * dice.standard_normal(size),
        "ties": lambda: dice.integers(-2, 3, size) * dice.choice([0.0, 0.5, 1.0, 1e30]),
        "equal": lambda: np.full(size, dice.choice([0.0, -0.0, 1.0, -7.5, 1e30, -1e30, 1e-40])),
        "tiny": lambda: 1e-39 * dice.standard_normal(size),
        "huge": lambda: dice.choice([1e6, 1e9, 3e38, -1e8]) + dice.integers(-3, 4, size) * dice.choice([0.5, 64.0]),
        "rising": lambda: np.arange(size) * dice.choice([0.01, 1.0, 10.0]),
        "falling": lambda: -np.arange(size) * dice.choice([0.01, 1.0, 10.0]),
        "peaked": lambda: 2 * dice.standard_normal(size) + 25 * (np.arange(size) == dice.integers(0, size + 1)),
    }[kind]()
    return numbers.astype(np.float32)


@st.composite
def rows(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> Floats:
    """A row with -inf, and now and then something that is no logit, anywhere in it."""
    x = row(draw(st.sampled_from(KINDS)), draw(sizes), draw(st.integers(0, 1 << 30)))
    missing = draw(st.sampled_from([0.0, 0.0, 0.1, 0.95, 1.0]))
    x[np.random.default_rng(draw(st.integers(0, 1 << 30))).random(len(x)) < missing] = -np.inf
    if len(x):
        broken = draw(st.sampled_from([None] * 10 + [np.nan, -np.nan, np.inf]))
        place = draw(st.integers(0, len(x) - 1))
        x[place] = x[place] if broken is None else broken
    return x


temperatures = st.sampled_from([1.0, 0.8, 0.001, 100.0]) | st.floats(0.001, 100.0)
top_ps = st.sampled_from([1.0, 1.0, 0.95, 1e-9, 0.5, 1 - 2**-53]) | st.floats(1e-9, 1.0)
min_ps = st.sampled_from([0.0, 0.0, 0.05, 1.0, 1e-12, 5e-324]) | st.floats(0.0, 1.0)
words = st.sampled_from([0, 1, 2**32 - 1]) | st.integers(0, 2**32 - 1)
noises = st.none() | st.builds(Noise, st.sampled_from([0, LARGEST]) | st.integers(0, LARGEST), words, words, words)


@st.composite
def warps(draw: st.DrawFn, size: int) -> Warp:
    top_k = draw(st.sampled_from([0, 0, 1, 50, size, size + 1]) | st.integers(0, size + 1))
    return Warp(draw(temperatures), top_k, draw(top_ps), draw(min_ps))


def defined(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> Ranked:
    with np.errstate(all="ignore"):
        return choosing.rank(logits, warp, noise, count)


def same(a: Ranked, b: Ranked) -> bool:
    """The same tokens, the same bits of their scores."""
    if a is None or b is None:
        return a is b
    return a[0] == b[0] and np.array(a[1]).tobytes() == np.array(b[1]).tobytes()


def assert_as_defined(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> None:
    expected = defined(logits, warp, noise, count)
    for isa in HERE:
        got = native.rank(logits, warp, noise, count, isa)
        assert same(got, expected), (isa, got, expected)


# -- the definition ---------------------------------------------------------------------------------------------------


def by_loops(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> Ranked:
    """What `Warp` and `rank` say, one rule after the other, over lists."""
    with np.errstate(over="ignore"):
        x = [float(v) for v in logits / np.float32(warp.temperature)]
    if not x or any(not v < float("inf") for v in x):
        return None
    left = [token for token in range(len(x)) if x[token] > -float("inf")]
    if 0 < warp.top_k < len(x) and len(left) > warp.top_k:
        least = sorted((x[token] for token in left), reverse=True)[warp.top_k - 1]
        left = [token for token in left if x[token] >= least]
    top = max((x[token] for token in left), default=0.0)
    masses = {t: int(choosing.mass(np.float32([x[t]]), np.float32(top))[0]) for t in left}
    if warp.top_p < 1.0 and left:
        nucleus: list[int] = []
        for token in sorted(left, key=lambda t: (-x[t], t)):
            if nucleus and float(sum(masses[t] for t in nucleus)) >= warp.top_p * float(sum(masses.values())):
                break
            nucleus.append(token)
        left = nucleus
    if warp.min_p > 0.0:
        left = [token for token in left if masses[token] >= warp.min_p * 2**40]
    score = {t: x[t] + (0.0 if noise is None else float(choosing.gumbel(noise, np.array([t]))[0])) for t in left}
    best = sorted(left, key=lambda t: (-score[t], t))[:count]
    return best, [score[t] for t in best]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_definition_is_what_its_rules_say(data: st.DataObject) -> None:
    logits = data.draw(rows(st.integers(0, 40)))
    warp, noise = data.draw(warps(len(logits))), data.draw(noises)
    count = data.draw(st.integers(0, 45))
    got, expected = defined(logits, warp, noise, count), by_loops(logits, warp, noise, count)
    if got is not None and expected is not None:
        assert got == expected  # a zero may have another sign
    else:
        assert got is expected is None


# -- the native module ------------------------------------------------------------------------------------------------


@needs_native
@settings(max_examples=600, deadline=None)
@given(st.data())
def test_native_gives_the_bits_of_the_definition(data: st.DataObject) -> None:
    logits = data.draw(rows(st.integers(0, 300)))
    warp, noise = data.draw(warps(len(logits))), data.draw(noises)
    assert_as_defined(logits, warp, noise, data.draw(st.integers(0, 64)))


@needs_native
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_long_rows_too(data: st.DataObject) -> None:
    logits = data.draw(rows(st.sampled_from([1023, 2048, 4096, 32001])))
    warp, noise = data.draw(warps(len(logits))), data.draw(noises)
    assert_as_defined(logits, warp, noise, data.draw(st.sampled_from([1, 2, 16, 64, 3000])))


@needs_native
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warp", [Warp(0.8), Warp(0.8, 50), Warp(0.8, 0, 0.95), Warp(0.8, 0, 1.0, 0.05)])
def test_a_whole_vocabulary(kind: str, warp: Warp) -> None:
    logits = row(kind, 128_256, 3)
    for noise, count in ((Noise(1, 2, 3), 1), (Noise(4, 5, 6), 16), (None, 16)):
        assert_as_defined(logits, warp, noise, count)


@needs_native
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_token_that_is_left_is_left(data: st.DataObject) -> None:
    """All tokens are asked for, of rows so long that many lie near every cut."""
    logits = row(data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([1000, 4096, 32001])), data.draw(words))
    size = len(logits)
    top_k = data.draw(st.sampled_from([0, 1000, size - 1]) | st.integers(0, 60))
    warp = Warp(data.draw(temperatures), top_k, data.draw(top_ps), data.draw(min_ps))
    assert_as_defined(logits, warp, None, size)


@needs_native
def test_the_kth_largest_is_found_however_the_larger_ones_lie() -> None:
    """A few more are asked for than are kept: with many more, native looks at every token by itself."""
    for seed in range(300):
        k = 1 + seed % 60
        assert_as_defined(row("normal" if seed % 3 else "ties", 1000, seed), Warp(top_k=k), None, k + 3)


@needs_native
def test_a_nucleus_may_end_at_any_token() -> None:
    logits = row("normal", 2000, 0)
    for top_p in np.linspace(0.001, 0.999, 200).tolist():
        assert_as_defined(logits, Warp(top_p=top_p), None, 2000)


@needs_native
@pytest.mark.parametrize("size", [1, 2, 4, 16, 64, 1024])
def test_a_sum_that_just_reaches_top_p_is_enough(size: int) -> None:
    logits = np.zeros(size, dtype=np.float32)
    for top_p in (0.25, 0.5, 0.75):
        ranked = defined(logits, Warp(top_p=top_p), None, size)
        assert ranked is not None
        assert len(ranked[0]) == math.ceil(top_p * size)
        assert_as_defined(logits, Warp(top_p=top_p), None, size)


@needs_native
@pytest.mark.parametrize("size", [*range(1, 67), 127, 128, 129])
def test_a_row_of_any_size_beginning_anywhere(size: int) -> None:
    numbers = row("normal", size + 16, size)
    for start in range(17):
        for warp in (Warp(), Warp(0.5, 3, 0.9, 0.01)):
            assert_as_defined(numbers[start : start + size], warp, Noise(start, 0, 0), 5)


@needs_native
def test_what_is_no_logit_is_found_wherever_it_stands() -> None:
    for size in (1, 15, 16, 17, 64, 100, 1000):
        logits = row("normal", size, 0)
        for place in {0, size // 3, size - 1}:
            for broken in (np.nan, np.inf):
                before, logits[place] = logits[place], broken
                for isa in HERE:
                    assert native.rank(logits, Warp(2.0, 3), Noise(0, 0, 0), 2, isa) is None, (size, place, isa)
                    assert native.rank(logits, Warp(), None, 0, isa) is None
                logits[place] = before


@needs_native
@settings(max_examples=200, deadline=None)
@given(st.floats(0.0, 3.0), st.integers(0, LARGEST), st.integers(1, 64))
@example(0.0, 0, 64)
def test_no_token_that_belongs_among_the_best_is_passed_over(spread: float, seed: int, count: int) -> None:
    """Flat rows, in which hundreds of tokens come near the bound below which noise is not computed."""
    logits = (spread * np.random.default_rng(seed).standard_normal(3000)).astype(np.float32)
    assert_as_defined(logits, Warp(), Noise(seed, 0, 0), count)


@needs_native
@pytest.mark.parametrize(
    ("step", "token"), [(512324, 41), (1135671, 5), (50408, 44), (1224113, 0), (844734, 13), (1797089, 24)]
)
def test_a_token_far_below_wins_with_noise_that_comes_once_in_millions(step: int, token: int) -> None:
    noise = Noise(0, 0, step)  # the upper 24 bits of this token's noise are zeros
    mine, *others = choosing.gumbel(noise, np.array([token, *range(64, 128)])).tolist()
    assert mine > 24 * np.log(2)
    logits = np.zeros(128, dtype=np.float32)
    logits[:64] = -np.inf  # it is alone in its part of the row
    for below, wins in ((mine - max(others) - 1e-3, True), (mine - max(others) + 1e-3, False), (60.0, False)):
        logits[token] = -below
        ranked = defined(logits, Warp(), noise, 1)
        assert ranked is not None
        assert (ranked[0] == [token]) is wins
        assert_as_defined(logits, Warp(), noise, 1)


@needs_native
@pytest.mark.parametrize("isa", HERE)
def test_subnormal_numbers_count_whatever_the_thread_is_set_to(isa: str) -> None:
    logits = np.array([3e-45, 7e-45, -1e-40, 1e-42], dtype=np.float32)
    expected = defined(logits, Warp(2.0), None, 4)
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine does not flush subnormal numbers")
    try:
        got = native.rank(logits, Warp(2.0), None, 4, isa)
    finally:
        torch.set_flush_denormal(False)
    assert same(got, expected)


@pytest.mark.parametrize("isa", HERE)
def test_tokens_come_as_often_as_they_should(isa: str) -> None:
    """Of a right program, this fails once in a million seeds; these are fixed."""
    probs = [0.5, 0.25, 0.15, 0.09, 0.01]
    logits = np.log(np.array(probs)).astype(np.float32)
    ranked = (native.rank(logits, Warp(), Noise(7, 0, step), 1, isa) for step in range(50_000))
    counts = Counter(one[0][0] for one in ranked if one is not None)
    assert_drawn_from(counts, dict(enumerate(probs)))


# -- which implementation, and what it refuses ------------------------------------------------------------------------


@needs_native
def test_the_implementation_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(native, "rank", lambda *args: calls.append(args[-1]))
    for isa in HERE:
        with with_isa(isa):
            kernels.rank(np.zeros(3, dtype=np.float32), Warp(), None, 1)
    assert calls == HERE
    monkeypatch.setitem(sys.modules, "foretoken._native", None)  # not built
    monkeypatch.delenv("FORETOKEN_NATIVE", raising=False)
    forget()
    try:
        assert kernels.rank(np.zeros(3, dtype=np.float32), Warp(), None, 1) == ([0], [0.0])
        assert calls == HERE
    finally:
        monkeypatch.undo()
        forget()


ROW = np.zeros(3, dtype=np.float32)
THROWN = "does not fit; expected 64 bits of seed, then 32 each, of whole numbers from 0 on"
BAD = [
    (np.zeros(3), None, 1, "rank got float64 [3]; expected float32 [V]"),
    (np.zeros((2, 3), dtype=np.float32), None, 1, "rank got float32 [2, 3]; expected float32 [V]"),
    (np.zeros((), dtype=np.float32), None, 1, "rank got float32 []; expected float32 [V]"),
    (np.zeros(3, dtype=np.dtype(">f4")), None, 1, "rank got >f4 [3]; expected float32 [V]"),
    (ROW, None, -1, "the best -1 tokens were asked for; expected 0 or more"),
    (ROW, Noise(2**64, 0, 0), 1, f"{Noise(2**64, 0, 0)} {THROWN}"),
    (ROW, Noise(0, 2**32, 0), 1, f"{Noise(0, 2**32, 0)} {THROWN}"),
    (ROW, Noise(0, 0, -1), 1, f"{Noise(0, 0, -1)} {THROWN}"),
    (ROW, Noise(0, 0, 0, 2**32), 1, f"{Noise(0, 0, 0, 2**32)} {THROWN}"),
]


@pytest.mark.parametrize(("logits", "noise", "count", "message"), BAD)
def test_what_has_no_answer_is_refused_by_all(logits: Floats, noise: Noise | None, count: int, message: str) -> None:
    for rank in (
        lambda: choosing.rank(logits, Warp(), noise, count),
        lambda: kernels.rank(logits, Warp(), noise, count),
        lambda: native.rank(logits, Warp(), noise, count, "generic"),  # before the module is looked for
    ):
        with pytest.raises(ContractError) as error:
            rank()
        assert str(error.value) == message


def test_native_refuses_memory_with_gaps_and_kernels_close_them() -> None:
    numbers = np.arange(60, dtype=np.float32)
    within = np.frombuffer(b"\0" + numbers.tobytes(), dtype=np.float32, offset=1)
    for gaps, strides in ((numbers[::7], "(28,)"), (numbers[::-1], "(-4,)"), (within, "(4,)")):
        with pytest.raises(ContractError) as error:
            native.rank(gaps, Warp(), None, 1, "generic")
        assert str(error.value) == (
            f"logits has strides {strides}, or begins within a number; expected contiguous memory: call "
            f"numpy.require(logits, requirements='CA')"
        )
    assert kernels.rank(numbers[::7], Warp(), None, 2) == ([8, 7], [56.0, 49.0])
    assert kernels.rank(numbers[::-1], Warp(), None, 1) == ([0], [59.0])

"""The choice of tokens by warped and perturbed logits, in numpy. This module defines the bits of the choice, and runs
without a native module.

A token's *score* is its warped logit plus a Gumbel number of its own. The token with the largest score is an exact
sample of the warped distribution (Gumbel 1954; Maddison, Tarlow and Minka 2014). The tokens with the k largest scores
are a sample without replacement. The numbers are a pure function of seed, completion, step and token, so a draft that
knows these four can use the target's noise. By ranking its own logits with that noise, the draft guesses what the
target will sample (Daliri, Musco and Suresh 2024, arXiv 2408.07978).

All arithmetic here is on whole numbers, or in single operations that IEEE 754 rounds in one way, never fused. So C++
(csrc/choosing.inl) gives the same bits with every instruction set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretoken.errors import ContractError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_LOG2 = 0.6931471805599453
_MASS = 2.0**40  # probabilities are counted in units of the largest / 2^40: sums of whole numbers have no order
SPAN = 27.75  # logits further than this below the largest have no mass: e^-27.75 * 2^40 < 1


@dataclass(frozen=True, slots=True)
class Warp:
    """Turns logits into a distribution: divides them by `temperature`, then removes tokens by three rules.

    `top_k` keeps the k largest logits, and all that equal the last of them (0: keeps all). `top_p` keeps the fewest
    tokens whose probabilities reach p, the lower id first among equals (1.0: all). `min_p` keeps tokens with at least
    that share of the largest probability (0.0: all).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Selects the noise. `seed` has 64 bits, other fields 32. `stream` separates uses that must not share noise."""

    seed: int
    completion: int
    step: int
    stream: int = 0


def rank(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> tuple[list[int], list[float]] | None:
    """The `count` tokens with the largest scores, and the scores: best first, the lower id first among equals.

    Fewer tokens are returned if the warp leaves fewer. logits: float32 [V]; -inf marks a token that must not be chosen.
    Without noise the scores are the warped logits. None if a logit is NaN or +inf.
    """
    expect(logits, noise, count)
    x = warped(logits, warp)
    if x is None:
        return None
    left = np.flatnonzero(x > -np.inf)
    scores = x[left].astype(np.float64)
    if noise is not None:
        scores = scores + gumbel(noise, left)
    best = np.lexsort((left, -scores))[:count]
    return left[best].tolist(), scores[best].tolist()


def expect(logits: Floats, noise: Noise | None, count: int) -> None:
    """Raise ContractError for arguments that `rank` does not accept."""
    if logits.dtype != np.float32 or logits.ndim != 1:
        raise ContractError(f"rank got {logits.dtype} {list(logits.shape)}; expected float32 [V]")
    if count < 0:
        raise ContractError(f"the best {count} tokens were asked for; expected 0 or more")
    if noise is not None and (noise.seed >> 64 or (noise.completion | noise.step | noise.stream) >> 32):
        raise ContractError(f"{noise} does not fit; expected 64 bits of seed, then 32 each, of whole numbers from 0 on")


def warped(logits: Floats, warp: Warp) -> Floats | None:
    """float32 [V]: divided by the temperature, -inf where a rule cuts. None if a logit is NaN or +inf."""
    with np.errstate(over="ignore"):
        x = logits / np.float32(warp.temperature)
    if len(x) == 0 or not bool((x < np.inf).all()):  # NaN compares as false, too
        return None
    if warp.top_k and warp.top_k < len(x):
        x = np.where(x >= np.partition(x, -warp.top_k)[-warp.top_k], x, np.float32(-np.inf))
    top = x.max()
    if top == -np.inf or (warp.top_p == 1.0 and warp.min_p == 0.0):
        return x
    masses = mass(x, top)
    if warp.top_p < 1.0:
        order = np.lexsort((np.arange(len(x)), -x))
        before = np.cumsum(masses[order]) - masses[order]
        kept = before < warp.top_p * np.float64(masses.sum())
        kept[0] = True
        x[order[~kept]] = -np.inf
    if warp.min_p > 0.0:
        x = np.where(masses >= warp.min_p * _MASS, x, np.float32(-np.inf))
    return x


def probabilities(logits: Floats, warp: Warp) -> Doubles | None:
    """float64 [V]: the distribution that `rank` samples from, but for rounding. None if a logit is NaN or +inf."""
    x = warped(logits, warp)
    if x is None:
        return None
    top = x.max()
    weights = np.where(x > -np.inf, exponential(np.maximum(x.astype(np.float64) - float(top), -700.0)), 0.0)
    total: Doubles = weights / weights.sum()
    return total


def mass(x: Floats, top: np.float32) -> Words:
    """uint64 [V]: each token's probability as a multiple of the largest probability / 2^40, rounded down."""
    below = x.astype(np.float64) - np.float64(top)
    near = below > -SPAN
    return np.where(near, exponential(np.where(near, below, 0.0)) * _MASS, 0.0).astype(np.uint64)


def exponential(x: Doubles) -> Doubles:
    """e^x for x from -700 to 0: x = n log 2 + r, |r| <= 0.35, then Taylor's series of e^r to r^13."""
    n = np.floor(x * (1.0 / _LOG2) + 0.5)
    r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    y = np.full_like(x, 1.0 / math.factorial(13))
    for power in range(12, -1, -1):
        y = y * r + 1.0 / math.factorial(power)
    return np.ldexp(y, n.astype(np.int32))


def gumbel(noise: Noise, tokens: npt.NDArray[np.int64]) -> Doubles:
    """float64: -log(-log(u)), where u comes from 64 random bits for each token. The result is always finite.

    u is computed from the side on which it is exact, because large results depend on how far u is from 1.
    """
    bits = _bits(noise, tokens)
    low = (bits.astype(np.float64) + 0.5) * 2.0**-64  # 1 - u
    high = ((~bits).astype(np.float64) + 0.5) * 2.0**-64  # u, where 1 - u is large
    small = bits < np.uint64(1 << 62)
    waits = np.where(small, -_log(-low, 0.0), -_logarithm(np.where(small, 0.5, high)))
    return -_logarithm(waits)


def uniform(noise: Noise, token: int) -> float:
    """A uniform number in (0, 1), from the bits of a token's noise, for rules that flip a coin."""
    return float(((int(_bits(noise, np.array([token]))[0]) >> 12) + 0.5) * 2.0**-52)


def _logarithm(x: Doubles) -> Doubles:
    """log x of x > 0."""
    fraction, exponent = np.frexp(x)  # 0.5 <= fraction < 1
    small = fraction < 0.7071067811865476
    fraction = np.where(small, fraction + fraction, fraction)
    return _log(fraction - 1.0, (exponent - small).astype(np.float64))


def _log(f: Doubles, exponent: Doubles | float) -> Doubles:
    """log(1 + f) + exponent log 2 for f from -0.3 to 0.42: twice the series of the inverse hyperbolic tangent."""
    s = f / (f + 2.0)
    square = s * s
    y = np.full_like(s, 1.0 / 21.0)
    for power in range(19, 0, -2):
        y = y * square + 1.0 / power
    return (s + s) * y + exponent * _LOG2


def _bits(noise: Noise, tokens: npt.NDArray[np.int64]) -> Words:
    """uint64 for each token: one Philox block gives the bits of two neighbouring tokens."""
    ids: Words = tokens.astype(np.uint64)
    words = philox(
        (ids >> np.uint64(1), noise.step, noise.completion, noise.stream),
        (noise.seed & 0xFFFFFFFF, noise.seed >> 32),
    )
    odd = (ids & np.uint64(1)).astype(bool)
    high, low = np.where(odd, words[2], words[0]), np.where(odd, words[3], words[1])
    return high << np.uint64(32) | low


def philox(counter: tuple[Words, int, int, int], key: tuple[int, int]) -> list[Words]:
    """Four uint32 (as uint64) for each counter: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011)."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    number: Callable[[int], np.uint64] = np.uint64
    a, b, c, d = counter[0] & mask, *(np.full_like(counter[0], word) for word in counter[1:])
    k, j = key
    for _ in range(10):
        p, q = a * number(0xD2511F53), c * number(0xCD9E8D57)
        a, b, c, d = (q >> half) ^ b ^ number(k), q & mask, (p >> half) ^ d ^ number(j), p & mask
        k, j = (k + 0x9E3779B9) & 0xFFFFFFFF, (j + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]

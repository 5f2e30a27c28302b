"""The numbers that are thrown: Philox against its authors' answers, the functions of them against decimal arithmetic,
and their distribution with many more of them than a sampler could be asked for."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, getcontext

import numpy as np
import pytest

from foretoken.kernels import choosing
from foretoken.kernels.choosing import Doubles, Noise, exponential, gumbel, philox, uniform
from tests.chance import FALSE_ALARM, assert_drawn_from

MANY = 200_000
LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # kat_vectors of Random123 (Salmon, Moraes, Dror and Shaw 2011), philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_authors_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    words = philox((np.array([counter[0]], dtype=np.uint64), *counter[1:]), key)
    assert tuple(int(word[0]) for word in words) == answer


def gumbel_of(bits: list[int], monkeypatch: pytest.MonkeyPatch) -> Doubles:
    monkeypatch.setattr(choosing, "_bits", lambda noise, tokens: np.array(bits, dtype=np.uint64))
    return gumbel(Noise(0, 0, 0), np.arange(len(bits)))


def test_a_gumbel_number_is_that_of_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    getcontext().prec = 60
    generator = np.random.default_rng(1)
    bits = [0, 1, 2**32, 2**62 - 1, 2**62, 2**62 + 1, 2**63, LARGEST - 2**32, LARGEST - 1, LARGEST]
    bits += [int(b) for b in generator.integers(0, 2**64, 300, dtype=np.uint64)]
    bits += [int(b) >> shift for shift in range(1, 64) for b in generator.integers(0, 2**64, 2, dtype=np.uint64)]
    bits += [LARGEST - b for b in bits]
    for b, got in zip(bits, gumbel_of(bits, monkeypatch).tolist(), strict=True):
        u = 1 - (Decimal(b) + Decimal("0.5")) / 2**64
        true = -(-u.ln()).ln()
        assert abs(Decimal(got) - true) <= abs(true) * Decimal(2) ** -51 + Decimal(2) ** -52, hex(b)


def test_no_bits_make_a_gumbel_number_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    best, worst = gumbel_of([0, LARGEST], monkeypatch).tolist()
    assert best == pytest.approx(65 * math.log(2), rel=1e-12)
    assert worst == pytest.approx(-math.log(65 * math.log(2)), rel=1e-12)


def test_the_exponential_is_that_of_the_library() -> None:
    x = np.concatenate([np.linspace(-700, 0, 20_001), -np.geomspace(1e-18, 1, 1000), [-0.0]])
    np.testing.assert_allclose(exponential(x), np.exp(x), rtol=4e-16, atol=0)


def ways_to_throw() -> dict[str, Doubles]:
    """Many numbers, along each of the things that they are a function of."""
    tokens = np.arange(100)
    return {
        "tokens": gumbel(Noise(1, 0, 0), np.arange(MANY)),
        "steps": np.concatenate([gumbel(Noise(1, 0, step), tokens) for step in range(MANY // 100)]),
        "seeds": np.concatenate([gumbel(Noise(seed, 0, 0), tokens) for seed in range(MANY // 100)]),
        "high seeds": np.concatenate([gumbel(Noise(seed << 32, 0, 0), tokens) for seed in range(MANY // 100)]),
        "completions": np.concatenate([gumbel(Noise(1, c, 0), tokens) for c in range(MANY // 100)]),
    }


def test_the_numbers_are_gumbel_distributed_and_neighbours_are_independent() -> None:
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * MANY))  # of Kolmogorov's distance (Massart 1990)
    for name, numbers in ways_to_throw().items():
        u = np.exp(-np.exp(-numbers))  # uniform, if the numbers are Gumbel's
        expected = np.arange(MANY + 1) / MANY
        ordered = np.sort(u)
        assert max(np.abs(ordered - expected[1:]).max(), np.abs(ordered - expected[:-1]).max()) < bound, name
        for apart in (1, 2, 100):  # neighbouring tokens share a block of Philox; 100 apart is the next seed or step
            first, second = (u[:-apart] * 8).astype(int), (u[apart:] * 8).astype(int)
            counts = Counter(dict(enumerate(np.bincount(first * 8 + second, minlength=64).tolist())))
            assert_drawn_from(counts, dict.fromkeys(range(64), 1 / 64))


def test_the_largest_sum_is_a_sample_of_the_distribution() -> None:
    """What the choice rests on: logarithms of probabilities plus such numbers, 100,000 times."""
    probs = np.array([0.4, 0.3, 0.2, 0.07, 0.0299, 0.0001])
    numbers = gumbel(Noise(7, 3, 5), np.arange(6 * 100_000)).reshape(-1, 6)
    order = np.argsort(-(np.log(probs) + numbers), axis=1)
    assert_drawn_from(Counter(order[:, 0].tolist()), dict(enumerate(probs.tolist())))
    pairs = {(a, b): probs[a] * probs[b] / (1 - probs[a]) for a in range(6) for b in range(6) if a != b}
    assert_drawn_from(Counter(map(tuple, order[:, :2].tolist())), pairs)


def test_coins_are_uniform() -> None:
    numbers = [uniform(Noise(seed, 0, 0, 2), which) for seed in range(2000) for which in range(2)]
    assert all(0.0 < number < 1.0 for number in numbers)
    assert_drawn_from(Counter(int(number * 20) for number in numbers), dict.fromkeys(range(20), 0.05))

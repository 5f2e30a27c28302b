from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.chance import FALSE_ALARM, Dice, assert_drawn_from, chi_square_tail, every_run


def test_every_run_of_two_dice_and_a_coin() -> None:
    def program(dice: Dice) -> int:
        first = dice.throw([0.5, 0.0, 0.5])
        return first + (dice.throw([0.25, 0.75]) if dice.toss(0.2) else 10)

    assert every_run(program) == pytest.approx({0: 0.025, 1: 0.075, 10: 0.4, 2: 0.025, 3: 0.075, 12: 0.4})


def test_the_tail_is_that_of_the_tables() -> None:
    # 3.841 with one degree of freedom and 18.307 with ten are where the printed tables have 5 percent
    counts = Counter({0: 500, 1: 500})
    shift = (3.841 * 0.25 / 1000) ** 0.5
    assert chi_square_tail(counts, {0: 0.5 + shift, 1: 0.5 - shift}) == pytest.approx(0.05, rel=0.01)
    eleven = Counter(dict.fromkeys(range(11), 1_000_000))
    shifted = round((18.307 * 1_000_000 / 2) ** 0.5)
    eleven.update({0: shifted, 1: -shifted})
    assert chi_square_tail(eleven, dict.fromkeys(range(11), 1 / 11)) == pytest.approx(0.05, rel=0.01)


def test_true_samples_pass_and_others_do_not() -> None:
    generator = np.random.default_rng(3)
    probs = [0.5, 0.3, 0.1999, 0.0001]
    tails = []
    for _ in range(200):
        counts = Counter(generator.choice(4, size=2000, p=probs).tolist())
        tails.append(chi_square_tail(counts, dict(enumerate(probs))))
    assert 0.3 < float(np.mean(np.array(tails) < 0.5)) < 0.7, "the tails of true samples are spread evenly"
    assert min(tails) > FALSE_ALARM
    counts = Counter(generator.choice(4, size=2000, p=[0.4, 0.4, 0.1999, 0.0001]).tolist())
    with pytest.raises(AssertionError, match="once in"):
        assert_drawn_from(counts, dict(enumerate(probs)))
    with pytest.raises(AssertionError, match="cannot happen"):
        assert_drawn_from(Counter({5: 1, 0: 99}), {0: 0.5, 1: 0.5})
    with pytest.raises(AssertionError, match="vacuous"):
        assert_drawn_from(Counter({0: 99}), {0: 1.0})

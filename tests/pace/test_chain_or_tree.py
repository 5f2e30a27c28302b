"""A level that can draft chains and trees: the pace finds out which of the two is faster, and when that changes."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

import foretoken
from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import Moment, PassCost
from foretoken.pace.levels import Paced
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from foretoken.transcript.record import record
from tests.paces import LONG

CHECK = Price({1: 0.064, 16: 0.072, 32: 0.130})
PASS = {0: 0.0, 1: 0.019, 2: 0.030}  # seconds of a pass of the draft, by the width of what it drafts


def run(
    pace: AutoPace, first: float, second: float, rounds: int, chance: random.Random, passes: int = 6
) -> tuple[Counter[int], float]:
    """How often each width was chosen, and the tokens a second. first: the probability of a draft's first choice at
    each place; second: the probability of its second one where the first is wrong. passes: after so many, a tree ends
    itself."""
    widths, made, spent = Counter[int](), 0, 0.0
    for turn in range(rounds):
        budget = pace.choose([0], LONG)[0][0]
        width = budget.width if budget.rows else 0
        depth, rows, likely = {
            0: (0, 0, 0.0),
            1: (budget.longest, budget.longest, first),
            2: (passes, 2 * passes, first + (1 - first) * second),
        }[width]
        right = 0
        while right < depth and chance.random() < likely:
            right += 1
        propose, check = depth * PASS[width], CHECK.of(1 + rows) * chance.uniform(0.97, 1.03)
        work = (Work("copy", rows, turn, propose, rows, passes=depth, cost={}),) if depth else ()
        pace.heard(
            RoundRecord(
                turn, {0: rows}, {0: right}, {0: right + 1}, propose, check, work={0: work}, budgets={0: (budget,)}
            )
        )
        widths[width] += 1
        made += right + 1
        spent += propose + check
    return widths, made / spent


def paced() -> AutoPace:
    moment = Moment()
    copy = Paced(
        "copy", Budget(24, 24, 2), True, (0.8,), PassCost(Price({1: PASS[1], 2: PASS[2], 8: 0.035}), moment), ends=True
    )
    return AutoPace([copy], PassCost(CHECK, moment))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "second", "better"), [(0.97, 0.1, 1), (0.6, 0.9, 2)])
def test_the_faster_of_the_two_is_found(first: float, second: float, better: int, seed: int) -> None:
    widths, _ = run(paced(), first, second, 400, random.Random(seed))
    assert widths[better] > 300
    assert 0 < widths[3 - better] < 60, "the other is tried, too"


def test_it_is_found_again_when_the_text_has_changed() -> None:
    pace, chance = paced(), random.Random(7)
    for _ in range(2):
        run(pace, 0.97, 0.1, 400, chance)
        assert run(pace, 0.97, 0.1, 200, chance)[0][1] > 150
        run(pace, 0.6, 0.9, 400, chance)
        assert run(pace, 0.6, 0.9, 200, chance)[0][2] > 150


@pytest.mark.parametrize("hard", [(0.2, 0.2, 2), (0.4, 0.3, 3), (0.5, 0.5, 4)])
def test_a_hard_stretch_of_text_is_forgotten(hard: tuple[float, float, int]) -> None:
    pace, chance = paced(), random.Random(11)
    _, before = run(pace, 0.6, 0.9, 400, chance)
    _, meanwhile = run(pace, *hard[:2], 400, chance, hard[2])
    assert meanwhile > 0.8 / CHECK.of(1), "hardly slower than plain decoding"
    run(pace, 0.6, 0.9, 300, chance)
    widths, after = run(pace, 0.6, 0.9, 500, chance)
    assert widths[2] > 400
    assert after > 0.9 * before


def test_both_give_the_text_of_plain_decoding(tmp_path: Path) -> None:
    draft, prompt, path = "mxfp4:k=2,lookup", "def read_json(path):", tmp_path / "record.json"
    how = {"max_new_tokens": 100, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    record(path, foretoken.load("stdlib-7m", draft=draft), prompt, **how)
    told = json.loads(path.read_text(encoding="utf-8"))
    told["pace"]["rounds"] = [[[8, 8, 1 + n % 2, 0.0, []], [3, 3]] for n in range(100)]  # a chain, a tree, a chain ...
    path.write_text(json.dumps(told), encoding="utf-8")
    model = foretoken.load("stdlib-7m", draft=draft, pace=f"replay:{path}")
    done = model.generate(prompt, **how, keep_rounds=True)
    assert done.tokens == foretoken.load("stdlib-7m", draft="none").generate(prompt, **how).tokens
    assert done.rounds is not None
    accepted = Counter[int]()
    for each in done.rounds:
        if each.budgets:
            accepted[each.budgets[0][0].width] += each.accepted[0]
    assert accepted[1] > 5
    assert accepted[2] > 5

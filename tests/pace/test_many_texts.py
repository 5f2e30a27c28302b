"""The pace for several texts that begin together: how long until the last of them ends, beside plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pytest

from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import ASSUMED, Moment, PassCost
from foretoken.pace.levels import Paced
from foretoken.pace.sharing import Sharing
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget

# measured seconds of a pass of the 1b shape on two cores (Zen 4), by rows
ZEN4 = Price({1: 0.053, 4: 0.056, 8: 0.064, 12: 0.076, 16: 0.092, 18: 0.104, 24: 0.131, 32: 0.167, 64: 0.34})
# the same with AMX, where a row costs far less, and 16 of them make a step
AMX = Price({1: 0.0635, 8: 0.068, 16: 0.072, 24: 0.078, 32: 0.082, 34: 0.1, 48: 0.105, 51: 0.118, 64: 0.122, 96: 0.155})
TOKENS = 128  # of each text
SEEDS = range(4)


@pytest.fixture(autouse=True)
def free_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of passes are of another machine, so those of choosing on this one must not count beside them."""
    monkeypatch.setattr("foretoken.pace.auto.thread_time", lambda: 0.0)


Run = tuple[list[float], int]  # the seconds at which texts end, in the order of their ends, and draft tokens


@dataclass(frozen=True)
class Machine:
    """curve: seconds of a pass by its rows. shape: what the pace knows of it. slow: share of passes that take twice
    as long. first: how many times as long the first pass takes. later: the same of all from round 40. beside: seconds
    of each round beside its pass, whatever is drafted."""

    curve: Price
    shape: Price | None = None
    slow: float = 0.0
    first: float = 1.0
    later: float = 1.0
    beside: float = 0.0

    def seconds(self, rows: int, turn: int, chance: random.Random) -> float:
        its = self.curve.of(rows) * chance.uniform(0.98, 1.02) * (2.0 if chance.random() < self.slow else 1.0)
        return its * (self.first if turn == 0 else self.later if turn >= 40 else 1.0)


def paced(rates: Sequence[float], seed: int, machine: Machine, plain: int = 0) -> Run:
    """Texts whose draft tokens are accepted with these probabilities, until the last has ended, beside some that draft
    nothing."""
    chance = random.Random(seed)
    pace = AutoPace([Paced("lookup", Budget(24, 24), True, (0.5,))], PassCost(machine.shape or machine.curve, Moment()))
    left = dict.fromkeys(range(len(rates) + plain), TOKENS)
    ends: list[float] = []
    spent, sent, turn = 0.0, 0, 0
    while left:
        drafting = [text for text in left if text < len(rates)]
        budgets = pace.choose(drafting, left) if drafting else {}
        drafted = {text: min(budgets[text][0].rows, left[text] - 1) if text in budgets else 0 for text in left}
        accepted = {text: _accepted(count, rates[text], chance) if count else 0 for text, count in drafted.items()}
        gained = {text: count + 1 for text, count in accepted.items()}
        seconds = machine.seconds(len(left) + sum(drafted.values()), turn, chance)
        pace.heard(RoundRecord(turn, drafted, accepted, gained, machine.beside, seconds, budgets=budgets))
        spent, sent, turn = spent + seconds, sent + sum(drafted.values()), turn + 1
        before = len(left)
        left = {text: count - gained[text] for text, count in left.items() if count > gained[text]}
        ends += [spent] * (before - len(left))
    return ends, sent


def _accepted(count: int, rate: float, chance: random.Random) -> int:
    for at in range(count):
        if chance.random() >= rate:
            return at
    return count


def times_plain(rates: Sequence[float], curve: Price = ZEN4) -> tuple[float, float, int]:
    """How many times as fast as plain decoding the last text ends, and texts on average; how much was drafted."""
    runs = [paced(rates, seed, Machine(curve)) for seed in SEEDS]
    plain = TOKENS * curve.of(len(rates))  # all texts end at once
    last, mean = plain / max(ends[-1] for ends, _ in runs), fmean(end for ends, _ in runs for end in ends)
    return last, plain / mean, sum(sent for _, sent in runs)


@pytest.mark.parametrize("curve", [ZEN4, AMX], ids=["Zen 4", "AMX"])
@pytest.mark.parametrize(
    "rates",
    [
        (0.0,) * 8,
        (0.0, 0.3, 0.5, 0.9) * 2,
        (0.0, 0.3, 0.5, 0.9) * 4,
        (0.3, 0.6, 0.9, 0.97) * 2,
        (0.3, 0.6, 0.9, 0.97) * 4,
        (0.1, *(0.97,) * 7),
        (0.1, *(0.97,) * 15),
        (0.2, 0.97),
        (0.95,) * 16,
    ],
)
def test_no_text_is_left_behind_by_drafts_for_the_others(rates: tuple[float, ...], curve: Price) -> None:
    last, mean, sent = times_plain(rates, curve)
    assert last > 0.975
    assert mean > 0.985
    assert sent


@pytest.mark.parametrize(
    ("rates", "curve", "least"),
    [
        ((0.1, *(0.97,) * 7), ZEN4, 1.02),
        ((0.1, *(0.97,) * 7), AMX, 1.3),
        ((0.1, *(0.97,) * 15), AMX, 1.08),
        ((0.0, 0.3, 0.5, 0.9) * 4, AMX, 1.03),
        ((0.2, 0.97), ZEN4, 1.6),
    ],
)
def test_texts_that_draft_well_end_sooner_where_the_others_do_not_lose_by_it(
    rates: tuple[float, ...], curve: Price, least: float
) -> None:
    assert times_plain(rates, curve)[1] > least


@pytest.mark.parametrize(
    ("count", "curve", "least"), [(2, ZEN4, 2.2), (4, ZEN4, 1.6), (8, ZEN4, 1.1), (4, AMX, 2.7), (8, AMX, 1.9)]
)
def test_texts_that_draft_alike_end_sooner(count: int, curve: Price, least: float) -> None:
    assert times_plain((0.8,) * count, curve)[0] > least


@pytest.mark.parametrize(
    "machine",
    [Machine(ZEN4, first=2.0), Machine(ZEN4, slow=0.12), Machine(ZEN4, later=1.8), Machine(ZEN4.times(60), ASSUMED)],
    ids=["slow first pass", "some passes are slow", "slower machine", "prices that nobody measured"],
)
def test_a_disturbed_machine_does_not_end_drafting(machine: Machine) -> None:
    """Nor one whose prices are only assumed at first."""
    usual = fmean(paced((0.8,) * 8, seed, Machine(ZEN4))[1] for seed in SEEDS)
    assert fmean(paced((0.8,) * 8, seed, machine)[1] for seed in SEEDS) > 0.8 * usual


def test_texts_that_draft_nothing_do_not_pay_for_one_that_does() -> None:
    for seed in SEEDS:
        ends, sent = paced((0.97,), seed, Machine(ZEN4), plain=7)
        assert sent
        assert ends[-1] < TOKENS * ZEN4.of(8) / 0.95


def told(sharing: Sharing, gained: dict[int, int], read: dict[int, int] | None = None, drafts: float = 0.5) -> None:
    """A round of a second and what drafts add to it."""
    record = RoundRecord(0, dict.fromkeys(gained, 0), gained, gained, 0.0, 1.0 + drafts, read=read or {})
    sharing.heard(record, 1.0 + drafts, 1.0, drafts)


def test_what_a_token_is_worth_and_what_a_text_may_lose() -> None:
    sharing = Sharing()
    assert sharing.of([0], {0: 99}, 1.0, 1.0) is None, "nobody else waits"
    both = {0: 99, 1: 99}
    for _ in range(100):
        told(sharing, {0: 1, 1: 4})
    shares = sharing.of([0, 1], both, 1.0, 1.0)
    assert shares is not None
    shares = shares.of_which(0.5)
    slow, fast = shares.weights
    assert slow + fast == pytest.approx(2.0)
    assert slow / fast == pytest.approx(16.0, rel=0.3), "four times as fast: a token saves a sixteenth of the time"
    assert shares.room[0] == 0.0, "it has lost much: it must gain what drafts cost"
    assert shares.room[1] > 200.0
    gained = np.array([[0.0, 9.0], [1.9, 9.0], [2.1, 0.0], [2.1, 0.0]])
    seconds = np.array([1.01, 2.0, 2.0, 5.1])
    assert shares.leave_behind(gained, seconds).tolist() == [True, True, False, True], "the last round is too long"
    beside = sharing.of([1], both, 1.0, 1.0)
    assert beside is not None
    assert beside.leave_behind(np.array([99.0]), 1.01), "the text beside it gains nothing"
    told(sharing, {1: 1})
    again = sharing.of([0, 1], both, 1.0, 1.0)
    assert again is not None
    assert again.room[0] == 0.0, "a text that was left out of a round is remembered"
    sharing.begin({1: 99})
    new = sharing.of([0, 1], both, 1.0, 1.0)
    assert new is not None
    assert new.room[0] == pytest.approx(64 * 0.02), "of the time that it is taken to need"
    sharing.begin(both)
    sharing.came(0, expected=6.0, came=0.0)
    doubted = sharing.of([0, 1], both, 1.0, 1.0)
    assert doubted is not None
    assert doubted.come.tolist() == pytest.approx([1 / 7, 1.0]), "nothing came of its first draft"
    short = sharing.of([0, 1], {0: 5, 1: 99}, 1.0, 1.0)
    assert short is not None
    assert short.room[0] == pytest.approx(5 * 0.02), "it may not gain more"


def test_a_text_whose_prompt_is_read_waits_for_drafts_as_well() -> None:
    sharing, both = Sharing(), {0: 99, 1: 99}
    told(sharing, {0: 3})

    def waits() -> float:
        sharing.begin(both)
        shares = sharing.of([0], both, 1.0, 1.0)
        assert shares is not None
        return shares.others

    before = waits()
    assert before == pytest.approx(64 * 0.02)
    told(sharing, {0: 3}, {1: 50}, drafts=0.4)
    assert waits() == pytest.approx(before - 0.4 + 0.02 * 1.4)
    told(sharing, {0: 3}, drafts=0.4)  # its prompt waits for another's
    assert waits() == pytest.approx(before - 0.8 + 0.02 * 2.8)
    told(sharing, {0: 3, 1: 1}, {1: 50}, drafts=0.4)
    told(sharing, {0: 1, 1: 1}, drafts=0.0)
    assert waits() == pytest.approx(before - 1.2 + 0.02 * 5.2)
    told(sharing, {0: 3}, {1: 50}, drafts=0.0)
    assert waits() == pytest.approx(before + 0.02), "another text under the same number"


@pytest.mark.parametrize(("reading", "drafts"), [(0, True), (1, True), (15, False)])
@pytest.mark.parametrize("width", [1, 2])
def test_drafts_for_one_text_do_not_keep_many_prompts_waiting(reading: int, drafts: bool, width: int) -> None:
    """What one text gains by a copy's drafts is less than what fifteen others lose, whose first tokens wait for it."""
    moment, copy = Moment(), Price({1: 0.024, 2: 0.025})  # seconds
    level = Paced("mxfp4", Budget(24, 24, width), True, (0.9,), PassCost(copy, moment), ends=width > 1)
    check = PassCost(AMX, moment)
    check.heard(1, AMX.of(1))
    pace = AutoPace([level], check)
    budgets = pace.choose([0], dict.fromkeys(range(1 + reading), 64))
    assert bool(budgets[0][0].rows) == drafts


@pytest.mark.parametrize(("reading", "drafts"), [(1, True), (9, False)])
def test_a_round_that_reads_is_long_and_drafts_are_not_cheap_beside_it(reading: int, drafts: bool) -> None:
    """What counts is how much later the others go on, in rounds as they usually are."""
    moment, copy = Moment(), Price({1: 0.012, 4: 0.014, 16: 0.024})
    level = Paced("mxfp4", Budget(24, 24, 2), True, (0.9,), PassCost(copy, moment), ends=True)
    check = PassCost(AMX, moment)
    check.heard(1, AMX.of(1))
    pace, decoding = AutoPace([level], check), [0]
    left = dict.fromkeys(range(1 + reading), 64)
    pace.choose([], left)
    none, one = dict.fromkeys(decoding, 0), dict.fromkeys(decoding, 1)
    pace.heard(RoundRecord(0, none, none, one, 0.0, AMX.of(91), read={1: 90}))
    assert any(each[0].rows for each in pace.choose(decoding, left).values()) == drafts


def test_what_a_round_costs_anyway_is_not_put_down_to_drafts() -> None:
    rates = (0.1, *(0.97,) * 7)
    usual = fmean(paced(rates, seed, Machine(AMX))[1] for seed in SEEDS)
    assert fmean(paced(rates, seed, Machine(AMX, beside=0.003))[1] for seed in SEEDS) > 0.9 * usual


@pytest.mark.parametrize("curve", [ZEN4, AMX], ids=["Zen 4", "AMX"])
@pytest.mark.parametrize("others", [1, 7])
def test_a_text_that_comes_later_and_gains_nothing_hardly_waits_for_the_others(others: int, curve: Price) -> None:
    """The others draft well, so much is expected of its drafts, too. Its prompt is read in parts of 24 tokens."""
    chance = random.Random(1)
    pace = AutoPace([Paced("lookup", Budget(24, 24), True, (0.5,))], PassCost(curve, Moment()))
    late, unread, room = others, 200, 24
    left = dict.fromkeys(range(others), 10_000)
    spent, plain, turn, sent = 0.0, 0.0, 0, 0
    while left.get(late, 1) > 0:
        if turn == 100:
            left[late] = TOKENS
        reads = min(room, unread) if turn >= 100 else 0
        drafting = [text for text in left if text != late or not unread]
        budgets = pace.choose(drafting, left)
        drafted = {text: min(budgets[text][0].rows, left[text] - 1) for text in drafting}
        rates = {text: 0.97 if text < others else 0.0 for text in drafting}
        accepted = {text: _accepted(count, rates[text], chance) for text, count in drafted.items()}
        gained = {text: count + 1 for text, count in accepted.items()}
        unread -= reads
        if reads and not unread:
            gained[late] = 1
        took = curve.of(len(drafting) + sum(drafted.values()) + reads)
        read = {late: reads} if reads else {}
        pace.heard(RoundRecord(turn, drafted, accepted, gained, 0.0, took, budgets=budgets, read=read))
        if turn >= 100:
            spent, plain = spent + took, plain + curve.of(len(drafting) + reads)
            sent += sum(drafted.values())
        left = {text: count - gained.get(text, 0) for text, count in left.items()}
        turn += 1
    assert sent, "the others go on drafting"
    assert spent < 1.05 * plain


@pytest.mark.parametrize("texts", [1, 2])
def test_a_copy_that_was_bad_is_tried_again_beside_a_lookup_that_costs_nothing(texts: int) -> None:
    chance, moment = random.Random(1), Moment()
    cost = Price({1: 0.015, 4: 0.016, 8: 0.02, 16: 0.033, 32: 0.063})
    copy = Paced("copy", Budget(24, 24), True, (0.7,), PassCost(cost, moment), 8.0)
    pace = AutoPace([copy, Paced("lookup", Budget(24, 24), True, (0.02,))], PassCost(ZEN4, moment))
    left, drafts = dict.fromkeys(range(texts), 100_000), 0
    for turn in range(1200):
        budgets = pace.choose(list(left), left)
        at = next((at for each in budgets.values() for at, budget in enumerate(each) if budget.rows), 0)
        drafted = {text: each[at].rows for text, each in budgets.items()}
        rate = (0.97 if turn > 300 else 0.05) if at == 0 else 0.02
        accepted = {text: _accepted(count, rate, chance) for text, count in drafted.items()}
        alive = [sum(count > done for count in drafted.values()) for done in range(max(drafted.values()))]
        works: dict[int, tuple[Work, ...]] = {}
        if at == 0:
            passes = [Work("copy", 1, turn + done / 100, cost.of(rows), 1, passes=1) for done, rows in enumerate(alive)]
            works = {text: tuple(passes[:count]) for text, count in drafted.items() if count}
        drafting = sum(cost.of(rows) for rows in alive) if at == 0 else 0.0
        gained = {text: count + 1 for text, count in accepted.items()}
        seconds = ZEN4.of(texts + sum(drafted.values()))
        pace.heard(RoundRecord(turn, drafted, accepted, gained, drafting, seconds, work=works, budgets=budgets))
        drafts += turn > 800 and at == 0 and max(drafted.values()) > 2
    assert drafts > 200


def test_nothing_is_tried_that_would_leave_a_text_behind() -> None:
    moment = Moment()
    copy = Paced("mxfp4", Budget(24, 24, 2), True, (0.9,), PassCost(AMX, moment), ends=True)
    pace = AutoPace([copy, Paced("lookup", Budget(24, 24), True, (0.0,))], PassCost(AMX, moment))
    left, spent, made = dict.fromkeys(range(16), 200), 0.0, 0
    for turn in range(200):
        budgets = pace.choose(list(left), left)
        made += any(each[0].rows for each in budgets.values())
        drafted = {text: 4 * bool(each[0].rows) for text, each in budgets.items()}
        took = 0.4 if any(drafted.values()) else 0.0  # four passes of the copy, as dear as the model's
        spent += took + AMX.of(16 + sum(drafted.values()))
        gained = dict.fromkeys(left, 1)
        pace.heard(RoundRecord(turn, drafted, dict.fromkeys(left, 0), gained, took, AMX.of(16), budgets=budgets))
    assert spent < 1.03 * 200 * AMX.of(16)
    assert made < 4


@pytest.mark.parametrize("reading", [True, False])
def test_nothing_is_tried_while_a_prompt_is_read(reading: bool) -> None:
    """From such a round nothing would be learned: its pass is not the price of one that only checks."""
    moment = Moment()
    copy = Paced("copy", Budget(24, 24), True, (0.1,), PassCost(Price({1: 0.01, 2: 0.011}), moment))
    check = PassCost(AMX, moment)
    check.heard(1, AMX.of(1))
    pace = AutoPace([copy, Paced("lookup", Budget(24, 24), True, (0.0,))], check)
    pace._seconds = 1000.0  # of earlier rounds, of which some may be spent on trials
    left, tried = dict.fromkeys(range(3), 1000), 0
    for turn in range(200):
        budgets = pace.choose([0, 1], left)
        drafted = {text: min(1, sum(each.rows for each in its)) for text, its in budgets.items()}
        tried += any(drafted.values())
        gained = dict.fromkeys((0, 1) if reading else left, 1)
        read = {2: 8} if reading else {}
        pace.heard(RoundRecord(turn, drafted, {0: 0, 1: 0}, gained, 0.0, AMX.of(8), budgets=budgets, read=read))
    assert bool(tried) != reading

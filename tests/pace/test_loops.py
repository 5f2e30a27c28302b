"""One pace for several loops in threads of their own: what each remembers of its rounds is its own."""

from __future__ import annotations

import threading

from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import Moment, PassCost
from foretoken.pace.levels import Paced
from foretoken.pace.loops import Loops
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

PRICE = Price({1: 0.06, 8: 0.064, 16: 0.072, 32: 0.09, 64: 0.13, 128: 0.22})  # seconds of a pass


def pace(**more: object) -> AutoPace:
    level = Paced("lookup", Budget(16, 16), True, (0.5,))
    return AutoPace([level], PassCost(PRICE, Moment()), **more)  # type: ignore[arg-type]


def test_a_loop_that_asks_while_another_is_answered_waits() -> None:
    chosen: dict[int, object] = {}

    def kind(sequence: int) -> int:
        if sequence == 0:  # while the first loop is being answered, the second one asks
            other.start()
            other.join(0.2)
        return 0

    shared = pace(kind=kind)
    other = threading.Thread(target=lambda: chosen.update(shared.choose([1], {1: 40})))
    chosen.update(shared.choose([0], {0: 40}))
    other.join(10)
    assert sorted(chosen) == [0, 1]


def test_what_loops_remember_of_their_rounds_is_not_mixed() -> None:
    shared = pace()
    for _ in range(40):
        for sequence in (0, 1):  # the second one reads its prompt all the time
            shared.choose([0] if sequence == 0 else [], {sequence: 500})
        budget = (Budget(4, 4),)
        shared.heard(RoundRecord(0, {0: 4}, {0: 4}, {0: 5}, 0.0, PRICE.of(5), budgets={0: budget}))
        shared.heard(RoundRecord(0, {}, {}, {}, 0.0, PRICE.of(64), read={1: 64}))
    shared.choose([0], {0: 500})
    assert shared._loop.reads == 0
    assert shared._loop.left == {0: 500}
    assert not shared._loop.sharing.reading
    shared.choose([], {1: 500})
    assert shared._loop.sharing.reading


def test_a_loop_is_known_by_any_of_its_sequences() -> None:
    loops = Loops()
    first = loops.of([1, 2])
    second = loops.of([7])
    assert first is not second
    assert loops.of([2, 3]) is first
    assert loops.of([3]) is first
    assert loops.of([8, 7]) is second
    assert loops.of([]) is second, "the last one"
    for sequence in range(1000, 2000):
        loops.of([sequence])
    assert loops.of([1]) is not first, "loops that have ended are forgotten"
    many = range(5000, 6000)
    assert loops.of(many) is loops.of(many), "however many texts a loop has"

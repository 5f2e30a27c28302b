"""Plans are arithmetic: they stay within the bound, read no more than they must, and say what would do."""

from __future__ import annotations

import pytest

from foretoken.errors import SettingError
from foretoken.offload.plan import Needs, fit, reading, spread

KIB = 1024
LAYERS = 10


def needs(substitute: int = 0, fixed: int = 100) -> Needs:
    """Layers of 20, 60 and 40 KiB."""
    parts = (20 * KIB, 60 * KIB, 40 * KIB) * LAYERS
    return Needs(parts, parts, (substitute * KIB,) * LAYERS, {"the process": fixed * KIB})


@pytest.mark.parametrize("substitute", [0, 30])
@pytest.mark.parametrize("bound", range(600, 1500, 50))
def test_a_plan_stays_within_the_bound_and_reads_no_more_than_it_must(bound: int, substitute: int) -> None:
    plan = fit(needs(substitute), bound * KIB)
    assert plan.total <= bound * KIB
    assert plan.total == sum(plan.memory.values())
    assert sorted([*plan.streamed, *plan.resident]) == list(range(LAYERS))
    assert plan.bytes_a_pass == 120 * KIB * len(plan.streamed)
    if not plan.streamed:
        assert plan.buffer == 0
        return
    assert plan.buffer >= 60 * KIB, "the largest part fits"
    if substitute and len(plan.streamed) == 1:  # with one less none is read, and then all layers have substitutes
        assert bound < 100 + (120 + substitute) * LAYERS
        return
    one_less = bound * KIB - (100 + 120 * (len(plan.resident) + 1) + substitute * (len(plan.streamed) - 1)) * KIB
    assert one_less < 180 * KIB, "with one more layer in memory, the disk would have to wait"


def test_everything_stays_if_it_fits() -> None:
    plan = fit(needs(), 1300 * KIB)
    assert (plan.streamed, plan.buffer, plan.parts, plan.bytes_a_pass) == ((), 0, (), 0)
    assert plan.memory == {"the process": 100 * KIB, "layers that stay": 1200 * KIB}


def test_if_nothing_is_read_there_must_be_room_for_the_substitutes_of_all_layers() -> None:
    plan = fit(needs(30), 1600 * KIB)
    assert plan.streamed == ()
    assert plan.memory == {"the process": 100 * KIB, "layers that stay": 1200 * KIB, "substitutes": 300 * KIB}
    assert fit(needs(30), 1600 * KIB - 1).streamed


def test_a_bound_that_cannot_work_is_refused_with_the_least_that_can() -> None:
    for substitute, least in ((0, 160), (30, 460)):
        plan = fit(needs(substitute), least * KIB)
        assert len(plan.streamed) == LAYERS
        assert plan.buffer == 60 * KIB
        with pytest.raises(SettingError, match=f"needs {least * KIB / 1e6:.1f} MB at least"):
            fit(needs(substitute), least * KIB - 1)
    with pytest.raises(SettingError, match=r'memory is 8 bytes \(a number alone is in bytes; write "8GiB"\)'):
        fit(needs(), 8)


def test_layers_to_read_are_spread_evenly() -> None:
    assert spread(10, 10) == tuple(range(10))
    assert spread(0, 10) == ()
    assert spread(5, 10) == (1, 3, 5, 7, 9)
    assert spread(3, 10) == (3, 6, 9)
    assert all(len(spread(count, 7)) == count for count in range(8))


def test_layers_may_be_read_though_there_is_memory() -> None:
    plan = reading(needs(30), (4, 9))
    assert plan.parts == (12, 13, 14, 27, 28, 29)
    assert plan.buffer == 180 * KIB
    assert plan.memory["substitutes of the others"] == 60 * KIB
    assert reading(needs(), ()).buffer == 0

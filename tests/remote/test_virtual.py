"""A clock that plays clients, networks and a host, beside arithmetic done by hand."""

from __future__ import annotations

import random

import pytest

from foretoken.remote.network import PROFILES, Lane, Profile
from foretoken.remote.virtual import Step, play

STEP = Step(drafting=0.01, rows=4, tokens=3, sent=100, received=60)
STILL = PROFILES["lan"]


def checking(rows: int) -> float:
    return 0.02 + 0.001 * rows


def test_one_client_without_a_network_takes_the_sum() -> None:
    done = play([[STEP] * 10], STILL, checking, handling=0.002)
    assert done.seconds == pytest.approx(10 * (0.01 + 0.002 + 0.024))
    assert (done.tokens, done.passes) == (30, 10)
    assert done.tokens_per_second == pytest.approx(30 / done.seconds)


def test_delay_and_rate_come_on_top() -> None:
    done = play([[STEP] * 10], Profile(0.005, rate=10_000), checking)
    assert done.seconds == pytest.approx(10 * (0.01 + 0.024 + 0.01 + 160 / 10_000))


def test_the_host_drafts_without_the_network() -> None:
    done = play([[STEP] * 10], PROFILES["4g"], checking, at_host=True)
    assert done.seconds == pytest.approx(10 * (0.01 + 0.024))
    several = play([[STEP] * 10] * 3, PROFILES["4g"], checking, at_host=True)
    assert several.seconds == pytest.approx(10 * (3 * 0.01 + checking(12))), "one draft after the other, one pass"
    assert several.passes == 10


def test_clients_share_passes_and_wait_for_the_one_under_way() -> None:
    both = play([[STEP] * 10] * 2, STILL, checking)
    assert both.passes == 10, "drafts that come at one time share a pass"
    assert both.seconds == pytest.approx(10 * (0.01 + checking(8)))
    late = STEP._replace(drafting=0.02)  # it comes while the first pass runs, which ends at 0.034
    apart = play([[STEP], [late]], STILL, checking)
    assert (apart.passes, apart.seconds) == (2, pytest.approx(0.034 + 0.024))


def test_texts_of_unequal_length_and_none() -> None:
    done = play([[STEP] * 2, [], [STEP] * 5], STILL, checking)
    assert done.tokens == 21
    assert done.passes == 5
    assert play([], STILL, checking) == (0.0, 0, 0)


def test_the_same_rounds_take_the_same_time_and_other_draws_another() -> None:
    texts = [[STEP] * 20] * 3
    first, again, other = (play(texts, PROFILES["4g"], checking, seed=seed) for seed in (0, 0, 7))
    assert first == again != other


def test_delays_are_of_a_normal_distribution_cut_at_zero() -> None:
    its, chance = PROFILES["4g"], random.Random(1)
    drawn = [its.delay + max(0.0, chance.gauss(its.mean, its.deviation)) for _ in range(20_000)]
    quiet = Profile(its.delay, its.mean, its.deviation)
    done = play([[STEP] * 4000], quiet, checking)
    assert done.seconds / 4000 == pytest.approx(0.034 + 2 * sum(drawn) / len(drawn), rel=0.02)


def test_a_message_of_several_segments_and_a_lost_one() -> None:
    assert Lane(Profile(rate=1000), 0).message(5.0, 3000) == pytest.approx(8.0)
    assert Lane(Profile(0.01, loss=1.0), 0).message(0.0, 100) == pytest.approx(0.21), "the sender gives up waiting"
    assert Lane(STILL, 0).message(3.0, 0) == 3.0

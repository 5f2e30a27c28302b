"""What is said of a measurement follows from its samples: by hand, on numbers that can be checked with a pencil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretoken.bench.runs import Run, summarise
from foretoken.bench.samples import Sample
from foretoken.bench.statistics import first_difference, median_interval, rounded
from foretoken.errors import ContractError


def sample(draft: str, prompt: str, seconds: float, *, repeat: int = 0, **more: Any) -> Sample:
    """11 tokens of one turn, the first with the prompt, which took a second: plainly, or in 4 passes with a draft. A
    pass reads 1000 bytes of the target's weights, or 250 of the draft's."""
    usual: dict[str, Any] = {
        "tokens": (tuple(range(11)),),
        "decoded": 10,
        "prefill_seconds": 1.0,
        "passes": 10,
        "drafts": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "accepted_per_position": (),
        "promise": "exact",
        "cost": {"target": {"flops": 20_000, "weight_bytes": 10_000, "cache_bytes": 100}},
    }
    if draft != "none":
        usual |= {"passes": 4, "drafts": 4, "draft_tokens": 12, "accepted_tokens": 6, "accepted_per_position": (4, 2)}
        usual["levels"] = {"copy": {"passes": 12, "seconds": seconds / 4, "draft_tokens": 12, "accepted_tokens": 6}}
        usual["cost"] = {
            "target": {"flops": 32_000, "weight_bytes": 4000, "cache_bytes": 40},
            "copy": {"flops": 24_000, "weight_bytes": 3000, "cache_bytes": 130},
        }
    return Sample(
        draft=draft, temperature=0.0, prompt=prompt, repeat=repeat, decode_seconds=seconds, **{**usual, **more}
    )


def run_of(*samples: Sample, draft: str = "copy") -> Run:
    run = summarise(samples, draft, 0.0)
    assert run is not None
    return run


def test_speeds_are_medians_over_prompts_and_the_speed_up_is_that_of_pairs() -> None:
    run = run_of(
        *(sample("none", prompt, 10.0) for prompt in "abc"),
        sample("copy", "a", 5.0),
        sample("copy", "b", 2.0),
        sample("copy", "c", 20.0),
    )
    assert run.prompts == 3
    assert run.tokens == 33
    assert run.tokens_per_second == 2.0  # of 2, 5 and 0.5
    assert run.tokens_per_second_with_prefill == pytest.approx(11 / 6)
    assert run.speedup == 2.0  # of 2, 5 and 0.5
    assert run.speedup_of_total == pytest.approx(30 / 27)
    assert run.speedup_with_prefill == pytest.approx(33 / 30)
    assert run.speedup_interval[0] == pytest.approx(0.5)
    assert run.speedup_interval[1] == pytest.approx(5.0)


def test_repeats_are_paired_so_that_a_slow_minute_counts_for_both() -> None:
    slow = [sample("none", "a", 30.0, repeat=1), sample("copy", "a", 10.0, repeat=1)]
    fast = [sample("none", "a", 3.0, repeat=0), sample("copy", "a", 1.0, repeat=0)]
    run = run_of(*slow, *fast)
    assert run.speedup == 3.0
    assert run.speedup_interval == (3.0, 3.0)
    assert run.speedup_of_total == 3.0
    assert run.speedup_with_prefill == pytest.approx((31 / 11 + 4 / 2) / 2)
    assert run.tokens == 11  # repeats say the same once more


def test_all_prompts_together_are_compared_a_repeat_at_a_time() -> None:
    plain = [sample("none", prompt, seconds, repeat=r) for r, seconds in enumerate((10.0, 30.0)) for prompt in "ab"]
    drafted = [
        *(sample("copy", prompt, 5.0, repeat=0) for prompt in "ab"),
        sample("copy", "a", 15.0, repeat=1),
        sample("copy", "b", 5.0, repeat=1),
    ]
    assert run_of(*plain, *drafted).speedup_of_total == pytest.approx((2.0 + 3.0) / 2)


def test_each_prompt_has_the_bytes_of_its_own_passes() -> None:
    good = sample("copy", "a", 1.0, bandwidth=10_000.0)
    plainly = sample("none", "b", 10.0).cost
    poor = sample("copy", "b", 4.0, bandwidth=10_000.0, passes=10, levels={}, cost=plainly)
    run = run_of(*(sample("none", prompt, 10.0) for prompt in "ab"), good, poor)
    assert run.bytes_per_token == (7000 + 10_000) / 20
    assert run.share_of_ceiling == pytest.approx((0.7 + 0.25) / 2)


def test_a_text_that_ended_early_is_not_fast() -> None:
    short = sample("copy", "a", 2.0, tokens=((0, 1, 2),), decoded=2)
    run = run_of(sample("none", "a", 10.0), short)
    assert run.speedup == 1.0
    assert run.speedup_of_total == 1.0
    assert not run.identical


def test_acceptance_bytes_and_the_ceiling() -> None:
    run = run_of(sample("none", "a", 10.0), sample("copy", "a", 5.0, bandwidth=2000.0))
    assert run.mean_acceptance_length == 2.5
    assert run.draft_acceptance_rate == 0.5
    assert run.accepted_per_position == (4, 2)
    assert run.bytes_per_token == (4 * 1000 + 12 * 250) / 10
    assert run.flops_per_token == (32_000 + 24_000) / 10
    assert run.cache_bytes_per_token == (40 + 130) / 10
    assert run.share_of_ceiling == pytest.approx(2.0 * 700 / 2000)  # two a second, of 700 bytes each
    (level,) = run.levels
    assert level == {"name": "copy", "passes": 12, "draft_tokens": 12, "accepted_tokens": 6, "time_share": 0.25}
    plain = run_of(sample("none", "a", 10.0), draft="none")
    assert (plain.speedup, plain.mean_acceptance_length, plain.bytes_per_token) == (1.0, 1.0, 1000.0)
    assert plain.share_of_ceiling is None


def test_a_token_that_differs_is_told_with_its_place() -> None:
    other = (0, 1, 2, 77, *range(4, 11))
    run = run_of(sample("none", "a", 1.0), sample("copy", "a", 1.0, tokens=(other,), repeat=0))
    assert not run.identical
    assert run.first_difference == {
        "prompt": "a",
        "repeat": 0,
        "turn": 0,
        "position": 3,
        "token": 77,
        "plain_token": 3,
    }


@pytest.mark.parametrize(("own", "token", "plain"), [(tuple(range(9)), None, 9), (tuple(range(12)), 11, None)])
def test_a_text_that_ends_elsewhere_differs(own: tuple[int, ...], token: int | None, plain: int | None) -> None:
    run = run_of(sample("none", "a", 1.0), sample("copy", "a", 1.0, tokens=(own,)))
    assert run.first_difference is not None
    found = (run.first_difference["position"], run.first_difference["token"], run.first_difference["plain_token"])
    assert found == (min(len(own), 11), token, plain)


def test_plain_decoding_that_does_not_repeat_itself_is_told_too() -> None:
    changed = replace(sample("none", "a", 1.0, repeat=1), tokens=((5,) * 11,))
    run = run_of(sample("none", "a", 1.0), changed, draft="none")
    assert not run.identical
    assert run.first_difference is not None
    assert run.first_difference["repeat"] == 1


def test_without_a_second_token_there_is_no_speed() -> None:
    ends: dict[str, Any] = {"tokens": ((1,),), "decoded": 0, "passes": 0, "cost": {}}
    at_once = sample("none", "a", 0.0, **ends)
    assert summarise([at_once], "none", 0.0) is None
    run = run_of(at_once, sample("none", "b", 10.0), draft="none")  # one that ends at once has no speed, others have
    assert run.prompts == 1


@pytest.mark.parametrize("count", [6, 10, 25])
def test_an_interval_holds_the_median_about_as_often_as_it_says(count: int) -> None:
    chance = np.random.default_rng(count)
    intervals = [median_interval(list(chance.normal(0.0, 1.0, count))) for _ in range(200)]
    held = sum(low <= 0 <= high for low, high in intervals) / 200
    assert 0.89 < held < 1.0


def test_an_interval_narrows_with_more_values_and_is_the_same_again() -> None:
    values = np.random.default_rng(3).normal(2.0, 0.5, 200)
    low, high = median_interval(list(values))
    few_low, few_high = median_interval(list(values[:8]))
    assert low < float(np.median(values)) < high
    assert high - low < few_high - few_low
    assert median_interval(list(values)) == (low, high)


def test_of_a_few_values_it_is_their_range() -> None:
    assert median_interval([1.5]) == (1.5, 1.5)
    assert median_interval([3, 1, 2, 9, 5]) == (1.0, 9.0)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_an_interval_of_nothing_is_refused(values: list[float]) -> None:
    with pytest.raises(ContractError, match="expected finite numbers"):
        median_interval(values)


def test_where_texts_part_and_what_numbers_mean() -> None:
    assert first_difference((1, 2, 3), [1, 2, 3]) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert rounded({"a": [1.23456789, 2], "b": (0.000123456789,)}) == {"a": [1.2346, 2], "b": [0.00012346]}

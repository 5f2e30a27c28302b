"""Measuring a server: what is counted between tokens, and a small measurement from beginning to end."""

from __future__ import annotations

import argparse

import pytest

pytest.importorskip("fastapi")

from foretoken.bench.serving import Heard, _of_tokens, _spread, measure, served
from foretoken.errors import InputError, SettingError


def test_each_token_has_its_share_of_the_time_since_the_event_before() -> None:
    heard = Heard(10.0, events=[(10.5, 1), (10.6, 1), (11.0, 4), (12.0, 2)])
    assert heard.first == pytest.approx(0.5)
    assert _of_tokens(heard.gaps(10.0, 13.0)) == pytest.approx([0.1, *[0.1] * 4, *[0.5] * 2])
    assert _of_tokens(heard.gaps(10.7, 10.9)) == pytest.approx([0.1] * 4)  # the wait reaches over the whole span
    ((seconds, tokens),) = heard.gaps(11.1, 11.5)
    assert (seconds, tokens) == (pytest.approx(1.0), 2)


def test_a_spread_is_in_milliseconds() -> None:
    found = _spread([0.01] * 99 + [0.04])
    assert (found["count"], found["median_ms"], found["p99_ms"], found["p99_times_median"]) == (100, 10.0, 40.0, 4.0)
    assert _spread([]) == {"count": 0}


def asked(**more: object) -> argparse.Namespace:
    usual = {"model": "stdlib-1m", "suite": "heldout-20", "max_new_tokens": 8, "draft": "lookup", "repeats": 1}
    usual |= {"at_once": [1, 3], "prompt_tokens": 64, "decoding": 1500, "lead": 0.05, "beside": None, "device": "cpu"}
    return argparse.Namespace(**{**usual, **more})


@pytest.mark.prove
def test_a_measurement_compares_drafts_with_plain_decoding_and_a_newcomer_with_itself() -> None:
    record = measure(asked())
    assert [row["at_once"] for row in record["load"]] == [1, 3]
    assert all(row["texts_with_other_tokens"] == 0 and row["tokens_per_second"] > 0 for row in record["load"])
    newcomer = record["newcomer"]
    assert newcomer["first_token_beside_seconds"] > 0
    assert newcomer["others_between_tokens"]["count"] > newcomer["others_between_tokens_while_it_is_read"]["count"] > 0


@pytest.mark.prove
def test_another_server_is_under_the_same_load_in_turn() -> None:
    with served("stdlib-1m", "none") as other:
        record = measure(asked(beside=[f"other=http://{other.place}"], at_once=[2], prompt_tokens=0))
    (row,) = record["load"]
    assert row["beside"]["other"]["tokens_per_second"] > 0
    assert len(row["beside"]["other"]["ours_times_by_repeat"]) == 1
    assert record["newcomer"] is None


@pytest.mark.parametrize(
    "spec", ["http://127.0.0.1:80", "other=", "other=http://127.0.0.1", "plain=http://127.0.0.1:80"]
)
def test_another_server_needs_a_name_and_an_address(spec: str) -> None:
    with pytest.raises(SettingError, match="NAME=URL"):
        measure(asked(beside=[spec]))


@pytest.mark.prove
def test_another_server_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9 does not answer"):
        measure(asked(beside=["other=http://127.0.0.1:9"]))


@pytest.mark.prove
def test_a_server_that_does_not_begin_says_why() -> None:
    with pytest.raises(SettingError, match="the server did not begin"):
        measure(asked(draft="nothing-like-this"))

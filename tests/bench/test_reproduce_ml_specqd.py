"""ML-SpecQD measured again: the paper's ways to decode, equation (1), and acceptance by prompt."""

from __future__ import annotations

from statistics import geometric_mean, mean
from typing import Any

import pytest

from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.ml_specqd import OURS, PAPER, speedup
from foretoken.bench.reproduce.ml_specqd_reported import COPY, LADDER, REPORTED, SMALL
from foretoken.bench.reproduce.papers import REFERENCE
from foretoken.bench.reproduce.running import Reproduction, reproduce
from tests.tiny import one_thread

__all__ = ["one_thread"]

PARTS = [name for name in PAPER.parts if name != "figure7"]  # the products need a gigabyte, and an idle machine


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    pytest.importorskip("matplotlib")
    return reproduce(Asked("ml-specqd", "embedded", only=PARTS, out=tmp_path_factory.mktemp("reproduction")))


def rows(done: Reproduction, table: str, **labels: Any) -> list[dict[str, Any]]:
    return [row for row in done.record["tables"][table]["rows"] if labels.items() <= row.items()]


def test_every_part_is_made_and_no_token_differs(done: Reproduction) -> None:
    assert list(done.record["tables"]) == PARTS
    assert done.record["missing"] == ["figure7"]
    assert done.record["differing_tokens"] == 0
    assert done.record["promise"] == "exact"
    assert [picture.stem.rpartition("-")[2] for picture in done.pictures] == [
        "figure2",
        "figure3",
        "figure5",
        "figure6",
    ]


@pytest.mark.parametrize(("table", "its"), [("table1", REPORTED[0]), ("table2", REPORTED[1])])
def test_the_papers_speed_ups_stand_above_those_of_the_stand_in(done: Reproduction, table: str, its: Any) -> None:
    reported = {row["draft"]: row["speed-up, geometric mean"] for row in rows(done, table, model=its.model)}
    assert {name: each["paper"] for name, each in reported.items()} == {REFERENCE.name: 1.0, **its.speedups}
    assert {each["ours"] for each in reported.values()} == {None}
    ours = {row["draft"]: row for row in rows(done, table, model="stdlib-7m")}
    assert list(ours) == [REFERENCE.name, SMALL, COPY, LADDER, *OURS]
    small = f"stdlib-1m:tokens=8:{its.small_options}"
    (asked,) = (m for m in done.record["measurements"] if [SMALL, small, True] in m["methods"])
    copy = "mxfp4:tokens=8:confidence=0.4:own-cache:inputs=int8"
    assert [COPY, copy, True] in asked["methods"]
    assert [LADDER, f"{copy},stdlib-1m:tokens=8:{its.last_options}", True] in asked["methods"]
    lines = [each for each in done.record["generations"] if each["measurement"] == asked["measurement"]]
    seconds = {(each["method"], each["prompt"]): each["decode_seconds"] for each in lines}
    ratios = [seconds[REFERENCE.name, prompt] / its for (method, prompt), its in seconds.items() if method == COPY]
    assert ours[COPY]["speed-up, geometric mean"]["ours"] == pytest.approx(geometric_mean(ratios), rel=1e-3)
    rounds = [each["rounds"] for each in lines if each["method"] == COPY]
    shares = [sum(accepted for _, accepted, _ in its) / sum(drafted for drafted, *_ in its) for its in rounds]
    assert 0 < ours[COPY]["accepted, %"]["ours"] == pytest.approx(100 * mean(shares), rel=1e-2)


def test_int8_products_are_compared_where_the_paper_does_and_for_the_stand_ins(done: Reproduction) -> None:
    table = rows(done, "table3")
    assert [(row["int8"]["paper"], row["fp32"]["paper"]) for row in table[:2]] == [
        (2.03, 1.90),
        (2.72, 2.16),
    ]
    assert len(table) == 2 + 2 * 2
    for row in table[2:]:
        ratio = row["int8"]["ours"] / row["fp32"]["ours"]
        assert row["int8 over it"]["ours"] == pytest.approx(ratio, rel=0.01)


def test_equation_1_is_the_papers() -> None:
    assert speedup(0.0, 4, 4) == 0.5
    assert speedup(1.0, 4, 4) == 2.5
    assert speedup(0.6, 8, 14) == pytest.approx((0.6 + 1 / 8) / (1 / 8 + 1 / 14))


def test_the_prediction_is_of_what_was_drafted_and_accepted(done: Reproduction) -> None:
    for row in rows(done, "prediction"):
        drafted, accepted, c = (
            row[name]["ours"] for name in ("drafted a check", "accepted a check", "a draft's pass, in plain passes")
        )
        assert 0 < accepted <= drafted <= 8
        assert row["predicted"]["ours"] == pytest.approx((accepted + 1) / (1 + drafted * c), rel=0.02)
        assert 0 < row["time in checks, %"]["ours"] + row["in drafts, %"]["ours"] <= 100
    assert {row["draft"] for row in rows(done, "prediction")} == {SMALL, COPY}


def test_acceptance_is_shown_by_prompt_and_as_the_mean(done: Reproduction) -> None:
    its = rows(done, "figure5", draft=COPY)
    assert [row["prompt"] for row in its] == ["mean", "1", "2", "mean"]
    paper, first, second, both = (row["accepted, %"] for row in its)
    assert (paper["paper"], paper["ours"]) == (71.2, None)
    assert both["ours"] == pytest.approx((first["ours"] + second["ours"]) / 2, rel=1e-2)

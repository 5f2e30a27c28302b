"""SubSpec measured again: the paper's own numbers, and its tables and figures with ours beside them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.papers import REFERENCE
from foretoken.bench.reproduce.running import Reproduction, reproduce
from foretoken.bench.reproduce.subspec import PAPER
from foretoken.bench.reproduce.subspec_measured import (
    BEST,
    FILLED,
    LOOKUP,
    NOISE,
    READING,
    SHARED,
    SHARPER,
    SMALL,
    WITHOUT_CACHE,
)
from foretoken.bench.reproduce.subspec_reported import ABLATION, PLAIN, SUBSPEC, TABLE_1, TABLE_6
from foretoken.errors import SettingError
from tests.tiny import one_thread

__all__ = ["one_thread"]

# where the paper contradicts itself: target, draft, temperature, and which figure
DOUBTFUL = {
    ("Llama-3.1 8B", "EAGLE-2", 0.6, "length"),
    ("DeepSeek-R1-Distill Qwen 7B", "none", 0.0, "mean"),
    ("DeepSeek-R1-Distill Qwen 7B", "SubSpec", 0.0, "length"),
    ("DeepSeek-R1-Distill Qwen 32B", "SubSpec", 0.0, "speed-up"),
}


def test_the_papers_means_follow_from_its_cells_but_where_it_contradicts_itself() -> None:
    plain = {line.target: line.mean for line in (*TABLE_1, *TABLE_6) if line.draft == PLAIN}
    found = set()
    for line in (*TABLE_1, *TABLE_6):
        follows = {
            "mean": line.mean == pytest.approx(mean(line.tokens_per_second), abs=0.02),
            "length": line.mean_length == pytest.approx(mean(line.lengths), abs=0.02),
            "speed-up": line.speedup == pytest.approx(line.mean / plain[line.target], rel=0.015),
        }
        found |= {(line.target, line.draft, line.temperature, what) for what, right in follows.items() if not right}
    assert found == DOUBTFUL
    assert len(TABLE_1) == 30


PARTS = list(PAPER.parts)
STREAMED = "stdlib-7m, layers read from the disk"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("reproduction")
    return reproduce(Asked("subspec", "embedded", out=folder, work=folder / "work"))


def rows(done: Reproduction, table: str, **labels: Any) -> list[dict[str, Any]]:
    return [row for row in done.record["tables"][table]["rows"] if labels.items() <= row.items()]


def lines(done: Reproduction, method: str, **asked: Any) -> list[dict[str, Any]]:
    """The generations of a method in the first measurement that was asked for so."""
    its = next(
        each
        for each in done.record["measurements"]
        if asked.items() <= each.items() and method in [name for name, *_ in each["methods"]]
    )
    every = done.record["generations"]
    return [line for line in every if (line["measurement"], line["method"]) == (its["measurement"], method)]


@pytest.mark.prove
def test_every_part_is_made_and_no_token_differs(done: Reproduction) -> None:
    assert list(done.record["tables"]) == PARTS
    assert done.record["differing_tokens"] == 0
    assert done.record["promise"] == "exact"
    drawn = [picture.stem.rpartition("-")[2] for picture in done.pictures]
    assert drawn == ["figure1", "figure1b", "figure2", "figure5", "figure6"]
    assert set(done.record["models"]) == {STREAMED, "stdlib-7m", rows(done, "table7")[1]["ours on"]}


@pytest.mark.prove
def test_the_papers_lines_stand_above_those_of_the_stand_in(done: Reproduction) -> None:
    table = rows(done, "table1", temperature=0.6)
    assert [row["draft"] for row in table if row["target"] == "Llama-3.1 8B"] == [
        "none",
        "EAGLE-2",
        "Llama-3.2 1B",
        "SubSpec",
    ]
    (its,) = rows(done, "table1", temperature=0.0, target="Qwen2.5 7B", draft="SubSpec")
    assert its["length"] == {"paper": 29.11, "ours": None}
    assert "33.48 (34.77)" in its["the paper, by data"]
    ours = [row["draft"] for row in table if row["target"] == STREAMED]
    assert ours == [REFERENCE.name, "stdlib-1m", SUBSPEC, "ours, with all of table 2"]


@pytest.mark.prove
def test_eagle_2_is_trained_and_measured(done: Reproduction) -> None:
    table = rows(done, "eagle2", temperature=0.6)
    assert [row["target"] for row in table] == ["Llama-3.1 8B", "Qwen2.5 7B", STREAMED]
    assert table[0]["length"] == {"paper": 9.96, "ours": None}
    own = lines(done, "EAGLE-2", temperature=0.6)
    assert table[2]["tokens/s"]["ours"] > 0
    assert sum(len(line["rounds"]) for line in own) > 20
    assert all(drafted for line in own for drafted, *_ in line["rounds"][:-1])


@pytest.mark.prove
def test_the_length_is_the_papers_with_the_prompts_pass_and_ours_without(done: Reproduction) -> None:
    (row,) = rows(done, "table1", temperature=0.0, target=STREAMED, draft=SUBSPEC)
    own = lines(done, SUBSPEC, model=STREAMED, temperature=0.0)
    assert [line["tokens"] for line in own] == [24, 24]
    expected = mean(24 / (len(line["rounds"]) + 1) for line in own)
    assert row["length"]["ours"] == pytest.approx(expected, rel=1e-3)
    assert row["tokens a check"]["ours"] == pytest.approx(46 / sum(len(line["rounds"]) for line in own), rel=1e-3)
    assert row["tokens a check"]["ours"] > 2


@pytest.mark.prove
def test_the_ablation_adds_one_part_at_a_time(done: Reproduction) -> None:
    its = next(each for each in done.record["measurements"] if SHARED in [name for name, *_ in each["methods"]])
    asked = {name: more for name, *more in its["methods"]}
    assert its["quantisers"] == {"subspec": "direct", "int4": "direct"}
    deep = "subspec:k=6:depth=48:sharpness="
    assert asked[WITHOUT_CACHE] == ["int4:own-cache:own-head:k=6:depth=48:sharpness=1.0", True, 0, True]
    assert asked[SHARED] == [f"{deep}1.0", True, 0, True]
    assert asked[SHARPER] == [f"{deep}0.2", True, 0, True]
    assert asked[SUBSPEC] == [f"{deep}0.2", True, 1, False]
    assert asked[FILLED] == [f"{deep}0.2", True, None, False]
    assert asked[LOOKUP] == ["subspec:pauses,lookup", True]
    assert asked[READING] == ["subspec,lookup", True]
    greedy = rows(done, "table2", temperature=0.0)
    assert [row["method"] for row in greedy] == [*ABLATION, FILLED, BEST, LOOKUP, READING]
    assert greedy[-1]["tokens/s"]["ours"] > 0
    assert all(row["tokens/s"]["ours"] > 0 for row in greedy[:-1])
    assert greedy[2]["tokens a check"] != greedy[3]["tokens a check"] == greedy[4]["tokens a check"]
    sampled = rows(done, "table2", temperature=0.6)
    assert NOISE in [row["method"] for row in sampled]


@pytest.mark.prove
def test_a_draft_that_knows_the_noise_accepts_more(done: Reproduction) -> None:
    (without,), (known,) = (rows(done, "table2", temperature=0.6, method=name) for name in (BEST, NOISE))
    assert known["tokens a check"]["ours"] > without["tokens a check"]["ours"]


@pytest.mark.prove
def test_acceptance_is_measured_in_memory(done: Reproduction) -> None:
    table = rows(done, "table5", **{"ours on": "stdlib-7m"})
    assert len(table) == 4 * 6
    itself = rows(done, "table5", draft="the model itself", **{"temperature of the draft": 0.2})[0]
    assert itself["length"]["paper"] == 34.5
    assert itself["tokens a check"]["ours"] == 23, "sharpened enough, the model knows all that it will say"
    assert rows(done, "table5", draft="EAGLE-2")[0]["length"] == {"paper": 3.42, "ours": None}


@pytest.mark.prove
def test_a_target_in_8_bits_is_read_and_has_its_own_text(done: Reproduction) -> None:
    _, low = rows(done, "table7")
    assert low["ours on"].endswith("-int8, layers read from the disk")
    assert low["tokens a check"]["ours"] > 1
    assert done.record["models"][low["ours on"]]["model_bytes"] < done.record["models"]["stdlib-7m"]["model_bytes"]


@pytest.mark.prove
def test_five_runs_have_a_deviation(done: Reproduction) -> None:
    paper, ours = rows(done, "deviation")
    speeds = [
        1 / (line["decode_seconds"] / line["decoded"])
        for run in range(1, 6)
        for line in lines(done, f"{SUBSPEC}, run {run}")
    ]
    assert len(speeds) == 5
    assert paper["deviation, tokens/s"] == {"paper": 0.101, "ours": pytest.approx(stdev(speeds), rel=1e-2)}
    assert ours["deviation, tokens/s"]["paper"] is None


@pytest.mark.prove
def test_the_equations_hold(done: Reproduction) -> None:
    for row in rows(done, "equations"):
        its = {name: value["ours"] for name, value in row.items() if isinstance(value, dict)}
        spent = its["D"] * its["t draft, s"] + its["gamma"] * its["t target, s"]
        assert its["(2), s a token"] == pytest.approx(spent / its["tau"], rel=1e-3)
        assert its["(3), times plain"] == pytest.approx(its["tau"] * its["t target, s"] / spent, rel=1e-3)
        assert 1 <= its["D"] <= 48
    assert [row["draft"] for row in rows(done, "equations")] == [SMALL, SUBSPEC]


@pytest.mark.prove
def test_the_time_of_a_round_is_divided(done: Reproduction) -> None:
    for row in rows(done, "figure6"):
        assert row["drafting, %"]["ours"] + row["checking, %"]["ours"] == pytest.approx(100, rel=1e-3)
    one, tree, ahead = rows(done, "figure5")
    assert (one["rows"], tree["rows"], ahead["rows"]) == (1, 289, 289)
    assert all(row["waiting, s"]["ours"] > 0 and row["computing, s"]["ours"] > 0 for row in (one, tree, ahead))
    assert [(row["draft"], row["depth"]) for row in rows(done, "figure2")] == [
        (draft, depth) for draft in (SMALL, SUBSPEC) for depth in (4, 16)
    ]


def test_a_scale_that_the_paper_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no scale 'geometry' of subspec; expected one of embedded, rehearsal"):
        reproduce(Asked("subspec", "geometry", out=tmp_path))

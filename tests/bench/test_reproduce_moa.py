"""Mixture of Attentions measured again: the paper's own numbers, and its tables with ours beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import foretoken
from foretoken.bench.heads import ROWS
from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.moa import PAPER
from foretoken.bench.reproduce.moa_heads import BESIDE, HEADS, in_as_many_layers, padding
from foretoken.bench.reproduce.moa_reported import (
    CUTS,
    DATA,
    EAGLE,
    OFFICIAL,
    OURS,
    OURS_1,
    SMALL,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLE_5,
    TABLE_9,
    VANILLA,
)
from foretoken.bench.reproduce.papers import REFERENCE
from foretoken.bench.reproduce.running import Reproduction, reproduce
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.errors import SettingError
from foretoken.trained.files import expected_shapes, write_trained
from tests.published_mixture import random_published_mixture, write_published_mixture

pytest.importorskip("websockets")

DOUBTFUL = {("table 2", EAGLE)}  # where a printed mean does not follow from its cells


def test_the_papers_means_follow_from_its_cells_but_where_it_contradicts_itself() -> None:
    found = set()
    for table, its in (("table 2", TABLE_2), ("table 9", TABLE_9)):
        for name, row in its.items():
            assert row.length == pytest.approx(mean(row.lengths), abs=0.02)
            if row.speedup != pytest.approx(mean(row.speedups), abs=0.015):
                found.add((table, name))
    assert found == DOUBTFUL


def rows(done: Reproduction, table: str, **labels: Any) -> list[dict[str, Any]]:
    return [row for row in done.record["tables"][table]["rows"] if labels.items() <= row.items()]


def test_messages_are_counted_in_the_messages_that_are_sent(tmp_path: Path) -> None:
    done = reproduce(Asked("moa", "embedded", ("table6", "table7", "table9"), out=tmp_path, work=tmp_path / "work"))
    (one, plain, eagle) = (rows(done, "table7", model="Llama3-8B", draft=name)[0] for name in (OURS_1, SMALL, EAGLE))
    assert one["to the host, 62 tokens"] == {"paper": 248, "ours": 253}
    sent = "to the client, 4 accepted"
    assert one[sent]["paper"] == 4 * (3 + 4096) == eagle[sent]["paper"]
    assert one[sent]["ours"] == one[sent]["paper"] + one["of ours, scales and headers"]["ours"]
    assert plain[sent] == {"paper": 12, "ours": 18}
    assert eagle[sent]["ours"] == eagle[sent]["paper"] + 4 * 2 + 6
    assert len(rows(done, "table6")) == 7
    assert len(rows(done, "table9")) == 3


@pytest.mark.parametrize("row", [*dict.fromkeys([*HEADS.values(), *BESIDE.values(), "eagle2-wide", "eagle2-deep"])])
def test_every_drafter_can_be_padded_for_the_rehearsal(row: str, tmp_path: Path) -> None:
    subject = in_as_many_layers(PAPER.subjects["rehearsal"][0])
    small = EMBEDDED[subject.checkpoint]
    target = read_config(small)
    config = ROWS[row].config(target, fingerprint(small, target))
    tensors = {name: torch.zeros(shape) for name, shape in expected_shapes(config).items()}
    write_trained(tmp_path / row, config, tensors)
    its = padding(subject, tmp_path / row, tmp_path / "rehearsal", tmp_path / "padded").config("")
    large, own = (each.intermediate_size for each in (its, config))  # type: ignore[attr-defined]
    assert large > 5 * own, "as wide as beside the large model"
    if row.startswith("eagle2"):
        usual = {"eagle2": 1.0, "eagle2-wide": 2.25, "eagle2-deep": 1 / 3}[row]
        assert large == pytest.approx(usual * 8192, rel=0.4 if row == "eagle2-deep" else 0.05)


def test_the_published_drafter_drafts_at_scale_paper(tmp_path: Path) -> None:
    models, data = tmp_path / "models", []
    shutil.copytree(EMBEDDED["stdlib-1m"], models / "Meta-Llama-3-8B-Instruct")
    target = foretoken.load("stdlib-1m", draft="none", threads=1).target
    its = random_published_mixture(target)
    write_published_mixture(models / "MOASpec-Llama-3-8B-Instruct", *its, target.config.vocab_size, "vllm")
    for name in ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dailymail", "natural-questions"):
        row = {"prompt": ["def add("], "question": "def add(", "instruction": "x", "input": "", "article": "import "}
        row |= {"prompt": "def add(", "task_id": "one"} if name == "humaneval" else {"category": "math"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        data.append(f"{name}={tmp_path / name}.jsonl")
    parts = ("table2", "table3", "table4", "table5", "table8", "table10", "a5")
    more: dict[str, Any] = {"models": [models], "data": data, "num_prompts": 1, "max_new_tokens": 12}
    done = reproduce(Asked("moa", "paper", parts, out=tmp_path / "out", **more))
    assert done.record["differing_tokens"] == 0
    lines = rows(done, "table2")
    assert [line["data"] for line in lines] == [name for name in DATA for _ in TABLE_2]
    for line in lines:
        at = DATA.index(line["data"])
        assert line["length"]["paper"] == TABLE_2[line["draft"]].lengths[at]
        assert (line["length"]["ours"] is not None) == (line["draft"] == OURS)
    assert {row["draft"] for row in rows(done, "table10") if row["tokens/s"]["ours"]} == {OURS, "Vanilla"}
    ran = {row["draft"]: row["texts"]["ours"] for row in rows(done, "table8")}
    assert {name for name, count in ran.items() if count} == {OURS, VANILLA}
    for table, names in (("table3", TABLE_3), ("table4", TABLE_4), ("table5", TABLE_5)):
        assert {row["draft"] for row in rows(done, table)} == {*names}
    assert [row["draft"] for row in rows(done, "a5")] == [REFERENCE.name, OURS]
    with pytest.raises(SettingError, match="figure 4 is measured at the scales"):
        reproduce(Asked("moa", "paper", ("figure4",), out=tmp_path / "other", **more))
    assert str(tmp_path) not in done.place.read_text(encoding="utf-8"), "no folder of this machine"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    folder = tmp_path_factory.mktemp("reproduction")
    return reproduce(Asked("moa", "embedded", out=folder, work=folder / "work"))


@pytest.mark.prove
def test_every_part_is_made_and_no_token_differs(done: Reproduction) -> None:
    assert list(done.record["tables"]) == list(PAPER.parts)
    assert done.record["differing_tokens"] == 0
    assert done.record["promise"] == "exact"
    assert str(done.place.parent) not in done.place.read_text(encoding="utf-8"), "no folder of this machine"


@pytest.mark.prove
def test_every_row_of_the_paper_has_one_of_ours(done: Reproduction) -> None:
    assert [row["draft"] for row in rows(done, "table2")] == [*TABLE_2, *BESIDE]
    measured = [row for row in rows(done, "table2") if row["draft"] != OFFICIAL]
    assert all(row["tokens a check"]["ours"] >= 1 for row in measured)
    assert [row["draft"] for row in rows(done, "table5")] == list(TABLE_5)
    assert sum(row["tokens/s"]["ours"] is None for row in rows(done, "table5")) == 3, "those without LSA"
    far = rows(done, "table3", network="4g")
    assert [row["draft"] for row in far] == ["no draft", "lookup", *HEADS, *BESIDE, OFFICIAL]
    sent = {row["draft"]: row["bytes to the client, a token"]["ours"] for row in far[:-1]}
    assert sent[SMALL] < sent[OURS] < sent[OURS_1]
    assert [row["cut behind"] for row in rows(done, "table4", draft=OURS)] == list(CUTS)
    for row in rows(done, "table8"):
        expected = None if row["draft"] == OFFICIAL else 0
        assert row["tokens that differ from plain decoding's"]["ours"] == expected, row["draft"]
    costs = {row["draft"]: row["times plain"]["ours"] for row in rows(done, "a5")}
    assert costs[REFERENCE.name] == 1 < costs[OURS]

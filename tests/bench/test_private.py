"""What a client answers to a question of which a part stays with it, measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import private

pytest.importorskip("websockets")


def test_a_draft_that_is_the_model_itself_answers_as_well_and_nothing_of_the_question_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "record.json"
    told = ["--model", "stdlib-7m", "--draft", "stdlib-7m", "--draft", "moa:tokens=4", "--num-prompts", "4"]
    monkeypatch.setattr(sys, "argv", ["private", *told, "--max-new-tokens", "24", "--out", str(out)])
    private.main()
    itself, trained = json.loads(out.read_text(encoding="utf-8"))["rows"]
    own = itself["log_probability_of_the_models_own"]
    assert itself["log_probability"] == own < 0, "the draft is the model"
    assert itself["bytes_beside_the_safe_part"] == trained["bytes_beside_the_safe_part"] == 0
    assert trained["log_probability"] < own
    assert itself["right_from_the_beginning"] == 24 > trained["right_from_the_beginning"]
    assert itself["right_from_the_beginning_without_the_safe_part"] < 24, "the safe part is of use"

"""`pace="replay:FILE"`: the choices of a recorded generation come again, and the text stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.errors import SettingError
from foretoken.protocol.types import Budget
from foretoken.results.completion import Completion
from foretoken.transcript.record import record
from foretoken.transcript.verify import verify

PROMPT = "def add(self, other):\n    return"
HOW: dict[str, Any] = {"max_new_tokens": 64, "temperature": 0.8, "seed": 4, "ignore_eos": True}


def budgets(done: Completion) -> list[tuple[Budget, ...]]:
    assert done.rounds is not None
    return [each for told in done.rounds for each in told.budgets.values()]


def varied(path: Path, draft: str) -> None:
    """Give a record choices that no pace makes: another number of tokens in each round."""
    told = json.loads(path.read_text(encoding="utf-8"))
    levels = len(told["pace"]["levels"])
    told["pace"]["rounds"] = [[[n % 4, n % 4]] + [[1 + n % 3, 1 + n % 3]] * (levels - 1) for n in range(30)]
    path.write_text(json.dumps(told), encoding="utf-8")


@pytest.mark.parametrize("draft", ["lookup", "int4,lookup", "int4:k=2,lookup"])
def test_the_choices_of_a_record_come_again(draft: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    model = foretoken.load("stdlib-7m", draft=draft)
    model.generate(PROMPT, **HOW)  # so that the recorded generation has a pace that has learned
    told = record(path, model, PROMPT, **HOW)
    again = foretoken.load("stdlib-7m", draft=draft, pace=f"replay:{path}")
    for _ in range(2):
        done = again.generate(PROMPT, **HOW, keep_rounds=True)
        assert budgets(done) == budgets(told)
        assert (done.tokens, done.origins) == (told.tokens, told.origins)
    assert verify(path).verified


def test_each_sequence_goes_through_the_rounds_and_then_decodes_plainly(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record(path, foretoken.load("stdlib-7m", draft="int4,lookup"), PROMPT, max_new_tokens=2)
    varied(path, "int4,lookup")
    model = foretoken.load("stdlib-7m", draft="int4,lookup", pace=f"replay:{path}")
    plain = foretoken.load("stdlib-7m", draft="none")
    done = model.generate(PROMPT, max_new_tokens=120, ignore_eos=True, keep_rounds=True)
    assert done.tokens == plain.generate(PROMPT, max_new_tokens=120, ignore_eos=True).tokens
    asked = [each[0].rows for each in budgets(done)]
    assert asked[:30] == [n % 4 for n in range(30)]
    assert set(asked[30:]) == {0}
    assert done.stats.accepted_tokens, "nothing was drafted and accepted"
    prompts = [PROMPT, "import os\n", "class Stack:\n"]
    both = [each.generate_many(prompts, max_new_tokens=40, keep_rounds=True) for each in (model, plain)]
    assert [done.tokens for done in both[0]] == [done.tokens for done in both[1]]
    for sequence in {s for told in both[0][0].rounds or () for s in told.budgets}:
        mine = [told.budgets[sequence][0].rows for told in both[0][0].rounds or () if sequence in told.budgets]
        assert len(mine) > 6
        assert mine[:6] == [n % 4 for n in range(6)], "sequences share a place in the choices"


DAMAGED = [{"levels": ["lookup"]}, {"levels": "lookup", "rounds": [[[1, 1]] * 6]}, {"levels": ["lookup"], "rounds": 3}]
DAMAGED += [
    {"levels": ["lookup"], "rounds": [[each]]}
    for each in (1, [1], [1, -1], ["1", 1], [1, 1, 1], [99999, 1], [1, 1, 1, "x", []], [1, 1, 1, 0.0, [None]])
]


@pytest.mark.parametrize("pace", DAMAGED)
def test_damaged_choices_are_refused(pace: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"pace": pace}), encoding="utf-8")
    with pytest.raises(SettingError, match=r"but the file's choices are damaged; name a file that `foretoken gen"):
        foretoken.load("stdlib-7m", draft="lookup", pace=f"replay:{path}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "but the file cannot be read"),
        ("{", "but the file is not JSON"),
        ("[]", "but the file holds no choices of a pace"),
        ('{"pace": null}', "but the file holds no choices of a pace"),
        (
            '{"pace": {"levels": ["int4", "lookup"], "rounds": []}}',
            "for the draft 'int4,lookup', and this draft is 'loo",
        ),
    ],
)
def test_other_files_are_refused_before_weights_are_read(
    content: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object, **more: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("foretoken.api.build.read_checkpoint", refused)
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingError, match=message):
        foretoken.load("stdlib-7m", draft="lookup", pace=f"replay:{path}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pace": "replay:"}, "pace is 'replay:'; did you mean 'replay:FILE'"),
        ({"pace": "replay:x", "rule": "rejection"}, "and rule is 'rejection'; leave one of them out"),
        ({"pace": "replay:x", "num_speculative_tokens": 3}, "num_speculative_tokens was given; leave one of them out"),
    ],
)
def test_what_contradicts_it_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        foretoken.load("stdlib-7m", draft="lookup", **settings)

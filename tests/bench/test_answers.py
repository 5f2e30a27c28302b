"""Answers: the fields that Spec-Bench's scripts read are there, of the kind they count on, and add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.bench.answers import answer_line, differing, write_answers
from foretoken.bench.suites import Prompt
from foretoken.errors import InputError, SettingError
from foretoken.results.completion import Completion

TALK = Prompt("81", ("def add(a, b):\n    return", "def sub("), "coding", chat=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replies(draft: str, tokens: int = 24) -> list[Completion]:
    model = foretoken.load("stdlib-1m", draft=draft, pace="fixed")
    settings = {"max_new_tokens": tokens, "keep_rounds": True, "ignore_eos": True}
    return [model.generate(turn, **settings) for turn in TALK.turns if isinstance(turn, str)]


@pytest.fixture(scope="module")
def plain() -> list[Completion]:
    return replies("none")


@pytest.fixture(scope="module")
def drafted() -> list[Completion]:
    return replies("lookup")


def choice_of(completions: list[Completion]) -> dict[str, Any]:
    (choice,) = json.loads(json.dumps(answer_line(TALK, completions, "m")))["choices"]
    assert isinstance(choice, dict)
    return choice


def test_the_fields_that_are_read_are_there(plain: list[Completion]) -> None:
    line = json.loads(json.dumps(answer_line(TALK, plain, "stdlib-1m-none")))
    assert (line["question_id"], line["category"], line["model_id"]) == (81, "coding", "stdlib-1m-none")
    assert isinstance(line["answer_id"], str)
    assert isinstance(line["tstamp"], float)
    (choice,) = line["choices"]
    assert choice["index"] == 0
    assert choice["turns"] == [completion.text for completion in plain]
    assert choice["new_tokens"] == [24, 24]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in choice["wall_time"])


def test_plain_decoding_has_a_token_a_step(plain: list[Completion]) -> None:
    choice = choice_of(plain)
    assert choice["accept_lengths"] == [1] * 48
    assert choice["decoding_steps"] == [24, 24]


def test_the_steps_of_a_draft_add_up_to_its_tokens(plain: list[Completion], drafted: list[Completion]) -> None:
    choice = choice_of(drafted)
    lengths, steps = choice["accept_lengths"], choice["decoding_steps"]
    assert sum(lengths[: steps[0]]) == sum(lengths[steps[0] :]) == 24
    assert steps == [completion.stats.passes + 1 for completion in drafted]  # and the pass over the prompt
    assert max(lengths) > 1, "nothing was accepted, so nothing is shown"
    assert choice["turns"] == choice_of(plain)["turns"]
    times = [c.stats.prefill_seconds + c.stats.decode_seconds for c in drafted]
    assert choice["wall_time"] == pytest.approx(times)


def test_a_question_is_called_what_its_file_calls_it(plain: list[Completion]) -> None:
    for given, told in (("81", 81), ("0", 0), ("007", "007"), ("line 4", "line 4"), ("²", "²")):
        line = answer_line(Prompt(given, ("x",)), plain[:1], "m")
        assert line["question_id"] == told


def test_what_does_not_tell_its_steps_is_refused(plain: list[Completion]) -> None:
    with pytest.raises(InputError, match="question 81 has 2 turns, and 1 answers came"):
        answer_line(TALK, plain[:1], "m")
    model = foretoken.load("stdlib-1m", draft="none")
    silent = model.generate("x", max_new_tokens=2)
    with pytest.raises(SettingError, match="an answer for Spec-Bench tells its steps; generate it with keep_rounds=Tr"):
        answer_line(Prompt("1", ("x",)), [silent], "m")
    shared = model.completions("x", n=2, temperature=1.0, seed=1, max_new_tokens=2, keep_rounds=True)
    with pytest.raises(SettingError, match="2 completions shared their passes; generate answers one by one, with n=1"):
        answer_line(Prompt("1", ("x",)), shared[:1], "m")


def test_answers_are_lines_and_written_whole(plain: list[Completion], tmp_path: Path) -> None:
    lines = [answer_line(Prompt(name, TALK.turns), plain, "m") for name in ("1", "2")]
    path = tmp_path / "answers.jsonl"
    write_answers(path, lines)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == lines
    with pytest.raises(TypeError):
        write_answers(path, [*lines, {"text": object()}])
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    write_answers(tmp_path / "made for it" / "answers.jsonl", lines)
    assert (tmp_path / "made for it" / "answers.jsonl").read_bytes() == path.read_bytes()
    with pytest.raises(InputError, match="the file of answers cannot be written to"):
        write_answers(path / "answers.jsonl", lines)


def test_answers_that_are_missing_differ(plain: list[Completion], drafted: list[Completion]) -> None:
    ours = [answer_line(Prompt(name, TALK.turns), drafted, "m") for name in ("1", "2")]
    theirs = [answer_line(Prompt(name, TALK.turns), plain, "m") for name in ("2", "1")]
    assert differing(ours, theirs) == []
    assert differing(ours, theirs[:1]) == [1]
    assert differing(ours[:1], theirs) == [2]
    theirs[0]["choices"][0]["turns"][1] += "x"
    assert differing(ours, theirs) == [2]
    with pytest.raises(InputError, match="3 answers came for 2 questions; expected one each"):
        differing([*ours, ours[0]], theirs)

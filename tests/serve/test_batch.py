"""Many lines without a server: the answers of plain decoding and of the server, each line once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api.model import Model
from foretoken.errors import SettingError
from foretoken.loop.engine import Engine
from foretoken.protocol.types import Verdict
from foretoken.settings.generate import GenerateSettings
from tests.serve.served import MODEL, PROMPT, SAMPLED, serving, truth
from tests.talks import talking

pytest.importorskip("pydantic")

from foretoken.serve import batch as batching
from foretoken.serve.batch import Batch, Counts
from foretoken.serve.batch_lines import Index, Line, Lines, Usual
from foretoken.serve.batch_output import File, as_line
from tests.serve.lines import CHAT, COMPLETIONS, RESPONSES, asks, lines_of


class Collected:
    """Answers in memory, by custom_id."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        assert line.endswith("\n")
        assert line.count("\n") == 1
        self.lines.append(line)

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def by_name(self) -> dict[str, Any]:
        found = [json.loads(line) for line in self.lines]
        assert all(list(each) == ["id", "custom_id", "response", "error"] and each["error"] is None for each in found)
        assert len({each["id"] for each in found}) == len(found)
        return {each["custom_id"]: each["response"] for each in found}


def answered(lines: Lines, model: Model | None = None, at_once: int = 3) -> tuple[dict[str, Any], Batch]:
    index, output = Index(lines), Collected()
    running = Batch(index.left(lines), output, Counts(len(index)))
    running.run(model or foretoken.load(MODEL, draft="lookup"), (MODEL,), at_once, lambda: None)
    found = output.by_name
    assert len(found) == len(output.lines)
    return found, running


def text_of(response: Any) -> str:
    assert response["status_code"] == 200, response
    text: str = response["body"]["choices"][0]["text"]
    return text


# -- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_plain_decoding_whoever_shares_the_pass() -> None:
    prompts = [PROMPT, "def add(", "class Stack:\n    def push(self", "import os\nimport", "x = 1\nx = 1\nx ="]
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": 20 + 7 * at, **more}
        for at, prompt in enumerate(prompts)
        for more in ({}, SAMPLED)
    ]
    lines = lines_of(*(asks(str(at), body) for at, body in enumerate(bodies)))
    model = foretoken.load(MODEL, draft="mxfp4,lookup", pace="fixed")  # drafts whatever the clock says
    found, running = answered(lines, model, at_once=4)
    for at, body in enumerate(bodies):
        settings = {name: value for name, value in body.items() if name not in ("prompt", "max_tokens")}
        assert text_of(found[str(at)]) == truth(body["prompt"], max_new_tokens=body["max_tokens"], **settings).text
    counts = running.counts
    assert (counts.answered, counts.refused, counts.failed) == (10, 0, 0)
    assert counts.tokens == sum(each["body"]["usage"]["completion_tokens"] for each in found.values())
    assert 0 < counts.accepted <= counts.drafted


VOLATILE = ("id", "created", "created_at", "metrics", "timings", "foretoken")


def steady(body: Any) -> Any:
    """An answer without names, times and what the others in the pass decide."""
    if isinstance(body, list):
        return [steady(each) for each in body]
    if isinstance(body, dict):
        return {name: steady(value) for name, value in body.items() if name not in VOLATILE}
    return body


def test_answers_are_those_of_the_server(tmp_path: Path) -> None:
    folder = talking(tmp_path / "model")
    message = [{"role": "user", "content": "def add(a, b):"}]
    asked = [
        (COMPLETIONS, {"prompt": [PROMPT, "def add("], "max_tokens": 9, "n": 2, "logprobs": 2, **SAMPLED}),
        (COMPLETIONS, {"prompt": PROMPT, "max_tokens": 30, "stop": ["self"], "temperature": 0}),
        (CHAT, {"messages": message, "max_tokens": 12, "logprobs": True, "temperature": 0}),
        (CHAT, {"messages": message, "temperature": "hot"}),
        (RESPONSES, {"input": "def add(a, b):", "max_output_tokens": 12, "temperature": 0}),
        (RESPONSES, {"input": "x", "tools": [{}]}),
        (COMPLETIONS, {"prompt": PROMPT, "model": "gpt-4"}),
    ]
    model = foretoken.load(folder, draft="lookup")
    found, _ = answered(lines_of(*(asks(str(at), body, url) for at, (url, body) in enumerate(asked))), model)
    with serving(foretoken.load(folder, draft="lookup"), names=(MODEL,)) as served:
        for at, (url, body) in enumerate(asked):
            answer, its = served.ask(url, body), found[str(at)]
            assert its["status_code"] == answer.status == (400 if at in (3, 5) else 404 if at == 6 else 200)
            assert steady(its["body"]) == steady(answer.json)


def test_greedy_is_usual_and_options_hold_for_lines_that_say_nothing() -> None:
    found, _ = answered(lines_of({"prompt": PROMPT}))
    assert text_of(found["line-1"]) == truth().text
    usual = Usual.of(GenerateSettings(max_new_tokens=30, stop="self", **SAMPLED))
    found, _ = answered(lines_of({"prompt": PROMPT}, {"prompt": PROMPT, "seed": 6, "stop": None}, usual=usual))
    assert text_of(found["line-1"]) == truth(max_new_tokens=30, stop="self", **SAMPLED).text
    assert text_of(found["line-2"]) == truth(max_new_tokens=30, stop="self", **{**SAMPLED, "seed": 6}).text


# -- the file of answers --------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Lines:
    return lines_of(*(asks(name, {"prompt": "x"}) for name in "abcd"))


def entries(lines: Lines, **status: int) -> list[bytes]:
    by_name = {line.name: line for line in lines}
    return [
        as_line(by_name[name], "req_1", code, {"model": MODEL} if code == 200 else {"error": {}}).encode()
        for name, code in status.items()
    ]


def left(lines: Lines, place: Path) -> tuple[list[str], File]:
    index, file = Index(lines), File(place)
    kept = file.keep(index, "in.jsonl")
    kept.expect_model(MODEL)
    return [line.name for line in index.left(lines)], file


@pytest.mark.parametrize("torn", [b"", b"{", b'{"id": "batch_req_0123', b"\0" * 30, b"all"])
def test_whole_answers_are_kept_and_faults_of_the_machine_are_tried_again(
    lines: Lines, tmp_path: Path, torn: bytes
) -> None:
    a, b, c, d = entries(lines, a=200, b=500, c=400, d=200)
    place = tmp_path / "out.jsonl"
    torn = d[:-1] if torn == b"all" else torn
    place.write_bytes(a + b + c + torn)
    names, file = left(lines, place)
    assert names == ["b", "d"]
    assert place.read_bytes() == a + c
    file.write(d.decode())
    file.close()
    assert place.read_bytes() == a + c + d
    assert list(tmp_path.iterdir()) == [place]


def test_a_link_keeps_leading_to_the_answers(lines: Lines, tmp_path: Path) -> None:
    a, b = entries(lines, a=200, b=503)
    place = tmp_path / "there" / "out.jsonl"
    place.parent.mkdir()
    place.write_bytes(a + b)
    link = tmp_path / "link.jsonl"
    link.symlink_to(place)
    names, file = left(lines, link)
    file.close()
    assert names == ["b", "c", "d"]
    assert link.is_symlink()
    assert place.read_bytes() == a


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (b"my diary", r"line 1 of .*out\.jsonl is no answer that this command has written; name another file"),
        (b"{}\n", "line 1 of"),
        (b'{"id": "batch_req_abc", "custom_id": "a", "response": {"status_code": 200, "body": {}}}\n', "line 1 of"),
        (b"foreign", r"has an answer to 'z', which is no custom_id in in\.jsonl: it belongs to other requests"),
        (b"changed", "has an answer to 'a', and the request or the options have changed since"),
        (b"model", "has answers of other, and this model is stdlib-1m; name another file"),
    ],
)
def test_answers_to_something_else_are_refused_and_stay(
    lines: Lines, tmp_path: Path, there: bytes, message: str
) -> None:
    first = next(iter(lines))
    if there == b"foreign":
        there = as_line(replace(first, name="z"), "req_1", 200, {}).encode()
    elif there == b"changed":
        there = as_line(replace(first, mark=first.mark ^ 1), "req_1", 200, {}).encode()
    elif there == b"model":
        there = as_line(first, "req_1", 200, {"model": "other"}).encode()
    place = tmp_path / "out.jsonl"
    place.write_bytes(there)
    with pytest.raises(SettingError, match=message):
        left(lines, place)
    assert place.read_bytes() == there


def test_two_runs_do_not_write_one_file(lines: Lines, tmp_path: Path) -> None:
    place = tmp_path / "new" / "out.jsonl"
    _, file = left(lines, place)
    (fault,) = entries(lines, a=500)
    file.write(fault.decode())
    with pytest.raises(SettingError, match=r"another run is writing .*; wait for it, or name another file"):
        File(place)
    file.close()
    names, file = left(lines, place)  # another file has taken its place: that one is locked, too
    assert names == ["a", "b", "c", "d"]
    with pytest.raises(SettingError, match="another run is writing"):
        File(place)
    file.close()


# -- running --------------------------------------------------------------------------------------------------------


def test_lines_are_read_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(*({"prompt": f"x = {at}", "max_tokens": 1 + at % 5} for at in range(40)))
    index, output, most = Index(lines), Collected(), 0

    def counted() -> Iterator[Line]:
        nonlocal most
        for read, line in enumerate(index.left(lines)):
            most = max(most, read + 1 - len(output.lines))
            yield line

    model = foretoken.load(MODEL, draft="lookup")
    Batch(counted(), output, Counts(40)).run(model, (MODEL,), 3, lambda: None)
    assert len(output.by_name) == 40
    assert most == 6


def test_a_text_that_fails_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step

    def failing(self: Engine) -> list[Verdict]:
        verdicts = step(self)
        if any(live.request.max_new_tokens == 9 for live in self._live.values()):
            raise MemoryError("secrets of the inside")
        return verdicts

    monkeypatch.setattr(Engine, "step", failing)
    given = [{"prompt": PROMPT, "max_tokens": length} for length in (8, 9, 8)]
    found, running = answered(lines_of(*given), at_once=1)
    assert found["line-2"]["status_code"] == 500
    assert found["line-2"]["body"]["error"]["type"] == "server_error"
    assert text_of(found["line-1"]) == text_of(found["line-3"]) == truth(max_new_tokens=8).text
    counts = running.counts
    assert (counts.answered, counts.failed, running.error) == (2, 1, None)
    assert str(counts).startswith("2 of 3 lines done, 1 failed, ")


def test_a_machine_that_fails_for_good_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Engine) -> list[Verdict]:
        raise MemoryError

    monkeypatch.setattr(Engine, "step", broken)
    monkeypatch.setattr(batching, "_FAULTS", 5)
    found, running = answered(lines_of(*({"prompt": "x"} for _ in range(40))), at_once=2)
    assert running.error is not None
    assert running.error.startswith("5 lines in a row failed")
    assert 5 <= len(found) < 10


def test_a_text_without_its_host_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    completion = Model.completion

    def cut(self: Model, *args: Any) -> Any:
        return replace(completion(self, *args), finish_reason="disconnected")

    monkeypatch.setattr(Model, "completion", cut)
    found, running = answered(lines_of({"prompt": "x"}))
    assert found["line-1"]["status_code"] == 503
    assert "the host is gone" in found["line-1"]["body"]["error"]["message"]
    assert running.counts.failed == 1


def test_an_answer_that_cannot_be_written_ends_the_run() -> None:
    class Full(Collected):
        def write(self, line: str) -> None:
            raise OSError(28, "No space left on device")

    lines = lines_of(*({"prompt": "x"} for _ in range(9)))
    index = Index(lines)
    running = Batch(index.left(lines), Full(), Counts(9))
    with pytest.raises(OSError, match="No space left"):
        running.run(foretoken.load(MODEL, draft="lookup"), (MODEL,), 2, lambda: None)

"""Lines of a batch: how they are read, what is refused, and that each counts once."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from foretoken.errors import SettingError
from foretoken.settings.generate import GenerateSettings

pytest.importorskip("pydantic")

from foretoken.serve import batch_lines
from foretoken.serve.batch_lines import MOST, Index, Usual, read_line
from foretoken.serve.batch_output import as_line
from tests.serve.lines import CHAT, COMPLETIONS, RESPONSES, asks, lines_of


def test_lines_are_openais_or_plain() -> None:
    lines = list(
        lines_of(
            asks("a", {"prompt": "x"}),
            b"\xef\xbb\xbf" + json.dumps({"prompt": "y", "max_tokens": 3}).encode(),
            b"",
            {"custom_id": "\ud800 b", "messages": [{"role": "user", "content": "z"}]},
            {"input": "z"},
            usual=Usual(),
        )
    )
    assert [(each.number, each.name, each.url) for each in lines] == [
        (1, "a", COMPLETIONS),
        (2, "line-2", COMPLETIONS),
        (4, "\ud800 b", CHAT),
        (5, "line-5", RESPONSES),
    ]
    assert lines[1].body == {"prompt": "y", "max_tokens": 3}
    assert lines[2].body == {"messages": [{"role": "user", "content": "z"}], "max_completion_tokens": 128}
    assert json.loads(as_line(lines[2], "r", 200, {}))["custom_id"] == "\ud800 b"


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"nonsense", 400, "line 7 is not JSON (Expecting value"),
        (b'{"a": "\xff"}', 400, "line 7 is not JSON ('utf-8' codec"),
        (b"[" * 200_000, 400, "line 7 is not JSON ("),
        (b"[1, 2]", 400, "line 7 is [1, 2], expected a JSON object"),
        (b'{"x": 1}', 400, "line 7 has neither a url and a body, nor a prompt, nor messages"),
        (b'{"custom_id": 5, "prompt": "x"}', 400, "custom_id is 5, expected text"),
        (b'{"method": "GET", "url": "/v1/completions", "body": {}}', 400, "method is 'GET', expected POST"),
        (b'{"url": "/v1/embeddings", "body": {}}', 400, "url is '/v1/embeddings', expected one of /v1/completions,"),
        (b'{"url": "/v1/completions", "body": []}', 400, "body is [], expected a JSON object"),
        (None, 413, "line 7 is longer than 16 MiB; send less"),
    ],
    ids=str,
)
def test_a_line_that_asks_for_nothing_says_why(raw: bytes | None, status: int, message: str) -> None:
    line = read_line(7, raw, Usual())
    assert line.name == "line-7"
    assert line.error is not None
    assert line.error.status == status
    assert str(line.error).startswith(message)


def test_a_line_may_be_too_long_and_the_next_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST == 16 * 1024**2
    monkeypatch.setattr(batch_lines, "MOST", 100)
    long, short = list(lines_of({"prompt": "x" * 3_000_000}, {"prompt": "x" * 80}))
    assert (long.number, long.error is None, short.number, short.error) == (1, False, 2, None)


def test_what_a_line_leaves_out_is_as_the_options_say_and_what_it_says_wins() -> None:
    usual = Usual.of(
        GenerateSettings(
            max_new_tokens=7, temperature=0.5, top_k=3, repetition_penalty=1.2, seed=9, stop="x", json_schema={"a": 1}
        )
    )
    plain = usual.fill(CHAT, {"messages": [], "temperature": None, "stream": True})
    assert "stream" not in plain
    assert (plain["temperature"], plain["top_k"], plain["seed"], plain["stop"]) == (0.5, 3, 9, ["x"])
    assert plain["max_completion_tokens"] == 7
    assert plain["structured_outputs"] == {"json": '{"a": 1}'}
    given = {"temperature": 0, "seed": 1, "repeat_penalty": 1.1, "n_predict": 2, "stop": [], "response_format": {}}
    whole = usual.fill(COMPLETIONS, given)
    assert {name: whole[name] for name in given} == given
    assert not {"repetition_penalty", "max_tokens", "structured_outputs"} & whole.keys()
    assert whole["top_k"] == 3


@pytest.mark.parametrize("names", [["a", "b", "a"], [None, "c", "line-1"]])
def test_a_custom_id_that_comes_twice_is_refused_with_both_lines(names: Sequence[str | None]) -> None:
    given = [{"prompt": "x", **({} if name is None else {"custom_id": name})} for name in names]
    with pytest.raises(SettingError, match=r"lines 1 and 3 of in\.jsonl have the same custom_id \('(a|line-1)'\)"):
        Index(lines_of(*given))


def test_custom_ids_of_one_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "_hash_of", len)
    with pytest.raises(SettingError, match=r"lines 1 and 3 .* custom_ids of one hash \('aa', 'bb'\)"):
        Index(lines_of(*({"prompt": "x", "custom_id": name} for name in ("aa", "a", "bb"))))


def test_a_line_that_has_changed_meanwhile_ends_the_run() -> None:
    index = Index(lines_of({"prompt": "x"}, {"prompt": "y"}))
    with pytest.raises(SettingError, match="line 2 has changed since the batch began"):
        list(index.left(lines_of({"prompt": "x"}, {"prompt": "z"})))

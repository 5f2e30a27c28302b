"""What a host says of itself is checked before anything is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from foretoken.errors import RemoteError
from foretoken.remote.about import About
from foretoken.remote.files import hash_of, tokenizer_of

ABOUT = About("m", "i", 1024, 500, 100, 16, "exact", "native avx2", 2, "", (3,), {1: 0.5, 8: 0.6})


def test_what_is_said_is_read_again() -> None:
    assert About.read(json.loads(json.dumps(ABOUT.to_json()))) == ABOUT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 3),
        ("model", "m" * 81),
        ("promise", "perhaps"),
        ("threads", None),
        ("threads", True),
        ("vocab_size", 0),
        ("context_length", 1 << 40),
        ("end_tokens", "all"),
        ("end_tokens", [-1]),
        ("prices", [[1, float("nan")]]),
        ("prices", [[1, 10**400]]),
        ("prices", [[1, -1.0]]),
        ("prices", {"1": 1.0}),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RemoteError, match=f"the host says that its {name} is "):
        About.read({**ABOUT.to_json(), "end_tokens": [], name: value})


def test_what_is_printed_holds_no_commands_for_a_terminal() -> None:
    assert "\x1b" not in About.read({**ABOUT.to_json(), "end_tokens": [], "model": "\x1b[2J"}).model


@pytest.mark.parametrize("name", ["../../x", "", "0" * 31 + "g", "0" * 33])
def test_a_tokenizer_s_name_is_a_hash_and_no_path(name: str) -> None:
    with pytest.raises(RemoteError, match="by something else than a hash"):
        tokenizer_of(name, lambda: b"")


@pytest.mark.parametrize("data", [b"nonsense", b"", b"x\x9c" + b"0" * 20])
def test_files_that_are_none_are_refused(data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = hash_of(data) or "0" * 32
    with pytest.raises(RemoteError, match=r"cannot be read|another hash"):
        tokenizer_of(name, lambda: data)
    assert replace(ABOUT, tokenizer=name).tokenizer == name

"""`foretoken generate` and `demo`: what a user gets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import foretoken
from foretoken.cli.show import print_with_origins
from foretoken.loop.output import Piece
from tests.cli.conftest import Cli
from tests.talks import talking, written


def test_json_is_one_object_with_the_promised_keys(cli: Cli) -> None:
    ran = cli("generate", "def add(", "--max-new-tokens", 24, "--json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert list(result) == [
        "tokens",
        "text",
        "finish_reason",
        "stop_string",
        "seed",
        "prompt_tokens",
        "unverified",
        "promise",
        "draft",
        "arithmetic",
        "threads",
        "origins",
        "stats",
        "logprobs",
        "audit",
    ]
    assert list(result["stats"]) == [
        "passes",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "accepted_per_position",
        "tokens_per_second",
        "tokens_per_second_with_prefill",
        "plain_tokens_per_second",
        "prefill_seconds",
        "decode_seconds",
        "draft_seconds",
        "check_seconds",
        "levels",
        "cost",
    ]
    assert len(result["tokens"]) == len(result["origins"]) == 24
    assert (result["seed"], result["stop_string"], result["logprobs"], result["prompt_tokens"]) == (None, None, None, 3)
    assert (result["finish_reason"], result["promise"], result["draft"]) == ("length", "exact", "lookup")


def test_the_prompt_may_come_from_argument_file_or_stdin_and_the_text_is_the_same(cli: Cli, tmp_path: Path) -> None:
    text = "class Stack:\n    def push(self"
    file = tmp_path / "prompt.txt"
    file.write_text(text + "\n", encoding="utf-8")
    runs = [
        cli("generate", text, "--max-new-tokens", 8),
        cli("generate", "--prompt-file", file, "--max-new-tokens", 8),
        cli("generate", "--max-new-tokens", 8, stdin=(text + "\n").encode()),
    ]
    assert [ran.code for ran in runs] == [0, 0, 0]
    assert runs[0].out.strip()
    assert runs[0].out == runs[1].out == runs[2].out
    assert "8 tokens" in runs[0].err
    assert "promise: exact" in runs[0].err


def test_drafting_changes_nothing_but_the_way_there(cli: Cli) -> None:
    prompt = "for i in range(3):\n    print(i)\nfor i in range(3):"
    drafted = json.loads(cli("generate", prompt, "--json", "--max-new-tokens", 60, "--pace", "fixed").out)
    plain = json.loads(cli("generate", prompt, "--json", "--max-new-tokens", 60, "--draft", "none").out)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["text"] == plain["text"]
    assert drafted["stats"]["accepted_tokens"] > 0
    assert plain["stats"]["draft_tokens"] == 0
    assert plain["stats"]["mean_acceptance_length"] == 1


def test_without_a_cache_and_with_a_fractal_draft_the_text_is_the_same(cli: Cli) -> None:
    words = ("generate", "for i in range(3):\n    print(i)\nfor i", "--model", "stdlib-1m", "--max-new-tokens", 16)
    plain = cli(*words, "--draft", "none")
    for more in (("--draft", "fractal"), ("--no-cache",), ("--draft", "fractal:n=2:w=3:slots=fixed", "--no-cache")):
        ran = cli(*words, *more, "--audit", "--stats")
        assert (ran.code, ran.out) == (0, plain.out)
        assert "identical" in ran.err
        assert ("fractal" in ran.err) == ("--draft" in more)
    refused = cli(*words, "--no-cache=yes")
    assert refused.code == 2
    assert "no-cache" in refused.err


def test_a_generation_that_fills_the_context_says_so(cli: Cli) -> None:
    model = foretoken.load("stdlib-1m")
    prompt = "x = 1\n" * 508
    given = ("generate", prompt, "--model", "stdlib-1m", "--ignore-eos")
    assert 1 < model.context_length - len(model.tokens_of(prompt)) < 128
    full = cli(*given)
    assert f"ended by length (the context of {model.context_length} tokens is full); promise" in full.err
    as_json = cli(*given, "--json")
    assert json.loads(as_json.out)["finish_reason"] == "length"
    asked = cli(*given, "--max-new-tokens", 2)
    assert "ended by length; promise" in asked.err


def test_origins_are_coloured_and_explained(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    prompt = "x = 1\nx = 1\nx = 1\nx ="
    ran = cli("generate", prompt, "--max-new-tokens", 12, "--show-origins", "--pace", "fixed")
    assert ran.code == 0
    assert "\x1b[32m" in ran.out, "a looked-up token is green"
    assert "lookup" in ran.err
    assert "target" in ran.err
    plain = cli("generate", prompt, "--max-new-tokens", 12)
    assert "\x1b[" not in plain.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", ran.out) == plain.out, "colours change nothing else"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in cli("generate", prompt, "--max-new-tokens", 12, "--show-origins").out


def test_coloured_text_keeps_its_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_with_origins([Piece(1, "a\tb", "target"), Piece(2, "\tc [bold]", "lookup")])
    assert capsys.readouterr().out == "a\tb\x1b[32m\tc [bold]\x1b[0m\n"


def test_the_demo_says_identical(cli: Cli) -> None:
    ran = cli("demo")
    assert ran.code == 0
    assert ran.out.rstrip().endswith("identical: yes")
    assert "draft tokens accepted" in ran.out
    assert "nothing drafted" in ran.out


HINT = "-- the model has a chat template, and the prompt was given without it; --chat applies it\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "model")


@pytest.mark.parametrize("system", [None, "Speak Python."])
def test_chat_writes_the_prompt_as_the_template_has_it_and_can_be_proven(
    cli: Cli, folder: Path, tmp_path: Path, system: str | None
) -> None:
    path = tmp_path / "record.json"
    given = ("--chat", *(() if system is None else ("--system", system)))
    words = ("generate", "def add(a, b):", "--model", folder, "--max-new-tokens", 9)
    ran = cli(*words, *given, "--record", path, "--audit")
    before = [] if system is None else [{"role": "system", "content": system}]
    prompt = written([*before, {"role": "user", "content": "def add(a, b):"}])
    done = foretoken.load(folder).generate(prompt, max_new_tokens=9)
    assert (ran.code, ran.out.removesuffix("\n")) == (0, done.text.removesuffix("\n"))
    assert "audit: identical" in ran.err
    assert "--chat" not in ran.err
    assert json.loads(cli(*words, *given, "--json").out)["tokens"] == list(done.tokens)
    several = cli(*words, *given, "--json", "--n", 2, "--temperature", 1, "--seed", 3)
    assert [json.loads(line)["prompt_tokens"] for line in several.out.splitlines()] == [done.prompt_tokens] * 2
    for draft in ("none", "lookup"):
        assert cli("verify", path, "--draft", draft).out == "verified: 9 tokens and their logits, bit for bit\n"


def test_a_template_that_is_not_applied_is_told_once_and_quietly(cli: Cli, folder: Path) -> None:
    words = ("--model", folder, "--max-new-tokens", 3)
    assert cli("generate", "x = 1", *words).err.endswith(HINT)
    assert cli("generate", "x = 1", "--n", 2, "--temperature", 1, *words).err.count(HINT) == 1
    assert cli("generate", "x = 1", "--json", *words).err == ""
    assert HINT not in cli("generate", written([{"role": "user", "content": "x = 1"}]), *words).err
    assert HINT not in cli("generate", "x = 1", "--max-new-tokens", 3, "--model", "stdlib-1m").err


@pytest.mark.parametrize(
    ("template", "begins", "does_not"),
    [
        (
            "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}{% endfor %}",
            ["<|endoftext|>", " \n<|endoftext|>x", "user: x"],
            ["x", "", "user x", "<|end"],
        ),
        ("<|endoftext|>{% for m in messages %}[Q] {{ m.content }} [/Q]{% endfor %}", ["[Q] x"], ["Q", "[/Q]"]),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", [], ["x", ""]),
        ("{{ raise_exception('never') }}", [], ["x", "<|endoftext|>"]),
    ],
)
def test_what_begins_as_the_template_does_is_known(
    tmp_path: Path, template: str, begins: list[str], does_not: list[str]
) -> None:
    tokenizer = foretoken.load(talking(tmp_path / "model", template)).tokenizer
    assert tokenizer is not None
    assert [text for text in (*begins, *does_not) if tokenizer.begins_as_chat(text)] == begins


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("--chat",),
            "the model has no chat template, so it cannot read messages (--chat); give it text, or take",
        ),
        (("--system", "x"), "--system came without --chat, and only a chat template has a system message; give --chat"),
    ],
)
def test_a_chat_that_cannot_be_is_one_line_that_says_what_to_do(cli: Cli, given: tuple[str, ...], message: str) -> None:
    ran = cli("generate", "x", "--model", "stdlib-1m", *given)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err

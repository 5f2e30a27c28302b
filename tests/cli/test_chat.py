"""`foretoken chat`, through a pipe and on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api import build
from foretoken.api.model import Model
from foretoken.cli.show import as_json
from tests.cli.conftest import Cli
from tests.talks import talking, written
from tests.test_audit import Flips


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "model")


def test_lines_of_a_pipe_are_turns_and_the_output_is_the_replies(cli: Cli, folder: Path) -> None:
    said = ["def add(a, b):", "class Stack:", "é"]
    ran = cli("chat", "--model", folder, "--max-new-tokens", 12, stdin="\r\n\n".join(said).encode())
    assert ran.code == 0
    chat = foretoken.load(folder).chat()
    replies = []
    for text in said:
        for _ in (stream := chat.send(text, max_new_tokens=12)):
            pass
        replies.append(stream.completion.text)
    assert ran.out == "".join(reply if reply.endswith("\n") else f"{reply}\n" for reply in replies)
    assert ran.err == "-- cut off after 12 tokens; raise --max-new-tokens for more\n" * 3


def test_the_system_message_and_the_sampling_reach_the_model(cli: Cli, folder: Path) -> None:
    sampled = ("--temperature", 0.9, "--seed", 5, "--max-new-tokens", 9, "--stop", "\n")
    ran = cli("chat", "--model", folder, "--system", "Speak Python.", *sampled, stdin=b"import\n/stats")
    prompt = written([{"role": "system", "content": "Speak Python."}, {"role": "user", "content": "import"}])
    done = foretoken.load(folder).generate(prompt, temperature=0.9, seed=5, max_new_tokens=9, stop="\n")
    assert ran.out == f"{done.text}\n"
    assert "; seed 5\n" in ran.err
    assert f"-- the prompt had {done.prompt_tokens} tokens, 0 of them kept from earlier turns\n" in ran.err


def test_commands_are_obeyed_through_a_pipe_too(cli: Cli, folder: Path) -> None:
    lines = b"/stats\nx = 1\ny = 2\n/stats\n/reset\n/stats\nx = 1\n/stats\n/nonsense\n/help\n//x\n/exit\nnever said\n"
    ran = cli("chat", "--model", folder, "--max-new-tokens", 5, stdin=lines)
    assert ran.code == 0
    kept = [int(kept) for kept in re.findall(r"(\d+) of them kept", ran.err)]
    assert len(kept) == 2
    assert kept[0] > 5 > kept[1] == 0
    assert ran.err.count("-- there is no reply to tell of\n") == 2
    assert "-- a new conversation\n" in ran.err
    assert "-- there is no command '/nonsense'\n" in ran.err
    assert "-- /exit         end, as Ctrl-D, exit and quit do\n" in ran.err
    assert ran.err.count("cut off") == 4, "a line that begins with two slashes is sent, and nothing after /exit"


def test_a_plain_conversation_goes_on_with_the_text(cli: Cli) -> None:
    ran = cli(
        *("chat", "--plain", "--model", "stdlib-1m", "--max-new-tokens", 12, "--stop", "\n\n"),
        stdin=b"def add(a, b):\ndef sub(a, b):\n",
    )
    model = foretoken.load("stdlib-1m")
    text, shown = "", ""
    for said in ("def add(a, b):", "\ndef sub(a, b):"):
        text += said
        reply = model.generate(text, max_new_tokens=12, stop="\n\n").text
        text, shown = text + reply, f"{shown}{reply}\n"
    assert ran.out == shown


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        ((), b"hello", "stdlib-7m has no chat template: it was not taught to take turns; use --plain (plain=True)"),
        (("--plain", "--system", "x"), b"hello", "a plain conversation has no system message"),
        (("--plain",), b"\xff", "line 1 is not UTF-8 (byte 0); expected text"),
        (("--plain",), b"x " * 3000, "the model's context holds 2048 with what follows; shorten the prompt"),
        (("--plain", "--logit-bias", "99999=1"), b"x", "logit_bias names token 99999; the model has tokens 0 to 4095"),
        (("--plain", "--n", "2"), b"x", "No such option: --n"),
        (("--plain", "--regex", "("), b"x", "regex"),
        (("--plain", "--prompt-file", "/nowhere"), b"", "/nowhere cannot be read (No such file or directory); name a"),
        (("--plain", "--prompt-file", "/"), b"", "/ cannot be read (Is a directory); name a file of text"),
        (("--plain", "--record", "/dev/null/x"), b"", "/dev/null/x cannot hold the record (Not a directory)"),
        (("--plain", "--record", "/dev/null"), b"", "/dev/null is no ordinary file"),
        (("--audit", "--rule", "rejection", "--temperature", "1"), b"", "an audit needs tokens that come again"),
        (("--plain",), b"/system y", "a plain conversation has no system message"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    cli: Cli, args: tuple[str, ...], stdin: bytes, message: str
) -> None:
    ran = cli("chat", *args, stdin=stdin)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_context_that_is_full_is_told(cli: Cli) -> None:
    ran = cli("chat", "--plain", "--model", "stdlib-1m", "--ignore-eos", "--max-new-tokens", 300, stdin=b"x " * 1990)
    assert ran.code == 0
    assert ran.err == (
        "-- the context of 2048 tokens is full; send a shorter text, or begin a new conversation: /reset\n"
    )


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_an_object_a_reply_and_lines_may_come_from_a_file(cli: Cli, folder: Path, tmp_path: Path) -> None:
    said = ["def add(a, b):", "exit", "class Stack:\\"]  # words of a terminal are words like others in a file
    (file := tmp_path / "lines").write_text("\n".join(said), encoding="utf-8")
    ran = cli("chat", "--model", folder, "--max-new-tokens", 6, "--json", "--stats", "--prompt-file", file, stdin=b"no")
    assert ran.code == 0
    messages: list[dict[str, str]] = []
    model = foretoken.load(folder)
    for text, found in zip(said, objects(ran.out), strict=True):
        messages.append({"role": "user", "content": text})
        done = model.generate(messages, max_new_tokens=6)
        assert (found["tokens"], found["text"], found["finish_reason"]) == (list(done.tokens), done.text, "length")
        assert list(found) == list(as_json(done))
        messages.append({"role": "assistant", "content": done.text})
    assert ran.err.count("all decoding") == 3
    assert "-- " not in ran.err


def test_replies_are_audited(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("chat", "--model", folder, "--max-new-tokens", 12, "--audit")
    ran = cli(*given, stdin=b"x = 1\ny = 2")
    assert (ran.code, ran.err.count("-- audit: identical, 12 tokens\n")) == (0, 2)
    assert [found["audit"]["identical"] for found in objects(cli(*given, "--json", stdin=b"x = 1").out)] == [True]
    monkeypatch.setattr(build, "LocalVerifier", Flips)
    ran = cli(*given, stdin=b"def add(a, b):\ny = 2")
    assert ran.code == 1
    assert "-- audit: differs at token " in ran.err


@pytest.mark.parametrize("sampled", [(), ("--temperature", 0.9, "--seed", 5)])
@pytest.mark.parametrize("plain", [(), ("--plain",)])
def test_the_last_reply_is_recorded_and_proven(
    cli: Cli, folder: Path, tmp_path: Path, sampled: tuple[object, ...], plain: tuple[str, ...]
) -> None:
    path = tmp_path / "record.json"
    given = ("chat", "--model", folder, "--max-new-tokens", 12, *plain, *sampled)
    ran = cli(*given, "--record", path, stdin=b"def add(a, b):\nclass Stack:\n/regenerate\n/reset")
    assert ran.code == 0
    assert ran.err.endswith(f"-- a new conversation\n-- record: {path}\n")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert ran.out.endswith(told["text"].removesuffix("\n") + "\n")
    assert len(told["prompt"]["tokens"]) > 12, "the whole conversation"
    assert (told["settings"]["seed"] == 5) == (False if sampled else told["settings"]["seed"] == 5)
    for draft in ("none", "lookup"):
        assert cli("verify", path, "--draft", draft).out == "verified: 12 tokens and their logits, bit for bit\n"
    path.unlink()
    broken = cli(*given, "--record", path, stdin=b"def add(a, b):\n\xff")
    assert broken.code == 2
    assert f"-- record: {path}\nforetoken: line 2 is not UTF-8" in broken.err, "the replies before it stand"
    assert path.exists()
    (other := tmp_path / "none.json").write_text("", encoding="utf-8")
    none = cli(*given, "--record", other, stdin=b"/stats")
    assert none.err.endswith(f"-- no record: no reply came to its end, so nothing was written to {other}\n")


def test_what_earlier_turns_may_change_is_not_recorded(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **settings: Any) -> Model:
        model = foretoken.load(name, **settings)
        model.promise = "algorithmic"  # as on a GPU
        return model

    monkeypatch.setattr("foretoken.cli.common.load", load)
    ran = cli("chat", "--plain", "--model", "stdlib-1m", "--record", tmp_path / "x", stdin=b"x")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "the promise is 'algorithmic', where bits may depend on what earlier turns have read" in ran.err
    assert "leave --record out, or record one prompt with `generate --chat --record`" in ran.err


def test_a_reply_is_generated_again_with_another_seed(cli: Cli, folder: Path) -> None:
    given = ("chat", "--model", folder, "--max-new-tokens", 12, "--json")
    ran = cli(*given, "--temperature", 1.5, "--seed", 5, stdin=b"/regenerate\nx = 1\n/regenerate\n/regenerate\ny")
    first, second, third, last = objects(ran.out)
    assert ran.err == "-- there is no reply to generate again\n"
    assert first["seed"] == last["seed"] == 5
    assert len({first["seed"], second["seed"], third["seed"]}) == 3
    assert len({first["text"], second["text"], third["text"]}) == 3
    assert first["prompt_tokens"] == second["prompt_tokens"] == third["prompt_tokens"]
    asked = [
        {"role": "user", "content": "x = 1"},
        {"role": "assistant", "content": third["text"]},
        {"role": "user", "content": "y"},
    ]
    done = foretoken.load(folder).generate(asked, max_new_tokens=12, temperature=1.5, seed=5)
    assert last["tokens"] == list(done.tokens)
    greedy = cli(*given, stdin=b"x = 1\n/regenerate")
    assert len(objects(greedy.out)) == 1
    assert greedy.err.startswith("-- decoding is greedy, so the reply would be the same; ")


def test_a_new_system_message_begins_a_new_conversation(cli: Cli, folder: Path) -> None:
    lines = "x = 1\n/system  Speak  Python. \nx = 1\n/system\nx = 1\n/stats"
    ran = cli("chat", "--model", folder, "--max-new-tokens", 6, "--json", stdin=lines.encode())
    model, user = foretoken.load(folder), {"role": "user", "content": "x = 1"}
    system = {"role": "system", "content": "Speak  Python."}
    for messages, found in zip([[user], [system, user], [user]], objects(ran.out), strict=True):
        assert found["tokens"] == list(model.generate(messages, max_new_tokens=6).tokens)
        assert found["prompt_tokens"] == len(model.tokens_of(messages))
    assert "-- a new conversation, with this system message\n-- a new conversation, without a system mess" in ran.err
    assert ", 0 of them kept from earlier turns\n" in ran.err


def test_a_conversation_is_saved_and_no_other_file_is_replaced(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = ("chat", "--model", folder, "--system", "é", "--max-new-tokens", 6, "--json")
    ran = cli(*given, stdin="/save\né😀\n/save\n/save ~/with a space.json\nx\n/save ~/with a space.json".encode())
    path = tmp_path / "with a space.json"
    assert ran.err == "-- /save needs the name of a file: /save FILE\n" * 2 + f"-- saved: {path}\n" * 2
    first, second = objects(ran.out)
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"role": "system", "content": "é"},
        {"role": "user", "content": "é😀"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": second["text"]},
    ]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    empty = cli("chat", "--model", folder, stdin=b"/save x")
    assert empty.err == "-- there is nothing to save yet\n"
    for other in ("notes", "{}", '[{"name": "x"}]', '["role"]'):
        path.write_text(other, encoding="utf-8")
        refused = cli(*given, stdin=f"x\n/save {path}".encode())
        assert refused.code == 2
        assert f"{path} is there, and is no conversation; name another file, or remove it" in refused.err
        assert path.read_text(encoding="utf-8") == other

"""`generate --audit`, `generate --record` and `verify`, as a user meets them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import foretoken
from foretoken.api import build
from foretoken.api.model import Model
from foretoken.cli import show
from foretoken.common.source import EMBEDDED
from foretoken.results.completion import Audit
from tests.cli.conftest import Cli
from tests.test_audit import Flips

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"


def test_an_audit_says_identical(cli: Cli) -> None:
    ran = cli("generate", PROMPT, "--max-new-tokens", 30, "--audit")
    assert ran.code == 0
    summary, line = ran.err.splitlines()
    assert line == "-- audit: identical, 30 tokens"
    assert re.search(r"; promise: exact; (native \w+|pytorch), \d+ threads?$", summary)
    assert ran.out == cli("generate", PROMPT, "--max-new-tokens", 30).out


def test_an_audit_that_finds_a_difference_says_which_and_ends_with_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LocalVerifier", Flips)
    ran = cli("generate", PROMPT, "--max-new-tokens", 30, "--audit", "--pace", "fixed")
    assert ran.code == 1
    line = ran.err.splitlines()[-1]
    number = r"-?[\d.e+-]+"
    assert re.fullmatch(
        rf"-- audit: differs at token \d+: .+ \(logit {number}\) where plain decoding has .+ \({number}\), "
        rf"{number} apart",
        line,
    )
    as_json = cli("generate", PROMPT, "--max-new-tokens", 30, "--audit", "--pace", "fixed", "--json")
    assert (as_json.code, as_json.err) == (1, "")
    result = json.loads(as_json.out)
    found = result["audit"]
    assert list(found) == [
        "identical",
        "compared_tokens",
        "position",
        "token",
        "plain_token",
        "logit",
        "plain_logit",
        "gap",
    ]
    assert found["identical"] is False
    assert f"differs at token {found['position']}:" in line
    assert result["tokens"][found["position"]] == found["token"] != found["plain_token"]
    assert found["gap"] == found["plain_logit"] - found["logit"] > 0
    monkeypatch.undo()
    plain = foretoken.load(draft="none").generate(PROMPT, max_new_tokens=30)
    assert plain.tokens[found["position"]] == found["plain_token"]


def test_json_has_the_audit(cli: Cli) -> None:
    ran = cli("generate", PROMPT, "--max-new-tokens", 9, "--audit", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)["audit"]
    assert (found["identical"], found["compared_tokens"], found["position"], found["gap"]) == (True, 9, None, None)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Audit(True, 128), "audit: identical, 128 tokens"),
        (
            Audit(False, 18, 17, 5, 6, 3.25, 3.3125),
            "audit: differs at token 17: <5> (logit 3.25) where plain decoding has <6> (3.3125), 0.0625 apart",
        ),
        (Audit(False, 4, 3, 5), "audit: differs at token 3: <5> where plain decoding has ended"),
    ],
)
def test_an_audit_is_one_line(found: Audit, line: str) -> None:
    assert show.audit(found, lambda token: f"<{token}>") == line


def test_a_token_is_described_by_its_text_or_else_by_its_number() -> None:
    model: Model = foretoken.load("stdlib-1m")
    (token,) = model.tokens_of("def")[:1]
    assert model.describe(token) == "'def'"
    for odd in (-1, 10**9, next(iter(model.end_tokens))):
        assert model.describe(odd) == f"token {odd}"
    half = next(t for t in range(4096) if "\ufffd" in model.tokenizer.decode([t]))  # type: ignore[union-attr]
    assert model.describe(half) == f"token {half}"
    model.tokenizer = None
    assert model.describe(5) == "token 5"


def test_a_record_is_verified(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    made = cli("generate", PROMPT, "--max-new-tokens", 30, "--record", path)
    assert made.code == 0
    assert made.err.splitlines()[-1] == f"-- record: {path}"
    assert json.loads(path.read_text(encoding="utf-8"))["text"] in made.out
    proven = "verified: 30 tokens and their logits, bit for bit\n"
    for options in ((), ("--draft", "none"), ("--model", "stdlib-7m")):
        ran = cli("verify", path, *options)
        assert (ran.code, ran.out, ran.err) == (0, proven, "")
    both = cli("generate", PROMPT, "--max-new-tokens", 30, "--record", path, "--json", "--draft", "none", "--audit")
    assert (both.code, both.err) == (0, "")
    assert cli("verify", path, "--draft", "lookup").out == proven


def test_files_that_are_not_those_that_were_loaded_are_told_before_anything_is_generated(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    load = build.load

    def load_and_change(*args: object, **settings: object) -> Model:
        loaded = load(*args, **settings)  # type: ignore[arg-type]
        (folder / "generation_config.json").write_text("{}", encoding="utf-8")
        return loaded

    monkeypatch.setattr(build, "load", load_and_change)
    ran = cli("generate", PROMPT, "--model", folder, "--max-new-tokens", 3, "--record", tmp_path / "record.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"foretoken: {folder}/generation_config.json is not the file that the model was loaded from; load the model "
        "again to record it\n"
    )
    assert not (tmp_path / "record.json").exists()


def test_a_record_that_was_tampered_with_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    cli("generate", PROMPT, "--max-new-tokens", 30, "--record", path)
    told = json.loads(path.read_text(encoding="utf-8"))
    told["tokens"][17] += 1
    path.write_text(json.dumps(told), encoding="utf-8")
    ran = cli("verify", path)
    assert ran.code == 1
    assert re.fullmatch(r"differs: token 17 is .+ here, and .+ in the record\n", ran.out)
    assert ran.err == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("verify",), "Missing argument 'file'"),
        (("verify", "/nowhere"), "/nowhere cannot be read (No such file or directory); name the file of a record"),
        (("verify", "/"), "/ cannot be read (Is a directory); name the file of a record"),
        (("verify", __file__), "is not JSON"),
        (("generate", "x", "--record", "/dev/null/at/all"), "/dev/null/at/all cannot hold the record (Not a directory"),
        (("generate", "x", "--record", "/"), "/ is a folder; expected the name of a file for the record"),
        (("generate", "x", "--device", "gpu"), "device is 'gpu', expected cpu, cuda or cuda:NUMBER"),
        (("generate", "x", "--promise", "vague"), "promise is 'vague'"),
        (("generate", "x", "--weights", "mmap"), "weights is 'mmap'; did you mean 'mapped'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, args: tuple[str, ...], message: str) -> None:
    ran = cli(*args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_weights_promise_and_threads_reach_the_model(cli: Cli) -> None:
    plain = cli("generate", PROMPT, "--max-new-tokens", 9, "--json")
    other = cli(
        "generate", PROMPT, "--max-new-tokens", 9, "--json", "--weights", "copied", "--promise", "exact", "--threads", 1
    )
    assert json.loads(other.out)["tokens"] == json.loads(plain.out)["tokens"]
    assert json.loads(other.out)["threads"] == 1
    assert json.loads(other.out)["promise"] == "exact"

"""The measurements measure, and a record tells where it comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import identical
from foretoken.bench.suites import open_suite
from foretoken.common.provenance import provenance
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import corpus
from foretoken.training.pretrain import Recipe, learning_rate

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-7m"])
assert TOKENIZER is not None


def suite_here() -> bool:
    """Whether this machine's standard library is the one that the suite was cut from."""
    try:
        open_suite("heldout-20", TOKENIZER)
    except InputError:
        return False
    return True


needs_library = pytest.mark.skipif(not suite_here(), reason="another version of the standard library")


def test_nothing_that_is_trained_on_is_held_out() -> None:
    train, heldout = (set(corpus.file_names(f)) for f in (corpus.TRAIN_FILES, corpus.HELDOUT_FILES))
    assert len(train) == 989
    assert len(heldout) == 40
    assert not train & heldout


@needs_library
def test_a_comparison_counts_what_it_compared() -> None:
    rows = identical.compare("stdlib-1m", open_suite("heldout-20", TOKENIZER), ["lookup"], "float32", 8)
    (row,) = rows
    assert (row["prompts"], row["tokens"]) == (20, 160)
    assert row["completions_with_other_tokens"] == row["completions_with_other_logits"] == 0
    assert 0 < row["accepted_tokens"] < row["draft_tokens"]
    assert row["promise"] == ["exact"]


def test_a_record_tells_where_it_comes_from_and_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", "--model", str(tmp_path / "some-model")])
    record = provenance()
    assert record["command"] == "python -m x --model some-model"
    assert record["versions"]["torch"]
    assert record["machine"]["processor"]
    json.dumps(record)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["python", "--disk-bandwidth", "1.4GB/s"], "python --disk-bandwidth 1.4GB/s"),
        (["-m", "x", "def add(", "--record", "a/b.json"], "-m x 'def add(' --record b.json"),
        (["x", "--out=/some/where/b.json", "--n=3"], "x --out=b.json --n=3"),
        (["x", "it's a\nb / c"], "x 'it'\"'\"'s a\nb / c'"),
        (["x", "/home/some one/b c.json", ""], "x 'b c.json' ''"),
    ],
)
def test_a_command_is_told_as_a_shell_takes_it(words: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", *words])
    assert provenance()["command"] == f"python {told}"


def test_the_command_line_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/some/bin/python3", "/some/bin/foretoken", "bench", "decode"])
    assert provenance()["command"] == "foretoken bench decode"


def test_two_changes_of_the_code_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse": "0123456789ab", "diff": ""}
    monkeypatch.setattr("foretoken.common.provenance._git", lambda _folder, command, *_: said[command])
    clean = provenance()["commit"]
    commits = [provenance()["commit"] for said["diff"] in ("+ one", "+ other", "+ one")]
    assert clean == "0123456789ab"
    assert all(commit.startswith(f"{clean}-dirty-") for commit in commits)
    assert commits[0] == commits[2] != commits[1]


def test_the_rate_warms_up_stays_and_ends_near_zero() -> None:
    recipe = Recipe(steps=100, warmup=10)
    rates = [learning_rate(step, recipe) for step in range(100)]
    assert rates[:10] == [(step + 1) / 10 for step in range(10)]
    assert set(rates[10:51]) == {1.0}
    assert rates[99] == 0.02
    assert rates[50:] == sorted(rates[50:], reverse=True)

"""Data sets: every row of the table reads a folder that is laid out as on the hub. Nothing is downloaded here."""

from __future__ import annotations

import csv
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.suites import Suite, datasets, open_suite
from foretoken.bench.suites.datasets import shorten
from foretoken.bench.suites.table import DATA_SETS
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError
from foretoken.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-7m"])
assert TOKENIZER is not None
Write = Callable[[Path, list[dict[str, Any]]], None]

CHOICES = {"Correct Answer": "red", "Incorrect Answer 1": "blue", "Incorrect Answer 2": "green"}
# of each data set: its file on the hub, two rows with a column that nobody reads, and what the second is asked
HUB: dict[str, tuple[str, list[dict[str, Any]], str | tuple[str, ...]]] = {
    "gsm8k": (
        "main/test-00000-of-00001.parquet",
        [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}],
        "2+2?",
    ),
    "xsum": (
        "data/test-00000-of-00001.parquet",
        [{"document": "Rain.", "summary": "r"}, {"document": "Snow.", "summary": "s"}],
        "Summarize this article in a few sentences.\n\nSnow.",
    ),
    "cnn-dailymail": (
        "3.0.0/test-00000-of-00001.parquet",
        [{"article": "Rain.", "highlights": "r", "id": "0"}, {"article": "Wind.", "highlights": "w", "id": "1"}],
        "Summarize this article in a few sentences.\n\nWind.",
    ),
    "humaneval": (
        "openai_humaneval/test-00000-of-00001.parquet",
        [{"task_id": f"HumanEval/{at}", "prompt": f"def f{at}():\n", "test": ""} for at in (0, 1)],
        "def f1():\n",
    ),
    "mbpp": (
        "sanitized/test-00000-of-00001.parquet",
        [{"task_id": at, "prompt": f"Write task {at}.", "code": ""} for at in (11, 12)],
        "Write task 12.",
    ),
    "mt-bench": (
        "data/train-00000-of-00001-67c6.parquet",
        [{"prompt": [f"Say {at}.", "Again."], "category": f"kind {at}", "prompt_id": at} for at in (1, 2)],
        ("Say 2.", "Again."),
    ),
    "alpaca": (
        "data/train-00000-of-00001-a09b.parquet",
        [{"instruction": "Sing.", "input": "", "output": ""}, {"instruction": "Sort.", "input": "b a", "output": ""}],
        "Sort.\n\nb a",
    ),
    "hagrid": (
        "hagrid-v1.0-en/train.jsonl",
        [{"query": "Who?", "query_id": 1}, {"query": "When?", "query_id": 1}],
        "When?",
    ),
    "natural-questions": (
        "nq_open/validation-00000-of-00001.parquet",
        [{"question": "who", "answer": ["x"]}, {"question": "when", "answer": ["y"]}],
        "when",
    ),
    "aime-2024": (
        "data/train-00000-of-00001.parquet",
        [{"id": 60, "problem": "Find x.", "answer": "1"}, {"id": 61, "problem": "Find y.", "answer": "2"}],
        "Find y.",
    ),
    "math-500": (
        "test.jsonl",
        [{"problem": "Find x.", "unique_id": "a/1.json"}, {"problem": "Find y.", "unique_id": "a/2.json"}],
        "Find y.",
    ),
    "gpqa-diamond": (
        "gpqa_diamond.csv",
        [
            {"Question": "What,\nindeed?", **CHOICES, "Incorrect Answer 3": "grey", "Extra": ""},
            {"Question": "Which?\n", **CHOICES, "Incorrect Answer 3": "a b", "Extra": ""},
        ],
        "Which?\n\nA. a b\nB. blue\nC. green\nD. red\n\nThink it through, then name the letter of the right answer.",
    ),
    "livecodebench": (
        "test5.jsonl",
        [
            {"question_id": "abc_a", "question_content": "Add.", "starter_code": ""},
            {"question_id": "123", "question_content": "Sort.", "starter_code": "class Solution:"},
        ],
        "Write a Python program that solves this problem.\n\nSort.\n\nBegin with this code:\n\nclass Solution:",
    ),
    "ultrachat": (
        "data/test_sft-00000-of-00001-f7df.parquet",
        [{"prompt": "Hi.", "messages": []}, {"prompt": "Tell me.", "messages": []}],
        "Tell me.",
    ),
}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow", reason="the extra 'suites' is not installed")
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def opened(name: str, place: Path, count: int | None = None) -> Suite:
    return open_suite(f"{name}={place}", TOKENIZER, count=count)


def test_every_data_set_is_tried() -> None:
    assert set(HUB) == set(DATA_SETS)


@pytest.mark.parametrize("name", HUB)
def test_a_folder_laid_out_as_on_the_hub_is_read(name: str, tmp_path: Path) -> None:
    file, rows, asked = HUB[name]
    write_rows(tmp_path / file, rows)
    suite = opened(name, tmp_path)
    assert (suite.name, suite.source, len(suite.prompts)) == (name, tmp_path.name, 2)
    assert suite.prompts[1].turns == (asked if isinstance(asked, tuple) else (asked,))
    data_set = DATA_SETS[name]
    assert suite.prompts[1].id == (str(rows[1][data_set.id]) if data_set.id else "row 2")
    assert suite.prompts[1].category == (rows[1]["category"] if data_set.category else "")
    assert suite.prompts[1].chat == data_set.chat
    assert suite.max_new_tokens == data_set.max_new_tokens > 0
    assert suite.licence
    assert opened(name, tmp_path / file).prompts == suite.prompts
    assert opened(name, (tmp_path / file).parent).prompts == suite.prompts
    assert opened(name, tmp_path, 1).prompts == suite.prompts[:1]


def test_the_hubs_conversion_to_parquet_is_read_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "main" / "test" / "0000.parquet", HUB["gsm8k"][1][:1])
    write_rows(tmp_path / "main" / "test" / "0001.parquet", HUB["gsm8k"][1][1:])
    write_rows(tmp_path / "main" / "train" / "0000.parquet", [{"question": "no"}])
    assert [prompt.turns for prompt in opened("gsm8k", tmp_path).prompts] == [("1+1?",), ("2+2?",)]


def test_no_more_rows_are_read_than_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"problem": "Find x.", "unique_id": "1"}\nnot read\n', encoding="utf-8")
    assert len(opened("math-500", tmp_path, 1).prompts) == 1
    with pytest.raises(InputError, match="line 2 is not JSON"):
        opened("math-500", tmp_path)


def test_of_categories_each_gives_its_first(tmp_path: Path) -> None:
    rows = [{"prompt": [f"{at}"], "category": "abb"[at % 3]} for at in range(6)]
    write_rows(tmp_path / HUB["mt-bench"][0], rows)
    assert [prompt.turns for prompt in opened("mt-bench", tmp_path, 2).prompts] == [("0",), ("1",)]
    assert [prompt.turns for prompt in opened("mt-bench", tmp_path, 4).prompts] == [("0",), ("1",), ("2",), ("3",)]


def test_a_long_article_is_cut_to_its_first_tokens(tmp_path: Path) -> None:
    assert TOKENIZER is not None
    article = " ".join(f"word{at}" for at in range(2000))
    write_rows(tmp_path / "rows.jsonl", [{"document": article}])
    (turn,) = opened("xsum", tmp_path / "rows.jsonl").prompts[0].turns
    assert isinstance(turn, str)
    whole = f"Summarize this article in a few sentences.\n\n{article}"
    assert whole.startswith(turn)
    assert 508 <= len(TOKENIZER.encode(turn)) <= 512
    assert shorten("short", 512, TOKENIZER) == "short"
    with pytest.raises(InputError, match="xsum cuts its articles to 512 tokens, and the model has no tokenizer"):
        open_suite(f"xsum={tmp_path / 'rows.jsonl'}", None)


def test_what_cannot_be_a_data_sets_row_is_refused_by_its_place(tmp_path: Path) -> None:
    for name, data, refusal in (
        (
            "math-500",
            b'{"unique_id": "1"}\n',
            "rows.jsonl, line 1: there is no 'problem', expected text; the fields are",
        ),
        ("math-500", b'{"problem": 3, "unique_id": "1"}\n', "line 1: problem is 3, expected text that is not empty"),
        ("math-500", b"", "rows.jsonl holds no row; expected some of HuggingFaceH4/MATH-500"),
    ):
        (tmp_path / "rows.jsonl").write_bytes(data)
        with pytest.raises(InputError, match=refusal):
            opened(name, tmp_path / "rows.jsonl")
    (tmp_path / "rows.csv").write_bytes(b'Question,Correct Answer\n"cut')
    with pytest.raises(InputError, match=r"rows.csv, after line .: no CSV in UTF-8 .*; fetch the file again"):
        opened("gpqa-diamond", tmp_path / "rows.csv")
    (tmp_path / "rows.csv").write_bytes(b"Question,\xff")
    with pytest.raises(InputError, match=r"rows.csv, after line 0: no CSV in UTF-8"):
        opened("gpqa-diamond", tmp_path / "rows.csv")
    (tmp_path / "rows.txt").write_bytes(b"x")
    with pytest.raises(InputError, match=r"rows.txt is no file of rows; expected one that ends in .parquet, .jsonl, "):
        opened("gsm8k", tmp_path / "rows.txt")
    with pytest.raises(InputError, match=r"holds no main/test-\*.parquet; expected the layout of openai/gsm8k"):
        opened("gsm8k", tmp_path)
    with pytest.raises(InputError, match=r"there is no '.*nowhere'; expected a file or folder of openai/gsm8k"):
        opened("gsm8k", tmp_path / "nowhere")


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, HUB["gsm8k"][1])
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[: len(whole) // 2], b"PAR1" + whole[40:], whole[:4] + b"\xff" * 60 + whole[64:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"rows.parquet, after row 0: no parquet .*; fetch the file again"):
            opened("gsm8k", path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"rows.parquet is read with pyarrow, .*; pip install 'foretoken\[suites\]'"):
        opened("gsm8k", tmp_path / "rows.parquet")


class Hub:
    """What stands for the hub: folders by revision, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Path | Exception) -> None:
        self.calls: list[tuple[str, str | None, str]] = []
        self._answers = answers
        monkeypatch.setattr("huggingface_hub.snapshot_download", self._snapshot)

    def _snapshot(self, name: str, *, repo_type: str, revision: str | None, allow_patterns: str) -> str:
        assert repo_type == "dataset"
        self.calls.append((name, revision, allow_patterns))
        answer = self._answers["converted" if revision else "main"]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def test_a_name_is_downloaded_and_its_source_is_the_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "test.jsonl", HUB["math-500"][1])
    asked = Hub(monkeypatch, main=tmp_path).calls
    suite = open_suite("math-500", None)
    assert (suite.source, len(suite.prompts)) == ("HuggingFaceH4/MATH-500", 2)
    assert asked == [("HuggingFaceH4/MATH-500", None, "test.jsonl")]
    assert suite.sha256 == opened("math-500", tmp_path).sha256


def test_what_is_not_there_as_it_was_is_taken_as_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "main").mkdir()
    write_rows(tmp_path / "converted" / "main" / "test" / "0000.parquet", HUB["gsm8k"][1])
    asked = Hub(monkeypatch, main=tmp_path / "main", converted=tmp_path / "converted").calls
    assert len(open_suite("gsm8k", None).prompts) == 2
    assert asked[1] == ("openai/gsm8k", datasets.CONVERTED, "main/*test/*.parquet")
    Hub(monkeypatch, main=tmp_path / "main", converted=tmp_path / "main")
    with pytest.raises(InputError, match=r"openai/gsm8k on the hub holds no main/test-.* any more; .* gsm8k=FILE"):
        open_suite("gsm8k", None)


def test_what_the_hub_refuses_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    response: Any = types.SimpleNamespace(headers={}, request=None)  # of an answer, errors read these
    for error, refusal in (
        (errors.GatedRepoError("x", response=response), "Idavidrein/gpqa is gated; accept its terms on its page"),
        (errors.RepositoryNotFoundError("x", response=response), "the hub has no data set 'Idavidrein/gpqa' any more"),
        (errors.RevisionNotFoundError("x", response=response), "has neither gpqa_diamond.csv nor a converted copy"),
        (errors.LocalEntryNotFoundError("x"), "no hub could be reached for Idavidrein/gpqa"),
        (ConnectionError("x"), "no hub could be reached for Idavidrein/gpqa \\(ConnectionError\\); connect"),
        (OSError("no space\nleft"), "could not be downloaded \\(OSError: no space left\\); try again"),
    ):
        Hub(monkeypatch, main=error)
        with pytest.raises(InputError, match=refusal) as refused:
            open_suite("gpqa-diamond", None)
        assert "gpqa-diamond=FOLDER_OR_FILE" in str(refused.value)
        assert "\n" not in str(refused.value)

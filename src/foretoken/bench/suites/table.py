"""Data sets of the hub that speculative decoding is measured on: where they lie, and how a row becomes a prompt.

`DATA_SETS` has a line each, docs/suites.md says who used which, and how. The wording of prompts is our own where a row
is not a prompt already: the papers do not give theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretoken.bench.suites.rows import Row


@dataclass(frozen=True)
class DataSet:
    """One data set. `files` is a pattern in its repository; the hub's own conversion goes by `config` and `split`.

    `ask` makes what is asked of a row, from its `fields`. `chat`: an instruction; otherwise the text is continued.
    `max_new_tokens` is what the papers allow, or where they say nothing, ours. `cut`: of more tokens than so many, a
    prompt has the first. `id` and `category` are the fields that have them; without an id, rows are counted.
    """

    name: str
    hub: str
    files: str
    config: str
    split: str
    fields: tuple[str, ...]
    ask: Callable[[Row], str | tuple[str, ...]]
    max_new_tokens: int
    licence: str
    chat: bool = True
    cut: int | None = None
    id: str = ""
    category: str = ""

    @property
    def converted(self) -> str:
        """A pattern for its files as the hub has converted them, all of them or the beginning."""
        return f"{self.config}/*{self.split}/*.parquet"

    @property
    def columns(self) -> tuple[str, ...]:
        """All fields that are read."""
        return (*self.fields, *filter(None, (self.id, self.category)))


def _field(name: str) -> Callable[[Row], str]:
    return lambda row: row.text(name)


def _article(name: str) -> Callable[[Row], str]:
    return lambda row: f"Summarize this article in a few sentences.\n\n{row.text(name)}"


def _turns(row: Row) -> tuple[str, ...]:
    return tuple(map(str, row.turns("prompt", ids=False)))


def _alpaca(row: Row) -> str:
    given = row.values.get("input")
    return f"{row.text('instruction')}\n\n{row.text('input')}" if given else row.text("instruction")


def _choices(row: Row) -> str:
    # by the alphabet: an order that says nothing about which is right, and that is the same for everybody
    answers = sorted(row.text(name) for name in _ANSWERS)
    lettered = "\n".join(f"{letter}. {answer.strip()}" for letter, answer in zip("ABCD", answers, strict=True))
    return (
        f"{row.text('Question').strip()}\n\n{lettered}\n\nThink it through, then name the letter of the right answer."
    )


def _program(row: Row) -> str:
    start = row.values.get("starter_code")
    begin = f"\n\nBegin with this code:\n\n{row.text('starter_code')}" if start else ""
    return f"Write a Python program that solves this problem.\n\n{row.text('question_content')}{begin}"


_ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


_ROWS = (
    DataSet(
        "gsm8k",
        "openai/gsm8k",
        files="main/test-*.parquet",
        config="main",
        split="test",
        fields=("question",),
        ask=_field("question"),
        max_new_tokens=256,
        licence="MIT",
    ),
    DataSet(
        "xsum",
        "EdinburghNLP/xsum",
        files="data/test-*.parquet",
        config="default",
        split="test",
        fields=("document",),
        ask=_article("document"),
        max_new_tokens=128,
        cut=512,
        licence="unknown, says its page; articles of the BBC",
    ),
    DataSet(
        "cnn-dailymail",
        "abisee/cnn_dailymail",
        files="3.0.0/test-*.parquet",
        config="3.0.0",
        split="test",
        fields=("article",),
        ask=_article("article"),
        max_new_tokens=128,
        cut=512,
        licence="Apache-2.0",
    ),
    DataSet(
        "humaneval",
        "openai/openai_humaneval",
        files="openai_humaneval/test-*.parquet",
        config="openai_humaneval",
        split="test",
        fields=("prompt",),
        ask=_field("prompt"),
        max_new_tokens=512,
        chat=False,
        id="task_id",
        licence="MIT",
    ),
    DataSet(
        "mbpp",
        "google-research-datasets/mbpp",
        files="sanitized/test-*.parquet",
        config="sanitized",
        split="test",
        fields=("prompt",),
        ask=_field("prompt"),
        max_new_tokens=128,
        chat=False,
        id="task_id",
        licence="CC-BY-4.0",
    ),
    DataSet(
        "mt-bench",
        "HuggingFaceH4/mt_bench_prompts",
        files="data/train-*.parquet",
        config="default",
        split="train",
        fields=("prompt",),
        ask=_turns,
        max_new_tokens=512,
        category="category",
        licence="Apache-2.0",
    ),
    DataSet(
        "alpaca",
        "tatsu-lab/alpaca",
        files="data/train-*.parquet",
        config="default",
        split="train",
        fields=("instruction", "input"),
        ask=_alpaca,
        max_new_tokens=512,
        licence="CC-BY-NC-4.0",
    ),
    DataSet(
        "hagrid",
        "miracl/hagrid",
        files="hagrid-v1.0-en/train.jsonl",
        config="default",
        split="train",
        fields=("query",),
        ask=_field("query"),
        max_new_tokens=128,
        chat=False,
        licence="Apache-2.0",
    ),
    DataSet(
        "natural-questions",
        "google-research-datasets/nq_open",
        files="nq_open/validation-*.parquet",
        config="nq_open",
        split="validation",
        fields=("question",),
        ask=_field("question"),
        max_new_tokens=512,
        licence="CC-BY-SA-3.0",
    ),
    DataSet(
        "aime-2024",
        "HuggingFaceH4/aime_2024",
        files="data/train-*.parquet",
        config="default",
        split="train",
        fields=("problem",),
        ask=_field("problem"),
        max_new_tokens=1024,
        licence="none stated; problems of the Mathematical Association of America",
    ),
    DataSet(
        "math-500",
        "HuggingFaceH4/MATH-500",
        files="test.jsonl",
        config="default",
        split="test",
        fields=("problem",),
        ask=_field("problem"),
        max_new_tokens=1024,
        id="unique_id",
        licence="none stated; MATH, of which it is a part, is MIT",
    ),
    DataSet(
        "gpqa-diamond",
        "Idavidrein/gpqa",
        files="gpqa_diamond.csv",
        config="gpqa_diamond",
        split="train",
        fields=("Question", *_ANSWERS),
        ask=_choices,
        max_new_tokens=1024,
        licence="CC-BY-4.0",
    ),
    DataSet(
        "livecodebench",
        "livecodebench/code_generation_lite",
        files="test5.jsonl",
        config="release_v5",
        split="test",
        fields=("question_content", "starter_code"),
        ask=_program,
        max_new_tokens=1024,
        id="question_id",
        licence="cc, without saying which",
    ),
    DataSet(
        "ultrachat",
        "HuggingFaceH4/ultrachat_200k",
        files="data/test_sft-*.parquet",
        config="default",
        split="test_sft",
        fields=("prompt",),
        ask=_field("prompt"),
        max_new_tokens=512,
        licence="MIT",
    ),
)
DATA_SETS = {data_set.name: data_set for data_set in _ROWS}

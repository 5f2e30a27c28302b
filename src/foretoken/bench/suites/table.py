"""Data sets of the hub that speculative decoding is measured on: their files, and how a row becomes a prompt.

`DATA_SETS` has a line each; docs/suites.md lists who used which, and how. Where a row is not a prompt already, the
wording of the prompt is our own, because the papers do not give theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretoken.bench.suites.rows import Row


@dataclass(frozen=True)
class DataSet:
    """One data set. `files` is a pattern in its repository; `config` and `split` name the hub's own conversion.

    `ask` makes a prompt of `fields` of a row: a text with a place for each field, or a function of the row. `chat`: an
    instruction; otherwise the text is continued. `max_new_tokens` is what the papers allow, or ours if they give none.
    `cut`: a prompt with more tokens keeps only the first so many. `id` and `category` are the names of fields; without
    an id, rows are counted.
    """

    name: str
    hub: str
    files: str
    fields: tuple[str, ...]
    max_new_tokens: int
    licence: str
    config: str = "default"
    split: str = "test"
    ask: str | Callable[[Row], str | tuple[str, ...]] = "{}"
    chat: bool = True
    cut: int | None = None
    id: str = ""
    category: str = ""

    @property
    def converted(self) -> str:
        """A pattern for the files of the hub's conversion, which has all rows or only the beginning."""
        return f"{self.config}/*{self.split}/*.parquet"

    @property
    def columns(self) -> tuple[str, ...]:
        """All fields that are read."""
        return (*self.fields, *filter(None, (self.id, self.category)))

    def turns(self, row: Row) -> tuple[str, ...]:
        """The turns of a row's prompt. Raises InputError if a field has the wrong type."""
        asked = self.ask.format(*map(row.text, self.fields)) if isinstance(self.ask, str) else self.ask(row)
        return (asked,) if isinstance(asked, str) else asked


_ARTICLE = "Summarize this article in a few sentences.\n\n{}"
_ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _talk(row: Row) -> tuple[str, ...]:
    return tuple(map(str, row.turns("prompt", ids=False)))


def _alpaca(row: Row) -> str:
    given = row.values.get("input")
    return f"{row.text('instruction')}\n\n{row.text('input')}" if given else row.text("instruction")


def _choices(row: Row) -> str:
    # alphabetical order shows nothing about which is right, and is the same for everybody
    answers = sorted(row.text(name) for name in _ANSWERS)
    lettered = "\n".join(f"{letter}. {answer.strip()}" for letter, answer in zip("ABCD", answers, strict=True))
    return (
        f"{row.text('Question').strip()}\n\n{lettered}\n\nThink it through, then name the letter of the right answer."
    )


def _program(row: Row) -> str:
    start = row.values.get("starter_code")
    begin = f"\n\nBegin with this code:\n\n{row.text('starter_code')}" if start else ""
    return f"Write a Python program that solves this problem.\n\n{row.text('question_content')}{begin}"


# fmt: off
_ROWS = (
    DataSet("gsm8k", "openai/gsm8k", "main/test-*.parquet", ("question",), 256, "MIT", config="main"),
    DataSet("xsum", "EdinburghNLP/xsum", "data/test-*.parquet", ("document",), 128,
            "unknown, says its page; articles of the BBC", ask=_ARTICLE, cut=512),
    DataSet("cnn-dailymail", "abisee/cnn_dailymail", "3.0.0/test-*.parquet", ("article",), 128, "Apache-2.0",
            config="3.0.0", ask=_ARTICLE, cut=512),
    DataSet("humaneval", "openai/openai_humaneval", "openai_humaneval/test-*.parquet", ("prompt",), 512, "MIT",
            config="openai_humaneval", chat=False, id="task_id"),
    DataSet("mbpp", "google-research-datasets/mbpp", "sanitized/test-*.parquet", ("prompt",), 128, "CC-BY-4.0",
            config="sanitized", chat=False, id="task_id"),
    DataSet("mt-bench", "HuggingFaceH4/mt_bench_prompts", "data/train-*.parquet", ("prompt",), 512, "Apache-2.0",
            split="train", ask=_talk, category="category"),
    DataSet("alpaca", "tatsu-lab/alpaca", "data/train-*.parquet", ("instruction", "input"), 512, "CC-BY-NC-4.0",
            split="train", ask=_alpaca),
    DataSet("hagrid", "miracl/hagrid", "hagrid-v1.0-en/train.jsonl", ("query",), 128, "Apache-2.0",
            split="train", chat=False),
    DataSet("natural-questions", "google-research-datasets/nq_open", "nq_open/validation-*.parquet", ("question",), 512,
            "CC-BY-SA-3.0", config="nq_open", split="validation"),
    DataSet("aime-2024", "HuggingFaceH4/aime_2024", "data/train-*.parquet", ("problem",), 1024,
            "none stated; problems of the Mathematical Association of America", split="train"),
    DataSet("math-500", "HuggingFaceH4/MATH-500", "test.jsonl", ("problem",), 1024,
            "none stated; MATH, of which it is a part, is MIT", id="unique_id"),
    DataSet("gpqa-diamond", "Idavidrein/gpqa", "gpqa_diamond.csv", ("Question", *_ANSWERS), 1024, "CC-BY-4.0",
            config="gpqa_diamond", split="train", ask=_choices),
    DataSet("livecodebench", "livecodebench/code_generation_lite", "test5.jsonl", ("question_content", "starter_code"),
            1024, "cc, without saying which", config="release_v5", ask=_program, id="question_id"),
    DataSet("ultrachat", "HuggingFaceH4/ultrachat_200k", "data/test_sft-*.parquet", ("prompt",), 512, "MIT",
            split="test_sft"),
)
# fmt: on
DATA_SETS = {data_set.name: data_set for data_set in _ROWS}

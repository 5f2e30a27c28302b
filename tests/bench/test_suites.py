"""Suites: what a name or a path stands for, which prompts come first, and files that others wrote."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.suites import Prompt, digest, first, first_turn, open_suite
from foretoken.bench.suites.heldout import LENGTH, cut_suite, load_cuts
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError, PromptError
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import corpus

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-7m"])
assert TOKENIZER is not None

# as Spec-Bench has them: some questions with a reference, some of two turns
QUESTIONS: list[dict[str, Any]] = [
    {"question_id": 81, "category": "writing", "turns": ["Write a line.", "Write another."]},
    {"question_id": 82, "category": "writing", "turns": ["Write a word."], "reference": ["one"]},
    {"question_id": 83, "category": "writing", "turns": ["Write a letter."]},
    {"question_id": 161, "category": "translation", "turns": ["Translate: eins"], "reference": ["one"]},
    {"question_id": 162, "category": "translation", "turns": ["Translate: zwei"]},
    {"question_id": 321, "category": "qa", "turns": ["Who?"]},
]


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.fixture
def questions(tmp_path: Path) -> str:
    return written(tmp_path / "question.jsonl", lines(*QUESTIONS))


@pytest.mark.parametrize("size", [20, 40])
def test_held_out_prompts_are_what_cutting_them_again_gives(size: int) -> None:
    name = f"heldout-{size}"
    try:
        suite = open_suite(name, TOKENIZER)
    except InputError:
        pytest.skip("another version of the standard library")
    stored, again = load_cuts(name, TOKENIZER), cut_suite(TOKENIZER, size)
    assert stored == again
    assert {cut.file for cut in stored} <= set(corpus.file_names(corpus.HELDOUT_FILES))
    assert [prompt.turns for prompt in suite.prompts] == [(cut.tokens,) for cut in stored]
    assert all(len(first_turn(prompt, None)) == LENGTH for prompt in suite.prompts)
    assert [prompt.id for prompt in suite.prompts] == [f"heldout-{at}" for at in range(1, size + 1)]
    assert len({cut.sha256 for cut in stored}) == size
    assert open_suite(name, TOKENIZER, count=3).prompts == suite.prompts[:3]
    assert (suite.name, suite.source, suite.max_new_tokens) == (name, "", 200)
    assert open_suite("auto", TOKENIZER) == open_suite("heldout-20", TOKENIZER)


def test_held_out_prompts_of_another_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "read_texts", lambda listing: [("pydoc.py", "x = 1\n" * 20000)])
    with pytest.raises(InputError, match=r"pydoc.py of this machine's standard library is not the one that suite held"):
        open_suite("heldout-20", TOKENIZER)


def test_without_a_name_every_model_gets_prompts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "read_texts", lambda listing: [("pydoc.py", "x = 1\n" * 20000)])  # another Python
    suite = open_suite("auto", TOKENIZER, count=6)
    assert (suite.name, suite.max_new_tokens) == ("everyday-20", 128)
    assert suite == open_suite("everyday-20", None, count=6)
    assert {prompt.category for prompt in suite.prompts} == {"code", "edit", "question", "writing"}


def test_the_everyday_prompts_are_texts_that_a_chat_template_or_a_plain_model_takes() -> None:
    prompts = open_suite("everyday-20", TOKENIZER).prompts
    assert len({prompt.id for prompt in prompts}) == len({prompt.turns for prompt in prompts}) == 20
    assert all(prompt.chat and isinstance(prompt.turns[0], str) for prompt in prompts)
    assert all(0 < len(first_turn(prompt, TOKENIZER)) < 1024 for prompt in prompts)


def test_spec_bench_is_told_by_its_fields(questions: str) -> None:
    suite = open_suite(questions, None)
    assert (suite.name, suite.source, suite.max_new_tokens) == ("spec-bench", "question.jsonl", 1024)
    assert suite.prompts[0] == Prompt("81", ("Write a line.", "Write another."), "writing", chat=True)
    assert [prompt.id for prompt in suite.prompts] == ["81", "82", "83", "161", "162", "321"]


def test_the_first_of_several_categories_are_spread_over_them(questions: str) -> None:
    def ids(count: int) -> list[str]:
        return [prompt.id for prompt in open_suite(questions, None, count=count).prompts]

    assert ids(1) == ["81"]
    assert ids(3) == ["81", "161", "321"]
    assert ids(4) == ["81", "82", "161", "321"]
    assert ids(6) == ids(99) == [str(question["question_id"]) for question in QUESTIONS]
    one = [Prompt(str(at), ("x",)) for at in range(5)]
    assert first(one, 2) == tuple(one[:2])


def test_own_prompts_are_texts_tokens_or_talks(tmp_path: Path) -> None:
    data = lines(
        {"prompt": "def f(", "unknown": None},
        {"prompt_tokens": [3, 0, 2147483647], "id": "three", "category": "ids"},
        {"turns": ["Hi.", "And?"], "chat": True, "id": 7},
        {"turns": [[1, 2], "x"], "id": None},
    )
    suite = open_suite(written(tmp_path / "mine.jsonl", b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\n")), None)
    assert (suite.name, suite.source, suite.licence, suite.max_new_tokens) == ("mine.jsonl", "mine.jsonl", "", 128)
    assert suite.prompts == (
        Prompt("line 1", ("def f(",)),
        Prompt("three", ((3, 0, 2147483647),), "ids"),
        Prompt("7", ("Hi.", "And?"), "", chat=True),
        Prompt("line 7", ((1, 2), "x")),
    )


def test_texts_are_one_prompt_each(tmp_path: Path) -> None:
    written(tmp_path / "b.txt", b"second\r\n")
    one = written(tmp_path / "a.txt", "first\n\nstill, ü\n".encode())
    written(tmp_path / "notes.md", b"no prompt")
    (tmp_path / "folder.txt").mkdir()
    assert open_suite(one, None).prompts == (Prompt("a.txt", ("first\n\nstill, ü",)),)
    both = open_suite(str(tmp_path), None)
    assert [(prompt.id, prompt.turns) for prompt in both.prompts][1] == ("b.txt", ("second",))
    assert len(both.prompts) == 2
    assert both.name == tmp_path.name
    strange = tmp_path / os.fsdecode(b"n\xff.txt")
    written(strange, b"x")
    open_suite(str(strange), None).prompts[0].id.encode("utf-8")  # a name of other bytes can be written down, too


def test_the_hash_is_that_of_what_is_asked(tmp_path: Path, questions: str) -> None:
    def sha256(*values: Any) -> str:
        return open_suite(written(tmp_path / "x.jsonl", lines(*values)), None).sha256

    same = sha256({"prompt": "a"}, {"prompt": "b"})
    assert same == sha256({"turns": ["a"], "id": "other", "category": "c"}, {"prompt": "b", "chat": False})
    others = [
        sha256({"prompt": "b"}, {"prompt": "a"}),
        sha256({"prompt": "a"}),
        sha256({"turns": ["a", "b"]}),
        sha256({"prompt": "a", "chat": True}, {"prompt": "b"}),
        sha256({"prompt_tokens": [1]}),
        sha256({"prompt_tokens": [1, 2]}),
    ]
    assert len({same, *others}) == 7
    assert open_suite(questions, None, count=2).sha256 != open_suite(questions, None).sha256
    assert digest(open_suite(questions, None, count=2).prompts) == open_suite(questions, None, count=2).sha256


class Template:
    """A tokenizer with a chat template, as far as prompts ask for one."""

    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, *self.encode(messages[0]["content"]), 2]


def test_a_chat_goes_through_the_template_where_there_is_one() -> None:
    tokenizer: Any = Template()
    assert first_turn(Prompt("x", ("a", "b"), chat=True), tokenizer) == (1, 97, 2)
    assert first_turn(Prompt("x", ("a",)), tokenizer) == (97,)
    assert first_turn(Prompt("x", ((5, 6),), chat=True), tokenizer) == (5, 6)
    tokenizer.has_chat_template = False
    assert first_turn(Prompt("x", ("a",), chat=True), tokenizer) == (97,)
    with pytest.raises(PromptError, match="prompt x is text, and the model has no tokenizer"):
        first_turn(Prompt("x", ("a",)), None)


def test_a_template_that_refuses_a_prompt_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Template, messages: object) -> list[int]:
        raise PromptError("the chat template refuses the talk (no)")

    monkeypatch.setattr(Template, "encode_chat", refuse)
    tokenizer: Any = Template()
    with pytest.raises(PromptError, match=r"prompt x: the chat template refuses the talk \(no\)"):
        first_turn(Prompt("x", ("a",), chat=True), tokenizer)


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (b"{", "line 2 is not JSON"),
        (b"[1]", "line 2 is list, expected one JSON object"),
        (b"\xff", "line 2 is not UTF-8 \\(byte 0\\)"),
        (b"[" * 100_000, "line 2 is nested too deeply"),
        (b'{"prompt": NaN}', "line 2 is not JSON \\(NaN is no number of JSON\\)"),
        (b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}", "line 2 is not JSON \\(Exceeds the limit"),
        (b'{"prompt": ""}', "line 2: prompt is '', expected text that is not empty"),
        (b'{"prompt": null}', "line 2: prompt is None, expected text"),
        (b'{"prompt": "\\ud800"}', "line 2: prompt is not text: character 0 is half a character"),
        (b'{"prompt": "a\x00b"}', "line 2 is not JSON \\(Invalid control character"),
        (b'{"promt": "a"}', "line 2: it has nothing that is asked, expected one of prompt, prompt_tokens, turns"),
        (b'{"prompt": "a", "turns": ["b"]}', "line 2: it has prompt and turns, expected one of"),
        (b'{"prompt_tokens": []}', "line 2: prompt_tokens is \\[\\], expected a list of token ids, one at least"),
        (b'{"prompt_tokens": [1, true]}', "prompt_tokens holds True, expected token ids, whole numbers from 0"),
        (b'{"prompt_tokens": [1.0]}', "prompt_tokens holds 1.0, expected token ids"),
        (b'{"prompt_tokens": [-1]}', "prompt_tokens holds -1, expected token ids"),
        (b'{"prompt_tokens": [2147483648]}', "prompt_tokens holds 2147483648, expected token ids"),
        (b'{"turns": []}', "line 2: turns is \\[\\], expected a list of turns, one at least"),
        (b'{"turns": ["a", ""]}', "line 2: turns\\[1\\] is '', expected text that is not empty"),
        (b'{"turns": ["a", []]}', "line 2: turns\\[1\\] is \\[\\], expected a list of token ids"),
        (b'{"turns": [{}]}', "line 2: turns\\[0\\] is {}, expected text"),
        (b'{"prompt": "a", "id": true}', "line 2: id is True, expected a name"),
        (b'{"prompt": "a", "id": "a\\nb"}', "line 2: id is 'a\\\\nb', expected a name"),
        (b'{"prompt": "a", "id": -1}', "line 2: id is -1, expected a name"),
        (b'{"prompt": "a", "category": []}', "line 2: category is \\[\\], expected a name"),
        (b'{"prompt": "a", "chat": 1}', "line 2: chat is 1, expected true or false"),
        (b'{"prompt": "a", "id": "line 1"}', "line 2: the id 'line 1' is that of line 1, expected another"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused_by_its_number(line: bytes, refusal: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.jsonl", b'{"prompt": "good"}\n' + line + b"\n")
    with pytest.raises(InputError, match=refusal) as refused:
        open_suite(path, None)
    assert str(refused.value).startswith(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"question_id": True}, "question_id is True, expected a name of"),
        ({"question_id": 1e400}, "question_id|not JSON"),
        ({"question_id": 81}, "the id '81' is that of line 1, expected another"),
        ({"turns": "text"}, "turns is 'text', expected a list of turns"),
        ({"turns": [[1, 2]]}, "turns\\[0\\] is \\[1, 2\\], expected text"),
        ({"category": 3.5}, "category is 3.5, expected a name"),
    ],
)
def test_a_question_that_cannot_be_meant_is_refused(change: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    path = written(tmp_path / "question.jsonl", lines(QUESTIONS[0], {**QUESTIONS[1], **change}))
    with pytest.raises(InputError, match=refusal):
        open_suite(path, None)
    for name in ("question_id", "category", "turns"):
        short = {key: value for key, value in QUESTIONS[1].items() if key != name}
        with pytest.raises(InputError, match=f"line 2: there is no '{name}', expected"):
            open_suite(written(tmp_path / "question.jsonl", lines(QUESTIONS[0], short)), None)


def test_whatever_is_written_into_a_file_is_read_or_refused(tmp_path: Path) -> None:
    """Seeded mutations: never another error than ours, and both answers come."""
    draw = random.Random(3)
    pieces = [
        b"\x00",
        b"\xff",
        b"{",
        b"[",
        b'"',
        b"NaN",
        b"1e999",
        b"null",
        b"\\ud800",
        b"9" * 5000,
        b"[" * 9999,
        b"\n",
    ]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        data = bytearray(lines(*QUESTIONS))
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(3)] = draw.choice(pieces) if draw.random() < 0.7 else bytes([at % 256])
        try:
            open_suite(written(tmp_path / "question.jsonl", bytes(data)), None)
            outcomes["read"] += 1
        except InputError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_what_is_no_suite_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty").mkdir()
    for spec, refusal in {
        "": "no suite is named",
        "heldout": "there is no suite 'heldout', nor such a file; did you mean 'heldout-[24]0'",
        "gsm8k=": "'gsm8k=' names no place",
        "nothing=x": "there is no suite 'nothing=x'",
        "\0": "there is no suite '.x00'",
        "x" * 5000: "there is no suite 'x+…'",
        "absent.jsonl": "there is no file 'absent.jsonl'; expected question.jsonl of Spec-Bench",
        str(tmp_path / "pipe.jsonl"): "pipe.jsonl' is no suite; expected",
        str(tmp_path / "empty"): "empty holds no .txt file; expected",
        written(tmp_path / "none.jsonl", b"\n \n"): "none.jsonl holds no prompt; expected",
        written(tmp_path / "none.txt", b"\n"): "none.txt is empty; expected the text of a prompt",
        written(tmp_path / "latin.txt", b"a\nb\xe4"): "latin.txt, line 2 is not UTF-8 \\(byte 3 of the file\\)",
        written(tmp_path / "a.csv", b"a"): "a.csv' is no suite; expected",
    }.items():
        with pytest.raises(InputError, match=refusal):
            open_suite(spec, None)
    for count in (0, -1, True, 2.0):
        with pytest.raises(InputError, match=r"the number of prompts is .*, expected a whole number from 1 on"):
            open_suite(written(tmp_path / "a.txt", b"a"), None, count=count)  # type: ignore[arg-type]

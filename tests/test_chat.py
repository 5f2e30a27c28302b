"""Conversations: each turn is what a fresh generation of the whole gives, and reads only what is new."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.model import Model
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows
from foretoken.errors import GrammarError, InputError, NumericsError, PromptError, SettingError
from foretoken.results.completion import Completion
from tests.interrupts import Interrupts
from tests.talks import TEMPLATE, talking, written

SAID = ["def add(a, b):", "class Stack:\n    def push(self, item):", "import os\nimport", "é😀 = 1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return foretoken.load(folder)


@pytest.fixture
def read(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of prompts the model reads."""
    counts: list[int] = []
    forward = Decoder.forward

    def counted(self: Decoder, rows: Rows) -> torch.Tensor:
        if self is model.target:
            counts.append(len(rows))
        return forward(self, rows)

    monkeypatch.setattr(Decoder, "forward", counted)
    return counts


def exhausted(stream: foretoken.Stream) -> Completion:
    for _ in stream:
        pass
    return stream.completion


def expect_equal(turn: Completion, fresh: Completion) -> None:
    for name in ("tokens", "text", "finish_reason", "stop_string", "logits_sha256", "prompt_tokens"):
        assert getattr(turn, name) == getattr(fresh, name)
    assert turn.logits_sha256 is not None


def in_common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


SETTINGS: list[dict[str, Any]] = [
    {"max_new_tokens": 20},
    {"max_new_tokens": 20, "temperature": 0.9, "seed": 4, "top_p": 0.9},
    {"max_new_tokens": 24, "repetition_penalty": 1.3, "temperature": 0.6, "seed": 9, "stop": ["\n", "("]},
]


@pytest.mark.parametrize("draft", ["none", "lookup", "stdlib-1m,lookup", "stdlib-1m:k=2:depth=3"])
@pytest.mark.parametrize("chosen", SETTINGS)
def test_every_turn_is_a_fresh_generation_of_the_whole_conversation_bit_for_bit(
    folder: Path, model: Model, draft: str, chosen: dict[str, Any]
) -> None:
    drafted = foretoken.load(folder, draft=draft, pace="fixed")
    chat = drafted.chat(system="Speak Python.")
    held: tuple[int, ...] = ()
    for text in SAID:
        prompt = written([*chat.messages, {"role": "user", "content": text}])
        turn = exhausted(chat.send(text, hash_logits=True, **chosen))
        expect_equal(turn, model.generate(prompt, hash_logits=True, **chosen))
        tokens = model.tokens_of(prompt)
        assert turn.cached_tokens == in_common(held, tokens[:-1])
        held = (*tokens, *turn.tokens[:-1])
        assert chat.messages[-2:] == [
            {"role": "user", "content": text},
            {"role": "assistant", "content": turn.text},
        ]
    assert turn.cached_tokens > 40


def test_a_turn_reads_what_is_new_and_no_more(model: Model, read: list[int]) -> None:
    chat = model.chat()
    turns = []
    for text in SAID:
        read.clear()
        turns.append(exhausted(chat.send(text, max_new_tokens=20)))
        assert sum(read) == turns[-1].prompt_tokens - turns[-1].cached_tokens
    assert turns[0].cached_tokens == 0
    for before, turn in pairwise(turns):
        assert turn.cached_tokens >= before.prompt_tokens - 1, "the whole prompt of the turn before is kept"
        assert turn.cached_tokens > 0.5 * turn.prompt_tokens


def test_wherever_a_turn_is_interrupted_the_conversation_goes_on(model: Model) -> None:
    """At every line of the conversation's own, the last ones of a turn among them; the exception and its frames are
    kept, as an interactive Python keeps them."""
    interrupts = Interrupts("api/chat.py")
    kept: list[BaseException] = []

    def turn(chat: foretoken.Chat) -> None:
        try:
            exhausted(chat.send(SAID[0], max_new_tokens=3))
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    chat = model.chat()
    lines = interrupts.count(lambda: turn(chat))
    assert lines > 20
    for at in range(lines):
        chat = model.chat()
        interrupts.during(partial(turn, chat), at)
        before = len(chat.messages)
        assert exhausted(chat.send(SAID[1], max_new_tokens=3)).tokens
        assert len(chat.messages) == before + 2
        chat.reset()
    assert len(kept) == lines
    kept.clear()
    gc.collect()  # what they held is not counted with what the next tests hold


def test_a_turn_that_is_closed_leaves_what_came_and_the_conversation_goes_on(model: Model, read: list[int]) -> None:
    chat = model.chat()
    first = exhausted(chat.send(SAID[0], max_new_tokens=20))
    stream = chat.send(SAID[1], max_new_tokens=20)
    said = "".join(next(stream).text for _ in range(9))
    stream.close()
    assert (stream.completion.text, stream.completion.finish_reason) == (said, "cancelled")
    assert stream.completion.cached_tokens > 0
    assert chat.prompt == model.tokens_of(written([*chat.messages[:2], {"role": "user", "content": SAID[1]}]))
    assert [message["content"] for message in chat.messages] == [SAID[0], first.text, SAID[1], said]
    prompt = written([*chat.messages, {"role": "user", "content": SAID[2]}])
    read.clear()
    turn = exhausted(chat.send(SAID[2], max_new_tokens=20, hash_logits=True))
    assert sum(read) < 40 < turn.cached_tokens
    expect_equal(turn, model.generate(prompt, max_new_tokens=20, hash_logits=True))


def test_a_turn_that_had_not_begun_leaves_nothing(model: Model) -> None:
    chat = model.chat()
    stream = chat.send(SAID[0])
    stream.close()
    assert chat.messages == []
    del stream
    assert exhausted(chat.send(SAID[0], max_new_tokens=5)).tokens


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = model.chat()
    exhausted(chat.send(SAID[0], max_new_tokens=8))
    before = chat.messages

    def broken(self: Decoder, rows: Rows) -> Any:
        raise NumericsError("broken off")

    for error, text, chosen in (
        (PromptError, "x " * 3000, {}),
        (PromptError, "\ud800", {}),
        (PromptError, 7, {}),
        (SettingError, "x", {"n": 2}),
        (SettingError, "x", {"temperatur": 1}),
        (SettingError, "x", {"logit_bias": {10**6: 1}}),
        (GrammarError, "x", {"regex": "("}),
    ):
        with pytest.raises(error):
            exhausted(chat.send(text, **chosen))  # type: ignore[arg-type]
        assert chat.messages == before
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "run", broken)
        with pytest.raises(NumericsError):
            exhausted(chat.send(SAID[1], max_new_tokens=20))
    assert chat.messages == before
    prompt = written([*before, {"role": "user", "content": SAID[2]}])
    turn = exhausted(chat.send(SAID[2], max_new_tokens=9, hash_logits=True))
    expect_equal(turn, model.generate(prompt, max_new_tokens=9, hash_logits=True))


def test_one_turn_at_a_time(model: Model) -> None:
    chat = model.chat()
    first, second = chat.send(SAID[0], max_new_tokens=5), chat.send(SAID[1], max_new_tokens=5)
    next(first)
    for call in (lambda: chat.send("x"), chat.reset, lambda: next(second)):
        with pytest.raises(InputError, match="the last turn has not ended; iterate its stream to the end, or close it"):
            call()
    exhausted(first)
    late = chat.send(SAID[1], max_new_tokens=5)
    exhausted(chat.send(SAID[2], max_new_tokens=5))
    with pytest.raises(InputError, match="another turn was taken since this one was sent, or"):
        next(late)
    assert len(chat.messages) == 4


@pytest.mark.parametrize("turns", [0, 1])
def test_what_was_sent_before_a_reset_does_not_come_into_the_new_conversation(model: Model, turns: int) -> None:
    chat = model.chat("Speak Python.")
    for text in SAID[:turns]:
        exhausted(chat.send(text, max_new_tokens=5))
    late = chat.send(SAID[1], max_new_tokens=5)
    chat.reset()
    for text in SAID[2 : 2 + turns]:  # as many messages as when it was sent
        exhausted(chat.send(text, max_new_tokens=5))
    before = chat.messages
    with pytest.raises(InputError, match="or the conversation was reset; send it again"):
        next(late)
    assert chat.messages == before
    assert exhausted(chat.send(SAID[1], max_new_tokens=5)).tokens


def test_conversations_do_not_hear_each_other_nor_what_is_generated_between(model: Model) -> None:
    one, other = model.chat(), model.chat(system="Be brief.")
    turns: list[list[Completion]] = [[], []]
    for text in SAID:
        streams = [chat.send(text, max_new_tokens=9) for chat in (one, other)]
        for pair in zip(*streams, strict=True):  # in turn
            assert len(pair) == 2
        for kept, stream in zip(turns, streams, strict=True):
            next(stream, None)
            kept.append(stream.completion)
        model.generate("something else", max_new_tokens=3)
    for chat, kept, system in ((one, turns[0], None), (other, turns[1], "Be brief.")):
        again = model.chat(system)
        assert [exhausted(again.send(text, max_new_tokens=9)).tokens for text in SAID] == [done.tokens for done in kept]
        assert again.messages == chat.messages


def test_reset_begins_anew_and_frees_what_was_kept(model: Model) -> None:
    chat = model.chat("Speak Python.")
    first = exhausted(chat.send(SAID[0], max_new_tokens=9))
    kept = model._verifier._kept._kept  # type: ignore[attr-defined]
    held = len(kept)
    chat.reset()
    assert len(kept) == held - 1
    assert chat.messages == [{"role": "system", "content": "Speak Python."}]
    again = exhausted(chat.send(SAID[0], max_new_tokens=9))
    assert again.tokens == first.tokens
    assert again.cached_tokens == 0
    assert len(kept) == held
    del chat
    gc.collect()
    assert len(kept) == held - 1, "a conversation that nobody holds is kept by nobody"


def test_a_turn_may_be_audited(model: Model) -> None:
    chat = model.chat()
    for text in SAID[:2]:
        turn = exhausted(chat.send(text, max_new_tokens=9, audit=True))
        assert turn.audit is not None
        assert turn.audit.identical
    assert turn.cached_tokens > 20


def test_a_plain_conversation_is_one_text_that_both_go_on_with(read: list[int]) -> None:
    model = foretoken.load("stdlib-1m")
    chat = model.chat(plain=True)
    text = ""
    for said in ("def add(a, b):", "\ndef sub(a, b):", "\ndef mul(a, b):"):
        turn = exhausted(chat.send(said, max_new_tokens=12, stop="\ndef", hash_logits=True))
        fresh = model.generate(text + said, max_new_tokens=12, stop="\ndef", hash_logits=True)
        expect_equal(turn, fresh)
        text += said + turn.text
        assert chat.text == text
    assert turn.cached_tokens > 0.5 * turn.prompt_tokens
    with pytest.raises(
        SettingError, match="a plain conversation has no system message; put it at the beginning of the first"
    ):
        model.chat("Speak Python.", plain=True)


def test_who_was_not_taught_to_take_turns_says_so_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PromptError) as error:
        foretoken.load("stdlib-1m").chat()
    assert str(error.value) == (
        "stdlib-1m has no chat template: it was not taught to take turns; use --plain (plain=True), where it goes on "
        "with your text, or a model that was tuned for conversations"
    )
    model = foretoken.load("stdlib-1m")
    model.tokenizer = None
    with pytest.raises(PromptError, match="stdlib-1m has no tokenizer, so it cannot read text; add its files"):
        model.chat(plain=True)


def test_what_a_template_refuses_is_told_in_its_words(model: Model, tmp_path: Path) -> None:
    refuses = foretoken.load(talking(tmp_path / "strict", "{{ raise_exception('no talk\nwith you') }}"))
    with pytest.raises(PromptError, match=r"^the chat template refuses the conversation \(no talk\)$"):
        refuses.chat().send("hello")
    broken = foretoken.load(talking(tmp_path / "broken", "{% for %}"))
    with pytest.raises(PromptError, match=r"^the chat template refuses the conversation \(.+\)$"):
        broken.chat().send("hello")


def test_a_template_in_a_file_of_its_own_is_found(folder: Path, model: Model, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    shutil.copytree(folder, apart)
    (apart / "tokenizer_config.json").write_text(
        (folder.parent / "model" / "tokenizer_config.json").read_text().replace('"chat_template"', '"unused"')
    )
    with pytest.raises(PromptError, match="has no chat template"):
        foretoken.load(apart).chat()
    (apart / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    turn = exhausted(foretoken.load(apart).chat().send(SAID[0], max_new_tokens=5))
    assert turn.tokens == exhausted(model.chat().send(SAID[0], max_new_tokens=5)).tokens


def test_a_turn_can_be_taken_back_and_taken_again(model: Model) -> None:
    chat = model.chat("Speak Python.")
    with pytest.raises(InputError, match="the conversation has no turn yet, so there is none to take back"):
        chat.take_back()
    first = exhausted(chat.send(SAID[0], max_new_tokens=9))
    before, prompt = chat.messages, chat.prompt
    assert prompt == model.tokens_of(written([before[0], before[1]]))
    second = exhausted(chat.send(SAID[1], max_new_tokens=9, hash_logits=True))
    assert chat.take_back() == SAID[1]
    assert chat.messages == before
    assert chat.prompt is None
    again = exhausted(chat.send(SAID[1], max_new_tokens=9, hash_logits=True))
    expect_equal(again, second)
    assert again.cached_tokens > first.prompt_tokens, "what was read before the turn is kept"
    chat.take_back()
    chat.take_back()
    assert chat.messages == [{"role": "system", "content": "Speak Python."}]
    stream = chat.send(SAID[0], max_new_tokens=9)
    next(stream)
    for call in (chat.take_back, lambda: chat.begin("x")):
        with pytest.raises(InputError, match="the last turn has not ended"):
            call()
    stream.close()


def test_a_conversation_begins_anew_with_another_system_message(model: Model) -> None:
    chat = model.chat("Speak Python.")
    exhausted(chat.send(SAID[0], max_new_tokens=3))
    for text in ("Be brief.", None):
        chat.begin(text)
        system = [] if text is None else [{"role": "system", "content": text}]
        assert (chat.messages, chat.prompt) == (system, None)
        turn = exhausted(chat.send(SAID[0], max_new_tokens=9, hash_logits=True))
        prompt = written([*system, {"role": "user", "content": SAID[0]}])
        expect_equal(turn, model.generate(prompt, max_new_tokens=9, hash_logits=True))
    with pytest.raises(PromptError, match="the system message is 7, expected text"):
        chat.begin(7)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="a plain conversation has no system message"):
        model.chat(plain=True).begin("Be brief.")

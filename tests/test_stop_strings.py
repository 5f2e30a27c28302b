"""Stop strings: the text ends where the first one is complete, and nothing that is cut was ever shown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretoken
from foretoken.api.checkpoint import Checkpoint
from foretoken.api.model import Model
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import SettingError
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings
from foretoken.text.stream import TextStream, watch_for_stops
from foretoken.text.tokenizer import Tokenizer
from foretoken.verification.local import LocalVerifier
from tests.fakes import Scripted
from tests.world import LONGEST, make_world


class Bytes:
    """A tokenizer whose tokens are bytes, some of them halves of characters: what they say together is the text."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.tokens[token % len(self.tokens)] for token in tokens).decode("utf-8", errors="replace")

    def leaves_out(self, token: int) -> bool:
        return False


def text_stream(pieces: Sequence[bytes], stops: Sequence[str]) -> TextStream:
    return TextStream(cast("Tokenizer", Bytes(pieces)), (), stops)


def cut_at_first(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The truth: as if characters came one by one, and each stop string were looked for after each."""
    for end in range(len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            stop = max(here, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], TextStream, int]:
    """What was shown after each token, the stream at its end, and how many tokens it was fed."""
    stream, shown = text_stream(pieces, stops), [""]
    for count in range(1, len(pieces) + 1):
        stopped = stream.feed(count - 1)
        if stopped or count == len(pieces):
            stream.finish()
        shown.append(shown[-1] + "".join(stream.take()))
        if stopped:
            break
    return shown, stream, count


characters = st.text("abé中😀\ufffd", max_size=12)
stop_strings = st.lists(st.text("abé😀\ufffd", min_size=1, max_size=4), max_size=4)


@st.composite
def divided(draw: st.DrawFn) -> list[bytes]:
    """A text in tokens of any bytes: with borders within characters, with bytes that are none, with empty tokens."""
    data = draw(characters).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at:]
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(divided(), stop_strings)
@settings(deadline=None, max_examples=500)
def test_the_text_is_all_of_it_up_to_the_first_stop_and_nothing_shown_is_ever_cut(
    pieces: list[bytes], stops: list[str]
) -> None:
    shown, stream, count = run(pieces, stops)
    whole = b"".join(pieces).decode("utf-8", errors="replace")
    assert (shown[-1], stream.stopped_by) == cut_at_first(whole, stops)
    for before, after in itertools.pairwise(shown):
        assert after.startswith(before)
    for fed, so_far in enumerate(shown[:count]):
        # what is held back is the beginning of a stop string, and half a character: no more
        said = b"".join(pieces[:fed]).decode("utf-8", errors="replace").rstrip("\ufffd")
        held = said[len(so_far) :]
        assert not held or "\ufffd" in held or any(stop.startswith(held) for stop in stops)


@given(divided(), stop_strings)
@settings(deadline=None, max_examples=200)
def test_no_token_is_taken_after_the_one_that_completes_a_stop(pieces: list[bytes], stops: list[str]) -> None:
    stops = [stop for stop in stops if "\ufffd" not in stop]  # which only what follows can tell from half a character
    _, stream, count = run(pieces, stops)
    if stream.stopped_by is not None:
        earlier = b"".join(pieces[: count - 1]).decode("utf-8", errors="replace")
        assert cut_at_first(earlier, stops)[1] is None


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stop"),
    [
        (["one", "ST", "OP", "two"], ["STOP"], "one", "STOP"),  # over a token's border
        (["oneSTOPtwo"], ["STOP"], "one", "STOP"),  # within one token
        (["aSTOP"], ["STOP", "TO"], "aS", "TO"),  # the one that is complete first, in one token
        (["a", "S", "T", "O", "P"], ["STOP", "TO"], "aS", "TO"),  # or in several
        (["aSTOP"], ["OP", "STOP"], "a", "STOP"),  # of two that end together, the longer one
        (["STSTOP"], ["STOP"], "ST", "STOP"),  # a beginning that turns out to be none
        (["S", "T", "S", "T", "O", "P"], ["STOP"], "ST", "STOP"),
        (["ST", "O"], ["STOP"], "STO", None),  # what was held back comes at the end
        (["STOP"], ["STOP"], "", "STOP"),
        (["a", "b" * 50, "c"], ["a" + "b" * 50 + "c"], "", "a" + "b" * 50 + "c"),  # longer than any token
    ],
)
def test_where_a_text_is_cut(pieces: list[str], stops: list[str], text: str, stop: str | None) -> None:
    shown, stream, _ = run([piece.encode() for piece in pieces], stops)
    assert (shown[-1], stream.stopped_by) == (text, stop)


def test_a_stop_string_is_seen_before_half_a_character_that_its_token_brings() -> None:
    stream = text_stream([b"one", b"\n \xf0\x9f", b"\x98\x80"], ["\n"])
    assert not stream.feed(0)
    assert stream.feed(1)
    assert "".join(stream.take()) == "one"


# -- in generations ---------------------------------------------------------------------------------------------------

CHUNKS = [b"a", b"\xc3", b"\xa9", b"b ", b"\xf0\x9f", b"\x98\x80", "é".encode(), b"c\xf0", b"\x9f\x98\x80d", b""]


def tiny_model(drafter: Drafter) -> Model:
    """A tiny target whose tokens are halves of characters."""
    target, tokenizer = make_world().target, cast("Tokenizer", Bytes(CHUNKS))
    return Model(
        Checkpoint(target, tokenizer, "tiny", Path()),
        LocalVerifier(target, stops=watch_for_stops(tokenizer)),
        drafter,
        budgets={"test": Budget(5, 5)},
        settings=LoadSettings(),
    )


SAME = ("tokens", "text", "finish_reason", "stop_string", "seed", "logits_sha256")


def outcome(model: Model, prompt: Sequence[int] | str, **chosen: Any) -> dict[str, Any]:
    """What must be the same however tokens were drafted."""
    return same(completed(model, prompt, **chosen))


def same(done: Completion) -> dict[str, Any]:
    return {name: getattr(done, name) for name in SAME}


def completed(model: Model, prompt: Sequence[int] | str, **chosen: Any) -> Completion:
    """A generation, and that what streamed is its text."""
    stream = model.stream(prompt, hash_logits=True, **chosen)
    shown = "".join(piece.text for piece in stream)
    assert shown == stream.completion.text
    return stream.completion


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_halves_of_characters_stop_at_the_same_token_with_drafting_and_without(shape: str) -> None:
    plain = make_world().plains[0]
    plainly = tiny_model(NothingDrafter())
    text = plainly.generate(plain.prompt, max_new_tokens=LONGEST).text
    assert any(len(character.encode()) > 1 for character in text)
    whole = text.rstrip("\ufffd")
    stops = sorted({whole[a:b] for a in range(len(whole)) for b in range(a + 1, min(a + 5, len(whole) + 1))})
    mid_block = 0
    for stop in stops:
        drafting = tiny_model(Scripted({0: plain.prompt + plain.tokens}, shape=shape))
        got = outcome(drafting, plain.prompt, max_new_tokens=LONGEST, stop=stop)
        expected = outcome(plainly, plain.prompt, max_new_tokens=LONGEST, stop=stop)
        assert got == expected
        assert (got["text"], got["stop_string"], got["finish_reason"]) == (text[: text.find(stop)], stop, "stop")
        mid_block += len(got["tokens"]) < LONGEST
    assert mid_block > 5


def test_a_text_that_is_held_back_when_the_length_is_reached_is_shown() -> None:
    plain = make_world().plains[0]
    model = tiny_model(LookupDrafter())
    for count in range(1, LONGEST):
        text = model.generate(plain.prompt, max_new_tokens=count).text
        if text:
            done = model.generate(plain.prompt, max_new_tokens=count, stop=text[-1] + "never")
            assert (done.text, done.finish_reason, done.stop_string) == (text, "length", None)


def test_a_text_that_is_held_back_when_an_end_token_comes_is_shown() -> None:
    plain = make_world().plains[0]
    model = tiny_model(LookupDrafter())
    model.end_tokens = frozenset([plain.tokens[6]])
    text = model.generate(plain.prompt).text
    done = model.generate(plain.prompt, stop=[text[-2:] + "never", text[-1] + "either"])
    assert (done.text, done.finish_reason, done.stop_string) == (text, "stop", None)
    assert len(done.tokens) == 7


PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {
        draft: foretoken.load("stdlib-1m", draft=draft, pace="fixed")
        for draft in ("none", "lookup", "stdlib-1m,lookup")
    }


@pytest.mark.parametrize("chosen", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}])
def test_whatever_drafts_the_text_stops_at_the_same_place(models: dict[str, Model], chosen: dict[str, Any]) -> None:
    whole = models["none"].generate(PROMPT, max_new_tokens=40, **chosen)
    accepted = 0
    for at in range(1, len(whole.text) - 6, 7):
        stop = whole.text[at : at + 6]
        chosen = {**chosen, "max_new_tokens": 40, "stop": [stop, "zzz"]}
        dones = {draft: completed(model, PROMPT, **chosen) for draft, model in models.items()}
        outcomes = [same(done) for done in dones.values()]
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert outcomes[0]["text"] == whole.text[: whole.text.find(stop)]
        assert outcomes[0]["tokens"] == whole.tokens[: len(outcomes[0]["tokens"])]
        accepted += dones["lookup"].stats.accepted_tokens
    assert accepted > 0


def test_each_of_several_completions_stops_by_itself(models: dict[str, Model]) -> None:
    sampled = {"temperature": 1.0, "seed": 5, "max_new_tokens": 30}
    for drafting in models.values():
        dones = drafting.completions(PROMPT, n=4, stop=["\n"], **sampled)
        wholes = drafting.completions(PROMPT, n=4, **sampled)
        assert [done.text for done in dones] == [whole.text.partition("\n")[0] for whole in wholes]
        assert len({done.text for done in dones}) > 1


@pytest.mark.parametrize("stop", [None, 3, "", [""], ["a", 1], b"ab", [b"ab"], {"a": 1}, True, ["\ud800"]])
def test_a_stop_that_is_no_text_is_refused_in_words(stop: Any) -> None:
    with pytest.raises(SettingError, match=r"^stop is .*, expected a text or several, none of them empty$"):
        GenerateSettings(stop=stop)


def test_without_a_tokenizer_there_is_no_text_that_could_stop() -> None:
    model = tiny_model(NothingDrafter())
    model.tokenizer = None
    with pytest.raises(SettingError, match="no tokenizer, so there is no text that could stop; leave stop out"):
        model.generate([1], stop="a")

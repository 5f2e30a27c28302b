"""A talk with a model, turn by turn, in which no turn reads again what earlier ones have read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from foretoken.errors import InputError, PromptError, SettingError
from foretoken.loop.output import Generation, Stream
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.text.tokenizer import Tokenizer, expect_whole

Start = Callable[[str | Sequence[int], GenerateSettings], Generation]


class Chat:
    """A talk. Made by `Model.chat`.

    A turn says exactly what a generation would whose prompt is the whole talk, as the chat template writes it. The
    target keeps what it has read, so a turn costs the reading of what is new in that prompt; `cached_tokens` of its
    completion says how much was not. A reply is read again where the tokenizer divides its text otherwise than the
    model did. The drafts' own models read the whole prompt.

    In a plain talk there is no template: all that was said, by both, is one text, which the model goes on with.
    """

    def __init__(
        self,
        start: Start,
        forget: Callable[[], None],
        tokenizer: Tokenizer | None,
        *,
        name: str,
        system: str | None,
        plain: bool,
    ) -> None:
        if tokenizer is None:
            raise PromptError(f"{name} has no tokenizer, so it cannot read what is said; add its files")
        if not plain and not tokenizer.has_chat_template:
            raise PromptError(
                f"{name} has no chat template: it was not taught to talk in turns; use --plain (plain=True), where it "
                "goes on with your text, or a model that was tuned for talks"
            )
        if plain and system is not None:
            raise SettingError("a plain talk has no system message; put it at the beginning of the first text")
        self.plain = plain
        self._start = start
        self._forget = forget
        self._tokenizer = tokenizer
        self._beginning = [] if system is None else [_message("system", system)]
        self._messages = list(self._beginning)
        self._changes = 0  # how often a turn or a reset has changed what was said
        self._begun: weakref.ref[Generation] | None = None  # the last turn of which a piece was asked for
        weakref.finalize(self, forget)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What was said so far: a `role` (system, user or assistant) and a `content` each."""
        return [dict(message) for message in self._messages]

    @property
    def text(self) -> str:
        """What was said so far, one after the other: of a plain talk, all there is."""
        return "".join(message["content"] for message in self._messages)

    def send(self, text: str, chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """Say something; the reply comes piece by piece. Settings: a `GenerateSettings`, or its fields by name.

        A stream that is closed early leaves in the talk what had been said by then, and nothing of a turn that had
        not begun to reply. A turn that fails leaves the talk as it was.
        """
        self._expect_idle()
        chosen = GenerateSettings.chosen(chosen, settings)
        if chosen.n != 1:
            raise SettingError(f"n is {chosen.n}, and a talk goes on with one reply; leave n out")
        said = _message("user", text)
        prompt = self.text + text if self.plain else self._tokenizer.encode_chat([*self._messages, said])
        itself: list[weakref.ref[Generation]] = []
        turn = self._turn(said, self._changes, self._start(prompt, chosen), itself)
        itself.append(weakref.ref(turn))  # weak, so that a stream that is dropped is closed at once
        return Stream(turn)

    def reset(self) -> None:
        """Begin anew: nothing was said, but for the system message."""
        self._expect_idle()
        self._messages = list(self._beginning)
        self._changes += 1
        self._forget()

    def _turn(
        self, said: dict[str, str], at: int, run: Generation, itself: Sequence[weakref.ref[Generation]]
    ) -> Generation:
        self._expect_idle()
        if self._changes != at:
            raise InputError("another turn was taken since this one was sent, or the talk was reset; send it again")
        self._begun = itself[0]
        reply = ""
        try:
            while True:
                try:
                    index, piece = next(run)
                except StopIteration as end:
                    self._add(said, reply)
                    completions: list[Completion] = end.value
                    return completions
                reply += piece.text
                yield index, piece
        except GeneratorExit:
            if reply:
                self._add(said, reply)
            raise
        finally:
            run.close()

    def _add(self, said: dict[str, str], reply: str) -> None:
        self._messages += [said, _message("assistant", reply)]
        self._changes += 1

    def _expect_idle(self) -> None:
        # asked of the turn itself: a note that somebody must take back stays where an interruption skips that
        turn = None if self._begun is None else self._begun()
        if turn is not None and getgeneratorstate(turn) != GEN_CLOSED:
            raise InputError("the last turn has not ended; iterate its stream to the end, or close it")


def _message(role: str, content: str) -> dict[str, str]:
    if not isinstance(content, str):
        raise PromptError(f"what is said is {content!r:.60}, expected text")
    expect_whole(content, "what is said")
    return {"role": role, "content": content}

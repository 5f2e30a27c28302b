"""A conversation with a model, turn by turn. No turn reads again what earlier turns have read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from foretoken.common.progress import many
from foretoken.errors import InputError, PromptError, SettingError
from foretoken.loop.output import Cancelled, Generation, Stream, cancel
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.text.messages import Prompt, message
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reading:
    """The three calls that a conversation makes to its model: the tokens of a prompt, a generation, and to forget what
    the model has read. The third argument of a generation: tokens that it may turn out to be, for lookup to draft."""

    tokens_of: Callable[[Prompt], tuple[int, ...]]
    start: Callable[[Prompt, GenerateSettings, tuple[int, ...]], Generation]
    forget: Callable[[], None]


class Chat:
    """A conversation. Made by `Model.chat`.

    A turn gives exactly the output of a generation whose prompt is the whole conversation, as the chat template writes
    it. The target keeps what it has read, so a turn reads only what is new in that prompt. `cached_tokens` of the
    turn's completion counts the tokens that were not read again. Part of a reply is read again if the tokenizer divides
    its text into other tokens than the model did. A draft model with a cache of its own keeps what it has read, too.

    A plain conversation has no template. The texts of both sides are joined to one text, which the model continues.
    """

    def __init__(
        self, reading: Reading, tokenizer: Tokenizer | None, *, name: str, system: str | None, plain: bool
    ) -> None:
        if tokenizer is None:
            raise PromptError(f"{name} has no tokenizer, so it cannot read text; add its files")
        if not plain and not tokenizer.has_chat_template:
            raise PromptError(
                f"{name} has no chat template: it was not taught to take turns; use --plain (plain=True), where it "
                "goes on with your text, or a model that was tuned for conversations"
            )
        self.plain = plain
        self._reading = reading
        self._beginning = self._beginning_with(system)
        self._messages = list(self._beginning)
        self._prompt: tuple[int, ...] | None = None
        self._changes = 0  # how often a turn or a reset has changed the messages
        self._begun: weakref.ref[Generation] | None = None  # the last turn of which a piece was asked for
        weakref.finalize(self, reading.forget)

    def __repr__(self) -> str:
        kind = "a plain conversation" if self.plain else "a conversation"
        return f"<Chat: {kind} of {many(len(self._messages), 'message')}>"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages so far, each with a `role` (system, user or assistant) and a `content`."""
        return [dict(each) for each in self._messages]

    @property
    def text(self) -> str:
        """The contents of all messages so far, joined. For a plain conversation, this is the whole text."""
        return "".join(each["content"] for each in self._messages)

    @property
    def prompt(self) -> tuple[int, ...] | None:
        """The tokens of the last turn's prompt: the whole conversation before its reply. None before the first turn,
        and where the last turn was taken back."""
        return self._prompt

    def send(self, text: str, chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """Send a text; iterate the stream for the pieces of the reply. Settings: a `GenerateSettings`, or its fields.

        If the stream is closed early, the conversation keeps the text and the part of the reply that came. If no reply
        came, or if the turn fails, the conversation stays as it was.

        Raises InputError while the last turn has not ended.
        """
        self._expect_idle()
        chosen = GenerateSettings.chosen(chosen, settings)
        if chosen.n != 1:
            raise SettingError(f"n is {chosen.n}, and a conversation goes on with one reply; leave n out")
        sent = message("user", text, "the text")
        prompt = self._reading.tokens_of(self.text + text if self.plain else [*self._messages, sent])
        return self._stream(sent, prompt, self._reading.start(prompt, chosen, ()))

    def recheck(self, done: Completion, chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """The last reply once more, after its host went away (its `finish_reason` is "disconnected"). What it has is
        the draft, if lookup drafts, so the host checks many tokens at once. When it ends, it takes the place of the
        last reply. If it is closed, or if the host goes away again, the last reply stays. Settings: as before; the seed
        is `done`'s.

        Raises InputError if there is no reply, and RemoteError at its first piece if the host is not there.
        """
        self._expect_idle()
        if self._prompt is None:
            raise InputError("the conversation has no reply to ask for once more; send a text first")
        chosen = GenerateSettings.chosen(chosen, settings).again(done.seed)
        run = self._reading.start(self._prompt, chosen, done.tokens)
        return self._stream(self._messages[-2], self._prompt, run, instead=True)

    def amend(self, reply: str) -> None:
        """Let the last reply be another text, such as all that is known of one that was cut off. Raises InputError if
        there is no turn."""
        self._expect_idle()
        if self._prompt is None:
            raise InputError("the conversation has no reply that could be another; send a text first")
        *before, sent, _ = self._messages
        self._end_with(before, sent, self._prompt, reply)

    def take_back(self) -> str:
        """Take the last turn back, the text and its reply. Returns that text. Raises InputError if there is no turn."""
        self._expect_idle()
        if len(self._messages) == len(self._beginning):
            raise InputError("the conversation has no turn yet, so there is none to take back; send a text first")
        *before, sent, _ = self._messages
        self._messages = before
        self._prompt = None
        self._changes += 1
        return sent["content"]

    def reset(self) -> None:
        """Begin anew: only the system message stays."""
        self._expect_idle()
        self._messages = list(self._beginning)
        self._prompt = None
        self._changes += 1
        self._reading.forget()

    def begin(self, system: str | None) -> None:
        """Begin anew with another system message, or (None) with none."""
        self._expect_idle()
        self._beginning = self._beginning_with(system)
        self.reset()

    def _beginning_with(self, system: str | None) -> list[dict[str, str]]:
        if self.plain and system is not None:
            raise SettingError("a plain conversation has no system message; put it at the beginning of the first text")
        return [] if system is None else [message("system", system, "the system message")]

    def _stream(
        self, sent: dict[str, str], prompt: tuple[int, ...], run: Generation, *, instead: bool = False
    ) -> Stream:
        itself: list[weakref.ref[Generation]] = []
        turn = self._turn(sent, prompt, self._changes, run, itself, instead=instead)
        itself.append(weakref.ref(turn))  # weak, so that a stream that is dropped is closed at once
        return Stream(turn)

    def _turn(
        self,
        sent: dict[str, str],
        prompt: tuple[int, ...],
        at: int,
        run: Generation,
        itself: Sequence[weakref.ref[Generation]],
        *,
        instead: bool = False,
    ) -> Generation:
        """instead: the reply takes the place of the last one."""
        self._expect_idle()
        if self._changes != at:
            raise InputError(
                "another turn was taken since this one was sent, or the conversation was reset; send it again"
            )
        self._begun = itself[0]
        reply, before = "", self._messages[:-2] if instead else self._messages
        try:
            while True:
                try:
                    index, piece = next(run)
                except StopIteration as end:
                    completions: list[Completion] = end.value
                    if not instead or completions[0].finish_reason != "disconnected":
                        self._end_with(before, sent, prompt, reply)
                    return completions
                reply += piece.text
                yield index, piece
        except (GeneratorExit, Cancelled) as left:
            if reply and not instead:
                self._end_with(before, sent, prompt, reply)
            if isinstance(left, Cancelled):
                return cancel(run)
            raise
        finally:
            run.close()

    def _end_with(
        self, before: Sequence[dict[str, str]], sent: dict[str, str], prompt: tuple[int, ...], reply: str
    ) -> None:
        self._messages = [*before, sent, message("assistant", reply, "the reply")]
        self._prompt = prompt
        self._changes += 1

    def _expect_idle(self) -> None:
        # the turn's own state decides: a flag would stay set if an interruption skipped the line that clears it
        turn = None if self._begun is None else self._begun()
        if turn is not None and getgeneratorstate(turn) != GEN_CLOSED:
            raise InputError("the last turn has not ended; iterate its stream to the end, or close it")

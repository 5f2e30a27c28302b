"""`--offline hold`: a text or a reply whose host went away is finished when the host is there again.

Nothing of it is lost then: the client asks for the whole text once more, with what it has as the draft. So the host
checks many tokens at once, and the text is the one that it would have written without a break.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from foretoken.cli.common import say
from foretoken.common.progress import many
from foretoken.errors import AwayError, RemoteError
from foretoken.loop.output import Piece, Stream
from foretoken.settings.generate import GenerateSettings

if TYPE_CHECKING:
    from foretoken.api.chat import Chat
    from foretoken.api.model import Model
    from foretoken.results.completion import Completion
    from foretoken.text.messages import Prompt

_PAUSE = 2.0  # seconds between tries to reach the host
_GLANCE = 0.05  # seconds between looks whether somebody has had enough of waiting


class Waiting(NamedTuple):
    """That a text waits for its host. provisional: whether text is shown meanwhile that nobody has checked yet."""

    provisional: bool


class Shown(NamedTuple):
    """Text to be shown. unverified: nobody has checked it yet. taken_back: it was shown, and is not the model's."""

    text: str
    unverified: bool = False
    taken_back: bool = False


class Held:
    """A text that ends when the host has checked all of it. Iterate it for what is to be shown; then `completion` has
    the whole. begin: begins it. again: begins it once more; what it has so far is the draft. provisional: whether text
    is shown that nobody has checked yet, and may be taken back. left: whether somebody has had enough of it; then it
    ends where it is. keep: called with what it is then.

    Raises RemoteError if the host refuses, has another model when it is there again, or writes another text.
    """

    def __init__(
        self,
        begin: Callable[[], Stream],
        again: Callable[[Completion], Stream],
        *,
        provisional: bool,
        left: Callable[[], bool] = lambda: False,
        keep: Callable[[Completion], None] = lambda _: None,
    ) -> None:
        self._keep = keep
        self._begin, self._again = begin, again
        self._provisional = provisional
        self._left = left
        self._shown = ""
        self._sure = 0  # so much of it the host has checked
        self._best: Completion | None = None  # with the most that may be the model's
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The text as the host has checked it, or what was there of it when it was left."""
        assert self._completion is not None, "iterate it first"
        return self._completion

    def __iter__(self) -> Iterator[Shown]:
        while self._completion is None:
            begun = self._begun()
            if begun is None:
                assert self._best is not None
                self._end(self._best)
                return
            stream, first = begun
            at = 0  # so much of what was shown has come again
            for piece in itertools.chain(() if first is None else (first,), stream):
                if not piece.unverified or (self._provisional and at >= self._sure):
                    at += yield from self._beyond(at, piece)
                    self._sure = self._sure if piece.unverified else max(self._sure, at)
                if self._left():
                    stream.close()
            done = stream.completion
            if done.finish_reason == "cancelled":
                known = done if self._best is None else _merged(self._best, done)
                # a text that has unchecked tokens was left because its host was gone
                self._end(replace(known, finish_reason="disconnected" if known.unverified else "cancelled"))
            elif done.finish_reason != "disconnected":
                yield from self._back_to(at)
                self._completion = done
            else:
                self._best = done if self._best is None else _merged(self._best, done)
                sure = many(len(done.tokens) - done.unverified, "token")
                more = f"; {many(done.unverified, 'token')} behind them are unchecked" if done.unverified else ""
                if not self._left():
                    self._say(f"the host is gone after {sure}{more}; waiting, Ctrl-C ends")

    def _end(self, left_with: Completion) -> None:
        self._completion = left_with
        self._keep(left_with)

    def _beyond(self, at: int, piece: Piece) -> Generator[Shown, None, int]:
        """What a piece adds to what was shown. Returns the length of its text."""
        before = self._shown[at : at + len(piece.text)]
        if before != piece.text:
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, piece.text, strict=False))
            same = sum(1 for _ in alike)
            yield from self._back_to(at + same)
            self._shown += piece.text[same:]
            yield Shown(piece.text[same:], piece.unverified)
        return len(piece.text)

    def _back_to(self, length: int) -> Iterator[Shown]:
        """Take back what was shown beyond a length."""
        back, self._shown = self._shown[length:], self._shown[:length]
        if back and not self._provisional:
            raise RemoteError("the host writes another text than it did before it was gone; generate again")
        if back:
            yield Shown(back, taken_back=True)

    def _begun(self) -> tuple[Stream, Piece | None] | None:
        """The text from its beginning, with its first piece, when the host is there. None if it was left before."""
        began, told = time.monotonic(), ""
        while True:
            if self._best is not None and self._left():
                return None
            stream = self._begin() if self._best is None else self._again(self._best)
            try:
                first = next(stream, None)
            except AwayError as error:
                if str(error) != told:
                    if told or self._best is None:  # else it has just been said that the host is gone
                        self._say(f"{error}; waiting, Ctrl-C ends")
                    told = str(error)
                if not self._rested() and self._best is None:
                    raise  # there is nothing to end with
                continue
            if self._best is not None or told:
                self._say(f"the host is there again after {time.monotonic() - began:.0f} s")
            return stream, first

    def _rested(self) -> bool:
        """Wait a little. False if it was left meanwhile."""
        until = time.monotonic() + _PAUSE
        while time.monotonic() < until and not self._left():
            time.sleep(min(_PAUSE, _GLANCE))
        return not self._left()

    def _say(self, line: str) -> None:
        if self._provisional and self._shown:  # on the terminal, the text has not ended its line
            print(file=sys.stderr)
        say(line)


def held_text(model: Model, prompt: Prompt, settings: GenerateSettings, *, provisional: bool) -> Held:
    """A text of its own. The arguments are those of `Model.stream`, and `Held`'s."""
    return Held(
        lambda: model.stream(prompt, settings),
        lambda done: model.recheck(prompt, done, settings),
        provisional=provisional,
    )


def held_reply(
    chat: Chat, text: str, settings: GenerateSettings, *, provisional: bool, left: Callable[[], bool]
) -> Held:
    """The reply to a text in a conversation. The arguments are those of `Chat.send`, and `Held`'s. If it is left, the
    conversation has what is known of it."""
    before = len(chat.messages)

    def keep(done: Completion) -> None:
        if len(chat.messages) > before and chat.messages[-1]["content"] != done.text:
            chat.amend(done.text)

    return Held(
        lambda: chat.send(text, settings),
        lambda done: chat.recheck(done, settings),
        provisional=provisional,
        left=left,
        keep=keep,
    )


def _merged(before: Completion, done: Completion) -> Completion:
    """What is known of a text after another try: the most that was checked, and behind it the most that was not."""
    sure, again = (each.tokens[: len(each.tokens) - each.unverified] for each in (before, done))
    if len(again) < len(sure) and sure[: len(again)] == again:
        return before
    if before.tokens[: len(again)] == again and len(before.tokens) > len(done.tokens):
        return replace(before, unverified=len(before.tokens) - len(again))
    return done


def marked(held: Held) -> Iterator[str]:
    """The text for a terminal: what nobody has checked is dim and underlined, and what was taken back is repeated on a
    line of its own, struck through."""
    for each in held:
        if each.taken_back:
            yield f"\n\x1b[2;9m{each.text}\x1b[0m\n"
        elif each.unverified and each.text:
            yield f"\x1b[2;4m{each.text}\x1b[0m"
        else:
            yield each.text

"""Text while its tokens are still coming: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretoken.protocol.types import Request
from foretoken.text.tokenizer import Tokenizer

_CONTEXT = 64  # how many of the prompt's tokens are decoded together with the first new ones
_INCOMPLETE = "\ufffd"  # a tokenizer's output for bytes that are not a character yet


class StreamDecoder:
    """Turns tokens into text as they come. `"".join` of all results of `feed` and `flush` is the whole text.

    New tokens are decoded together with those before them, because spaces and bytes may join over a token's border. The
    window begins at the last place but one at which a character was complete. Half a character is held back until the
    rest of it comes. Tokens that decoding leaves out are not in the window: any number of them may come, and none
    begins a window.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-_CONTEXT:])  # decoded at each step
        self._told = len(self._window)  # of these, how many came before the last complete character
        self._said = tokenizer.decode(self._window)

    def feed(self, token: int) -> str:
        """The text that this token completes, without an incomplete character at the end."""
        if self._tokenizer.leaves_out(token):
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if not text.endswith(_INCOMPLETE):
            return self._say(text)
        said, whole = self._said_of(text), text.rstrip(_INCOMPLETE)
        if len(whole) <= len(said) or not whole.startswith(said):
            return ""  # some tokenizers decode nothing of a run of bytes that is no text yet
        self._said = whole
        return whole[len(said) :]

    def flush(self) -> str:
        """The text that was held back, at the end."""
        return self._say(self._tokenizer.decode(self._window))

    def _say(self, text: str) -> str:
        new = text[len(self._said_of(text)) :]
        if new:  # a token without text, such as a first space, is no place to begin a window
            self._window = self._window[self._told :]
            self._told = len(self._window)
            self._said = self._tokenizer.decode(self._window)
        return new

    def _said_of(self, text: str) -> str:
        # a prompt may end within a character: once that is complete, the replacement character is no part of the text
        return self._said if text.startswith(self._said) else self._said.rstrip(_INCOMPLETE)


class TextStream:
    """The text of one generation while its tokens come, cut at the first stop string that is complete.

    For each token that was fed, `take` gives the text that may be shown by then. Text that may be the beginning of a
    stop string, or of a character, is held back. keep_stop: whether the text ends behind the stop string, not before.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        *,
        keep_stop: bool = False,
    ) -> None:
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer, prompt)
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._held = ""
        self._pieces: list[str] = []
        self.stopped_by: str | None = None

    def feed(self, token: int) -> bool:
        """Take in one more token. Returns whether a stop string is complete now."""
        if self._decoder is None:
            self._pieces.append("")
            return False
        self._held += self._decoder.feed(token)
        if self._cut():
            self._pieces.append(self._held)
            return True
        safe = len(self._held) - max((overlap(self._held, stop) for stop in self._stops), default=0)
        self._pieces.append(self._held[:safe])
        self._held = self._held[safe:]
        return False

    def finish(self) -> None:
        """End the text: the text that was held back belongs to the last token, up to a stop string."""
        if self._decoder is not None and self.stopped_by is None:
            self._held += self._decoder.flush()
            self._cut()
            if self._pieces:  # else the last token was shown already, without it
                self._pieces[-1] += self._held

    def take(self) -> list[str]:
        """The text of each token since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _cut(self) -> bool:
        """Cut the held text at the stop string that is complete first; of two that end together, at the longer one.

        So the result does not depend on how tokens divide the text: it is as if characters came one by one.
        """
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            end, at, self.stopped_by = min(found)
            self._held = self._held[: end if self._keep_stop else at]
        return bool(found)


def watch_for_stops(tokenizer: Tokenizer | None) -> Callable[[Request], Callable[[int], bool]]:
    """Makes, for a request, the function that is called with each token in order and returns whether one of its stop
    strings ends there."""

    def watch(request: Request) -> Callable[[int], bool]:
        if not request.stop:
            return lambda token: False
        return TextStream(tokenizer, request.prompt, request.stop).feed

    return watch


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text with which the stop string begins."""
    for count in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:count]):
            return count
    return 0

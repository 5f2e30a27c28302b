"""The turns and commands of `foretoken chat`, and what is printed of them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretoken.api.chat import Chat
from foretoken.api.model import Model
from foretoken.api.remote import stop_waiting
from foretoken.cli import show
from foretoken.cli.common import filled_the_context, say
from foretoken.cli.holding import Waiting, held_reply, marked
from foretoken.cli.table import print_stats
from foretoken.cli.typing_lines import Line
from foretoken.common.files import expect_place, write_bytes
from foretoken.common.progress import many
from foretoken.errors import quoted
from foretoken.loop.output import Piece
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.transcript import record as transcript

_COMMANDS = {
    "/regenerate": "take the last reply back, and generate it again",
    "/system TEXT": "begin a new conversation with this system message; without TEXT, with none",
    "/reset": "begin a new conversation",
    "/save FILE": "write the conversation to a file, as JSON messages",
    "/stats": "how the last reply went",
    "/help": "these commands; a line that is to begin with a slash begins with two",
    "/exit": "end, as Ctrl-D, exit and quit do",
}


class Conversation:
    """A chat whose replies are printed. as_json: an object each. stats: a table after each. interactive: on a terminal,
    where replies may be interrupted, and `exit` and `quit` are words that leave. waiting: how a reply waits for a host
    that is gone; None: it does not."""

    def __init__(
        self,
        model: Model,
        chat: Chat,
        generating: GenerateSettings,
        *,
        interactive: bool,
        as_json: bool,
        stats: bool,
        waiting: Waiting | None = None,
    ) -> None:
        self.differs = False  # whether an audit has found a difference
        self.cut_off = False  # whether a host was gone before a reply had ended
        self._model = model
        self._chat = chat
        self._generating = generating
        self._interactive = interactive
        self._as_json = as_json
        self._stats = stats
        self._waiting = waiting
        self._last: Completion | None = None
        self._sent = ""  # what the last reply answers
        self._replied = False  # whether that reply stands in the conversation
        self._whole: tuple[tuple[int, ...], Completion] | None = None  # the last reply that was not interrupted

    @property
    def way_out(self) -> str:
        """What can be done where a message does not fit into the context."""
        another = "" if self._chat.plain else ", or /system TEXT with another system message"
        return f"send a shorter text, or begin a new conversation: /reset{another}"

    def take(self, line: Line) -> bool:
        """Obey a command, or send a message and print the reply; whether the conversation goes on."""
        text = line.text
        words = text.split()
        if not words:
            return True
        if self._interactive and text.strip().lower() in ("exit", "quit"):
            return False
        typed = not line.pasted  # what is pasted is no command, and nothing of it is taken away
        if typed and text.startswith("/") and not text.startswith("//"):
            return words[0] != "/exit" and self._obey(words[0], text.strip()[len(words[0]) :].strip())
        text = text.removeprefix("/") if typed and text.startswith("//") else text
        if self._chat.plain and self._chat.text and not self._chat.text.endswith("\n"):
            text = f"\n{text}"  # what is typed begins a line
        self._send(text, self._generating)
        return True

    def record(self, path: Path) -> None:
        """Write the record of the last whole reply."""
        if self._whole is None:
            say(f"no record: no reply came to its end, so nothing was written to {path}")
            return
        prompt, done = self._whole
        transcript.write(path, self._model, prompt, self._generating, done)
        if not self._as_json:
            say(f"record: {path}")

    def _send(self, text: str, generating: GenerateSettings) -> None:
        """Send a message and print the reply, as far as it comes."""
        before = len(self._chat.messages)
        with _interruptible(self._interactive, lambda: stop_waiting(self._model)) as interrupted:
            if self._waiting is None:
                done = self._streamed(text, generating, interrupted)
            else:
                done = self._held(self._waiting, text, generating, interrupted)
        self._last, self._sent, self._replied = done, text, len(self._chat.messages) > before
        if done.finish_reason not in _BROKEN_OFF and self._chat.prompt is not None:
            self._whole = self._chat.prompt, done
        self._tell(done)

    def _streamed(self, text: str, generating: GenerateSettings, interrupted: Callable[[], bool]) -> Completion:
        """Send a message and print the reply until it ends, or is interrupted."""
        stream = self._chat.send(text, generating)

        def pieces() -> Iterator[Piece]:
            for piece in stream:
                yield piece
                if interrupted():
                    stream.close()

        self._print(show.marked(pieces()))
        return stream.completion

    def _held(
        self, waiting: Waiting, text: str, generating: GenerateSettings, interrupted: Callable[[], bool]
    ) -> Completion:
        """The same; if the host goes away, the reply waits for it."""
        held = held_reply(self._chat, text, generating, provisional=waiting.provisional, left=interrupted)
        self._print(marked(held))
        return held.completion

    def _print(self, pieces: Iterable[str]) -> None:
        if not self._as_json:
            show.print_text(pieces)
        else:
            for _ in pieces:
                pass

    def _tell(self, done: Completion) -> None:
        """What must be known of a reply: that it is not whole, and what was asked for."""
        if self._as_json:
            print(json.dumps(show.as_json(done)), flush=True)
        elif done.finish_reason == "cancelled":
            unsure = f"; nobody has checked the last {many(done.unverified, 'token')}" if done.unverified else ""
            say(f"interrupted{unsure}; the conversation goes on")
        elif done.unverified:
            say(f"the host is gone: nobody has checked the last {many(done.unverified, 'token')}")
        elif done.finish_reason == "disconnected":
            say("cut off: the host is gone, and the reply is what it had checked; /regenerate asks it again")
        elif filled_the_context(done, self._generating):
            say(f"the context of {self._model.context_length} tokens is full; {self.way_out}")
        elif done.finish_reason == "length":
            say(f"cut off after {many(len(done.tokens), 'token')}; raise --max-new-tokens for more")
        self.cut_off |= done.finish_reason == "disconnected"
        if done.audit is not None:
            self.differs |= not done.audit.identical
            if not self._as_json:
                say(show.audit(done.audit, self._model.describe))
        if self._stats:
            print_stats(done)

    def _obey(self, name: str, text: str) -> bool:
        """Do what a command says; whether the conversation goes on."""
        if name == "/reset":
            self._begin("a new conversation", self._chat.reset)
        elif name == "/system":
            what = "with this system message" if text else "without a system message"
            self._begin(f"a new conversation, {what}", lambda: self._chat.begin(text or None))
        elif name == "/regenerate":
            self._regenerate()
        elif name == "/save":
            self._save(text)
        elif name == "/stats":
            self._tell_stats()
        else:
            if name != "/help":
                say(f"there is no command {quoted(name, 40)}")
            for command, meaning in _COMMANDS.items():
                say(f"{command:<13} {meaning}")
        return True

    def _begin(self, what: str, begin: Callable[[], None]) -> None:
        begin()
        self._last = None
        say(what)

    def _regenerate(self) -> None:
        if self._last is None:
            say("there is no reply to generate again")
            return
        generating = self._generating
        if generating.temperature == 0 and self._last.finish_reason not in _BROKEN_OFF:
            say("decoding is greedy, so the reply would be the same; begin with --temperature, or ask otherwise")
            return
        if self._replied:
            self._chat.take_back()
            self._replied = False  # if this one fails, the next must not take another back
        self._send(self._sent, replace(generating, seed=None))  # a new one is drawn

    def _save(self, name: str) -> None:
        messages = self._chat.messages
        if not name or not messages:
            say("/save needs the name of a file: /save FILE" if messages else "there is nothing to save yet")
            return
        path = os.path.expanduser(name)
        expect_place(path, what="conversation", is_one=lambda start: _SAVED.match(start) is not None)
        text = json.dumps(messages, ensure_ascii=False, indent=1)
        write_bytes(path, f"{text}\n".encode(), what="conversation")
        say(f"saved: {path}")

    def _tell_stats(self) -> None:
        last = self._last
        if last is None:
            say("there is no reply to tell of")
            return
        full = self._model.context_length if filled_the_context(last, self._generating) else None
        say(show.summary(last, full))
        say(f"the prompt had {many(last.prompt_tokens, 'token')}, {last.cached_tokens} of them kept from earlier turns")


_BROKEN_OFF = ("cancelled", "disconnected")  # why a reply is not whole
_SAVED = re.compile(rb'\s*\[\s*\{\s*"(role|content)"\s*:\s*"')  # how a conversation in a file begins


@contextmanager
def _interruptible(interactive: bool, told: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Within it, on a terminal, the first Ctrl-C is noted, and what it yields says so; a second one ends the process.
    told: called at the first.

    It is not raised: an exception between any two steps would be no way to leave a pass.
    """
    came = False

    def note(*_: Any) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        told()

    if not interactive:
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)

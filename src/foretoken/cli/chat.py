"""`foretoken chat`: talk with a model, turn by turn."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options
from foretoken.cli.common import filled_the_context, load, say
from foretoken.common.files import MOST_READ
from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import InputError, PromptError, quoted
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.chat import Chat
    from foretoken.api.model import Model
    from foretoken.results.completion import Completion

_PROMPT = "> "
_COMMANDS = {
    "/reset": "begin a new talk",
    "/stats": "how the last reply went",
    "/help": "these commands; a line that is to begin with a slash begins with two",
    "/exit": "end, as Ctrl-D does",
}


@options.with_settings(without=("n", "logprobs", "cache"), max_new_tokens=1024)
def chat(
    loading: LoadSettings,
    generating: GenerateSettings,
    model: options.Model = DEFAULT_MODEL,
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the talk.", show_default="nothing")
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Without a chat template: the model goes on with the text, and you with its own."),
    ] = False,
) -> None:
    """Talk with a model: a line is what you say, the reply streams to standard output.

    What earlier turns have read is kept, so a turn reads only what is new. Ctrl-C ends a reply, and the talk goes on;
    Ctrl-D or /exit ends the talk; /help tells the commands. Lines may come from a pipe: then there is nothing but
    replies on standard output, and Ctrl-C ends all of it.
    """
    loaded = load(model, **asdict(loading))
    talk = loaded.chat(system, plain=plain)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        say(f"{model}, draft {loaded.draft}; Ctrl-D ends the talk, /help tells more")
    last: Completion | None = None
    for line in _typed() if interactive else _piped():
        if not line.strip():
            continue
        if line.startswith("/") and not line.startswith("//"):
            command = line.strip()
            if command == "/exit":
                break
            last = _obey(command, talk, loaded, last)
            continue
        try:
            with _interruptible(interactive) as interrupted:
                last = _turn(talk, line.removeprefix("/") if line.startswith("//") else line, generating, interrupted)
        except InputError as error:
            if not interactive:
                raise
            say(f"{error}; /reset begins a new talk" if isinstance(error, PromptError) else str(error))
        else:
            _tell(last, loaded, generating)


def _turn(talk: Chat, text: str, generating: GenerateSettings, interrupted: Callable[[], bool]) -> Completion | None:
    """Say something and print the reply. None if it was interrupted."""
    from foretoken.cli import show

    if talk.plain and talk.text and not talk.text.endswith("\n"):
        text = f"\n{text}"  # what is typed begins a line
    stream = talk.send(text, generating)

    def pieces() -> Iterator[str]:
        for piece in stream:
            yield piece.text
            if interrupted():
                stream.close()
                return

    show.print_text(pieces())
    return None if interrupted() else stream.completion


def _tell(done: Completion | None, model: Model, generating: GenerateSettings) -> None:
    """What must be known of a reply: that it is not whole."""
    if done is None:
        say("interrupted; the talk goes on")
    elif filled_the_context(done, generating):
        say(f"the context of {model.context_length} tokens is full; /reset begins a new talk")
    elif done.finish_reason == "length":
        say(f"cut off after {len(done.tokens)} tokens: --max-new-tokens")


def _obey(command: str, talk: Chat, model: Model, last: Completion | None) -> Completion | None:
    """Do what a command says; the last reply that there is afterwards."""
    from foretoken.cli import show

    if command == "/reset":
        talk.reset()
        say("a new talk")
        return None
    if command == "/stats":
        if last is None:
            say("there is no whole reply to tell of")
        else:
            say(show.summary(last))
            say(f"the prompt had {last.prompt_tokens} tokens, {last.cached_tokens} of them kept from earlier turns")
        return last
    if command != "/help":
        say(f"there is no command {quoted(command, 40)}")
    for name, meaning in _COMMANDS.items():
        say(f"{name:<7} {meaning}")
    return last


def _typed() -> Iterator[str]:
    """Lines from a terminal. Ctrl-C at the prompt ends nothing: it may have come too late to end a reply."""
    import readline  # noqa: F401 (makes `input` edit lines)

    while True:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = input(_PROMPT) if sys.stdout.isatty() else _asked()
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            say("Ctrl-D or /exit ends the talk")
            continue
        except UnicodeDecodeError as error:
            say(f"what was typed is not UTF-8 (byte {error.start}); type text")
            continue
        finally:
            signal.signal(signal.SIGINT, before)
        yield line


def _asked() -> str:
    """A line, where replies go into a file: the prompt does not."""
    print(_PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _piped() -> Iterator[str]:
    """Lines from a pipe or a file."""
    if sys.stdin is None:
        raise PromptError("there is nothing to read; talk on standard input")
    lines = iter(lambda: sys.stdin.buffer.readline(MOST_READ), b"")
    for number, line in enumerate(lines, 1):
        if len(line) == MOST_READ:
            raise PromptError(f"line {number} is longer than {MOST_READ >> 20} MB; expected text")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {number} is not UTF-8 (byte {error.start}); expected text") from None
        yield text.removesuffix("\n").removesuffix("\r")


@contextmanager
def _interruptible(interactive: bool) -> Iterator[Callable[[], bool]]:
    """Within it, on a terminal, the first Ctrl-C is noted, and what it yields says so; a second one ends the process.

    It is not raised: an exception between any two steps would be no way to leave a pass.
    """
    came = False

    def note(*_: Any) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    if not interactive:
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)

"""`foretoken generate`: continue a prompt."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.asking import escape_in, read_prompt, taken_as_typed, unescaped, with_escapes
from foretoken.cli.common import Far, filled_the_context, say
from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import SettingError
from foretoken.settings.generate import GenerateSettings, expect_repeatable
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.model import Model
    from foretoken.results.completion import Completion
    from foretoken.text.messages import Prompt


@options.with_settings()
def generate(
    loading: LoadSettings,
    generating: GenerateSettings,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt. Without it: --prompt-file, or standard input.")
    ] = None,
    model: options.Model = DEFAULT_MODEL,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    token_ids: Annotated[
        str | None,
        typer.Option(help="The prompt as token ids, such as 1,2,3.", metavar="NUMBERS", show_default="none"),
    ] = None,
    escapes: Annotated[
        bool,
        typer.Option("--escapes", "-e", help=r"In the prompt and in --stop, read \n as a line break and \t as a tab."),
    ] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Apply the model's chat template to the prompt."),
    ] = False,
    system: Annotated[
        str | None,
        typer.Option(help="With --chat: a system message.", metavar="TEXT", show_default="none"),
    ] = None,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Decode again without a draft and compare. Exit code 1 if a token differs."),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write a record of the generation to this file. `foretoken verify` can check it, and "
            "--pace replay:FILE can use it. An existing file is replaced only if it is a record."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw where the time went, into this file (.png or .svg). "
            "An existing file is replaced only if it is a picture."
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Print what each draft did, and how long that took, to standard error."),
    ] = False,
    remote: options.Remote = None,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
    offline: options.Offline = "stop",
    show_origins: Annotated[bool, typer.Option("--show-origins", help="Colour tokens by who proposed them.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each completion, on a line of its own.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="With --json: print an object for each token too, as soon as it is there.")
    ] = False,
) -> None:
    """Continue a prompt. The text goes to standard output, a summary to standard error.

    The model continues the prompt as it is; with --chat it answers. A line break at the end of a file or of standard
    input is not part of the prompt.
    """
    if system is not None and not chat:
        raise SettingError("--system came without --chat, and only a chat template has a system message; give --chat")
    if as_json and show_origins:
        raise SettingError("--json and --show-origins were both given; the JSON object has the origins already")
    for option, given in (("--show-origins", show_origins), ("--plot", plot), ("--record", record)):
        if given and generating.n > 1:
            raise SettingError(f"{option} is for one completion, and --n is {generating.n}; leave one of them out")
    if record is not None and plot is not None and os.path.realpath(record) == os.path.realpath(plot):
        raise SettingError(f"--record and --plot both name {plot}; give each a file of its own")
    if stream and (not as_json or generating.n > 1):
        raise SettingError("--stream is for --json and one completion: without --json, text streams anyway")
    holding = offline == "hold"
    others = (("--n", generating.n > 1), ("--stream", stream), ("--show-origins", show_origins))
    for option, given in (*others, ("--private-suffix", generating.private_suffix is not None)):
        if holding and given:
            raise SettingError(f"{option} and --offline hold were both given; leave one of them out")
    provisional = holding and not as_json and sys.stdout is not None and sys.stdout.isatty()  # a person reads it
    far = Far(remote, token_file, ca, "stop" if holding and remote is not None and not provisional else offline)
    far.expect(record=record, audit=audit, logprobs=generating.logprobs is not None)
    text = read_prompt(prompt, prompt_file, token_ids)
    if chat and not isinstance(text, str):
        raise SettingError("--chat and --token-ids were both given; a chat template needs text")
    typed = [*generating.stops, prompt or ""]
    if escapes:
        generating, text = with_escapes(generating), unescaped(text) if isinstance(text, str) else text
    recording = record is not None
    generating = replace(generating, hash_logits=recording, keep_rounds=recording or plot is not None, audit=audit)
    if audit:
        expect_repeatable(loading.rule, generating, "an audit")

    from foretoken.cli import show
    from foretoken.cli.table import print_stats
    from foretoken.common.pictures import expect_drawable
    from foretoken.text.messages import conversation
    from foretoken.timeline import draw as timeline
    from foretoken.transcript import record as transcript

    if record is not None:
        transcript.expect_provable(loading.rule, generating)
        transcript.expect_place(record)
    if plot is not None:
        expect_drawable(plot)
    loaded = far.load(model, loading)
    if record is not None:
        transcript.expect_as_loaded(loaded)
    # once, for all that follows: a template may write the time
    asked = loaded.tokens_of(conversation(system, text)) if chat and isinstance(text, str) else text
    completions = []
    if holding:
        found = _held(loaded, asked, generating, as_json=as_json, provisional=provisional)
    else:
        found = _completions(loaded, asked, generating, as_json=as_json, each=stream, show_origins=show_origins)
    for done in found:
        completions.append(done)
        if as_json:
            print(json.dumps(show.as_json(done)), flush=True)
        else:
            _tell(done, loaded, generating, len(completions))
        if stats:
            print_stats(done)
    if not as_json and (idle := options.without_effect(generating, loading)):
        say(f"decoding was greedy, so {', '.join(idle)} changed nothing; give --temperature")
    if not as_json and loading.draft.strip() == "none" and loading.num_speculative_tokens is not None:
        say("nothing drafts, so --num-speculative-tokens changed nothing; give --draft")
    if not as_json and not escapes and (escape := escape_in(*typed)) is not None:
        say(taken_as_typed(escape))
    if not as_json and not chat and isinstance(text, str) and _has_other_template(loaded, text):
        say("the model has a chat template, and the prompt was given without it; --chat applies it")
    if record is not None:
        transcript.write(record, loaded, asked, generating, completions[0])
    if plot is not None:
        timeline.draw(plot, completions[0], loaded.name)
    for what, place in (("record", record), ("picture", plot)):
        if place is not None and not as_json:
            say(f"{what}: {place}")
    differs = any(done.audit is not None and not done.audit.identical for done in completions)
    if differs or any(done.finish_reason == "disconnected" for done in completions):
        raise typer.Exit(1)


def _completions(
    model: Model, prompt: Prompt, generating: GenerateSettings, *, as_json: bool, each: bool, show_origins: bool
) -> Iterator[Completion]:
    """The completions, each when its text has been printed; for --json, nothing is but `each` token, if asked for."""
    from foretoken.cli import show

    if generating.n > 1:
        for number, done in enumerate(model.completions(prompt, generating), 1):
            if not as_json:
                print(f"== {number} of {generating.n}")
                show.print_text([done.text])
            yield done
        return
    stream = model.stream(prompt, generating)
    if as_json:
        for piece in stream:
            if each:
                print(json.dumps(show.piece_as_json(piece)), flush=True)
    elif show_origins:
        show.print_with_origins(stream, model.levels)
    else:
        show.print_text(show.marked(stream))
    yield stream.completion


def _held(
    model: Model, prompt: Prompt, generating: GenerateSettings, *, as_json: bool, provisional: bool
) -> Iterator[Completion]:
    """The completion when the host has checked all of it, however often it goes away."""
    from foretoken.cli import show
    from foretoken.cli.holding import held_text, marked

    held = held_text(model, prompt, generating, provisional=provisional)
    if as_json:
        for _ in held:
            pass
    else:
        show.print_text(marked(held))
    yield held.completion


def _has_other_template(model: Model, text: str) -> bool:
    """Whether the model has a chat template, and a text is not written in it already."""
    tokenizer = model.tokenizer
    return tokenizer is not None and tokenizer.has_chat_template and not tokenizer.begins_as_chat(text)


def _tell(done: Completion, model: Model, generating: GenerateSettings, number: int) -> None:
    """What there is to say of a completion, on standard error; of several, which it is."""
    from foretoken.cli import show

    full = model.context_length if filled_the_context(done, generating) else None
    which = f"{number} of {generating.n}: " if generating.n > 1 else ""
    say(f"{which}{show.summary(done, full)}")
    if done.audit is not None:
        say(f"{which}{show.audit(done.audit, model.describe)}")
    for line in show.log_probabilities(done, model.describe):
        say(line)

"""`foretoken generate`: continue a prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from foretoken.errors import PromptError, SettingError
from foretoken.settings import GenerateSettings, LoadSettings
from foretoken.source import DEFAULT_MODEL

_LOAD, _GENERATE = LoadSettings(), GenerateSettings()


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; otherwise --prompt-file, or standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a hub id (owner/name) or an embedded model.")] = DEFAULT_MODEL,
    draft: Annotated[
        str, typer.Option(help="What drafts: none, lookup, lookup:min_match=3:tokens=4, ...")
    ] = _LOAD.draft,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = _GENERATE.max_new_tokens,
    num_speculative_tokens: Annotated[int | None, typer.Option(help="Most draft tokens a round.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end token.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = _LOAD.dtype,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = _LOAD.device,
    threads: Annotated[int | None, typer.Option(help="Threads of arithmetic.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    show_origins: Annotated[bool, typer.Option("--show-origins", help="Colour tokens by who proposed them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
) -> None:
    """Continue a prompt: text streams to standard output, a summary goes to standard error.

    One line break at the end of a file or of standard input is not part of the prompt; the output ends with one.
    """
    if as_json and show_origins:
        raise SettingError("--json and --show-origins were both given; the JSON object has the origins already")
    text = _read_prompt(prompt, prompt_file)
    settings = GenerateSettings(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos)

    from foretoken.build import load
    from foretoken.cli import show

    loaded = load(
        model,
        draft=draft,
        num_speculative_tokens=num_speculative_tokens,
        dtype=dtype,
        device=device,
        threads=threads,
        revision=revision,
    )
    stream = loaded.stream(text, max_new_tokens=settings.max_new_tokens, ignore_eos=settings.ignore_eos)
    if as_json:
        for _ in stream:
            pass
        print(json.dumps(show.as_json(stream.completion)))
        return
    if show_origins:
        show.print_with_origins(stream)
    else:
        for piece in stream:
            print(piece.text, end="", flush=True)
        if not stream.completion.text.endswith("\n"):
            print()
    print(f"-- {show.summary(stream.completion)}", file=sys.stderr)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise PromptError("a prompt came as an argument and as --prompt-file; give one of them")
    if prompt is not None:
        return prompt
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise PromptError("there is no prompt; give it as an argument, with --prompt-file, or on standard input")
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise PromptError(f"{file} cannot be read ({error.strerror}); name a file of text") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt is not UTF-8 (byte {error.start}); expected text") from None
    return text.removesuffix("\n").removesuffix("\r")

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
    max_new_tokens: Annotated[
        int, typer.Option(help="Stop after this many tokens, or where the model's context is full.")
    ] = _GENERATE.max_new_tokens,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Most draft tokens a round.", show_default="what suits the draft")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end token.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = _LOAD.dtype,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = _LOAD.device,
    promise: Annotated[
        str, typer.Option(help="exact (on the CPU), algorithmic, or auto: exact wherever it can be kept.")
    ] = _LOAD.promise,
    weights: Annotated[
        str, typer.Option(help="mapped: read where the files are; copied: into memory of their own, in huge pages.")
    ] = _LOAD.weights,
    threads: Annotated[
        int | None, typer.Option(help="Threads of arithmetic.", show_default="as many as PyTorch takes")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default="the hub's main branch")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Decode again plainly and compare tokens; say where the first differs, with exit code 1."
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write a record to this file, for `foretoken verify` to prove again. Replaces a record, no other file."
        ),
    ] = None,
    show_origins: Annotated[bool, typer.Option("--show-origins", help="Colour tokens by who proposed them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
) -> None:
    """Continue a prompt: text streams to standard output, a summary goes to standard error.

    One line break at the end of a file or of standard input is not part of the prompt; the output ends with one.
    """
    if as_json and show_origins:
        raise SettingError("--json and --show-origins were both given; the JSON object has the origins already")
    text = _read_prompt(prompt, prompt_file)
    settings = GenerateSettings(max_new_tokens, ignore_eos, hash_logits=record is not None, audit=audit)

    from foretoken.build import load
    from foretoken.cli import show
    from foretoken.transcript import record as transcript

    if record is not None:
        transcript.expect_place(record)
    loaded = load(
        model,
        draft=draft,
        num_speculative_tokens=num_speculative_tokens,
        dtype=dtype,
        device=device,
        promise=promise,
        weights=weights,
        threads=threads,
        revision=revision,
    )
    stream = loaded.stream(text, settings)
    if as_json:
        for _ in stream:
            pass
        print(json.dumps(show.as_json(stream.completion)), flush=True)
    else:
        if show_origins:
            show.print_with_origins(stream)
        else:
            for piece in stream:
                print(piece.text, end="", flush=True)
            if not stream.completion.text.endswith("\n"):
                print(flush=True)
    done = stream.completion
    if not as_json:
        full = done.finish_reason == "length" and len(done.tokens) < settings.max_new_tokens
        print(f"-- {show.summary(done, loaded.context_length if full else None)}", file=sys.stderr)
    if done.audit is not None and not as_json:
        print(f"-- {show.audit(done.audit, loaded.describe)}", file=sys.stderr)
    if record is not None:
        transcript.write(record, loaded, text, settings, done)
        if not as_json:
            print(f"-- record: {record}", file=sys.stderr)
    if done.audit is not None and not done.audit.identical:
        raise typer.Exit(1)


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

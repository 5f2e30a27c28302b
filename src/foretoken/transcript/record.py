"""Writes records."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from foretoken.api.model import Model
from foretoken.common import files
from foretoken.common.hashes import sha256
from foretoken.common.provenance import processor, provenance, version_of
from foretoken.common.source import EMBEDDED, EMBEDDED_DRAFTERS
from foretoken.decoder.shards import deciding_files
from foretoken.drafters.table import DRAFTERS
from foretoken.errors import InputError, TranscriptError
from foretoken.kernels.gpu import NAME as GPU
from foretoken.kernels.reference import DEFINITION
from foretoken.pace.replay import FIELD, choices_to_json
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings, expect_repeatable
from foretoken.text.messages import Prompt
from foretoken.transcript.layout import FORMAT, LATER_LOAD_SETTINGS, LOAD_SETTINGS, VERSION, settings_to_json


def record(path: str | Path, model: Model, prompt: Prompt, **settings: Any) -> Completion:
    """Generate a completion, and write its record to a file. Settings: the fields of `GenerateSettings`.

    For messages, the record holds the tokens of the text that the chat template has written. An existing record at this
    path is replaced when the new one is complete, and not before.

    Raises TranscriptError before anything is generated if the file cannot be written, if the sampled tokens could not
    be proven, or if a file of the model is not the one that was loaded. Raises it afterwards if a file has changed
    meanwhile.
    """
    expect_place(path)
    chosen = GenerateSettings.of({**settings, "hash_logits": True, "keep_rounds": True})
    expect_provable(model.settings.rule, chosen)
    expect_as_loaded(model)
    written = prompt if isinstance(prompt, str) else model.tokens_of(prompt)
    completion = model.generate(written, chosen)
    write(path, model, written, chosen, completion)
    return completion


def expect_provable(rule: str, settings: GenerateSettings) -> None:
    """Raise TranscriptError for settings that cannot be recorded: several completions, or tokens that would not come
    again."""
    expect_repeatable(rule, settings, "a record", TranscriptError)
    if settings.n != 1:
        raise TranscriptError(f"n is {settings.n}, and a record holds one completion; leave n out")


def expect_as_loaded(model: Model) -> dict[str, Path]:
    """The files that decide a model's output, by their names. Raises TranscriptError if one is not the file from which
    the model was loaded."""
    files, what = model.files, "is not the file that the model was loaded from; load the model again to record it"
    if files is None:
        return deciding_files(model.folder)
    files.expect_unchanged(what, TranscriptError)
    found = deciding_files(model.folder)
    for file in found.values():
        if file not in files.files:
            raise TranscriptError(f"{file} {what}")
    return found


def expect_place(path: str | Path) -> None:
    """Raise TranscriptError for a path to which a record cannot be written, and for a file that is no record."""
    files.expect_place(path, TranscriptError, is_one=lambda start: FORMAT.encode() in start)


def write(
    path: str | Path, model: Model, prompt: str | Sequence[int], settings: GenerateSettings, completion: Completion
) -> None:
    """Write the record of a completion that was generated with these settings, `hash_logits` among them.

    prompt: text or tokens. For messages, give the tokens that the model has read, because a template may write another
    text later, for example with the date in it. With the completion's rounds, the record also has what the pace chose.
    Raises InputError for a completion that is cancelled or has no SHA-256.
    """
    expect_provable(model.settings.rule, settings)
    if completion.finish_reason == "cancelled":
        raise InputError("the completion was cancelled, so nothing proves where it ends; generate it to its end")
    if completion.logits_sha256 is None:
        raise InputError("the completion has no SHA-256 of its logits; generate it with hash_logits=True")
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": str(Path(model.name).absolute()) if Path(model.name).is_dir() else model.name,
        "revision": _revision(model),
        "prompt": {"text": prompt if isinstance(prompt, str) else None, "tokens": model.tokens_of(prompt)},
        "settings": {
            **{name: getattr(model.settings, name) for name in (*LOAD_SETTINGS, *LATER_LOAD_SETTINGS)},
            "num_speculative_tokens": model.num_speculative_tokens,
            "context": model.context_length,  # a text may end where it is full; a bound of memory makes it shorter
            "dtype": str(model.target.weights.embedding.dtype).removeprefix("torch."),
            "draft": _draft(model.draft),
            **settings_to_json(settings, completion.seed),
        },
        FIELD: None if completion.rounds is None else choices_to_json(tuple(model.budgets), completion.rounds),
        "promise": completion.promise,
        "arithmetic": arithmetic(model),
        "tokens": completion.tokens,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_string": completion.stop_string,
        "logits_sha256": completion.logits_sha256,
        "files": {name: sha256(file) for name, file in expect_as_loaded(model).items()},
        "provenance": provenance(),
    }
    expect_as_loaded(model)  # again: the hashed files must be those that were loaded
    files.write_json(path, content, TranscriptError)


def _draft(spec: str) -> str:
    """The draft with absolute paths: a record may be verified from another folder."""
    levels = []
    for part in spec.split(","):
        name, colon, options = part.strip().partition(":")
        here = name not in DRAFTERS and name not in (*EMBEDDED, *EMBEDDED_DRAFTERS) and Path(name).expanduser().is_dir()
        options = ":".join(_absolute(option) for option in options.split(":"))
        levels.append((str(Path(name).expanduser().absolute()) if here else name) + colon + options)
    return ",".join(levels)


def _absolute(option: str) -> str:
    key, equals, value = option.partition("=")
    return f"{key}={Path(value).expanduser().absolute()}" if equals and key == "from" else option


def _revision(model: Model) -> str | None:
    """The revision that was asked for. For a model from a hub it is the commit, because a branch moves on."""
    asked, folder = model.settings.revision, model.folder
    return folder.name if folder.parent.name == "snapshots" else asked


def arithmetic(model: Model) -> dict[str, Any]:
    """The engine, and the things on which its bits depend."""
    target = model.target
    if target.arithmetic.startswith("native"):
        return {"engine": "native", "architecture": platform.machine(), "definition": DEFINITION}
    on_gpu = target.device.type == "cuda"
    called = torch.cuda.get_device_name(target.device) if on_gpu else processor()
    version = str(torch.__version__)
    if target.arithmetic == GPU:
        return {"engine": GPU, "torch": version, "triton": version_of("triton"), "processor": called}
    return {"engine": "pytorch", "torch": version, "threads": target.threads, "processor": called}

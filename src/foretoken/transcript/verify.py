"""Proving a record again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.common.files import FilesAsRead
from foretoken.common.provenance import provenance
from foretoken.common.source import resolve
from foretoken.decoder.shards import deciding_files
from foretoken.drafters.ladder import expect_known
from foretoken.errors import (
    DraftSpecError,
    InputError,
    ModelError,
    ModelNotFoundError,
    TranscriptError,
    cut,
    one_line,
    quoted,
)
from foretoken.kernels import gpu, native
from foretoken.kernels.gpu import NAME as GPU
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings
from foretoken.transcript.files import expect_same
from foretoken.transcript.layout import LATER_LOAD_SETTINGS, LOAD_SETTINGS, read, settings_from_json
from foretoken.transcript.record import arithmetic

T = TypeVar("T")


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    # Whether everything in the record came again.
    verified: bool
    # How many tokens were compared.
    compared_tokens: int
    # What differs, in words; None if nothing does.
    difference: str | None = None


def verify(
    path: str | Path,
    model: str | Path | None = None,
    *,
    draft: str | None = None,
    threads: int | None = None,
    memory: str | int | None = None,
) -> Verification:
    """Generate again what a record says, and compare tokens, text and logits, bit for bit.

    model: where the checkpoint is, if not where the record says. draft: what drafts, if not what drafted then; it must
    prove the same. memory: as in `LoadSettings`, whatever it was then. Raises TranscriptError for a record that cannot
    be read, is of other files, of another engine, or of arithmetic that was defined otherwise and gives other bits.
    """
    content = read(Path(path))
    chosen = _load_settings(path, content, threads)
    if draft is not None and content["promise"] == "algorithmic":
        raise TranscriptError(
            f"{path} was made under the promise 'algorithmic', where bits may depend on what drafts; verify it with "
            "the draft that it names"
        )
    if draft is not None:
        chosen = replace(chosen, draft=draft, num_speculative_tokens=None)
    with _blaming_the_draft(path, recorded=draft is None):
        expect_known(chosen)  # a wrong name should not cost the reading of all files
    generate = _blaming(path, lambda: settings_from_json(content["settings"]))
    if memory is not None:
        chosen = _bounded(chosen, memory, len(content["prompt"]["tokens"]) + generate.max_new_tokens)
    if native.module() is None and chosen.device == "cpu":
        _expect_engine(path, content, "pytorch", f"the native module is {native.explain()}")
    if content["arithmetic"]["engine"] == GPU and (why := gpu.why_not(torch.device(chosen.device))) is not None:
        raise TranscriptError(
            f"{path} was made by {GPU} on a GPU, which cannot run here ({why}), and other engines have other bits: "
            "verify it on a machine like its own"
        )
    folder = _find(path, content, model)
    files = deciding_files(folder)
    noted = FilesAsRead.note(files.values())
    expect_same(str(path), content["files"], files)
    with _blaming_the_draft(path, recorded=draft is None):  # the target's files are there
        here = load(folder, **asdict(replace(chosen, revision=None)))
    noted.expect_unchanged("was changed while the record was verified; verify it again", TranscriptError)
    dtype = str(here.target.weights.embedding.dtype).removeprefix("torch.")
    if memory is not None and dtype != content["settings"]["dtype"]:
        raise TranscriptError(
            f"{path} is of weights as {cut(str(content['settings']['dtype']), 30)}, and under a bound of memory they "
            f"are {dtype}, as in their files; verify it without the bound"
        )
    now = arithmetic(here)
    _expect_engine(path, content, now["engine"], here.target.because)
    was = content["arithmetic"].get("architecture")
    if now["engine"] == "native" and was != now["architecture"]:
        raise TranscriptError(
            f"{path} was made on {cut(str(was), 30)}, and this machine is {now['architecture']}: their bits may "
            "differ; verify it on a machine like its own"
        )
    found = _compare(path, content, here, generate)
    defined = _definition(content["arithmetic"])
    if not found.verified and now["engine"] == "native" and defined != now["definition"]:
        raise TranscriptError(
            f"{path}: {found.difference}. It was made with definition {quoted(defined, 20)} of the native engine's "
            f"arithmetic, and this Foretoken has definition {now['definition']}, which may be why; verify it with the "
            "Foretoken that wrote it, or record it again"
        )
    return found


def _compare(path: str | Path, content: dict[str, Any], here: Model, settings: GenerateSettings) -> Verification:
    """What a record claims against what is generated here: the first difference, if there is one."""
    text, prompt, tokens = content["prompt"]["text"], tuple(content["prompt"]["tokens"]), content["tokens"]

    def differs(what: str, compared: int) -> Verification:
        return Verification(False, compared, what + _other_circumstances(content, here))

    if text is not None and _blaming(path, lambda: here.tokens_of(text)) != prompt:
        return differs("the prompt's text gives other tokens here than the record holds", 0)
    stream = _blaming(path, lambda: here.stream(prompt, settings))
    for position, piece in enumerate(iter(lambda: _blaming(path, lambda: next(stream, None)), None)):
        if position == len(tokens):
            stream.close()
            return differs(f"the record ends after {position} tokens, and generation goes on here", position)
        if piece.token != tokens[position]:
            stream.close()
            names = here.describe(piece.token), here.describe(tokens[position])
            return differs(f"token {position} is {names[0]} here, and {names[1]} in the record", position + 1)
    done = stream.completion
    count = len(done.tokens)
    if count < len(tokens):
        return differs(f"generation ends after {count} tokens here, and the record has {len(tokens)}", count)
    for name in ("finish_reason", "stop_string", "text", "promise"):
        if getattr(done, name) != content[name]:
            return differs(f"{count} tokens are equal, but {name} is another", count)
    if done.logits_sha256 != content["logits_sha256"]:
        return differs(f"{count} tokens are equal, but their logits differ in some bit", count)
    return Verification(True, count)


def _expect_engine(path: str | Path, content: dict[str, Any], here: str, because: str | None) -> None:
    made = content["arithmetic"]["engine"]
    if made == here:
        return
    if GPU in (made, here):
        raise TranscriptError(
            f"{path} was made by {made}; here runs {here}, and its bits are others: verify it on a machine like its own"
        )
    if made == "native":
        raise TranscriptError(
            f"{path} was made by the native engine; here runs pytorch because {because}, and its bits are others: "
            "verify it where the native engine runs"
        )
    raise TranscriptError(
        f"{path} was made by pytorch; here runs the native engine, and its bits are others: "
        "verify it with FORETOKEN_NATIVE=off"
    )


def _definition(recorded: Mapping[str, Any]) -> Any:
    """The definition of arithmetic by which a record was made: records of before the first change do not tell."""
    return recorded.get("definition", 1)


def _other_circumstances(content: dict[str, Any], here: Model) -> str:
    """The end of a message about a difference: what the bits may depend on, where it is not as it was."""
    was = {**content["arithmetic"], "foretoken": content["provenance"]["versions"]["foretoken"]}
    was["definition"] = _definition(was)
    now = {**arithmetic(here), "foretoken": provenance()["versions"]["foretoken"]}
    others = [
        f"{name} {one_line(cut(str(was.get(name)), 40))}, here {value}"
        for name, value in now.items()
        if was.get(name) != value
    ]
    return f" (recorded with {'; '.join(others)})" if others else ""


def _find(path: str | Path, content: dict[str, Any], model: str | Path | None) -> Path:
    def is_it(folder: Path) -> None:
        """Before a hub's weights are fetched: may the configuration be the one?"""
        expected = {"config.json": content["files"].get("config.json", "")}
        expect_same(str(path), expected, {"config.json": folder / "config.json"})

    if model is not None:
        revision = None if Path(model).is_dir() else content["revision"]
        return resolve(str(model), revision, accept=is_it)
    try:
        return resolve(content["model"], content["revision"], accept=is_it)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{path} names the model {quoted(content['model'], 80)}: {error}; say with --model (model=) where it is"
        ) from None


@contextmanager
def _blaming_the_draft(path: str | Path, *, recorded: bool) -> Iterator[None]:
    """Where what drafted then is not here: the message says that anything may draft."""
    try:
        yield
    except (DraftSpecError, ModelError) as error:
        if not recorded:
            raise
        raise TranscriptError(
            f"{path} names what drafted, and that is not here: {error}; say with --draft (draft=) what is to draft, "
            "'none' for example: it proves the same"
        ) from None


def _load_settings(path: str | Path, content: dict[str, Any], threads: int | None) -> LoadSettings:
    """How the model is loaded: as it was, with the number of threads where the engine's bits depend on it."""
    told = content["settings"]
    wanted = {name: told[name] for name in LOAD_SETTINGS}
    wanted |= {name: told.get(name, before) for name, before in LATER_LOAD_SETTINGS.items()}
    if threads is None and content["arithmetic"]["engine"] == "pytorch":
        wanted["threads"] = content["arithmetic"].get("threads")
    chosen = _blaming(path, lambda: LoadSettings(**wanted))
    return chosen if threads is None else replace(chosen, threads=threads)


def _bounded(settings: LoadSettings, memory: str | int, length: int) -> LoadSettings:
    """How a model is loaded to prove a text of at most some length under a bound of memory. The weights have the type
    and the place that they have in their files."""
    context = length if settings.context is None else min(settings.context, length)
    return replace(settings, memory=memory, context=context, dtype="auto", weights="auto", cache=True)


def _blaming(path: str | Path, make: Callable[[], T]) -> T:
    """What `make` makes; where a record's content makes no sense to it, the message names the record."""
    try:
        return make()
    except InputError as error:
        raise TranscriptError(f"{path}: {error}") from None

"""A target and its drafts, as benchmarks load them: on one copy of the weights, and only honest drafts."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from foretoken.api.build import load, with_draft
from foretoken.api.levels import Loaded
from foretoken.api.model import Model
from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.on_gpu import name_of
from foretoken.bench.statistics import PLAIN
from foretoken.bench.suites import Suite, first_turn, open_suite
from foretoken.common.hashes import sha256
from foretoken.common.source import resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.shards import weight_files
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import PromptError, SettingError
from foretoken.rehearsal import honest
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.trained.files import is_trained


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement of decoding. prompts: a suite's name or a file. count: how many prompts; None: all.
    max_new_tokens: of each turn; None: what the suite allows. Raises SettingError."""

    model: str
    drafts: Sequence[str]
    prompts: str = "auto"
    count: int | None = None
    max_new_tokens: int | None = None
    repeats: int = 3
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        expect_counts(self, repeats=1, count=1, max_new_tokens=2)  # one token has no speed
        expect_once("draft", list(map(str.strip, self.drafts)))

    def opened(self, origin: dict[str, Any]) -> Ready:
        """Check the settings and load the models. origin: from `provenance`. Raises ForetokenError."""
        target = load_target(self.model, self.drafts, self.loading)
        suite = open_suite(self.prompts, target.plain.tokenizer, count=self.count)
        new_tokens = self.max_new_tokens or suite.max_new_tokens
        prompts = expect_prompts(suite, target.plain, new_tokens)
        models, levels = target.with_drafts()
        told = {
            **about(self.model, target.plain, origin),
            "suite": suite.about(),
            "max_new_tokens": new_tokens,
            "repeats": self.repeats,
            "levels": levels,
        }
        return Ready(suite, prompts, new_tokens, models, told)


@dataclass(frozen=True)
class Ready:
    """A measurement that can begin. tokens: the ids of each prompt's first turn, by the prompt's id. models: by draft,
    plain decoding first. about: the fields of a record."""

    suite: Suite
    tokens: dict[str, tuple[int, ...]]
    new_tokens: int
    models: dict[str, Model]
    about: dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A model that is loaded once and decodes with or without drafts. drafts: what each named draft is, as a user
    writes it, by the draft's name."""

    plain: Model
    drafts: dict[str, str]
    loaded: Loaded = field(default_factory=Loaded)  # one copy of each level's weights

    def with_drafts(self) -> tuple[dict[str, Model], list[dict[str, Any]]]:
        """The model with each draft, by the draft's name, plain decoding first; and what the loaded levels are."""
        models = {PLAIN: self.plain}
        for name, draft in self.drafts.items():
            models[name] = with_draft(self.plain, draft, loaded=self.loaded)
        gc.freeze()  # what loading left stays: a garbage collection over it takes as long as dozens of tokens
        return models, _about_levels(self.loaded)

    def model(self, draft: str, *, cache: bool = True) -> Model:
        """The model with a draft; a draft that would not be honest is refused. A low-bit copy is made once for chains
        and fractal drafts, because these two never stand in one ladder."""
        expect_honest(draft, self.plain.settings, self.plain.folder)
        known = len(self.loaded)
        model = with_draft(self.plain, draft, loaded=self.loaded, cache=cache)
        if len(self.loaded) > known:
            for source, level in list(self.loaded.items()):
                if source.folder is None and source.format is not None:
                    for name in ("fractal", source.format.name):
                        self.loaded.setdefault(source._replace(called=name), level)
            gc.freeze()
        return model

    def copy(self, format: str) -> Decoder:
        """The model's own copy in a low-bit format, as it drafts."""
        return self.model(format).decoders[format]


def load_target(model: str, drafts: Sequence[str], loading: LoadSettings) -> Target:
    """Load a model after checking all drafts that it is measured with; plain decoding need not be named."""
    named: dict[str, str] = {}
    for draft in map(str.strip, drafts):
        if draft != PLAIN:
            name = called(draft)
            if name in named:
                raise SettingError(f"two drafts are called {name!r}; give one of them, or each a name of its own")
            named[name] = draft
    folder = resolve(model, loading.revision, accept=read_config)
    for draft in named.values():
        expect_honest(draft, loading, folder)
    plain = load(model, **asdict(replace(loading, draft=PLAIN, num_speculative_tokens=None)))
    return Target(plain, named)


def expect_honest(draft: str, loading: LoadSettings, folder: Path) -> None:
    """Refuse a draft that would make drafting look better than it can be, with DraftSpecError. folder: the target's."""
    if draft == AUTO:  # lookup or the model's own copy
        return
    for level in find_levels(name_levels(replace(loading, draft=draft)), folder):
        if level.folder is not None:
            honest.expect_honest_draft(folder, level.folder)


def expect_prompts(suite: Suite, model: Model, new_tokens: int) -> dict[str, tuple[int, ...]]:
    """The token ids of every prompt's first turn, by the prompt's id. Refuses at once what would end hours of work:
    text that the model cannot read, tokens that it does not know, no room for so many new tokens, a conversation in
    token ids. Raises InputError."""
    prompts = {}
    for prompt in suite.prompts:
        if len(prompt.turns) > 1 and not all(isinstance(turn, str) for turn in prompt.turns):
            raise SettingError(f"prompt {prompt.id} is a conversation in token ids; give its turns as text")
        first = first_turn(prompt, model.tokenizer)
        try:
            tokens = prompts[prompt.id] = model.tokens_of(first)
        except PromptError as error:
            raise SettingError(f"prompt {prompt.id}: {error}") from None
        if len(tokens) + new_tokens > model.context_length:
            raise SettingError(
                f"prompt {prompt.id} has {len(tokens)} tokens, and with {new_tokens} new ones the model has room for "
                f"{model.context_length}; leave it out, or ask for fewer new tokens"
            )
    return prompts


def called(draft: str) -> str:
    """A draft's name in records: as it is written, but with only the last part of a folder's path."""
    return ",".join(map(_level_called, draft.split(",")))


def _level_called(level: str) -> str:
    name, colon, options = level.strip().partition(":")
    place = os.path.expanduser(name)
    is_folder = "/" in name and os.path.exists(place)
    return (Path(place).absolute().name if is_folder else name) + colon + options


def _about_levels(loaded: Loaded) -> list[dict[str, Any]]:
    """What each level is: its format, how the format was made, whose weights they are."""
    about = []
    for (name, folder, format, inputs, *_), level in loaded.items():
        copy = level.copy
        about.append(
            {
                "level": name,
                "format": None if format is None else format.label,
                "inputs": None if format is None else inputs,
                "kv": "int8" if level.decoder.codes_places else "full",
                "quantiser": None if format is None else "direct" if copy is None else copy.quantiser,
                "from_copy": copy is not None,
                "sha256": None if folder is None else _hash_of(folder),
                "bytes": level.decoder.weights.nbytes,
            }
        )
    return about


def _hash_of(folder: Path) -> str:
    if not is_trained(folder):
        return fingerprint(folder, read_config(folder))
    hashes = [sha256(file) for file in weight_files(folder)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def about(name: str, model: Model, origin: dict[str, Any]) -> dict[str, Any]:
    """A record's fields on a model and on the machine that runs it. origin: from `provenance`."""
    from foretoken.kernels import native

    rehearsal, device = honest.about(model.folder), model.target.device
    return {
        "machine": {
            **origin["machine"],
            "threads": model.target.threads,
            "isa": native.isa() if native.module() is not None else None,
            **({} if device.type == "cpu" else {"gpu": name_of(device)}),
        },
        "model": Path(name).absolute().name if Path(name).exists() else name,
        "model_sha256": fingerprint(model.folder, model.target.config),
        "model_bytes": model.target.weights.nbytes,
        "rehearsal": None if rehearsal is None else rehearsal.to_json(),
        "arithmetic": model.target.arithmetic,
        "dtype": str(model.target.weights.embedding.dtype).removeprefix("torch."),
        "weights": model.target.home,
        "device": model.settings.device,
        "prefill_chunk": model.settings.prefill_chunk,
    }

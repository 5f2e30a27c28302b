"""Drafts with a decoder: a copy of the model in a low-bit format, or another checkpoint.

Both draft a chain (foretoken.drafters.chain) or, with an option of `TREE`, a tree (foretoken.drafters.tree).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretoken.common.source import EMBEDDED, EMBEDDED_DRAFTERS, resolve
from foretoken.copies import beside
from foretoken.decoder.config import read_config, read_json
from foretoken.drafters.recipe import Context, Expected, Level, LoadedLevel, Recipe, recipe_of
from foretoken.drafters.table import CHAIN, CHECKPOINT_OPTIONS, COPY_OPTIONS, DRAFTERS, KV, NOT_CAST, TREE
from foretoken.drafters.trained import as_trained
from foretoken.errors import DraftSpecError, SettingError, nearest, quoted
from foretoken.formats import FORMATS, Format, format_of
from foretoken.settings.drafts import DraftLevel
from foretoken.settings.load import AUTO
from foretoken.text.tokenizer import Tokenizer
from foretoken.trained.files import CONFIG, is_trained
from foretoken.trained.unread_kinds import expect_no_unread_drafter

_EMBEDDED = {*EMBEDDED, *EMBEDDED_DRAFTERS}
# the share of a copy's first draft tokens that the model accepts, by the bits of a weight: between the greedy share and
# the one at temperature 0.8 of a model of 27 million parameters (results/2026-11-23-acceptance-copies-stdlib-27m.json)
_OF_COPIES = {8: 0.97, 4: 0.9, 3: 0.86, 2: 0.65}


class DecoderRecipe(Recipe):
    """A kind of draft with a decoder."""

    has_decoder = True

    def expected(self, level: Level) -> Expected:
        """What copies were measured to have, which takes some refusals to be doubted; of another checkpoint, a
        guess."""
        if not level.is_copy or level.format is None:
            return super().expected(level)
        return Expected((_OF_COPIES[level.format.bits],) * len(self.usual), weight=8.0)

    def found(self, level: Level, folder: Path) -> Level:
        """The level, completed from its checkpoint's folder. Raises DraftSpecError for options that do not suit it."""
        if level.is_copy or level.folder is not None:
            _expect_own_layers(level, folder)
            _expect_inputs(level)
            _expect_views(level)
            return level
        place = resolve(level.name, accept=_expect_draft)
        _expect_draft(place)  # once more, with its weights
        if is_trained(place):
            level = as_trained(level, place, folder)
            if level.format is None and "inputs" in level.options:
                raise _belongs_to_a_format(level.name, "inputs")
            _expect_inputs(level)
            return level
        about = beside.describe(place)
        if about is None and level.format is None and "inputs" in level.options:
            raise _belongs_to_a_format(level.name, "inputs")
        if about is not None and "format" in level.options and level.format != about.format:
            raise DraftSpecError(
                f"draft {level.name!r} is in {about.format.label} already, of which no other format is made; leave "
                "format out, or name the model that it was made of"
            )
        is_copy = about is not None and about.is_of(folder, read_config(folder))
        if not is_copy:
            expect_no_copy(level)
        level = replace(level, format=level.format if about is None else about.format, is_copy=is_copy, folder=place)
        _expect_own_layers(level, folder)
        _expect_inputs(level)
        _expect_views(level)
        return level

    def loaded(self, level: Level, context: Context) -> tuple[LoadedLevel, dict[str, Any]]:
        """Load a level's decoder, whose tokens must be the model's. Returns it with the arguments that all drafters
        with a decoder take."""
        loaded = context.load(level)
        differs = None if level.is_copy else difference(level.name, context.tokenizer, loaded.tokenizer)
        if differs is not None:
            options = " and ".join(repr(option) for option in level.options if option in TREE.options)
            raise DraftSpecError(
                f"draft {level.name!r} has another tokenizer: {differs}; only a chain can be translated: leave "
                f"{options} out, or use a draft of the model's own family"
            )
        return loaded, self.common(level, context)

    def common(self, level: Level, context: Context) -> dict[str, Any]:
        """The arguments that all drafters with a decoder take."""
        return {
            "name": level.called,
            "vocab_size": context.target.config.valid_vocab_size,
            "independent": context.independent,
            "views": context.views if level.is_copy and "own-cache" not in level.options else None,
        }


def _hint(name: str) -> str:
    """A hint for a name that looks like part of a list whose numbers were separated by commas."""
    return "a list has + between its numbers, such as own-layers=0+1; " if re.fullmatch(r"[0-9+]+", name) else ""


_WHY_NOT = {
    KV: "and has keys and values of its own",
    "own-cache": "and has a cache of its own anyhow",
    "own-layers": "so no layer can stay the model's own",
    "own-head": "so no layer can stay the model's own",
}


def expect_no_copy(level: Level) -> None:
    """Raise DraftSpecError for an option that only a copy of the model has."""
    for option, why in _WHY_NOT.items():
        if option in level.options:
            raise DraftSpecError(f"draft {level.name!r} is no copy of the model, {why}; leave {option!r} out")


def expect_layers(level: Level, option: str, count: int) -> None:
    """Raise DraftSpecError if an option does not name layers from 0 to `count` - 1, each once and ascending."""
    layers = level.options[option]
    if list(layers) != sorted({at for at in layers if at < count}):
        raise DraftSpecError(
            f"draft {level.name!r}: {option} is {'+'.join(map(str, layers))}, expected numbers from 0 to {count - 1}, "
            "ascending"
        )


def _expect_own_layers(level: Level, folder: Path) -> None:
    """Raise DraftSpecError for `own-layers` that the target does not have, or that are all it has. folder: the
    target's."""
    if "own-layers" not in level.options:
        return
    count = read_config(folder).num_layers
    expect_layers(level, "own-layers", count)
    if len(level.options["own-layers"]) == count:
        raise DraftSpecError(
            f"draft {level.name!r}: own-layers names all {count} layers of the model, so that it would draft no faster "
            "than the model decodes; leave some out"
        )


def _expect_inputs(level: Level) -> None:
    """Raise DraftSpecError for inputs that no kernel multiplies with weights in the level's format."""
    if level.options.get("inputs") == "fp32" and level.format is not None and level.format.name != "mxfp4":
        raise DraftSpecError(
            f"draft {level.name!r} is in {level.format.label}, and only mxfp4 is multiplied with inputs=fp32; leave it "
            "out, or give inputs=bf16"
        )


def _expect_views(level: Level) -> None:
    """Raise DraftSpecError for a way to read the target's keys and values, if the level has keys and values of its
    own."""
    if KV in level.options and "own-cache" in level.options:
        raise DraftSpecError(
            f"draft {level.name!r}: {KV!r} says how a copy reads the model's keys and values, and with 'own-cache' it "
            "reads its own; leave one of them out"
        )


def decoder_level(level: DraftLevel) -> Level:
    """The level for the name of a format or of a checkpoint: a chain or, with an option of a tree, a tree. Raises
    DraftSpecError for a name that is neither, and for options that contradict each other."""
    is_copy = is_format(level.name)
    if not is_copy and level.name not in _EMBEDDED and "/" not in level.name and not exists(level.name):
        known = [*DRAFTERS, *FORMATS, *_EMBEDDED]
        if level.name == AUTO:
            raise DraftSpecError("draft 'auto' has no options, and stands alone; name a draft, or leave the rest out")
        parts = level.name.split("+")
        if len(parts) > 1 and all(part in known for part in parts):
            raise DraftSpecError(
                f"there is no draft {quoted(level.name, 80)}; levels have commas between them, as in "
                f"{quoted(level.name.replace('+', ','), 80)}"
            )
        raise DraftSpecError(
            f"there is no draft {quoted(level.name, 80)}{nearest(level.name, known)}; {_hint(level.name)}a "
            "checkpoint is named by its folder or hub id"
        )
    more = COPY_OPTIONS if is_copy else CHECKPOINT_OPTIONS
    options = level.values({**more, **CHAIN.options, **TREE.options})  # so that messages name all options
    trees = [option for option in options if option in TREE.options]
    chains = [option for option in options if option in CHAIN.options]
    if trees and chains:
        raise DraftSpecError(
            f"draft {level.name!r}: {chains[0]!r} is an option of a chain, and {trees[0]!r} makes it a tree; a tree "
            "has 'nodes'"
        )
    entry = TREE if trees else CHAIN
    return replace(
        recipe_of(entry).level(level.name, entry, options), format=format_asked(level.name, options), is_copy=is_copy
    )


def is_format(name: str) -> bool:
    """Whether it is the name of a low-bit format, or a format's label such as `int4-g64`, with any group."""
    return re.sub(r"-g[0-9]{1,9}$", "", name) in FORMATS


def format_asked(name: str, options: dict[str, Any]) -> Format | None:
    """The low-bit format that a draft asks for by its name or by an option; None if it asks for none."""
    called = name if is_format(name) else options.get("format")
    if called in (None, NOT_CAST):
        if "group" in options:
            raise _belongs_to_a_format(name, "group")
        return None
    try:
        return format_of(called, options.get("group"))
    except SettingError as error:
        raise DraftSpecError(f"draft {name!r}: {error}") from None


def _expect_draft(folder: Path) -> None:
    """Raise the error for a folder that holds neither a trained drafter nor a model. Its weights need not be there."""
    if not is_trained(folder):
        expect_no_unread_drafter(folder, read_json(folder / CONFIG))
        read_config(folder)


def _belongs_to_a_format(name: str, option: str) -> DraftSpecError:
    """The error for an option that a checkpoint has only in a low-bit format."""
    return DraftSpecError(
        f"draft {name!r}: {option!r} belongs to a low-bit format; add format=int4, or leave {option!r} out"
    )


def in_format(name: str, format: Format) -> str:
    """The text of a draft of a checkpoint in a format: `NAME:format=int4`, with the group if it is not the default."""
    group = f":group={format.group}" if format != FORMATS[format.name] else ""
    return f"{name}:format={format.name}{group}"


def exists(name: str) -> bool:
    """Whether something lies at a place. False for what is too long to be one, and for the home of nobody."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def difference(name: str, target: Tokenizer | None, draft: Tokenizer | None) -> str | None:
    """The first token that two tokenizers do not share, in words; None if there is none. A draft is made of token ids,
    so they must mean the same. Rows of padding have no tokens and do not matter. Raises DraftSpecError if only one of
    the two is there."""
    if target is None or draft is None:
        if target is None and draft is None:
            return None
        lacking = "the model" if target is None else f"draft {name!r}"
        raise DraftSpecError(f"{lacking} has no tokenizer, so their tokens cannot be compared; add its files")
    ours, theirs = target.vocabulary, draft.vocabulary
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            return f"token {token} is {theirs.get(token)!r} there and {ours.get(token)!r} in the model"
    return None

"""From what a user calls a draft to a drafter: `lookup`, `mxfp4,lookup`, `PATH:k=4:depth=6`.

The level nearest to the target comes first; each is sped up by the one behind it and checks what that one drafts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.copies.beside import About
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters import CHAIN, CHECKPOINT_OPTIONS, COPY_OPTIONS, DRAFTERS, FRACTAL, TREE, DrafterEntry
from foretoken.errors import DraftSpecError, SettingError, nearest, quoted
from foretoken.formats import FORMATS, Format, format_of
from foretoken.sampling.samplers import Samplers
from foretoken.settings import MOST_DRAFT_TOKENS, DraftLevel, LoadSettings, parse_draft
from foretoken.source import EMBEDDED
from foretoken.text import Tokenizer
from foretoken.types import TARGET, Budget, Drafter

_WIDTH, _DEPTH, _SHARPNESS = 4, 6, 0.5  # of a tree whose form is left open


@dataclass(frozen=True)
class Level:
    """One level: what is in the table of drafters, its options, and how many tokens it drafts at most.

    format: the low-bit format of a level that a decoder stands behind, if that has one. is_copy: whether it is the
    target's own copy in it: that is known of a format's name, and of a checkpoint when its `folder` was looked into.
    `called` is the level's name in origins and statistics, where no other has it.
    """

    name: str
    entry: DrafterEntry
    options: dict[str, Any]
    tokens: int
    format: Format | None = None
    called: str = ""
    is_copy: bool = False
    folder: Path | None = None

    @property
    def budget(self) -> Budget:
        """The most that it drafts in a round."""
        if self.entry is not TREE:
            return Budget(self.tokens, self.tokens)
        return Budget(self.tokens, self.options.get("depth", _DEPTH), self.options.get("k", _WIDTH))

    @property
    def has_decoder(self) -> bool:
        """Whether it is a checkpoint or a copy of the target."""
        return self.entry in (CHAIN, TREE, FRACTAL)


class LoadedLevel(NamedTuple):
    """What stands behind a level. copy: what its weights were read from, if that is a low-bit copy."""

    decoder: Decoder
    tokenizer: Tokenizer | None = None
    copy: About | None = None


def name_levels(settings: LoadSettings) -> list[Level]:
    """The levels that a draft names, before anything is loaded. num_speculative_tokens is the first one's."""
    spec, asked = settings.draft, settings.num_speculative_tokens
    levels = [_name(level) for level in parse_draft(spec)]
    for level, below in itertools.pairwise(levels):
        _expect_sped_up(spec, level, below)
    if asked is not None:
        for option in ("tokens", "nodes"):
            if levels[0].options.get(option, asked) != asked:
                raise DraftSpecError(
                    f"draft {spec!r} asks for {levels[0].tokens} {option}, num_speculative_tokens for {asked}; "
                    "give one of them"
                )
        levels[0] = replace(levels[0], tokens=asked)
    for level in levels:
        _expect_size(spec, level)
    if settings.rule == "rejection" and any(
        level.entry is TREE and level.options.get("shape") != "full" for level in levels
    ):
        raise DraftSpecError(
            f"draft {spec!r} grows a tree whose form depends on what is sampled, which the rejection rule cannot "
            "judge; use shape=full, or rule 'walk'"
        )
    return _called(levels)


def _expect_sped_up(spec: str, level: Level, below: Level) -> None:
    if below.name == "none":
        raise DraftSpecError(f"draft {spec!r}: 'none' speeds nothing up; leave it out")
    if below.entry is FRACTAL:
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' runs in the model's own layers, so it drafts for the model alone; leave "
            f"{level.name!r} out"
        )
    if level.entry is FRACTAL:
        advice = "; slots=lookup starts from what lookup finds" if below.name == "lookup" else ""
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' guesses all its tokens at once and cannot be sped up by {below.name!r}{advice}"
        )
    if level.entry is TREE:
        option = next(name for name in level.options if name in TREE.options)
        raise DraftSpecError(
            f"draft {spec!r}: {option!r} makes {level.name!r} draft a tree, and trees cannot be sped up; leave "
            f"{option!r} out, or {below.name!r}"
        )
    if not level.entry.ladder:
        raise DraftSpecError(
            f"draft {spec!r}: {level.name!r} cannot be sped up by {below.name!r}; only a decoder that drafts a "
            "chain can be sped up"
        )


def _expect_size(spec: str, level: Level) -> None:
    """Refuse more draft tokens than a round may have, and more than a beam can ever send."""
    if level.entry is not TREE:
        if level.tokens > MOST_DRAFT_TOKENS:
            raise DraftSpecError(
                f"draft {spec!r} asks for {level.tokens} tokens a round, expected at most {MOST_DRAFT_TOKENS}"
            )
        return
    width, depth = level.options.get("k", _WIDTH), level.options.get("depth", _DEPTH)
    size = max(level.tokens, width * depth)
    if size > MOST_DRAFT_TOKENS:
        what = "nodes" if size == level.tokens != width * depth else f"nodes, k = {width} times depth = {depth}"
        raise DraftSpecError(f"draft {spec!r} is a tree of {size} {what}; expected at most {MOST_DRAFT_TOKENS}")
    if level.options.get("shape", "beam") == "beam" and level.tokens > width * depth:
        raise DraftSpecError(
            f"draft {spec!r} is to send {level.tokens} nodes, but a beam has {width * depth}, k = {width} times depth "
            f"= {depth}; give fewer nodes, or another shape"
        )


def _called(levels: list[Level]) -> list[Level]:
    """Each with a name of its own: two checkpoints may lie in folders of one name, and one in a folder `target`."""
    taken = {TARGET, *DRAFTERS}
    called = []
    for place, level in enumerate(levels, 1):
        name = Path(level.name).absolute().name if level.has_decoder and not level.is_copy else level.name
        if level.has_decoder and name in taken and level.name not in DRAFTERS:
            name = f"{name}-{place}"
        taken.add(name)
        called.append(replace(level, called=name))
    return called


def _name(level: DraftLevel) -> Level:
    entry = DRAFTERS.get(level.name)
    if entry is not None:
        options = level.values(entry.options)
        if entry is FRACTAL:
            format = _format(level.name, {"format": "int8", **options})
            return Level(level.name, entry, options, MOST_DRAFT_TOKENS, format, is_copy=True)
        return Level(level.name, entry, options, options.get("tokens", entry.num_speculative_tokens))
    is_copy = _is_format(level.name)
    if not is_copy and level.name not in EMBEDDED and "/" not in level.name and not _exists(level.name):
        known = [*DRAFTERS, *FORMATS, *EMBEDDED]
        raise DraftSpecError(
            f"there is no draft {quoted(level.name, 80)}{nearest(level.name, known)}; a checkpoint is named by its "
            "folder or hub id"
        )
    more = COPY_OPTIONS if is_copy else CHECKPOINT_OPTIONS
    options = level.values({**more, **CHAIN.options, **TREE.options})  # whichever it is, a message names them all
    trees = [option for option in options if option in TREE.options]
    chains = [option for option in options if option in CHAIN.options]
    if trees and chains:
        raise DraftSpecError(
            f"draft {level.name!r}: {chains[0]!r} is an option of a chain, and {trees[0]!r} makes it a tree; a tree "
            "has 'nodes'"
        )
    if trees:
        entry, tokens = TREE, options.get("nodes", options.get("k", _WIDTH) * options.get("depth", _DEPTH))
    else:
        entry, tokens = CHAIN, options.get("tokens", CHAIN.num_speculative_tokens)
    return Level(level.name, entry, options, tokens, _format(level.name, options), is_copy=is_copy)


def _is_format(name: str) -> bool:
    """Whether it is the name of a low-bit format, or a label: `int4-g64`, whatever its group."""
    return re.sub(r"-g[0-9]{1,9}$", "", name) in FORMATS


def _format(name: str, options: dict[str, Any]) -> Format | None:
    called = name if _is_format(name) else options.get("format")
    if called is None:
        if "group" in options:
            raise belongs_to_a_format(name, "group")
        return None
    try:
        return format_of(called, options.get("group"))
    except SettingError as error:
        raise DraftSpecError(f"draft {name!r}: {error}") from None


def belongs_to_a_format(name: str, option: str) -> DraftSpecError:
    """What to say of an option that a checkpoint has only in a low-bit format."""
    return DraftSpecError(
        f"draft {name!r}: {option!r} belongs to a low-bit format; add format=int4, or leave {option!r} out"
    )


def expect_copies_first(levels: list[Level]) -> None:
    """Refuse a copy of the model below another checkpoint, for which it would draft: a larger one for a smaller."""
    for above, level in itertools.pairwise(levels):
        if level.is_copy and above.has_decoder and not above.is_copy:
            made = ""
            if level.folder is None and level.format is not None:
                made = f", or name a copy of that one: {in_format(above.name, level.format)}"
            raise DraftSpecError(
                f"draft {level.name!r} is a copy of the model, and would draft for {above.name!r} here; put it first"
                f"{made}"
            )


def in_format(name: str, format: Format) -> str:
    """How a draft asks for a checkpoint in a format: `NAME:format=int4`, with the group if it is not the usual one."""
    group = f":group={format.group}" if format != FORMATS[format.name] else ""
    return f"{name}:format={format.name}{group}"


def embedded(level: Level, num_layers: int) -> Level:
    """A level that is embedded in the model, with what it leaves open: before a quarter of the layers, evenly spaced,
    and as many tokens in the window (FractalLLM, appendix D)."""
    n, layers = level.options.get("n"), level.options.get("layers")
    called = f"draft {level.name!r}"
    if layers is None:
        n = max(1, num_layers // 4) if n is None else n
        if n > num_layers:
            raise DraftSpecError(
                f"{called}: n is {n}, and the model has {num_layers} layers; give at most {num_layers}"
            )
        layers = tuple(num_layers * at // n - 1 for at in range(1, n + 1))
    elif list(layers) != sorted({at for at in layers if at < num_layers}):
        raise DraftSpecError(
            f"{called}: layers is {'+'.join(map(str, layers))}, expected numbers from 0 to {num_layers - 1}, ascending"
        )
    elif n not in (None, len(layers)):
        raise DraftSpecError(f"{called}: n is {n}, and layers names {len(layers)}; leave one of them out")
    window = level.options.get("w", len(layers))
    most = window + len(layers) + 1
    if most > MOST_DRAFT_TOKENS:
        raise DraftSpecError(
            f"{called} is to draft {most} tokens a round, expected at most {MOST_DRAFT_TOKENS}; give a smaller w"
        )
    return replace(
        level,
        options={**level.options, "n": len(layers), "layers": layers, "w": window},
        tokens=min(level.tokens, most),
    )


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def make_ladder(
    levels: list[Level],
    target: Decoder,
    samplers: Samplers,
    *,
    rule: str,
    load: Callable[[Level], LoadedLevel],
    tokenizer: Tokenizer | None,
    caches: Caches | None,
    faithful: bool = False,
) -> Drafter:
    """The drafter of some levels. faithful: a method that has been published does what was published, for comparison,
    where we would do less. `load` gives what stands behind a level that has a decoder. `caches`: of the
    target, or of the copy of it that stands above; a copy drafts on views of them, unless it is to have its own."""
    level, *below = levels
    if not level.has_decoder:
        return level.entry.make(**{name: value for name, value in level.options.items() if name != "tokens"})
    lent = Caches() if level.is_copy and below and below[0].is_copy else None
    inner = None
    if below:
        inner = make_ladder(below, target, samplers, rule=rule, load=load, tokenizer=tokenizer, caches=lent)
    loaded = load(level)
    if not level.is_copy:
        _expect_same_tokens(level.name, tokenizer, loaded.tokenizer)
    independent = rule == "rejection"
    common = {
        "name": level.called,
        "vocab_size": target.config.valid_vocab_size,
        "independent": independent,
        "views": caches if level.is_copy and "own-cache" not in level.options else None,
    }
    make = samplers.independent if independent else samplers.target
    if level.entry is FRACTAL:
        return level.entry.make(
            loaded.decoder,
            make,
            target=target,
            layers=level.options["layers"],
            window=level.options["w"],
            slots=level.options.get("slots", "lookup"),
            # for the rejection rule, too: whether a guess has settled depends on tokens behind those that are judged
            patient=faithful or independent,
            **common,
        )
    if level.entry is CHAIN:
        return level.entry.make(loaded.decoder, make, inner=inner, lent=lent, **common)
    return level.entry.make(
        loaded.decoder,
        make,
        shape=level.options.get("shape", "beam"),
        sharpness=level.options.get("sharpness", _SHARPNESS),
        **common,
    )


def _expect_same_tokens(name: str, target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """A draft speaks in token ids, so they must mean the same; rows of padding have no tokens and do not matter."""
    if target is None or draft is None:
        if target is None and draft is None:
            return
        lacking = "the model" if target is None else f"draft {name!r}"
        raise DraftSpecError(f"{lacking} has no tokenizer, so their tokens cannot be compared; add its files")
    ours, theirs = target.vocabulary, draft.vocabulary
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            raise DraftSpecError(
                f"draft {name!r} has another tokenizer: token {token} is {theirs.get(token)!r} there and "
                f"{ours.get(token)!r} in the model; use a draft of the model's own family"
            )

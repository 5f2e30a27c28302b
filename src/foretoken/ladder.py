"""From what a user calls a draft to a drafter: `lookup`, `stdlib-1m,lookup`, `PATH:k=4:depth=6`.

The level nearest to the target comes first; each is sped up by the one behind it and checks what that one drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.decoder.decoder import Decoder
from foretoken.drafters import CHAIN, DRAFTERS, TREE, DrafterEntry
from foretoken.errors import DraftSpecError, nearest, quoted
from foretoken.sampling.samplers import Samplers
from foretoken.settings import MOST_DRAFT_TOKENS, DraftLevel, LoadSettings, parse_draft
from foretoken.source import EMBEDDED
from foretoken.text import Tokenizer
from foretoken.types import TARGET, Drafter

_WIDTH, _DEPTH, _SHARPNESS = 4, 6, 0.5  # of a tree whose form is left open


@dataclass(frozen=True)
class Level:
    """One level: what is in the table of drafters, its options, and how many tokens it drafts at most.

    `called` is the level's name in origins and statistics, where no other has it.
    """

    name: str
    entry: DrafterEntry
    options: dict[str, Any]
    tokens: int
    called: str = ""

    @property
    def is_model(self) -> bool:
        """Whether it is a checkpoint."""
        return self.entry in (CHAIN, TREE)


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
    if level.entry is TREE:
        option = next(name for name in level.options if name in TREE.options)
        raise DraftSpecError(
            f"draft {spec!r}: {option!r} makes {level.name!r} draft a tree, and trees cannot be sped up; leave "
            f"{option!r} out, or {below.name!r}"
        )
    if not level.entry.ladder:
        raise DraftSpecError(
            f"draft {spec!r}: {level.name!r} cannot be sped up by {below.name!r}; only a checkpoint that drafts a "
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
        name = Path(level.name).absolute().name if level.is_model else level.name
        if level.is_model and name in taken:
            name = f"{name}-{place}"
        taken.add(name)
        called.append(replace(level, called=name))
    return called


def _name(level: DraftLevel) -> Level:
    entry = DRAFTERS.get(level.name)
    if entry is None:
        if level.name not in EMBEDDED and "/" not in level.name and not _exists(level.name):
            known = [*DRAFTERS, *EMBEDDED]
            raise DraftSpecError(
                f"there is no draft {quoted(level.name, 80)}{nearest(level.name, known)}; a checkpoint is named by its "
                "folder or hub id"
            )
        level.values({**CHAIN.options, **TREE.options})  # whichever it is, a message names them all
        entry = TREE if set(level.options) & set(TREE.options) else CHAIN
        chains = [option for option in level.options if option not in entry.options]
        if chains:
            trees = next(option for option in level.options if option in TREE.options)
            raise DraftSpecError(
                f"draft {level.name!r}: {chains[0]!r} is an option of a chain, and {trees!r} makes it a tree; a tree "
                "has 'nodes'"
            )
    options = level.values(entry.options)
    if entry is TREE:
        width, depth = options.get("k", _WIDTH), options.get("depth", _DEPTH)
        return Level(level.name, entry, options, options.get("nodes", width * depth))
    return Level(level.name, entry, options, options.get("tokens", entry.num_speculative_tokens))


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
    load: Callable[[str], tuple[Decoder, Tokenizer | None]],
    tokenizer: Tokenizer | None,
) -> Drafter:
    """The drafter of some levels. `load` gives the decoder and the tokenizer of a checkpoint that a level names."""
    level, *below = levels
    inner = None
    if below:
        inner = make_ladder(below, target, samplers, rule=rule, load=load, tokenizer=tokenizer)
    options = {name: value for name, value in level.options.items() if name != "tokens"}
    if not level.is_model:
        return level.entry.make(**options)
    model, its_tokenizer = load(level.name)
    _expect_same_tokens(level.name, tokenizer, its_tokenizer)
    independent = rule == "rejection"
    common = {
        "name": level.called,
        "vocab_size": target.config.valid_vocab_size,
        "independent": independent,
    }
    make = samplers.independent if independent else samplers.target
    if level.entry is CHAIN:
        return level.entry.make(
            model, make, tokens=level.tokens, inner=inner, inner_tokens=below[0].tokens if below else 0, **common
        )
    return level.entry.make(
        model,
        make,
        shape=options.get("shape", "beam"),
        width=options.get("k", _WIDTH),
        depth=options.get("depth", _DEPTH),
        nodes=level.tokens,
        sharpness=options.get("sharpness", _SHARPNESS),
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

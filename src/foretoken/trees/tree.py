"""Pure functions on draft trees. A tree is `tokens[N]` and `parents[N]`, parents before children, -1 for the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretoken.protocol.types import Draft, Turn


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of each token: 1 for the children of the root."""
    out: list[int] = []
    for parent in parents:
        out.append(1 if parent < 0 else out[parent] + 1)
    return out


def clip(draft: Draft, rows: int, depth: int, vocab_size: int) -> Draft:
    """The draft without tokens beyond the budget, without tokens that the target lacks, and without all tokens below
    those."""
    kept = {-1}
    chosen: list[int] = []
    for i, (parent, level) in enumerate(zip(draft.parents, depths(draft.parents), strict=True)):
        if parent in kept and level <= depth and len(chosen) < rows and 0 <= draft.tokens[i] < vocab_size:
            kept.add(i)
            chosen.append(i)
    return draft if len(chosen) == len(draft) else only(draft, chosen)


def for_turns(turns: Sequence[Turn], proposed: Sequence[Draft], vocab_size: int) -> tuple[list[Draft], int]:
    """Returns one draft for each turn (empty if none came, cut to its budget), and how many drafts were dropped because
    they were late or came twice."""
    now = {turn.sequence: (turn.round, turn.position) for turn in turns}
    current: dict[int, Draft] = {}
    for draft in proposed:
        if now.get(draft.sequence) == (draft.round, draft.position):
            current.setdefault(draft.sequence, draft)
    drafts = [
        clip(current.get(turn.sequence, turn.chain((), "")), turn.most.rows, turn.most.depth, vocab_size)
        for turn in turns
    ]
    return drafts, len(proposed) - len(current)


def only(draft: Draft, chosen: Sequence[int]) -> Draft:
    """A draft of some tokens of a draft, in their order. Their parents must be among them."""
    place = {-1: -1, **{i: at for at, i in enumerate(chosen)}}
    probs = draft.draft_probs or {}
    return replace(
        draft,
        tokens=tuple(draft.tokens[i] for i in chosen),
        parents=tuple(place[draft.parents[i]] for i in chosen),
        origins=tuple(draft.origins[i] for i in chosen),
        draft_probs={place[node]: probs[node] for node in probs if node in place} or None,
    )


def longest_path(parents: Sequence[int]) -> list[int]:
    """The longest path of a tree, from the root's child down. Of equals the first. Empty for a tree without tokens."""
    reached = depths(parents)
    at = max(range(len(parents)), key=lambda i: (reached[i], -i), default=-1)
    path = []
    while at >= 0:
        path.append(at)
        at = parents[at]
    return path[::-1]

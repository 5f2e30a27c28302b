"""Pure functions on draft trees. A tree is `tokens[N]` and `parents[N]`, parents before children, -1 for the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretoken.types import Draft


def depths(parents: Sequence[int]) -> list[int]:
    """How far each token stands from the root: 1 for its children."""
    out: list[int] = []
    for parent in parents:
        out.append(1 if parent < 0 else out[parent] + 1)
    return out


def clip(draft: Draft, rows: int, depth: int, vocab_size: int) -> Draft:
    """The draft without tokens beyond the budget, tokens that the target does not have, and what hangs below them."""
    kept: dict[int, int] = {-1: -1}
    chosen: list[int] = []
    for i, (parent, level) in enumerate(zip(draft.parents, depths(draft.parents), strict=True)):
        if parent in kept and level <= depth and len(chosen) < rows and 0 <= draft.tokens[i] < vocab_size:
            kept[i] = len(chosen)
            chosen.append(i)
    if len(chosen) == len(draft):
        return draft
    probs = draft.draft_probs or {}
    return replace(
        draft,
        tokens=tuple(draft.tokens[i] for i in chosen),
        parents=tuple(kept[draft.parents[i]] for i in chosen),
        origins=tuple(draft.origins[i] for i in chosen),
        draft_probs={kept[node]: probs[node] for node in probs if node in kept} or None,
    )

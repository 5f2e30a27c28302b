"""A check: one pass over the drafts of several sequences, a walk for each, and a commit of the accepted tokens.

The target checks what a drafter proposes, and a level of a ladder checks what the level below proposes. Both use this
module. The caller commits after all walks, so a walk that fails leaves every cache as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foretoken.acceptance.walk import NOTHING, walk
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows


@dataclass(frozen=True)
class Part:
    """One sequence's share of a pass.

    text: the end of the sequence's text, which the cache does not hold yet: one token or more, the last of which is the
    root of the draft. tokens, parents: the draft, as in `types.Draft`. wanted: whether logits are needed, from the root
    on.
    """

    cache: Cache
    text: Sequence[int]
    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    wanted: bool = True

    @property
    def rows(self) -> int:
        """The number of rows that the part has in the pass."""
        return len(self.text) + len(self.tokens)


@dataclass(frozen=True)
class Walked:
    """The result of a walk: indices of the accepted draft tokens, from the root down, and the bonus, the token that
    follows them; `NOTHING` if none does."""

    accepted: Sequence[int]
    bonus: int

    def gained(self, draft: Sequence[int]) -> tuple[int, ...]:
        """The tokens that the sequence gains. draft: the tokens of the draft that was walked."""
        return (*(draft[i] for i in self.accepted), *(() if self.bonus == NOTHING else (self.bonus,)))


@dataclass
class Check:
    """A pass that has run. `outputs` has the rows of all parts."""

    parts: Sequence[Part]
    rows: Rows
    outputs: Outputs
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [segment.span.start for segment in self.rows.segments]

    def root(self, part: int) -> int:
        """The row of a part's root in the pass; its draft's rows follow it."""
        return self._starts[part] + len(self.parts[part].text) - 1

    def walk(self, part: int, choose: Callable[[int], int]) -> Walked:
        """Follow a part's draft. `choose(row)` gives the decoder's token at a row of the pass, or `NOTHING`."""
        here, root = self.parts[part], self.root(part)
        accepted, bonus = walk(here.tokens, here.parents, lambda i: choose(root + 1 + i))
        return Walked(accepted, bonus)

    def path(self, part: int, accepted: Sequence[int], gained: int) -> list[int]:
        """The rows of a part that hold its text after a gain of `gained` tokens, the last of which has no row yet."""
        length = len(self.parts[part].text)
        return [*range(length), *(length + i for i in accepted)][: length - 1 + gained]

    def commit(self, part: int, path: Sequence[int]) -> None:
        """Make rows of a part the end of its cache's prefix."""
        segment = self.rows.segments[part]
        segment.cache.commit([segment.slots.start + at for at in path], self.rows.writer)

    def rows_of(self, part: int, path: Sequence[int]) -> list[int]:
        """The rows of the pass for some rows of a part."""
        return [self._starts[part] + at for at in path]


def run_check(decoder: Decoder, parts: Sequence[Part], taps: Sequence[int] = ()) -> Check:
    """Make one pass over all parts. Their caches must have no scratch in use. taps: layers whose input is kept."""
    rows = Rows(
        (
            part.cache,
            (*part.text, *part.tokens),
            (*range(-1, len(part.text) - 1), *(parent + len(part.text) for parent in part.parents)),
        )
        for part in parts
    )
    spans = [segment.span for segment in rows.segments]
    wanted = [
        range(span.start + len(part.text) - 1, span.stop)
        for part, span in zip(parts, spans, strict=True)
        if part.wanted
    ]
    return Check(parts, rows, decoder.check(rows, wanted, taps))

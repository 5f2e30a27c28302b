"""The values that travel: requests in, drafts and verdicts between the parts.

All are frozen. A drafter sees turns and verdicts and returns drafts; the verifier sees drafts and returns verdicts;
nothing else passes between them, so either may stand at the far end of a network.

A sequence's tokens are counted by *position*: the prompt's first token stands at 0. All but the last committed token
have keys and values in the target's cache; the last one is the root of the next draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from foretoken.errors import ContractError, ForetokenError
from foretoken.protocol.telemetry import Cost, Work

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Distribution: TypeAlias = "npt.NDArray[np.float64]"
FinishReason = Literal["stop", "length", "cancelled"]  # the last is of who asked: no verdict has it
TARGET = "target"  # the origin of a token that no drafter proposed: the bonus token of a pass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits. In this order: penalties, bias, constraint, temperature, top-k, top-p, min-p.

    The default is greedy. `repetition_penalty` looks at prompt and output, the other two at the output. `constraint` is
    a grammar that the output must follow: ("regex", pattern) or ("json_schema", text).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    constraint: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Which features a drafter wants of each committed row, by name, so that a request can carry them over a network.

    hidden: layers whose input is wanted, as float32 [rows, hidden] under the name `hidden.LAYER`; layer `num_layers` is
    what comes out of the last one, before the final norm. normed: that, after the final norm, as `normed`. extractors:
    names of `Extractor`s that the verifier knows. The default is none.
    """

    hidden: tuple[int, ...] = ()
    normed: bool = False
    extractors: tuple[str, ...] = ()

    @property
    def of_passes(self) -> bool:
        """Whether some of it is known while a pass runs and never again: keys and values stay, hidden states do not."""
        return bool(self.hidden) or self.normed


NO_FEATURES = Needs()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `end_tokens` is empty when end tokens are to be ignored.

    It stops where its text comes to one of the strings `stop`. `completion` tells apart several samples of one prompt
    and seed: each has noise of its own. Of requests with one `conversation`, one after the other, each reads only what
    its prompt has not in common with the one before. `prompt_of` names a sequence with the same prompt, admitted
    before: its keys and values are copied once it has read them. `needs` is what the drafter wants to see.
    """

    sequence: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    keep_logits: bool = False
    sampling: SamplingParams = SamplingParams()
    completion: int = 0
    conversation: int | None = None
    stop: tuple[str, ...] = ()
    prompt_of: int | None = None
    needs: Needs = NO_FEATURES


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one level of a draft may propose in one round: `rows` tokens, `depth` of them on one path, and, of
    a level that drafts a tree, `width` at each depth. A level with 0 rows is left out."""

    rows: int
    depth: int
    width: int = 1

    def within(self, depth: int) -> Budget:
        """This budget where no path may be longer than `depth`."""
        if self.depth <= depth:
            return self
        return replace(self, rows=self.rows if depth > 0 else 0, depth=max(0, depth))


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sequence may draft in one round.

    `position` is where the first drafted token would stand. `rows`, `depth` and `width` are the `Budget` of the level
    that is asked; a draft beyond rows and depth is cut, not refused. `below` holds those of the levels that speed it
    up.
    """

    sequence: int
    round: int
    position: int
    rows: int
    depth: int
    width: int = 1
    below: tuple[Budget, ...] = ()

    @classmethod
    def of(cls, sequence: int, round: int, position: int, budgets: Sequence[Budget]) -> Turn:
        """A turn with a budget for each level, nearest to the target first."""
        own, *below = budgets
        return cls(sequence, round, position, own.rows, own.depth, own.width, tuple(below))

    @property
    def most(self) -> Budget:
        """What bounds the draft: the budget of the first level that is not left out."""
        own = Budget(self.rows, self.depth, self.width)
        return next((budget for budget in (own, *self.below) if budget.rows), own)

    def inner(self, round: int, position: int, depth: int) -> Turn | None:
        """What the level below may draft for this one, on paths of at most `depth`; None if it has nothing to draft."""
        budgets = [budget.within(depth) for budget in self.below]
        return Turn.of(self.sequence, round, position, budgets) if any(budget.rows for budget in budgets) else None

    def chain(
        self,
        tokens: Sequence[int],
        origin: str | Sequence[str],
        work: tuple[Work, ...] = (),
        draft_probs: Mapping[int, Distribution] | None = None,
    ) -> Draft:
        """A draft for this turn in which each token follows the one before."""
        return self.tree(tokens, range(-1, len(tokens) - 1), origin, work, draft_probs)

    def tree(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        origin: str | Sequence[str],
        work: tuple[Work, ...] = (),
        draft_probs: Mapping[int, Distribution] | None = None,
    ) -> Draft:
        """A draft for this turn. `parents[i]` is the index of token i's parent, -1 for the last committed token."""
        origins = (origin,) * len(tokens) if isinstance(origin, str) else tuple(origin)
        return Draft(
            self.sequence, self.round, self.position, tuple(tokens), tuple(parents), origins, draft_probs, work
        )


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Up to `rows` tokens of a sequence's prompt, from where its reading stands, to be read in one pass."""

    sequence: int
    rows: int


@dataclass(frozen=True, slots=True)
class Draft:
    """N proposed tokens with their parents. Parents come before children.

    Sequence, round and position say what it was made for, so that a late or repeated draft can be told and dropped.
    `draft_probs`, for the rejection rule, says from which distribution the children of a node were drawn, without
    replacement, in their order: float64 [V] by the index of the node, -1 for the root. A node that is not there had
    children that were not drawn, but certain.
    """

    sequence: int
    round: int
    position: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    origins: tuple[str, ...]
    draft_probs: Mapping[int, Distribution] | None = field(default=None, compare=False)
    work: tuple[Work, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        lengths = {"parents": len(self.parents), "origins": len(self.origins)}
        if any(length != n for length in lengths.values()):
            raise ContractError(f"a draft of {n} tokens came with {lengths}; expected {n} of each")
        for i, parent in enumerate(self.parents):
            if not -1 <= parent < i:
                raise ContractError(
                    f"draft token {i} has parent {parent}; parents come before children, -1 is the root"
                )

        for node in self.draft_probs or ():
            if not -1 <= node < n:
                raise ContractError(
                    f"a draft of {n} tokens came with draft_probs of node {node}; expected -1 to {n - 1}"
                )

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Features:
    """What a drafter asked for, of the rows that a verdict committed to the target's cache.

    Row 0 is position `start`. Each tensor has one row a committed token and owns its memory: nothing here is a
    window on the target's cache, so the same object can cross a network.
    """

    start: int
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pass made of a sequence: the accepted path of its draft and the bonus token that follows it.

    `tokens` are the new tokens from `position` on: those of `accepted` (indices into the draft, root to leaf), then the
    bonus. They are cut where the sequence stops (at an end token, a stop string, its length, or where its grammar
    allows nothing more); then `finish_reason` says why, and there may be no bonus. `logits`, on request, is float32
    [len(tokens), vocabulary]: what each token was chosen from. `cached_tokens` of the prompt were there already.

    Round 0 is the reading of the prompt, of which this pass has `read` so many tokens. As long as `prompt_left` of them
    are still to be read there is no token, only the features of what has been read. An `error` ends this sequence, and
    no other: it comes without tokens. `cost` is what the whole pass has cost the target, with all its sequences.
    """

    sequence: int
    round: int
    position: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    features: Features | None = None
    logits: torch.Tensor | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    read: int = 0
    prompt_left: int = 0
    error: ForetokenError | None = None
    cost: Cost | None = None

    def behind(self, n: int) -> Verdict:
        """What it says behind its first n tokens, for a drafter that has heard of those."""
        return replace(self, position=self.position + n, accepted=(), tokens=self.tokens[n:], origins=self.origins[n:])

    @property
    def last(self) -> bool:
        """Whether the sequence has ended with it."""
        return self.finish_reason is not None or self.error is not None

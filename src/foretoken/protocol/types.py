"""The values that travel between the parts: requests, turns, drafts and verdicts. All are frozen.

A drafter gets turns and verdicts and returns drafts. The verifier gets drafts and returns verdicts. Nothing else passes
between the two, so either may stand at the far end of a network.

The *position* of a token counts from the prompt's first token, which stands at 0. All committed tokens but the last
have keys and values in the target's cache. The last committed token is the root of the next draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from foretoken.errors import ContractError, ForetokenError
from foretoken.protocol.budget import Budget as Budget
from foretoken.protocol.telemetry import Cost, Work
from foretoken.settings.generate import GenerateSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Distribution: TypeAlias = "npt.NDArray[np.float64]"
# the caller cancels: no verdict has "cancelled"; a host that checks is gone for good: "disconnected"
FinishReason = Literal["stop", "length", "cancelled", "disconnected"]
TARGET = "target"  # the origin of a token that no drafter proposed: the bonus token of a pass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits. In this order: penalties, bias, constraint, temperature, top-k, top-p, min-p.

    The default is greedy. `repetition_penalty` applies to tokens of prompt and output, the other two penalties to
    tokens of the output. `constraint` is a grammar that the output must follow: ("regex", pattern), ("json_schema",
    text) or ("lark", text).
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

    @classmethod
    def of(cls, settings: GenerateSettings) -> SamplingParams:
        """As the settings of a generation have it. A greedy one needs no seed."""
        return cls(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            logit_bias=tuple(sorted((settings.logit_bias or {}).items())),
            seed=(settings.seed or 0) if settings.temperature > 0 else 0,
            constraint=settings.constraint,
        )


@dataclass(frozen=True, slots=True)
class Needs:
    """Which features a drafter wants of each committed row. They have names, so that a request can cross a network.

    hidden: layers whose input is wanted, as float32 [rows, hidden] under the name `hidden.LAYER`. Layer `num_layers`
    stands for the output of the last layer, before the final norm. normed: the output of the last layer after the final
    norm, as `normed`. extractors: names of `Extractor`s that the verifier knows. The default is no features.
    """

    hidden: tuple[int, ...] = ()
    normed: bool = False
    extractors: tuple[str, ...] = ()

    @property
    def of_rows(self) -> tuple[str, ...]:
        """The names of the features that a pass gives of its rows."""
        return (*(f"hidden.{layer}" for layer in self.hidden), *(("normed",) if self.normed else ()))

    @property
    def of_passes(self) -> bool:
        """Whether some of these features must be taken while a pass runs: hidden states are not kept, keys and values
        are."""
        return bool(self.hidden) or self.normed


NO_FEATURES = Needs()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    `end_tokens` is empty if end tokens are to be ignored. The sequence also stops where its text reaches one of the
    strings `stop`. `completion` numbers several samples of one prompt and seed: each has seeded noise of its own.

    Requests of one `conversation` follow one another. Each reads only the part of its prompt that it does not share
    with the text before. `prompt_of` names a sequence with the same prompt that was admitted before. Its keys and
    values are copied once it has read the prompt. `needs` names the features that the drafter wants. It has those of
    the first `seen` positions already. `private` is text behind the prompt that a host must not see. Its last token is
    the first one of the output, and the prompt holds the others.

    Levels of the draft before `first_level` are left out for this sequence; if it is beyond the last level, nothing is
    drafted. `predicted` are tokens that the output is said to resemble, where a lookup may find drafts.
    `prompt_logits`: whether the logits of the prompt's rows are wanted, too. `fresh`: whether the whole prompt is to be
    read, whatever other requests have read of it.
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
    seen: int = 0
    private: tuple[int, ...] = ()
    first_level: int = 0
    predicted: tuple[int, ...] = ()
    prompt_logits: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sequence may draft in one round.

    `position` is the position of the first token that is drafted. `rows`, `depth`, `width`, `least` and `dues` are the
    `Budget` of the level that is asked; a draft beyond rows and depth is cut, not refused. `below` holds the budgets of
    the levels below, nearest first.
    """

    sequence: int
    round: int
    position: int
    rows: int
    depth: int
    width: int = 1
    below: tuple[Budget, ...] = ()
    least: float = 0.0
    dues: tuple[float, ...] = ()

    @classmethod
    def of(cls, sequence: int, round: int, position: int, budgets: Sequence[Budget]) -> Turn:
        """A turn with a budget for each level, nearest to the target first."""
        own, *below = budgets
        return cls(sequence, round, position, own.rows, own.depth, own.width, tuple(below), own.least, own.dues)

    @property
    def most(self) -> Budget:
        """The budget that bounds the draft: that of the first level that is not left out."""
        own = Budget(self.rows, self.depth, self.width)
        return next((budget for budget in (own, *self.below) if budget.rows), own)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of all levels, of the level that is asked first."""
        return (Budget(self.rows, self.depth, self.width, self.least, self.dues), *self.below)

    def inner(self, round: int, position: int, depth: int) -> Turn | None:
        """A turn for the level below, with paths of at most `depth`. None if no level below may draft anything."""
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
    """Up to `rows` tokens of a sequence's prompt, to be read in one pass. They follow the tokens read before."""

    sequence: int
    rows: int


@dataclass(frozen=True, slots=True)
class Draft:
    """N proposed tokens with their parents. Parents come before children.

    `sequence`, `round` and `position` are those of the turn that the draft answers, so that late and repeated drafts
    are recognised and dropped. `origins[i]` names the level that proposed token i.

    `draft_probs` is for the rejection rule: the distributions from which the children of a node were drawn, without
    replacement and in their order. It is float64 [V] by the index of the node, -1 for the root. A node without an entry
    has children that were not drawn, but certain. Raises ContractError where lengths or parents are wrong.
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
    """The features that a drafter asked for, of the rows that a verdict committed to the target's cache.

    Row 0 is position `start`. Each tensor has one row for each committed token and owns its memory. No tensor is a
    window on the target's cache, so the same object can cross a network.
    """

    start: int
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one pass for one sequence: the accepted path of its draft, and the bonus token that follows.

    `tokens` are the new tokens from `position` on: those of `accepted` (indices into the draft, root to leaf), then the
    bonus. They are cut where the sequence stops: at an end token, at a stop string, at its length, or where its grammar
    allows nothing more. Then `finish_reason` gives the reason, and there may be no bonus. `origins` names who proposed
    each token. `logits`, on request, is float32 [len(tokens), vocabulary], from which each token was chosen, and
    `prompt_logits` is float32 [read, vocabulary], of the prompt's rows that this pass has read.

    Round 0 reads the prompt. `read` counts the tokens of the prompt that this pass has read, and `cached_tokens` those
    that need not be read. While `prompt_left` tokens are not read yet, the verdict has no token, only features. An
    `error` ends this sequence and no other; such a verdict has no tokens. `cost` is the target's cost of the whole
    pass, with all its sequences. The tokens of an `unverified` verdict are the draft's alone: the target is out of
    reach, and has checked none of them.
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
    unverified: bool = False
    prompt_logits: torch.Tensor | None = None

    def behind(self, n: int) -> Verdict:
        """The verdict without its first n tokens, for a drafter that has been told those."""
        return replace(self, position=self.position + n, accepted=(), tokens=self.tokens[n:], origins=self.origins[n:])

    @property
    def last(self) -> bool:
        """Whether the sequence ends with this verdict."""
        return self.finish_reason is not None or self.error is not None

"""The values that travel: requests in, drafts and verdicts between the parts, completions out.

All are frozen. A drafter sees turns and verdicts and returns drafts; the verifier sees drafts and returns verdicts;
nothing else passes between them, so either may stand at the far end of a network.

A sequence's tokens are counted by *position*: the prompt's first token stands at 0. All but the last committed token
have keys and values in the target's cache; the last one is the root of the next draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from foretoken.errors import ContractError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from foretoken.decoder.cache import Cache
    from foretoken.decoder.cost import Cost
    from foretoken.stats import Stats

Distribution: TypeAlias = "npt.NDArray[np.float64]"
FinishReason = Literal["stop", "length"]
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
class Request:
    """One sequence to generate. `end_tokens` is empty when end tokens are to be ignored.

    `completion` tells apart several samples of one prompt and seed: each throws dice of its own. Of requests with one
    `conversation`, one after the other, each reads only what its prompt has not in common with the one before.
    """

    sequence: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    keep_logits: bool = False
    sampling: SamplingParams = SamplingParams()
    completion: int = 0
    conversation: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sequence may draft in one round.

    `position` is where the first drafted token would stand. `rows` bounds the draft's tokens, `depth` its longest
    path; a draft beyond them is cut, not refused.
    """

    sequence: int
    round: int
    position: int
    rows: int
    depth: int

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
class Work:
    """What one level of a drafter did in one call: without it, the cost of inner levels would be invisible.

    It computed `rows` in some `passes` of its model, from `began` on (`time.perf_counter`) for some `seconds`, and
    gained `draft_tokens`. Where it checked what the level below it had drafted, once, `checked_tokens` of those
    `accepted_tokens` were right. The work of different levels does not overlap in time.
    """

    level: str
    rows: int = 0
    began: float = 0.0
    seconds: float = 0.0
    draft_tokens: int = 0
    checked_tokens: int = 0
    accepted_tokens: int = 0
    passes: int = 0


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

    def first(self, rows: int) -> Features:
        """The features of the first `rows` rows, in memory of their own: what was cut is not sent along."""
        return Features(self.start, {name: _owned(tensor[:rows]) for name, tensor in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said about a draft: the accepted path and the bonus token that follows it.

    `tokens` are the new tokens from `position` on: those of `accepted` (indices into the draft, root to leaf), then
    the bonus. A verdict that was cut to a stop has lost tokens from its end and carries the reason; so does one that
    ends because nothing may follow in the request's grammar, and it may have no bonus. `logits`, on request, is float32
    [len(tokens), vocabulary]: what each token was chosen from.
    That of a prompt says how many of its tokens were there already: `cached_tokens`.
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

    def first(self, count: int, finish_reason: FinishReason) -> Verdict:
        """This verdict cut to its first `count` tokens."""
        dropped = len(self.tokens) - count
        features = self.features
        if features is not None and dropped:
            rows = next(iter(features.tensors.values())).shape[0] if features.tensors else 0
            features = features.first(rows - dropped)
        return replace(
            self,
            accepted=self.accepted[:count],
            tokens=self.tokens[:count],
            origins=self.origins[:count],
            features=features,
            logits=None if self.logits is None else _owned(self.logits[:count]),
            finish_reason=finish_reason,
        )


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """The same in memory of its own, copied by one thread: PyTorch's others are not there after a fork."""
    if tensor.device.type != "cpu":
        return tensor.clone()
    import torch

    return torch.from_numpy(tensor.detach().view(torch.uint8).numpy().copy()).view(tensor.dtype)


class Extractor(Protocol):
    """Reduces the target's keys and values, beside the target, to what a drafter needs to see of them. Only reads."""

    def __call__(self, cache: Cache, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """Features of the committed positions `start` to `stop`: one row a position, memory of their own."""
        ...


@dataclass(frozen=True, slots=True)
class Needs:
    """Which features a drafter wants in its verdicts: the target's last hidden state (float32 [rows, hidden], before
    the final norm), the output of an extractor, both, or (the default) none."""

    hidden: bool = False
    extractor: Extractor | None = None


class Views(Protocol):
    """What a drafter that shares the target's cache is given: a way to make views, one a round, and nothing else."""

    def view(self, sequence: int, layers: range | None = None) -> Cache:
        """A window on a sequence's committed keys and values, of all layers or some."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Sees turns and verdicts, and of the target's cache only views; never verifier or engine."""

    name: str
    needs: Needs

    def begin(self, requests: Sequence[Request]) -> None:
        """New sequences: their prompts. Their first verdicts follow at once."""
        ...

    def propose(self, turns: Sequence[Turn]) -> Sequence[Draft]:
        """Drafts for this round, in any order. No draft for a turn means: nothing to propose."""
        ...

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """What became of the drafts. The first verdict of a sequence is that of its prompt."""
        ...

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a guess of the level above, and were not right.

        Comes to inner levels of a ladder only, before the verdict that says what stands there instead.
        """
        ...

    def end(self, sequence: int) -> None:
        """The sequence is finished or cancelled: forget it. May come twice."""
        ...


class Verifier(Protocol):
    """Owns the target. Turns prompts and drafts into verdicts."""

    context_length: int
    vocab_size: int  # tokens from here up are never generated

    def begin(self, requests: Sequence[Request]) -> list[Verdict]:
        """Read the prompts; each verdict holds the first token and the features of the prompt. All begin, or none."""
        ...

    def submit(self, drafts: Sequence[Draft]) -> int:
        """Start checking one draft for each of some sequences; returns a ticket for `result`."""
        ...

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a submitted check, in the order of its drafts."""
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Keep `length` positions of the sequence's cache: a verdict was cut."""
        ...

    def end(self, sequence: int) -> None:
        """The sequence is finished or cancelled: free what it holds. May come twice.

        What it has read is kept where its request names a conversation, until the next one takes it.
        """
        ...

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation; one that is not there is free already."""
        ...


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did, for statistics, pictures and (later) the pace. Times in seconds.

    `drafted[s]` and `accepted[s]` count tokens of sequence s, `new_tokens[s]` what it gained, bonus included; `work[s]`
    is what went into its draft. `dropped` counts drafts that were late, repeated or for an unknown sequence. The round
    began at `began` (`time.perf_counter`), with drafting; checking followed. `cost` is what decoders computed and read
    in it, for all its sequences, by the name of their level; the engine knows no decoder, so who records adds it.
    """

    round: int
    drafted: Mapping[int, int]
    accepted: Mapping[int, int]
    new_tokens: Mapping[int, int]
    propose_seconds: float
    check_seconds: float
    dropped: int = 0
    work: Mapping[int, tuple[Work, ...]] = field(default_factory=dict)
    began: float = 0.0
    cost: Mapping[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """A generation compared with plain decoding of the same prompt, token by token.

    Where they differ, `position` is the index of the first such token in the completion's `tokens`, `token` is what
    stands there and `plain_token` what plain decoding says (None if it has ended); the two logits are those of the
    plain pass, which chose the larger one. `compared_tokens` counts that token, too.
    """

    identical: bool
    compared_tokens: int
    position: int | None = None
    token: int | None = None
    plain_token: int | None = None
    logit: float | None = None
    plain_logit: float | None = None

    @property
    def gap(self) -> float | None:
        """How far apart the two logits are: what little it took to choose the other token."""
        return None if self.logit is None or self.plain_logit is None else self.plain_logit - self.logit


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable the model found a token, as a natural logarithm, before penalties and temperature; and what it found
    likeliest, best first: (token, log probability) each."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished generation. `origins[i]` is who proposed `tokens[i]`: a drafter's name, or `target`.

    `arithmetic` is what ran ("native", with its instruction level, or "pytorch") on `threads` threads. `seed` is that
    of the dice, when sampling; `stop_string` the one at which the text was cut. Of the `prompt_tokens`, so many were
    `cached_tokens`: not read again, but kept from an earlier turn of a talk, or from the first of several completions
    of one prompt. On request: `logprobs`, one a token; `logits`, float32 [len(tokens), vocabulary]; `logits_sha256`, of
    the same numbers as little-endian bytes; `audit`; `rounds`, what each round did, that of the prompt first and those
    of completions that shared its passes among them.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    origins: tuple[str, ...]
    promise: str
    draft: str
    stats: Stats
    arithmetic: str
    threads: int
    seed: int | None = None
    stop_string: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    logits: torch.Tensor | None = None
    logits_sha256: str | None = None
    audit: Audit | None = None
    rounds: tuple[RoundRecord, ...] | None = None

"""The target in this process: one pass over all sequences' rows, the walk, and a commit of what was accepted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foretoken import kernels
from foretoken.acceptance.walk import walk
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, Segment, chain
from foretoken.errors import ContractError
from foretoken.types import TARGET, Draft, Features, Needs, Request, Verdict

PREFILL_CHUNK = 256  # rows a pass


class Caches:
    """The target's caches by sequence: the one thing that a verifier and a drafter that shares its cache both hold."""

    def __init__(self) -> None:
        self._caches: dict[int, Cache] = {}

    def open(self, sequence: int, cache: Cache) -> None:
        """Keep a new sequence's cache."""
        if sequence in self._caches:
            raise ContractError(f"sequence {sequence} has begun already")
        self._caches[sequence] = cache

    def close(self, sequence: int) -> None:
        """Forget a sequence; one that is not there is forgotten already."""
        self._caches.pop(sequence, None)

    def __getitem__(self, sequence: int) -> Cache:
        try:
            return self._caches[sequence]
        except KeyError:
            raise ContractError(f"sequence {sequence} has not begun, or has ended") from None

    def view(self, sequence: int, layers: range | None = None) -> Cache:
        """A drafter's window on a sequence's committed keys and values."""
        return self[sequence].view(layers)


@dataclass
class _Sequence:
    request: Request
    last_token: int = -1
    round: int = 0


class LocalVerifier:
    """A target in this process. `needs` says which features its verdicts carry."""

    def __init__(
        self,
        target: Decoder,
        caches: Caches | None = None,
        *,
        needs: Needs = Needs(),  # noqa: B008 (frozen)
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        self.target = target
        self.caches = Caches() if caches is None else caches
        self.context_length = target.config.context_length
        self.vocab_size = target.config.valid_vocab_size
        self._needs = needs
        self._chunk = prefill_chunk
        self._sequences: dict[int, _Sequence] = {}
        self._results: dict[int, list[Verdict]] = {}
        self._tickets = itertools.count()

    def begin(self, requests: Sequence[Request]) -> list[Verdict]:
        """Read the prompts, a chunk of rows at a time; each verdict holds the first token."""
        return [self._read_prompt(request) for request in requests]

    def _read_prompt(self, request: Request) -> Verdict:
        if not 0 < len(request.prompt) < self.context_length:
            raise ContractError(
                f"sequence {request.sequence} has a prompt of {len(request.prompt)} tokens; "
                f"expected 1 to {self.context_length - 1}"
            )
        cache = self.target.new_cache()
        self.caches.open(request.sequence, cache)
        self._sequences[request.sequence] = _Sequence(request)
        kept: list[torch.Tensor] = []
        for start in range(0, len(request.prompt), self._chunk):
            rows = chain(cache, request.prompt[start : start + self._chunk])
            hidden = self.target.forward(rows)
            cache.commit(range(len(rows)), rows.writer)
            if self._needs.hidden:
                kept.append(hidden)
        logits = self.target.head(hidden[-1:])
        token = self._choose(logits[0])
        return self._verdict(request.sequence, 0, (), (token,), (TARGET,), kept, logits)

    def submit(self, drafts: Sequence[Draft]) -> int:
        """One pass of the target over the last token and the draft of each sequence named."""
        for draft in drafts:
            self._expect_current(draft)
        roots = [self._sequences[draft.sequence].last_token for draft in drafts]
        rows = Rows(
            # the root is slot 0, so that draft token i is slot i + 1
            (self.caches[d.sequence], (root, *d.tokens), (-1, *(parent + 1 for parent in d.parents)))
            for d, root in zip(drafts, roots, strict=True)
        )
        try:
            hidden = self.target.forward(rows)
            logits = self.target.head(hidden)
            verdicts = [
                self._judge(draft, rows, segment, hidden[segment.span], logits[segment.span])
                for draft, segment in zip(drafts, rows.segments, strict=True)
            ]
        finally:
            for segment in rows.segments:  # a pass that broke off leaves no scratch behind
                segment.cache.discard()
        ticket = next(self._tickets)
        self._results[ticket] = verdicts
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a submitted check."""
        return self._results.pop(ticket)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep `length` positions of a sequence's cache."""
        self.caches[sequence].truncate(length)

    def end(self, sequence: int) -> None:
        """Free a sequence."""
        self._sequences.pop(sequence, None)
        self.caches.close(sequence)

    def _expect_current(self, draft: Draft) -> None:
        state = self._sequences.get(draft.sequence)
        if state is None:
            raise ContractError(f"a draft came for sequence {draft.sequence}, which has not begun, or has ended")
        expected = (state.round, self.caches[draft.sequence].length + 1)
        if (draft.round, draft.position) != expected:
            raise ContractError(
                f"a draft for sequence {draft.sequence} is for round {draft.round}, position {draft.position}; "
                f"expected round {expected[0]}, position {expected[1]}"
            )

    def _judge(self, draft: Draft, rows: Rows, segment: Segment, hidden: torch.Tensor, logits: torch.Tensor) -> Verdict:
        accepted, bonus = walk(draft.tokens, draft.parents, lambda i: self._choose(logits[i + 1]))
        path = [0, *(i + 1 for i in accepted)]
        segment.cache.commit([segment.slots.start + i for i in path], rows.writer)
        tokens = (*(draft.tokens[i] for i in accepted), bonus)
        origins = (*(draft.origins[i] for i in accepted), TARGET)
        return self._verdict(
            draft.sequence, draft.round, tuple(accepted), tokens, origins, [hidden[path]], logits[path]
        )

    def _verdict(
        self,
        sequence: int,
        round: int,
        accepted: tuple[int, ...],
        tokens: tuple[int, ...],
        origins: tuple[str, ...],
        hidden: list[torch.Tensor],
        logits: torch.Tensor,
    ) -> Verdict:
        """After a commit: move on to the next round and gather what was asked for."""
        state, cache = self._sequences[sequence], self.caches[sequence]
        stop = cache.length
        start = 0 if round == 0 else stop - len(tokens)
        features: dict[str, torch.Tensor] = {}
        if self._needs.hidden:
            features["hidden"] = torch.cat(hidden)
        if self._needs.extractor is not None:
            features.update(self._needs.extractor(cache, start, stop))
        state.last_token = tokens[-1]
        state.round = round + 1
        return Verdict(
            sequence,
            round,
            position=stop - len(tokens) + 1,
            accepted=accepted,
            tokens=tokens,
            origins=origins,
            features=Features(start, features) if features else None,
            logits=logits.clone() if state.request.keep_logits else None,
        )

    def _choose(self, logits: torch.Tensor) -> int:
        token = kernels.argmax(logits)
        if token is None:
            raise self.target.nan_error()
        return token

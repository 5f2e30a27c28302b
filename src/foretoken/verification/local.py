"""The target in this process: one pass over all sequences' rows, the walks, and a commit of what was accepted.

The order is what keeps a sequence sound when something breaks off: nothing is committed before every walk has ended (a
NaN ends here), nothing foreign runs before everything is committed, and a sequence's own record is replaced in one
assignment. Whatever happens in between, the next draft is either judged rightly or refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from foretoken import kernels
from foretoken.acceptance.rejection import reject
from foretoken.acceptance.walk import NOTHING, walk
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches, KeptCaches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs, joined, picked
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.settings import LoadSettings
from foretoken.types import TARGET, Distribution, Draft, Features, Needs, Request, Verdict


@dataclass(frozen=True)
class _Sequence:
    """What the verifier knows of a sequence between rounds. `length` is that of its cache: all tokens but the last.

    `step` is how many tokens it has gained. The sampler is moved along a walk before anything is committed, so each
    round puts it back to that step first.
    """

    last_token: int
    round: int
    length: int
    step: int
    sampler: Sampler
    keep_logits: bool
    text: list[int] | None = None  # all of it, where no cache holds it


@dataclass(frozen=True)
class _Talk:
    """The conversation that a sequence belongs to, and the tokens that its cache holds."""

    conversation: int
    tokens: list[int]


class LocalVerifier:
    """A target in this process. `needs` says which features its verdicts carry; `prefill_chunk` is in rows.

    `rule` says how drafts are judged when sampling: "walk" (the target's own choices, followed as far as the draft has
    them) or "rejection" (the classical one: the distribution is kept, the tokens are not). With `cached` False no keys
    or values are kept from pass to pass: each computes the whole text again, and says the same.
    """

    def __init__(
        self,
        target: Decoder,
        caches: Caches | None = None,
        *,
        needs: Needs = Needs(),  # noqa: B008 (frozen)
        prefill_chunk: int = LoadSettings.prefill_chunk,
        cached: bool = True,
        samplers: MakeSampler = Sampler,
        rule: str = "walk",
    ) -> None:
        self.caches = Caches() if caches is None else caches
        self.context_length = target.config.context_length
        self.vocab_size = target.config.valid_vocab_size
        self._target = target
        self._needs = needs
        if needs.extractor is not None and not cached:
            raise ContractError("an extractor reads keys and values, and none are kept here; load with a cache")
        self._chunk = prefill_chunk
        self._cached = cached
        self._samplers = samplers
        self._rule = rule
        self._sequences: dict[int, _Sequence] = {}
        self._talks: dict[int, _Talk] = {}
        self._kept = KeptCaches()
        self._results: dict[int, list[Verdict]] = {}
        self._tickets = itertools.count()

    def begin(self, requests: Sequence[Request]) -> list[Verdict]:
        """Read the prompts, a chunk of rows at a time; each verdict holds the first token. All begin, or none."""
        begun: list[int] = []
        for request in requests:
            self._expect_readable(request)
        samplers = [self._samplers(request) for request in requests]  # before any pass: a grammar may be refused
        try:
            verdicts = []
            read: dict[tuple[int, ...], Cache] = {}
            for request, sampler in zip(requests, samplers, strict=True):
                cache = self._new_cache(request, read.get(request.prompt))
                self.caches.expect_new(request.sequence)
                begun.append(request.sequence)  # before it is there, so that an interruption leaves nothing behind
                self.caches.open(request.sequence, cache)
                read[request.prompt] = cache
                # else all is read anew each turn
                if request.conversation is not None and self._cached and not self._needs.hidden:
                    self._talks[request.sequence] = _Talk(request.conversation, list(request.prompt))
                verdicts.append(self._read_prompt(request, sampler))
        except BaseException:
            for sequence in begun:
                self.end(sequence)
            raise
        return verdicts

    def submit(self, drafts: Sequence[Draft]) -> int:
        """One pass of the target over the last token and the draft of each sequence named, each at most once."""
        if len({draft.sequence for draft in drafts}) < len(drafts):
            raise ContractError("two drafts came for one sequence; expected one for each")
        for draft in drafts:
            self._expect_current(draft)
            self.caches[draft.sequence].discard()  # what a pass that was broken off may have left
        texts = [self._uncommitted(draft.sequence) for draft in drafts]
        rows = Rows(
            # what comes before the draft ends with its root; with a cache that is all there is, in slot 0
            (
                self.caches[draft.sequence],
                (*text, *draft.tokens),
                (*range(-1, len(text) - 1), *(parent + len(text) for parent in draft.parents)),
            )
            for draft, text in zip(drafts, texts, strict=True)
        )
        try:
            outputs, spans = self._run(rows, texts)
            walks = [self._judge(draft, outputs, span.start) for draft, span in zip(drafts, spans, strict=True)]
        except BaseException:
            for draft in drafts:
                self.caches[draft.sequence].discard()
            raise
        # all rows up to the one that the last token was chosen from
        paths = [[0, *(i + 1 for i in accepted)][: len(tokens)] for accepted, tokens in walks]
        for draft, path, (_, tokens) in zip(drafts, paths, walks, strict=True):
            state = self._sequences[draft.sequence]
            if self._cached:
                self.caches[draft.sequence].commit(path, rows.writer)
            else:
                self.caches[draft.sequence].discard()
            if draft.sequence in self._talks:
                self._talks[draft.sequence].tokens.extend((state.last_token, *tokens[:-1]))
            self._sequences[draft.sequence] = replace(
                state,
                last_token=tokens[-1],
                round=state.round + 1,
                length=state.length + len(tokens),
                step=state.step + len(tokens),
                text=None if state.text is None else [*state.text, *tokens],
            )
        ticket = next(self._tickets)
        self._results[ticket] = [
            self._verdict(
                draft.sequence,
                accepted=tuple(accepted),
                tokens=tokens,
                origins=(*(draft.origins[i] for i in accepted), TARGET)[: len(tokens)],
                start=draft.position - 1,
                hidden=outputs.hidden[span],
                logits=outputs.logits[span],
                path=path,
            )
            for draft, path, span, (accepted, tokens) in zip(drafts, paths, spans, walks, strict=True)
        ]
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a submitted check, once."""
        if ticket not in self._results:
            raise ContractError(f"there is no check with ticket {ticket}, or its result was taken")
        return self._results.pop(ticket)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep `length` positions of a sequence's cache."""
        if self._cached:
            self.caches[sequence].truncate(length)

    def end(self, sequence: int) -> None:
        """Free a sequence; one that is not there is free already. The cache of a conversation is kept."""
        self._sequences.pop(sequence, None)
        talk = self._talks.pop(sequence, None)
        if talk is not None:
            self._kept.put(talk.conversation, self.caches[sequence], talk.tokens)
        self.caches.close(sequence)

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation; one that is not there is free already."""
        self._kept.forget(conversation)

    def _uncommitted(self, sequence: int) -> list[int]:
        """The end of a sequence's text of which its cache has nothing: the last token, or without a cache all of it."""
        state = self._sequences[sequence]
        return [state.last_token] if state.text is None else state.text

    def _run(self, rows: Rows, texts: Sequence[Sequence[int]]) -> tuple[Outputs, list[slice]]:
        """A pass. Of each sequence logits from the root on, and where those rows stand."""
        if self._cached:
            return self._target.run(rows), [segment.span for segment in rows.segments]
        hidden = self._target.forward(rows)
        spans: list[slice] = []
        kept: list[torch.Tensor] = []
        for segment, text in zip(rows.segments, texts, strict=True):
            kept.append(hidden[segment.span.start + len(text) - 1 : segment.span.stop])
            first = spans[-1].stop if spans else 0
            spans.append(slice(first, first + len(kept[-1])))
        hidden = joined(kept)
        return self._target.choices(hidden), spans

    def _new_cache(self, request: Request, read: Cache | None) -> Cache:
        """An empty one, or that of the conversation's last turn, which holds the beginning of the prompt; or a copy of
        one into which the same prompt has just been `read`, but for the last token, from whose row the first comes.

        Where somebody needs hidden states of the whole prompt, all of it is read again: those are not kept.
        """
        kept = None
        if not self._cached:
            return self._target.new_cache()
        if request.conversation is not None and not self._needs.hidden:
            kept = self._kept.take(request.conversation, request.prompt)
        elif read is not None and not self._needs.hidden:
            kept = read.copy(len(request.prompt) - 1)
        return self._target.new_cache() if kept is None else kept

    def _read_prompt(self, request: Request, sampler: Sampler) -> Verdict:
        cache = self.caches[request.sequence]
        cached = cache.length
        kept: list[torch.Tensor] = []
        for start in range(cached, len(request.prompt), self._chunk):
            rows = chain(cache, request.prompt[start : start + self._chunk])
            hidden = self._target.forward(rows)
            cache.commit(range(len(rows)), rows.writer)
            if self._needs.hidden:
                kept.append(hidden)
        logits = self._target.head(hidden[-1:])
        choice = kernels.argmax(logits[0]) if sampler.plain else sampler.choose(logits[0])
        token = self._expect_number(choice)
        sampler.advance([token])
        text = None if self._cached else [*request.prompt, token]
        self._sequences[request.sequence] = _Sequence(token, 1, cache.length, 1, sampler, request.keep_logits, text)
        if not self._cached:
            cache.truncate(0)
        return self._verdict(
            request.sequence,
            accepted=(),
            tokens=(token,),
            origins=(TARGET,),
            start=0,
            hidden=joined(kept) if self._needs.hidden else hidden,
            logits=logits,
            cached_tokens=cached,
        )

    def _verdict(
        self,
        sequence: int,
        *,
        accepted: tuple[int, ...],
        tokens: tuple[int, ...],
        origins: tuple[str, ...],
        start: int,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        path: list[int] | None = None,
        cached_tokens: int = 0,
    ) -> Verdict:
        """The verdict on what has just been committed, from position `start` on, with the features asked for.

        `path` picks the committed rows of hidden states and logits, where those are not all."""
        state = self._sequences[sequence]
        features: dict[str, torch.Tensor] = {}
        if self._needs.hidden:
            features["hidden"] = picked(hidden, range(len(hidden)) if path is None else path)
        if self._needs.extractor is not None:
            features.update(self._needs.extractor(self.caches[sequence], start, state.length))
        return Verdict(
            sequence,
            round=state.round - 1,
            position=state.length - len(tokens) + 1,
            accepted=accepted,
            tokens=tokens,
            origins=origins,
            features=Features(start, features) if features else None,
            logits=picked(logits, range(len(logits)) if path is None else path) if state.keep_logits else None,
            finish_reason="stop" if state.sampler.complete else None,
            cached_tokens=cached_tokens,
        )

    def _judge(self, draft: Draft, outputs: Outputs, root: int) -> tuple[list[int], tuple[int, ...]]:
        """(accepted, the tokens that the sequence gains). `root` is the row of the last token; the draft's follow."""
        state = self._sequences[draft.sequence]
        sampler = state.sampler
        sampler.rewind(state.step)
        if sampler.complete:
            raise ContractError(f"sequence {draft.sequence} is at the end of its grammar; nothing may follow")
        judge = self._reject if self._rule == "rejection" and not sampler.greedy else self._walk
        accepted, bonus = judge(draft, outputs, root, sampler)
        tokens = [draft.tokens[i] for i in accepted]
        return accepted, (*tokens, *(() if bonus == NOTHING else (bonus,)))

    def _walk(self, draft: Draft, outputs: Outputs, root: int, sampler: Sampler) -> tuple[list[int], int]:
        def choose(i: int) -> int:
            if sampler.complete:
                return NOTHING
            row = root + 1 + i
            choice = outputs.choice(row) if sampler.plain else sampler.choose(outputs.logits[row])
            token = self._expect_number(choice)
            sampler.advance([token])
            return token

        return walk(draft.tokens, draft.parents, choose)

    def _reject(self, draft: Draft, outputs: Outputs, root: int, sampler: Sampler) -> tuple[list[int], int]:
        def target_probs(i: int) -> Distribution:
            if sampler.complete:
                return np.zeros(outputs.logits.shape[1])
            probs = sampler.probabilities(outputs.logits[root + 1 + i])
            if probs is None:
                raise self._target.nan_error()
            return probs

        accepted, bonus = reject(
            draft.tokens,
            draft.parents,
            draft.draft_probs or {},
            target_probs,
            coin=sampler.coin,
            pick=lambda probs: NOTHING if sampler.complete else sampler.pick(probs),
            accept=lambda token: sampler.advance([token]),
        )
        if bonus != NOTHING:
            sampler.advance([bonus])
        return accepted, bonus

    def _expect_number(self, token: int | None) -> int:
        if token is None:
            raise self._target.nan_error()
        return token

    def _expect_readable(self, request: Request) -> None:
        if not 0 < len(request.prompt) < self.context_length:
            raise ContractError(
                f"sequence {request.sequence} has a prompt of {len(request.prompt)} tokens; "
                f"expected 1 to {self.context_length - 1}"
            )

    def _expect_current(self, draft: Draft) -> None:
        state = self._sequences.get(draft.sequence)
        if state is None:
            raise ContractError(f"a draft came for sequence {draft.sequence}, which has not begun, or has ended")
        if (draft.round, draft.position) != (state.round, state.length + 1):
            raise ContractError(
                f"a draft for sequence {draft.sequence} is for round {draft.round}, position {draft.position}; "
                f"expected round {state.round}, position {state.length + 1}"
            )
        held, expected = self.caches[draft.sequence].length, state.length if self._cached else 0
        if held != expected:
            raise ContractError(
                f"the cache of sequence {draft.sequence} holds {held} positions, expected {expected}: "
                "it was cut, or a pass was broken off while it committed; end the sequence"
            )

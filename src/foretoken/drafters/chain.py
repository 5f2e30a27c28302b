"""A decoder drafts a chain, token by token. An inner drafter can draft for it and speed it up, to any depth.

A small model of the same family, a copy of the target, every level of a ladder: all are `ModelDrafter`s. An `inner`
drafter guesses the decoder's own tokens. The decoder checks several guesses in one pass, as the target will check the
chain. So the chain is the same with an inner drafter and without. All sequences that are drafted for share each pass.

When sampling, the decoder adds the target's seeded noise to its own logits (docs/lossless.md). So it chooses the tokens
that the target would choose if the target had those logits.

Source: ML-SpecQD (Georganas et al. 2025), sections III-A and III-C; Leviathan et al. 2023 for the chain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace

from foretoken import kernels
from foretoken.acceptance.walk import NOTHING, agreeing
from foretoken.decoder.cache import new_writer
from foretoken.decoder.caches import Caches
from foretoken.decoder.checking import Check, Part, run_check
from foretoken.decoder.decoder import Drafted
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.views import Views
from foretoken.drafters.reading import DecoderDrafter, Open, choose
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import TARGET, Distribution, Draft, Request, Turn, Verdict
from foretoken.trees.tree import for_turns

_FEW = 2  # so many pending tokens go into the first check: there are two after a draft that was accepted whole


@dataclass
class _Chain(Open):
    """A sequence whose chain is growing. distributions: those from which its tokens were drawn, if the rejection rule
    asks for them. ended: no token of the decoder's own follows."""

    tokens: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    ended: bool = False
    unsure: bool = False  # whether its last token is one that it was not confident of

    @property
    def done(self) -> bool:
        """Whether the chain has ended, or has all its tokens."""
        return self.ended or self.unsure or len(self.tokens) >= self.count

    def draft(self) -> Draft:
        """The chain as a draft."""
        return self.turn.chain(self.tokens, self.origins, tuple(self.work), self.distributions or None)


@dataclass(eq=False, kw_only=True)
class ModelDrafter(DecoderDrafter):
    """A decoder that drafts a chain.

    confidence: a chain ends with the first token to which the decoder gives a smaller probability, at temperature 1.
    That token is still sent: under the rejection rule, a token must not decide whether it is judged. With 0, no chain
    ends so. Source: ML-SpecQD, section V, which uses the `assistant_confidence_threshold` of transformers.

    below: makes the `inner` drafter, if there is one. It is called with views of the caches on which this level checks.
    These caches exist while the inner drafter is asked for drafts. In a round in which this level has no rows, they may
    lack more of the text than its last token.
    """

    confidence: float = 0.0
    below: InitVar[Callable[[Views], Drafter] | None] = None
    inner: Drafter | None = field(init=False, default=None)
    _checked: Caches = field(init=False, default_factory=Caches)  # in a round, those on which this level checks
    _guessed: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)  # the last draft of each sequence
    _checks: int = field(init=False, default=0)  # rounds between this level and the one below it

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        if below is not None:
            self.inner = below(self._checked)

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on."""
        super().begin(requests)
        if self.inner is not None:
            self.inner.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """A chain for each turn."""
        own = [turn for turn in turns if turn.rows]
        found = [self.opened(turn, min(turn.rows, turn.depth)) for turn in own]
        chains = [_Chain(**vars(opened)) for opened in found if opened is not None]
        steps = [(chain, chain.reading.sampler.step) for chain in chains]
        try:
            if self.inner is None:
                self._grow_alone(chains)
            else:
                self._grow_checking(self.inner, chains)
        finally:
            for chain, step in steps:
                chain.reading.sampler.rewind(step)
                self._checked.close(chain.turn.sequence)
        self._guessed.update((turn.sequence, ()) for turn in turns)
        self._guessed.update((chain.turn.sequence, tuple(chain.tokens)) for chain in chains)
        without = [turn.chain((), self.name) for turn, opened in zip(own, found, strict=True) if opened is None]
        return [*(chain.draft() for chain in chains), *without, *self._left_out([t for t in turns if not t.rows])]

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the tokens of the chains that were right, and tell the level below which were not."""
        work = self.read_along(verdicts)
        news = []
        for verdict in verdicts:
            if verdict.prompt_left:
                news.append(verdict)  # the level below reads along, too
                continue
            reading = self._readings[verdict.sequence]
            guessed = self._guessed.pop(verdict.sequence, ())
            right = agreeing(guessed, verdict.tokens)
            reading.gain(verdict.tokens)
            reading.keep(verdict.position + right)
            if self.inner is not None:
                if right < len(guessed):  # the level below was told all guesses
                    self.inner.rewind(verdict.sequence, verdict.position + right)
                if right < len(verdict.tokens):
                    news.append(self._rest(verdict, right))
        if self.inner is not None and news:
            work += self.inner.observe(news) or ()
        return work

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        self._readings[sequence].rewind(position)
        if self.inner is not None:
            self.inner.rewind(sequence, position)
        self._guessed.pop(sequence, None)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._guessed.pop(sequence, None)
        if self.inner is not None:
            self.inner.end(sequence)

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, here and below."""
        super().forget(conversation)
        if self.inner is not None:
            self.inner.forget(conversation)

    # -- without a level below ----------------------------------------------------------------------------------------

    def _grow_alone(self, chains: Sequence[_Chain]) -> None:
        """A pass for each token, over all chains that have not ended."""
        began, passes, cost = time.perf_counter(), 0, Cost()
        rows = {chain.turn.sequence: 0 for chain in chains}
        texts = {chain.turn.sequence: chain.text for chain in chains}
        growing = list(chains)
        while growing:
            check = run_check(self.model, [Part(chain.cache, texts[chain.turn.sequence]) for chain in growing])
            passes += 1
            for at, chain in enumerate(growing):
                text = texts[chain.turn.sequence]
                check.commit(at, range(len(text)))
                rows[chain.turn.sequence] += len(text)
                token = self._next(chain, check.outputs, check.root(at))
                chain.ended = token is None
                texts[chain.turn.sequence] = [] if token is None else [token]
            cost += check.rows.cost
            growing = [chain for chain in growing if not chain.done]
            if len(growing) == 1 and self._in_one_call(growing[0]):
                (chain,) = growing
                followed = self._follow(chain)
                rows[chain.turn.sequence] += len(followed.tokens)
                passes += len(followed.tokens)
                cost += followed.cost
                growing = []
        seconds, shared = time.perf_counter() - began, {self.name: cost}
        for chain in chains:
            chain.origins += [self.name] * len(chain.tokens)
            computed, drafted = rows[chain.turn.sequence], len(chain.tokens)
            chain.work.append(
                Work(self.name, computed, began, seconds, draft_tokens=drafted, passes=passes, cost=shared)
            )

    def _in_one_call(self, chain: _Chain) -> bool:
        """Whether each token of the rest of a chain is simply the one with the largest logit."""
        plain = chain.reading.sampler.plain and self.model.config.valid_vocab_size <= self.vocab_size
        return plain and not self.confidence

    def _follow(self, chain: _Chain) -> Drafted:
        """Draft the rest of a chain in one call. A NaN ends it early."""
        writer, count = new_writer(), chain.count - len(chain.tokens)
        drafted = self.model.draft_chain(chain.cache, chain.tokens[-1], count, writer=writer)
        chain.cache.commit(range(len(drafted.tokens)), writer)
        chain.tokens += drafted.tokens
        return drafted

    # -- with one -----------------------------------------------------------------------------------------------------

    def _grow_checking(self, inner: Drafter, chains: Sequence[_Chain]) -> None:
        """Check the guesses of the level below as the target checks drafts: a pass over all chains, a walk for each."""
        for chain in chains:
            self._checked.open(chain.turn.sequence, chain.cache)
        self._catch_up([chain for chain in chains if len(chain.text) > _FEW])
        growing = list(chains)
        while growing:
            drafts = self._below(inner, growing)
            began = time.perf_counter()
            parts = [
                Part(chain.cache, chain.text, draft.tokens, draft.parents)
                for chain, draft in zip(growing, drafts, strict=True)
            ]
            check = run_check(self.model, parts)
            verdicts = [self._walk(check, at, growing[at], draft) for at, draft in enumerate(drafts)]
            seconds, cost = time.perf_counter() - began, {self.name: check.rows.cost}
            for part, chain, draft, verdict in zip(parts, growing, drafts, verdicts, strict=True):
                gained, accepted = len(verdict.tokens), len(verdict.accepted)
                chain.work += draft.work
                chain.work.append(
                    Work(self.name, part.rows, began, seconds, gained, len(draft), accepted, passes=1, cost=cost)
                )
            told = [verdict for verdict in verdicts if verdict.tokens]
            if told:
                inner.observe(told)
            growing = [chain for chain in growing if not chain.done]

    def _catch_up(self, chains: Sequence[_Chain]) -> None:
        """Run the pending tokens of some chains, but not the last. Otherwise a level below, on views of this level's
        caches, would run them, too."""
        if not chains:
            return
        began = time.perf_counter()
        check = run_check(self.model, [Part(chain.cache, chain.text[:-1], wanted=False) for chain in chains])
        for at, chain in enumerate(chains):
            check.commit(at, range(len(chain.text) - 1))
        seconds, cost = time.perf_counter() - began, {self.name: check.rows.cost}
        for chain in chains:
            chain.work.append(Work(self.name, len(chain.text) - 1, began, seconds, passes=1, cost=cost))
            chain.text = chain.text[-1:]

    def _below(self, inner: Drafter, chains: Sequence[_Chain]) -> list[Draft]:
        """The next guesses of the level below for each chain, within its own budget and the tokens that are left."""
        self._checks += 1
        turns = []
        for chain in chains:
            position = chain.turn.position + len(chain.tokens)
            left = chain.count - len(chain.tokens) - 1  # the last token is this level's own
            turn = chain.turn.inner(self._checks, position, left)
            turns.append(turn or Turn(chain.turn.sequence, self._checks, position, 0, 0))
        asked = [turn for turn in turns if turn.most.rows]
        proposed = inner.propose(asked) if asked else ()
        return for_turns(turns, proposed, min(self.vocab_size, self.model.config.vocab_size))[0]

    def _walk(self, check: Check, at: int, chain: _Chain, draft: Draft) -> Verdict:
        first = len(chain.tokens)

        def choose_next(row: int) -> int:
            token = self._next(chain, check.outputs, row)
            return NOTHING if token is None else token

        walked = check.walk(at, choose_next)
        gained = tuple(chain.tokens[first:])
        check.commit(at, check.path(at, walked.accepted, len(gained)))
        origins = [draft.origins[i] for i in walked.accepted]
        chain.origins += [*origins, self.name][: len(gained)]
        chain.ended = len(gained) == len(walked.accepted)  # no token of its own came: a NaN, or nothing may follow
        chain.text = list(gained[-1:]) or chain.text[-1:]
        told = (*origins, TARGET)[: len(gained)]
        return Verdict(draft.sequence, draft.round, draft.position, tuple(walked.accepted), gained, told)

    def _left_out(self, turns: Sequence[Turn]) -> list[Draft]:
        """For turns in which this level has no rows: the drafts of the level below."""
        below = [turn.inner(turn.round, turn.position, turn.most.depth) for turn in turns]
        asked = [turn for turn in below if turn is not None]
        if self.inner is None or not asked:
            return []
        for turn in asked:  # it may draft on views of what this level has read, which ends sooner than the text
            self._checked.open(turn.sequence, self._readings[turn.sequence].open())
        try:
            return [*self.inner.propose(asked)]
        finally:
            for turn in asked:
                self._checked.close(turn.sequence)

    def _rest(self, verdict: Verdict, right: int) -> Verdict:
        """The part of a verdict that the level below was not told."""
        self._checks += 1
        return replace(verdict.behind(right), round=self._checks)

    def _next(self, chain: _Chain, outputs: Outputs, row: int) -> int | None:
        """The chain's next token. None at a NaN, behind an unsure token, or if nothing may follow."""
        if chain.unsure:
            return None
        sampler = chain.reading.sampler
        token = choose(sampler, outputs, row, self.vocab_size)
        if token is None:
            return None
        if self.confidence:
            logits = outputs.logits(row).cpu().numpy()
            sure = float(logits[token]) - kernels.log_total(logits) >= math.log(self.confidence)
            chain.unsure = not sure  # at a NaN, too
        drawn = self.drawn_from(sampler, outputs.logits(row))
        if drawn is not None:
            chain.distributions[len(chain.tokens) - 1] = drawn
        sampler.advance([token])
        chain.tokens.append(token)
        return token

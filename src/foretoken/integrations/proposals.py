"""The loop turned round: another engine owns the model, checks the drafts and chooses the tokens; only drafts come from
here.

The engine shows the texts that are under way, before each of its passes. It says nothing of requests, so a text is
recognised by its tokens: one that begins with all that was seen of an earlier text goes on with that one. So nothing is
lost if an engine moves its rows about, leaves a text out of a pass, or continues a text in a new request. What was
accepted of a draft shows in the text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.protocol.roles import Drafter, Pace
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import TARGET, Budget, Draft, Request, Turn, Verdict
from foretoken.trees.tree import for_turns

Tokens = npt.NDArray[np.int32]
_IDLE = 4  # texts that no pass had of late and whose drafts can go on all the same, at least
_AT_ONCE = 1024  # positions whose keys and values are copied together: bounds the memory that this takes


class TheirCache(Protocol):
    """Keys and values that another engine has computed for the texts of its next pass."""

    def read(self, row: int, layer: int, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, rotated, and values of some positions of a text: [N, kv_heads, head_dim]. row: the text's place among
        those that were shown."""
        ...


@dataclass(frozen=True)
class Mirror:
    """The target's caches, copied from another engine's as far as drafts need them. target: makes the caches. caches:
    those on views of which drafts are made. theirs: where the keys and values come from."""

    target: Decoder
    caches: Caches
    theirs: TheirCache

    def follow(self, sequence: int, row: int, text: Tokens) -> None:
        """Copy what a sequence's cache lacks. The last token has no keys and values yet."""
        cache = self.caches[sequence]
        while cache.length < len(text) - 1:
            positions = range(cache.length, min(len(text) - 1, cache.length + _AT_ONCE))
            rows = chain(cache, text[positions.start : positions.stop].tolist())
            (segment,) = rows.segments
            for layer in cache.layers:
                cache.write(layer, segment.slots, *self.theirs.read(row, layer, positions), rows.writer)
            cache.commit(segment.slots, rows.writer)

    def open(self, sequence: int) -> None:
        """Begin with an empty cache for a sequence."""
        self.caches.open(sequence, self.target.new_cache())


@dataclass(eq=False)
class _Text:
    """A text under way, as far as it was seen. sent: the draft that went into the last pass. idle: passes since it was
    last shown."""

    sequence: int
    seen: Tokens
    round: int = 1
    sent: Draft | None = None
    idle: int = 0

    def goes_on_as(self, shown: Tokens) -> bool:
        """Whether a text that is shown is this one, with more tokens."""
        length = len(self.seen)
        if length >= len(shown) or shown[length - 1] != self.seen[-1]:  # which most other texts fail
            return False
        return np.array_equal(shown[:length], self.seen)


@dataclass(eq=False)
class Proposals:
    """Drafts for the texts of an engine.

    drafter: needs no features. pace: how much is drafted. most: the most tokens of a draft. context_length: of prompt
    and output together. vocab_size: tokens from this number up are never drafted. mirror: for a drafter that drafts on
    the target's own keys and values.
    """

    drafter: Drafter
    pace: Pace
    most: int
    context_length: int
    vocab_size: int
    mirror: Mirror | None = None
    drafted: int = field(init=False, default=0)  # tokens, in all passes so far
    accepted: int = field(init=False, default=0)  # of these
    _texts: list[_Text] = field(init=False, default_factory=list)
    _begun: int = field(init=False, default=0)  # sequences so far
    _rounds: int = field(init=False, default=0)
    _left: float = field(init=False, default=0.0)  # when the last drafts were handed over
    _took: float = field(init=False, default=0.0)  # seconds of the last drafts
    _turns: dict[int, Turn] = field(init=False, default_factory=dict)  # of the last drafts, by sequence

    def propose(self, shown: Sequence[Tokens | None]) -> list[list[int]]:
        """A draft for each text, a chain of token ids behind its end; empty where nothing is drafted.

        shown: the texts of the pass to come, each with at least one token behind its prompt. None: a text whose prompt
        is still being read.
        """
        came = time.perf_counter()
        known = self._recognised(shown)
        gained = self._hear(shown, known)
        if self._left and gained:
            self._record(gained, came - self._left, reads=len(gained) < len(shown))
        texts = {row: known[row] or self._begin(tokens) for row, tokens in enumerate(shown) if tokens is not None}
        began = time.perf_counter()
        self._draft(texts)
        self._left = time.perf_counter()
        self._took = self._left - began
        self._rounds += 1
        sent = [texts[row].sent if row in texts else None for row in range(len(shown))]
        return [[] if draft is None else list(draft.tokens) for draft in sent]

    def close(self) -> None:
        """Forget all texts."""
        for text in self._texts:
            self._end(text)
        self._texts.clear()

    # -- which text is which ----------------------------------------------------------------------------------------

    def _recognised(self, shown: Sequence[Tokens | None]) -> list[_Text | None]:
        """The text under way that each of those shown goes on from; None for a new one. Texts that no pass had for
        long are forgotten."""
        free = list(self._texts)
        found: list[_Text | None] = [None] * len(shown)
        for row, tokens in enumerate(shown):
            if tokens is not None:
                # the longest: a text that others begin with is not to take the place of one of them
                going_on = [text for text in free if text.goes_on_as(tokens)]
                if going_on:
                    best = found[row] = max(going_on, key=lambda text: len(text.seen))
                    free.remove(best)
        for text in free:
            text.idle += 1
        spare = max(_IDLE, len(shown))
        for text in sorted(free, key=lambda text: text.idle)[spare:]:
            self._end(text)
            self._texts.remove(text)
        return found

    def _end(self, text: _Text) -> None:
        self.drafter.end(text.sequence)
        if self.mirror is not None:
            self.mirror.caches.close(text.sequence)

    # -- what has become of the last drafts -------------------------------------------------------------------------

    def _hear(self, shown: Sequence[Tokens | None], known: Sequence[_Text | None]) -> dict[int, Verdict]:
        """Tell the drafter what the known texts have gained. Returns the verdicts on those that were in the last
        pass."""
        verdicts: dict[int, Verdict] = {}
        gained: dict[int, Verdict] = {}
        for tokens, text in zip(shown, known, strict=True):
            if tokens is None or text is None:
                continue
            verdict = verdicts[text.sequence] = _verdict(text, tokens[len(text.seen) :].tolist())
            self.accepted += len(verdict.accepted)
            if not text.idle and text.sequence in self._turns:
                gained[text.sequence] = verdict
            text.seen, text.idle = tokens.copy(), 0
            text.round += 1
        if verdicts:
            self.drafter.observe(list(verdicts.values()))
        return gained

    def _begin(self, tokens: Tokens) -> _Text:
        """Take a new text on. Its last token is the first that follows its prompt."""
        text = _Text(self._begun, tokens.copy())
        self._begun += 1
        prompt = tuple(tokens[:-1].tolist())
        request = Request(text.sequence, prompt, self.context_length - len(prompt), needs=self.drafter.needs)
        if self.mirror is not None:
            self.mirror.open(text.sequence)
        self.drafter.begin([request])
        self._texts.append(text)
        self.drafter.observe([Verdict(text.sequence, 0, len(prompt), (), (int(tokens[-1]),), (TARGET,))])
        return text

    def _record(self, gained: dict[int, Verdict], seconds: float, *, reads: bool) -> None:
        """Tell the pace of the last round. seconds: from when its drafts were handed over until the engine asked
        again. reads: whether other texts were in the pass, too, of which their prompts were read."""
        sent = {text.sequence: text.sent for text in self._texts if text.sequence in gained}
        self.pace.heard(
            RoundRecord(
                round=self._rounds,
                drafted={s: 0 if draft is None else len(draft) for s, draft in sent.items()},
                accepted={s: len(verdict.accepted) for s, verdict in gained.items()},
                new_tokens={s: len(verdict.tokens) for s, verdict in gained.items()},
                propose_seconds=self._took,
                check_seconds=seconds,
                work={s: () if draft is None else draft.work for s, draft in sent.items()},
                budgets={s: self._turns[s].budgets for s in gained},
                read={-1: 1} if reads or len(gained) < len(self._turns) else {},
            )
        )

    # -- the next drafts --------------------------------------------------------------------------------------------

    def _draft(self, texts: Mapping[int, _Text]) -> None:
        """Make the next drafts. texts: by their rows."""
        able = [text for text in texts.values() if len(text.seen) + 1 < self.context_length]
        chosen = self.pace.choose([text.sequence for text in able]) if able else {}
        self._turns = {}
        for text in able:
            most = min(self.most, self.context_length - len(text.seen) - 1)
            budgets = [_cut(budget, most) for budget in chosen[text.sequence]]
            self._turns[text.sequence] = Turn.of(text.sequence, text.round, len(text.seen), budgets)
        turns = [turn for turn in self._turns.values() if turn.most.rows]
        if self.mirror is not None:
            drafting = {turn.sequence for turn in turns}
            for row, text in texts.items():
                if text.sequence in drafting:
                    self.mirror.follow(text.sequence, row, text.seen)
        proposed = self.drafter.propose(turns) if turns else ()
        drafts = {draft.sequence: draft for draft in for_turns(turns, proposed, self.vocab_size)[0]}
        for text in texts.values():
            text.sent = drafts.get(text.sequence)
        self.drafted += sum(map(len, drafts.values()))


def _verdict(text: _Text, new: list[int]) -> Verdict:
    """What the new tokens of a text say of its draft. The last of them is the engine's own. If the engine has checked
    only the beginning of a draft, the rest counts as refused."""
    drafted = () if text.sent is None else text.sent.tokens
    right = min(agreeing(drafted, new), len(new) - 1)
    origins = () if text.sent is None else text.sent.origins[:right]
    told = (*origins, *(TARGET,) * (len(new) - right))
    return Verdict(text.sequence, text.round, len(text.seen), tuple(range(right)), tuple(new), told)


def _cut(budget: Budget, most: int) -> Budget:
    """A budget within as many tokens as the engine checks."""
    return replace(budget, rows=min(budget.rows, most), depth=min(budget.depth, most))

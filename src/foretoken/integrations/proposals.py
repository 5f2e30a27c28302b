"""Drafts for another engine. That engine runs the loop: it owns the model, checks the drafts and chooses the tokens.

After each of its passes, the engine shows the texts that are under way and which tokens it has checked. From that,
verdicts and rounds are made as our own loop makes them, so every drafter and every pace works as it does there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

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
from foretoken.trees.tree import for_turns, only

Tokens = npt.NDArray[np.int32]
_NOBODY = -1  # a sequence that there is not
_AT_ONCE = 1024  # positions whose keys and values are copied together: bounds the memory that this takes


class Shown(NamedTuple):
    """A text in the engine's last pass.

    key: names the request, as long as it lives. tokens: the whole text, with at least one token behind its prompt;
    None while the prompt is being read. checked: the draft tokens that the pass has checked.
    """

    key: Hashable
    tokens: Tokens | None
    checked: Sequence[int] = ()


class TheirCache(Protocol):
    """Keys and values that another engine has computed for the texts of its last pass."""

    def read(self, row: int, layer: int, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, rotated, and values of some positions of a text: [N, kv_heads, head_dim]. row: the text's place among
        those that were shown."""
        ...


@dataclass(frozen=True)
class Mirror:
    """Copies of another engine's keys and values, as far as drafts need them.

    target: says how a cache is laid out. caches: the copies, by sequence; drafts are made on views of them. theirs:
    where they are copied from. has_room: whether there is memory for another text.
    """

    target: Decoder
    caches: Caches
    theirs: TheirCache
    has_room: Callable[[], bool] = lambda: True

    def open(self, sequence: int) -> None:
        """Begin with an empty cache for a sequence."""
        self.caches.open(sequence, self.target.new_cache())

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


@dataclass(eq=False)
class _Text:
    """A text under way, as far as it was seen. sent: its draft, if the pass before had one. row: its place among those
    that were shown last. silent: nothing is drafted for it, because there is no memory."""

    sequence: int
    seen: Tokens
    row: int
    round: int = 1
    sent: Draft | None = None
    silent: bool = False


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
    _texts: dict[Hashable, _Text] = field(init=False, default_factory=dict)
    _sequences: int = field(init=False, default=0)  # begun so far
    _ended: list[int] = field(init=False, default_factory=list)  # sequences, since the pace was told of any
    _rounds: int = field(init=False, default=0)
    _turns: dict[int, Turn] = field(init=False, default_factory=dict)  # of the last drafts, by sequence
    _handed_over: float = field(init=False, default=0.0)  # when the last drafts were
    _drafting_took: float = field(init=False, default=0.0)  # seconds

    def propose(self, shown: Sequence[Shown], live: Callable[[Hashable], bool] = lambda key: True) -> list[list[int]]:
        """A draft for each text, a chain of token ids behind its end; empty where nothing is drafted.

        live: whether a request is still under way. Others are forgotten.
        """
        came = time.perf_counter()
        self._forget([key for key in self._texts if not live(key)])
        gained, begun = self._hear(shown)
        if self._handed_over and gained:
            self._record(gained, begun, came - self._handed_over, reads=len(gained) < len(shown))
        began = time.perf_counter()
        self._draft([self._texts[each.key] for each in shown if each.tokens is not None])
        self._handed_over = time.perf_counter()
        self._drafting_took = self._handed_over - began
        self._rounds += 1
        sent = [None if each.tokens is None else self._texts[each.key].sent for each in shown]
        return [[] if draft is None else list(draft.tokens) for draft in sent]

    def close(self) -> None:
        """Forget all texts."""
        self._forget(list(self._texts))

    # -- what has become of the last drafts -------------------------------------------------------------------------

    def _hear(self, shown: Sequence[Shown]) -> tuple[dict[int, Verdict], list[int]]:
        """Tell the drafter what the texts have gained. Returns the verdicts on those whose draft was made in the round
        before, and the sequences that have begun."""
        verdicts: dict[int, Verdict] = {}
        gained: dict[int, Verdict] = {}
        begun = []
        for row, (key, tokens, checked) in enumerate(shown):
            if tokens is None:
                continue
            text = self._texts.get(key)
            if text is not None and not _goes_on(text.seen, tokens):  # a key that was given twice
                self._forget([key])
                text = None
            if text is None:
                text = self._texts[key] = self._begin(tokens)
                begun.append(text.sequence)
            else:
                new = tokens[len(text.seen) :].tolist()
                self._trim(text, checked)
                verdict = verdicts[text.sequence] = _verdict(text, new)
                self.accepted += len(verdict.accepted)
                # more tokens came of several passes, in some of which nobody was asked for a draft
                if text.sequence in self._turns and len(new) <= 1 + len(checked):
                    gained[text.sequence] = verdict
                text.seen = tokens.copy()
                text.round += 1
            text.row = row
        if verdicts:
            self.drafter.observe(list(verdicts.values()))
        return gained, begun

    def _trim(self, text: _Text, checked: Sequence[int]) -> None:
        """The engine may have checked only the beginning of a draft, or something else. Then the draft was as long as
        the part of it that was checked, and nobody has allowed more."""
        if text.sent is None:
            return
        same = agreeing(text.sent.tokens, checked)
        count = same if same == len(checked) else 0
        if count == len(text.sent):
            return
        text.sent = only(text.sent, range(count))
        turn = self._turns.get(text.sequence)
        if turn is not None:
            budgets = [_cut(budget, count) for budget in turn.budgets]
            self._turns[text.sequence] = Turn.of(turn.sequence, turn.round, turn.position, budgets)

    def _begin(self, tokens: Tokens) -> _Text:
        """Take a new text on. Its last token is the first one behind its prompt."""
        text = _Text(self._sequences, tokens.copy(), 0, silent=self.mirror is not None and not self.mirror.has_room())
        self._sequences += 1
        prompt = tuple(tokens[:-1].tolist())
        if self.mirror is not None:
            self.mirror.open(text.sequence)
        self.drafter.begin([Request(text.sequence, prompt, self.context_length - len(prompt))])
        self.drafter.observe([Verdict(text.sequence, 0, len(prompt), (), (int(tokens[-1]),), (TARGET,))])
        return text

    def _forget(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            text = self._texts.pop(key)
            self._ended.append(text.sequence)
            self.drafter.end(text.sequence)
            if self.mirror is not None:
                self.mirror.caches.close(text.sequence)

    def _record(self, gained: Mapping[int, Verdict], begun: Sequence[int], seconds: float, *, reads: bool) -> None:
        """Tell the pace of the last round. seconds: from when its drafts were handed over until the engine asked
        again. reads: whether the pass had other texts, too, of which it may have read a prompt."""
        sent = {text.sequence: text.sent for text in self._texts.values() if text.sequence in gained}
        # a pass with other texts says nothing of what checks cost; it is told all the same, for what may be forgotten
        others = [*begun, *self._ended]
        unclear = bool(others) or reads or len(gained) < len(self._turns)
        self._ended.clear()
        self.pace.heard(
            RoundRecord(
                round=self._rounds,
                drafted={s: 0 if draft is None else len(draft) for s, draft in sent.items()},
                accepted={s: len(verdict.accepted) for s, verdict in gained.items()},
                new_tokens={s: len(verdict.tokens) for s, verdict in gained.items()},
                propose_seconds=self._drafting_took,
                check_seconds=seconds,
                work={s: () if draft is None else draft.work for s, draft in sent.items()},
                budgets={s: self._turns[s].budgets for s in gained},
                read=dict.fromkeys(others or [_NOBODY], 1) if unclear else {},
            )
        )

    # -- the next drafts --------------------------------------------------------------------------------------------

    def _draft(self, texts: Sequence[_Text]) -> None:
        """Make the next drafts."""
        able = [text for text in texts if len(text.seen) + 1 < self.context_length and not text.silent]
        chosen = self.pace.choose([text.sequence for text in able]) if able else {}
        self._turns = {}
        for text in able:
            most = min(self.most, self.context_length - len(text.seen) - 1)
            budgets = [_cut(budget, most) for budget in chosen[text.sequence]]
            self._turns[text.sequence] = Turn.of(text.sequence, text.round, len(text.seen), budgets)
        turns = [turn for turn in self._turns.values() if turn.most.rows]
        if self.mirror is not None:
            drafting = {turn.sequence for turn in turns}
            for text in able:
                if text.sequence in drafting:
                    self.mirror.follow(text.sequence, text.row, text.seen)
        proposed = self.drafter.propose(turns) if turns else ()
        drafts = {draft.sequence: draft for draft in for_turns(turns, proposed, self.vocab_size)[0]}
        for text in texts:
            text.sent = drafts.get(text.sequence)
        self.drafted += sum(map(len, drafts.values()))


def _goes_on(seen: Tokens, tokens: Tokens) -> bool:
    return len(seen) < len(tokens) and np.array_equal(tokens[: len(seen)], seen)


def _verdict(text: _Text, new: list[int]) -> Verdict:
    """What the new tokens of a text say of its draft. The last of them is the engine's own."""
    right = 0 if text.sent is None else min(agreeing(text.sent.tokens, new), len(new) - 1)
    origins = () if text.sent is None else text.sent.origins[:right]
    told = (*origins, *(TARGET,) * (len(new) - right))
    return Verdict(text.sequence, text.round, len(text.seen), tuple(range(right)), tuple(new), told)


def _cut(budget: Budget, most: int) -> Budget:
    """A budget within as many tokens as the engine checks."""
    return replace(budget, rows=min(budget.rows, most), depth=min(budget.depth, most))

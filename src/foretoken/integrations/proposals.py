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
from foretoken.protocol.types import TARGET, Draft, Request, Turn, Verdict
from foretoken.trees.tree import for_turns, only

Tokens = npt.NDArray[np.int32]
_NOBODY = -1  # no sequence has this number
_AHEAD = 32  # positions behind a text for which there is to be room, too: of drafts, and of the next passes
_BRIEF = 2  # tokens that may follow: with fewer, there is nothing to draft
_AT_ONCE = 1024  # positions whose keys and values are copied together: bounds the memory that this takes


class Shown(NamedTuple):
    """A text in the engine's last pass.

    key: names the request, as long as it lives. tokens: the whole text, with at least one token behind its prompt;
    None while the prompt is being read. checked: the draft tokens that the pass has checked. left: the most tokens that
    may follow; None if only the context ends the text.
    """

    key: Hashable
    tokens: Tokens | None
    checked: Sequence[int] = ()
    left: int | None = None


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
    where they are copied from. has_room: whether there is memory for so many bytes more.
    """

    target: Decoder
    caches: Caches
    theirs: TheirCache
    has_room: Callable[[int], bool] = lambda count: True

    def open(self, sequence: int) -> None:
        """Begin with an empty cache for a sequence."""
        self.caches.open(sequence, self.target.new_cache())

    def follow(self, sequence: int, row: int, text: Tokens) -> bool:
        """Copy what a sequence's cache lacks. The last token has no keys and values yet. Returns whether there was
        room; if not, the cache is emptied."""
        cache = self.caches[sequence]
        needed = cache.bytes_to_grow(len(text) + _AHEAD)
        if needed and not self.has_room(needed):
            self.caches.replace(sequence, self.target.new_cache())
            return False
        while cache.length < len(text) - 1:
            positions = range(cache.length, min(len(text) - 1, cache.length + _AT_ONCE))
            rows = chain(cache, text[positions.start : positions.stop].tolist())
            (segment,) = rows.segments
            for layer in cache.layers:
                cache.write(layer, segment.slots, *self.theirs.read(row, layer, positions), rows.writer)
            cache.commit(segment.slots, rows.writer)
        return True


@dataclass(eq=False)
class _Text:
    """A text under way, as far as it was seen. sent: its draft, if the pass before had one. row: its place among those
    that were shown last. silent: nothing is drafted for it, because there is no memory. left: the most tokens that may
    follow."""

    sequence: int
    seen: Tokens
    row: int
    round: int = 1
    sent: Draft | None = None
    silent: bool = False
    left: int | None = None


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
    _ended: list[int] = field(init=False, default_factory=list)  # sequences of which the pace has not been told
    _rounds: int = field(init=False, default=0)
    _turns: dict[int, Turn] = field(init=False, default_factory=dict)  # of the last drafts, by sequence
    _handed_over: float = field(init=False, default=0.0)  # when the last drafts were
    _drafting_took: float = field(init=False, default=0.0)  # seconds
    _brief: bool = field(init=False, default=False)  # whether the last pass had texts of which no account is kept

    def propose(self, shown: Sequence[Shown], live: Callable[[Hashable], bool] = lambda key: True) -> list[list[int]]:
        """A draft for each text, a chain of token ids behind its end; empty where nothing is drafted.

        live: whether a request is still under way. Others are forgotten.
        """
        came = time.perf_counter()
        self._forget([key for key in self._texts if not live(key)])
        brief = [self._is_brief(each) for each in shown]
        shown = [each._replace(tokens=None) if its else each for each, its in zip(shown, brief, strict=True)]
        gained, begun = self._hear(shown)
        texts = [self._texts[each.key] for each in shown if each.tokens is not None]
        if self._handed_over and gained:
            reads = self._brief or any(each.tokens is None for each in shown)
            # one that had been taken out was read again, and one that had been left out has added its rows
            others = {text.sequence for text in texts} != self._turns.keys()
            self._record(gained, begun, came - self._handed_over, unclear=reads or others or len(gained) < len(texts))
        elif begun or self._ended:
            self._record({}, begun, 0.0, unclear=True)
        self._brief = any(brief)
        began = time.perf_counter()
        self._draft(texts)
        self._handed_over = time.perf_counter()
        self._drafting_took = self._handed_over - began
        self._rounds += 1
        sent = {text.row: text.sent for text in texts}
        drafts = [sent.get(row) for row in range(len(shown))]
        return [[] if draft is None else list(draft.tokens) for draft in drafts]

    def _is_brief(self, each: Shown) -> bool:
        """Whether a text is new, and ends before any draft for it could be checked."""
        return each.key not in self._texts and each.left is not None and each.left < _BRIEF

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
        for row, (key, tokens, checked, left) in enumerate(shown):
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
                ours = self._trim(text, checked)
                verdict = verdicts[text.sequence] = _verdict(text, new)
                self.accepted += len(verdict.accepted)
                # more tokens came of several passes, in some of which nobody was asked for a draft
                if text.sequence in self._turns and ours and len(new) <= 1 + len(checked):
                    gained[text.sequence] = verdict
                text.seen = tokens.copy()
                text.round += 1
            text.row, text.left = row, left
        if verdicts:
            self.drafter.observe(list(verdicts.values()))
        return gained, begun

    def _trim(self, text: _Text, checked: Sequence[int]) -> bool:
        """The engine may have checked only the beginning of a draft. Then the draft was no longer, and nobody has
        allowed more. Returns False if the engine has checked something else."""
        if text.sent is None:
            return not checked
        same = agreeing(text.sent.tokens, checked)
        ours = same == len(checked)
        count = same if ours else 0
        if count == len(text.sent):
            return ours
        text.sent = only(text.sent, range(count))
        turn = self._turns.get(text.sequence)
        if turn is not None:
            self._turns[text.sequence] = _allowing(turn, count)
        return ours

    def _begin(self, tokens: Tokens) -> _Text:
        """Take a new text on. All of it but its last token counts as its prompt."""
        text = _Text(self._sequences, tokens.copy(), 0)
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

    def _record(self, gained: Mapping[int, Verdict], begun: Sequence[int], seconds: float, *, unclear: bool) -> None:
        """Tell the pace of the last round. seconds: from when its drafts were handed over until the engine asked
        again. unclear: whether other things than checks of these drafts have taken some of that time."""
        sent = {text.sequence: text.sent for text in self._texts.values() if text.sequence in gained}
        others = [*begun, *self._ended]  # of which the pace is to know nothing, or nothing any more
        unclear = unclear or bool(others)
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
        left = {text.sequence: self._may_gain(text) for text in self._texts.values()}
        chosen = self.pace.choose([text.sequence for text in texts], left)
        self._turns = {}
        for text in texts:
            most = 0 if text.silent else max(0, min(self.most, left[text.sequence] - 1))
            turn = Turn.of(text.sequence, text.round, len(text.seen), chosen[text.sequence])
            turn = self._turns[text.sequence] = _allowing(turn, most)
            if turn.most.rows and self.mirror is not None:
                text.silent = not self.mirror.follow(text.sequence, text.row, text.seen)
                if text.silent:
                    self._turns[text.sequence] = _allowing(turn, 0)
        turns = [turn for turn in self._turns.values() if turn.most.rows]
        proposed = self.drafter.propose(turns) if turns else ()
        drafts = {draft.sequence: draft for draft in for_turns(turns, proposed, self.vocab_size)[0]}
        for text in texts:
            text.sent = drafts.get(text.sequence)
        self.drafted += sum(map(len, drafts.values()))

    def _may_gain(self, text: _Text) -> int:
        left = self.context_length - len(text.seen)
        return left if text.left is None else min(left, text.left)


def _goes_on(seen: Tokens, tokens: Tokens) -> bool:
    return len(seen) < len(tokens) and np.array_equal(tokens[: len(seen)], seen)


def _verdict(text: _Text, new: list[int]) -> Verdict:
    """What the new tokens of a text say of its draft. The last of them is the engine's own."""
    right = 0 if text.sent is None else min(agreeing(text.sent.tokens, new), len(new) - 1)
    origins = () if text.sent is None else text.sent.origins[:right]
    told = (*origins, *(TARGET,) * (len(new) - right))
    return Verdict(text.sequence, text.round, len(text.seen), tuple(range(right)), tuple(new), told)


def _allowing(turn: Turn, most: int) -> Turn:
    """A turn with at most so many tokens for each level."""
    cut = [replace(each, rows=min(each.rows, most), depth=min(each.depth, most)) for each in turn.budgets]
    return Turn.of(turn.sequence, turn.round, turn.position, cut)

"""The pace that adapts: it learns what is accepted and what passes cost, and chooses the next drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import NamedTuple

import numpy as np

from foretoken.pace.acceptance import Acceptance
from foretoken.pace.cost import Correction, LearnedCost, Ratio, Recently
from foretoken.pace.lengths import Choice, best
from foretoken.pace.levels import PROBE, Inner, Levels, Paced
from foretoken.pace.yields import Yield, Yields, usual, usual_of_chain
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget

_RECENTLY = 0.95  # of the tokens and seconds of earlier rounds, with each round
_EXPLORE = 0.01  # share of the time that drafts may cost which are made to learn, and not because they pay
_ARITHMETIC = 0.01  # share of the time that choosing and learning may take
_ALWAYS = 32  # rounds at the beginning in which it may take more
_DOUBT = 0.05  # of a round's time, at least, is what another way of drafting is taken to cost: opinions may be wrong
# What an accepted draft token counts where several texts share the passes. It brings the end of one text nearer, and
# then fewer texts share a pass: texts whose drafts are refused finish by themselves, in passes that have room left.
_SHARED = 0.75
_KEPT = 64  # choices that are kept for rounds in which nothing new is computed

_Place = tuple[tuple[int, int], ...]  # the kinds of places that sequences' texts have reached, by sequence


class _Way(NamedTuple):
    """A way of drafting: the level at which drafts begin, with the levels above it left out, and how wide they are. A
    level of trees that end themselves can draft a chain instead, which is a tree of width 1."""

    start: int
    width: int


@dataclass
class _Known:
    """What is known of one way of drafting."""

    accepted: Acceptance
    yields: Yields | None = None  # of trees that end themselves
    drafting: Correction = field(default_factory=Correction)
    catching_up: Recently = field(default_factory=Recently)  # seconds for each token, before a draft's first pass
    gains: Ratio | None = None  # of chains beside trees: draft tokens that were accepted, over those expected
    tried: int = 0  # the last round in which it was used


class _Plan(NamedTuple):
    """Drafts of one way, or none: the lengths by sequence with what they are worth, and how they are made. factor: how
    many of the draft tokens that a chain is expected to bring have come, of late. worth: what each of them counts."""

    way: _Way
    choice: Choice
    inner: Inner
    least: float = 0.0
    dues: tuple[float, ...] = ()
    factor: float = 1.0
    worth: float = 1.0

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return any(self.choice.lengths.values())

    @property
    def tokens(self) -> float:
        """The tokens that are expected: those of drafts, by what they are worth, and one of each check."""
        checks = len(self.choice.lengths)
        return checks + self.worth * self.factor * (self.choice.tokens - checks)

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.tokens / self.choice.seconds


class AutoPace:
    """Chooses, for each round, at which level drafts begin, whether they are chains or trees, how long they are, and
    how the levels below draft.

    levels: nearest to the target first. If the first level's length is fixed, only the levels below it are paced.
    check: the cost of the target's passes. kind: the kind of place that a sequence's text has reached, a number from 0
    up: where the end of the text has occurred before, a lookup is likelier to be right.

    Sources: the expected gain of a chain is that of Leviathan et al. 2023, section 3. Its length is chosen again in
    each round, as in SpecDec++ and Sequoia, but from measured costs.
    """

    def __init__(
        self,
        levels: Sequence[Paced],
        check: LearnedCost,
        kind: Callable[[int], int] = lambda sequence: 0,
    ) -> None:
        self._levels = Levels(levels)
        self._check = check
        self._kind = kind
        self._kinds: dict[int, int] = {}  # of the places where the drafts of this round begin
        free = [level.free for level in levels]
        self._ways: dict[_Way, _Known] = {}
        for at, level in enumerate(levels):
            if at and not all(free[: at + 1]):
                continue
            yields = _yields(level)
            self._ways[_Way(at, level.most.width)] = _Known(Acceptance(level.expected, level.weight), yields)
            if yields is not None and level.most.width > 1:
                self._ways[_Way(at, 1)] = _Known(Acceptance(level.expected, level.weight), gains=Ratio())
        self._rounds = 0
        self._seconds = 0.0  # that rounds have taken so far
        self._recent = np.zeros(2)  # tokens and seconds of the last rounds
        self._explored = 0.0  # seconds that drafts have cost which were made to learn
        self.arithmetic = 0.0  # seconds of choosing and learning
        self._now: _Plan | None = None  # for the round that is under way, unless it was chosen in haste
        self._last: dict[_Place, dict[int, tuple[Budget, ...]]] = {}  # choices

    def choose(self, sequences: Sequence[int]) -> dict[int, tuple[Budget, ...]]:
        """The budgets of each sequence that may draft in the next round."""
        if not sequences:
            return {}
        began = thread_time()
        chosen = self._chosen(sequences)
        self.arithmetic += thread_time() - began
        return chosen

    def _chosen(self, sequences: Sequence[int]) -> dict[int, tuple[Budget, ...]]:
        self._kinds = {sequence: self._kind(sequence) for sequence in sequences}
        place = tuple(self._kinds.items())
        self._now = None
        if self._in_haste and (like := self._like(place)) is not None:
            return like
        plans = [self._plan(way, sequences) for way in self._ways]
        free = self._levels.levels[0].free  # otherwise the user has said how much is drafted
        plan = best = max([self._nothing(sequences), *plans] if free else plans, key=lambda each: each.rate)
        if not best.drafts or len(plans) > 1:
            plan = self._probed(best, plans, sequences)
        if plan.drafts:
            self._ways[plan.way].tried = self._rounds
        self._now = plan
        chosen = self._budgets(plan)
        if plan is best:
            if len(self._last) == _KEPT:
                self._last.clear()
            self._last.pop(place, None)
            self._last[place] = chosen  # as the latest
        return chosen

    def _like(self, place: _Place) -> dict[int, tuple[Budget, ...]] | None:
        """The last choice for such places, or else the last one for these sequences: with many of them, places are
        seldom the same twice."""
        if place in self._last or not self._last:
            return self._last.get(place)
        latest = next(reversed(self._last.values()))
        return latest if latest.keys() == self._kinds.keys() else None

    @property
    def _in_haste(self) -> bool:
        """Whether rounds are so short that choosing and learning in each of them would cost more than it may."""
        return self._rounds > _ALWAYS and self.arithmetic > _ARITHMETIC * self._seconds

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round."""
        self._rounds += 1
        self._seconds += record.propose_seconds + record.check_seconds
        if record.read:  # its pass reads a prompt, too, and is not the price of one that only checks
            self._forget(tuple(record.read))
        elif not self._in_haste:
            began = thread_time()
            self._recent *= _RECENTLY
            self._recent += sum(record.new_tokens.values()), record.propose_seconds + record.check_seconds
            self._learn(record)
            self.arithmetic += thread_time() - began

    def _forget(self, sequences: Sequence[int]) -> None:
        for each in self._ways.values():
            each.accepted.forget(sequences)
        self._levels.forget(sequences)
        self._last.clear()

    def _learn(self, record: RoundRecord) -> None:
        rows = sum(1 + count for count in record.drafted.values())
        if rows:
            self._check.heard(rows, record.check_seconds)
        asked = record.allowed
        drafting = {s: allowed for s, allowed in asked.items() if any(allowed) and s in record.accepted}
        if not drafting:
            return
        first = next(iter(drafting))  # all sequences draft in one way
        start = record.begins_at(first)
        way = _Way(start, record.budgets[first][start].width)
        if way not in self._ways:
            return
        its = self._ways[way]
        inner, passes = self._levels.inner(start, tuple(drafting), way.width), 0
        now, whole = self._now, {s: allowed[start] for s, allowed in drafting.items()}
        if now is not None and now.way == way and whole == {s: n for s, n in now.choice.lengths.items() if n}:
            expected = now.choice.tokens - len(now.choice.lengths)  # of a probe, nothing is
            if (
                expected > 0 and its.gains is not None
            ):  # what was cut, as at the end of a text, would seem to have failed
                its.gains.heard(expected, sum(record.accepted[s] for s in whole), self._rounds)
        for sequence, allowed in drafting.items():
            kind, gained = self._kinds.get(sequence, 0), record.accepted[sequence]
            if its.yields is None:
                its.accepted.heard(sequence, allowed[start], gained, kind)
                continue
            level = self._levels.levels[start]
            own = sum(work.passes for work in record.work.get(sequence, ()) if work.level == level.name)
            passes = max(passes, own)
            if allowed[start] == level.most.longest:  # else it was cut, as at the end of a text
                its.yields.heard(kind, Yield(gained + 1.0, own, record.drafted[sequence]), self._rounds)
        steps = max(allowed[start] for allowed in drafting.values())
        predicted = inner.of_one(steps) if its.yields is None else passes * inner.each_pass
        seconds, tokens = _caught_up(record.work)
        if tokens:
            its.catching_up.heard(seconds / tokens)
        its.drafting.heard(predicted, record.propose_seconds - seconds)
        self._levels.heard(record.work, asked)

    def _plan(self, way: _Way, sequences: Sequence[int]) -> _Plan:
        level, inner = self._levels.levels[way.start], self._levels.inner(way.start, sequences, way.width)
        its, most = self._ways[way], min(level.most.rows, level.most.depth)
        if its.yields is not None:
            return self._tree(way, sequences, inner, its.yields)
        survival = its.accepted.survival(sequences, most, [self._kinds[s] for s in sequences])
        rows = len(sequences) * (1 + most)
        checks, factor, again = self._check.upto(rows), its.drafting.of(1.0), its.catching_up.value
        if level.free:
            worth = _worth(sequences)
            choice = best(
                sequences, survival, lambda rows, longest: checks[rows] + factor * inner.drafting(longest), worth
            )
            if any(choice.lengths.values()):  # every token is caught up with once, whatever the lengths are
                choice = choice._replace(seconds=choice.seconds + again * choice.tokens)
            came = its.gains.value(self._rounds) if its.gains else 1.0
            return _Plan(way, choice, inner, factor=came, worth=worth)
        tokens = len(sequences) + float(survival.sum())
        seconds = float(checks[rows]) + factor * inner.of_one(most) + again * tokens
        choice = Choice(dict.fromkeys(sequences, most), tokens, seconds)
        return _Plan(way, choice, inner)

    def _nothing(self, sequences: Sequence[int]) -> _Plan:
        """Plain decoding."""
        choice = Choice(dict.fromkeys(sequences, 0), len(sequences), self._check.of(len(sequences)))
        return _Plan(next(iter(self._ways)), choice, Inner(0.0, ()))

    def _tree(self, way: _Way, sequences: Sequence[int], inner: Inner, yields: Yields) -> _Plan:
        """Trees that end themselves: where another pass or another row would bring fewer tokens than are made meanwhile
        on average."""
        together, most = len(sequences), self._levels.levels[way.start].most.rows
        means = [yields.of(self._kinds[sequence], self._rounds) for sequence in sequences]
        checks = self._check.upto(together * (1 + most))[together * np.arange(1, most + 2)]
        each = self._ways[way].drafting.of(inner.each_pass)
        tokens, passes = sum(mean.tokens for mean in means), max(mean.passes for mean in means)
        rows = min(most, round(sum(mean.rows for mean in means) / together))
        seconds = float(checks[rows]) + passes * each + self._ways[way].catching_up.value * tokens
        plain = together / float(checks[0])
        made, took = self._recent
        rate = float(made / took) if took and self._check.known else tokens / seconds
        worth = _worth(sequences)
        dues = tuple((rate / worth / together * (checks - checks[0])).tolist())
        choice = Choice(dict.fromkeys(sequences, most), tokens, seconds)
        return _Plan(way, choice, inner, max(rate, plain) / worth * each / together, dues, worth=worth)

    def _probed(self, plan: _Plan, plans: Sequence[_Plan], sequences: Sequence[int]) -> _Plan:
        """The plan, or now and then one that seems worse: the text may have changed."""
        others = [each for each in plans if each.way != plan.way or not plan.drafts]
        if not others or not self._check.known:
            return plan
        other = min(others, key=lambda each: self._ways[each.way].tried)
        near = plan.drafts and other.drafts and other.way.start == plan.way.start
        if near or self._ways[other.way].yields is not None:  # a whole draft: of few tokens one would learn too little
            price = max(_DOUBT * other.choice.seconds, other.choice.seconds - other.tokens / plan.rate)
        else:
            other = self._probe(other, sequences)
            price = max(0.0, other.choice.seconds - len(sequences) / plan.rate)
        if self._explored + price > _EXPLORE * self._seconds:
            return plan
        self._explored += price
        return other

    def _probe(self, plan: _Plan, sequences: Sequence[int]) -> _Plan:
        """A draft of few tokens for one sequence, taken to gain nothing beyond the tokens of plain decoding."""
        lengths = dict.fromkeys(sequences, 0)
        lengths[sequences[0]] = min(PROBE, self._levels.levels[plan.way.start].most.rows)
        its = self._ways[plan.way]
        drafting = its.catching_up.value + its.drafting.of(plan.inner.of_one(lengths[sequences[0]]))
        seconds = self._check.of(sum(1 + length for length in lengths.values())) + drafting
        return _Plan(plan.way, Choice(lengths, len(sequences), seconds), plan.inner)

    def _budgets(self, plan: _Plan) -> dict[int, tuple[Budget, ...]]:
        level = self._levels.levels[plan.way.start]
        nothing = (Budget(0, 0),) * len(self._levels.levels)
        above = nothing[: plan.way.start]
        found = {}
        for sequence, length in plan.choice.lengths.items():
            own = level.most
            if level.free:
                own = Budget(length, min(length, level.most.depth), plan.way.width, plan.least, plan.dues)
            found[sequence] = (*above, own, *plan.inner.below) if length else nothing
        return found


def _worth(sequences: Sequence[int]) -> float:
    return _SHARED if len(sequences) > 1 else 1.0


def _caught_up(works: Mapping[int, Sequence[Work]]) -> tuple[float, int]:
    """The seconds of a round's work on rows without a pass, and how many rows these were: tokens that the target has
    read since the last draft."""
    own = [work for each in works.values() for work in each if work.rows and not work.passes]
    return sum(work.seconds for work in own), sum(work.rows for work in own)


def _yields(level: Paced) -> Yields | None:
    """What is expected of a level's drafts that end themselves; None for a level whose drafts do not."""
    if not level.ends or not level.free:
        return None
    share = level.expected[len(level.expected) // 2]
    expected = usual(share) if level.most.width > 1 else usual_of_chain(share, level.most.longest)
    return Yields(expected if level.at_once == 1 else expected._replace(passes=1.0), len(level.expected))

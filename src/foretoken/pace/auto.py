"""The pace that adapts: it learns what is accepted and what passes cost, and chooses the next drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from foretoken.pace.cost import LearnedCost
from foretoken.pace.lengths import Choice, best
from foretoken.pace.levels import PROBE, Inner, Levels, Paced
from foretoken.pace.loops import Loops
from foretoken.pace.plan import Plan
from foretoken.pace.thinking import Thinking
from foretoken.pace.ways import Way, ways_of
from foretoken.pace.work import caught_up, drafting_seconds
from foretoken.pace.yields import Yield, Yields
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

_RECENTLY = 0.95  # of the tokens and seconds of earlier rounds, with each round
_EXPLORE = 0.01  # share of the time that drafts may cost which are made to learn, and not because they pay
_AGAIN = 8  # rounds after which a way of drafting is looked at again that was not worth it
_TEXTS = 4  # of a lookup: one round, and one more for so many texts
_DOUBT = 0.05  # of a round's time, at least, is what another way of drafting is taken to cost: opinions may be wrong
_KEPT = 64  # choices that are kept for rounds in which nothing new is computed

_Place = tuple[tuple[int, int], ...]  # the kinds of places that sequences' texts have reached, by sequence


class AutoPace:
    """Chooses, for each round, at which level drafts begin, whether they are chains or trees, how long they are, and
    how the levels below draft.

    levels: nearest to the target first. If the first level's length is fixed, only the levels below it are paced.
    check: the cost of the target's passes. kind: the kind of place that a sequence's text has reached, a number from 0
    up: where the end of the text has occurred before, a lookup is likelier to be right.

    Loops in several threads may have one pace: they learn for each other, and each has rounds of its own.

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
        self._lock = RLock()
        self._loops = Loops()
        self._loop = self._loops.of(())  # the one whose round this is
        self._ways = ways_of(levels)
        self._rounds = 0
        self._seconds = 0.0  # that rounds have taken so far in which nothing was read
        self._recent = np.zeros(2)  # tokens and seconds of the last rounds
        self._explored = 0.0  # seconds that drafts have cost which were made to learn
        self._thinking = Thinking()
        self._last: dict[_Place, tuple[dict[int, tuple[Budget, ...]], float]] = {}  # choices, and what drafts cost

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> dict[int, tuple[Budget, ...]]:
        """The budgets of each sequence that may draft in the next round. left: how many tokens each sequence under way
        may still gain, with those that may not draft, or whose prompts are being read: they wait for the drafts."""
        with self._lock:
            self._loop = self._loops.of(left)
            return self._choose(sequences, left)

    def _choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> dict[int, tuple[Budget, ...]]:
        self._loop.sharing.begin(left)
        self._loop.left = left
        if not self._loop.sharing.reading:
            self._loop.reads = 0
        if not sequences:
            return {}
        began = thread_time()
        chosen = self._chosen(sequences)
        self._thinking.took(thread_time() - began)
        return chosen

    def _chosen(self, sequences: Sequence[int]) -> dict[int, tuple[Budget, ...]]:
        self._loop.kinds = {sequence: self._kind(sequence) for sequence in sequences}
        place = tuple(self._loop.kinds.items())
        self._loop.now = None
        last = self._like(place) if self._thinking.in_haste else None
        if last is not None and not last[1]:
            return last[0]
        usual = self._check.of(len(self._loop.left))
        plain = float(self._checks(sequences, len(sequences))[len(sequences)])
        self._loop.aside = plain - usual
        self._loop.shares = self._loop.sharing.of(sequences, self._loop.left, plain, usual)
        if last is not None:
            return self._if_fair(*last)
        nothing = self._nothing(sequences, plain)
        plans = [self._plan(way, sequences) for way in self._worth_a_look(sequences)]
        free = self._levels.levels[0].free  # otherwise the user has said how much is drafted
        fair = [each for each in plans if not each.leaves_behind]
        best = max([nothing, *fair] if free else plans, key=lambda each: each.rate)
        for each in plans if free else ():
            its = self._ways[each.way]
            its.unfair = each.leaves_behind
            if each.leaves_behind or not each.drafts:
                its.again = self._rounds + self._pause(each.way)
        plan = self._probed(best, plans, sequences)
        if plan.drafts:
            self._ways[plan.way].tried = self._rounds
        self._loop.now = plan
        chosen = self._budgets(plan)
        if plan is best:
            if len(self._last) == _KEPT:
                self._last.clear()
            self._last.pop(place, None)
            # as the latest
            self._last[place] = chosen, plan.choice.seconds - plain if plan.drafts else 0.0
        return chosen

    def _worth_a_look(self, sequences: Sequence[int]) -> list[Way]:
        """The ways of drafting, without those that were not worth it a few rounds ago for the same texts: to look at
        each of them takes time."""
        if tuple(sequences) != self._loop.looked_for or len(self._loop.left) == 1:
            self._loop.looked_for = tuple(sequences)
            for its in self._ways.values():
                its.again = 0
        return [way for way, its in self._ways.items() if its.again <= self._rounds]

    def _pause(self, way: Way) -> int:
        """Rounds until a way is looked at again that was not worth it. What a lookup is worth changes from round to
        round, but the less the more texts there are."""
        return _AGAIN if self._levels.levels[way.start].cost is not None else 1 + len(self._loop.left) // _TEXTS

    def _like(self, place: _Place) -> tuple[dict[int, tuple[Budget, ...]], float] | None:
        """The last choice for such places, or else the last one for these sequences: with many of them, places are
        seldom the same twice. With it, the seconds that its drafts cost."""
        if not self._last:
            return None
        last = self._last.get(place) or next(reversed(self._last.values()))
        return last if last[0].keys() == self._loop.kinds.keys() else None

    def _if_fair(self, chosen: dict[int, tuple[Budget, ...]], seconds: float) -> dict[int, tuple[Budget, ...]]:
        """A choice whose drafts cost some seconds. No drafts, if a text has no time for them."""
        shares = self._loop.shares
        if shares is not None and shares.leave_behind(np.zeros(len(chosen)), shares.plain + seconds):
            return dict.fromkeys(chosen, (Budget(0, 0),) * len(self._levels.levels))
        return chosen

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round."""
        with self._lock:
            self._loop = self._loops.of({**record.drafted, **record.new_tokens, **record.read})
            self._heard(record)

    def _heard(self, record: RoundRecord) -> None:
        self._rounds += 1
        hasty = self._thinking.in_haste
        seconds = record.propose_seconds + record.check_seconds
        self._seconds += 0.0 if record.read else seconds
        self._loop.has_read = bool(record.read)
        self._loop.reads = sum(record.read.values())
        plain, drafts = self._shares_of_time(record)
        self._loop.sharing.heard(record, seconds, plain, drafts)
        texts = len(record.new_tokens)
        shared = texts > 1 and not record.read
        self._thinking.heard(seconds, plain * sum(record.new_tokens.values()) / texts - seconds if shared else 0.0)
        if record.read:  # its pass reads a prompt, too, and is not the price of one that only checks
            self._forget(tuple(record.read))
        elif not hasty:
            began = thread_time()
            self._recent *= _RECENTLY
            self._recent += sum(record.new_tokens.values()), seconds
            self._learn(record)
            self._thinking.took(thread_time() - began)

    def _plain(self, record: RoundRecord) -> float:
        """The seconds that a round would have had without drafts, by those of its own pass: so what slows the machine
        is not put down to drafts."""
        rows = max(1, sum(1 + count for count in record.drafted.values()))
        return record.check_seconds * self._check.of(max(1, len(record.drafted))) / self._check.of(rows)

    def _shares_of_time(self, record: RoundRecord) -> tuple[float, float]:
        """The seconds of such a round without drafts and prompts, and those that drafts have added."""
        drafting = drafting_seconds(record)
        if not record.read:
            plain = self._plain(record)
            return plain, drafting + record.check_seconds - plain
        texts, rows = len(record.drafted), sum(1 + count for count in record.drafted.values())
        if not texts or not self._check.known:
            return 0.0, drafting
        of = self._check.of
        return of(len(self._loop.left)), drafting + of(rows + self._loop.reads) - of(texts + self._loop.reads)

    def _forget(self, sequences: Sequence[int]) -> None:
        for each in self._ways.values():
            each.accepted.forget(sequences)
        self._levels.forget(sequences)
        self._last = {place: last for place, last in self._last.items() if last[0].keys().isdisjoint(sequences)}

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
        way = Way(start, record.budgets[first][start].width)
        if way not in self._ways:
            return
        its = self._ways[way]
        inner, passes = self._levels.inner(start, tuple(drafting), way.width), 0
        now, whole = self._loop.now, {s: allowed[start] for s, allowed in drafting.items()}
        if now is not None and now.way == way and whole == {s: n for s, n in now.choice.lengths.items() if n}:
            expected = now.choice.tokens - len(now.choice.lengths)  # of a probe, nothing is
            came = sum(record.accepted[s] for s in whole)
            if expected > 0 and its.gains is not None:  # what was cut, as at a text's end, would seem to have failed
                its.gains.heard(expected, came, self._rounds)
            for sequence in whole if now.choice.gained else ():
                self._loop.sharing.came(sequence, now.factor * now.choice.gained[sequence], record.accepted[sequence])
            if expected > 0 and len(now.choice.lengths) > 1:
                its.shared_gains.heard(expected, came, self._rounds)
                seconds, plain = drafting_seconds(record) + record.check_seconds, self._plain(record)
                if plain > 0:  # not on a clock that stands still
                    its.shared.heard(now.seconds / now.slower / (now.plain - now.aside), seconds / plain)
                    its.shared_at = self._rounds
        for sequence, allowed in drafting.items():
            kind, gained = self._loop.kinds.get(sequence, 0), record.accepted[sequence]
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
        seconds, tokens = caught_up(record.work)
        if tokens:
            its.catching_up.heard(seconds / tokens)
        its.drafting.heard(predicted, record.propose_seconds - seconds)
        self._levels.heard(record.work, asked)

    def _plan(self, way: Way, sequences: Sequence[int]) -> Plan:
        level, inner = self._levels.levels[way.start], self._levels.inner(way.start, sequences, way.width)
        its, most = self._ways[way], min(level.most.rows, level.most.depth)
        if its.yields is not None:
            return self._tree(way, sequences, inner, its.yields)
        survival = its.accepted.survival(sequences, most, [self._loop.kinds[s] for s in sequences])
        ends = np.array([self._loop.left[s] for s in sequences])  # the last token is the target's own
        survival = np.where(np.arange(1, most + 1) < ends[:, None], survival, 0.0)
        rows = len(sequences) * (1 + most)
        checks, factor, again = self._checks(sequences, rows), its.drafting.of(1.0), its.catching_up.value
        plain, aside = float(checks[len(sequences)]), self._loop.aside
        came = its.gains.value(self._rounds) if its.gains else 1.0
        shares = None if self._loop.shares is None else self._loop.shares.of_which(came)
        slower = 1.0 if shares is None else its.slower(self._rounds)
        if level.free:
            choice = best(
                sequences,
                survival,
                lambda rows, longest: (
                    aside
                    + np.where(longest > 0, slower, 1.0) * (checks[rows] - aside + factor * inner.drafting(longest))
                ),
                shares,
            )
            if any(choice.lengths.values()):  # every token is caught up with once, whatever the lengths are
                choice = choice._replace(seconds=choice.seconds + slower * again * choice.tokens)
            return Plan(
                way, choice, inner, len(self._loop.left), self._loop.aside, factor=came, slower=slower, plain=plain
            )
        tokens = len(sequences) + float(survival.sum())
        seconds = aside + slower * (float(checks[rows]) - aside + factor * inner.of_one(most) + again * tokens)
        gained = dict(zip(sequences, survival.sum(axis=1).tolist(), strict=True))
        choice = Choice(dict.fromkeys(sequences, most), tokens, seconds, tokens - len(sequences), gained)
        return Plan(way, choice, inner, len(self._loop.left), self._loop.aside, factor=came, slower=slower, plain=plain)

    def _checks(self, sequences: Sequence[int], most: int) -> NDArray[np.float64]:
        """Seconds of checks over 0, 1, ... and `most` rows of these texts, beside a row of each other text, and as many
        rows of prompts as in the last round."""
        others = len(self._loop.left) - len(sequences) + self._loop.reads
        return self._check.upto(most + others)[others:]

    def _nothing(self, sequences: Sequence[int], seconds: float) -> Plan:
        """Plain decoding, in a round of so many seconds."""
        choice = Choice(dict.fromkeys(sequences, 0), len(sequences), seconds, 0.0, {})
        return Plan(next(iter(self._ways)), choice, Inner(0.0, ()), len(self._loop.left), self._loop.aside)

    def _tree(self, way: Way, sequences: Sequence[int], inner: Inner, yields: Yields) -> Plan:
        """Trees that end themselves: where another pass or another row would bring fewer tokens than are made meanwhile
        on average."""
        together, most = len(sequences), self._levels.levels[way.start].most.rows
        by_kind = {kind: yields.of(kind, self._rounds) for kind in {self._loop.kinds[s] for s in sequences}}
        means = [by_kind[self._loop.kinds[sequence]] for sequence in sequences]
        checks = self._checks(sequences, together * (1 + most))[together * np.arange(1, most + 2)]
        its = self._ways[way]
        each = its.drafting.of(inner.each_pass)
        ends = np.array([self._loop.left[sequence] for sequence in sequences])
        gained = np.minimum([mean.tokens for mean in means], ends) - 1
        tokens, passes = together + float(gained.sum()), max(mean.passes for mean in means)
        rows = min(most, round(sum(mean.rows for mean in means) / together))
        # of texts together: they differ from the average, and passes have more rows than were ever measured
        came, slower = its.shared_gains.value(self._rounds), its.slower(self._rounds)
        shares = None if self._loop.shares is None else self._loop.shares.of_which(came)
        if shares is None:
            came = slower = 1.0
        checking = float(checks[rows]) - self._loop.aside
        seconds = self._loop.aside + slower * (checking + passes * each + its.catching_up.value * tokens)
        plain = len(self._loop.left) / (float(checks[0]) - self._loop.aside)
        made, took = self._recent
        rate = float(made / took) if took and self._check.known else tokens / seconds
        dues = tuple((rate / together * (checks - checks[0])).tolist())
        least = max(rate, plain) * each / together
        worth = float(gained.sum() if shares is None else (shares.weights * gained).sum())
        behind = shares is not None and shares.leave_behind(gained, seconds)
        by_text = dict(zip(sequences, gained.tolist(), strict=True))
        choice = Choice(dict.fromkeys(sequences, most), tokens, seconds, worth, by_text)
        return Plan(
            way,
            choice,
            inner,
            len(self._loop.left),
            self._loop.aside,
            least,
            dues,
            came,
            slower,
            float(checks[0]),
            bool(behind),
        )

    def _probed(self, plan: Plan, plans: Sequence[Plan], sequences: Sequence[int]) -> Plan:
        """The plan, or now and then one that seems worse: the text may have changed. Nothing is learned from rounds in
        which prompts are read, so nothing is tried in them."""
        ways = [w for w, its in self._ways.items() if (w != plan.way or not plan.drafts) and not its.unfair]
        if not ways or not self._check.known or self._loop.sharing.reading or self._loop.has_read:
            return plan
        way = min(ways, key=lambda each: self._ways[each].tried)
        other = next((each for each in plans if each.way == way), None)
        if other is None:  # it is looked at again in a few rounds, and what may be spent on trying is kept for it
            return plan
        near = plan.drafts and other.drafts and other.way.start == plan.way.start
        if near or self._ways[way].yields is not None:  # a whole draft: of few tokens one would learn too little
            price = max(_DOUBT * other.seconds, other.seconds - other.tokens / plan.rate)
        else:
            other = self._probe(other, sequences)
            price = max(0.0, other.seconds - other.texts / plan.rate)
        self._ways[way].unfair = other.leaves_behind
        if other.leaves_behind or self._explored + price > _EXPLORE * self._seconds:
            return plan
        self._explored += price
        return other

    def _probe(self, plan: Plan, sequences: Sequence[int]) -> Plan:
        """A draft of few tokens for one sequence, taken to gain nothing beyond the tokens of plain decoding."""
        lengths = dict.fromkeys(sequences, 0)
        lengths[sequences[0]] = min(PROBE, self._levels.levels[plan.way.start].most.rows)
        its = self._ways[plan.way]
        drafting = its.catching_up.value + its.drafting.of(plan.inner.of_one(lengths[sequences[0]]))
        rows = sum(1 + length for length in lengths.values())
        checks, count = self._checks(sequences, rows), len(sequences)
        seconds = float(checks[rows]) + drafting
        behind = self._loop.shares is not None and bool(self._loop.shares.leave_behind(np.zeros(count), seconds))
        return Plan(
            plan.way, Choice(lengths, count, seconds, 0.0, {}), plan.inner, plan.texts, plan.aside, leaves_behind=behind
        )

    def _budgets(self, plan: Plan) -> dict[int, tuple[Budget, ...]]:
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

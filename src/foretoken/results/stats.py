"""Statistics of a generation, from the records of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from foretoken.protocol.telemetry import Cost, RoundRecord, Work, together


@dataclass(frozen=True, slots=True)
class LevelStats:
    """What one level of a draft did in one generation.

    The target checks the drafts of the first level. Each level checks the drafts of the level below it. Where the pace
    leaves levels out, the target checks the drafts of the first level that is left.
    """

    # The level's name.
    name: str
    # How many passes the level's own model made.
    passes: int = 0
    # How many rows these passes had.
    rows: int = 0
    # The level's own seconds.
    seconds: float = 0.0
    # These seconds as a share of `decode_seconds`.
    time_share: float = 0.0
    # How many drafts had at least one token.
    drafts: int = 0
    # How many tokens were drafted.
    draft_tokens: int = 0
    # How many of the draft tokens were accepted.
    accepted_tokens: int = 0
    # `accepted_tokens` divided by `draft_tokens`.
    draft_acceptance_rate: float = 0.0
    # How many tokens a pass of the level that checks gave.
    mean_acceptance_length: float = 0.0
    # How many drafts had their first, second, ... token accepted.
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts, speeds and costs of one generation.

    A check is a pass of the target that checks a draft, which may be empty. Seconds and costs are those of whole
    rounds: of completions that shared their passes, each has those of all. Unverified tokens do not count.
    """

    # How many checks the target made. Passes over the prompt are not counted. A fractal draft runs the target once more
    # for each check.
    passes: int = 0
    # How many drafts had at least one token.
    drafts: int = 0
    # How many tokens were drafted.
    draft_tokens: int = 0
    # How many of the draft tokens were accepted.
    accepted_tokens: int = 0
    # `accepted_tokens` divided by `draft_tokens`.
    draft_acceptance_rate: float = 0.0
    # How many tokens a check gave, the bonus token counted. Plain decoding has 1.
    mean_acceptance_length: float = 0.0
    # How many drafts had their first, second, ... token accepted.
    accepted_per_position: tuple[int, ...] = ()
    # The speed of decoding. The prompt is left out, and so is the first token, which the prompt's pass gives.
    tokens_per_second: float = 0.0
    # The speed with the prompt and the first token.
    tokens_per_second_with_prefill: float = 0.0
    # An estimate of the speed of plain decoding, from the seconds of the checks that were this sequence's alone. It
    # needs eight of them, three of these with at most one draft token. With the price of passes that the pace `auto`
    # has measured at loading, three checks of any length are enough. 0 if there are fewer.
    plain_tokens_per_second: float = 0.0
    # The seconds of the rounds in which some of the prompt was read, whatever else was in them.
    prefill_seconds: float = 0.0
    # `draft_seconds` and `check_seconds` together.
    decode_seconds: float = 0.0
    # The seconds of drafting.
    draft_seconds: float = 0.0
    # The seconds of the target's checks.
    check_seconds: float = 0.0
    # What each level of the draft did, the level nearest to the target first.
    levels: tuple[LevelStats, ...] = ()
    # What was computed and read while decoding, by the decoder that did it: `target`, and each level that has a
    # decoder. What a drafter runs on the target's own layers counts for the target.
    cost: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def seconds_at_once(self) -> float:
        """The seconds that levels drafted during checks, while the target's pass waited for the disk. They are no part
        of `draft_seconds`."""
        return max(0.0, sum(level.seconds for level in self.levels) - self.draft_seconds)


class _Check(NamedTuple):
    """A pass that checked a draft, perhaps an empty one: of its tokens so many were right, and so many came of it."""

    drafted: int
    accepted: int
    new_tokens: int


def summarise(records: Sequence[RoundRecord], sequence: int, levels: Sequence[str] = ()) -> Stats:
    """The statistics of one sequence. levels: nearest to the target first. What was written without checks does not
    count."""
    records = [r for r in records if sequence not in r.unverified]
    prompt = [r for r in records if sequence in r.read]
    rounds = [r for r in records if sequence in r.new_tokens and sequence not in r.read]
    late = [r for r in records if sequence in r.late]  # whose drafts were passed over, as happens over a network
    checks = [_by_target(r, sequence) for r in rounds]
    new_tokens = sum(check.new_tokens for check in checks)
    draft_seconds = sum(r.propose_seconds for r in (*rounds, *late))
    check_seconds = sum(r.check_seconds for r in (*rounds, *late))
    decode_seconds = draft_seconds + check_seconds
    prefill_seconds = sum(r.propose_seconds + r.check_seconds for r in prompt)
    first_tokens = sum(r.new_tokens.get(sequence, 0) for r in prompt)
    return Stats(
        passes=len(checks),
        **_counts(checks),
        tokens_per_second=_per(new_tokens, decode_seconds),
        tokens_per_second_with_prefill=_per(new_tokens + first_tokens, decode_seconds + prefill_seconds),
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        draft_seconds=draft_seconds,
        check_seconds=check_seconds,
        levels=tuple(_level(levels, at, rounds, sequence, decode_seconds) for at in range(len(levels))),
        cost=together(r.cost for r in rounds),
    )


def _level(
    names: Sequence[str], at: int, rounds: Sequence[RoundRecord], sequence: int, decode_seconds: float
) -> LevelStats:
    own: list[Work] = []
    checks: list[_Check] = []
    for each in rounds:
        work, begins = each.work.get(sequence, ()), each.begins_at(sequence)
        own += [w for w in work if w.level == names[at]]
        if begins == at:
            checks.append(_by_target(each, sequence))
        elif begins < at:  # a pass that gained nothing only read what was there already
            above = [w for w in work if w.level == names[at - 1] and w.draft_tokens]
            checks += [_Check(w.checked_tokens, w.accepted_tokens, w.draft_tokens) for w in above]
    seconds = sum(w.seconds for w in own)
    return LevelStats(
        names[at],
        passes=sum(w.passes for w in own),
        rows=sum(w.rows for w in own if w.passes),
        seconds=seconds,
        time_share=_per(seconds, decode_seconds),
        **_counts(checks),
    )


def _by_target(record: RoundRecord, sequence: int) -> _Check:
    drafted, accepted = record.drafted.get(sequence, 0), record.accepted.get(sequence, 0)
    return _Check(drafted, accepted, record.new_tokens[sequence])


def _counts(checks: Sequence[_Check]) -> dict[str, Any]:
    """What `Stats` and `LevelStats` say of drafts, from their checks."""
    drafted, accepted = sum(c.drafted for c in checks), [c.accepted for c in checks]
    return {
        "drafts": sum(c.drafted > 0 for c in checks),
        "draft_tokens": drafted,
        "accepted_tokens": sum(accepted),
        "draft_acceptance_rate": _per(sum(accepted), drafted),
        "mean_acceptance_length": _per(sum(c.new_tokens for c in checks), len(checks)),
        "accepted_per_position": tuple(sum(n > at for n in accepted) for at in range(max(accepted, default=0))),
    }


def _per(amount: float, unit: float) -> float:
    return amount / unit if unit else 0.0

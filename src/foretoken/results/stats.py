"""Statistics of a generation, from the records of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from foretoken.protocol.telemetry import Cost, RoundRecord, Work, together


@dataclass(frozen=True, slots=True)
class LevelStats:
    """What one level of a draft did in one generation.

    `passes` counts the passes of the level's own model, and `rows` the rows in them. `seconds` is the level's own time,
    and `time_share` that time as a share of the generation's `decode_seconds`.

    The level above checks this level's drafts; the target checks those of the first level. Drafts are counted as in
    `Stats`. `mean_acceptance_length` is tokens per pass of the level that checks. Each accepted token saves one pass of
    that level.
    """

    name: str
    passes: int = 0
    rows: int = 0
    seconds: float = 0.0
    time_share: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_acceptance_rate: float = 0.0
    mean_acceptance_length: float = 0.0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and rates of one generation, in the field's terms.

    `passes` counts the target's checks, without those that read the prompt. A fractal draft runs the target once more
    for each check. `mean_acceptance_length` is tokens per check, the bonus token included; plain decoding has 1.
    `accepted_per_position[i]` counts the drafts of which more than i tokens were accepted.

    `tokens_per_second` is decoding alone: it leaves out the first token, which the prompt's pass gives.
    `plain_tokens_per_second` estimates the speed of plain decoding, from the seconds that a check of one row takes. The
    estimate is made of the checks that this generation shared with no other. It is 0 if there were fewer than eight of
    these, or fewer than three of one or two rows.

    `prefill_seconds` is the time of the rounds that read some of the prompt, whatever else they did. `decode_seconds`
    is the time of the later rounds: `draft_seconds` and `check_seconds` together. `levels`, nearest to the target
    first, say how much of the drafting time each level took.

    `cost` says what was computed and read in the same rounds as `decode_seconds`, by the decoder that did it: `target`,
    and each level with a decoder. What a drafter runs on the target's own layers is counted as the target's. Seconds
    and costs are those of whole rounds: if completions share passes, each has the seconds and the cost of all.
    """

    passes: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_acceptance_rate: float = 0.0
    mean_acceptance_length: float = 0.0
    accepted_per_position: tuple[int, ...] = ()
    tokens_per_second: float = 0.0
    tokens_per_second_with_prefill: float = 0.0
    plain_tokens_per_second: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    check_seconds: float = 0.0
    levels: tuple[LevelStats, ...] = ()
    cost: Mapping[str, Cost] = field(default_factory=dict)


class _Check(NamedTuple):
    """A pass that checked a draft, perhaps an empty one: tokens drafted, tokens accepted, and tokens gained."""

    drafted: int
    accepted: int
    new_tokens: int


def summarise(records: Sequence[RoundRecord], sequence: int, levels: Sequence[str] = ()) -> Stats:
    """The statistics of one sequence, from the records of its rounds. levels: their names, nearest to the target first.

    `plain_tokens_per_second` is left at 0: `prices.plain` estimates it.
    """
    prompt = [r for r in records if sequence in r.read]
    rounds = [r for r in records if sequence in r.new_tokens and sequence not in r.read]
    checks = [_Check(r.drafted.get(sequence, 0), r.accepted.get(sequence, 0), r.new_tokens[sequence]) for r in rounds]
    new_tokens = sum(check.new_tokens for check in checks)
    draft_seconds = sum(r.propose_seconds for r in rounds)
    check_seconds = sum(r.check_seconds for r in rounds)
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
        levels=_levels(levels, checks, [work for r in rounds for work in r.work.get(sequence, ())], decode_seconds),
        cost=together(r.cost for r in rounds),
    )


def _levels(
    names: Sequence[str], checks: Sequence[_Check], work: Sequence[Work], decode_seconds: float
) -> tuple[LevelStats, ...]:
    """Statistics by level. checks: the target's checks of the first level's drafts."""
    levels = []
    for name in names:
        own = [w for w in work if w.level == name]
        seconds = sum(w.seconds for w in own)
        levels.append(
            LevelStats(
                name,
                passes=sum(w.passes for w in own),
                rows=sum(w.rows for w in own),
                seconds=seconds,
                time_share=_per(seconds, decode_seconds),
                **_counts(checks),
            )
        )
        # a pass that gained no token only read text that was known already
        checks = [_Check(w.checked_tokens, w.accepted_tokens, w.draft_tokens) for w in own if w.draft_tokens]
    return tuple(levels)


def _counts(checks: Sequence[_Check]) -> dict[str, Any]:
    """The counts of drafts that `Stats` and `LevelStats` have in common, from their checks."""
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

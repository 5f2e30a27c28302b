"""Statistics of a generation, from the records of its rounds."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.types import RoundRecord, Stats


def summarise(records: Sequence[RoundRecord], sequence: int) -> Stats:
    """The statistics of one sequence. The first record is that of its prompt."""
    prompt, rounds = records[0], [r for r in records[1:] if sequence in r.new_tokens]
    drafted = [r.drafted.get(sequence, 0) for r in rounds]
    accepted = [r.accepted.get(sequence, 0) for r in rounds]
    new_tokens = sum(r.new_tokens[sequence] for r in rounds)
    decode_seconds = sum(r.propose_seconds + r.check_seconds for r in rounds)
    return Stats(
        drafts=sum(n > 0 for n in drafted),
        draft_tokens=sum(drafted),
        accepted_tokens=sum(accepted),
        draft_acceptance_rate=_per(sum(accepted), sum(drafted)),
        mean_acceptance_length=_per(new_tokens, len(rounds)),
        accepted_per_position=tuple(sum(n > at for n in accepted) for at in range(max(accepted, default=0))),
        tokens_per_second=_per(new_tokens, decode_seconds),
        tokens_per_second_with_prefill=_per(
            new_tokens + prompt.new_tokens[sequence], decode_seconds + prompt.check_seconds
        ),
        prefill_seconds=prompt.check_seconds,
        decode_seconds=decode_seconds,
    )


def _per(amount: float, unit: float) -> float:
    return amount / unit if unit else 0.0

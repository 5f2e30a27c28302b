"""Statistics of a generation, from the records of its rounds."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.types import RoundRecord, Stats


def summarise(records: Sequence[RoundRecord], sequence: int) -> Stats:
    """The statistics of one sequence. The first record is that of its prompt."""
    prompt, rounds = records[0], records[1:]
    drafted = [r.drafted.get(sequence, 0) for r in rounds]
    accepted = [r.accepted.get(sequence, 0) for r in rounds]
    new_tokens = sum(r.new_tokens.get(sequence, 0) for r in rounds)
    passes = sum(sequence in r.new_tokens for r in rounds)
    decode_seconds = sum(r.propose_seconds + r.check_seconds for r in rounds)
    deepest = max(accepted, default=0)
    return Stats(
        drafts=sum(n > 0 for n in drafted),
        draft_tokens=sum(drafted),
        accepted_tokens=sum(accepted),
        draft_acceptance_rate=sum(accepted) / sum(drafted) if sum(drafted) else 0.0,
        mean_acceptance_length=new_tokens / passes if passes else 0.0,
        accepted_per_position=tuple(sum(n > position for n in accepted) for position in range(deepest)),
        tokens_per_second=new_tokens / decode_seconds if decode_seconds else 0.0,
        tokens_per_second_with_prefill=(
            (new_tokens + prompt.new_tokens[sequence]) / (decode_seconds + prompt.check_seconds)
        ),
        prefill_seconds=prompt.check_seconds,
        decode_seconds=decode_seconds,
    )

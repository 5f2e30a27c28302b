"""What the work of a round's draft took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretoken.protocol.telemetry import RoundRecord, Work


def drafting_seconds(record: RoundRecord) -> float:
    """The seconds that the levels of a draft have worked in a round. Choosing is not in it, which has a bound of its
    own. Sequences that share work each report it."""
    works = {(work.level, work.began): work.seconds for each in record.work.values() for work in each}
    return min(record.propose_seconds, sum(works.values()))


def caught_up(works: Mapping[int, Sequence[Work]]) -> tuple[float, int]:
    """The seconds of a round's work on rows without a pass, and how many rows these were: tokens that the target has
    read since the last draft."""
    own = [work for each in works.values() for work in each if work.rows and not work.passes]
    return sum(work.seconds for work in own), sum(work.rows for work in own)

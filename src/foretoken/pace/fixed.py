"""The pace that does not adapt: every round has the same budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget


class FixedPace:
    """budgets: one for each level of the draft, nearest to the target first."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets = tuple(budgets)

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> dict[int, tuple[Budget, ...]]:
        """The budgets of each sequence that drafts in the next round."""
        return dict.fromkeys(sequences, self._budgets)

    def heard(self, record: RoundRecord) -> None:
        """Nothing is learned."""

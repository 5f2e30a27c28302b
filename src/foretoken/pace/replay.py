"""The pace that repeats what was chosen in a recorded generation, and the form of these choices in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretoken.common.files import read_bytes
from foretoken.errors import SettingError, cut, quoted
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget
from foretoken.settings.load import MOST_DRAFT_TOKENS, REPLAY

FIELD = "pace"  # of a file with choices


class ReplayPace:
    """rounds: for each round, a budget for each level, nearest to the target first.

    Each sequence goes through the rounds from the first one on. After the last one, nothing is drafted.
    """

    def __init__(self, rounds: Sequence[tuple[Budget, ...]]) -> None:
        self._rounds = tuple(rounds)
        levels = len(rounds[0]) if rounds else 1
        self._afterwards = (Budget(0, 0),) * levels
        self._next: dict[int, int] = {}

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> dict[int, tuple[Budget, ...]]:
        """The budgets of each sequence in its next round."""
        chosen = {}
        for sequence in sequences:
            at = self._next.get(sequence, 0)
            self._next[sequence] = at + 1
            chosen[sequence] = self._rounds[at] if at < len(self._rounds) else self._afterwards
        return chosen

    def heard(self, record: RoundRecord) -> None:
        """Nothing is learned."""


def replayed_file(pace: str) -> Path | None:
    """The file that a pace `replay:FILE` names; None for another pace."""
    return Path(pace.removeprefix(REPLAY)).expanduser() if pace.startswith(REPLAY) else None


def choices_to_json(levels: Sequence[str], records: Iterable[RoundRecord]) -> dict[str, Any] | None:
    """What was chosen in a generation's rounds, for a file. None if several sequences shared its rounds, whose choices
    were for all of them."""
    rounds = []
    for record in records:
        if len(record.budgets) > 1:
            return None
        rounds += [[_to_json(budget) for budget in budgets] for budgets in record.budgets.values()]
    return {"levels": list(levels), "rounds": rounds}


def choices_from_json(path: Path, levels: Sequence[str]) -> list[tuple[Budget, ...]]:
    """The choices in a file, a budget for each level by round. levels: of the draft that is to repeat them.

    Raises SettingError for a file that cannot be read, that has no choices, or whose choices are another draft's.
    """
    called = f"pace is {quoted(REPLAY + str(path), 120)}, but"
    advice = "name a file that `foretoken generate --record FILE` wrote"
    try:
        content = json.loads(read_bytes(path))
    except OSError as error:
        raise SettingError(f"{called} the file cannot be read ({error.strerror}); {advice}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{called} the file is not JSON ({cut(str(error).splitlines()[0], 80)}); {advice}") from None
    told = content.get(FIELD) if isinstance(content, dict) else None
    if told is None:
        raise SettingError(f"{called} the file holds no choices of a pace; {advice}")
    try:
        theirs, rounds = told["levels"], [tuple(map(_from_json, budgets)) for budgets in told["rounds"]]
        if not isinstance(theirs, list) or not all(isinstance(name, str) for name in theirs):
            raise ValueError
        if any(len(each) != len(theirs) for each in rounds):
            raise ValueError
    except (TypeError, ValueError, KeyError):
        raise SettingError(f"{called} the file's choices are damaged; {advice}") from None
    if theirs != list(levels):
        raise SettingError(
            f"{called} its choices are for the draft {quoted(','.join(theirs), 80)}, and this draft is "
            f"{quoted(','.join(levels), 80)}; give the recorded draft"
        )
    return rounds


def _to_json(budget: Budget) -> list[Any]:
    """A budget: rows and depth, and where they are not the usual ones also width, least and dues."""
    told = [budget.rows, budget.depth, budget.width, budget.least, list(budget.dues)]
    return told[:2] if budget == Budget(budget.rows, budget.depth) else told


def _from_json(told: Any) -> Budget:
    """Raises TypeError or ValueError for what is no budget."""
    rows, depth, *more = told
    width, least, dues = more or (1, 0.0, ())
    if not all(isinstance(count, int) and 0 <= count <= MOST_DRAFT_TOKENS for count in (rows, depth, width)):
        raise ValueError
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in (least, *dues)):
        raise ValueError
    return Budget(rows, depth, width, float(least), tuple(map(float, dues)))

"""How much time a pace takes for itself: to choose, and to learn."""

from __future__ import annotations

_KEPT = 0.5 ** (1 / 64)  # of what was noted, with each round: after 64 rounds, a second counts half
_MAY = 0.01  # share of the time that choosing and learning may take
_OF_SAVED = 0.05  # share of what drafts have saved several texts which it may take, too, but at most as much again
_ALWAYS = 32  # rounds at the beginning in which it may take more
_AGAIN = 256  # rounds in haste, one after the other, after which it chooses and learns all the same


class Thinking:
    """The processor time that a pace takes, beside what it may take: a share of the time of the last rounds. What
    drafts saved some other texts long ago does not pay for what is chosen for those of today."""

    def __init__(self) -> None:
        self._rounds = self._hasty = 0
        self._taken = self._seconds = self._saved = 0.0

    def took(self, seconds: float) -> None:
        """Note time that the pace has taken."""
        self._taken += seconds

    def heard(self, seconds: float, saved: float) -> None:
        """Note a round, and the seconds that drafts have saved texts in it if several shared it, on average."""
        self._hasty = self._hasty + 1 if self.in_haste else 0
        self._rounds += 1
        self._taken *= _KEPT
        self._seconds = _KEPT * self._seconds + seconds
        self._saved = _KEPT * self._saved + saved

    @property
    def in_haste(self) -> bool:
        """Whether rounds are so short that choosing and learning in each of them would cost more than it may."""
        may = _MAY * self._seconds
        may += min(may, _OF_SAVED * max(0.0, self._saved))
        return self._rounds > _ALWAYS and self._taken > may and self._hasty < _AGAIN

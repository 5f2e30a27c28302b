"""What a pace may choose for a round: drafts of one way, or none."""

from __future__ import annotations

from typing import NamedTuple

from foretoken.pace.lengths import Choice
from foretoken.pace.levels import Inner
from foretoken.pace.ways import Way


class Plan(NamedTuple):
    """Drafts of one way, or none: the lengths by sequence with what they are worth, and how they are made. texts: how
    many share the round. factor: how many of the draft tokens that are expected have come, of late. slower: how many
    times the seconds, which `choice` has. plain: seconds of a round without drafts. aside: the seconds that reading
    prompts adds to the round. leaves_behind: whether a text would lose more than it may."""

    way: Way
    choice: Choice
    inner: Inner
    texts: int
    aside: float = 0.0
    least: float = 0.0
    dues: tuple[float, ...] = ()
    factor: float = 1.0
    slower: float = 1.0
    plain: float = 0.0
    leaves_behind: bool = False

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return any(self.choice.lengths.values())

    @property
    def tokens(self) -> float:
        """The tokens that are expected, by what they are worth: those of drafts, and one of each text. One whose prompt
        is read, or that drafts nothing, goes on as well."""
        return self.texts + self.factor * self.choice.worth

    @property
    def rate(self) -> float:
        """Expected tokens a second of decoding."""
        return self.tokens / self.seconds

    @property
    def seconds(self) -> float:
        """Seconds of the round, without those that reading prompts adds."""
        return self.choice.seconds - self.aside

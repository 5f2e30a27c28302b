"""What a host says of its model, checked by the client: nothing that comes over a network is taken as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from foretoken.errors import RemoteError, cut, one_line, quoted
from foretoken.remote.features import Offered

_LONGEST = 80  # characters of a text
_TEXTS = ("model", "identity", "promise", "arithmetic", "tokenizer", "fingerprint")
_MOST = 64  # end tokens, and numbers of rows whose passes have a price


@dataclass(frozen=True)
class About:
    """model: its name. identity: what decides its output; a host with another one would write another text. rows: of a
    draft and its root, at most. sessions: of one client at once, at most. tokenizer: the hash of the files, as they are
    sent; empty if there is none. prices: seconds of a pass by its rows; empty if they are not known. fingerprint: of
    the model's weights, by which a trained drafter knows its own. offered: the features that trained drafters see."""

    model: str
    identity: str
    context_length: int
    vocab_size: int
    rows: int
    sessions: int
    promise: str
    arithmetic: str
    threads: int
    tokenizer: str = ""
    end_tokens: tuple[int, ...] = ()
    prices: Mapping[int, float] = field(default_factory=dict)
    fingerprint: str = ""
    offered: Offered = field(default_factory=Offered)

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        prices = [[rows, seconds] for rows, seconds in self.prices.items()]
        return {**asdict(self), "prices": prices, "offered": self.offered.to_json()}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        """Raises RemoteError for what makes no sense."""
        texts = {name: _text(said, name) for name in _TEXTS}
        counts = {name: _count(said, name) for name in ("context_length", "vocab_size", "rows", "sessions", "threads")}
        ends, prices = said.get("end_tokens"), said.get("prices")
        if texts["promise"] not in ("exact", "algorithmic"):
            raise _nonsense("promise", texts["promise"], "exact or algorithmic")
        if not isinstance(ends, list) or any(type(each) is not int or each < 0 for each in ends[:_MOST]):
            raise _nonsense("end_tokens", ends, "a list of tokens")
        if not isinstance(prices, list) or not all(map(_is_price, prices[:_MOST])):
            raise _nonsense("prices", prices, "rows and seconds")
        found = {rows: float(seconds) for rows, seconds in prices[:_MOST]}
        return cls(
            texts["model"],
            texts["identity"],
            counts["context_length"],
            counts["vocab_size"],
            counts["rows"],
            counts["sessions"],
            texts["promise"],
            texts["arithmetic"],
            counts["threads"],
            texts["tokenizer"],
            tuple(ends[:_MOST]),
            found,
            texts["fingerprint"],
            Offered.read(said.get("offered")),
        )


def _text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name)
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise _nonsense(name, text, f"text of at most {_LONGEST} characters")
    return one_line(text)


def _count(said: Mapping[str, Any], name: str) -> int:
    count = said.get(name)
    if type(count) is not int or not 1 <= count < 1 << 31:
        raise _nonsense(name, count, "a number, 1 or more")
    return count


def _is_price(given: object) -> bool:
    if not isinstance(given, list) or len(given) != 2:
        return False
    rows, seconds = given
    sound = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e6  # and no NaN
    return sound and type(rows) is int and 1 <= rows < 1 << 16


def _nonsense(name: str, value: object, expected: str) -> RemoteError:
    return RemoteError(
        f"the host says that its {name} is {cut(quoted(value))}, expected {expected}; see who answers there"
    )

"""What texts over networks would take on a clock of its own (`foretoken.remote.virtual`), from measured rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord
from foretoken.remote.network import PROFILES
from foretoken.remote.virtual import Step, play
from foretoken.remote.wire import MOST_NODES, DraftBody, Kind, Message, VerdictBody
from foretoken.results.completion import Completion

CLIENTS = (1, 2, 4, 8, 16, 32)
Row = dict[str, Any]
_ENOUGH = 3  # passes of a number of rows of which a median is taken
_FAR = (64, 256, 1024)  # rows to which the price goes on


class Host(NamedTuple):
    """checking: the price of passes. handling: seconds of a round that are neither drafting, checking nor
    travelling."""

    checking: Price
    handling: float = 0.0


def checking_in(texts: Sequence[Completion], at_start: Price | None) -> Price:
    """The price of passes, from texts that were generated where the model is. at_start: one that was measured apart, by
    whose form it goes on beyond their rows; None: on a line through all of them."""
    passes = [(1 + _drafted(record), record.check_seconds) for text in texts for record in _decoding(text)]
    seen: dict[int, list[float]] = defaultdict(list)
    for rows, took in passes:
        seen[rows].append(took)
    seconds = {rows: median(each) for rows, each in seen.items() if len(each) >= _ENOUGH or len(seen) < _ENOUGH}
    most = max(seconds)
    line = Price.observed(passes) if at_start is None else at_start
    beyond = [each for each in (*line.seconds, *_FAR) if each > most]
    return Price.measured(seconds | {rows: seconds[most] * line.of(rows) / line.of(most) for rows in beyond})


def steps_of(text: Completion, width: int = 0) -> list[Step]:
    """The rounds of a text behind its first token. width: bytes that its drafter sees of each token."""
    found = []
    for record in _decoding(text):
        drafted, gained = _drafted(record), sum(record.new_tokens.values())
        sent = DraftBody(0, (0,) * drafted, tuple(range(-1, drafted - 1))).packed()
        answer = VerdictBody(0, (0,) * gained, None, bytes(gained * width)).packed()
        found.append(
            Step(
                record.propose_seconds,
                1 + drafted,
                gained,
                _on_the_wire(Kind.DRAFT, sent, masked=True),
                _on_the_wire(Kind.VERDICT, answer, masked=False),
            )
        )
    return found


def handling_of(texts: Sequence[Completion], seconds: Sequence[float], checking: Price) -> float:
    """The seconds of a round that are neither drafting nor checking, of texts without a network between. seconds: of
    each, behind its first token."""
    steps = [step for text in texts for step in steps_of(text)]
    return max(0.0, (sum(seconds) - sum(step.drafting + checking.of(step.rows) for step in steps)) / len(steps))


def seconds_per_round(texts: Sequence[Completion], network: str, host: Host, width: int = 0) -> float:
    """Of one client that generates these texts, one after the other."""
    steps = [step for text in texts for step in steps_of(text, width)]
    played = play([steps], PROFILES[network], host.checking.of, handling=host.handling)
    return played.seconds / len(steps)


def carried(ways: Mapping[tuple[str, bool], Sequence[Sequence[Step]]], network: str, host: Host) -> Iterator[Row]:
    """What numbers of clients would get together, each of whom generates all texts, beginning with another one. Their
    drafts are as long as they were for one client.

    ways: the rounds of the texts, by their draft and by whether the host drafts.
    """
    for (draft, at_host), texts in ways.items():
        for count in CLIENTS:
            turned = [[*texts[at % len(texts) :], *texts[: at % len(texts)]] for at in range(count)]
            its = [[step for text in order for step in text] for order in turned]
            done = play(its, PROFILES[network], host.checking.of, handling=host.handling, at_host=at_host)
            yield {
                "network": network,
                "draft": draft,
                "drafted_on": "host" if at_host else "client",
                "clients": count,
                "tokens_per_second": round(done.tokens_per_second, 3),
                "passes": done.passes,
            }


def _drafted(record: RoundRecord) -> int:
    """How many tokens of a draft a message takes."""
    return min(MOST_NODES, sum(record.drafted.values()))


def _decoding(text: Completion) -> Iterator[RoundRecord]:
    """The rounds behind the prompt's."""
    assert text.rounds is not None
    return (record for record in text.rounds if not record.read and any(record.new_tokens.values()))


def _on_the_wire(kind: Kind, body: bytes, *, masked: bool) -> int:
    """The bytes of a message, with the header of its frame (RFC 6455, section 5.2): what a client sends is masked."""
    size = len(Message(kind, body=body).packed())
    length = 0 if size < 126 else 2 if size < 1 << 16 else 8
    return size + 2 + length + (4 if masked else 0)

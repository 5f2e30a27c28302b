"""What is measured of one generation, and the journal that keeps the samples until all are there.

A measurement takes minutes to hours, and a terminal is closed quickly. Every sample is therefore written at once, as a
line of a file beside the record's. The same command continues where it was ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from foretoken.bench.fields import difference, expect_fields
from foretoken.bench.statistics import rounded
from foretoken.common.files import more_room, read_bytes, readable, write_bytes
from foretoken.errors import InputError, quoted
from foretoken.results.completion import Completion


@dataclass(frozen=True)
class Sample:
    """One generation for a prompt with a draft. `tokens` are those of each turn; seconds and counts are sums over all
    turns. `decoded` tokens came in `decode_seconds`; the first token of each turn belongs to the prompt's pass.
    `levels`: passes, seconds, drafted and accepted tokens by the level's name. `cost`: the cost of decoding, without
    reading the prompts, by the name of the level whose decoder ran, `target` among them
    (`protocol.telemetry.Cost`). `answer`: a line for Spec-Bench, if asked for."""

    draft: str
    temperature: float
    prompt: str
    repeat: int
    tokens: tuple[tuple[int, ...], ...]
    decoded: int
    decode_seconds: float
    prefill_seconds: float
    passes: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    promise: str
    bandwidth: float | None = None  # bytes per second, measured before
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    cost: dict[str, dict[str, float]] = field(default_factory=dict)
    answer: dict[str, Any] | None = None

    @property
    def seconds_per_token(self) -> float:
        """Seconds of decoding per token."""
        return self.decode_seconds / self.decoded

    @classmethod
    def of(cls, completions: Sequence[Completion], **known: Any) -> Self:
        """A sample of the completions of a prompt's turns."""
        stats = [completion.stats for completion in completions]
        return cls(
            tokens=tuple(completion.tokens for completion in completions),
            levels=summed({level.name: {n: getattr(level, n) for n in _LEVEL}} for s in stats for level in s.levels),
            cost=summed({name: asdict(cost) for name, cost in s.cost.items()} for s in stats),
            **counted(completions),
            **known,
        )

    @classmethod
    def read(cls, line: dict[str, Any]) -> Self:
        """A sample that was written as JSON."""
        expect_fields(line, cls, "a sample")
        for what, expected in (("levels", _LEVEL), ("cost", _COST)):
            for level in line[what].values():
                if set(level) != set(expected):
                    raise InputError(f"of {what} one is {quoted(level)}, expected numbers for {', '.join(expected)}")
        tokens, positions = tuple(map(tuple, line["tokens"])), tuple(line["accepted_per_position"])
        return cls(**{**line, "tokens": tokens, "accepted_per_position": positions})

    def to_json(self) -> dict[str, Any]:
        """The sample as a record keeps it, so that its figures can be computed again; tokens become counts by turn."""
        return {**rounded(asdict(replace(self, answer=None))), "tokens": [len(turn) for turn in self.tokens]}


_LEVEL = ("passes", "seconds", "draft_tokens", "accepted_tokens")
_COST = ("flops", "weight_bytes", "cache_bytes")
_SUMS = ("decode_seconds", "prefill_seconds", "passes", "drafts", "draft_tokens", "accepted_tokens")


def counted(completions: Sequence[Completion]) -> dict[str, Any]:
    """The sums over some completions, by a sample's names. The promise is the weakest of theirs."""
    stats = [completion.stats for completion in completions]
    return {
        "decoded": sum(len(completion.tokens) - 1 for completion in completions),
        **{name: sum(getattr(s, name) for s in stats) for name in _SUMS},
        "accepted_per_position": added(s.accepted_per_position for s in stats),
        "promise": min(completion.promise for completion in completions),
    }


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Sums of counts by position; the sequences may differ in length."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def summed(counts: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Sums of the levels' counts, by the levels' names."""
    total: dict[str, dict[str, float]] = {}
    for each in counts:
        for name, its in each.items():
            before = total.setdefault(name, dict.fromkeys(its, 0))
            total[name] = {key: before[key] + value for key, value in its.items()}
    return total


def journal_of(record: Path) -> Path:
    """The file that keeps a record's samples until the record is there."""
    return record.with_name(f"{record.name}.part")


class Journal:
    """A measurement's samples, on disk while it runs: `FILE.part` beside the record FILE, one JSON object per line.
    The first line says what is measured. Without a file, the samples are kept in memory alone.

    Raises InputError if the file holds a different measurement, or no journal.
    """

    def __init__(self, record: Path | None, asked: dict[str, Any]) -> None:
        self.samples: list[Sample] = []
        self._path = None if record is None else journal_of(record)
        self._asked: dict[str, Any] = json.loads(json.dumps(asked))  # as it comes back from JSON
        self._begun = False
        if self._path is not None and self._path.exists():
            self._resume(self._path)

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        if not self._begun:
            self._append({"measuring": self._asked})
            self._begun = True
        self.samples.append(sample)
        self._append(asdict(sample))

    def keep(self, wanted: Callable[[Sample], bool]) -> None:
        """Keep only the samples that are wanted."""
        kept = list(filter(wanted, self.samples))
        if len(kept) < len(self.samples) and self._path is not None:
            lines = [{"measuring": self._asked}, *map(asdict, kept)]
            write_bytes(self._path, b"".join(map(_line, lines)), what="journal")
        self.samples = kept

    def _resume(self, path: Path) -> None:
        with readable(path, "remove it, or name another record"):
            *whole, torn = read_bytes(path).split(b"\n")  # a line that was cut short has no line break
        try:
            read = [json.loads(line) for line in whole]
            was = read[0]["measuring"] if read else None
            self.samples = [Sample.read(line) for line in read[1:]]
            if was is not None and not isinstance(was, dict):
                raise TypeError(was)
        except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(
                f"{path} is no journal of a measurement; remove it, or name another record than {path.stem}"
            ) from None
        if was is not None and was != self._asked:
            raise InputError(
                f"{path} holds the beginning of another measurement ({difference(was, self._asked)}); repeat its "
                "command to go on with it, remove it, or name another record"
            )
        self._begun = was is not None
        if torn:
            write_bytes(path, b"".join(line + b"\n" for line in whole), what="journal")

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_line(line))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be written ({error.strerror}); {more_room(error)}name another record; what was "
                "measured before is kept, and the same command goes on with it"
            ) from None


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"

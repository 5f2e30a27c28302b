"""What is measured of one generation, and the journal that keeps it until all are there.

A measurement takes minutes to hours, and a terminal is closed quickly: every sample is a line of a file beside the
record's, from its first moment on. The same command goes on where it was ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from foretoken.errors import InputError
from foretoken.stats import Stats
from foretoken.types import Completion


@dataclass(frozen=True)
class Sample:
    """One prompt, generated once with one draft. `tokens` are those of each turn; seconds and counts are of all turns
    together; `decoded` tokens came in `decode_seconds`, the first of each turn belongs to the prompt's pass.
    `levels`: passes, seconds, drafted and accepted tokens by the level's name. `answer`: a line of Spec-Bench's, if
    asked for."""

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
    bandwidth: float | None = None  # bytes a second, measured before
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    answer: dict[str, Any] | None = None

    @classmethod
    def of(cls, completions: Sequence[Completion], **known: Any) -> Self:
        """A sample of the completions of a prompt's turns."""
        stats = [completion.stats for completion in completions]
        return cls(
            tokens=tuple(completion.tokens for completion in completions),
            decoded=sum(len(completion.tokens) - 1 for completion in completions),
            accepted_per_position=_positions(stats),
            promise=min(completion.promise for completion in completions),  # the weaker one, should they differ
            levels=_levels(stats),
            **{name: sum(getattr(s, name) for s in stats) for name in _SUMS},
            **known,
        )

    @classmethod
    def read(cls, line: dict[str, Any]) -> Self:
        """A sample that was written as JSON."""
        tokens = tuple(tuple(turn) for turn in line["tokens"])
        positions = tuple(line["accepted_per_position"])
        return cls(**{**line, "tokens": tokens, "accepted_per_position": positions})

    @property
    def key(self) -> tuple[str, float, str, int]:
        """What tells it from every other sample of a measurement."""
        return self.draft, self.temperature, self.prompt, self.repeat


_SUMS = ("decode_seconds", "prefill_seconds", "passes", "drafts", "draft_tokens", "accepted_tokens")


def _positions(stats: Iterable[Stats]) -> tuple[int, ...]:
    return added(s.accepted_per_position for s in stats)


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Counts by position, added up: each sequence may be of another length."""
    total: list[int] = []
    for each in counts:
        total += [0] * (len(each) - len(total))
        for at, count in enumerate(each):
            total[at] += count
    return tuple(total)


def _levels(stats: Iterable[Stats]) -> dict[str, dict[str, float]]:
    names = ("passes", "seconds", "draft_tokens", "accepted_tokens")
    total: dict[str, dict[str, float]] = {}
    for each in stats:
        for level in each.levels:
            sums = total.setdefault(level.name, dict.fromkeys(names, 0))
            for name in names:
                sums[name] += getattr(level, name)
    return total


def journal_of(record: Path) -> Path:
    """Where the samples of a record are kept until it is there."""
    return record.with_name(f"{record.name}.part")


class Journal:
    """The samples of a measurement, on disk while it runs: `FILE.part` beside the record FILE, a JSON object a line,
    the first of which says what is measured. Without a file they are kept in memory alone.

    Raises InputError where the file holds another measurement, or no journal.
    """

    def __init__(self, record: Path | None, asked: dict[str, Any]) -> None:
        self.samples: list[Sample] = []
        self._path = None if record is None else journal_of(record)
        self._asked: dict[str, Any] = json.loads(json.dumps(asked))  # as it will be read
        if self._path is not None and self._path.exists():
            self._resume(self._path)
        elif self._path is not None:
            self._append({"measuring": self._asked})

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.append(sample)
        self._append(asdict(sample))

    def _resume(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); remove it, or name another record") from None
        whole, torn = lines[:-1], lines[-1]  # a line that was cut short has no end
        try:
            read = [json.loads(line) for line in whole]
            was = read[0]["measuring"] if read else None
            self.samples = [Sample.read(line) for line in read[1:]]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(
                f"{path} is no journal of a measurement; remove it, or name another record than {path.stem}"
            ) from None
        if was is not None and was != self._asked:
            raise InputError(
                f"{path} holds the beginning of another measurement ({_difference(was, self._asked)}); repeat its "
                "command to go on with it, remove it, or name another record"
            )
        if torn or was is None:
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole))
        if was is None:
            self._append({"measuring": self._asked})

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be written ({error.strerror}); free some space and repeat the command: what was "
                "measured is kept"
            ) from None


def _difference(was: object, asked: dict[str, Any]) -> str:
    if not isinstance(was, dict):
        return "it does not say which"
    name = next(name for name in {**asked, **was} if was.get(name) != asked.get(name))
    return f"{name} was {json.dumps(was.get(name))[:120]}, and is {json.dumps(asked.get(name))[:120]}"

"""A request as the loop sees it, and what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from foretoken.loop.output import Piece
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Draft, Request, Verdict
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.settings.generate import GenerateSettings
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Gained:
    """What a round brought one text: pieces, with their log probabilities if the request wants them, or a part of its
    prompt. at: seconds since its request came."""

    index: int
    pieces: tuple[Piece, ...]
    logprobs: tuple[TokenLogprobs, ...]
    verdict: Verdict
    draft: Draft | None
    record: RoundRecord
    at: float


@dataclass(frozen=True)
class Done:
    """A text has ended. predicted: how many tokens were drafted from the text that its request predicts."""

    index: int
    completion: Completion
    predicted: int = 0


@dataclass(frozen=True)
class Failed:
    """The request has failed: none of its texts goes on."""

    error: Exception


Event: TypeAlias = Gained | Done | Failed


@dataclass
class Times:
    """When what happened to a request, by `time.perf_counter`; 0 if it has not happened."""

    came: float = field(default_factory=time.perf_counter)
    began: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(eq=False)
class Asked:
    """A prompt with all its completions. tell: called in the loop's thread with what happens; it must not wait.
    rounds: whether it is told of each round, or of the ends only. tokenizer: which writes
    the texts. read, written: tokens so far, of all its texts."""

    name: str
    requests: Sequence[Request]
    settings: GenerateSettings
    tell: Callable[[Event], None]
    rounds: bool = True
    tokenizer: Tokenizer | None = None
    times: Times = field(default_factory=Times)
    read: int = 0
    written: int = 0
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.requests)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self.requests[0].prompt


class Watcher:
    """What is told of everything that the loop does: for metrics. Called in the loop's thread."""

    def came(self, asked: Asked) -> None:
        """A request has come."""

    def went_on(self, asked: Asked, tokens: int, seconds: float, first: bool) -> None:
        """A text has gained tokens, in a round of so many seconds."""

    def made(self, record: RoundRecord) -> None:
        """A round was made."""

    def ended(self, asked: Asked, times: Times, completion: Completion | None, reason: str) -> None:
        """A text has ended. completion: None for one that has failed, or never began."""

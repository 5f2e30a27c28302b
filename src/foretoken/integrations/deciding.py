"""What transformers' processors and criteria decide, position by position.

A processor edits the scores from which a token is chosen, and a criterion says whether a text ends behind a token. In
transformers' own loop all texts of a batch are equally long, and each position is asked about once and in order. Here
texts grow by several tokens at once and at different speeds, and each position is still asked about once and in order:
the processors while a draft is walked, the criteria as soon as all texts that go on have reached the position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers.generation import logits_process as processors_of
from transformers.generation import stopping_criteria as criteria_of

from foretoken.errors import NumericsError, SettingError
from foretoken.kernels.choosing import Floats
from foretoken.protocol.types import Request
from foretoken.sampling.sampler import Sampler

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of token ids [B, T] and scores [B, V]

# what our sampler does itself, in this order, with the name of our setting; transformers' field has the same name
_WARPERS = {
    processors_of.TemperatureLogitsWarper: "temperature",
    processors_of.TopKLogitsWarper: "top_k",
    processors_of.TopPLogitsWarper: "top_p",
    processors_of.MinPLogitsWarper: "min_p",
}
# processors that treat each text of a batch alike, whichever others there are; some releases lack some
_BY_ROW = {
    *_WARPERS,
    *(
        getattr(processors_of, name, None)
        for name in (
            "EpsilonLogitsWarper",
            "EtaLogitsWarper",
            "ExponentialDecayLengthPenalty",
            "ForcedBOSTokenLogitsProcessor",
            "ForcedEOSTokenLogitsProcessor",
            "InfNanRemoveLogitsProcessor",
            "LogitNormalization",
            "MinLengthLogitsProcessor",
            "MinNewTokensLengthLogitsProcessor",
            "NoBadWordsLogitsProcessor",
            "NoRepeatNGramLogitsProcessor",
            "SequenceBiasLogitsProcessor",
            "SuppressTokensAtBeginLogitsProcessor",
            "SuppressTokensLogitsProcessor",
            "TopHLogitsWarper",
            "TypicalLogitsWarper",
            "WatermarkLogitsProcessor",
        )
    ),
}
_OF_THE_LOOP = (criteria_of.MaxLengthCriteria, criteria_of.EosTokenCriteria)  # which sees to them itself


@dataclass(frozen=True)
class Choosing:
    """How tokens are chosen. processors: those that are asked at each position, for each text. settings: ours, for what
    our sampler does itself; `warpers` are the processors that it stands for."""

    processors: tuple[tuple[Processor, ...], ...]
    warpers: tuple[Processor, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def divided(processors: Sequence[Any], padding: Sequence[int], *, samples: bool) -> Choosing:
    """Divide processors into those that are asked, and those that our sampler stands for: warpers behind all others,
    and a repetition penalty that is alone with them.

    padding: how many tokens of padding stand before each text. Raises SettingError if there are several texts, and a
    processor that must see them together.
    """
    rest: list[Any] = list(processors)
    warpers: list[Processor] = []
    if rest and type(rest[-1]) is processors_of.LogitNormalization:  # it changes no choice
        warpers.append(rest.pop())
    settings: dict[str, Any] = {"temperature": 1.0} if samples else {}
    for kind, name in reversed(_WARPERS.items()) if samples else ():
        if rest and type(rest[-1]) is kind and _is_usual(rest[-1], name):
            settings[name] = getattr(rest[-1], name)
            warpers.insert(0, rest.pop())
    if len(rest) == 1 and _is_whole_penalty(rest[0], padding):
        settings["repetition_penalty"] = rest[0].penalty
        warpers.insert(0, type(rest.pop())(settings["repetition_penalty"]))
    if len(padding) == 1:
        return Choosing((tuple(rest),), tuple(warpers), settings)
    by_text = (tuple(_for_text(each, text) for each in rest) for text in range(len(padding)))
    return Choosing(tuple(by_text), tuple(warpers), settings)


def _is_usual(warper: Any, name: str) -> bool:
    """Whether our sampler can stand for a warper."""
    value = getattr(warper, name)
    if name == "temperature":
        return bool(0.001 <= value <= 100)
    keeps_one = getattr(warper, "min_tokens_to_keep", 1) == 1
    return bool(warper.filter_value == -float("inf") and keeps_one and (value > 0 or name == "min_p"))


def _is_whole_penalty(processor: Any, padding: Sequence[int]) -> bool:
    """Whether a processor is a repetition penalty that covers each text but its padding, which our texts lack."""
    if type(processor) is not processors_of.RepetitionPenaltyLogitsProcessor or not 0.01 <= processor.penalty <= 100:
        return False
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, torch.Tensor):
        return bool(ignored.flatten().tolist() == list(padding))
    return not any(padding) and ignored in (None, 0)


def _for_text(processor: Any, text: int) -> Processor:
    """A processor for one text of a batch."""
    kind: Any = type(processor)
    if kind in _BY_ROW:
        return cast("Processor", processor)
    if kind is processors_of.RepetitionPenaltyLogitsProcessor:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if not isinstance(ignored, torch.Tensor):
            return cast("Processor", processor)
        return cast("Processor", kind(processor.penalty, prompt_ignore_length=int(ignored.flatten()[text])))
    raise SettingError(
        f"{kind.__name__} sees all texts of a call together, and here they grow at different speeds; generate one text "
        "at a time with it"
    )


def end_tokens(criteria: Sequence[Any], vocabulary: int) -> tuple[int, ...]:
    """The tokens that end a text. Others than tokens of the model, such as -1, end none."""
    found = [each.eos_token_id for each in criteria if type(each) is criteria_of.EosTokenCriteria]
    return tuple(int(token) for tokens in found for token in tokens if 0 <= token < vocabulary)


def longest(criteria: Sequence[Any], otherwise: int) -> int:
    """The length at which texts end, prompt and padding counted."""
    found = [each.max_length for each in criteria if type(each) is criteria_of.MaxLengthCriteria]
    return min(found, default=otherwise)


@dataclass(frozen=True)
class Ending:
    """What ends texts. most: new tokens of a text. tokens: those that end one. criteria: all; those that the loop sees
    to itself are passed over. pad: what stands behind texts that have ended while others go on; with None, all go on
    until the last one ends, as in transformers."""

    most: int
    tokens: tuple[int, ...]
    criteria: Sequence[Any]
    pad: int | None


class Batch:
    """The texts of one call while they grow.

    ids: the prompts with their padding, int [B, T]. padding: how much of it each has. keeps: whether scores are wanted
    for each position.
    """

    def __init__(
        self, ids: torch.Tensor, padding: Sequence[int], choosing: Choosing, ending: Ending, *, keeps: bool
    ) -> None:
        self.lengths: list[int] = [0 for _ in ids]  # new tokens of each text
        self.ends: list[int | None] = [None for _ in ids]  # at how many tokens a text has ended
        self.raw: Callable[[int, int], torch.Tensor] | None = None  # logits by text and position, float32 [V]
        self.has_processors = any(choosing.processors)
        self._width, self._padding, self._choosing = ids.shape[1], list(padding), choosing
        self._criteria = [each for each in ending.criteria if type(each) not in _OF_THE_LOOP]
        self._ending, self._keeps = ending, keeps
        blank = torch.full((len(ids), ending.most), ending.pad or 0)
        self._all = torch.cat([ids.cpu().long(), blank], dim=1)  # padding, prompts, texts and padding
        self._processed: list[dict[int, torch.Tensor]] = [{} for _ in ids]  # scores by position
        self._scores: list[torch.Tensor] = []  # by position: behind all processors, [B, V]
        self._judged = 0  # positions
        self._stopped = torch.zeros(len(ids), dtype=torch.bool)

    def add(self, text: int, at: int, token: int) -> None:
        """Hear of a text's new token number `at`. What is known already, or stands behind the text's end, is passed
        over. The criteria are asked about the positions that all texts have reached."""
        if at < self.lengths[text] or self.ends[text] is not None:
            return
        self._all[text, self._width + at] = token
        self.lengths[text] = at + 1
        if token in self._ending.tokens or at + 1 == self._ending.most:
            self.ends[text] = at + 1
        self._judge()

    def ended(self, text: int) -> None:
        """Hear that a text ends where it is."""
        if self.ends[text] is None:
            self.ends[text] = self.lengths[text]
            self._judge()

    @property
    def over(self) -> bool:
        """Whether all texts have ended."""
        return None not in self.ends

    def __contains__(self, text: object) -> bool:
        """Whether a text has ended, so that the loop need not go on with it."""
        return isinstance(text, int) and self.ends[text] is not None

    @property
    def longest(self) -> int:
        """The new tokens of the longest text."""
        return max(map(self._end, range(len(self.ends))))

    def tokens(self, text: int) -> list[int]:
        """The new tokens of a text up to its end."""
        found: list[int] = self._all[text, self._width : self._width + self._end(text)].tolist()
        return found

    def so_far(self, count: int) -> torch.Tensor:
        """Prompts and texts up to `count` tokens, int [B, T + count], padded behind those that have ended."""
        return self._all[:, : self._width + count].clone()

    def process(self, text: int, tokens: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """What the processors make of a text's next row of logits, float32 [1, V]. tokens: of the text so far."""
        for at in range(self.lengths[text], len(tokens)):
            self.add(text, at, tokens[at])  # the criteria come before the processors of the next position
        if self.ends[text] is not None or bool(logits.isnan().any()):
            return logits  # what is chosen behind the end is thrown away; and NaN is told of by who checks
        ids = self._all[text : text + 1, : self._width + len(tokens)].clone()
        scores = logits
        for each in self._choosing.processors[text]:
            scores = each(ids, scores)
        if bool(scores.isnan().any()):
            raise NumericsError("a logits processor made NaN of the scores; see what it computes")
        if self._keeps:
            self._processed[text][len(tokens)] = scores.clone()
        return scores

    def scores(self, count: int) -> tuple[torch.Tensor, ...]:
        """For each of the first `count` positions the scores from which tokens were chosen, behind all processors,
        float32 [B, V]; zeros for texts that have ended before."""
        for at in range(len(self._scores), count):
            rows = [self._scored(text, at) if at < self._end(text) else None for text in range(len(self.ends))]
            some = next(row for row in rows if row is not None)
            self._scores.append(torch.cat([torch.zeros_like(some) if row is None else row for row in rows]))
        return tuple(self._scores[:count])

    def logits(self, count: int) -> tuple[torch.Tensor, ...]:
        """The same before any processor."""
        assert self.raw is not None
        none = torch.zeros_like(self.raw(0, 0))
        texts = range(len(self.ends))
        return tuple(
            torch.stack([self.raw(text, at) if at < self._end(text) else none for text in texts]) for at in range(count)
        )

    def _end(self, text: int) -> int:
        end = self.ends[text]
        return self.lengths[text] if end is None else end

    def _judge(self) -> None:
        """Ask the criteria. A text that has ended by itself may have gone on for longer than they let it."""
        while self._criteria and not (self.over and self._judged >= self.longest):
            at = self._judged + 1
            if any(end is None and self.lengths[text] < at for text, end in enumerate(self.ends)):
                return
            ids, scores = self.so_far(at), self.scores(at) if self._keeps else None
            for each in self._criteria:
                self._stopped |= torch.as_tensor(each(ids, scores)).cpu()
            self._judged = at
            if self._ending.pad is not None or len(self.ends) == 1:
                for text, stopped in enumerate(self._stopped.tolist()):
                    if stopped and (self.ends[text] is None or self._end(text) > at):
                        self._cut(text, at)
            elif bool(self._stopped.all()):
                for text in range(len(self.ends)):
                    self._cut(text, at)

    def _cut(self, text: int, at: int) -> None:
        self.ends[text] = at
        self._all[text, self._width + at :] = self._ending.pad or 0

    def _scored(self, text: int, at: int) -> torch.Tensor:
        scores = self._processed[text].pop(at, None)
        if scores is None:
            assert self.raw is not None
            scores = self.raw(text, at)[None]
        own = self._all[text : text + 1, self._padding[text] : self._width + at].clone()
        for each in self._choosing.warpers:
            scores = each(own, scores)
        return scores


class ProcessingSampler(Sampler):
    """A sampler that asks transformers' processors for the scores from which it chooses."""

    def __init__(self, request: Request, batch: Batch, text: int) -> None:
        super().__init__(request)
        self._batch, self._text = batch, text

    @property
    def plain(self) -> bool:
        """Never: the processors are asked at each position."""
        return False

    def edited(self, logits: torch.Tensor) -> Floats:
        """The scores that the processors make of a row of logits. An infinite one, which forces a token, is made the
        largest number that there is."""
        row = torch.from_numpy(super().edited(logits).copy())[None]
        scores = self._batch.process(self._text, self._tokens, row)[0].float()
        if bool(logits.isfinite().all()):
            if bool((scores == -float("inf")).all()):
                raise NumericsError("the logits processors leave no token to choose; see what they forbid together")
            scores = scores.clamp(max=torch.finfo(torch.float32).max)
        made: Floats = scores.contiguous().numpy()
        return made

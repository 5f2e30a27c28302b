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

from foretoken.errors import SettingError
from foretoken.kernels.choosing import Floats
from foretoken.protocol.types import Request
from foretoken.sampling.sampler import Sampler

Scores = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # a processor: token ids [B, T], scores [B, V]

# what our sampler does itself, in this order, with the field that a setting of ours has its number from
_WARPERS = {
    processors_of.TemperatureLogitsWarper: "temperature",
    processors_of.TopKLogitsWarper: "top_k",
    processors_of.TopPLogitsWarper: "top_p",
    processors_of.MinPLogitsWarper: "min_p",
}
# processors that treat each text of a batch alike, whichever others there are
_BY_ROW = (
    *_WARPERS,
    processors_of.EpsilonLogitsWarper,
    processors_of.EtaLogitsWarper,
    processors_of.ExponentialDecayLengthPenalty,
    processors_of.ForcedBOSTokenLogitsProcessor,
    processors_of.ForcedEOSTokenLogitsProcessor,
    processors_of.InfNanRemoveLogitsProcessor,
    processors_of.LogitNormalization,
    processors_of.MinLengthLogitsProcessor,
    processors_of.MinNewTokensLengthLogitsProcessor,
    processors_of.NoBadWordsLogitsProcessor,
    processors_of.NoRepeatNGramLogitsProcessor,
    processors_of.SequenceBiasLogitsProcessor,
    processors_of.SuppressTokensAtBeginLogitsProcessor,
    processors_of.SuppressTokensLogitsProcessor,
    processors_of.TypicalLogitsWarper,
)
_OURS = (criteria_of.MaxLengthCriteria, criteria_of.EosTokenCriteria)  # the loop sees to these itself


@dataclass(frozen=True)
class Choosing:
    """How tokens are chosen. asked: processors that are asked at each position, for each text. settings: ours, for what
    our sampler does itself; `warpers` are the processors that it stands for."""

    asked: tuple[tuple[Scores, ...], ...]
    warpers: tuple[Scores, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def divided(processors: Sequence[Any], texts: int, *, samples: bool) -> Choosing:
    """Divide processors into those that are asked, and those that our sampler stands for: penalties and warpers, if
    nothing comes between or behind them. Raises SettingError for a processor that must see a whole batch at once, if
    there is one."""
    rest: list[Any] = list(processors)
    warpers: list[Scores] = []
    normalises = bool(rest) and type(rest[-1]) is processors_of.LogitNormalization
    if normalises:  # it changes no choice
        warpers.append(rest.pop())
    settings: dict[str, Any] = {"temperature": 1.0} if samples else {}
    for kind, name in reversed(_WARPERS.items()) if samples else ():
        if rest and type(rest[-1]) is kind and _is_usual(rest[-1], name):
            settings[name] = getattr(rest[-1], name)
            warpers.insert(0, rest.pop())
    if len(rest) == 1 and type(rest[0]) is processors_of.RepetitionPenaltyLogitsProcessor and _is_plain(rest[0]):
        settings["repetition_penalty"] = rest[0].penalty
        warpers.insert(0, type(rest.pop())(settings["repetition_penalty"]))
    if texts == 1:
        return Choosing((tuple(rest),), tuple(warpers), settings)
    return Choosing(tuple(tuple(_for_text(each, at) for each in rest) for at in range(texts)), tuple(warpers), settings)


def _is_usual(warper: Any, name: str) -> bool:
    """Whether our sampler can stand for a warper."""
    value = getattr(warper, name)
    if name == "temperature":
        return bool(0.001 <= value <= 100)
    return bool(warper.filter_value == -float("inf") and getattr(warper, "min_tokens_to_keep", 1) == 1)


def _is_plain(penalty: Any) -> bool:
    """Whether a repetition penalty covers a whole text but its padding, which our texts do not have."""
    return bool(0.01 <= penalty.penalty <= 100) and not isinstance(getattr(penalty, "prompt_ignore_length", None), int)


def _for_text(processor: Any, at: int) -> Scores:
    """A processor for one text of a batch."""
    kind: Any = type(processor)
    if kind in _BY_ROW:
        return cast("Scores", processor)
    if kind is processors_of.RepetitionPenaltyLogitsProcessor:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, torch.Tensor):
            ignored = int(ignored[at])
        return cast("Scores", kind(processor.penalty, prompt_ignore_length=ignored))
    raise SettingError(
        f"{kind.__name__} sees a whole batch at once, and here the texts of a batch grow at different speeds; generate "
        "one text at a time with it"
    )


def end_tokens(criteria: Sequence[Any]) -> tuple[int, ...]:
    """The tokens that end a text."""
    found = [each.eos_token_id for each in criteria if type(each) is criteria_of.EosTokenCriteria]
    return tuple(int(token) for tokens in found for token in tokens)


class Batch:
    """The texts of one call while they grow.

    ids: the prompts with their padding, int [B, T]. lengths: of the prompts without it. criteria: all; those that the
    loop sees to itself are passed over. pad: what stands behind texts that have ended while others go on; with None,
    all go on until the last one ends, as in transformers. keeps: whether scores are wanted for each position.
    """

    def __init__(
        self,
        ids: torch.Tensor,
        lengths: Sequence[int],
        choosing: Choosing,
        criteria: Sequence[Any],
        pad: int | None,
        *,
        keeps: bool,
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in ids]
        self.ends: list[int | None] = [None for _ in ids]  # at how many tokens a text has ended
        self.raw: Callable[[int, int], torch.Tensor] | None = None  # logits by text and position, float32 [V]
        self._ids, self._lengths, self._choosing = ids.cpu(), list(lengths), choosing
        self._criteria = [each for each in criteria if type(each) not in _OURS]
        self._pad, self._keeps = pad, keeps
        self.asks = any(choosing.asked)  # whether any processor is asked
        self._asked: list[dict[int, torch.Tensor]] = [{} for _ in ids]  # by position: behind the processors asked
        self._scores: list[torch.Tensor] = []  # by position: behind all processors, [B, V]
        self._judged = 0  # positions
        self._stopped = torch.zeros(len(ids), dtype=torch.bool)

    def grown(self, text: int, tokens: Sequence[int]) -> None:
        """Hear what a text has come to. The criteria are asked about the positions that all texts have reached."""
        if len(tokens) > len(self.tokens[text]):
            self.tokens[text] = list(tokens)
        self._judge()

    def ended(self, text: int) -> None:
        """Hear that a text has ended by itself: at an end token, or at its length."""
        if self.ends[text] is None:
            self.ends[text] = len(self.tokens[text])
        self._judge()

    @property
    def over(self) -> bool:
        """Whether all texts have ended."""
        return None not in self.ends

    def __contains__(self, text: object) -> bool:
        """Whether a text has ended, so that the loop need not go on with it."""
        return self.ends[text] is not None  # type: ignore[call-overload]

    def so_far(self, count: int) -> torch.Tensor:
        """Prompts and texts up to `count` tokens, int [B, T + count], padded behind those that have ended."""
        new = torch.full((len(self.tokens), count), self._pad or 0, dtype=self._ids.dtype)
        for text, tokens in enumerate(self.tokens):
            own = tokens[: min(count, self._end(text))]
            new[text, : len(own)] = torch.tensor(own, dtype=new.dtype)
        return torch.cat([self._ids, new], dim=1)

    def ask(self, text: int, tokens: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """What the processors make of a text's next row of logits, float32 [1, V]. tokens: of the text so far."""
        self.grown(text, tokens)  # the criteria come before the processors of the next position
        if self.ends[text] is not None:
            return logits  # what is chosen behind the end is thrown away
        ids = torch.cat([self._ids[text : text + 1], torch.tensor([list(tokens)], dtype=self._ids.dtype)], dim=1)
        scores = logits
        for each in self._choosing.asked[text]:
            scores = each(ids, scores)
        if self._keeps:
            self._asked[text][len(tokens)] = scores.clone()
        return scores

    def scores(self, count: int) -> tuple[torch.Tensor, ...]:
        """For each of the first `count` positions the scores from which tokens were chosen, behind all processors,
        float32 [B, V]; zeros for texts that have ended before."""
        for at in range(len(self._scores), count):
            rows = [self._scored(text, at) if at < self._end(text) else None for text in range(len(self.tokens))]
            some = next(row for row in rows if row is not None)
            self._scores.append(torch.cat([torch.zeros_like(some) if row is None else row for row in rows]))
        return tuple(self._scores[:count])

    def _end(self, text: int) -> int:
        end = self.ends[text]
        return len(self.tokens[text]) if end is None else end

    def _judge(self) -> None:
        while self._criteria and not self.over:
            at = self._judged + 1
            if any(end is None and len(self.tokens[text]) < at for text, end in enumerate(self.ends)):
                return
            ids, scores = self.so_far(at), self.scores(at) if self._keeps else None
            for each in self._criteria:
                self._stopped |= torch.as_tensor(each(ids, scores)).cpu()
            self._judged = at
            if self._pad is not None or len(self.ends) == 1:
                stopped = self._stopped.tolist()
                self.ends = [at if stopped[text] and end is None else end for text, end in enumerate(self.ends)]
            elif bool(self._stopped.all()):
                self.ends = [at for _ in self.ends]

    def _scored(self, text: int, at: int) -> torch.Tensor:
        scores = self._asked[text].get(at)
        if scores is None:
            assert self.raw is not None
            scores = self.raw(text, at)[None]
        begin = self._ids.shape[1] - self._lengths[text]
        own = torch.cat([self._ids[text, begin:], torch.tensor(self.tokens[text][:at], dtype=self._ids.dtype)])[None]
        for each in self._choosing.warpers:
            scores = each(own, scores)
        return scores


class Asking(Sampler):
    """A sampler that asks transformers' processors for the scores from which it chooses."""

    def __init__(self, request: Request, batch: Batch, text: int) -> None:
        super().__init__(request)
        self._batch, self._text = batch, text

    @property
    def plain(self) -> bool:
        """Never: the processors are asked at each position."""
        return False

    def edited(self, logits: torch.Tensor) -> Floats:
        """The scores that the processors make of a row of logits."""
        row = torch.from_numpy(super().edited(logits).copy())[None]
        scores: Floats = self._batch.ask(self._text, self._tokens, row)[0].float().contiguous().numpy()
        return scores

"""Processors, criteria and streamers that note what they are asked and given."""

from __future__ import annotations

from typing import Any

import torch
import transformers


class Counting(transformers.StoppingCriteria):
    """Notes what it is asked, and ends a text behind a token. order: gets a line for each time that it is asked."""

    def __init__(self, last: int | None = None, order: list[tuple[str, int]] | None = None) -> None:
        self.order = [] if order is None else order
        self.asked: list[list[list[int]]] = []
        self.scores: list[int] = []
        self.last = last

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.order.append(("criterion", input_ids.shape[1]))
        self.asked.append(input_ids.tolist())
        self.scores.append(-1 if scores is None else len(scores))
        return input_ids[:, -1] == (-1 if self.last is None else self.last)


class Noting(transformers.LogitsProcessor):
    """Notes what it is asked, and forbids what was chosen three tokens ago."""

    def __init__(self, order: list[tuple[str, int]] | None = None) -> None:
        self.order = [] if order is None else order
        self.asked: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.order.append(("processor", input_ids.shape[1]))
        self.asked.append(input_ids.tolist())
        changed = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            changed[row, tokens[-3]] = -float("inf")
        return changed


class Quiet(transformers.LogitsProcessor):
    """Notes how long texts are, and changes nothing."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.asked.append(input_ids.shape[1])
        return scores


class Stream:
    """Notes what it is given."""

    def __init__(self, *, fails: bool = False) -> None:
        self.put_in: list[Any] = []
        self.ends = 0
        self.fails = fails

    def put(self, value: torch.Tensor) -> None:
        self.put_in.append(value.tolist())
        if self.fails and len(self.put_in) == 3:
            raise RuntimeError("nobody listens")

    def end(self) -> None:
        self.ends += 1

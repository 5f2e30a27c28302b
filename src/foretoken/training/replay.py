"""How many tokens a check would gain, by replaying what the target says.

A greedy draft is right as far as it repeats the target's own text. So all drafts along a text that the target has
written can be compared with it at once, without decoding: what the engine accepts with chains of this length is the
same, but for rounding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch

from foretoken.training.students import Student
from foretoken.training.teacher import Teacher


class Replayed(NamedTuple):
    """acceptance: tokens a check, the bonus counted. accepted: by place in a chain, the share of tokens that was
    accepted, of those before which all were."""

    acceptance: float
    accepted: tuple[float, ...]


@torch.no_grad()
def right(student: Student, teacher: Teacher, texts: torch.Tensor, first: int, depth: int) -> list[list[int]]:
    """How many tokens of a draft of `depth` would be right, for each text and each root from position `first` on.

    texts: int [B, T], prompts of `first` tokens and what the target says behind them greedily. The last `depth` tokens
    are no roots: they only judge the last drafts.
    """
    found = []
    for part in torch.split(texts, 4):
        choices = student.choices(teacher.teach(part), first, depth).cpu()
        ahead = torch.stack([part[:, 1 + at : part.shape[1] - depth + 1 + at] for at in range(depth)], dim=-1)
        agreeing = (choices[:, :-depth] == ahead).int().cumprod(-1).sum(-1)
        found += agreeing[:, first:].tolist()
    return found


def replay(student: Student, teacher: Teacher, texts: torch.Tensor, first: int, depth: int) -> Replayed:
    """What checks would gain, one after the other. The arguments are those of `right`."""
    counts: list[int] = []
    for text in right(student, teacher, texts, first, depth):
        root = 0
        while root < len(text):
            counts.append(text[root])
            root += text[root] + 1
    reached = [sum(count >= place for count in counts) for place in range(depth + 1)]
    shares = tuple(after / before for before, after in pairwise(reached) if before)
    return Replayed((sum(counts) + len(counts)) / max(1, len(counts)), shares)

"""What a drafter's states are compared with: the target's states, and the distributions that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from foretoken.training.teacher import Teacher


@dataclass(frozen=True)
class Weighing:
    """How losses are weighed. entropy: soft cross-entropy with the target's distribution. variation: half the sum of
    the differences between the two distributions, which is the chance that a token is refused. state: smooth L1 beside
    the target's normed state. fading: with each token of distance, what a row counts is divided by e^(1/fading); 0:
    all count alike."""

    entropy: float
    variation: float
    state: float
    fading: float = 0.0


# Zimmer et al. 2025, table 6; and total variation by distance, as DSpark has it (DeepSpec). Without the comparison of
# states a drafter learns as much in the end, and more slowly (LOG, 26 November 2026).
PAPER = Weighing(entropy=0.1, variation=0.0, state=1.0)
BEST = Weighing(entropy=0.5, variation=0.5, state=1.0, fading=4.0)


_AT_ONCE = 1 << 20  # logits that are computed at once
_AT_ONCE_ON_GPU = 1 << 26  # there, small pieces leave most of it idle


class Compared(NamedTuple):
    """loss: to go down. agreeing: the share of rows whose likeliest token is the target's."""

    loss: torch.Tensor
    agreeing: torch.Tensor


class Judged(NamedTuple):
    """Rows that are compared. states: the drafter's, before the norm, [N, hidden]. normed: the target's, after it.
    distances: int [N], from 1 up: how far each row is in a draft. imitated: a state of the drafter's and the target's
    that it is to be like, if these are others than the two, normed. added: to the drafter's states, behind the
    norm."""

    states: torch.Tensor
    normed: torch.Tensor
    distances: torch.Tensor
    imitated: tuple[torch.Tensor, torch.Tensor] | None = None
    added: torch.Tensor | None = None


def compare(teacher: Teacher, rows: Judged, how: Weighing) -> Compared:
    """The loss of some rows."""
    own, normed = teacher.normed(rows.states), rows.normed
    own = own if rows.added is None else own + rows.added.float()
    counts = torch.exp((1 - rows.distances) / how.fading) if how.fading else torch.ones(len(own), device=own.device)
    counts = counts / counts.sum()
    loss, agreeing = _Distilled.apply(  # type: ignore[no-untyped-call]
        own, normed, teacher.head, counts, how
    )
    if how.state:
        mine, theirs = rows.imitated or (own, normed)
        apart = functional.smooth_l1_loss(mine.float(), theirs, reduction="none").mean(-1)
        loss = loss + how.state * (apart * counts).sum()
    return Compared(loss, agreeing)


class _Distilled(torch.autograd.Function):
    """Cross-entropy and total variation of the distributions that two states stand for, a few rows at a time: with
    their gradient, so that no logits are kept. Logits of all rows at once would take gigabytes with a large
    vocabulary, and most of a step's time with a small one."""

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, normed: torch.Tensor, head: torch.Tensor, counts: torch.Tensor, how: Weighing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        loss, agreeing, gradient = own.new_zeros(()), own.new_zeros(()), torch.empty_like(own)
        rows = max(1, (_AT_ONCE if own.device.type == "cpu" else _AT_ONCE_ON_GPU) // len(head))
        for span in (slice(start, start + rows) for start in range(0, len(own), rows)):
            theirs = functional.linear(normed[span].to(head.dtype), head).float()
            logits = functional.linear(own[span].to(head.dtype), head).float()
            agreeing += (logits.argmax(-1) == theirs.argmax(-1)).sum()
            logs, truth, weight = functional.log_softmax(logits, -1), functional.softmax(theirs, -1), counts[span]
            loss -= how.entropy * torch.dot(torch.linalg.vecdot(truth, logs), weight)
            mine = logs.exp_()
            apart = mine - truth
            back = how.entropy * apart
            if how.variation:
                signs = torch.sign(apart)
                loss += how.variation * 0.5 * torch.dot(torch.linalg.vecdot(signs, apart), weight)
                signs -= torch.linalg.vecdot(mine, signs)[:, None]
                back.addcmul_(mine, signs, value=0.5 * how.variation)
            back *= weight[:, None]
            gradient[span] = (back.to(head.dtype) @ head).to(own.dtype)
        ctx.save_for_backward(gradient)
        share = agreeing / max(1, len(own))
        ctx.mark_non_differentiable(share)
        return loss, share

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None, None

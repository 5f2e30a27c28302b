"""The losses and their gradient, beside those that PyTorch derives."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from foretoken.training import losses
from foretoken.training.losses import BEST, PAPER, Judged, Weighing, compare

WIDTH, TOKENS, ROWS = 8, 31, 7


class Target:
    """What a loss needs of a teacher."""

    eps = 1e-6
    norm = torch.linspace(0.5, 1.5, WIDTH)
    head = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))

    @classmethod
    def normed(cls, states: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(states, (WIDTH,), cls.norm, cls.eps)


@pytest.mark.parametrize("how", [PAPER, BEST, Weighing(1.0, 0.0, 0.0), Weighing(0.0, 1.0, 0.0, fading=2.0)])
def test_the_loss_and_its_gradient_are_those_of_its_definition(how: Weighing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_AT_ONCE", 2 * TOKENS)  # two rows at once: several pieces
    chance = torch.Generator().manual_seed(2)
    states = torch.randn(ROWS, WIDTH, generator=chance).requires_grad_()
    normed, distances = torch.randn(ROWS, WIDTH, generator=chance), torch.tensor([1, 2, 3, 4, 1, 2, 9])
    found = compare(Target, Judged(states, normed, distances), how)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(found.loss, states)

    own = Target.normed(states)
    truth, mine = (functional.softmax(functional.linear(x, Target.head), -1) for x in (normed, own))
    each = -how.entropy * (truth * mine.log()).sum(-1) + how.variation * 0.5 * (truth - mine).abs().sum(-1)
    each = each + how.state * functional.smooth_l1_loss(own, normed, reduction="none").mean(-1)
    counts = torch.exp((1 - distances) / how.fading) if how.fading else torch.ones(ROWS)
    expected = (each * counts).sum() / counts.sum()
    assert torch.allclose(found.loss, expected, rtol=1e-5)
    assert torch.allclose(gradient, torch.autograd.grad(expected, states)[0], atol=1e-6)
    assert found.agreeing == (truth.argmax(-1) == mine.argmax(-1)).float().mean()

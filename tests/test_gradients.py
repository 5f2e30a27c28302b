"""A generation leaves PyTorch's gradients as its caller has set them, also where a Ctrl-C breaks it off."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import torch
from torch.autograd import grad_mode
from torch.utils import _contextlib

import foretoken
from tests.interrupts import Interrupts


@pytest.mark.parametrize("draft", ["lookup", "fractal", "mxfp4"])
def test_a_ctrl_c_within_no_grad_does_not_leave_gradients_off(draft: str) -> None:
    model = foretoken.load("stdlib-1m", draft=draft)
    generate = partial(model.generate, "def add(a, b):\n", max_new_tokens=4, ignore_eos=True)
    generate()
    interrupts = Interrupts(grad_mode.__file__, _contextlib.__file__)  # the lines that switch gradients
    lines = interrupts.count(generate)
    assert lines > 20
    for at in Random(0).sample(range(lines), 40 if lines > 40 else lines):
        interrupts.during(generate, at)
        assert torch.is_grad_enabled(), f"interrupted before line {at} of {lines}"
    with torch.no_grad():
        interrupts.during(generate, lines // 2)
        assert not torch.is_grad_enabled()
    assert len(generate().tokens) == 4

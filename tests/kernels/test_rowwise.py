"""PyTorch's products and norms, row by row against many rows at once."""

from __future__ import annotations

import pytest
import torch

from foretoken.kernels import rowwise

# -- linear layers --------------------------------------------------------------------------------------------------


def products_differ(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a row of x comes to something else among the others than it does alone."""
    among = rowwise.linear(x, weight, None)
    return any(not torch.equal(rowwise.linear(x[row : row + 1], weight, None)[0], among[row]) for row in range(len(x)))


@pytest.mark.parametrize("outputs", range(1, 13))
def test_a_narrow_linear_layer_treats_rows_alike(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # MKL's float32 product with 2 to 11 outputs, and inputs that are no multiple of 4, does not (torch 2.13, AVX-512)
    monkeypatch.setattr(rowwise, "_blocks", {})
    generator = torch.Generator().manual_seed(outputs)
    differ = [
        inputs
        for inputs in range(1, 48)
        if products_differ(
            torch.randn((outputs, inputs), generator=generator), torch.randn((20, inputs), generator=generator)
        )
    ]
    assert differ == []


def test_what_one_model_s_weights_showed_of_a_shape_is_not_believed_of_another_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rowwise, "_blocks", {})
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn((20, 33), generator=generator), torch.randn((10, 33), generator=generator)
    assert not products_differ(torch.zeros(10, 33), x)  # all places of a block are alike to a layer of zeros
    assert not products_differ(weight, x)


# -- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [100, 40_001])
def test_a_norm_treats_rows_alike_on_two_threads(width: int) -> None:
    # a mean over 40,001 numbers is split between threads where there is one row, and rows are where there are many
    x, weight = torch.randn((17, width), generator=torch.Generator().manual_seed(0)), torch.ones(width)
    with rowwise.pinned_threads(2):
        together = rowwise.rms_norm(x, weight, 1e-6)
        for row in range(17):
            assert torch.equal(rowwise.rms_norm(x[row : row + 1], weight, 1e-6)[0], together[row]), row

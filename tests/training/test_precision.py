"""Where the processor does not multiply bf16, training is in float32, and learns as much."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foretoken.kernels import rowwise
from foretoken.training.precision import fastest, mixed

CPU = torch.device("cpu")
SHAPES = [(12, 40), (40, 12), (16, 16)]


@pytest.mark.parametrize("has", [False, True])
def test_the_type_is_that_which_the_processor_multiplies(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in rowwise._MULTIPLY_BF16:
        assert hasattr(torch.cpu, name), "PyTorch tells it by another name now"
        monkeypatch.setattr(torch.cpu, name, lambda: has)
    assert fastest(CPU) == (torch.bfloat16 if has else torch.float32)
    assert fastest(torch.device("cuda")) == torch.bfloat16
    with mixed(CPU):
        assert nn.Linear(3, 3)(torch.ones(3)).dtype == fastest(CPU)


def test_muon_in_float32_makes_the_updates_of_muon_in_bf16() -> None:
    muon = pytest.importorskip("torch.optim._muon", reason="this PyTorch has no Muon")
    from foretoken.training.muon import Float32Muon

    torch.manual_seed(1)
    begins = [torch.randn(shape) for shape in SHAPES]
    found = []
    for kind in (muon.Muon, Float32Muon):  # PyTorch's sets its momentum's type as the matrix has it
        matrices = [nn.Parameter(each.clone()) for each in begins]
        made = kind(matrices, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        gradients = torch.Generator().manual_seed(2)
        for _ in range(4):
            for each in matrices:
                each.grad = torch.randn(each.shape, generator=gradients)
            made.step()
        found.append(matrices)
        assert all(set(made.state[each]) == {"momentum_buffer"} for each in matrices)
    for begun, theirs, ours in zip(begins, *found, strict=True):
        moved = (theirs - begun).detach().flatten(), (ours - begun).detach().flatten()
        assert float(torch.cosine_similarity(*moved, dim=0)) > 0.999
        assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_orthogonal_update_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    pytest.importorskip("torch.optim._muon", reason="this PyTorch has no Muon")
    from foretoken.training.muon import orthogonal

    values = torch.linalg.svdvals(orthogonal(torch.randn(shape), (3.4445, -4.775, 2.0315), 5, 1e-7))
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.3

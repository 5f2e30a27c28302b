"""What is said where a GPU cannot do what is asked of it. No GPU is needed to say it."""

from __future__ import annotations

import pytest
import torch

from foretoken.errors import ModelError
from foretoken.kernels import gpu


def test_a_gpu_without_memory_is_told_of_in_a_line() -> None:
    with pytest.raises(ModelError, match="the GPU has no memory left; with a bound such as"), gpu.telling_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    with pytest.raises(ValueError, match="something else"), gpu.telling_of_memory():
        raise ValueError("something else")


def test_why_the_kernels_cannot_run() -> None:
    assert gpu.why_not(torch.device("cpu")) == "cpu is no GPU"
    if not torch.cuda.is_available():
        assert gpu.why_not(torch.device("cuda")) == "PyTorch sees no NVIDIA GPU"
        assert not gpu.runs_on("cuda:1")

"""What is promised, on which engine, and on how many threads."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import foretoken
from foretoken import kernels
from foretoken.api.checkpoint import expect_promise
from foretoken.errors import SettingError
from foretoken.kernels import native, rowwise
from foretoken.settings.load import LoadSettings
from tests.tiny import needs_native

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"


@pytest.fixture
def pytorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were no native module."""
    monkeypatch.setattr(native, "module", lambda: None)
    kernels._argmax.cache_clear()
    yield
    kernels._argmax.cache_clear()


@needs_native
@pytest.mark.parametrize("asked", ["auto", "exact", "algorithmic"])
def test_the_native_engine_keeps_the_exact_promise_whatever_is_asked(
    asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="foretoken"):
        model = foretoken.load("stdlib-1m", promise=asked)
    told = [text for text in caplog.messages if "promise" in text]
    kept = "promise algorithmic was asked for; exact is kept instead, at no cost"
    assert told == ([kept] if asked == "algorithmic" else [])
    done = model.generate(PROMPT, max_new_tokens=4)
    assert model.promise == done.promise == "exact"
    assert done.arithmetic == model.target.arithmetic == f"native {native.isa()}"


@pytest.mark.usefixtures("pytorch")
@pytest.mark.parametrize(("asked", "made"), [("auto", "exact"), ("exact", "exact"), ("algorithmic", "algorithmic")])
def test_pytorch_on_the_cpu_keeps_what_is_asked(asked: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    real = rowwise.linear_batched

    def linear_batched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        batches.append(len(x))
        return real(x, *rest)

    monkeypatch.setattr(rowwise, "linear_batched", linear_batched)
    model = foretoken.load("stdlib-1m", promise=asked, pace="fixed")
    done = model.generate(PROMPT, max_new_tokens=12, audit=True)
    assert (model.promise, done.promise, done.arithmetic) == (made, made, "pytorch")
    assert (max(batches, default=0) > rowwise.BLOCK) == (made == "algorithmic"), "the prompt is one batch, or in blocks"
    assert done.stats.draft_tokens > 0
    assert done.audit is not None
    assert done.audit.identical or made == "algorithmic"


def test_exactness_is_refused_where_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: "it is old")
    with pytest.raises(SettingError) as error:
        expect_promise(LoadSettings(promise="exact", device="cuda"))
    assert str(error.value) == (
        "promise is 'exact', which cannot be kept on cuda (it is old); use the CPU, or promise 'auto'"
    )
    expect_promise(LoadSettings(device="cuda:1"))
    assert caplog.messages == ["on cuda:1 the model runs in PyTorch, row by row, which is slow (it is old)"]
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: None)
    expect_promise(LoadSettings(promise="exact", device="cuda"))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"promise": "exactly"}, "promise is 'exactly'; did you mean 'exact'? (known: algorithmic, auto, exact)"),
        ({"promise": None}, "promise is None (known: algorithmic, auto, exact)"),
        ({"weights": "copy"}, "weights is 'copy'; did you mean 'copied'? (known: auto, copied, mapped)"),
    ],
)
def test_what_is_no_choice_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings.of(given)
    assert str(error.value) == message


def test_an_unknown_setting_is_refused_before_a_model_is_looked_for() -> None:
    with pytest.raises(SettingError, match="there is no setting 'weight'; did you mean 'weights'"):
        foretoken.load("no/such/folder", weight="copied")


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_the_number_of_threads_reaches_the_pool() -> None:
    """Three models after one that has warmed everything up; each pool has one thread less than it is named for, because
    the caller is one of them."""
    code = f"""
import os, foretoken

def alive():
    return len(os.listdir("/proc/self/task"))

def generate(threads):
    model = foretoken.load("stdlib-1m", threads=threads)
    done = model.generate({PROMPT!r}, max_new_tokens=4)
    assert done.threads == threads == model.target.threads
    return model

generate(1)
before = alive()
kept = generate(1)
assert alive() == before, (alive(), before)
five = generate(5)
assert alive() == before + 4, (alive(), before)
two = generate(2)
assert alive() == before + 5, (alive(), before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

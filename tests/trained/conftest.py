from __future__ import annotations

from pathlib import Path

import pytest

import foretoken
from foretoken.decoder.decoder import Decoder
from tests.published import random_dflash, random_published, write_published
from tests.tiny import one_thread as one_thread
from tests.tiny import tiny_decoder

TARGET = "stdlib-1m"
eagles = pytest.mark.parametrize("kind", ["eagle3"], indirect=True)
blocks = pytest.mark.parametrize("kind", ["dflash"], indirect=True)


@pytest.fixture(params=["eagle3", "dflash"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    """A drafter for TARGET, in its authors' layout."""
    target = foretoken.load(TARGET, draft="none", threads=1).target
    if kind == "eagle3":
        write_published(tmp_path / "it", *random_published(target, 1, sees=(0, 2)), target.config.vocab_size, "sglang")
    else:
        its = random_dflash(target, 1, sees=(1,), reduced=True)
        write_published(tmp_path / "it", *its, target.config.vocab_size, "authors'")
    return tmp_path / "it"


@pytest.fixture(scope="module")
def target() -> Decoder:
    return tiny_decoder(threads=1, arithmetic="pytorch", num_hidden_layers=3)

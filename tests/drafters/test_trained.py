"""Trained drafters of all kinds: none changes a token, and each drafts what its training says that it would draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api.model import Model
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.trained.files import write_trained
from foretoken.training.kinds import Kind, teacher_for

TARGET = "stdlib-1m"
PROMPT = "def add(one, other):\n    return one +"
KINDS = {
    "moa": Kind(),
    "moa, its end the model's": Kind(inferred=1),
    "eagle2": Kind("eagle2"),
    "eagle2, two layers": Kind("eagle2", depth=2),
    "eagle3": Kind("eagle3"),
    "independent": Kind("independent"),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return foretoken.load(TARGET, draft="none", threads=1)


@pytest.fixture(scope="module", params=KINDS, ids=lambda name: name)
def drafter(request: pytest.FixtureRequest, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter with random weights; some of its tokens are right, because they repeat."""
    folder, place, kind = tmp_path_factory.mktemp("drafters") / "it", EMBEDDED[TARGET], KINDS[request.param]
    config = kind.config(model.target.config, fingerprint(place, read_config(place)))
    torch.manual_seed(1)
    student = kind.student(config, teacher_for(model.target, place, kind.wants(config), torch.device("cpu")))
    write_trained(folder, config, student.network.state_dict(), accepted=[0.5, 0.25])
    return folder


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", ["", ":tokens=3:format=bf16", ":k=3:depth=4", ":k=2:shape=best-first"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_token_changes(drafter: Path, model: Model, options: str, temperature: float) -> None:
    settings = {"max_new_tokens": 32, "ignore_eos": True, "temperature": temperature, "seed": 3}
    with_it = foretoken.load(TARGET, draft=f"{drafter}{options}", threads=1, pace="fixed")
    found = with_it.generate(PROMPT, **settings)
    assert found.tokens == model.generate(PROMPT, **settings).tokens
    assert found.stats.draft_tokens > 20

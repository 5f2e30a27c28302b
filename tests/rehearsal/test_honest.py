"""Which drafts a rehearsal may be measured with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.common.source import EMBEDDED
from foretoken.decoder.config import read_json
from foretoken.errors import CheckpointError, DraftSpecError
from foretoken.rehearsal.honest import About, about, expect_honest_draft, read_about
from tests.copies.conftest import copy_of
from tests.rehearsal.conftest import ROOM, rehearse, small

SMALLER = "hidden=32,layers=3,heads=4,kv-heads=2,intermediate=48,vocab=131"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a rehearsal, another model with one, and copies of all of them."""
    here = tmp_path_factory.mktemp("honest")
    for name, seed in (("first", 0), ("second", 1)):
        model = small(here / name, seed=seed)
        copy_of(model, "int8", here / f"{name}-copy")
        for size, shape in (("big", ROOM), ("little", SMALLER)):
            rehearsal = rehearse(model, here / f"{name}-{size}", shape)
            copy_of(rehearsal, "int4", here / f"{name}-{size}-copy")
    return here


def test_the_same_model_in_another_type_is_no_other_model(here: Path, tmp_path: Path) -> None:
    half = small(tmp_path / "half", seed=0, dtype=torch.float16)
    rehearsal = rehearse(half, tmp_path / "rehearsal", SMALLER)
    with pytest.raises(DraftSpecError, match="every token would be accepted"):
        expect_honest_draft(here / "first-big", rehearsal)
    expect_honest_draft(here / "second-big", rehearsal)


def test_what_a_rehearsal_says_of_itself_is_read_from_it_and_from_its_copies(here: Path) -> None:
    its = about(here / "first-big")
    assert its is not None
    assert (its.shape, its.source_name, its.placement, its.layers, its.seed) == (ROOM, "first", "spread", (0, 1, 3), 0)
    assert about(here / "first-big-copy") == its
    assert About(**{**vars(its), "seed": 1}) != its
    assert about(here / "first") is None
    assert about(here / "first-copy") is None


@pytest.mark.parametrize("target", ["first-big", "first-big-copy"])
@pytest.mark.parametrize(
    "draft", ["first-big", "first-big-copy", "second-big", "second-big-copy", "second-little", "second-little-copy"]
)
def test_its_own_copies_and_rehearsals_of_other_models_may_draft(target: str, draft: str, here: Path) -> None:
    expect_honest_draft(here / target, here / draft)


@pytest.mark.parametrize("target", ["first-big", "first-big-copy"])
@pytest.mark.parametrize("draft", ["first", "first-copy", "first-little", "first-little-copy"])
def test_what_says_the_same_for_less_may_not(target: str, draft: str, here: Path) -> None:
    with pytest.raises(DraftSpecError) as error:
        expect_honest_draft(here / target, here / draft)
    assert str(error.value) == (
        f"draft '{here / draft}' says what first says, and so does '{here / target}', its rehearsal: every token would "
        "be accepted; draft with lookup, with a copy of the rehearsal (mxfp4), or with a rehearsal of another model"
    )


@pytest.mark.parametrize("draft", ["second", "second-copy"])
def test_what_costs_nothing_beside_it_may_not(draft: str, here: Path) -> None:
    with pytest.raises(DraftSpecError) as error:
        expect_honest_draft(here / "first-big", here / draft)
    assert str(error.value) == (
        f"draft '{here / draft}' is no rehearsal, and would cost too little beside '{here / 'first-big'}', which is "
        f"one; rehearse it, too: foretoken rehearse --model {here / draft} --shape llama-3.2-1b --vocab-size 131 OUT"
    )


@pytest.mark.parametrize("draft", ["first", "second", "first-copy", "first-big", "second-little"])
def test_a_model_that_is_no_rehearsal_may_have_any_draft(draft: str, here: Path) -> None:
    expect_honest_draft(here / "first", here / draft)


def test_what_was_made_of_the_same_model_is_no_other_model(here: Path, tmp_path: Path) -> None:
    """With noise, as training a little further leaves it; or with its channels in another order."""
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    for name in ("noise", "order"):
        shutil.copytree(here / "first", tmp_path / name)
        tensors = load_file(here / "first" / "model.safetensors")
        for key, tensor in tensors.items():
            if name == "noise":
                tensors[key] = tensor + 0.05 * tensor.std(correction=0) * torch.randn_like(tensor)
            elif key.endswith(("o_proj.weight", "down_proj.weight")) or tensor.dim() == 1:
                tensors[key] = tensor[order].contiguous()
            else:
                tensors[key] = tensor[:, order].contiguous()
        save_file(tensors, tmp_path / name / "model.safetensors")
        rehearsal = rehearse(tmp_path / name, tmp_path / f"{name}-little", SMALLER)
        with pytest.raises(DraftSpecError, match="every token would be accepted"):
            expect_honest_draft(here / "first-big", rehearsal)


def test_models_that_were_trained_apart_on_the_same_text_are_two(tmp_path: Path) -> None:
    shape = "hidden=512,layers=4,heads=8,kv-heads=4,intermediate=1024,vocab=4096"
    big = rehearse(EMBEDDED["stdlib-7m"], tmp_path / "big", shape.replace("layers=4", "layers=8"))
    expect_honest_draft(big, rehearse(EMBEDDED["stdlib-1m"], tmp_path / "little", shape))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", 3),
        ("source", None),
        ("source", {"name": "first"}),
        ("source", {"name": "first", "sha256": "no hash"}),
        ("source", {"sha256": "0" * 64}),
        ("placement", None),
        ("layers", [0, 1, 5]),
        ("layers", [1, 0]),
        ("layers", [True]),
        ("layers", "0, 1"),
        ("seed", -1),
        ("seed", None),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(key: str, value: Any, here: Path, tmp_path: Path) -> None:
    raw = read_json(here / "first-big" / "config.json")
    raw["rehearsal"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: rehearsal.* again"):
        about(tmp_path)


def test_an_entry_that_is_no_object_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: rehearsal is 'yes', expected a shape and a source"):
        read_about({"rehearsal": "yes"})

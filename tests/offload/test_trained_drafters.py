"""Trained drafters for a model of which layers are read in each pass: the same text, within the same bound."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api.build import plan
from foretoken.api.drafter_memory import memory_of_drafter
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import DraftSpecError
from foretoken.settings.load import LoadSettings
from foretoken.trained.files import expected_shapes, read_trained_config, write_trained
from tests.mixtures import random_block, random_mixture, random_stack
from tests.offload.faulty import PROMPT, bounded, large
from tests.published import random_dflash, random_published, write_published
from tests.tiny import needs_native

__all__ = ["large"]

MODEL = EMBEDDED["stdlib-7m"]
KINDS = ("moa", "block", "eagle2", "eagle3", "independent", "published", "dflash")


def written(kind: str, out: Path, model: Path = MODEL) -> str:
    """A drafter with random weights, as --draft takes it."""
    target = foretoken.load(model, draft="none", threads=1).target
    if kind in ("published", "dflash"):
        its = random_published(target, sees=(0, 2, 3)) if kind == "published" else random_dflash(target, sees=(1, 3))
        write_published(out, *its, target.config.vocab_size, "authors'")
        return str(out)
    if kind in ("moa", "tli"):
        _, trained = random_mixture(target, inferred=int(kind == "tli"))
    elif kind == "block":
        _, trained = random_block(target)
    else:
        _, trained = random_stack(target, kind, scale=0.05)
    write_trained(out, replace(trained.config, fingerprint=fingerprint(model, target.config)), trained.tensors)
    return str(out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [":tokens=4", ":k=3:depth=3"])
def test_the_text_is_that_of_the_model_in_memory(kind: str, options: str, tmp_path: Path) -> None:
    draft = kind if kind == "moa" else written(kind, tmp_path / kind)
    plain = foretoken.load(MODEL, draft="none")
    model = foretoken.load(MODEL, draft=f"{draft}{options}", stream_layers="all", pace="fixed")
    assert model.target.home == "copied and streamed"
    its, right = (m.generate(PROMPT, max_new_tokens=24, hash_logits=True, ignore_eos=True) for m in (model, plain))
    assert (its.tokens, its.logits_sha256) == (right.tokens, right.logits_sha256)
    assert its.stats.draft_tokens > 10


def test_what_would_wait_for_layers_for_each_draft_token_is_refused(tmp_path: Path) -> None:
    draft = written("tli", tmp_path / "tli")
    with pytest.raises(DraftSpecError, match="ends with layers of the model, which would have to come in for each"):
        foretoken.load(MODEL, draft=draft, memory="1GiB")


def test_the_plan_counts_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.offloading.memory_in_use", lambda: 300 << 20)  # not what tests before have taken
    bare, drafted = (plan(MODEL, draft=draft, memory="2GiB")[0].plan for draft in ("none", "moa"))
    file = (MODEL.with_name("moa") / "model.safetensors").stat().st_size
    assert drafted.memory["drafts"] > file / 2
    assert "drafts" not in bare.memory


def test_what_a_drafter_takes_depends_on_the_types() -> None:
    config, shapes = read_config(MODEL), expected_shapes(read_trained_config(MODEL.with_name("moa"))[0])
    layers = sum(prod(shape) for name, shape in shapes.items() if name.startswith("layers."))
    kept, cast = (
        find_levels(name_levels(LoadSettings(draft=f"moa:format={name}")), MODEL)[0] for name in ("bf16", "int8")
    )
    half, full = (memory_of_drafter(kept, config, 0, dtype) for dtype in (torch.bfloat16, torch.float32))
    cache = 384 * read_trained_config(MODEL.with_name("moa"))[0].decoder(config).bytes_of_position(2)
    assert full.stays - half.stays == pytest.approx(2 * layers, abs=cache)
    coded = [memory_of_drafter(cast, config, 0, dtype) for dtype in (torch.bfloat16, torch.float32)]
    assert coded[1].loading - coded[0].loading == 4 * layers, "they are converted first"
    untied = memory_of_drafter(cast, replace(config, tied=not config.tied), 0, torch.bfloat16)
    assert abs(untied.loading - coded[0].loading) == 2 * config.vocab_size * config.hidden_size


@pytest.mark.prove
@needs_native
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak of memory")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ["", ":format=bf16:k=8:depth=5"])
def test_the_memory_in_use_stays_within_the_bound(kind: str, options: str, large: Path, tmp_path: Path) -> None:
    bound, peak = bounded(large, written(kind, tmp_path / kind, large) + options)
    assert bound - 130_000_000 < peak <= bound, "filled, and not beyond"

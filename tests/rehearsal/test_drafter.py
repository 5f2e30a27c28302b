"""A trained drafter that is padded drafts for the rehearsal what the small one drafts for the small model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api.build import with_draft
from foretoken.bench.target import expect_honest
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.decoder.rows import chain
from foretoken.errors import DraftSpecError, InputError
from foretoken.rehearsal import write
from foretoken.rehearsal.drafter import _PaddedMixture, padded
from foretoken.rehearsal.shapes import shape_of
from foretoken.settings.load import LoadSettings
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import MixtureConfig
from foretoken.trained.files import parameters_of, read_trained, write_trained
from foretoken.trained.following import Before, FollowingDecoder
from foretoken.trained.network import Block, Mixture
from foretoken.trained.sizes import block_of, mixture_for, observed_layers
from foretoken.training.kinds import Kind
from tests.mixtures import random_mixture, random_stack

SMALL = EMBEDDED["stdlib-7m"]
MOA = SMALL.with_name("moa")
PROMPT = "def add(one, other):\n    return one +"


def shape(**changes: object) -> str:
    numbers = {"hidden": 768, "layers": 4, "heads": 12, "kv-heads": 4, "intermediate": 3072, "vocab": 4096}
    return ",".join(f"{key}={value}" for key, value in {**numbers, "head-dim": 64, "tied": "yes", **changes}.items())


@pytest.fixture(scope="module", params=["heads as large", "heads twice as large"])
def rehearsal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("padded") / "big"
    wide = {"head-dim": 128, "heads": 6, "kv-heads": 2} if request.param == "heads twice as large" else {}
    plan = write.plan(SMALL, out, write.Asked(shape_of(shape(**wide)), "stdlib-7m"))
    drafter = padded(MOA, plan, out.with_name("big-moa"))
    write.write(plan)
    drafter.write()
    return out


@pytest.mark.parametrize("options", [":tokens=5", ":k=3:depth=4"])
def test_it_drafts_what_the_small_one_drafts(rehearsal: Path, options: str) -> None:
    moa = rehearsal.with_name("big-moa")
    small = foretoken.load("stdlib-7m", draft=f"moa{options}", pace="fixed")
    large = foretoken.load(str(rehearsal), draft=f"{moa}{options}", pace="fixed")
    for settings in ({}, {"temperature": 0.8, "seed": 3}):
        one, other = (
            model.generate(PROMPT, max_new_tokens=96, ignore_eos=True, **settings) for model in (small, large)
        )
        assert one.tokens == other.tokens
        assert one.stats.accepted_tokens > 30
        # sums of more numbers are rounded in another order, so now and then another token is drafted
        assert abs(one.stats.accepted_tokens - other.stats.accepted_tokens) <= 0.1 * one.stats.accepted_tokens


def test_a_block_drafts_what_the_small_one_drafts(rehearsal: Path, tmp_path: Path) -> None:
    small = foretoken.load(SMALL, draft="none", threads=1).target
    start = read_trained(MOA)
    assert isinstance(start.config, MixtureConfig)
    network = Block(block_of(start.config, depth=3), small.config.norm_eps)
    torch.manual_seed(0)
    network.go_on_from({name: tensor.float() for name, tensor in start.tensors.items()})
    torch.nn.init.normal_(network.correction.out.weight, std=0.3)
    torch.nn.init.normal_(network.layers[2].mlp.down_proj.weight, std=0.05)  # type: ignore[union-attr, arg-type]
    some = torch.arange(0, 4096, 3)  # the tokens that it can draft
    config = replace(block_of(start.config, depth=3), choices=len(some))
    write_trained(tmp_path / "small", config, {**network.state_dict(), "vocabulary": some})
    wide = {"head-dim": 128, "heads": 6, "kv-heads": 2} if read_config(rehearsal).head_dim == 128 else {}
    plan = write.plan(SMALL, tmp_path / "big", write.Asked(shape_of(shape(**wide)), "stdlib-7m"))
    drafter = padded(tmp_path / "small", plan, tmp_path / "large")
    replace(drafter, plan=replace(plan, out=rehearsal)).write()
    outputs = []
    for folder, model in ((tmp_path / "small", "stdlib-7m"), (tmp_path / "large", str(rehearsal))):
        loaded = foretoken.load(model, draft=f"{folder}:format=bf16", pace="fixed")
        decoder = loaded.drafter.model  # type: ignore[union-attr]
        assert isinstance(decoder, BlockDecoder)
        text = loaded.tokens_of(PROMPT)
        rows = chain(decoder.new_cache(), [*text, *decoder.blanks(6)])
        normed = decoder.norm(decoder.forward(rows))
        more = decoder.correction(normed[-6:], text[-6:])
        logits = decoder.run(rows).logits(len(text))
        outputs.append((decoder.over_all(logits)[some], more))
        assert len(logits) == len(some)
    for one, other in zip(*outputs, strict=True):
        assert torch.allclose(one, other, atol=0.04 * float(one.abs().max()))
    assert float(outputs[0][1].abs().max()) > 0.5, "tokens are corrected"


@pytest.mark.parametrize("kind", [Kind("eagle2"), Kind("eagle3"), Kind("independent")], ids=lambda kind: kind.name)
def test_other_kinds_put_out_what_the_small_one_puts_out(rehearsal: Path, tmp_path: Path, kind: Kind) -> None:
    plain = [foretoken.load(str(each), draft="none", threads=1) for each in (SMALL, rehearsal)]
    small = plain[0].target
    _, trained = random_stack(small, kind.name, scale=0.05)
    config = replace(trained.config, fingerprint=fingerprint(SMALL, small.config))
    write_trained(tmp_path / "small", config, trained.tensors)
    wide = {"head-dim": 128, "heads": 6, "kv-heads": 2} if plain[1].target.config.head_dim == 128 else {}
    plan = write.plan(SMALL, tmp_path / "big", write.Asked(shape_of(shape(**wide)), "stdlib-7m"))
    drafter = padded(tmp_path / "small", plan, tmp_path / "large")
    replace(drafter, plan=replace(plan, out=rehearsal)).write()
    logits = []
    for model, folder in zip(plain, ("small", "large"), strict=True):
        text = model.tokens_of(PROMPT)
        loaded = with_draft(model, f"{tmp_path / folder}:format=bf16").drafter.model  # type: ignore[union-attr]
        rows, cache = chain(model.target.new_cache(), text), loaded.new_cache()
        check = model.target.check(rows, [range(len(text))], taps=range(model.target.config.num_layers))
        if isinstance(loaded, FollowingDecoder):
            seen = {f"hidden.{layer}": each for layer, each in check.taps.items()}
            before = Before(list(loaded.reduced({**seen, "normed": model.target.norm(check.hidden)}).numpy()))
            loaded.follow(cache, before)
        logits.append(loaded.head(loaded.forward(chain(cache, text))))
    assert parameters_of(read_trained(tmp_path / "large").config) > 3 * parameters_of(config)
    few = logits[0].shape[1]
    assert torch.allclose(logits[1][:, :few], logits[0], atol=0.05 * float(logits[0].abs().max()))
    assert not torch.allclose(logits[0][1:], logits[0][:-1], atol=0.2 * float(logits[0].abs().max()))


def test_it_ends_with_the_layers_that_hold_the_small_models_last(tmp_path: Path) -> None:
    small = foretoken.load("stdlib-7m", draft="none", threads=1).target
    _, trained = random_mixture(small, inferred=2)
    config = replace(trained.config, fingerprint=fingerprint(SMALL, small.config))
    write_trained(tmp_path / "small", config, trained.tensors)
    plan = write.plan(SMALL, tmp_path / "big", write.Asked(shape_of(shape(layers=6)), "stdlib-7m"))
    its = _PaddedMixture(read_trained(tmp_path / "small"), plan, tmp_path / "large").config("it")
    assert plan.fit.layers == (0, 1, 3, 4)
    assert its.ends == (3, 4)  # type: ignore[attr-defined]
    assert its.layers == (0, 1, 3, 4)  # type: ignore[attr-defined]


def test_it_is_as_large_as_one_for_a_model_of_this_size(rehearsal: Path) -> None:
    config = read_config(rehearsal)
    its, usual = read_trained(rehearsal.with_name("big-moa")), mixture_for(config, fingerprint(rehearsal, config))
    assert parameters_of(its.config) == parameters_of(usual) > 3 * parameters_of(read_trained(MOA).config)
    same = {"observer_heads": usual.observer_heads, "observer_kv_heads": usual.observer_kv_heads}
    assert replace(its.config, **same, layers=usual.layers) == usual
    assert len(its.config.layers) == len(usual.layers)


def test_measuring_takes_it_and_no_other(rehearsal: Path, tmp_path: Path) -> None:
    moa = rehearsal.with_name("big-moa")
    expect_honest(str(moa), LoadSettings(), rehearsal)
    config = read_config(rehearsal)
    its = mixture_for(config, fingerprint(rehearsal, config))
    write_trained(tmp_path / "own", its, Mixture(its, config.norm_eps).state_dict())
    with pytest.raises(DraftSpecError, match="was trained for the rehearsal"):
        expect_honest(str(tmp_path / "own"), LoadSettings(), rehearsal)


def test_what_cannot_be_padded_is_refused(tmp_path: Path) -> None:
    def refused(match: str, small: Path = SMALL, **changes: object) -> None:
        plan = write.plan(small, tmp_path / "big", write.Asked(shape_of(shape(**changes))))
        with pytest.raises(InputError, match=match):
            padded(MOA, plan, tmp_path / "big-moa")

    refused("observes 4 layers, and one for this shape 8", layers=16)
    refused("trained for another model than the one that is rehearsed", EMBEDDED["stdlib-1m"])
    refused("more key/value heads for each query head", **{"kv-heads": 12})
    with pytest.raises(InputError, match="holds no trained drafter; name a folder that `foretoken train` has written"):
        padded(SMALL, write.plan(SMALL, tmp_path / "big", write.Asked(shape_of(shape()))), tmp_path / "big-moa")
    assert not list(tmp_path.iterdir())


def test_the_layers_that_are_observed() -> None:
    assert observed_layers(2) == (0, 1)
    assert observed_layers(8) == tuple(range(8))
    assert observed_layers(16) == (1, 3, 5, 7, 9, 11, 13, 15)
    assert observed_layers(28)[-1] == 27
    assert torch.tensor(observed_layers(28)).diff().unique().tolist() == [3, 4]

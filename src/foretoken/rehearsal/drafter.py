"""Pads a trained drafter of a small model, so that it drafts for a rehearsal of that model.

The padded drafter has the sizes, and so the cost, of a drafter that is trained for a model of the rehearsal's size. It
drafts what the small drafter would draft. Its two layers are padded as a model's layers are
(`foretoken.rehearsal.fit`), and so is its observer, whose channels are keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.errors import InputError
from foretoken.rehearsal.filling import filled
from foretoken.rehearsal.fit import Fit, Placed, expect_room, key_copies
from foretoken.rehearsal.honest import KEY
from foretoken.rehearsal.noise import Noise
from foretoken.rehearsal.shapes import Shape
from foretoken.rehearsal.write import RehearsalPlan
from foretoken.trained.config import MixtureConfig
from foretoken.trained.files import Trained, expect_trained, expected_shapes, read_trained, write_trained
from foretoken.trained.sizes import mixture_for

_LAYER, _DECODER = "observer.layer.", "model.layers.0."  # names of the observer's layer, and of one of a model


@dataclass(frozen=True)
class _ObserverFit(Fit):
    """An observer's layer in a wider one. channels: for each channel the small observer's, or SILENT."""

    channels: torch.Tensor = field(kw_only=True)

    @cached_property
    def _channels(self) -> torch.Tensor:
        return self.channels


@dataclass(frozen=True)
class PaddedDrafter:
    """A drafter to be written beside a rehearsal."""

    small: Trained
    plan: RehearsalPlan
    out: Path

    @property
    def _its(self) -> MixtureConfig:
        assert isinstance(self.small.config, MixtureConfig)
        return self.small.config

    def expect_room(self) -> None:
        """Raise InputError if the drafter is not the small model's, or if the rehearsal's has no room for it."""
        its, fit = self._its, self.plan.fit
        if its.fingerprint != fingerprint(self.plan.folder, fit.small):
            raise InputError("the drafter was trained for another model than the one that is rehearsed")
        if key_copies(fit.small, fit.shape) > 1:
            raise InputError(
                "the shape has more key/value heads for each query head than the small model, so each would be there "
                "several times, and a drafter sees it once; choose another shape"
            )
        usual = mixture_for(self.plan.config, "", inferred=len(its.ends))
        if len(its.layers) != len(usual.layers):
            raise InputError(
                f"the drafter observes {len(its.layers)} layers, and one for this shape {len(usual.layers)}: it "
                "would cost less than it should; take a small model with more layers"
            )
        size = its.observed // its.observer_heads
        if usual.observed % size or its.observer_heads > usual.observed // size:
            raise InputError(f"the observer has heads of {size} channels, which do not divide {usual.observed}")
        for each in self._fits(self._config("")):
            expect_room(each.small, each.shape, "the drafter")

    def write(self) -> None:
        """Write the drafter. The rehearsal must be there."""
        config = self._config(fingerprint(self.plan.out, read_config(self.plan.out)))
        fits, noise = self._fits(config), Noise(self.plan.about.seed)
        tensors = {}
        for name, shape in expected_shapes(config).items():
            placed = _placed(name, *fits)
            source = None if placed.source is None else self.small.tensors[placed.source]
            like = torch.zeros(1, dtype=torch.bfloat16) if source is None else source
            tensors[name] = filled(name, placed, source, like, noise, 0, shape[0])
        write_trained(
            self.out,
            config,
            tensors,
            target=self.plan.out.name,
            accepted=list(self.small.accepted),
            training=self.small.training,
            **{KEY: self.plan.about.to_json()},
        )

    def _config(self, target: str) -> MixtureConfig:
        """The padded drafter's: of the usual sizes, but with observer heads as large as the small one's, and with the
        layers that hold those which the small drafter observes. target: the rehearsal's fingerprint."""
        its = self._its
        usual = mixture_for(self.plan.config, target, inferred=len(its.ends))
        heads = usual.observed // (its.observed // its.observer_heads)
        shared = its.observer_heads // its.observer_kv_heads
        layers, ends = (tuple(self.plan.fit.layers[layer] for layer in those) for those in (its.layers, its.ends))
        return replace(usual, observer_heads=heads, observer_kv_heads=max(1, heads // shared), layers=layers, ends=ends)

    def _fits(self, config: MixtureConfig) -> tuple[Fit, _ObserverFit]:
        """Where the numbers of the decoder's layers go, and those of the observer's layer."""
        its, fit = self._its, self.plan.fit
        own, large = (replace(one, ends=()) for one in (its, config))
        decoder = Fit(own.decoder(fit.small), _shape_of(large.decoder(self.plan.config)), False, 0, "first")
        observer = _ObserverFit(
            _observers(its, fit.small), _shape_of(_observers(config, self.plan.config)), False, 0, channels=fit.observed
        )
        return decoder, observer


def padded(folder: Path, plan: RehearsalPlan, out: Path) -> PaddedDrafter:
    """The drafter in a folder, to be written for a rehearsal. Raises CheckpointError for a damaged one, and InputError
    for one that cannot be padded."""
    expect_trained(folder)
    small = read_trained(folder)
    if not isinstance(small.config, MixtureConfig):
        raise InputError(
            f"{folder} holds a drafter of kind {small.config.method}; only a Mixture of Attentions is padded"
        )
    made = PaddedDrafter(small, plan, out)
    made.expect_room()
    return made


def _placed(name: str, decoder: Fit, observer: _ObserverFit) -> Placed:
    """The contents of a tensor of the drafter, by its name in the file."""
    if name.startswith("observer.projection."):
        is_bias = name.endswith("bias")
        return Placed(name, decoder.placed("model.norm.weight").rows, None if is_bias else observer.channels)
    if name.startswith(_LAYER):
        found = observer.placed(name.replace(_LAYER, _DECODER, 1))
        source = None if found.source is None else found.source.replace(_DECODER, _LAYER, 1)
    else:
        found = decoder.placed(f"model.{name}")
        source = None if found.source is None else found.source.removeprefix("model.")
    return replace(found, source=source)


def _observers(config: MixtureConfig, target: DecoderConfig) -> DecoderConfig:
    """An observer as a decoder of one layer, for the places of its numbers."""
    return replace(
        config.decoder(target),
        num_layers=1,
        windows=(None,),
        hidden_size=config.observed,
        num_heads=config.observer_heads,
        num_kv_heads=config.observer_kv_heads,
        head_dim=config.observed // config.observer_heads,
        intermediate_size=config.observer_intermediate_size,
    )


def _shape_of(config: DecoderConfig) -> Shape:
    return Shape(
        "a drafter for this shape",
        "llama",
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        False,
    )

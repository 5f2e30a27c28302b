"""Pads a trained drafter of a small model, so that it drafts for a rehearsal of that model.

The padded drafter has the sizes, and so the cost, of a drafter that is trained for a model of the rehearsal's size. It
drafts what the small drafter would draft. Its layers are padded as a model's layers are (`foretoken.rehearsal.fit`),
and so is an observer, whose channels are keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.errors import InputError
from foretoken.rehearsal.filling import filled
from foretoken.rehearsal.fit import SILENT, Fit, Placed, expect_room, key_copies
from foretoken.rehearsal.honest import KEY
from foretoken.rehearsal.noise import Noise
from foretoken.rehearsal.shapes import Shape
from foretoken.rehearsal.write import RehearsalPlan
from foretoken.trained.config import EAGLE2, EAGLE3, VOCABULARY, BlockConfig, MixtureConfig, StackConfig, TrainedConfig
from foretoken.trained.files import Trained, expect_trained, expected_shapes, read_trained, write_trained
from foretoken.trained.sizes import block_of, eagle2_for, eagle3_for, independent_for, mixture_for

_LAYER, _DECODER = "observer.layer.", "model.layers.0."  # names of the observer's layer, and of one of a model


@dataclass(frozen=True)
class _ObserverFit(Fit):
    """An observer's layer in a wider one. channels: for each channel the small observer's, or SILENT."""

    channels: torch.Tensor = field(kw_only=True)

    @cached_property
    def _channels(self) -> torch.Tensor:
        return self.channels


@dataclass(frozen=True)
class PaddedDrafter(ABC):
    """A drafter to be written beside a rehearsal."""

    small: Trained
    plan: RehearsalPlan
    out: Path

    def expect_room(self) -> None:
        """Raise InputError if the drafter is not the small model's, or if the rehearsal's has no room for it."""
        fit = self.plan.fit
        if self.small.config.fingerprint != fingerprint(self.plan.folder, fit.small):
            raise InputError("the drafter was trained for another model than the one that is rehearsed")
        if key_copies(fit.small, fit.shape) > 1:
            raise InputError(
                "the shape has more key/value heads for each query head than the small model, so each would be there "
                "several times, and a drafter sees it once; choose another shape"
            )

    def write(self) -> None:
        """Write the drafter. The rehearsal must be there."""
        config = self.config(fingerprint(self.plan.out, read_config(self.plan.out)))
        noise, tensors = Noise(self.plan.about.seed), {}
        for name, shape in expected_shapes(config).items():
            if name == VOCABULARY:  # behind those of the small drafter come tokens that are never chosen
                first = self.plan.fit.small.valid_vocab_size
                there = self.small.tensors.get(name, torch.arange(first)).long()
                tensors[name] = torch.cat([there, torch.arange(first, first + shape[0] - len(there))])
                continue
            placed = self.placed(name, config)
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

    @abstractmethod
    def config(self, target: str) -> TrainedConfig:
        """The padded drafter's sizes. target: the rehearsal's fingerprint."""

    @abstractmethod
    def placed(self, name: str, config: TrainedConfig) -> Placed:
        """The contents of a tensor of the padded drafter, by its name in the file. config: that drafter's sizes."""


class _PaddedMixture(PaddedDrafter):
    """A Mixture of Attentions."""

    @property
    def _its(self) -> MixtureConfig:
        assert isinstance(self.small.config, MixtureConfig)
        return self.small.config

    def expect_room(self) -> None:
        """As `PaddedDrafter.expect_room`; the observer must have room, too."""
        super().expect_room()
        its = self._its
        usual = self._usual("")
        if len(its.layers) != len(usual.layers):
            raise InputError(
                f"the drafter observes {len(its.layers)} layers, and one for this shape {len(usual.layers)}: it "
                "would cost less than it should; take a small model with more layers"
            )
        size = its.observed // its.observer_heads
        if usual.observed % size or its.observer_heads > usual.observed // size:
            raise InputError(f"the observer has heads of {size} channels, which do not divide {usual.observed}")
        for each in self._fits(self.config("")):
            expect_room(each.small, each.shape, "the drafter")

    def config(self, target: str) -> MixtureConfig:
        """Of the usual sizes, but with observer heads as large as the small one's, and with the layers that hold those
        which the small drafter observes, and ends with."""
        its = self._its
        usual = self._usual(target)
        heads = usual.observed // (its.observed // its.observer_heads)
        shared = its.observer_heads // its.observer_kv_heads
        layers, ends = (tuple(self.plan.fit.layers[layer] for layer in those) for those in (its.layers, its.ends))
        return replace(usual, observer_heads=heads, observer_kv_heads=max(1, heads // shared), layers=layers, ends=ends)

    def _usual(self, target: str) -> MixtureConfig:
        """What is usual for the rehearsal's model."""
        its = self._its
        usual = mixture_for(self.plan.config, target, inferred=len(its.ends))
        usual = replace(usual, choices=max(usual.choices, its.choices))
        if not isinstance(its, BlockConfig):
            return usual
        return block_of(usual, block=its.block, depth=its.depth)

    def placed(self, name: str, config: TrainedConfig) -> Placed:
        """Two layers as a model's, and an observer of one layer."""
        assert isinstance(config, MixtureConfig)
        decoder, observer = self._fits(config)
        if name == "blanks" or name.startswith("correction."):
            return self._beside(name, config, decoder)
        if name.startswith("observer.projection."):
            is_bias = name.endswith("bias")
            return Placed(name, _channels(decoder), None if is_bias else observer.channels)
        if not name.startswith(_LAYER):
            return _of_layer(name, decoder)
        found = observer.placed(name.replace(_LAYER, _DECODER, 1))
        source = None if found.source is None else found.source.replace(_DECODER, _LAYER, 1)
        return replace(found, source=source)

    def _beside(self, name: str, config: MixtureConfig, decoder: Fit) -> Placed:
        """What a block has beside a mixture: vectors for its blanks, and what corrects them."""
        its, channels = self._its, _channels(decoder)
        assert isinstance(its, BlockConfig)
        assert isinstance(config, BlockConfig)
        if name == "blanks":
            return Placed(name, torch.arange(its.block - 1), channels)
        if name.endswith("norm.weight"):
            return replace(decoder.placed("model.norm.weight"), source=name)
        numbers = torch.full((config.rank,), SILENT)
        numbers[: its.rank] = torch.arange(its.rank)
        return Placed(name, channels, numbers) if name.endswith("out.weight") else Placed(name, numbers, channels)

    def _fits(self, config: MixtureConfig) -> tuple[Fit, _ObserverFit]:
        """Where the numbers of the decoder's layers go, and those of the observer's layer."""
        its, fit = self._its, self.plan.fit
        own, large = (replace(one, ends=()) for one in (its, config))
        observer = _ObserverFit(
            _observers(its, fit.small), _shape_of(_observers(config, self.plan.config)), False, 0, channels=fit.observed
        )
        return _fit(own, fit.small, large, self.plan.config), observer


class _PaddedStack(PaddedDrafter):
    """A stack: EAGLE-2's, EAGLE-3's, or an independent drafter's."""

    @property
    def _its(self) -> StackConfig:
        assert isinstance(self.small.config, StackConfig)
        return self.small.config

    def expect_room(self) -> None:
        """As `PaddedDrafter.expect_room`."""
        super().expect_room()
        fit = _fit(self._its, self.plan.fit.small, self.config(""), self.plan.config)
        expect_room(fit.small, fit.shape, "the drafter")

    def config(self, target: str) -> StackConfig:
        """Of the usual sizes. It sees the layers that hold those which the small drafter sees."""
        its, large = self._its, self.plan.config
        if its.method == EAGLE2:
            usual = eagle2_for(self.plan.fit.small, "", depth=its.depth)
            return eagle2_for(large, target, depth=its.depth, wide=its.intermediate_size / usual.intermediate_size)
        if its.method == EAGLE3:
            sees = tuple(self.plan.fit.layers[layer] for layer in its.sees)
            return replace(eagle3_for(large, target), sees=sees)
        return independent_for(large, target, depth=its.depth)

    def placed(self, name: str, config: TrainedConfig) -> Placed:
        """Layers as a model's. What is seen lies side by side, each part as wide as a model's states."""
        assert isinstance(config, StackConfig)
        fit = _fit(self._its, self.plan.fit.small, config, self.plan.config)
        if name.startswith("layers."):
            return _of_layer(name, fit)
        if name.endswith("norm.weight"):
            return replace(fit.placed("model.norm.weight"), source=name)
        channels, width = _channels(fit), self._its.hidden_size
        parts = 2 if name.startswith("combination") else len(self._its.sees)
        columns = torch.cat([(channels + at * width).where(channels >= 0, channels) for at in range(parts)])
        return Placed(name, channels, columns)


def padded(folder: Path, plan: RehearsalPlan, out: Path) -> PaddedDrafter:
    """The drafter in a folder, to be written for a rehearsal. Raises CheckpointError for a damaged one, and InputError
    for one that cannot be padded."""
    expect_trained(folder)
    small = read_trained(folder)
    kind = _PaddedMixture if isinstance(small.config, MixtureConfig) else _PaddedStack
    made = kind(small, plan, out)
    made.expect_room()
    return made


def _fit(small: TrainedConfig, target: DecoderConfig, large: TrainedConfig, rehearsal: DecoderConfig) -> Fit:
    """Where the numbers of a drafter's layers go. target, rehearsal: the models of the two drafters."""
    return Fit(small.decoder(target), _shape_of(large.decoder(rehearsal)), False, 0, "first")


def _of_layer(name: str, fit: Fit) -> Placed:
    """A tensor of one of a drafter's own layers."""
    found = fit.placed(f"model.{name}")
    return replace(found, source=None if found.source is None else found.source.removeprefix("model."))


def _channels(fit: Fit) -> torch.Tensor:
    """For each channel of a state the small model's, or SILENT."""
    return fit.placed("model.norm.weight").rows


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

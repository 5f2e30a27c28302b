"""Which drafters can be trained: each by its name, with its sizes and its student."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.errors import InputError, SettingError
from foretoken.settings.values import one_of
from foretoken.trained.config import BlockConfig, MixtureConfig, StackConfig, TrainedConfig
from foretoken.trained.files import read_trained
from foretoken.trained.network import Layer
from foretoken.trained.sizes import (
    BLOCK_LAYERS,
    BLOCK_TOKENS,
    block_of,
    eagle2_for,
    eagle3_for,
    independent_for,
    mixture_for,
)
from foretoken.training.students import BlockStudent, MixtureStudent, StackStudent, Student
from foretoken.training.teacher import BatchedTeacher, EngineTeacher, Lesson, Teacher, Wanted, rows_of

KINDS = ("moa", "block", "eagle2", "eagle3", "independent")
OBSERVERS = ("layers", "mean", "states")
_USUAL = {"inferred": 0, "depth": None, "wide": 1.0, "observer": "layers", "block": BLOCK_TOKENS, "start": None}
_LEAST = 2  # tokens of a block, and layers: the second is the first that attends to what the target has computed
_HAVE = {  # which kinds have such a setting
    "inferred": ("moa", "block"),
    "depth": ("block", "eagle2", "independent"),
    "wide": ("eagle2",),
    "observer": ("moa",),
    "block": ("block",),
    "start": ("block",),
}


@dataclass(frozen=True)
class Kind:
    """A kind of drafter. inferred: of the target's last layers, how many a Mixture of Attentions ends with. depth: the
    layers of a stack or a block; None: the usual number. wide: how many times as wide its feed-forward layers are.
    block: how many tokens a block drafts in one pass. start: the folder of the Mixture of Attentions with which a block
    begins; it then has that one's sizes.

    observer: of a mixture; `layers` attends over layers (the paper's layer self-attention), `mean` takes the mean of
    their keys and values, and `states` sees what the last layer puts out instead. The last two are for comparison: a
    drafter with them can be measured, and not be written. Source: Zimmer et al. 2025, table 5.
    """

    name: str = "moa"
    inferred: int = 0
    depth: int | None = None
    wide: float = 1.0
    observer: str = "layers"
    block: int = BLOCK_TOKENS
    start: str | None = None

    def __post_init__(self) -> None:
        one_of("drafter", self.name, KINDS)
        one_of("observer", self.observer, OBSERVERS)
        for name, usual in _USUAL.items():
            if getattr(self, name) != usual and self.name not in _HAVE[name]:
                raise SettingError(f"{self} has a size that drafters of kind {self.name} do not have; leave it out")
        if self.block < _LEAST or (self.name == "block" and self.depth is not None and self.depth < _LEAST):
            raise SettingError(
                f"a block of {self.block} tokens with {self.depth} layers; expected {_LEAST} or more of each"
            )

    @property
    def written(self) -> bool:
        """Whether a drafter of this kind can be written, and used."""
        return self.observer == "layers"

    def config(self, target: DecoderConfig, fingerprint: str) -> TrainedConfig:
        """Its sizes for a target."""
        if self.inferred and not 0 < self.inferred < target.num_layers:
            raise SettingError(f"--tli is {self.inferred}, and the model has {target.num_layers} layers; give fewer")
        if self.name == "moa":
            return mixture_for(target, fingerprint, inferred=self.inferred)
        if self.name == "block":
            return self._block(target, fingerprint)
        if self.name == "eagle2":
            return eagle2_for(target, fingerprint, depth=self.depth or 1, wide=self.wide)
        if self.name == "eagle3":
            return eagle3_for(target, fingerprint)
        return independent_for(target, fingerprint, depth=self.depth or 1)

    def _block(self, target: DecoderConfig, fingerprint: str) -> BlockConfig:
        depth = BLOCK_LAYERS if self.depth is None else self.depth
        if self.start is None:
            usual = mixture_for(target, fingerprint, inferred=self.inferred)
            return block_of(usual, block=self.block, depth=depth)
        start = read_trained(Path(self.start))
        its = start.config
        if type(its) is not MixtureConfig or start.observed_by is not None:
            raise InputError(
                f"{self.start} is a drafter of another kind, or was packed for clients; a block begins with what "
                "`foretoken train moa` wrote"
            )
        if self.inferred not in (0, len(its.ends)):
            raise SettingError(
                f"--tli is {self.inferred}, and {self.start} ends with {len(its.ends)} layers; leave it out"
            )
        its.expect_suits(target, self.start)
        its.expect_made_for(fingerprint, self.start)
        return block_of(its, block=self.block, depth=depth)

    def wants(self, config: TrainedConfig) -> Wanted:
        """What a drafter of this kind sees of the target."""
        if isinstance(config, StackConfig):
            return StackStudent.wants(config)
        assert isinstance(config, MixtureConfig)
        wanted = MixtureStudent.wants(config)
        return wanted._replace(observed=()) if self.observer == "states" else wanted

    def student(self, config: TrainedConfig, teacher: Teacher, stream: torch.Tensor | None = None) -> Student:
        """A student with its first weights. stream: the tokens of the text that it will learn from."""
        if isinstance(config, StackConfig):
            return StackStudent(config, teacher)
        assert isinstance(config, MixtureConfig)
        student = self._mixture(config, teacher, teacher.layers(config.ends))
        if stream is not None:
            student.draft_what_occurs_in(stream)
        if isinstance(student, BlockStudent) and self.start is not None:
            student.go_on_from(read_trained(Path(self.start)).tensors)
        return student

    def _mixture(self, config: MixtureConfig, teacher: Teacher, last: Sequence[Layer]) -> MixtureStudent:
        if isinstance(config, BlockConfig):
            return BlockStudent(config, teacher, last)
        if self.observer == "layers":
            return MixtureStudent(config, teacher, last)
        width, sees = (config.observed, _mean) if self.observer == "mean" else (config.hidden_size, _states)
        return MixtureStudent(config, teacher, last, nn.Linear(width, config.hidden_size), sees)


def teacher_for(target: Decoder, folder: Path, wanted: Wanted, device: torch.device) -> Teacher:
    """A teacher on a device. folder: the target's."""
    weights = rows_of(folder, target.config)
    if device.type == "cpu":
        return EngineTeacher(target, weights, wanted)
    return BatchedTeacher(target.config, weights, wanted, device)


def _mean(lesson: Lesson) -> torch.Tensor:
    return lesson.observed.mean(2)


def _states(lesson: Lesson) -> torch.Tensor:
    return lesson.normed

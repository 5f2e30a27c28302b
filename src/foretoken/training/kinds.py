"""Which drafters can be trained: each by its name, with its sizes and its student."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.errors import SettingError
from foretoken.settings.values import one_of
from foretoken.trained.config import MixtureConfig, StackConfig, TrainedConfig
from foretoken.trained.sizes import eagle2_for, eagle3_for, independent_for, mixture_for
from foretoken.training.students import MixtureStudent, StackStudent, Student
from foretoken.training.teacher import BatchedTeacher, EngineTeacher, Lesson, Teacher, Wanted, rows_of

KINDS = ("moa", "eagle2", "eagle3", "independent")
OBSERVERS = ("layers", "mean", "states")


@dataclass(frozen=True)
class Kind:
    """A kind of drafter. inferred: of the target's last layers, how many a Mixture of Attentions ends with. depth: the
    layers of a stack. wide: how many times as wide its feed-forward layers are.

    observer: of a mixture; `layers` attends over layers (the paper's layer self-attention), `mean` takes the mean of
    their keys and values, and `states` sees what the last layer puts out instead. The last two are for comparison: a
    drafter with them can be measured, and not be written. Source: Zimmer et al. 2025, table 5.
    """

    name: str = "moa"
    inferred: int = 0
    depth: int = 1
    wide: float = 1.0
    observer: str = "layers"

    def __post_init__(self) -> None:
        one_of("drafter", self.name, KINDS)
        one_of("observer", self.observer, OBSERVERS)
        is_mixture, is_eagle2 = self.name == "moa", self.name == "eagle2"
        fixed = (self.inferred, 0, is_mixture), (self.observer, "layers", is_mixture), (self.wide, 1.0, is_eagle2)
        if any(value != usual and not has for value, usual, has in (*fixed, (self.depth, 1, self._is_deep))):
            raise SettingError(f"{self} has a size that drafters of kind {self.name} do not have; leave it out")

    @property
    def _is_deep(self) -> bool:
        return self.name in ("eagle2", "independent")

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
        if self.name == "eagle2":
            return eagle2_for(target, fingerprint, depth=self.depth, wide=self.wide)
        if self.name == "eagle3":
            return eagle3_for(target, fingerprint)
        return independent_for(target, fingerprint, depth=self.depth)

    def wants(self, config: TrainedConfig) -> Wanted:
        """What a drafter of this kind sees of the target."""
        if isinstance(config, StackConfig):
            return StackStudent.wants(config)
        assert isinstance(config, MixtureConfig)
        wanted = MixtureStudent.wants(config)
        return wanted._replace(observed=()) if self.observer == "states" else wanted

    def student(self, config: TrainedConfig, teacher: Teacher) -> Student:
        """A student with its first weights."""
        if isinstance(config, StackConfig):
            return StackStudent(config, teacher)
        assert isinstance(config, MixtureConfig)
        last = teacher.layers(config.ends)
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

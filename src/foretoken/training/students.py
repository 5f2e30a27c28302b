"""What learns: a network, what it sees of the target, and how its drafts come about.

Each kind of drafter has a student. It says what a step's loss is, and what it would draft from every place of a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from foretoken.trained.config import EAGLE2, EAGLE3, BlockConfig, MixtureConfig, StackConfig
from foretoken.trained.network import (
    Block,
    Correction,
    KeysValues,
    Layer,
    Mixture,
    Stack,
    mask_of_step,
    masks_of,
    places_of,
)
from foretoken.training.losses import Compared, Judged, Weighing, compare
from foretoken.training.precision import mixed
from foretoken.training.teacher import Lesson, Teacher, Wanted
from foretoken.training.windows import Batch

_AHEAD = 7  # steps that EAGLE-3 is trained to go on from its own states (Li et al. 2025, section 3.2)
_NOISE = 0.1  # of the states that EAGLE-2 sees in training, to each side (Li et al. 2024; the reference code)


class Student(ABC):
    """A drafter that is trained."""

    network: nn.Module
    block = 1  # tokens that it drafts in one pass

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._run: Callable[..., Any] = self.network.to(teacher.device)

    def compile(self, compiled: Callable[[nn.Module], Callable[..., Any]]) -> None:
        """Run the network as `compiled` makes it. Its weights stay those of `network`."""
        self._run = compiled(self.network)

    @abstractmethod
    def rows(self, lesson: Lesson, batch: Batch) -> Judged:
        """The rows of a step that are judged."""

    @abstractmethod
    def choices(self, lesson: Lesson, first: int, depth: int) -> torch.Tensor:
        """What a greedy draft of `depth` tokens would be from each root of a text on, as far as all before it was
        right: int [B, T, depth]. A root is a token whose keys and values the target has not computed yet. Only roots
        from position `first` on are asked for."""

    def learn(self, lesson: Lesson, batch: Batch, how: Weighing) -> Compared:
        """The loss of a step."""
        with mixed(self._teacher.device):
            rows = self.rows(lesson, batch)
        return compare(self._teacher, rows, how)

    def chosen(self, states: torch.Tensor) -> torch.Tensor:
        """The likeliest token behind each state, before the norm."""
        return self._likeliest(self._teacher.normed(states))

    def _likeliest(self, normed: torch.Tensor) -> torch.Tensor:
        logits = normed.to(self._teacher.head.dtype) @ self._teacher.head.T
        return logits.argmax(-1)


class MixtureStudent(Student):
    """A Mixture of Attentions. last: the target's last layers with which it ends. observer, sees: another observer than
    the usual, and what it is given of a lesson: an ablation, which cannot be written."""

    def __init__(
        self,
        config: MixtureConfig,
        teacher: Teacher,
        last: Sequence[Layer] = (),
        observer: nn.Module | None = None,
        sees: Callable[[Lesson], torch.Tensor] = lambda lesson: lesson.observed,
        network: Mixture | None = None,
    ) -> None:
        self.network = Mixture(config, teacher.eps, observer) if network is None else network
        self._last, self._sees, self._ends = last, sees, config.ends
        super().__init__(teacher)

    def draft_what_occurs_in(self, stream: torch.Tensor) -> None:
        """Of a text's tokens, those that occur most are the ones that can be drafted, if these are not all."""
        if self._tokens is None:
            return
        size = len(self._teacher.head)
        most = torch.bincount(stream, minlength=size).argsort(descending=True, stable=True)[: len(self._tokens)]
        self._tokens.copy_(most.sort().values)

    @property
    def _tokens(self) -> torch.Tensor | None:
        return dict(self.network.named_buffers()).get("vocabulary")

    def _likeliest(self, normed: torch.Tensor) -> torch.Tensor:
        if self._tokens is None:
            return super()._likeliest(normed)
        logits = normed.to(self._teacher.head.dtype) @ self._teacher.head[self._tokens].T
        return self._tokens[logits.argmax(-1)]

    @staticmethod
    def wants(config: MixtureConfig) -> Wanted:
        """What it sees of the target."""
        return Wanted(config.layers, config.ends[:1], config.ends)

    def rows(self, lesson: Lesson, batch: Batch) -> Judged:
        """Those behind the prompts, with the bounds that were drawn."""
        out, states = self._states(lesson, batch.bounds, batch.roots)
        judged, imitated = batch.judged, None
        if self._ends:  # states between layers are of any size, so they are compared by the size of the target's
            theirs = lesson.taps[self._ends[0]][judged]
            size = theirs.pow(2).mean().rsqrt()
            imitated = out[judged] * size, theirs * size
        return Judged(states[judged], lesson.normed[judged], batch.distances[judged], imitated)

    def choices(self, lesson: Lesson, first: int, depth: int) -> torch.Tensor:
        """A pass for each place of a draft, in which drafts lie side by side."""
        batch, length = lesson.embedded.shape[:2]
        found = torch.full((batch, length, depth), -1, device=lesson.embedded.device)
        at = torch.arange(length, device=lesson.embedded.device)
        for begin in range(first, first + depth):
            inside = (at - begin) % depth  # how far a row is in its draft; before the first draft all is known
            bounds = torch.where(at < begin, at, at - inside) - 1
            with mixed(self._teacher.device):
                chosen = self.chosen(self._states(lesson, bounds.expand(batch, -1))[1])
            rows = at[at >= begin]
            found[:, rows - inside[rows], inside[rows]] = chosen[:, rows]
        return found

    def _states(
        self, lesson: Lesson, bounds: torch.Tensor, roots: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The network's states, and those behind the target's last layers."""
        tables = self._teacher.tables(lesson.embedded.shape[1])
        more = () if self.block == 1 else (roots,)
        out = states = self._run(lesson.embedded, self._sees(lesson), tables, bounds, *more)
        masks = masks_of(bounds)[1]
        for number, layer in zip(self._ends, self._last, strict=True):
            states, _ = layer(states, tables, masks, [lesson.cached[number]])
        return out, states


class BlockStudent(MixtureStudent):
    """A Mixture of Attentions that drafts several tokens in one pass."""

    def __init__(self, config: BlockConfig, teacher: Teacher, last: Sequence[Layer] = ()) -> None:
        super().__init__(config, teacher, last, network=Block(config, teacher.eps))
        self.block = config.block

    def go_on_from(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with the weights of a mixture, as its file has them."""
        assert isinstance(self.network, Block)
        self.network.go_on_from(
            {name: each.float() if each.is_floating_point() else each.long() for name, each in tensors.items()}
        )

    @property
    def _correction(self) -> Correction:
        assert isinstance(self.network, Block)
        return self.network.correction

    def rows(self, lesson: Lesson, batch: Batch) -> Judged:
        """As for any mixture. The token before each blank is the text's."""
        rows = super().rows(lesson, batch)
        place = places_of(batch.roots)[batch.judged]
        added = self._correction(self._teacher.normed(rows.states), lesson.embedded[batch.judged])
        return rows._replace(added=torch.where(place[:, None] > 0, added, 0.0), distances=1 + place)

    def choices(self, lesson: Lesson, first: int, depth: int) -> torch.Tensor:
        """A pass for each place of a draft, in which drafts lie side by side; then the tokens of all, one place after
        the other."""
        batch, length = lesson.embedded.shape[:2]
        found = torch.full((batch, length, depth), -1, device=lesson.embedded.device)
        at = torch.arange(length, device=lesson.embedded.device)
        for begin in range(first, first + depth):
            inside = (at - begin) % depth
            bounds = torch.where(at < begin, at, at - inside) - 1
            with mixed(self._teacher.device):
                states = self._teacher.normed(self._states(lesson, bounds.expand(batch, -1))[1])
            for place in range(min(depth, self.block)):
                rows = at[(at >= begin) & (inside == place)]
                own = states[:, rows]
                if place:
                    own = own + self._correction(own, self._teacher.embed(found[:, rows - place, place - 1]))
                found[:, rows - place, place] = self._likeliest(own)
        return found


class StackStudent(Student):
    """A stack: EAGLE-2's, EAGLE-3's, or an independent drafter's."""

    def __init__(self, config: StackConfig, teacher: Teacher) -> None:
        self.network = Stack(config, teacher.eps)
        self._kind, self._sees = config.method, config.sees
        super().__init__(teacher)

    @staticmethod
    def wants(config: StackConfig) -> Wanted:
        """What it sees of the target."""
        return Wanted(taps=config.sees if config.method == EAGLE3 else ())

    def rows(self, lesson: Lesson, batch: Batch) -> Judged:
        """Those behind the prompts. EAGLE-3's are judged at each distance, the others at the first."""
        steps = self._steps(lesson, _AHEAD if self._kind == EAGLE3 else 1, noise=_NOISE if self._kind == EAGLE2 else 0)
        found = []
        for step, states in enumerate(steps, 1):
            judged = batch.judged.clone()
            judged[:, : step - 1] = False  # no draft began so early
            distances = torch.full((int(judged.sum()),), step, device=states.device)
            found.append(Judged(states[judged], lesson.normed[judged], distances))
        states, normed, distances = (torch.cat(parts) for parts in list(zip(*found, strict=True))[:3])
        return Judged(states, normed, distances)

    def choices(self, lesson: Lesson, first: int, depth: int) -> torch.Tensor:
        """A step for each place of a draft."""
        batch, length = lesson.embedded.shape[:2]
        found = torch.full((batch, length, depth), -1, device=lesson.embedded.device)
        with mixed(self._teacher.device):
            steps = self._steps(lesson, depth)
            chosen = [self.chosen(states) for states in (steps if self._sees else steps[:1])]
        for ahead in range(depth):
            found[:, : length - ahead, ahead] = chosen[min(ahead, len(chosen) - 1)][:, ahead:]
        return found

    def _steps(self, lesson: Lesson, depth: int, *, noise: float = 0.0) -> list[torch.Tensor]:
        """The states of all rows as the first of a draft, as the second, and so on: [B, T, hidden] each. A row in a
        draft sees the states of those before it in this draft. An independent drafter's rows are the same at every
        distance."""
        length, device = lesson.embedded.shape[1], lesson.embedded.device
        tables, network = self._teacher.tables(length), self.network
        assert isinstance(network, Stack)
        if not self._sees:
            states, _ = self._run(lesson.embedded, tables, mask_of_step(length, 1, device))
            return [states] * depth
        if self._kind == EAGLE3:
            before = network.reduced(torch.cat([lesson.taps[layer] for layer in self._sees], dim=-1))
        else:
            before = lesson.normed
            if noise:
                before = before + (2 * torch.rand_like(before) - 1) * noise
        found: list[torch.Tensor] = []
        made: list[list[KeysValues]] = []
        for step in range(1, depth + 1):
            entered = network.combined(lesson.embedded, _one_later(before))
            states, own = self._run(entered, tables, mask_of_step(length, step, device), made)
            made.append(own)
            found.append(states)
            before = states if self._kind == EAGLE3 else self._teacher.normed(states)
        return found


def _one_later(states: torch.Tensor) -> torch.Tensor:
    """For each row the state of the row before it; zeros for the first."""
    return torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)

"""Train a drafter for a model. The model is asked, and never changed.

Of all checkpoints, the one is kept with which held-out text gains the most tokens a check (`replay`). The loss says
less: it may fall while drafts get worse.

A training that was broken off goes on from the state that was last kept. The windows of each step are a
function of the seed and the step, so on one machine, with one number of threads, it ends with the weights that it would
have had.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 3; `losses.py` has the losses.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from foretoken.api.model import Model
from foretoken.common.files import write_bytes
from foretoken.copies.fingerprint import fingerprint
from foretoken.copies.place import locked
from foretoken.decoder.config import read_config
from foretoken.errors import InputError, NumericsError
from foretoken.trained.files import write_trained
from foretoken.training.kinds import Kind, teacher_for
from foretoken.training.losses import BEST, PAPER, Weighing
from foretoken.training.precision import fastest
from foretoken.training.replay import replay
from foretoken.training.windows import Batch, draw

log = logging.getLogger(__name__)
PRESETS = {"best": BEST, "paper": PAPER}
STATE, _NEW_STATE, _POINTS = "state.pt", "state.pt.new", "points.json"  # in OUT.part
DRAFTED = 6  # tokens of a chain with which checkpoints are compared
_LONG = 300  # steps from which on it pays to compile the network, which takes most of a minute
_SAVING = 120.0  # seconds after which the state is kept, between checkpoints too
_LEAST = 8000  # tokens: of so many, enough are held out
_SMOOTH = 0.98  # of the numbers that are shown, with each step


@dataclass(frozen=True)
class Recipe:
    """A training. tokens: to train on, counted as often as they are read. batch, length: windows of a step, and
    tokens of a window. rate: the peak rate of learning; None: that of the preset. prompts, new_tokens: of held-out
    text, at each checkpoint."""

    tokens: int
    kind: Kind = field(default_factory=Kind)
    preset: str = "best"
    batch: int = 4
    length: int = 384
    rate: float | None = None
    warmup: int = 40
    clip: float = 1.0
    seed: int = 0
    checkpoints: int = 10
    prompts: int = 10
    new_tokens: int = 96

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return max(1, self.tokens // (self.batch * self.length))

    @property
    def muon(self) -> bool:
        """Whether matrices are trained with Muon: not by the paper's preset, and not if this PyTorch lacks it."""
        return self.preset != "paper" and hasattr(torch.optim, "Muon")

    @property
    def peak(self) -> float:
        """The peak rate: for the paper's preset that of the reference code; the others were found by trying."""
        if self.rate is not None:
            return self.rate
        return 6e-4 if self.preset == "paper" else 2e-3 if self.muon else 1e-3

    def factor(self, step: int) -> float:
        """Of the peak rate at a step: up over the warm-up, then down in a straight line, to a twentieth."""
        return min((step + 1) / self.warmup, 1 - 0.95 * step / self.steps)


@dataclass
class Point:
    """What a checkpoint came to. acceptance: tokens a check on held-out text, the bonus counted."""

    tokens: int
    loss: float
    agreeing: float
    acceptance: float
    accepted: tuple[float, ...]


@dataclass
class Progress:
    """How far a training is. seconds: that were spent on it so far, in all processes."""

    step: int = 0
    loss: float = 0.0
    agreeing: float = 0.0
    seconds: float = 0.0
    points: list[Point] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The best checkpoint so far."""
        return max(self.points, key=lambda point: point.acceptance, default=None)


class Training:
    """One training of one drafter. model: the target, with any draft. stream, heldout: token ids, of which the drafter
    learns, and of which none is learned. out: the drafter's folder; beside it, `OUT.part` holds what is needed to go
    on. device: where the drafter is trained."""

    def __init__(
        self,
        model: Model,
        stream: torch.Tensor,
        heldout: torch.Tensor,
        out: Path,
        recipe: Recipe,
        device: str = "cpu",
    ) -> None:
        if len(stream) <= recipe.length or len(heldout) < recipe.length:
            raise InputError(
                f"there are {len(stream)} tokens to train on and {len(heldout)} held out; expected more than "
                f"{recipe.length} of each: give more text, {_LEAST} tokens or so in many files or in one"
            )
        self.recipe, self.out, self.part = recipe, out, out.with_name(f"{out.name}.part")
        self._model, self._stream, self._heldout = model, stream, heldout
        target, self._device = model.target, torch.device(device)
        self.config = recipe.kind.config(target.config, fingerprint(model.folder, read_config(model.folder)))
        self._text = [_hash(stream), _hash(heldout)]
        wanted = recipe.kind.wants(self.config)
        self._teacher = teacher_for(target, model.folder, wanted, self._device)
        torch.manual_seed(recipe.seed)
        self.student = recipe.kind.student(self.config, self._teacher, stream)
        self.network = self.student.network
        self._optimizers = _optimizers(self.network, recipe)
        self._how: Weighing = PRESETS[recipe.preset]
        self.progress = Progress()
        self._held: torch.Tensor | None = None
        if recipe.steps >= _LONG and self._device.type == "cpu":
            self.student.compile(_compiled)

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a training to go on."""
        return {
            "recipe": {**asdict(self.recipe), "muon": self.recipe.muon},
            "config": self.config.to_json(),
            "text": self._text,
            "device": self._device.type,
        }

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, no other process trains this drafter. Raises InputError if one does."""
        self.part.mkdir(parents=True, exist_ok=True)
        with locked(self.part) as locked_now:
            if locked_now is False:
                raise InputError(f"another process is training into {self.out}; wait for it, or name another folder")
            yield

    def resume(self) -> bool:
        """Go on where an earlier process has stopped. False if none has. Raises InputError if it trained with other
        settings, or on other text."""
        file = self.part / STATE
        if not file.exists():
            ours = {STATE, _NEW_STATE, _POINTS}
            if self.part.exists() and any(entry.name not in ours for entry in self.part.iterdir()):
                raise InputError(f"{self.part} is there, and holds other files; name another folder for the drafter")
            return False
        try:
            state = torch.load(file, weights_only=True, map_location=self._device)
        except Exception:  # a damaged file fails in PyTorch, in zip or in pickle
            raise InputError(f"{file} cannot be read; remove {self.part}, and the training begins anew") from None
        if state["identity"] != self.identity:
            raise InputError(
                f"{self.part} holds a training with other settings or of other text; give the same ones, or remove it"
            )
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress = state["progress"]
        points = [Point(**{**point, "accepted": tuple(point["accepted"])}) for point in progress.pop("points")]
        self.progress = Progress(**progress, points=points)
        return True

    def run(self, told: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Train to the end. told: called after each step and each checkpoint."""
        recipe, progress = self.recipe, self.progress
        every = max(1, recipe.steps // recipe.checkpoints)
        began, before = perf_counter(), progress.seconds
        saved = began
        while progress.step < recipe.steps:
            self._step(progress.step)
            progress.step += 1
            progress.seconds = before + perf_counter() - began
            told(progress)
            if progress.step % every == 0 or progress.step == recipe.steps:
                self._checkpoint()
                progress.seconds = before + perf_counter() - began
                self._save()
                saved = perf_counter()
                told(progress)
            elif perf_counter() - saved > _SAVING:
                self._save()
                saved = perf_counter()
        return progress

    def _step(self, step: int) -> None:
        recipe = self.recipe
        batch: Batch = draw(
            self._stream,
            recipe.length,
            recipe.batch,
            seed=recipe.seed,
            step=step,
            block=self.student.block,
        ).on(self._device)
        torch.manual_seed(1_000_003 * recipe.seed + step)  # of the noise that a drafter may be trained with
        try:
            found = self.student.learn(self._teacher.teach(batch.tokens), batch, self._how)
        except torch.OutOfMemoryError:
            raise InputError("the GPU has too little memory for this training; train with --device cpu") from None
        if not torch.isfinite(found.loss):
            raise NumericsError(
                f"the loss is no longer finite at step {step}; train with --preset best, or on other text"
            )
        torch.autograd.backward(found.loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.peak * recipe.factor(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        kept = _SMOOTH if step else 0.0
        progress = self.progress
        progress.loss = kept * progress.loss + (1 - kept) * float(found.loss.detach())
        progress.agreeing = kept * progress.agreeing + (1 - kept) * float(found.agreeing.detach())

    def _checkpoint(self) -> None:
        """Measure the drafter as it is, and keep it if it is the best so far."""
        progress, recipe = self.progress, self.recipe
        found = replay(self.student, self._teacher, self._texts(), self._first, DRAFTED)
        best = progress.best
        tokens = progress.step * recipe.batch * recipe.length
        progress.points.append(Point(tokens, progress.loss, progress.agreeing, found.acceptance, found.accepted))
        if recipe.kind.written and (best is None or found.acceptance >= best.acceptance or not self.out.exists()):
            about = {**asdict(recipe), "tokens": tokens, "of": recipe.tokens, "acceptance": round(found.acceptance, 4)}
            write_trained(
                self.out,
                self.config,
                self.network.state_dict(),
                target=self._model.checkpoint.name,
                accepted=[round(share, 4) for share in found.accepted],
                training=about,
            )

    def finish(self) -> None:
        """Remove what was kept to go on."""
        for name in (STATE, _NEW_STATE, _POINTS):
            (self.part / name).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            self.part.rmdir()

    @property
    def _first(self) -> int:
        """Tokens of a held-out prompt."""
        return min(128, self.recipe.length)

    def _texts(self) -> torch.Tensor:
        """Pieces of held-out text, evenly spaced, and what the model says behind them."""
        if self._held is None:
            count, length = self.recipe.prompts, self._first
            starts = [int((len(self._heldout) - length) * (at + 0.5) / count) for at in range(count)]
            prompts = [tuple(self._heldout[start : start + length].tolist()) for start in starts]
            new = self.recipe.new_tokens + DRAFTED
            said = [self._model.generate(each, max_new_tokens=new, ignore_eos=True).tokens for each in prompts]
            self._held = torch.tensor([[*prompt, *more] for prompt, more in zip(prompts, said, strict=True)])
        return self._held

    def _save(self) -> None:
        state = {
            "identity": self.identity,
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": asdict(self.progress),
        }
        self.part.mkdir(parents=True, exist_ok=True)
        fresh = self.part / _NEW_STATE
        torch.save(state, fresh)
        fresh.replace(self.part / STATE)
        points = [asdict(point) for point in self.progress.points]
        write_bytes(self.part / _POINTS, (json.dumps(points, indent=1) + "\n").encode())


def _hash(tokens: torch.Tensor) -> str:
    return hashlib.sha256(tokens.contiguous().numpy().data).hexdigest()


def _compiled(network: nn.Module) -> Callable[..., Any]:
    """The network, compiled when it is first called; as it is where that fails, as without a C++ compiler."""
    compiled: Callable[..., Any] | None = torch.compile(network)

    def forward(*arguments: Any) -> Any:
        nonlocal compiled
        if compiled is not None:
            try:
                with warnings.catch_warnings():
                    # What the compiler says of Ctrl-C: where in the network it was.
                    warnings.filterwarnings("ignore", "Error detected in ", UserWarning)
                    return compiled(*arguments)
            except Exception as error:  # the compiler's errors have no class in common
                log.info("training is not compiled, and takes half as long again: %s", type(error).__name__)
                compiled = None
        return network(*arguments)

    return forward


def _optimizers(network: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for matrices, if this PyTorch has it, and AdamW for all else. The paper has AdamW for all."""
    matrices = [p for p in network.parameters() if p.ndim == 2 and recipe.muon]
    others = [p for p in network.parameters() if p.ndim != 2 or not recipe.muon]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=recipe.peak, betas=(0.9, 0.95), weight_decay=0.0)]
    if matrices:
        made.append(_muon(matrices, recipe.peak))
    return made


def _muon(matrices: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    its: dict[str, Any] = {"lr": rate, "weight_decay": 0.0, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    if fastest(matrices[0].device) == torch.bfloat16:
        return torch.optim.Muon(matrices, **its)
    from foretoken.training.muon import Float32Muon  # here, because not every PyTorch has Muon

    return Float32Muon(matrices, **its)

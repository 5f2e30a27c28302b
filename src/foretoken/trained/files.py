"""A trained drafter in a folder: config.json and model.safetensors. Written whole or not at all; checked when read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from foretoken.common.source import named_beside
from foretoken.decoder.config import DRAFTER, DecoderConfig, is_published_drafter, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.homes.huge_pages import copied
from foretoken.decoder.linear import Linear
from foretoken.decoder.shapes import EMBEDDING, HEAD
from foretoken.decoder.weights import LayerWeights, Weights, assemble, repacked
from foretoken.errors import CheckpointError, InputError, ModelError
from foretoken.formats.table import Format
from foretoken.formats.values import dequantise
from foretoken.trained.config import (
    EAGLE3,
    VOCABULARY,
    BlockConfig,
    MixtureConfig,
    StackConfig,
    TrainedConfig,
    config_of,
)
from foretoken.trained.network import Observer
from foretoken.trained.observer import ObservingLayers, Sight
from foretoken.trained.published import (
    OWN_EMBEDDING,
    OWN_HEAD,
    OWN_NORM,
    PublishedConfig,
    stored_names,
    tensors_of,
)
from foretoken.trained.published_kinds import published_config
from foretoken.trained.published_mixture import PublishedMixture, mixture_tensors, stored_name

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BESIDE = ("moa", "block")  # kinds that are looked for beside a model
PACKED = "packed"  # in config.json: the digest of the observer that was left out
_EMBEDDED, _HEAD, _FINAL_NORM = f"{EMBEDDING}.weight", f"{HEAD}.weight", "model.norm.weight"
# what a drafter may have in place of the target's
_INSTEAD = {OWN_EMBEDDING: _EMBEDDED, OWN_HEAD: _HEAD, OWN_NORM: _FINAL_NORM}
OBSERVING = "observer.layer."  # what the names begin with of tensors that run beside the target


class InRows(NamedTuple):
    """Of the target's weights, those that a drafter shares, in rows."""

    head: Linear
    layers: Sequence[LayerWeights]


@dataclass(frozen=True)
class Trained:
    """A trained drafter as it lies in a folder. accepted: by place in a draft, the share of tokens that was accepted on
    held-out text, of those before which all were; empty if nobody measured it. observed_by: of a packed one
    (`foretoken.drafters.packing`), the digest of its observer, whose layers it lacks."""

    config: TrainedConfig
    tensors: Mapping[str, torch.Tensor]
    accepted: tuple[float, ...] = ()
    training: Mapping[str, Any] | None = None
    observed_by: str | None = None

    def observer(self, target: Decoder, format: Format | None = None) -> ObservingLayers | None:
        """The part that runs beside the target; None if there is none. format: of its matrices. Raises CheckpointError
        if it was packed without that part."""
        if not isinstance(self.config, MixtureConfig):
            return None
        if self.observed_by is not None:
            raise CheckpointError(
                "the trained drafter was packed for clients, without the part that runs beside the model; name the "
                "folder that it was packed from"
            )
        made = Observer(self.config, self.config.decoder(target.config).norm_eps)
        made.load_state_dict({name: tensor.float() for name, tensor in self._of_observer().items()})
        name = self.sight_name if format is None else f"{self.sight_name}-{format.label}"
        return ObservingLayers(made.to(target.device), self.config, name, target, format)

    def sight(self, name: str, threads: int, format: Format | None = None) -> Sight | None:
        """What a drafter needs to make use of an observer elsewhere, of this name; None if there is none."""
        if not isinstance(self.config, MixtureConfig):
            return None
        start = "projection."
        projection = {n: tensor.float() for n, tensor in self._of_observer().items() if n.startswith(start)}
        return Sight(name, self.config, projection, torch.device("cpu"), threads, format)

    @property
    def sight_name(self) -> str:
        """What the names of its observer begin with, in whatever format that is."""
        return f"layers-{self.digest}"

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that another observer does not have."""
        if self.observed_by is not None:
            return self.observed_by
        digest = hashlib.sha256()
        for name, tensor in sorted(self._of_observer().items()):
            digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:12]

    def _of_observer(self) -> dict[str, torch.Tensor]:
        prefix = "observer."
        return {name.removeprefix(prefix): each for name, each in self.tensors.items() if name.startswith(prefix)}

    @property
    def more(self) -> dict[str, torch.Tensor]:
        """The tensors of a stack beside its layers and what it has in place of the target's."""
        others = (OWN_HEAD, OWN_NORM, OWN_EMBEDDING, VOCABULARY)
        return {
            name: each for name, each in self.tensors.items() if not name.startswith("layers.") and name not in others
        }

    def with_head_of_choices(self, weights: Weights, head: Linear) -> Weights:
        """A drafter's weights, with an output layer for the tokens that it can draft. head: the target's, in rows.
        Raises CheckpointError if the target lacks such a token."""
        tokens = self.tensors[VOCABULARY].long()
        values = head.weight if isinstance(head.weight, torch.Tensor) else dequantise(head.weight)
        if int(tokens[-1]) >= len(values):
            raise CheckpointError(
                f"the drafter can draft token {int(tokens[-1])}, and the model has {len(values)}; fetch it again, or "
                "train it again"
            )
        chosen = values[tokens.to(values.device)].to(weights.embedding)
        return replace(weights, head=Linear(chosen, None))

    def weights(self, target: Decoder, rows: InRows | None = None) -> tuple[DecoderConfig, Weights]:
        """The drafter's decoder, which shares the target's embedding, final norm and output layer, and the last layers
        if it ends with these. rows: the target's in rows; if they are given, all weights of the result lie in rows, as
        a cast reads them."""
        config = self.config.decoder(target.config)
        if VOCABULARY in self.tensors:
            valid = int((self.tensors[VOCABULARY] < target.config.valid_vocab_size).sum())
            if not valid:
                raise CheckpointError(
                    "none of the tokens that the drafter can draft is the model's; name a drafter of this model"
                )
            config = replace(config, valid_vocab_size=valid)
        theirs, its = target.weights, self.config
        like = theirs.embedding
        own = {f"model.{name}": tensor for name, tensor in self.tensors.items() if name.startswith("layers.")}
        own |= {stored: self.tensors[name] for name, stored in _INSTEAD.items() if name in self.tensors}
        if _EMBEDDED in own and _are_alike(own[_EMBEDDED], like):
            del own[_EMBEDDED]  # the target's once more
        if rows is None and like.device.type == "cpu":
            own = copied(own, like.dtype)
        else:  # a cast reads each matrix once, from where it lies; vectors stay
            own = {
                name: tensor.to(dtype=like.dtype, device=like.device, copy=tensor.ndim == 1 or name == _EMBEDDED)
                for name, tensor in own.items()
            }
        shared = {_EMBEDDED: like, _FINAL_NORM: theirs.norm}
        place = {} if config.tied else {_HEAD: like}  # of the target's own head
        last = its.ends if isinstance(its, MixtureConfig) else ()
        made = assemble({**shared, **place, **own}, replace(config, num_layers=config.num_layers - len(last)))
        if _HEAD not in own:  # until the target's own comes; what lies in the embedding's place is never repacked
            made = replace(made, head=Linear(made.embedding, None))
        engine, _, isa = target.arithmetic.partition(" ")
        if engine == "native" and rows is None:
            made = repacked(made, isa, target.threads)
        layers = theirs.layers if rows is None else rows.layers
        return config, replace(
            made,
            layers=(*made.layers, *(layers[layer] for layer in last)),
            head=made.head if _HEAD in own else theirs.head if rows is None else rows.head,
            tensors={**shared, **own},
            mapped=theirs.mapped,
        )


def _are_alike(own: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two embeddings hold the same for all tokens that both have. They may differ in rows of padding."""
    count = min(len(own), len(theirs))
    pieces = (slice(at, min(at + 4096, count)) for at in range(0, count, 4096))  # a converted copy of all is large
    return all(torch.equal(own[piece].to(theirs), theirs[piece]) for piece in pieces)


def place_beside(folder: Path, kind: str = BESIDE[0]) -> Path:
    """Where a model's trained drafter of a kind is looked for: `llama-moa` beside `llama`."""
    return named_beside(folder, kind)


def is_trained(folder: Path) -> bool:
    """Whether a folder holds a trained drafter, whatever its kind. A folder without a readable config.json does not."""
    raw = _read_config(folder)
    return DRAFTER in raw or is_published_drafter(raw)


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a drafter that `foretoken train` has written."""
    return DRAFTER in _read_config(folder)


def _read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; empty if it cannot be read."""
    try:
        return read_json(folder / CONFIG)
    except ModelError:
        return {}


def expect_trained(folder: Path) -> None:
    """Raise InputError for a folder that holds no drafter of ours."""
    if is_ours(folder):
        return
    what = "a drafter that others have trained" if is_trained(folder) else "no trained drafter"
    raise InputError(f"{folder} holds {what}; name a folder that `foretoken train` has written")


def read_trained_config(folder: Path) -> tuple[TrainedConfig, dict[str, Any]]:
    """The configuration in a folder, and all else that its file holds."""
    raw = read_json(folder / CONFIG)
    return published_config(folder, raw) if is_published_drafter(raw) else config_of(raw, str(folder)), raw


def read_trained(folder: Path) -> Trained:
    """A trained drafter from its folder. Raises CheckpointError if it is damaged or incomplete."""
    config, raw = read_trained_config(folder)
    expected = expected_shapes(config)
    if isinstance(config, PublishedMixture):
        tensors = mixture_tensors(folder, expected)
    else:
        tensors = tensors_of(folder, config) if isinstance(config, PublishedConfig) else _loaded(folder / WEIGHTS)
    packed = raw.get(PACKED)
    for name, shape in expected.items():
        if packed is not None and name.startswith(OBSERVING):
            continue
        found = tensors.get(name)
        is_float = found is not None and found.dtype.is_floating_point
        stored = _stored_as(config, name)
        if found is None or tuple(found.shape) != shape or is_float == (name == VOCABULARY):
            came = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise CheckpointError(
                f"{folder}: {stored} {came}, expected {list(shape)} by {CONFIG}; fetch it again, or train it again"
            )
        if not torch.isfinite(found).all():
            raise CheckpointError(f"{folder}: {stored} holds NaN or infinities; fetch it again, or train it again")
    listed = tensors.get(VOCABULARY, torch.zeros(1)).long()
    if int(listed[0]) < 0 or bool((listed.diff() <= 0).any()):
        raise CheckpointError(
            f"{folder}: {VOCABULARY} is no list of tokens in order; fetch it again, or train it again"
        )
    return Trained(config, tensors, accepted_of(raw), raw.get("training"), packed)


def _stored_as(config: TrainedConfig, name: str) -> str:
    """What the files call a tensor."""
    if isinstance(config, PublishedMixture):
        return stored_name(name)
    return stored_names(config).get(name, name) if isinstance(config, PublishedConfig) else name


def _loaded(file: Path) -> dict[str, torch.Tensor]:
    try:
        found: dict[str, torch.Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors ({error}); fetch it again, or train the drafter again"
        ) from None
    return found


def accepted_of(raw: Mapping[str, Any]) -> tuple[float, ...]:
    """The shares of accepted tokens that a config.json holds; none if it holds something else."""
    shares = raw.get("accepted")
    good = isinstance(shares, list) and all(isinstance(each, float | int) and 0 <= each <= 1 for each in shares)
    return tuple(shares) if good and shares else ()


def expected_shapes(config: TrainedConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a drafter's tensors. Counted, because PyTorch would take a second to say them."""
    if isinstance(config, MixtureConfig):
        return _of_mixture(config)
    if isinstance(config, PublishedConfig):
        return config.shapes()
    assert isinstance(config, StackConfig)
    width, seen = config.hidden_size, len(config.sees)
    found = _layers_of([config.intermediate_size] * config.depth, config)
    if seen:
        found["combination.weight"] = (width, 2 * width)
    if config.method == EAGLE3:
        found["reduction.weight"] = (width, seen * width)
        found |= dict.fromkeys(("embedded_norm.weight", "seen_norm.weight"), (width,))
    return found


def _of_mixture(c: MixtureConfig) -> dict[str, tuple[int, ...]]:
    seen, width = c.observed // c.observer_heads * c.observer_kv_heads, c.hidden_size
    found = _layers_of([c.intermediate_of(at) for at in range(c.own_layers)], c)
    if c.choices:
        found[VOCABULARY] = (c.choices,)
    if isinstance(c, BlockConfig):
        found["blanks"] = (c.block - 1, width)
        found["correction.norm.weight"] = (width,)
        found |= dict.fromkeys(("correction.of_state.weight", "correction.of_token.weight"), (c.rank, width))
        found["correction.out.weight"] = (width, c.rank)
    found |= _layer_shapes("observer.layer", c.observed, c.observed, seen, c.observer_intermediate_size)
    return {
        **found,
        "observer.projection.weight": (c.hidden_size, c.observed),
        "observer.projection.bias": (c.hidden_size,),
    }


def _layers_of(inner: Sequence[int], c: MixtureConfig | StackConfig) -> dict[str, tuple[int, ...]]:
    """inner: the width of each layer's feed-forward layer."""
    found: dict[str, tuple[int, ...]] = {}
    for at, width in enumerate(inner):
        queries, keys = c.num_heads * c.head_dim, c.kv_heads * c.head_dim
        found |= _layer_shapes(f"layers.{at}", c.hidden_size, queries, keys, width)
    return found


def _layer_shapes(name: str, width: int, queries: int, keys: int, inner: int) -> dict[str, tuple[int, ...]]:
    matrices = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (width,))
    return {f"{name}.{part}.weight": shape for part, shape in {**matrices, **norms}.items()}


def write_trained(folder: Path, config: TrainedConfig, tensors: Mapping[str, torch.Tensor], **about: Any) -> None:
    """Write a drafter, in bf16, to a temporary folder beside `folder`, which it then replaces. about: what else
    config.json is to hold. Raises InputError if `folder` is there and holds something else."""
    if folder.exists() and not is_ours(folder):
        raise InputError(f"{folder} is there, and holds no trained drafter of ours; name another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        save_tensors({name: _stored(tensor.detach()) for name, tensor in tensors.items()}, new / WEIGHTS)
        (new / CONFIG).write_text(json.dumps({**config.to_json(), **about}, indent=1) + "\n", encoding="utf-8")
        put_in_place(new, folder)


def save_tensors(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write tensors to a new file with the permissions that new files have: safetensors has its owner alone read it."""
    file.touch()
    usual = file.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    file.chmod(stat.S_IMODE(usual))


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16 if tensor.is_floating_point() else torch.int32)


def put_in_place(new: Path, folder: Path) -> None:
    """Make a folder that was written whole, and lies in a scratch folder beside `folder`, take its place. What the old
    one has beside the files of the new one, the user has put there: it is copied."""
    if not folder.exists():
        os.replace(new, folder)
        return
    for other in folder.iterdir():
        if not (new / other.name).exists():
            (shutil.copytree if other.is_dir() else shutil.copy2)(other, new / other.name)
    old = folder.with_name(f".{folder.name}-old-{new.parent.name}")
    os.replace(folder, old)
    try:
        os.replace(new, folder)
    except BaseException:
        os.replace(old, folder)
        raise
    shutil.rmtree(old)


def parameters_of(config: TrainedConfig) -> int:
    """How many parameters a drafter has."""
    return sum(math.prod(shape) for shape in expected_shapes(config).values())

"""What a client needs to draft with a trained drafter, in one folder. The model itself stays on the host.

    config.json, model.safetensors          the drafter, without the part that runs beside the model
    target/config.json, model.safetensors   of the model: embedding, final norm, output layer, and its last layers if
                                            the drafter ends with them

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 4.2 (client and server).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from foretoken.common.source import EMBEDDED, EMBEDDED_DRAFTERS, TRAINED_FOR
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.loading import some_tensors
from foretoken.decoder.shapes import EMBEDDING, HEAD, expected_shapes
from foretoken.decoder.weights import Weights, assemble
from foretoken.errors import CheckpointError, InputError
from foretoken.trained.config import MixtureConfig, TrainedConfig
from foretoken.trained.files import (
    CONFIG,
    OBSERVING,
    PACKED,
    WEIGHTS,
    is_ours,
    is_trained,
    put_in_place,
    read_trained,
    save_tensors,
    write_trained,
)

_TARGET = "target"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def pack(model: Path, drafter: Path, out: Path) -> int:
    """Write what a client needs of a model and of a drafter that was trained for it to `out`, which appears whole or
    not at all. Returns its bytes.

    Raises CheckpointError for a drafter of another model, and InputError if `out` is there and was not packed, or for a
    model whose own weights are in a low-bit format.
    """
    _expect_ours(drafter)
    config, trained = read_config(model), read_trained(drafter)
    if out.exists() and not is_packed(out):
        raise InputError(f"{out} is there, and was not packed for clients; name another folder, or remove it")
    if config.low_bit is not None:
        raise InputError(
            f"{model} is in {config.low_bit.label} itself, which is not packed yet; name the model in bf16"
        )
    trained.config.expect_suits(config, str(drafter))
    trained.config.expect_made_for(fingerprint(model, config), str(drafter))
    own = {name: tensor for name, tensor in trained.tensors.items() if not name.startswith(OBSERVING)}
    about = {PACKED: trained.digest, "accepted": list(trained.accepted), "training": trained.training}
    shared = some_tensors(model, config, list(_shared(trained.config, config)))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        new = Path(scratch) / "new"
        write_trained(new, trained.config, own, **about)
        (new / _TARGET).mkdir()
        save_tensors(shared, new / _TARGET / WEIGHTS)
        shutil.copyfile(model / CONFIG, new / _TARGET / CONFIG)
        put_in_place(new, out)
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def is_packed(folder: Path) -> bool:
    """Whether a folder was packed."""
    return is_trained(folder) and (folder / _TARGET / CONFIG).is_file()


def shared_with(drafter: Path) -> tuple[DecoderConfig, Weights]:
    """What a drafter shares with its model: the model's sizes, and its weights but for most layers. In place of those
    that the drafter does not end with, there is another layer. drafter: a packed folder, or one of an embedded model.

    Raises CheckpointError for another folder, or a damaged one.
    """
    embedded = {EMBEDDED_DRAFTERS[name]: EMBEDDED[model] for name, model in TRAINED_FOR.items()}
    place = embedded.get(drafter, drafter / _TARGET)
    _expect_ours(drafter)
    if not (place / CONFIG).is_file():
        raise CheckpointError(
            f"{drafter} holds nothing of the model that it was trained for, and a client needs its embedding; write "
            f"what a client needs where the model is: foretoken pack MODEL --drafter {drafter.name} --out FOLDER"
        )
    config = read_config(place)
    its = read_trained(drafter).config
    its.expect_suits(config, str(drafter))
    ends = _ends(its)
    found = some_tensors(place, config, list(_shared(its, config)))
    tensors = {_renamed(name, ends): tensor for name, tensor in found.items()}
    made = assemble(tensors, replace(config, num_layers=len(ends)))
    at = {layer: made.layers[number] for number, layer in enumerate(ends)}
    layers = tuple(at.get(layer, made.layers[0]) for layer in range(config.num_layers)) if at else ()
    return config, replace(made, layers=layers)


def _expect_ours(drafter: Path) -> None:
    if is_trained(drafter) and not is_ours(drafter):
        raise CheckpointError(
            f"{drafter} is a drafter that others have trained, which cannot draft on a client yet; use it where the "
            "model is, or lookup here"
        )


def _ends(its: TrainedConfig) -> tuple[int, ...]:
    return its.ends if isinstance(its, MixtureConfig) else ()


def _shared(its: TrainedConfig, config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a drafter shares with its model."""
    ends = {f"model.layers.{layer}." for layer in _ends(its)}
    always = {f"{EMBEDDING}.weight", f"{HEAD}.weight", "model.norm.weight"}

    def is_shared(name: str) -> bool:
        found = _LAYER.match(name)
        return name in always if found is None else found[0] in ends

    return {name: shape for name, shape in expected_shapes(config).items() if is_shared(name)}


def _renamed(name: str, ends: tuple[int, ...]) -> str:
    """The name that a tensor would have if the model had its last layers alone."""
    found = _LAYER.match(name)
    return name if found is None else _LAYER.sub(f"model.layers.{ends.index(int(found[1]))}.", name)

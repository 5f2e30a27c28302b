"""A transformers model in memory as our engine sees it: its configuration, and its weights by address."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache

from foretoken.api.automatic import guess
from foretoken.api.build import around
from foretoken.api.checkpoint import Checkpoint, decoder_of
from foretoken.api.model import Model
from foretoken.common.progress import size
from foretoken.copies.fingerprint import fingerprint, fingerprint_of
from foretoken.decoder.config import DecoderConfig, parse_config, read_config
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.homes.huge_pages import copied
from foretoken.decoder.loading import DTYPES
from foretoken.decoder.shapes import EMBEDDING, HEAD, expected_shapes
from foretoken.decoder.weights import assemble, repacked
from foretoken.errors import ForetokenError, ModelError, SettingError, UnsupportedModelError
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_CHANGED = "was changed after the model was attached; call foretoken.attach again, so that drafts are made of it anew"
_OF_FILES = ("memory", "stream_layers", "disk_bandwidth", "verify_weights", "revision", "device", "dtype", "rule")


class Guard:
    """Notices when the weights of a module are no longer those that were adopted.

    PyTorch counts what changes a tensor in place, and a tensor that was replaced lies elsewhere. What goes around both
    (`.data`) is found by the fingerprint, if it changes any of the numbers that the fingerprint looks at.
    """

    def __init__(self, module: torch.nn.Module, config: DecoderConfig) -> None:
        self._config = config
        self._tensors = tensors_of(module, config)  # held, so that nothing else comes to lie at their addresses
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        self._print = fingerprint_of(self._tensors, config)

    def expect_unchanged(self, module: torch.nn.Module) -> None:
        """Raise ModelError if a weight has changed."""
        try:
            now = tensors_of(module, self._config)
        except ModelError as error:
            raise ModelError(f"the model {_CHANGED} ({error})") from None
        for name, tensor in self._tensors.items():
            its = now[name]
            if (its.data_ptr(), its._version, its.dtype) != (tensor.data_ptr(), self._versions[name], tensor.dtype):
                raise ModelError(f"{name} {_CHANGED}")
        if fingerprint_of(now, self._config) != self._print:
            raise ModelError(f"a weight {_CHANGED}")


def adopt(module: torch.nn.Module, folder: Path, settings: LoadSettings) -> tuple[Model, Guard]:
    """A model of a transformers model's weights, where they lie.

    folder: an empty one, which stands for the model's if that is not known. Raises UnsupportedModelError for a model
    that our engine cannot run, and SettingError for settings that are about files.
    """
    usual = LoadSettings()
    for name in _OF_FILES:
        if getattr(settings, name) != getattr(usual, name):
            raise SettingError(f"{name} cannot be chosen for a model that is loaded already; leave it out")
    config = config_of(module)
    guard = Guard(module, config)
    tensors = tensors_of(module, config)
    dtype = tensors[f"{EMBEDDING}.weight"].dtype
    config = replace(config, dtype=str(dtype).removeprefix("torch."))
    if settings.weights == "copied":
        needed = sum(tensor.nbytes for tensor in tensors.values())
        weights = repacked(assemble(copied(tensors, dtype), config), threads=settings.threads)
        log.info("the weights were copied once more, %s, as weights='copied' asks", size(needed))
    else:
        weights = assemble({name: tensor.to(dtype) for name, tensor in tensors.items()}, config)
    home = _folder_of(module, config, tensors)
    name, tokenizer = str(getattr(module, "name_or_path", "") or type(module).__name__), None
    if home is not None:
        folder = home
        with suppress(ForetokenError):  # a tokenizer is needed by few drafts, and transformers has its own
            tokenizer = Tokenizer.load(folder)
    elif settings.draft == AUTO:
        settings = replace(settings, draft=guess(folder, config, settings, loaded=True))
        log.info("draft auto: %s (a guess)", settings.draft)
    checkpoint = Checkpoint(decoder_of(config, weights, settings), tokenizer, name, folder)
    return around(checkpoint, settings), guard


def config_of(module: torch.nn.Module) -> DecoderConfig:
    """The configuration of a transformers model. Raises UnsupportedModelError, with the reason, for one that our engine
    cannot run."""
    kind = type(module)
    its: Any = getattr(module, "config", None)
    if not hasattr(its, "to_dict") or not hasattr(kind, "generate"):
        raise UnsupportedModelError(
            f"here comes a {kind.__name__}, expected a causal language model of transformers, such as "
            "AutoModelForCausalLM.from_pretrained returns"
        )
    family = FAMILIES.get(str(its.model_type))
    theirs = ", ".join(sorted(family.architecture for family in FAMILIES.values()))
    if family is None or kind.__name__ != family.architecture or not kind.__module__.startswith("transformers."):
        raise UnsupportedModelError(f"{kind.__module__}.{kind.__name__} cannot be attached; supported: {theirs}")
    if getattr(module, "hf_quantizer", None) is not None or getattr(its, "quantization_config", None) is not None:
        raise UnsupportedModelError("the model is quantised; attach the bf16, fp16 or fp32 original")
    for name, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            raise UnsupportedModelError(
                f"{name or 'the model'} has a hook on its forward pass, or another one in its place, which would not "
                "run here; remove it, or load the model without device_map"
            )
    config = parse_config(its.to_dict())
    if config.tied and _names(module).get(f"{HEAD}.weight") is not _names(module).get(f"{EMBEDDING}.weight"):
        config = replace(config, tied=False)  # the output layer was replaced
    return config


def tensors_of(module: torch.nn.Module, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The weights by name. They share their memory with the module's. Raises UnsupportedModelError if one lies where,
    or in a type in which, our engine cannot read it."""
    found, shapes = _names(module), expected_shapes(config)
    others = [name for name in found if name not in shapes and not (config.tied and name == f"{HEAD}.weight")]
    if others:
        raise UnsupportedModelError(
            f"the model has weights that its architecture has not, such as {others[0]}; merge adapters first "
            "(merge_and_unload)"
        )
    dtype = found[f"{EMBEDDING}.weight"].dtype if f"{EMBEDDING}.weight" in found else None
    tensors = {}
    for name, shape in shapes.items():
        if name not in found:
            raise UnsupportedModelError(f"the model lacks {name}, which its architecture has")
        tensor = found[name].detach()
        if tensor.device.type != "cpu":
            raise UnsupportedModelError(f"{name} is on {tensor.device}; only models on the CPU can be attached for now")
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise UnsupportedModelError(f"{name} is {list(tensor.shape)}, expected {list(shape)}, row by row")
        if tensor.dtype not in DTYPES.values() or (tensor.dtype != dtype and tensor.ndim > 1):
            raise UnsupportedModelError(
                f"{name} is {tensor.dtype}; expected one of {', '.join(DTYPES)}, the same for all matrices"
            )
        tensors[name] = tensor
    return tensors


def _names(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters(remove_duplicate=False))


def _folder_of(module: torch.nn.Module, config: DecoderConfig, tensors: Mapping[str, torch.Tensor]) -> Path | None:
    """The folder from which a model was loaded, if it is on this machine, and these are its weights."""
    name = str(getattr(module, "name_or_path", "") or "")
    with suppress(ForetokenError, OSError, ValueError):  # a name of any kind may stand there
        folder = Path(name)
        if not (folder / "config.json").is_file():
            found = try_to_load_from_cache(name, "config.json", revision=getattr(module.config, "_commit_hash", None))
            if not isinstance(found, str):
                return None
            folder = Path(found).parent
        if fingerprint(folder, read_config(folder)) == fingerprint_of(tensors, config):
            return folder
    return None

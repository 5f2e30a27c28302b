"""A transformers model in memory as our engine sees it: its configuration, and its weights by address."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache

from foretoken.api.automatic import guess, with_draft_chosen
from foretoken.api.build import around
from foretoken.api.checkpoint import Checkpoint, decoder_of
from foretoken.api.levels import memory_of_copies
from foretoken.api.model import Model
from foretoken.api.offloading import bounded
from foretoken.common.progress import size
from foretoken.copies.fingerprint import fingerprint, fingerprint_of
from foretoken.decoder.config import DecoderConfig, parse_config, read_config
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.homes.huge_pages import copied
from foretoken.decoder.loading import DTYPES, home_here
from foretoken.decoder.shapes import EMBEDDING, HEAD, expected_shapes
from foretoken.decoder.weights import Weights, assemble, repacked
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import ForetokenError, ModelError, SettingError, UnsupportedModelError
from foretoken.kernels import forked
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_CHANGED = "was changed after the draft was attached; call foretoken.attach(model) again"
# settings of `load` that say which files are read, and how, or that give up what `generate` promises
_NOT_HERE = (
    "memory",
    "stream_layers",
    "disk_bandwidth",
    "verify_weights",
    "revision",
    "device",
    "dtype",
    "rule",
    "cache",
)


class Guard:
    """Notices when a module is no longer the one that was adopted.

    PyTorch counts what changes a tensor in place, and a tensor that was replaced lies elsewhere. What goes around both
    (`.data`) is found by the fingerprint, if it changes any of the numbers that the fingerprint looks at.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.config = config_of(module)
        self.tensors = tensors_of(module, self.config)
        self._marks = {name: _marks(tensor) for name, tensor in self.tensors.items()}
        self.fingerprint = fingerprint_of(self.tensors, self.config)

    def expect_unchanged(self, module: torch.nn.Module) -> None:
        """Raise ModelError if a weight has changed, or the model."""
        try:
            config = config_of(module)
            now = tensors_of(module, config)
        except ModelError as error:
            raise ModelError(f"the model {_CHANGED} ({error})") from None
        if config != self.config:
            raise ModelError(f"the model's configuration {_CHANGED}")
        changed = next((name for name, tensor in now.items() if _marks(tensor) != self._marks[name]), None)
        if changed is not None:
            raise ModelError(f"{changed} {_CHANGED}")
        if fingerprint_of(now, config) != self.fingerprint:
            raise ModelError(f"a weight {_CHANGED}")


def adopt(module: torch.nn.Module, folder: Path, settings: LoadSettings) -> tuple[Model, Guard]:
    """A model of a transformers model's weights.

    folder: an empty one, which stands for the model's if that is not known. Raises UnsupportedModelError for a model
    that our engine cannot run, and SettingError for settings that are not for a model in memory.
    """
    usual = LoadSettings()
    for name in _NOT_HERE:
        if getattr(settings, name) != getattr(usual, name):
            raise SettingError(f"{name} cannot be chosen for a model that is loaded already; leave it out")
    forked.settle()
    guard = Guard(module)
    dtype = guard.tensors[f"{EMBEDDING}.weight"].dtype
    config = bounded(replace(guard.config, dtype=str(dtype).removeprefix("torch.")), settings)
    name, tokenizer = str(getattr(module, "name_or_path", "") or type(module).__name__), None
    home, guessed = _folder_of(module), settings.draft == AUTO
    if home is not None:
        with suppress(ForetokenError):  # few drafts need a tokenizer, and transformers has its own
            tokenizer = Tokenizer.load(home)
        if _has(home, guard.fingerprint):
            folder = home
            settings = with_draft_chosen(settings, folder, name, loaded=True)
    if settings.draft == AUTO:
        settings = replace(settings, draft=guess(folder, config, settings, loaded=True))
        log.info("draft auto: %s (a guess)", settings.draft)
    weights = _placed(guard.tensors, config, settings, folder)
    checkpoint = Checkpoint(decoder_of(config, weights, settings), tokenizer, name, folder, _ends(module, config))
    return around(checkpoint, settings, guessed=guessed), guard


def _placed(
    tensors: Mapping[str, torch.Tensor], config: DecoderConfig, settings: LoadSettings, folder: Path
) -> Weights:
    """The weights where they lie, or a copy in the layout that this machine reads fastest: as `load` has it."""
    dtype, needed = tensors[f"{EMBEDDING}.weight"].dtype, sum(tensor.nbytes for tensor in tensors.values())
    copy, why = settings.weights == "copied", "weights='copied' asks for it"
    if settings.weights == "auto":
        besides = memory_of_copies(find_levels(name_levels(settings), folder), config)
        chosen = home_here(config, dtype, "cpu", needed, besides)
        copy, why = chosen.name == "copied", f"{chosen.why}; weights='mapped' uses them where they lie"
    if not copy:
        return assemble(dict(tensors), config)
    began = perf_counter()
    made = repacked(assemble(copied(dict(tensors), dtype), config), threads=settings.threads)
    log.info("the weights were copied once more, %s, in %.1f s: %s", size(needed), perf_counter() - began, why)
    return made


def config_of(module: torch.nn.Module) -> DecoderConfig:
    """The configuration of a transformers model. Raises UnsupportedModelError, with the reason, for one that our engine
    cannot run."""
    kind = type(module)
    its: Any = getattr(module, "config", None)
    if not hasattr(its, "to_dict") or not hasattr(kind, "generate"):
        raise UnsupportedModelError(
            f"expected a causal language model of transformers, such as AutoModelForCausalLM.from_pretrained returns, "
            f"got a {kind.__name__} (a compiled model: attach the model before torch.compile)"
        )
    family = FAMILIES.get(str(its.model_type))
    theirs = ", ".join(sorted(family.architecture for family in FAMILIES.values()))
    if family is None or kind.__name__ != family.architecture:
        raise UnsupportedModelError(f"{kind.__module__}.{kind.__name__} cannot be attached; supported: {theirs}")
    if getattr(module, "hf_quantizer", None) is not None or getattr(its, "quantization_config", None) is not None:
        raise UnsupportedModelError("the model is quantised; attach the bf16, fp16 or fp32 original")
    for name, part in module.named_modules():
        if not type(part).__module__.startswith(("transformers.", "torch.")):
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(part).__name__}, which is not transformers' own and would not run "
                "here; merge adapters, or take it out"
            )
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values(), vars(part).get("forward")]
        strange = next((hook for hook in hooks if hook is not None and not _is_theirs(hook)), None)
        if strange is not None:
            raise UnsupportedModelError(
                f"{name or 'the model'} has a forward hook, or a forward that was replaced ({strange!r:.80}), which "
                "would not run here; remove it, or load the model without device_map"
            )
    config = parse_config(its.to_dict())
    parameters = _parameters(module)
    if config.tied and parameters.get(f"{HEAD}.weight") is not parameters.get(f"{EMBEDDING}.weight"):
        config = replace(config, tied=False)  # the output layer was replaced
    return config


def tensors_of(module: torch.nn.Module, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The weights by name. They share their memory with the module's. Raises UnsupportedModelError if one lies where,
    or in a type in which, our engine cannot read it."""
    found, shapes = _parameters(module), expected_shapes(config)
    others = [name for name in found if name not in shapes and not (config.tied and name == f"{HEAD}.weight")]
    if others:
        raise UnsupportedModelError(
            f"the model has weights that its architecture has not, such as {others[0]}; merge adapters first "
            "(merge_and_unload)"
        )
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if name not in found:
            raise UnsupportedModelError(f"the model lacks {name}, which its architecture has")
        tensor = tensors[name] = found[name].detach()
        first = next(iter(tensors.values()))
        if tensor.device.type != "cpu":
            raise UnsupportedModelError(f"{name} is on {tensor.device}; only models on the CPU can be attached for now")
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise UnsupportedModelError(f"{name} is {list(tensor.shape)}, expected {list(shape)}, row by row")
        if tensor.dtype not in DTYPES.values() or tensor.dtype != first.dtype:
            raise UnsupportedModelError(
                f"{name} is {tensor.dtype}; expected one of {', '.join(DTYPES)}, the same for all weights"
            )
    return tensors


def _is_theirs(hook: Any) -> bool:
    """Whether a hook is of transformers itself, which notes outputs so, and changes none."""
    while isinstance(hook, partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    home = getattr(hook, "__globals__", {}).get(
        "__name__", type(hook).__module__
    )  # a name that can be copied says less
    return str(home).startswith(("transformers.", "torch."))


def _parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters(remove_duplicate=False))


def _marks(tensor: torch.Tensor) -> tuple[int, int | None]:
    """Where a tensor lies, and how often it was changed there, if PyTorch counts that."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def _folder_of(module: torch.nn.Module) -> Path | None:
    """The folder from which a model was loaded, if it is on this machine."""
    name = str(getattr(module, "name_or_path", "") or "")
    if not name:
        return None
    with suppress(OSError, ValueError):  # a name of any kind may stand there
        if (Path(name) / "config.json").is_file():
            return Path(name)
        found = try_to_load_from_cache(name, "config.json", revision=getattr(module.config, "_commit_hash", None))
        return Path(found).parent if isinstance(found, str) else None
    return None


def _ends(module: torch.nn.Module, config: DecoderConfig) -> frozenset[int]:
    """The tokens that end a text, by the model's own configuration of generation."""
    found: Any = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    several = found if isinstance(found, list | tuple) else [found]
    return frozenset(token for token in several if isinstance(token, int) and 0 <= token < config.valid_vocab_size)


def _has(folder: Path, its_own: str) -> bool:
    """Whether the weights in a folder's files have a fingerprint."""
    with suppress(ForetokenError):
        return fingerprint(folder, read_config(folder)) == its_own
    return False

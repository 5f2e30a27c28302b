"""A causal language model for programs that are written for transformers, with a draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.decoder.rows import chain
from foretoken.errors import PromptError, SettingError
from foretoken.integrations.driving import Driver, Generate
from foretoken.settings.load import LoadSettings

# arguments of transformers' from_pretrained that mean nothing here
_IDLE = ("trust_remote_code", "low_cpu_mem_usage", "attn_implementation", "use_safetensors", "local_files_only")
_CPU: tuple[object, ...] = (None, "cpu", "auto", torch.device("cpu"))


class ForCausalLM:
    """A model that stands where a program expects one of `AutoModelForCausalLM`, as far as it generates text and asks
    for logits. `model` is our model, `config` and `generation_config` are transformers'."""

    hf_device_map: Mapping[str, str] = {"": "cpu"}  # so that a pipeline leaves it there

    def __init__(self, model: Model) -> None:
        self.model = model
        self.config = AutoConfig.from_pretrained(model.folder)
        with torch.device("meta"):  # no weights: only what `generate` reads of a model
            self._theirs = AutoModelForCausalLM.from_config(self.config)
        if (model.folder / "generation_config.json").is_file():
            self._theirs.generation_config = GenerationConfig.from_pretrained(model.folder)
        self._driver = Driver(model)

    def __repr__(self) -> str:
        return f"<foretoken.ForCausalLM {self.model.name}, draft {self.model.draft!r}>"

    @classmethod
    def from_pretrained(cls, model: str | Path, *, draft: str = LoadSettings.draft, **settings: Any) -> ForCausalLM:
        """Load a model with a draft. model: as in `foretoken.load`. settings: those of `foretoken.load`; `dtype` and
        `torch_dtype` may be PyTorch's types, and `device_map` may say what transformers would put on the CPU."""
        settings = {name: value for name, value in settings.items() if name not in _IDLE}
        for name in ("device_map", "device"):
            device = settings.pop(name, None)
            only = [*device.values()] if isinstance(device, dict) else [device]
            if any(each not in _CPU for each in only):
                raise SettingError(f"{name} is {device!r:.60}, expected the CPU; leave it out, or use foretoken.load")
        for name in ("remote", "rule"):
            if name in settings:
                raise SettingError(f"{name} cannot be chosen for a model in transformers' place; use foretoken.load")
        dtype = settings.pop("torch_dtype", settings.pop("dtype", "auto"))
        settings["dtype"] = str(dtype or "auto").removeprefix("torch.")
        return cls(load(model, draft=draft, **settings))

    @property
    def generation_config(self) -> Any:
        """What `generate` does where its arguments do not say."""
        return self._theirs.generation_config

    @generation_config.setter
    def generation_config(self, config: Any) -> None:
        self._theirs.generation_config = config

    @property
    def device(self) -> torch.device:
        """Where tensors are taken and given."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.model.target.weights.embedding.dtype

    @property
    def name_or_path(self) -> str:
        """The name by which the model was loaded."""
        return self.model.name

    def can_generate(self) -> bool:
        """Always."""
        return True

    def eval(self) -> ForCausalLM:
        """Nothing: it is never trained."""
        return self

    def to(self, *where: Any, **named: Any) -> ForCausalLM:
        """Nothing, if it is to go where it is. Raises SettingError for another device, or another type."""
        for each in (*where, *named.values()):
            if each is None or isinstance(each, bool):
                continue
            wrong = each != self.dtype if isinstance(each, torch.dtype) else torch.device(each).type != "cpu"
            if wrong:
                raise SettingError(f"the model is loaded in {self.dtype} on the CPU, and stays there; leave out {each}")
        return self

    @property
    def generate(self) -> Generate:
        """As transformers' `generate`. `generate.completions` has the statistics of the last call."""
        return Generate(self._driver, self._theirs, type(self._theirs))

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **others: Any) -> Any:
        """The logits of every position: `.logits`, float32 [B, T, V]; zeros where the mask hides a position.

        The hidden positions of a row may stand before its text or behind it. Raises SettingError for other arguments,
        and PromptError for texts that cannot be read.
        """
        usual: Mapping[str, tuple[object, ...]] = {"return_dict": (None, True), "use_cache": (None, True, False)}
        for name, value in others.items():
            if value is not None and value not in usual.get(name, ()):
                raise SettingError(f"{name} is not there with foretoken, only input_ids and attention_mask")
        if input_ids.dim() != 2:
            raise PromptError(f"input_ids has shape {list(input_ids.shape)}, expected a batch of texts, [B, T]")
        shown = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        target = self.model.target
        logits = torch.zeros(*input_ids.shape, target.config.valid_vocab_size)
        for row, (ids, mask) in enumerate(zip(input_ids.tolist(), shown.bool(), strict=True)):
            places = mask.nonzero().flatten().tolist()
            if not places or places != [*range(places[0], places[-1] + 1)]:
                raise PromptError("attention_mask hides all tokens of a text, or some in its middle")
            text = [ids[place] for place in places]
            self._expect_readable(text)
            rows = chain(target.new_cache(), text)
            logits[row, places[0] : places[-1] + 1] = target.head(target.forward(rows), rows)
        return SimpleNamespace(logits=logits)

    def _expect_readable(self, text: list[int]) -> None:
        size, most = self.model.target.config.valid_vocab_size, self.model.context_length
        if len(text) > most:
            raise PromptError(f"a text has {len(text)} tokens, and the model reads {most}; shorten it")
        wrong = next((token for token in text if not 0 <= token < size), None)
        if wrong is not None:
            raise PromptError(f"a text holds token {wrong}; the model has tokens 0 to {size - 1}")

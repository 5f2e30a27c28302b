"""Tiny models of transformers, each made anew, and what they generate by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import foretoken
from tests.decoder.models import build_reference, family_case

PAD, END = 0, 2
LOOKUP = "lookup:min_match=1"


def model_of(name: str = "qwen2", seed: int = 0, **config: Any) -> Any:
    """A model of a family, by its row in tests/decoder/models.py. config: fields of its generation_config. Greedy text
    of most of these models is one token again and again; with the usual one and the usual prompts it is not."""
    made = build_reference(family_case(name), seed)
    made.generation_config.pad_token_id = PAD
    for field, value in config.items():
        setattr(made.generation_config, field, value)
    return made


def prompts(*lengths: int, seed: int = 5) -> dict[str, torch.Tensor]:
    """A batch of prompts, padded on the left: input_ids and attention_mask."""
    generator = torch.Generator().manual_seed(seed)
    most = max(lengths)
    ids, mask = torch.full((len(lengths), most), PAD), torch.zeros(len(lengths), most, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, most - length :] = torch.randint(3, 101, (length,), generator=generator)
        mask[row, most - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def attached(name: str = "qwen2", draft: str = LOOKUP, **config: Any) -> Any:
    """Such a model with a draft."""
    return foretoken.attach(model_of(name, **config), draft=draft, pace="fixed")


def both(run: Callable[[Any], Any], **config: Any) -> tuple[Any, Any]:
    """What comes with a draft, and what comes without."""
    return run(attached(**config)), run(model_of(**config))

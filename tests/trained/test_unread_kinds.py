"""A drafter of a kind that is not read is refused as that, not as a damaged checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import UnsupportedModelError
from tests.trained.conftest import TARGET

ONE_LAYER = {"model_type": "llama", "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
FILES: dict[str, tuple[dict[str, Any], str, str]] = {
    "EAGLE": (ONE_LAYER, "model.safetensors", "EAGLE or EAGLE-2"),
    "EAGLE as a pickle": (ONE_LAYER, "pytorch_model.bin", "EAGLE or EAGLE-2"),
    "Medusa": ({"medusa_num_heads": 3}, "medusa_lm_head.pt", "Medusa"),
    "MLP Speculator": ({"model_type": "mlp_speculator"}, "model.safetensors", "MLP Speculator"),
}


@pytest.mark.parametrize("case", FILES)
def test_it_is_refused_by_its_kind(case: str, tmp_path: Path) -> None:
    raw, file, kind = FILES[case]
    sizes = json.loads((EMBEDDED[TARGET] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **raw} if raw is ONE_LAYER else raw))
    tensors = {"embed_tokens.weight": torch.zeros(2, 2), "fc.weight": torch.zeros(2, 4)}
    save = save_file if file.endswith(".safetensors") else torch.save
    save(tensors, tmp_path / file)
    with pytest.raises(UnsupportedModelError, match=f"is a drafter of the kind {kind}, which"):
        foretoken.load(TARGET, draft=tmp_path, threads=1)  # a path is as good as its text


def test_a_small_model_is_none(tmp_path: Path) -> None:
    raw = json.loads((EMBEDDED[TARGET] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 1}))
    save_file({"model.layers.0.mlp.c_fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(foretoken.CheckpointError, match="lacks"):
        foretoken.load(TARGET, draft=str(tmp_path), threads=1)

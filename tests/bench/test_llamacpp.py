"""What we wrote to run llama.cpp: a checkpoint as GGUF, and decoding with drafts; with stand-ins for its packages."""

from __future__ import annotations

import importlib
import io
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from foretoken.bench.side_by_side.peers import PROGRAMS
from tests.tiny import BASE, random_tensors, tiny_config

WRITTEN: dict[str, Any] = {}  # what the last writer was given


class Writer:
    """gguf.GGUFWriter's stand-in: keeps what it is given."""

    def __init__(self, out: str, architecture: str) -> None:
        WRITTEN.clear()
        self.tensors = WRITTEN.setdefault("tensors", {})

    def add_tensor(self, name: str, data: np.ndarray, raw_dtype: object = None) -> None:
        assert name not in self.tensors
        self.tensors[name] = data if raw_dtype is None else data.view(np.uint16)

    def __getattr__(self, name: str) -> Any:
        return lambda *values: WRITTEN.update({name: values})


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the program, imported with stand-ins."""
    gguf, llama_cpp, lookup = ModuleType("gguf"), ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    vars(gguf).update(GGUFWriter=Writer, GGMLQuantizationType=SimpleNamespace(BF16=30, F16=1, F32=0))
    vars(lookup).update(LlamaPromptLookupDecoding=object)
    monkeypatch.syspath_prepend(str(PROGRAMS))
    names = ("answering", "llama_gguf", "llamacpp")
    for module in (gguf, llama_cpp, lookup):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_checkpoint_is_written_whole(programs: SimpleNamespace, tmp_path: Path, tied: bool, shards: int) -> None:
    config = {**BASE, "tie_word_embeddings": tied, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "attention_bias": True}
    tensors = {name: t.bfloat16() for name, t in random_tensors(tiny_config(**config), 0).items()}
    names = list(tensors)
    files = {f"model-{i}.safetensors" if shards > 1 else "model.safetensors": names[i::shards] for i in range(shards)}
    for file, its in files.items():
        save_file({name: tensors[name] for name in its}, tmp_path / file)
    if shards > 1:
        index = {"weight_map": {name: file for file, its in files.items() for name in its}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(config))
    programs.llama_gguf.convert(tmp_path, tmp_path / "out.gguf")
    written = WRITTEN["tensors"]
    assert len(written) == len([name for name in names if not (tied and name == "lm_head.weight")])
    assert ("output.weight" in written) is not tied
    assert WRITTEN["add_rope_freq_base"] == (1e4,)
    assert WRITTEN["add_head_count_kv"] == (2,)
    embedding = tensors["model.embed_tokens.weight"].view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(written["token_embd.weight"].reshape(embedding.shape), embedding)
    norm = tensors["model.layers.1.input_layernorm.weight"].float().numpy()
    assert np.array_equal(written["blk.1.attn_norm.weight"], norm)
    # a head's halves, one of which turns the other, come to lie beside each other: 0, 4, 1, 5, ...
    heads, size = 4, 8
    order = [head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    query = tensors["model.layers.0.self_attn.q_proj.weight"][order].view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(written["blk.0.attn_q.weight"].reshape(query.shape), query)
    bias = tensors["model.layers.0.self_attn.q_proj.bias"][order].float().numpy()
    assert np.array_equal(written["blk.0.attn_q.bias"], bias)
    value = tensors["model.layers.0.self_attn.v_proj.weight"].view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(written["blk.0.attn_v.weight"].reshape(value.shape), value)


def test_scaled_rope_divides_the_frequencies_as_transformers_does(programs: SimpleNamespace) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    shape = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 131072}
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**shape, rope_parameters=rope), "cpu")
    plain = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    factors = programs.llama_gguf.rope_factors(rope, 500000.0, 64)
    assert torch.allclose(plain / torch.tensor(factors), expected.double(), rtol=1e-5)
    assert len(set(np.round(factors, 3))) > 3  # it is felt
    assert programs.llama_gguf.rope_factors({"rope_type": "default"}, 1e4, 64) is None
    with pytest.raises(SystemExit, match="rope is scaled by 'yarn'"):
        programs.llama_gguf.rope_factors({"rope_type": "yarn"}, 1e4, 64)


class Toy:
    """A model whose next token is a function of all before; it refuses what a real one could not do."""

    def __init__(self, seed: int) -> None:
        self._seed, self.held = seed, list[int]()
        self.passes: list[int] = []

    def keep(self, count: int) -> None:
        del self.held[count:]

    def read(self, tokens: Sequence[int], logits: int) -> None:
        assert 0 < logits <= len(tokens)
        self.held += tokens
        self.passes.append(len(tokens))

    def choices(self, count: int) -> list[int]:
        ends = range(len(self.held) - count + 1, len(self.held) + 1)
        return [self._next(self.held[:end]) for end in ends]

    def _next(self, text: list[int]) -> int:
        dice = random.Random(f"{text[-3:]}")
        right = dice.randrange(7)
        return right if random.Random(f"{self._seed} {text}").random() < 0.7 or not self._seed else (right + 1) % 7


@pytest.mark.parametrize("most", [1, 3, 8])
def test_drafts_change_no_token_and_spare_passes(programs: SimpleNamespace, most: int) -> None:
    target, draft = Toy(0), Toy(1)
    plain = programs.llamacpp.greedy(target)
    drafted = programs.llamacpp.greedy(target, programs.llamacpp.by_model(draft, most), draft)
    guessed = programs.llamacpp.greedy(target, lambda text, limit: [text[-1], 3][:limit])
    spared = 0
    for start in range(20):
        for count in (1, 2, 17):
            prompt = [start % 7, start // 7, 5, 6]
            target.passes.clear()
            expected = plain(prompt, count)
            assert len(expected) == count
            passes = len(target.passes)
            target.passes.clear()
            assert drafted(prompt, count) == expected
            spared += passes - len(target.passes)
            assert max(target.passes[1:], default=0) <= 1 + most
            assert draft.held[: len(prompt)] in (prompt, [])  # read anew for every prompt
            assert guessed(prompt, count) == expected
    assert spared > 0


def test_mapped_weights_are_the_only_ones_that_are_loaded(
    programs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = importlib.import_module("llamacpp_mapped")
    monkeypatch.delitem(sys.modules, "llamacpp_mapped")
    answers, loaded = io.StringIO(), list[Path]()

    def model(file: Path, threads: int) -> Toy:
        loaded.append(file)
        return Toy(threads)

    vars(sys.modules["llama_cpp"]).update(llama_log_callback=lambda quiet: quiet, llama_log_set=lambda *_: None)
    monkeypatch.setattr(mapped, "own_output", lambda: answers)
    monkeypatch.setattr(mapped, "convert", lambda checkpoint, out: out.write_bytes(b"made"))
    monkeypatch.setattr(mapped, "Model", model)
    monkeypatch.setattr(programs.answering, "version", lambda package: "1")
    monkeypatch.setattr(sys, "argv", ["llamacpp_mapped", str(tmp_path), str(tmp_path), "2"])
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"mode": "plain", "tokens": [1, 2], "max_new_tokens": 3}\n'))
    mapped.main()
    about, answer = map(json.loads, answers.getvalue().splitlines())
    assert list(about["modes"]) == ["plain"]
    assert loaded == [tmp_path / "model-bf16.gguf"]
    assert loaded[0].read_bytes() == b"made"
    assert answer["tokens"] == programs.llamacpp.greedy(Toy(2))([1, 2], 3)

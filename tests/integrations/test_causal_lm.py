"""`ForCausalLM` stands where a program expects a model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import foretoken
from foretoken.api.build import load
from foretoken.errors import PromptError, SettingError
from tests.integrations.theirs import model_of, prompts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_of("qwen2", max_new_tokens=12, repetition_penalty=1.2).save_pretrained(tmp_path)
    return tmp_path


def test_it_generates_what_transformers_generates(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ours = foretoken.ForCausalLM.from_pretrained(str(folder), draft="lookup:min_match=1", pace="fixed")
    for asked in ({}, {"max_new_tokens": 30, "eos_token_id": None}, {"num_return_sequences": 1, "max_length": 22}):
        assert torch.equal(ours.generate(**prompts(6, 9), **asked), theirs.generate(**prompts(6, 9), **asked))
    assert len(ours.generate.completions) == 2


def test_it_has_what_programs_ask_a_model_for(folder: Path) -> None:
    idle = {"trust_remote_code": True, "low_cpu_mem_usage": True, "attn_implementation": "sdpa"}
    model = foretoken.ForCausalLM.from_pretrained(folder, torch_dtype=torch.bfloat16, device_map="auto", **idle)
    assert model.config.model_type == "qwen2"
    assert model.generation_config.max_new_tokens == 12
    assert (model.device, model.dtype, model.can_generate()) == (torch.device("cpu"), torch.bfloat16, True)
    assert model.name_or_path == str(folder)
    assert repr(model) == f"<foretoken.ForCausalLM {folder}, draft 'lookup'>"
    assert model.to("cpu").eval().to(dtype=torch.bfloat16) is model
    for where in ("cuda", torch.float32):
        with pytest.raises(SettingError, match="stays there; leave out"):
            model.to(where)
    for name, value in (("device_map", "cuda"), ("device", "cuda"), ("rule", "rejection"), ("remote", "ws://nobody")):
        with pytest.raises(SettingError, match=name):
            foretoken.ForCausalLM.from_pretrained(str(folder), **{name: value})
    where: dict[str, Any] = {"device_map": {"": torch.device("cpu")}, "torch_dtype": None}
    assert foretoken.ForCausalLM.from_pretrained(str(folder), **where).dtype == torch.float32
    assert model.to("cpu", non_blocking=True).to(None) is model
    model.generation_config = transformers.GenerationConfig(max_new_tokens=3, pad_token_id=0)
    assert model.generate(**prompts(6)).shape == (1, 9)


def test_logits_are_those_of_transformers_and_padding_has_none(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ours = foretoken.ForCausalLM.from_pretrained(str(folder), draft="none")
    left = prompts(6, 9)
    right = {name: tensor.flip(1) for name, tensor in left.items()}
    alone = {"input_ids": prompts(7)["input_ids"]}
    for asked in (right, alone):
        with torch.no_grad():
            expected = theirs(**asked).logits
        shown = asked.get("attention_mask", torch.ones_like(asked["input_ids"])).bool()
        found = ours(**asked, use_cache=False).logits
        assert found.dtype == torch.float32
        assert torch.allclose(found[shown], expected[shown], atol=1e-4)
        assert not found[~shown].any()
    with torch.no_grad():  # padding on the left moves positions in transformers, unless it is told; here it does not
        places = (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        expected = theirs(**left, position_ids=places).logits
    shown = left["attention_mask"].bool()
    assert torch.allclose(ours(**left).logits[shown], expected[shown], atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"input_ids": torch.tensor([[5, 101]])}, PromptError, "token 101; the model has tokens 0 to 100"),
        ({"input_ids": torch.full((1, 129), 5)}, PromptError, "a text has 129 tokens, and the model reads 128"),
        (
            {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.tensor([[1, 0, 1]])},
            PromptError,
            "hides all tokens of a text, or some in its middle",
        ),
        ({"input_ids": torch.tensor([5])}, PromptError, r"input_ids has shape \[1\], expected a batch of texts"),
        ({"input_ids": torch.tensor([[5]]), "output_attentions": True}, SettingError, "output_attentions is not there"),
        ({"input_ids": torch.tensor([[5]]), "labels": torch.tensor([[5]])}, SettingError, "labels is not there"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(folder: Path, asked: dict[str, Any], error: type[Exception], said: str) -> None:
    model = foretoken.ForCausalLM.from_pretrained(str(folder), draft="none")
    with pytest.raises(error, match=said):
        model(**asked)


def test_without_a_prompt_it_begins_as_transformers_does(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ours = foretoken.ForCausalLM.from_pretrained(str(folder), draft="lookup")
    assert torch.equal(ours.generate(), theirs.generate())


def test_a_model_larger_than_its_bound_of_memory_generates() -> None:
    asked = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "max_new_tokens": 12, "no_repeat_ngram_size": 3}
    ours, plain = (
        foretoken.ForCausalLM.from_pretrained("stdlib-1m", draft=draft, **settings).generate(**asked)
        for draft, settings in (("subspec", {"stream_layers": "all"}), ("none", {}))
    )
    assert torch.equal(ours, plain)


def test_a_pipeline_takes_it() -> None:
    known = load("stdlib-1m", draft="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(known.folder)
    texts = []
    for model in (
        foretoken.ForCausalLM.from_pretrained("stdlib-1m", draft="lookup", dtype="float32"),
        transformers.AutoModelForCausalLM.from_pretrained(known.folder, dtype=torch.float32),
    ):
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        texts.append(pipe(["def add(", "class Reader:"], max_new_tokens=20, do_sample=False, batch_size=2))
    assert texts[0] == texts[1]

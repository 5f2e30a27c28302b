"""A draft is attached to a model and taken off; the model keeps its weights, and what cannot be attached is refused."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import transformers

import foretoken
from foretoken.api.build import load
from foretoken.decoder.homes.choice import Home
from foretoken.errors import DraftSpecError, ForetokenError, InputError, ModelError, SettingError, UnsupportedModelError
from tests.integrations.theirs import model_of, prompts


def test_the_model_comes_back_and_its_weights_are_used_where_they_lie() -> None:
    model = model_of()
    assert foretoken.attach(model, draft="lookup") is model
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    ours = {tensor.data_ptr() for tensor in model.generate.model.target.weights.tensors.values()}
    assert ours == theirs
    assert model.generate.model.promise == "exact"
    assert model(torch.tensor([[5, 6]])).logits.shape == (1, 2, 101)


def test_a_copy_is_made_where_a_layout_asks_for_it_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def here(config: object, dtype: object, device: str, needed: int, besides: int) -> Home:
        asked.append(besides)
        return Home("copied", "this processor has a faster layout")

    monkeypatch.setattr("foretoken.integrations.adopted.home_here", here)
    caplog.set_level("INFO")
    model = foretoken.attach(model_of(), draft="int8")
    assert "the weights were copied once more" in caplog.text
    assert "this processor has a faster layout; weights='mapped' uses them where they lie" in caplog.text
    assert asked[0] > 0  # room for the draft
    plain = model_of().generate(**prompts(6), max_new_tokens=9)
    assert torch.equal(model.generate(**prompts(6), max_new_tokens=9), plain)


def test_copies_can_be_asked_for() -> None:
    model = foretoken.attach(model_of(), draft="none", weights="copied")
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    assert theirs.isdisjoint(
        tensor.data_ptr() for tensor in model.generate.model.target.weights.tensors.values() if tensor.numel()
    )
    plain = model_of().generate(**prompts(6), max_new_tokens=9)
    assert torch.equal(model.generate(**prompts(6), max_new_tokens=9), plain)


def test_a_draft_is_taken_off_and_another_one_put_on() -> None:
    model = foretoken.attach(model_of(), draft="lookup")
    assert foretoken.attach(model, draft="int8").generate.model.draft == "int8"
    assert foretoken.detach(model) is model
    assert type(model) is transformers.Qwen2ForCausalLM
    assert model.generate.__func__ is transformers.GenerationMixin.generate
    assert foretoken.detach(model) is model


def test_statistics_of_the_last_call() -> None:
    model = foretoken.attach(model_of(), draft="lookup:min_match=1", pace="fixed")
    assert model.generate.completions == ()
    model.generate(**prompts(6, 8), max_new_tokens=30, eos_token_id=None)
    first, second = model.generate.completions
    assert (len(first.tokens), len(second.tokens)) == (30, 30)
    assert first.stats.accepted_tokens + second.stats.accepted_tokens > 0
    assert first.promise == "exact"


AGAIN = r"was changed after the draft was attached; call foretoken\.attach\(model\) again"


def _step(model: Any) -> None:
    model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _filled(model: Any) -> None:
    model.model.norm.weight.data.fill_(2.0)


def _replaced(model: Any) -> None:
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(model.model.layers[1].mlp.up_proj.weight.clone())


def _shared(model: Any) -> None:
    model.share_memory()


def _another_head(model: Any) -> None:
    model.set_output_embeddings(torch.nn.Linear(32, 101, bias=False))


def _hooked_later(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda *given: None)


CHANGES: list[Callable[[Any], object]] = [
    _shared,
    _step,
    _filled,
    _replaced,
    lambda model: model.to(torch.bfloat16),
    lambda model: model.load_state_dict(model_of("llama-untied-biases", seed=1).state_dict()),
    lambda model: model.resize_token_embeddings(120),
]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_were_changed_are_noticed_and_can_be_attached_again(change: Callable[[Any], object]) -> None:
    model = foretoken.attach(model_of("llama-untied-biases"), draft="int4")
    model.generate(**prompts(6), max_new_tokens=4)
    change(model)
    with pytest.raises(ModelError, match=AGAIN):
        model.generate(**prompts(6), max_new_tokens=4)
    again = foretoken.attach(model, draft="int4").generate(**prompts(6), max_new_tokens=12)
    if model.dtype == torch.float32:
        assert torch.equal(again, foretoken.detach(model).generate(**prompts(6), max_new_tokens=12))


@pytest.mark.parametrize("change", [_another_head, _hooked_later])
def test_a_model_that_was_changed_is_noticed(change: Callable[[Any], object]) -> None:
    model = foretoken.attach(model_of("llama-tied"), draft="lookup")
    change(model)
    with pytest.raises(ModelError, match=AGAIN):
        model.generate(**prompts(6), max_new_tokens=4)


@pytest.mark.parametrize("asked", [{"output_hidden_states": True}, {"output_attentions": True}], ids=str)
def test_hooks_with_which_transformers_notes_outputs_are_no_hindrance(asked: dict[str, bool]) -> None:
    model = foretoken.attach(model_of(), draft="lookup")
    expected = model.generate(**prompts(6), max_new_tokens=4)
    with torch.no_grad():
        model(**prompts(6), **asked)
    assert torch.equal(model.generate(**prompts(6), max_new_tokens=4), expected)
    assert torch.equal(foretoken.attach(model, draft="none").generate(**prompts(6), max_new_tokens=4), expected)


def test_objects_of_its_class_have_no_draft() -> None:
    model = foretoken.attach(model_of(), draft="lookup")
    other = type(model)(model.config)
    asked = {**prompts(6), "max_new_tokens": 4}
    assert other.generate(**asked).shape == (1, 10)
    assert not hasattr(other.generate, "completions")
    foretoken.attach(other, draft="lookup")
    assert torch.equal(other.generate(**asked), foretoken.detach(other).generate(**asked))
    assert type(other) is transformers.Qwen2ForCausalLM


def test_our_model_of_it_has_its_end_tokens() -> None:
    model = foretoken.attach(model_of(eos_token_id=[2, 7, 5000]), draft="lookup")
    assert model.generate.model.end_tokens == {2, 7}


def test_it_looks_like_a_model_without_a_draft(tmp_path: Path) -> None:
    model = foretoken.attach(model_of(), draft="lookup")
    assert isinstance(model, transformers.Qwen2ForCausalLM)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert foretoken.attach(model_of(), draft="none").generate(**prompts(6), max_new_tokens=4).shape == (1, 10)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    asked = {**prompts(6), "max_new_tokens": 9}
    assert torch.equal(again.generate(**asked), model.generate(**asked))


def test_a_model_with_a_draft_is_neither_copied_nor_pickled() -> None:
    model = foretoken.attach(model_of(), draft="lookup")
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match=r"call foretoken\.detach\(model\) before"):
            make(model)
    twin = copy.deepcopy(foretoken.detach(model))
    asked = {**prompts(6), "max_new_tokens": 9}
    assert torch.equal(twin.generate(**asked), model.generate(**asked))


def test_a_model_that_nobody_needs_any_more_is_freed() -> None:
    model = foretoken.attach(model_of(), draft="int8,lookup")
    model.generate(**prompts(6), max_new_tokens=9)
    gone, folder = ref(model), model.generate.model.folder
    gc.disable()  # no circle of references waits for it
    try:
        del model
        assert gone() is None
        assert not folder.exists()
    finally:
        gc.enable()


def _hooked() -> Any:
    model = model_of()
    model.model.layers[0].register_forward_hook(lambda *given: None)
    return model


def _patched() -> Any:
    model = model_of()
    model.model.layers[1].mlp.forward = lambda hidden: hidden
    return model


def _wrapped() -> Any:
    model = model_of()
    layer = model.model.layers[1]

    @functools.wraps(layer.forward)
    def steered(*given: Any, **named: Any) -> Any:
        return type(layer).forward(layer, *given, **named) * 2

    layer.forward = steered
    return model


def _with_adapter() -> Any:
    model = model_of()
    model.model.layers[0].self_attn.q_proj.lora = torch.nn.Parameter(torch.zeros(2))
    return model


def _of_a_user() -> Any:
    class Mine(transformers.LlamaForCausalLM):
        pass

    return Mine(model_of("llama-tied").config)


def _with_a_part_of_a_user() -> Any:
    class Norm(type(model_of().model.norm)):  # type: ignore[misc]  # transformers' class, which has no types
        pass

    model = model_of()
    model.model.norm = Norm(32)
    return model


def _quantised() -> Any:
    model = model_of()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


def _mixed() -> Any:
    model = model_of()
    model.model.layers[0].mlp.up_proj.half()
    return model


def _gpt2() -> Any:
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_gpt2, "GPT2LMHeadModel cannot be attached; supported: LlamaForCausalLM, MistralForCausalLM"),
        (_of_a_user, "Mine cannot be attached"),
        (_with_a_part_of_a_user, "model.norm is a Norm, which is not transformers' own"),
        (_hooked, r"model.layers.0 has a forward hook, or a forward that was replaced"),
        (_patched, r"model.layers.1.mlp has a forward hook, or a forward that was replaced"),
        (_wrapped, r"model.layers.1 has a forward hook, or a forward that was replaced"),
        (_with_adapter, r"such as model.layers.0.self_attn.q_proj.lora; merge adapters first"),
        (_quantised, "the model is quantised; attach the bf16, fp16 or fp32 original"),
        (_mixed, "the same for all weights"),
        (lambda: model_of().to("meta"), "is on meta; only models on the CPU can be attached"),
        (lambda: torch.nn.Linear(3, 3), "expected a causal language model of transformers, such as .*, got a Linear"),
    ],
)
def test_what_cannot_be_attached_is_refused_in_a_line_and_stays_as_it_was(make: Callable[[], Any], said: str) -> None:
    model = make()
    before = set(vars(model)), type(model)
    with pytest.raises(UnsupportedModelError, match=said) as refused:
        foretoken.attach(model, draft="lookup")
    assert "\n" not in str(refused.value)
    assert (set(vars(model)), type(model)) == before


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"draft": "lokup"}, DraftSpecError),
        ({"memory": "8GiB"}, SettingError),
        ({"device": "cuda"}, SettingError),
        ({"dtype": "bf16"}, SettingError),
        ({"rule": "rejection"}, SettingError),
        ({"no_such_setting": 1}, SettingError),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_and_the_model_stays_as_it_was(
    settings: dict[str, Any], error: type[ForetokenError]
) -> None:
    model = model_of()
    with pytest.raises(error):
        foretoken.attach(model, **settings)
    assert type(model) is transformers.Qwen2ForCausalLM
    assert "_foretoken" not in vars(model)


def test_a_generate_of_the_model_s_own_is_not_lost() -> None:
    model = model_of()
    model.generate = print
    with pytest.raises(InputError, match="the model has a generate of its own already"):
        foretoken.attach(model, draft="lookup")
    assert foretoken.detach(model).generate is print


def test_weights_of_inference_mode_can_be_attached() -> None:
    with torch.inference_mode():
        model = model_of()
    assert foretoken.attach(model, draft="lookup").generate(**prompts(6), max_new_tokens=4).shape == (1, 10)


def test_a_context_can_be_chosen() -> None:
    model = foretoken.attach(model_of(), draft="lookup", context=40)
    assert model.generate(**prompts(6), max_new_tokens=100, eos_token_id=None).shape == (1, 40)


def test_copies_beside_the_model_are_found_and_a_drafter_of_it_is_taken() -> None:
    folder = load("stdlib-7m", draft="none").folder
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    foretoken.attach(model, draft="moa:tokens=4", pace="fixed")
    assert model.generate.model.folder == folder
    ids = torch.tensor([model.generate.model.tokens_of("def test_one(self):\n    self.assert")])
    model.generate(ids, max_new_tokens=24)
    assert model.generate.completions[0].stats.accepted_tokens > 0
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    foretoken.attach(model, draft="lookup")
    assert model.generate.model.folder != folder
    with pytest.raises(ForetokenError):
        foretoken.attach(model, draft="moa")  # which was trained for other weights


def test_auto_chooses_a_draft() -> None:
    assert foretoken.attach(model_of()).generate.model.draft == "lookup"
    known = transformers.AutoModelForCausalLM.from_pretrained(load("stdlib-1m", draft="none").folder)
    assert foretoken.attach(known).generate.model.draft == "lookup"

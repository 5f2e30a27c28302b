"""What `generate` with a draft does not do is refused by name, and nothing is passed over in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

from foretoken.errors import SettingError, UnsupportedModelError
from foretoken.integrations import fields
from tests.integrations.theirs import attached, both, prompts


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 3}, "foretoken has no beam search"),
        ({"num_beams": 3, "do_sample": True}, "foretoken has no beam sample"),
        ({"num_beams": 4, "num_beam_groups": 2}, "foretoken has no "),
        ({"penalty_alpha": 0.6, "top_k": 4}, "foretoken's generate has no penalty_alpha=0.6"),
        ({"dola_layers": "low"}, "foretoken's generate has no dola_layers='low'"),
        ({"use_mtp": True}, "foretoken's generate has no use_mtp=True"),
        ({"assistant_early_exit": 2}, "no assistant_early_exit=2; name the draft with foretoken"),
        ({"is_assistant": True}, "foretoken's generate has no is_assistant=True"),
        ({"cache_implementation": "paged"}, "foretoken's generate has no cache_implementation='paged'"),
        ({"labels": torch.zeros(1, 6)}, "has no labels; leave it out"),
        ({"is_causal": False}, "foretoken's generate has no is_causal=False"),
        ({"guidance_scale": 1.5}, "foretoken's generate has no guidance_scale=1.5"),
        (
            {"output_attentions": True, "return_dict_in_generate": True},
            "foretoken's generate has no output_attentions=True",
        ),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "foretoken's generate has no output_hidden_states=True",
        ),
        ({"prompt_lookup_num_tokens": 4}, "draft='lookup' does that"),
        ({"token_healing": True}, "foretoken's generate has no token_healing=True"),
        ({"assistant_model": 1}, "no assistant_model=1; name the draft with foretoken"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "has no inputs_embeds; give input_ids"),
        ({"position_ids": torch.zeros(1, 6)}, "give attention_mask, with padding on the left"),
        ({"past_key_values": transformers.DynamicCache()}, "give the whole text"),
        ({"custom_generate": print}, "has no custom_generate; leave it out"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        attached().generate(**prompts(6), max_new_tokens=4, **asked)


def test_arguments_come_before_what_the_model_s_configuration_says() -> None:
    ours, theirs = both(
        lambda model: model.generate(**prompts(6), max_new_tokens=9, guidance_scale=1.0), guidance_scale=1.5
    )
    assert torch.equal(ours, theirs)
    with pytest.raises(
        SettingError, match=r"guidance_scale=1\.5; leave it out; it may stand in model\.generation_config"
    ):
        attached(guidance_scale=1.5).generate(**prompts(6), max_new_tokens=9)


def test_a_field_that_is_not_known_is_refused_and_so_is_a_model_whose_configuration_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fields, "KNOWN", fields.KNOWN - {"typical_p"})
    with pytest.raises(SettingError, match=r"typical_p=0\.5"):
        attached().generate(**prompts(6), max_new_tokens=4, do_sample=True, typical_p=0.5)
    with pytest.raises(SettingError, match=r"typical_p=0\.5"):
        attached(typical_p=0.5).generate(**prompts(6), max_new_tokens=4)
    with pytest.raises(SettingError, match=r"guidance_scale=3\.0"):
        attached().generate(**prompts(6), generation_config=GenerationConfig(guidance_scale=3.0, max_new_tokens=4))


def test_every_field_of_this_release_is_known() -> None:
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} <= fields.KNOWN


def test_a_release_that_generates_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached()
    monkeypatch.setattr(transformers.GenerationMixin, "generate", lambda self, inputs=None, **kwargs: inputs)
    with pytest.raises(UnsupportedModelError, match="generates in a way that is not known"):
        model.generate(prompts(6)["input_ids"], max_new_tokens=4)


def test_what_transformers_refuses_it_refuses() -> None:
    with pytest.raises(ValueError, match="model_kwargs"):
        attached().generate(**prompts(6), max_new_tokens=4, no_such_thing=1)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("def add(", "inputs is a str, expected token ids"),
        ({"input_ids": torch.tensor([[5]])}, "inputs is a dict, expected token ids"),
        (torch.tensor([5, 6]), r"inputs is a tensor of shape \[2\], expected token ids"),
        ([[5, 6]], "inputs is a list, expected token ids"),
    ],
    ids=str,
)
def test_a_prompt_that_is_no_batch_of_token_ids_is_refused(prompt: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        attached().generate(prompt, max_new_tokens=4)


def test_padding_on_the_right_is_refused() -> None:
    asked = prompts(6, 4)
    asked = {name: tensor.flip(1) for name, tensor in asked.items()}
    with pytest.raises(SettingError, match="pad on the left"):
        attached().generate(**asked, max_new_tokens=4)

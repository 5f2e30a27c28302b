"""Which arguments and fields of a GenerationConfig are followed, and which are refused. None is passed over in silence,
also if a release of transformers adds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from foretoken.errors import SettingError

_DRAFT = "name the draft with foretoken.attach(model, draft=...)"
_WHOLE = "give the whole text: a prompt that several texts share is read once"
# what is not there, with what to do
_REFUSED = {
    "assistant_model": _DRAFT,
    "assistant_tokenizer": _DRAFT,
    "assistant_early_exit": _DRAFT,
    "is_assistant": _DRAFT,
    "use_mtp": _DRAFT,
    "prompt_lookup_num_tokens": "draft='lookup' does that",
    "inputs_embeds": "give input_ids",
    "position_ids": "give attention_mask, with padding on the left",
    "past_key_values": _WHOLE,
    "cache": _WHOLE,
    "cache_params": _WHOLE,
    "custom_generate": "",
    "guidance_scale": "",
    "negative_prompt_ids": "",
    "negative_prompt_attention_mask": "",
    "output_attentions": "",
    "output_hidden_states": "",
    "synced_gpus": "",
    "token_healing": "",
    "constraints": "",
    "force_words_ids": "",
    "dola_layers": "",
    "penalty_alpha": "",
}
_USUAL: dict[str, tuple[object, ...]] = {"guidance_scale": (1,)}
_FOLLOWED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
    *("watermarking_config", "num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
}
_BY_MODE = {"num_beams", "num_beam_groups", "diversity_penalty"}  # which is refused if it is not greedy or sampling
# without effect on a text in these modes, with transformers alone, too
_WITHOUT_EFFECT = {
    *("early_stopping", "length_penalty", "low_memory", "decoder_start_token_id", "use_cache", "cache_config"),
    *(
        "cache_implementation",
        "max_cache_len",
        "compile_config",
        "disable_compile",
        "continuous_batching_config",
        "prefill_chunk_size",
    ),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "speculation_type"),
    *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    "transformers_version",
}
KNOWN = _FOLLOWED | _BY_MODE | _WITHOUT_EFFECT | set(_REFUSED)


def expect_known(given: Mapping[str, Any]) -> None:
    """Raise SettingError for a field of a configuration that a release of transformers has, and nothing here knows. Of
    other arguments transformers says itself what it does not know."""
    fields = vars(GenerationConfig())
    for name, value in given.items():
        if name in fields and name not in KNOWN and not name.startswith("_") and value not in (None, False):
            raise refused(name, value)


def expect_possible(given: Mapping[str, Any], hint: str = "") -> None:
    """Raise SettingError for an argument, or a field of a configuration, that is not there. hint: what an error says
    at its end."""
    for name in _REFUSED.keys() & given.keys():
        value = given[name]
        if value is None or value is False:
            continue
        if not (isinstance(value, str | int | float) and value in _USUAL.get(name, ())):
            raise refused(name, value, hint)
    if given.get("cache_implementation") == "paged":  # transformers would generate in another way
        raise refused("cache_implementation", "paged", hint)


def refused(name: str, value: object, hint: str = "") -> SettingError:
    """The error for what is not there."""
    shown = f"{name}={value!r:.40}" if isinstance(value, str | int | float) else name
    return SettingError(f"foretoken's generate has no {shown}; {_REFUSED.get(name) or 'leave it out'}{hint}")

"""transformers' own `generate`, with our loop in place of its loop.

`generate` reads its arguments, its configuration and the prompt, and makes lists of processors and criteria. Then it
calls the method of a mode of generation. Greedy search and sampling have one method, `_sample`, and only that is
replaced here. So defaults, warnings and errors of everything before are transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMode

from foretoken.api.model import Model
from foretoken.errors import SettingError
from foretoken.integrations.deciding import Asking, Batch, divided, end_tokens
from foretoken.loop.generating import Ended
from foretoken.loop.output import Output
from foretoken.protocol.types import Request
from foretoken.results.completion import Completion
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.settings.generate import GenerateSettings

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
# arguments and fields of a GenerationConfig that nothing here honours, with what to do
_ARGUMENTS = {
    "assistant_model": "say at loading what drafts (draft=...)",
    "assistant_tokenizer": "say at loading what drafts (draft=...)",
    "custom_generate": "",
    "inputs_embeds": "give input_ids",
    "negative_prompt_ids": "",
    "negative_prompt_attention_mask": "",
    "past_key_values": "give the whole text: what several prompts share is read once in a batch",
    "cache": "give the whole text: what several prompts share is read once in a batch",
    "position_ids": "give attention_mask with padding on the left",
    "synced_gpus": "",
}
_FIELDS = {
    "assistant_early_exit": "say at loading what drafts (draft=...)",
    "cache_implementation": "",
    "guidance_scale": "",
    "output_attentions": "",
    "output_hidden_states": "",
    "prompt_lookup_num_tokens": "draft='lookup' does that",
    "token_healing": "",
}
_USUAL: dict[str, tuple[object, ...]] = {"guidance_scale": (1, 1.0), "cache_implementation": ("dynamic",)}
_MOST_SEED = 2**53

Decode = Callable[..., Any]


class Driver:
    """Generates for transformers. The model's sampler is changed so that processors can be asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.completions: tuple[Completion, ...] = ()  # of the last call
        self._asked: dict[int, tuple[Batch, int]] = {}  # by sequence
        model.sample_with(self._samplers)

    def generate(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """`module.generate`, with our loop. module: a model of transformers; only its configuration is used."""
        given = signature(type(module).generate).bind(module, *args, **kwargs).arguments
        given = {**given, **given.pop("kwargs", {})}
        given.pop("self")
        streamer = given.get("streamer")
        try:
            for name, advice in _ARGUMENTS.items():
                if given.get(name) is not None and given[name] is not False:
                    raise _refused(name, given[name], advice)
            kind: Any = type(module)
            driven = _driven(kind)
            made = object.__new__(driven)
            object.__setattr__(made, "__dict__", module.__dict__)
            object.__setattr__(made, "_decode", self._decode)
            return driven.generate(made, **given)
        finally:
            if streamer is not None:
                streamer.end()  # also where an error came: whoever listens in another thread would wait for ever

    def _decode(
        self,
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **others: Any,
    ) -> Any:
        config, samples = generation_config, bool(generation_config.do_sample)
        prompts = _without_padding(input_ids, others.get("attention_mask"))
        if streamer is not None and len(prompts) > 1:
            raise SettingError(f"a streamer takes one text, and here come {len(prompts)}; generate them one by one")
        choosing = divided(logits_processor, len(prompts), samples=samples)
        wants_scores = bool(config.return_dict_in_generate and config.output_scores)
        wants_logits = bool(config.return_dict_in_generate and config.output_logits)
        ends, pad = end_tokens(stopping_criteria), config._pad_token_tensor
        batch = Batch(
            input_ids,
            [len(prompt) for prompt in prompts],
            choosing,
            stopping_criteria,
            None if pad is None or not ends else int(pad),
            keeps=wants_scores,
        )
        settings = GenerateSettings(
            max_new_tokens=max(1, config.max_length - input_ids.shape[1]),
            ignore_eos=True,
            stop_tokens=ends,
            keep_logits=wants_scores or wants_logits,
            **choosing.settings,
        )
        outputs = self._run(prompts, settings, batch, streamer)
        longest = max(end or 0 for end in batch.ends)
        sequences = batch.so_far(longest).to(input_ids.device)
        if not config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=batch.scores(longest) if wants_scores else None,
            logits=_logits(outputs, longest) if wants_logits else None,
        )

    def _run(
        self, prompts: Sequence[tuple[int, ...]], settings: GenerateSettings, batch: Batch, streamer: Any
    ) -> list[Output]:
        """Generate all texts side by side, as far as the batch says."""
        outputs: list[Output] = []
        prepared: list[tuple[Request, Output]] = []
        for prompt in prompts:
            seed = int(torch.randint(_MOST_SEED, ())) if settings.temperature else None  # torch.manual_seed decides
            (request,) = self.model.requests(prompt, replace(settings, seed=seed))
            first = next((other.sequence for other, _ in prepared if other.prompt == prompt), None)
            request = replace(request, prompt_of=first)  # a prompt that comes again is read once
            prepared.append(self.model.prepared(request, settings))
            outputs.append(prepared[-1][1])
        batch.raw = lambda text, at: outputs[text].logits[at][0]
        left: list[tuple[int, Ended]] = []
        done: dict[int, Ended] = {}
        try:
            for text, (request, _) in enumerate(prepared):
                if batch.asks:
                    self._asked[request.sequence] = batch, text
            with closing(
                self.model.events([partial(_same, each) for each in prepared], len(prepared), left, batch)
            ) as events:
                told = 0
                for text, event in events:
                    if isinstance(event, Ended):
                        if event.error is not None:
                            raise event.error
                        done[text] = event
                        batch.ended(text)
                    else:
                        batch.grown(text, [piece.token for piece in outputs[text].pieces])
                    if streamer is not None:
                        told = _stream(streamer, batch, told)
                    if batch.over:
                        break
        finally:
            for request, _ in prepared:
                self._asked.pop(request.sequence, None)
        done |= dict(left)
        self.completions = tuple(self.model.completion(done[text], settings) for text in sorted(done))
        return outputs

    def _samplers(self, usual: MakeSampler) -> MakeSampler:
        def make(request: Request) -> Sampler:
            found = self._asked.get(request.sequence)
            return usual(request) if found is None else Asking(request, *found)

        return make


def _same(prepared: tuple[Request, Output]) -> tuple[Request, Output]:
    return prepared


def _stream(streamer: Any, batch: Batch, told: int) -> int:
    """Hand on what is new of the only text, token by token as transformers does."""
    tokens, end = batch.tokens[0], batch.ends[0]
    upto = len(tokens) if end is None else end
    for token in tokens[told:upto]:
        streamer.put(torch.tensor([token]))
    return max(told, upto)


def _logits(outputs: Sequence[Output], count: int) -> tuple[torch.Tensor, ...]:
    """The logits of each position, [B, V]; zeros for texts that have ended before."""
    some = outputs[0].logits[0]
    return tuple(
        torch.cat([each.logits[at] if at < len(each.logits) else torch.zeros_like(some) for each in outputs])
        for at in range(count)
    )


def _without_padding(ids: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    """The prompts of a batch. Raises SettingError for padding elsewhere than on the left."""
    prompts = []
    for at, row in enumerate(ids.tolist()):
        shown = [1] * len(row) if mask is None else [int(bool(each)) for each in mask[at].tolist()]
        begin = shown.index(1) if 1 in shown else len(row)
        if 0 in shown[begin:] or begin == len(row):
            raise SettingError(
                "attention_mask hides tokens of a prompt elsewhere than at its beginning, or all of them; pad on the "
                "left (tokenizer.padding_side = 'left')"
            )
        prompts.append(tuple(row[begin:]))
    return prompts


def _expect_possible(mode: Any, config: Any) -> None:
    """Raise SettingError for a way of generating that is not here."""
    for name, advice in _FIELDS.items():
        value = getattr(config, name, None)
        if value and value not in _USUAL.get(name, ()):
            raise _refused(name, value, advice)
    _expect_mode(mode)


def _expect_mode(mode: Any) -> None:
    if mode is GenerationMode.ASSISTED_GENERATION:
        raise _refused("prompt_lookup_num_tokens", None, _FIELDS["prompt_lookup_num_tokens"])
    if mode not in _MODES:
        raise SettingError(
            f"{mode.value.replace('_', ' ')} is not there with foretoken, only greedy text and sampling; leave "
            "num_beams and the like out, or detach the model (foretoken.detach)"
        )


def _refused(name: str, value: object, advice: str) -> SettingError:
    shown = f"{name} is {value!r:.40}, which" if isinstance(value, str | int | float) else f"{name}"
    return SettingError(f"{shown} is not there with foretoken; {advice or 'leave it out'}")


@cache
def _driven(kind: type) -> Any:
    """A class whose `generate` decodes with our loop. Its objects share a model's attributes and have one more."""

    class Driven(kind):  # type: ignore[misc]
        __slots__ = ("_decode",)

        def _sample(self, input_ids: torch.Tensor, **given: Any) -> Any:
            return self._decode(input_ids, **given)

        def _validate_generation_mode(self, mode: Any, config: Any, given: Any) -> None:
            _expect_possible(mode, config)

        def _get_deprecated_gen_repo(self, mode: Any, *others: Any) -> None:  # asked before the validation
            _expect_mode(mode)

    return Driven

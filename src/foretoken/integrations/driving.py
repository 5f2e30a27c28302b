"""transformers' own `generate`, with our loop in place of its loop.

`generate` reads its arguments, its configuration and the prompt, and makes lists of processors and criteria. Then it
calls the method of a mode of generation. Greedy search and sampling have one method, `_sample`, and only that is
replaced here. So defaults, warnings and errors of everything before are transformers' own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMode

from foretoken.api.model import Model
from foretoken.errors import SettingError, UnsupportedModelError
from foretoken.integrations.deciding import Batch, Ending, ProcessingSampler, divided, end_tokens, longest
from foretoken.integrations.fields import expect_known, expect_possible, refused
from foretoken.loop.generating import Ended
from foretoken.loop.output import Output
from foretoken.protocol.types import Request
from foretoken.results.completion import Completion
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.settings.generate import GenerateSettings

log = logging.getLogger(__name__)

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_MOST_SEED = 2**53
# what `generate` hands to its loop beside what is read here; `position_ids` are its own, as the caller's are refused
_FROM_GENERATE = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
_FROM_GENERATE |= {"synced_gpus", "tokenizer", "assistant_tokenizer", "assistant_model"}


class Driver:
    """Generates for transformers. The model's sampler is changed so that processors can be asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.completions: tuple[Completion, ...] = ()  # of the last call
        self._batches: dict[int, tuple[Batch, int]] = {}  # by sequence: those with processors, and the text's place
        model.sample_with(self._samplers)

    def generate(
        self, module: Any, kind: Any, expect: Callable[[], None], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """`kind.generate` of a module, with our loop. module: a model of transformers; only its configuration is used.
        expect: raises an error if the module cannot be used any more."""
        streamer = kwargs.get("streamer")
        ran: list[bool] = []
        self.completions = ()
        try:
            bound = signature(kind.generate).bind(module, *args, **kwargs).arguments
            given = {**bound.pop("kwargs", {}), **bound}
            given.pop("self")
            streamer = given.get("streamer")
            expect()
            expect_known(given)
            expect_possible(given)
            _expect_ids(given)
            driven = _driven(kind)
            made = object.__new__(driven)
            object.__setattr__(made, "__dict__", module.__dict__)
            object.__setattr__(made, "_decode", partial(self._decode, ran))
            found = driven.generate(made, **given)
        finally:
            if streamer is not None:
                streamer.end()  # also where an error came: whoever listens in another thread would wait for ever
        if not ran:
            raise UnsupportedModelError(
                "this release of transformers generates in a way that is not known here; install another one"
            )
        return found

    def _decode(
        self,
        ran: list[bool],
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **others: Any,
    ) -> Any:
        ran.append(True)
        for name, value in others.items():
            if name not in _FROM_GENERATE and value is not None:
                raise refused(name, value)
        config, width = generation_config, input_ids.shape[1]
        prompts = _without_padding(input_ids, others.get("attention_mask"))
        if streamer is not None and len(prompts) > 1:
            raise SettingError(f"a streamer takes one text, and here come {len(prompts)}; generate them one by one")
        padding = [width - len(prompt) for prompt in prompts]
        choosing = divided(logits_processor, padding, samples=bool(config.do_sample))
        wants_scores = bool(config.return_dict_in_generate and config.output_scores)
        wants_logits = bool(config.return_dict_in_generate and config.output_logits)
        ends = end_tokens(stopping_criteria, self.model.target.config.valid_vocab_size)
        pads = config._pad_token_tensor is not None and any(hasattr(each, "eos_token_id") for each in stopping_criteria)
        pad = int(config._pad_token_tensor) if pads else None
        most = self._most(longest(stopping_criteria, config.max_length) - width, prompts)
        batch = Batch(input_ids, padding, choosing, Ending(most, ends, stopping_criteria, pad), keeps=wants_scores)
        settings = GenerateSettings(
            max_new_tokens=most,
            ignore_eos=True,
            stop_tokens=ends,
            keep_logits=wants_logits or (wants_scores and not batch.has_processors),
            **choosing.settings,
        )
        self._run(prompts, settings, batch, streamer)
        count = batch.longest
        sequences = batch.so_far(count).to(input_ids.device)
        if not config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=batch.scores(count) if wants_scores else None,
            logits=batch.logits(count) if wants_logits else None,
        )

    def _most(self, asked: int, prompts: Sequence[tuple[int, ...]]) -> int:
        """The most new tokens of each text: as many as were asked for, or as the model's context has room for."""
        room = self.model.context_length - max(map(len, prompts))
        if asked > room:
            log.warning("texts end with the model's context of %d tokens", self.model.context_length)
        return max(1, min(asked, room))

    def _run(self, prompts: Sequence[tuple[int, ...]], settings: GenerateSettings, batch: Batch, streamer: Any) -> None:
        """Generate all texts side by side, as far as the batch says."""
        prepared: list[tuple[Request, Output]] = []
        for prompt in prompts:
            seed = int(torch.randint(_MOST_SEED, ())) if settings.temperature else None  # torch.manual_seed decides
            (request,) = self.model.requests(prompt, replace(settings, seed=seed))
            first = next((other.sequence for other, _ in prepared if other.prompt == prompt), None)
            request = replace(request, prompt_of=first)  # a prompt that comes again is read once
            prepared.append(self.model.prepared(request, settings))
        logits = [output.logits for _, output in prepared]
        batch.raw = lambda text, at: logits[text][at][0]
        left: list[tuple[int, Ended]] = []
        done: dict[int, Ended] = {}
        told, counts = 0, [0 for _ in prompts]
        try:
            if batch.has_processors:
                self._batches |= {request.sequence: (batch, text) for text, (request, _) in enumerate(prepared)}
            made = [partial(_same, each) for each in prepared]
            with closing(self.model.events(made, len(made), left, batch)) as events:
                for text, event in events:
                    if isinstance(event, Ended):
                        if event.error is not None:
                            raise event.error
                        done[text] = event
                        batch.ended(text)
                    else:
                        batch.add(text, counts[text], event.token)
                        counts[text] += 1
                    if streamer is not None:
                        told = _stream(streamer, batch, told)
                    if batch.over and all(count >= end for count, end in zip(counts, batch.ends, strict=True) if end):
                        break  # and not before the last round's tokens have come, as processors hear of them earlier
        finally:
            for request, _ in prepared:
                self._batches.pop(request.sequence, None)
        done |= dict(left)
        for (_, output), end in zip(prepared, batch.ends, strict=True):
            if output.finish_reason in (None, "cancelled") or len(output.pieces) > (end or 0):  # a criterion ended it
                del output.pieces[end or 0 :]
                output.finish_reason = "stop"
            output.logits = []  # they are in what `generate` returns, if they were asked for
        self.completions = tuple(self.model.completion(done[text], settings) for text in sorted(done))

    def _samplers(self, usual: MakeSampler) -> MakeSampler:
        def make(request: Request) -> Sampler:
            found = self._batches.get(request.sequence)
            return usual(request) if found is None else ProcessingSampler(request, *found)

        return make


class Generate:
    """`generate` of a model of transformers, with a draft. model: our model. completions: of the last call, one for
    each text, with statistics, which count whole rounds; if several threads generate, it is the last one's."""

    def __init__(self, driver: Driver, module: Any, kind: type, expect: Callable[[], None] = lambda: None) -> None:
        self._driver, self._module, self._kind, self._expect = driver, module, kind, expect

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `generate`. Raises SettingError for what is not there with a draft, and ModelError if the
        weights have changed."""
        return self._driver.generate(self._module, self._kind, self._expect, args, kwargs)

    @property
    def model(self) -> Model:
        """Our model, as `foretoken.load` returns one."""
        return self._driver.model

    @property
    def completions(self) -> tuple[Completion, ...]:
        """Of the last call."""
        return self._driver.completions


def _expect_ids(given: Mapping[str, Any]) -> None:
    """Raise SettingError for a prompt that is no batch of token ids."""
    for name in ("inputs", "input_ids"):
        ids = given.get(name)
        if ids is not None and not (isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.numel()):
            shown = (
                f"a tensor of shape {list(ids.shape)}" if isinstance(ids, torch.Tensor) else f"a {type(ids).__name__}"
            )
            raise SettingError(
                f"{name} is {shown}, expected token ids, a tensor [texts, tokens]: generate(**tokenizer(...))"
            )


def _same(prepared: tuple[Request, Output]) -> tuple[Request, Output]:
    return prepared


def _stream(streamer: Any, batch: Batch, told: int) -> int:
    """Hand on what is new of the only text, token by token as transformers does. Returns how many tokens are told."""
    if (batch.ends[0] or batch.lengths[0]) <= told:
        return told
    tokens = batch.tokens(0)
    for token in tokens[told:]:
        streamer.put(torch.tensor([token]))
    return len(tokens)


def _without_padding(ids: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    """The prompts of a batch. Raises SettingError for padding elsewhere than on the left."""
    prompts = []
    for at, row in enumerate(ids.tolist()):
        shown = [True] * len(row) if mask is None else [bool(each) for each in mask[at].tolist()]
        begin = shown.index(True) if True in shown else len(row)
        if not all(shown[begin:]) or begin == len(row):
            raise SettingError(
                "a prompt has padding elsewhere than at its beginning, or nothing else, by attention_mask or by the "
                "padding token; pad on the left (tokenizer.padding_side = 'left')"
            )
        prompts.append(tuple(row[begin:]))
    return prompts


def _expect_mode(mode: Any) -> None:
    if mode not in _MODES:
        raise SettingError(
            f"foretoken has no {mode.value.replace('_', ' ')}, only greedy text and sampling; leave num_beams and the "
            "like out, or detach the model (foretoken.detach)"
        )


@cache
def _driven(kind: type) -> Any:
    """A class whose `generate` decodes with our loop. Its objects share a model's attributes and have one more."""

    class Driven(kind):  # type: ignore[misc]  # a base that is known at run time only
        __slots__ = ("_decode",)
        __qualname__, __module__ = kind.__qualname__, kind.__module__  # errors of transformers name it

        device = torch.device("cpu")  # where tensors are, also if the model that it stands for has no weights

        def _sample(self, input_ids: torch.Tensor, **given: Any) -> Any:
            return self._decode(input_ids, **given)

        def _prepare_generation_config(self, config: Any, *args: Any, **kwargs: Any) -> Any:
            for explicit in (self.generation_config, config):
                expect_known({} if explicit is None else vars(explicit))
            found = super()._prepare_generation_config(config, *args, **kwargs)
            expect_possible(vars(found[0]), "; it may stand in model.generation_config")
            _expect_mode(found[0].get_generation_mode(None))
            found[0].cache_implementation = None  # no cache of transformers is used
            return found

    Driven.__name__ = kind.__name__
    return Driven

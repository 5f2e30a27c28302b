"""An engine of somebody else's, as a proposer meets it: texts in rows that move about, in a cache of pages.

Its texts are those of plain decoding, so it need not compute anything: a draft is right as far as it agrees with them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from foretoken.api.model import Model
from foretoken.decoder.cache import Cache
from foretoken.decoder.rows import chain
from foretoken.integrations.proposals import Proposals, Shown

PAGE = 4  # positions of a page


@dataclass
class Asked:
    """A request: its whole text, how long its prompt is, and how many tokens the engine has so far."""

    text: list[int]
    prompt: int
    have: int = 0
    draft: list[int] = field(default_factory=list)
    checked: list[int] = field(default_factory=list)  # in its last pass

    @property
    def shown(self) -> Shown:
        """What a proposer sees of it."""
        tokens = np.array(self.text[: self.have], np.int32) if self.have > self.prompt else None
        return Shown(id(self), tokens, self.checked)

    @property
    def ended(self) -> bool:
        """Whether it has its whole text."""
        return self.have == len(self.text)


@dataclass
class OtherEngine:
    """Runs requests, some of which are left out of a pass now and then. Now and then it checks only the beginning of a
    draft. accepted, refused: draft tokens that were checked, but for those of the passes in which texts have ended."""

    requests: list[Asked]
    proposals: Proposals
    cache: Any = None  # told which requests stand in which rows
    seed: int = 0
    together: int = 3
    accepted: int = 0
    refused: int = 0
    drafts: list[tuple[list[int], list[int]]] = field(default_factory=list)  # each behind its text

    def run(self) -> None:
        """Until all texts are there."""
        chance = random.Random(self.seed)
        waiting, live = list(self.requests), []
        while waiting or live:
            while waiting and len(live) < self.together:
                live.append(waiting.pop(0))
            chance.shuffle(live)
            batch = live[: chance.randint(1, len(live))]
            for request in batch:
                self._pass(request, chance)
            live = [request for request in live if not request.ended]
            batch = [request for request in batch if not request.ended]
            if self.cache is not None:
                self.cache.rows = [self.requests.index(request) for request in batch]
            proposed = self.proposals.propose([each.shown for each in batch], {id(each) for each in live}.__contains__)
            for request, draft in zip(batch, proposed, strict=True):
                request.draft = draft
                if draft:
                    self.drafts.append((request.text[: request.have], draft))

    def _pass(self, request: Asked, chance: random.Random) -> None:
        """A part of a prompt is read, or a draft is checked."""
        if request.have < request.prompt:
            request.have = min(request.prompt, request.have + chance.randint(1, request.prompt))
            request.have += request.have == request.prompt
            return
        cut = chance.randint(0, len(request.draft)) if chance.random() < 0.2 else len(request.draft)
        request.checked, right = request.draft[:cut], 0
        while right < len(request.checked) and request.have + right + 1 < len(request.text):
            if request.checked[right] != request.text[request.have + right]:
                break
            right += 1
        request.have += right + 1
        if not request.ended:  # else the proposer does not hear of it
            self.accepted += right
            self.refused += len(request.checked) - right
        request.draft = []


def asked_of(model: Model, prompts: Sequence[str], tokens: int) -> list[Asked]:
    """Requests whose texts are those of plain decoding."""
    assert model.tokenizer is not None
    found = []
    for prompt in prompts:
        ids = list(model.tokenizer.encode(prompt))
        text = model.generate(ids, max_new_tokens=tokens, ignore_eos=True).tokens
        found.append(Asked([*ids, *text], len(ids)))
    return found


class Paged:
    """Keys and values of whole texts in pages that lie in any order, each laid out in a way of its own: as in vLLM."""

    def __init__(self, model: Model, requests: Sequence[Asked]) -> None:
        caches = [_read(model, request.text) for request in requests]
        keys, _ = caches[0].read(0)
        _, self.heads, self.size = keys.shape
        pages = [-(-cache.length // PAGE) for cache in caches]
        chance = random.Random(1)
        free = chance.sample(range(sum(pages)), sum(pages))
        self.table = np.zeros((len(caches), max(pages)), np.int32)
        self.rows: list[int] = []
        self.order = torch.randperm(2 * PAGE * self.heads * self.size, generator=torch.Generator().manual_seed(2))
        shape = (sum(pages), self.heads, PAGE, 2 * self.size)
        self.layers = [self._layer(torch.zeros(shape, dtype=keys.dtype)) for _ in caches[0].layers]
        for at, cache in enumerate(caches):
            self.table[at, : pages[at]] = [free.pop() for _ in range(pages[at])]
            where = np.arange(cache.length)
            slots = torch.from_numpy(self.table[at][where // PAGE].astype(np.int64) * PAGE + where % PAGE)
            for layer in cache.layers:
                its = self.layers[layer]
                its.impl.do_kv_cache_update(its, *cache.read(layer), its.kv_cache, slots)

    def _layer(self, memory: torch.Tensor) -> Any:
        impl = SimpleNamespace(num_kv_heads=self.heads, head_size=self.size, do_kv_cache_update=self._write)
        return SimpleNamespace(kv_cache=memory, impl=impl)

    def _write(self, layer: Any, keys: torch.Tensor, values: torch.Tensor, memory: Any, slots: torch.Tensor) -> None:
        flat = memory.view(len(memory), -1)
        places = self.order.view(2, PAGE, self.heads, self.size)
        for kind, numbers in enumerate((keys, values)):
            flat[(slots // PAGE)[:, None, None], places[kind][slots % PAGE]] = numbers

    @property
    def config(self) -> Any:
        """As vLLM's configuration says where the layers are."""
        known = {f"model.layers.{at}.self_attn.attn": layer for at, layer in enumerate(self.layers)}
        return SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=known),
            model_config=SimpleNamespace(get_num_layers=lambda parallel: len(self.layers)),
            parallel_config=None,
        )

    @property
    def batch(self) -> Any:
        """As vLLM's input batch is: the rows of the requests in a pass."""
        table = SimpleNamespace(block_table=SimpleNamespace(np=self.table[self.rows]), block_size=PAGE)
        return SimpleNamespace(block_table=SimpleNamespace(block_tables=[table]))


def _read(model: Model, text: Sequence[int]) -> Cache:
    """A cache of a whole text."""
    cache = model.target.new_cache()
    rows = chain(cache, list(text))
    model.target.forward(rows)
    cache.commit(range(len(rows)), rows.writer)
    return cache

"""A model that is loaded once and decodes with many drafts: in turn, and every text compared with the reference's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

from foretoken.api.build import with_draft
from foretoken.api.levels import Loaded
from foretoken.api.model import Model
from foretoken.bench.decode import ask
from foretoken.bench.generations import Generation
from foretoken.bench.suites import Prompt
from foretoken.bench.target import copy_in, expect_honest, share_copies
from foretoken.decoder.decoder import Decoder
from foretoken.settings.generate import GenerateSettings


class Opened:
    """A model without a draft, and with any other: one copy of its weights, and one of each low-bit copy."""

    def __init__(self, plain: Model) -> None:
        self.plain = plain
        self._loaded: Loaded = {}

    def model(self, draft: str, *, cache: bool = True) -> Model:
        """The model with a draft; one that would not be honest is refused."""
        expect_honest(draft, self.plain.settings, self.plain.folder)
        known = len(self._loaded)
        model = with_draft(self.plain, draft, loaded=self._loaded, cache=cache)
        share_copies(self._loaded)
        if len(self._loaded) > known:
            gc.freeze()  # what loading left stays: to look it through for garbage takes as long as dozens of tokens
        return model

    def copy(self, format: str) -> Decoder:
        """The model's own copy in a low-bit format, as it drafts."""
        self.model(format)
        return copy_in(format, self._loaded)


def in_turn(
    models: Mapping[str, Model],
    reference: str,
    prompt: Prompt,
    how: GenerateSettings,
    turn: int,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Generation]:
    """A prompt by every model, each compared with the one called `reference`; in the other order every second turn.

    how: rounds are kept. tell: is told which model comes next.
    """
    texts = {}
    for name in list(models) if turn % 2 == 0 else list(models)[::-1]:
        tell(f"{name}, prompt {prompt.id}")
        texts[name] = ask(models[name], prompt, how)
    return [Generation.of(texts[name], texts[reference], method=name, prompt=prompt.id) for name in models]

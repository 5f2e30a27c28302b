"""Decoding without a cache of keys and values, for comparison: each pass computes the whole text again."""

from __future__ import annotations

from foretoken.decoder.cache import Cache
from foretoken.decoder.checking import Check
from foretoken.errors import ContractError
from foretoken.protocol.types import Request
from foretoken.verification.features import Seen
from foretoken.verification.local import LocalVerifier
from foretoken.verification.state import Gain, State


class UncachedVerifier(LocalVerifier):
    """The local verifier, which here keeps no keys and values from pass to pass. The output is the same.

    FractalLLM (Kim et al. 2025) decodes in this way, and so does its baseline. While a prompt is read in several
    passes, its keys and values are kept until the whole prompt is read.
    """

    def _expect_possible(self, request: Request) -> None:
        super()._expect_possible(request)
        if request.needs.extractors:
            raise ContractError("an extractor reads keys and values, and none are kept here; load with a cache")

    def _taken_up(self, request: Request, names: frozenset[str]) -> tuple[Cache, Seen]:
        return self._target.new_cache(), Seen(names)

    def _keep(self, conversation: int, state: State) -> None:
        pass

    def _begin(self, state: State) -> None:
        pass

    def _leave(self, state: State, cache: Cache) -> None:
        pass

    def _held(self, state: State) -> int:
        return 0

    def _commit(self, check: Check, gain: Gain, cache: Cache, *, reading: bool) -> None:
        if reading:
            super()._commit(check, gain, cache, reading=reading)
        else:
            cache.discard()

    def _prompt_read(self, state: State) -> None:
        self.caches[state.request.sequence].truncate(0)

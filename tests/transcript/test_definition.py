"""The native engine's arithmetic is defined to the bit. A record of another definition is no record that differs."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

import foretoken
from foretoken.kernels.reference import DEFINITION
from tests.tiny import needs_native
from tests.transcript.records import COUNT, MODEL, VERIFIED, Altered, Record, refusal

LONG = [3 + 7 * at % 1000 for at in range(300)]  # more than one block of attention


@needs_native
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the hashes below are of x86-64")
@pytest.mark.parametrize(
    ("dtype", "logits"),
    [
        ("bfloat16", "b0ea37c4dd73f1c1c8dfb5c3ba5b78a4ecce3926bbf7ed57d0cfd1fe17893c66"),
        ("float32", "81ff415a8d1eeb169ad779c71398ea6e0998a4a38b2e3d17b80f888da8af3c0b"),
    ],
)
def test_the_bits_are_those_of_this_definition(dtype: str, logits: str) -> None:
    """If this fails, and the new bits are meant: raise DEFINITION in kernels/reference.py, and write the new hashes.

    Other formats of weights are not looked at here.
    """
    assert DEFINITION == 2
    model = foretoken.load(MODEL, draft="none", dtype=dtype)
    done = model.generate(LONG, max_new_tokens=8, ignore_eos=True, hash_logits=True)
    assert len(done.tokens) == 8
    assert done.logits_sha256 == logits


def _of_before(*, differs: bool) -> Callable[[Record], object]:
    def change(told: Record) -> None:
        del told["arithmetic"]["definition"]
        if differs:
            told["logits_sha256"] = "0" * 64

    return change


@needs_native
def test_a_record_of_another_definition_is_refused_where_its_bits_are_others(altered: Altered) -> None:
    path = altered(_of_before(differs=True))
    assert refusal(path).startswith(
        f"{path}: {COUNT} tokens are equal, but their logits differ in some bit (recorded with definition 1, here "
        f"{DEFINITION}). It was made with definition 1 of the native engine's arithmetic, and this Foretoken has "
        f"definition {DEFINITION}, which may be why; verify it with the Foretoken that wrote it"
    )


@needs_native
def test_a_record_of_another_definition_is_proven_where_its_bits_are_the_same(altered: Altered) -> None:
    assert foretoken.verify(altered(_of_before(differs=False))) == VERIFIED
    assert VERIFIED.compared_tokens == COUNT

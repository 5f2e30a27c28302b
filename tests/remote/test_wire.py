"""Messages: what is packed is read again, in as many bytes as the format says; what is no message is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from foretoken.errors import RemoteError
from foretoken.remote.wire import (
    Code,
    DraftBody,
    ErrorBody,
    FeaturesBody,
    Kind,
    Message,
    OpenBody,
    ReadyBody,
    VerdictBody,
    read_json,
)

TOKENS = (0, 1, 255, 256, 65_536, (1 << 24) - 1)
BODIES = [
    (DraftBody(1000, TOKENS, (-1, 0, 0, 2, -1, 4)), DraftBody.read, 5 + 4 * len(TOKENS)),
    (DraftBody(7, (), ()), DraftBody.read, 5),
    (DraftBody(7, tuple(range(254)), tuple(range(-1, 253))), DraftBody.read, 5 + 4 * 254),
    (VerdictBody(1000, TOKENS, None), VerdictBody.read, 6 + 3 * len(TOKENS)),
    (VerdictBody(1, (5,), "length"), VerdictBody.read, 6 + 3),
    (VerdictBody(1, (5, 6), None, b"feature" * 2), lambda body: VerdictBody.read(body, 7), 6 + 3 * 2 + 7 * 2),
    (FeaturesBody(70_000, b"features"), FeaturesBody.read, 4 + 8),
    (ReadyBody(10, 3, 14, (7,), "stop"), ReadyBody.read_from, 14 + 3),
    (OpenBody({"seed": 3, "stop": ["é"]}, TOKENS, (9, 8)), lambda body: OpenBody.read(body, 8), None),
    (ErrorBody(Code.BUSY, "später"), ErrorBody.read, None),
]


@pytest.mark.parametrize(("body", "read", "size"), BODIES, ids=lambda each: type(each).__name__)
def test_what_is_packed_is_read_again(
    body: tuple[object, ...], read: Callable[[bytes], object], size: int | None
) -> None:
    packed = body.packed()  # type: ignore[attr-defined]
    assert read(packed) == body
    assert size in (None, len(packed)), "as many bytes as the format says"
    message = Message(Kind.DRAFT, 3, 4, packed, 5)
    assert Message.read(message.packed()) == message
    assert len(message.packed()) == 16 + len(packed)


@pytest.mark.parametrize(("body", "read", "size"), BODIES, ids=lambda each: type(each).__name__)
def test_what_is_cut_short_or_changed_is_refused_or_is_another_message(
    body: tuple[object, ...], read: Callable[[bytes], object], size: int | None
) -> None:
    packed, chance, refused = body.packed(), random.Random(1), 0  # type: ignore[attr-defined]
    for _ in range(300):
        spoiled = bytearray(packed)
        for _ in range(chance.randint(1, 3)):
            if spoiled and chance.random() < 0.5:
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            elif spoiled:
                del spoiled[chance.randrange(len(spoiled)) :]
            else:
                spoiled += chance.randbytes(3)
        try:
            read(bytes(spoiled))
        except RemoteError:  # any other error fails the test
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    "data", ["text", b"", b"\x01" * 15, b"\x02" + bytes(15), b"\x01\x63" + bytes(14), b"\x01\x05" + bytes(30)]
)
def test_what_is_no_message_is_refused(data: bytes | str) -> None:
    with pytest.raises(RemoteError, match="came"):
        Message.read(data)


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteError, match="something else than a JSON object"):
        read_json(body)


def test_what_is_larger_than_it_may_be_is_refused_before_anything_is_made_of_it() -> None:
    draft = DraftBody(0, tuple(range(255)), tuple(range(-1, 254)))
    for packed in (draft.packed(), draft.packed()[:-4]):
        with pytest.raises(RemoteError, match="a draft came with 255 tokens, expected at most 254"):
            DraftBody.read(packed)
    with pytest.raises(RemoteError, match="prompt and output have 3 tokens"):
        OpenBody.read(OpenBody({}, (1, 2), (3,)).packed(), 2)
    with pytest.raises(RemoteError, match="bytes of settings"):
        OpenBody.read(OpenBody({"regex": "a" * (1 << 18)}, (1,)).packed(), 2)


def test_a_child_before_its_parent_is_refused() -> None:
    body = bytearray(DraftBody(1, (5, 6), (-1, 0)).packed())
    body[8] = 1  # the first token would be a child of itself
    with pytest.raises(RemoteError, match="a child before its parent"):
        DraftBody.read(bytes(body))

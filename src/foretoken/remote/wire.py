"""The messages between a client and a host. Each is one binary message of a WebSocket: a header, then a body.

    bytes  header
    1      version of this format
    1      kind
    2      mark: a number of the client's, which the answer repeats
    4      session: a number of the client's for one generation
    4      round
    4      bytes of the body

Numbers are little-endian, and a token is three bytes. Nothing that comes is trusted: sizes are compared before anything
is made of them, and a message that is not as it should be raises RemoteError. What is text is JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from foretoken.errors import RemoteError
from foretoken.protocol.types import FinishReason

VERSION = 2
LARGEST = 1 << 24  # bytes of a message
MOST_JSON = 1 << 18  # bytes of what a client asks for
MOST_NODES = 254  # tokens of a draft: a parent is one byte, and so is the number of tokens of a verdict
_HEADER = struct.Struct("<BBHIII")
_DRAFT, _VERDICT, _READY, _OPEN, _ERROR = (struct.Struct(each) for each in ("<IB", "<IBB", "<IIIBB", "<III", "<H"))
_FEATURES = struct.Struct("<I")
_REASONS: tuple[FinishReason | None, ...] = (None, "stop", "length")


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1  # client: who it is, and what it knows
    WELCOME = 2  # host: its model, and what it allows
    OPEN = 3  # client: a prompt, and how to sample
    READY = 4  # host: the prompt was read; the first token
    DRAFT = 5  # client: tokens to check
    VERDICT = 6  # host: the tokens that follow
    PASSED = 7  # host: a draft was for another round, and was passed over
    CLOSE = 8  # client: a generation has ended
    FORGET = 9  # client: a conversation has ended; the session is its number
    FILES = 10  # client: asks for the tokenizer; host: sends it
    ERROR = 11  # host: why a session ended, or was refused
    FEATURES = 12  # host: what a trained drafter sees of a prompt's tokens


class Code(IntEnum):
    """Why a host sends an error."""

    REFUSED = 1  # what was asked makes no sense, or is not allowed
    GONE = 2  # the host does not know the session: it was idle for long, or the host was started again
    BUSY = 3  # as many sessions as it takes
    FAILED = 4  # the generation failed
    OTHER = 5  # the host writes another text than it did before


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    kind: Kind
    session: int = 0
    round: int = 0
    body: bytes = b""
    mark: int = 0

    def packed(self) -> bytes:
        """As it is sent."""
        return _HEADER.pack(VERSION, self.kind, self.mark, self.session, self.round, len(self.body)) + self.body

    def refused(self, code: Code, text: str) -> Message:
        """The error that answers it."""
        return Message(Kind.ERROR, self.session, self.round, ErrorBody(code, text).packed(), self.mark)

    @classmethod
    def read(cls, data: bytes | str) -> Message:
        """A message that came. Raises RemoteError for one that is none."""
        if isinstance(data, str) or len(data) < _HEADER.size:
            raise RemoteError(
                f"a message of {len(data)} bytes came, which is none of Foretoken's; see who answers there"
            )
        version, kind, mark, session, round_, size = _HEADER.unpack_from(data)
        if version != VERSION:
            raise RemoteError(f"a message of version {version} came, expected {VERSION}; install the same Foretoken")
        if kind not in Kind._value2member_map_ or size != len(data) - _HEADER.size:
            raise RemoteError(f"a message of kind {kind} came with {len(data)} bytes, of which its header says {size}")
        return cls(Kind(kind), session, round_, data[_HEADER.size :], mark)


class DraftBody(NamedTuple):
    """A draft. base: the position of its first token. parents: as in `Draft`."""

    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def packed(self) -> bytes:
        """5 bytes, and 4 for each token."""
        nodes = np.empty((len(self.tokens), 4), dtype=np.uint8)
        nodes[:, :3] = _ids(self.tokens)
        nodes[:, 3] = np.asarray(self.parents, dtype=np.int64) + 1
        return _DRAFT.pack(self.base, len(self.tokens)) + nodes.tobytes()

    @classmethod
    def read(cls, body: bytes) -> DraftBody:
        """Raises RemoteError for what is no draft."""
        base, count = _unpacked(_DRAFT, body)
        if count > MOST_NODES:
            raise RemoteError(f"a draft came with {count} tokens, expected at most {MOST_NODES}")
        _expect_size("a draft", body, _DRAFT.size + 4 * count)
        nodes = np.frombuffer(body, np.uint8, offset=_DRAFT.size).reshape(count, 4)
        parents = nodes[:, 3].astype(int) - 1
        if (parents >= np.arange(count)).any():
            raise RemoteError("a draft came with a child before its parent")
        return cls(base, _tokens(nodes[:, :3]), tuple(parents.tolist()))


class VerdictBody(NamedTuple):
    """New tokens from position `base` on. reason: why the text ends with them; None if it does not. features: of
    the positions from `base` - 1 on, as many as there are tokens, as `foretoken.remote.features` packs them; none if
    nobody wants them."""

    base: int
    tokens: tuple[int, ...]
    reason: FinishReason | None
    features: bytes = b""

    def packed(self) -> bytes:
        """6 bytes, 3 for each token, and the features."""
        head = _VERDICT.pack(self.base, len(self.tokens), _REASONS.index(self.reason))
        return head + _ids(self.tokens).tobytes() + self.features

    @classmethod
    def read(cls, body: bytes, width: int = 0) -> VerdictBody:
        """width: bytes of a row of features. Raises RemoteError for what is no verdict."""
        base, count, reason = _unpacked(_VERDICT, body)
        least = _VERDICT.size + 3 * count
        _expect_size("a verdict", body, least + (count * width if len(body) > least else 0))
        return cls(base, _tokens_of(body[_VERDICT.size : least]), _reason(reason), body[least:])


class FeaturesBody(NamedTuple):
    """Features of positions from `start` on, as `foretoken.remote.features` packs them."""

    start: int
    block: bytes

    def packed(self) -> bytes:
        """4 bytes, and the features."""
        return _FEATURES.pack(self.start) + self.block

    @classmethod
    def read(cls, body: bytes) -> FeaturesBody:
        """Raises RemoteError for what is no such body."""
        (start,) = _unpacked(_FEATURES, body)
        return cls(start, body[_FEATURES.size :])


class ReadyBody(NamedTuple):
    """A prompt that was read. read: of its tokens, how many this host has read just now; the others were cached.
    known: the number of tokens of prompt and output, with the new ones. tokens: the first token; none if the session
    was taken up again, where the client knows them all."""

    read: int
    cached: int
    known: int
    tokens: tuple[int, ...]
    reason: FinishReason | None

    def packed(self) -> bytes:
        """14 bytes, and 3 for each token."""
        head = _READY.pack(self.read, self.cached, self.known, len(self.tokens), _REASONS.index(self.reason))
        return head + _ids(self.tokens).tobytes()

    @classmethod
    def read_from(cls, body: bytes) -> ReadyBody:
        """Raises RemoteError for what is no such body."""
        read, cached, known, count, reason = _unpacked(_READY, body)
        _expect_size("an answer to a prompt", body, _READY.size + 3 * count)
        return cls(read, cached, known, _tokens_of(body[_READY.size :]), _reason(reason))


class OpenBody(NamedTuple):
    """A generation. asked: the fields of `GenerateSettings`, and of the request. output: tokens that the client has
    already, if the session is taken up again."""

    asked: Mapping[str, Any]
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()

    def packed(self) -> bytes:
        """12 bytes, the JSON, and 3 bytes for each token."""
        text = json.dumps(dict(self.asked)).encode()
        return (
            _OPEN.pack(len(text), len(self.prompt), len(self.output))
            + text
            + _ids((*self.prompt, *self.output)).tobytes()
        )

    @classmethod
    def read(cls, body: bytes, most: int) -> OpenBody:
        """Raises RemoteError for what is no such body, or has more than `most` tokens."""
        size, prompt, output = _unpacked(_OPEN, body)
        if prompt + output > most or size > MOST_JSON:
            raise RemoteError(
                f"prompt and output have {prompt + output} tokens and {size} bytes of settings; expected at most "
                f"{most} and {MOST_JSON}"
            )
        _expect_size("a prompt", body, _OPEN.size + size + 3 * (prompt + output))
        tokens = _tokens_of(body[_OPEN.size + size :])
        return cls(read_json(body[_OPEN.size : _OPEN.size + size]), tokens[:prompt], tokens[prompt:])


class ErrorBody(NamedTuple):
    """Why a session ended."""

    code: Code
    text: str

    def packed(self) -> bytes:
        """2 bytes, and the text."""
        return _ERROR.pack(self.code) + self.text.encode()

    @classmethod
    def read(cls, body: bytes) -> ErrorBody:
        """Raises RemoteError for what is no such body."""
        (code,) = _unpacked(_ERROR, body)
        if code not in Code._value2member_map_:
            raise RemoteError(f"an error with the number {code} came, which is none of Foretoken's")
        return cls(Code(code), body[_ERROR.size :].decode(errors="replace"))


def read_json(body: bytes) -> dict[str, Any]:
    """An object. Raises RemoteError for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):  # also of bytes that are no text
        found = None
    if not isinstance(found, dict):
        raise RemoteError("a message came with something else than a JSON object")
    return found


def to_json(**fields: Any) -> bytes:
    """An object."""
    return json.dumps(fields).encode()


def _unpacked(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise RemoteError(f"a message came with {len(body)} bytes, expected at least {layout.size}")
    return layout.unpack_from(body)


def _expect_size(what: str, body: bytes, size: int) -> None:
    if len(body) != size:
        raise RemoteError(f"{what} came with {len(body)} bytes, expected {size}")


def _reason(code: int) -> FinishReason | None:
    if code >= len(_REASONS):
        raise RemoteError(f"a reason with the number {code} came, which is none of Foretoken's")
    return _REASONS[code]


def _ids(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(tokens, dtype="<u4").view(np.uint8).reshape(len(tokens), 4)[:, :3]


def _tokens_of(body: bytes) -> tuple[int, ...]:
    return _tokens(np.frombuffer(body, np.uint8).reshape(-1, 3))


def _tokens(ids: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[int, ...]:
    wide = np.zeros((len(ids), 4), dtype=np.uint8)
    wide[:, :3] = ids
    return tuple(wide.view("<u4").ravel().tolist())

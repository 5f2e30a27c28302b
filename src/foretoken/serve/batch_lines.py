"""The lines of a batch: OpenAI's, or plain ones with a prompt or messages.

Source: OpenAI's guide "Batch API", for the lines of input. A batch may have a million lines, so they are read one by
one, twice. All that is kept of a line is two hashes.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, BinaryIO

from foretoken.errors import SettingError, cut, quoted
from foretoken.serve.answering import KINDS
from foretoken.serve.asking import SETTINGS
from foretoken.serve.errors import ServeError, refused
from foretoken.settings.generate import GenerateSettings

MOST = 16 * 1024**2  # bytes of a line
_PLAIN = {
    "prompt": "/v1/completions",
    "messages": "/v1/chat/completions",
    "input": "/v1/responses",
}  # of plain lines: by their field
# under which names a line may say how long the text becomes; the first one is ours
_LENGTHS = {
    "/v1/completions": ("max_tokens", "n_predict"),
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens", "n_predict"),
    "/v1/responses": ("max_output_tokens",),
}
_FORMS = ("response_format", "structured_outputs", "tools", "text")
_HALF = (1 << 64) - 1


@dataclass(frozen=True)
class Usual:
    """What holds for fields that a line leaves out. form: of the output."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    length: int = 128
    form: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, settings: GenerateSettings) -> Usual:
        """As settings say."""
        fields = {name: getattr(settings, name) for name in (*SETTINGS, "seed", "ignore_eos")}
        if settings.stops:
            fields["stop"] = list(settings.stops)
        if settings.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in settings.logit_bias.items()}
        constraint = settings.constraint
        names = {"regex": "regex", "json_schema": "json", "lark": "grammar"}
        form = None if constraint is None else {names[constraint[0]]: constraint[1]}
        return cls(fields, settings.max_new_tokens, form)

    def fill(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A body with what it leaves out."""
        given = {name for name, value in body.items() if value is not None}
        whole = {name: value for name, value in body.items() if name != "stream"}  # an answer is always whole
        for name, value in self.fields.items():
            also = "repeat_penalty" if name == "repetition_penalty" else name
            if value is not None and name not in given and also not in given:
                whole[name] = value
        if given.isdisjoint(_LENGTHS[url]):
            whole[_LENGTHS[url][0]] = self.length
        if self.form is not None and given.isdisjoint(_FORMS):
            whole["structured_outputs"] = dict(self.form)
        return whole


@dataclass(frozen=True)
class Line:
    """A line of a batch. number: from 1 on. name: its custom_id. mark: 64 bits of a hash of all that its answer depends
    on. url, body: what it asks for, with what is usual; or the error of a line that nobody can answer."""

    number: int
    name: str
    mark: int
    url: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    error: ServeError | None = None


def read_line(number: int, raw: bytes | None, usual: Usual) -> Line:
    """A line as it is in the file; None: it is too long."""
    name, content = f"line-{number}", b"" if raw is None else raw
    try:
        if raw is None:
            raise ServeError(413, f"line {number} is longer than {MOST >> 20} MiB; send less")
        given = _object(number, raw)
        name = _name(given, name)
        url, body = _asked(number, given)
        body = usual.fill(url, body)
        content = _canonical(number, [url, body])
    except ServeError as error:
        return Line(number, name, _mark(name, content), error=error)
    return Line(number, name, _mark(name, content), url, body)


def _object(number: int, raw: bytes) -> dict[str, Any]:
    try:
        given = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"line {number} is not JSON ({cut(str(error), 80)})") from None
    if not isinstance(given, dict):
        raise ServeError(400, f"line {number} is {quoted(given)}, expected a JSON object")
    return given


def _canonical(number: int, content: Any) -> bytes:
    try:
        return json.dumps(content, sort_keys=True).encode()
    except RecursionError:
        raise ServeError(400, f"line {number} is nested too deeply") from None


def _name(given: Mapping[str, Any], usual: str) -> str:
    name = given.get("custom_id", usual)
    if not isinstance(name, str) or not name:
        raise refused("custom_id", f"custom_id is {quoted(name)}, expected text")
    return name


def _asked(number: int, given: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The address and the body of a line."""
    if given.keys().isdisjoint(("url", "body", "method")):
        url = next((url for name, url in _PLAIN.items() if name in given), None)
        if url is None:
            raise ServeError(400, f"line {number} has neither a url and a body, nor a prompt, nor messages")
        return url, {name: value for name, value in given.items() if name != "custom_id"}
    method, url, body = given.get("method", "POST"), given.get("url"), given.get("body")
    if method != "POST":
        raise refused("method", f"method is {quoted(method)}, expected POST")
    if not isinstance(url, str) or url not in KINDS:
        raise refused("url", f"url is {quoted(url)}, expected one of {', '.join(KINDS)}")
    if not isinstance(body, dict):
        raise refused("body", f"body is {quoted(body)}, expected a JSON object")
    return url, body


def _mark(name: str, content: bytes) -> int:
    return _hash(name.encode("utf-8", "surrogatepass") + b"\0" + content)


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Lines:
    """The lines of a file that can be read again. place: the file's name, for messages."""

    file: BinaryIO
    place: str
    usual: Usual

    def __iter__(self) -> Iterator[Line]:
        """From the first one on, without those that are empty."""
        self.file.seek(0)
        number = 0
        while raw := self.file.readline(MOST + 1):
            number += 1
            if len(raw) > MOST and not raw.endswith(b"\n"):
                while (more := self.file.readline(1 << 20)) and not more.endswith(b"\n"):
                    pass
                yield read_line(number, None, self.usual)
            elif raw.strip():
                yield read_line(number, raw, self.usual)


class Index:
    """Which lines there are, and which of them are done: 17 bytes a line."""

    def __init__(self, lines: Lines) -> None:
        """Raises SettingError if two lines have one custom_id."""
        both = sorted(_hash_of(line.name) << 64 | line.mark for line in lines)
        self._names = array("Q", (each >> 64 for each in both))
        self._marks = array("Q", (each & _HALF for each in both))
        self._done = bytearray(len(both))
        del both
        again = {name for name, following in zip(self._names, self._names[1:], strict=False) if name == following}
        if again:
            _refuse_repeated(lines, again)

    def __len__(self) -> int:
        return len(self._done)

    @property
    def done(self) -> int:
        """How many lines are done."""
        return sum(self._done)

    def mark_of(self, name: str) -> int | None:
        """The mark of the line with a custom_id; None if there is no such line."""
        at = self._place(name)
        return None if at is None else self._marks[at]

    def note(self, name: str) -> None:
        """The line with this custom_id is done."""
        at = self._place(name)
        if at is not None:
            self._done[at] = 1

    def left(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Lines that are not done. Raises SettingError for one that was not there when the index was made."""
        for line in lines:
            at = self._place(line.name)
            if at is None or self._marks[at] != line.mark:
                raise SettingError(f"line {line.number} has changed since the batch began; start the command again")
            if not self._done[at]:
                yield line

    def _place(self, name: str) -> int | None:
        hashed = _hash_of(name)
        at = bisect_left(self._names, hashed)
        return at if at < len(self._names) and self._names[at] == hashed else None


def _hash_of(name: str) -> int:
    return _hash(name.encode("utf-8", "surrogatepass"))


def _refuse_repeated(lines: Lines, hashes: set[int]) -> None:
    first: dict[int, Line] = {}
    for line in lines:
        hashed = _hash_of(line.name)
        before = first.setdefault(hashed, line) if hashed in hashes else line
        if before is line:
            continue
        if before.name == line.name:
            what = f"have the same custom_id ({quoted(line.name)}); give each line its own"
        else:  # which is as likely as nothing
            what = f"have custom_ids of one hash ({quoted(before.name)}, {quoted(line.name)}); change one of them"
        raise SettingError(f"lines {before.number} and {line.number} of {lines.place} {what}")

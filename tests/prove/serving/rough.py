"""Rough use: clients that are many, slow, deaf, or huge, or that talk garbage. Others must be served meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.prove.serving.answers import whole
from tests.prove.serving.asks import Ask
from tests.prove.serving.garbage import messages
from tests.prove.serving.process import Process

_MIB = 1024**2
_PIECE = b"x" * 65536
MORE = 200  # MiB that a server may hold beyond what it held before
_PATIENCE = 60.0  # seconds for an answer
_AT_ONCE = 32  # clients that send garbage


@dataclass(frozen=True)
class Size:
    """How much of each; 0: none of it. connections: a half of them sends a byte a second. deaf: clients that never
    read. huge: bytes of a body. garbage: random messages, beside those that are known. patience: seconds without an
    answer after which there will be none, because the garbage may be the beginning of a request."""

    connections: int = 1000
    seconds: float = 20.0
    deaf: int = 64
    huge: int = 10**9
    pipelined: int = 50
    garbage: int = 400
    patience: float = 2.0


class _Rough:
    def __init__(self, process: Process, asks: Sequence[Ask], seed: int, size: Size) -> None:
        self._process, self._size, self._chance = process, size, random.Random(seed)
        self._asks = [ask for ask in asks if not ask.chat and len(ask.expected) == 1 and "echo" not in ask.body]
        self._statuses: Counter[str] = Counter()
        self._faults: list[str] = []

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, what, many in (
            ("slow", self._slow, self._size.connections),
            ("deaf", self._deaf, self._size.deaf),
            ("huge", self._huge, self._size.huge),
            ("pipelined", self._pipelined, self._size.pipelined),
            ("garbage", self._garbage, self._size.garbage),
        ):
            if not many:
                continue
            before, began = self._process.rss, time.perf_counter()
            self._statuses.clear()
            with self._process.watched() as samples:
                its = asyncio.run(self._during(what))
                status = self._process.wait_until_idle()
            if status["running"] or status["waiting"]:
                self._faults.append(f"{name}: something is left behind: {status['running']}")
            more = round((max((held for _, held in samples), default=before) - before) / _MIB, 1)
            if more > MORE:
                self._faults.append(f"{name}: the server held {more} MiB more")
            wrong = [each for each in self._statuses if each.startswith("5")]
            if wrong:
                self._faults.append(f"{name}: answers of status {', '.join(wrong)}")
            found[name] = {
                **its,
                "statuses": dict(sorted(self._statuses.items())),
                "more_mib": more,
                "seconds": round(time.perf_counter() - began, 1),
            }
        return {**found, "faults": self._faults}

    async def _during(self, what: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Something rough, and beside it a client that asks as one should. Its answers are compared."""
        ended, waits, answered = asyncio.Event(), [0.0], 0

        async def usual() -> None:
            nonlocal answered
            while not ended.is_set():
                ask = self._chance.choice(self._asks)
                began = time.perf_counter()
                try:
                    status, content = await asyncio.wait_for(self._ask(ask.path, ask.body), _PATIENCE)
                    if status != 200:
                        raise RuntimeError(f"{status}: {content[:300]!r}")
                    whole(ask, content)
                except Exception as error:
                    self._faults.append(f"a usual client: {error!r}")
                waits.append(time.perf_counter() - began)
                answered += 1
                await asyncio.sleep(0.05)

        beside = asyncio.create_task(usual())
        try:
            its = await what()
        finally:
            ended.set()
            await beside
        return {**its, "others_answered": answered, "others_waited_seconds": round(max(waits), 2)}

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._process.place)

    async def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        reader, writer = await self._open()
        try:
            writer.write(_request(path, body, close=True))
            return _parsed(await reader.read())
        finally:
            writer.close()

    def _saw(self, answer: bytes) -> None:
        """Count the statuses in what came back."""
        found = re.findall(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n", answer)
        self._statuses.update(each.decode() for each in found)
        if not found:
            self._statuses["closed"] += 1

    # -- the kinds --------------------------------------------------------------------------------------------------

    async def _slow(self) -> dict[str, Any]:
        """Connections that stay open. A half of them send a request, a byte a second."""
        opened, whole_ones = 0, 0
        body = _request("/v1/completions", {"prompt": "def add(", "max_tokens": 2}, close=True)
        end = time.monotonic() + self._size.seconds

        async def client(number: int) -> None:
            nonlocal opened, whole_ones
            await asyncio.sleep(number / self._size.connections)
            reader, writer = await self._open()
            opened += 1
            sent = 0
            # of those that send, some begin near the end, so that their requests become whole
            at = len(body) - 10 if number % 8 == 1 else number % (len(body) - 20)
            if number % 2:
                writer.write(body[:at])
                sent = at
            while time.monotonic() < end:
                if sent and sent < len(body):
                    writer.write(body[sent : sent + 1])
                    sent += 1
                    if sent == len(body):
                        self._saw(await reader.read())
                        whole_ones += 1
                        break
                await asyncio.sleep(1.0)
            writer.close()

        done = await asyncio.gather(*map(client, range(self._size.connections)), return_exceptions=True)
        failed = [repr(each) for each in done if isinstance(each, Exception)]
        if failed:
            self._faults.append(f"slow: {len(failed)} connections failed, the first with {failed[0]}")
        return {"connections": opened, "requests_that_became_whole": whole_ones}

    async def _deaf(self) -> dict[str, Any]:
        """Clients that ask for long streams, with all that can be told, and never read."""
        body = {"prompt": "import os\n", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 20}
        body |= {"foretoken": {"trace": True}, "stream_options": {"continuous_usage_stats": True}}
        writers = []
        for _ in range(self._size.deaf):
            reader, writer = await asyncio.open_connection(*self._process.place, limit=1)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(_request("/v1/completions", body, close=False))
            writers.append(writer)
        end = time.monotonic() + 2 * self._size.seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            status = await asyncio.to_thread(self._process.get, "/v1/foretoken/status")
            if not status["running"] and not status["waiting"]:
                break
        for writer in writers:
            writer.transport.abort()
        return {"clients": len(writers)}

    async def _huge(self) -> dict[str, Any]:
        """Bodies that are far too large. The server may close the connection as soon as it has answered."""
        sent: dict[str, int] = {}
        for name, head in (
            ("with a length", f"content-length: {self._size.huge}"),
            ("in chunks", "transfer-encoding: chunked"),
        ):
            reader, writer = await self._open()
            line = (
                f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
            )
            writer.write(line.encode())
            answer = asyncio.create_task(_all_of(reader))
            piece = b"%x\r\n%s\r\n" % (len(_PIECE), _PIECE) if "chunked" in head else _PIECE
            sent[name] = 0
            try:
                while sent[name] < self._size.huge and not answer.done():
                    writer.write(piece)
                    await writer.drain()
                    sent[name] += len(_PIECE)
                    await asyncio.sleep(0)
                if "chunked" in head and not answer.done():
                    writer.write(b"0\r\n\r\n")
                await asyncio.wait([answer], timeout=2.0)
            except ConnectionError:
                await asyncio.wait([answer], timeout=2.0)
            writer.transport.abort()
            got = await answer
            self._saw(got)
            if b" 413 " not in got[:40]:
                self._faults.append(f"huge, {name}: {got[:100]!r}, expected 413")
        return {"sent_mib": {name: round(each / _MIB) for name, each in sent.items()}}

    async def _pipelined(self) -> dict[str, Any]:
        """Many requests at once on one connection. They are answered in their order."""
        asks = [self._chance.choice(self._asks) for _ in range(self._size.pipelined)]
        reader, writer = await self._open()
        writer.write(b"".join(_request(ask.path, ask.body, close=False) for ask in asks))
        right = 0
        for ask in asks:
            try:
                status, content = await asyncio.wait_for(_one(reader), _PATIENCE)
            except (TimeoutError, asyncio.IncompleteReadError) as error:
                self._faults.append(f"pipelined: {right} of {len(asks)} were answered, then {error!r}")
                break
            self._statuses[str(status)] += 1
            try:
                whole(ask, content)
            except Exception as error:
                self._faults.append(f"pipelined: {error!r}")
            right += 1
        writer.close()
        return {"requests": len(asks), "answered": right}

    async def _garbage(self) -> dict[str, Any]:
        """What is no HTTP, and what is no request."""
        every = messages(self._chance, self._size.garbage)
        few = asyncio.Semaphore(_AT_ONCE)

        async def client(message: bytes, ends: bool) -> None:
            async with few:
                reader, writer = await self._open()
                try:
                    writer.write(message)
                    if ends:
                        writer.write_eof()
                    answer = await _within(reader, self._size.patience)
                except ConnectionError:
                    answer = b""
                writer.transport.abort()
            self._saw(answer)
            if b"\nx-injected" in answer.partition(b"\r\n\r\n")[0] or b"HTTP/1.1 5" in answer:
                self._faults.append(f"garbage: {message[:300]!r} was answered with {answer[:300]!r}")

        await asyncio.gather(*(client(message, self._chance.random() < 0.5) for message in every))
        return {"messages": len(every)}


def rough(process: Process, asks: Sequence[Ask], seed: int, size: Size) -> dict[str, Any]:
    """Use a server roughly, and say what came of it, with what is wrong."""
    found = _Rough(process, asks, seed, size).run()
    tracebacks = process.said.count("Traceback")
    if tracebacks:
        at = process.said.index("Traceback")
        found["faults"].append(f"the log has {tracebacks} tracebacks: {process.said[at : at + 3000]}")
    return found


def _request(path: str, body: dict[str, Any], *, close: bool) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return head.encode() + (b"connection: close\r\n" if close else b"") + b"\r\n" + content


def _parsed(answer: bytes) -> tuple[int, bytes]:
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), content


async def _one(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next answer of a connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while piece := await reader.read(65536):
            found += piece
    except ConnectionError:
        pass
    return found


async def _within(reader: asyncio.StreamReader, seconds: float) -> bytes:
    """What comes until the connection is closed, or until nothing has come for so many seconds."""
    found = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), seconds):
            found += piece
    except (TimeoutError, ConnectionError):
        pass
    return found

"""The soak: many clients ask one server, and a fifth of them go away at a random moment."""

from __future__ import annotations

import http.client
import json
import random
import socket
import statistics
import struct
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.prove.serving.answers import Difference, Streamed, whole
from tests.prove.serving.asks import Ask, sending
from tests.prove.serving.process import Process

ABORTED = 0.2  # the share of requests whose client goes away
_LONGEST = 1.5  # seconds after which it does so, at most
_RESET = struct.pack("ii", 1, 0)
_MOST_ERRORS = 10  # after which nothing more is asked
GROWS = 0.05  # the share by which memory may grow after the first fifth
# what must have happened, or the soak shows nothing
ALWAYS = (
    *("greedy", "sampled", "several texts", "several prompts", "prompts of token ids", "prompts that begin alike"),
    *("prompts that go on", "talks", "talks that go on", "grammars", "stop strings", "ended by a stop string"),
    *("biased tokens", "log probabilities", "echo", "predictions", "draft none", "streams", "whole answers"),
    *("aborted while it was sent", "aborted streams", "aborted whole answers", "reset", "rounds of several texts"),
    *("accepted draft tokens", "tokens of broken streams"),
)


@dataclass
class Tally:
    """What came of the requests."""

    done: int = 0
    texts: int = 0
    tokens: int = 0
    events: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Client:
    """One client, which asks one thing after another on a connection that it keeps."""

    def __init__(self, process: Process, chance: random.Random, levels: Sequence[str], tally: Tally) -> None:
        self._process, self._chance, self._levels, self._tally = process, chance, levels, tally
        self._kept: http.client.HTTPConnection | None = None

    def ask(self, ask: Ask) -> None:
        """Ask, and compare."""
        tally = self._tally
        body, kinds = sending(ask, self._chance, self._levels)
        texts = tokens = 0
        status = "none"
        try:
            if self._chance.random() < ABORTED:
                status = "gone"
                tokens = self._go_away(ask, body, kinds)
            else:
                status, texts, tokens = self._answered(ask, body, kinds)
                kinds += ["ended by a stop string" for done in ask.expected if done.stop_string is not None]
        except Difference as error:
            self.close()
            with tally.lock:
                tally.differences.append(f"{error}; {ask.path} {json.dumps(body)}"[:4000])
        except Exception as error:
            self.close()
            with tally.lock:
                tally.errors.append(f"{error!r}; {ask.path} {json.dumps(body)}"[:2000])
        with tally.lock:
            tally.done += 1
            tally.texts += texts
            tally.tokens += tokens
            tally.statuses[status] += 1
            tally.events.update(kinds)

    def _answered(self, ask: Ask, body: dict[str, Any], kinds: list[str]) -> tuple[str, int, int]:
        answer = self._send(ask, body)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read()[:300]!r}")
        if body.get("stream"):
            streamed = Streamed(ask)
            for line in answer:
                streamed.line(line)
            tokens = streamed.whole()
            kinds += ["rounds of several texts"] * streamed.shared
        else:
            tokens = whole(ask, answer.read())
        return "200", len(ask.expected), tokens

    def _go_away(self, ask: Ask, body: dict[str, Any], kinds: list[str]) -> int:
        """Ask, and hang up: while the request is being sent, in the middle of a stream, or while waiting."""
        tokens, streams = 0, bool(body.get("stream"))
        until = time.monotonic() + self._chance.uniform(0.0, _LONGEST)
        if self._chance.random() < 0.1:
            self._send_a_part(ask, body)
            kinds.append("aborted while it was sent")
        elif streams:
            answer = self._send(ask, body)
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {answer.read()[:300]!r}")
            streamed = Streamed(ask)
            lines = self._chance.randrange(12)
            while lines and time.monotonic() < until and (line := answer.readline()):
                streamed.line(line)
                lines -= 1
            tokens = streamed.part()
            kinds += ["aborted streams", *["tokens of broken streams"] * tokens]
        else:
            self._send(ask, body, answered=False)
            time.sleep(max(0.0, until - time.monotonic()))
            kinds.append("aborted whole answers")
        if self._chance.random() < 0.3 and self._kept is not None and self._kept.sock is not None:
            self._kept.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            kinds.append("reset")
        self.close()
        return tokens

    def _send_a_part(self, ask: Ask, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.close()
        with socket.create_connection(self._process.place) as its:
            head = f"POST {ask.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            message = head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content
            its.sendall(message[: self._chance.randrange(1, len(message))])

    def _send(self, ask: Ask, body: dict[str, Any], *, answered: bool = True) -> Any:
        if self._kept is None or self._chance.random() < 0.05:
            self.close()
            self._kept = http.client.HTTPConnection(*self._process.place, timeout=120)
        self._kept.request("POST", ask.path, json.dumps(body).encode(), {"content-type": "application/json"})
        return self._kept.getresponse() if answered else None

    def close(self) -> None:
        """Hang up."""
        if self._kept is not None:
            self._kept.close()
        self._kept = None


def soak(
    process: Process,
    asks: Sequence[Ask],
    requests: int,
    seed: int,
    clients: int,
    told: Callable[[Tally], None] = lambda tally: None,
) -> dict[str, Any]:
    """Send so many requests, and say what came of them. told: now and then, how far it is."""
    levels = process.get("/v1/foretoken/status")["levels"]
    tally = Tally()
    numbers = iter(range(requests))
    began = time.perf_counter()

    def work(number: int) -> None:
        chance = random.Random(f"{seed}:{number}")
        client = _Client(process, chance, levels, tally)
        while True:
            with tally.lock:
                if next(numbers, None) is None or tally.differences or len(tally.errors) >= _MOST_ERRORS:
                    break
            client.ask(chance.choice(asks))
            if (tally.done * 20) // requests > ((tally.done - 1) * 20) // requests:
                told(tally)
        client.close()

    with process.watched(lambda: tally.done) as samples:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        status = process.wait_until_idle()
    seconds = time.perf_counter() - began
    values = _metrics(process)
    tally.events["accepted draft tokens"] = round(values.get("spec_decode_num_accepted_tokens_total", 0))
    tally.events["tokens of prompts that were not read again"] = round(values.get("prompt_tokens_cached_total", 0))
    left = [f"{name} is {values[name]}" for name in ("num_requests_running", "num_requests_waiting") if values[name]]
    left += [f"a request is left behind: {each}" for each in status["running"]]
    tracebacks = process.said.count("Traceback")
    if tracebacks:
        at = process.said.index("Traceback")
        tally.errors.append(f"the server's log has {tracebacks} tracebacks: {process.said[at : at + 3000]}")
    return {
        "requests": tally.done,
        "requests_per_second": round(tally.done / seconds, 2),
        "distinct_requests": len(asks),
        "clients": clients,
        "levels": levels,
        "compared_texts": tally.texts,
        "compared_tokens": tally.tokens,
        "statuses": dict(sorted(tally.statuses.items())),
        "errors": tally.errors + left,
        "differences": tally.differences,
        "memory": memory(samples, requests),
        "events": dict(sorted(tally.events.items())),
        "never_happened": [name for name in ALWAYS if not tally.events[name]],
        "seconds": round(seconds, 1),
    }


def memory(samples: Sequence[tuple[int, int]], requests: int) -> dict[str, Any]:
    """What a server held, by fifths of its requests, in MiB; and how much more after the first fifth than in it."""
    fifths: list[list[int]] = [[] for _ in range(5)]
    for done, held in samples:
        fifths[min(4, done * 5 // requests)].append(held)
    most = [max(each, default=0) for each in fifths]
    usual = [round(statistics.median(each)) if each else 0 for each in fifths]
    return {
        "most_mib": [_mib(each) for each in most],
        "usual_mib": [_mib(each) for each in usual],
        "grew": round(max(most[1:]) / most[0] - 1.0, 4) if most[0] else None,
    }


def grew_too_much(found: dict[str, Any]) -> str | None:
    """Why memory is not flat; None if it is."""
    grew = found["grew"]
    if grew is None or grew <= GROWS:
        return None
    return f"memory grew by {100 * grew:.1f} % after the first fifth: {found['most_mib']} MiB"


def _mib(held: int) -> float:
    return round(held / 1024**2, 1)


def _metrics(process: Process) -> dict[str, float]:
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.partition("{")[0].partition(":")[2]: float(line.rpartition(" ")[2]) for line in lines}


def told(tally: Tally) -> str:
    """A line about how far it is."""
    return f"{tally.done} requests, {tally.tokens:,} tokens, {len(tally.errors)} errors"

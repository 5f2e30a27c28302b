"""How does a server do under load? `python -m foretoken.bench.serving --model MODEL`.

A server runs in a process of its own, and is asked over HTTP as a program asks it. Two things are measured.

- Load: 1, 2, 4, 8 and 16 requests at once, by the server's draft and by plain decoding (`draft: none`), in turn, in
  reverse order in every second repeat, after a run of each that does not count. Tokens a second are those of all
  requests together, prompts included.
- A newcomer: a request with a long prompt comes while seven others decode. How long does it wait for its first token,
  beside the same request alone? How long do the others wait meanwhile? Events come once a round. Between events is what
  a reader waits for more text; between tokens, each token has its share of that time.

Every greedy text is compared with the one that plain decoding gives at the same place.

With `--beside NAME=URL`, another server that speaks OpenAI's language and has the same model is under the same load, in
turn. It must take prompts of token ids, and `ignore_eos`, as vLLM's and llama.cpp's do. No server is to use what it has
read for earlier requests (`cache_prompt` is false; vLLM needs `--no-enable-prefix-caching`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import urlparse

import torch
from rich.progress import track

from foretoken.api.checkpoint import expect_device
from foretoken.bench.fields import expect_counts
from foretoken.bench.on_gpu import name_of
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, suite_for
from foretoken.bench.suites import first_turn
from foretoken.common.source import resolve
from foretoken.errors import InputError, SettingError
from foretoken.settings.load import LoadSettings
from foretoken.text.tokenizer import Tokenizer

AT_ONCE = (1, 2, 4, 8, 16)
_OTHERS = 7  # that decode when the newcomer comes
_DRAFTED, _PLAIN = "drafted", "plain"
_READ = 16  # the last tokens of a prompt that are read under load, so that decoding is what is measured


@dataclass
class Heard:
    """What came of one request: its tokens, and when each event came that brought some, with how many it brought."""

    began: float
    tokens: list[int] = field(default_factory=list)
    events: list[tuple[float, int]] = field(default_factory=list)
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def first(self) -> float:
        """Seconds until the first token."""
        return self.events[0][0] - self.began

    def gaps(self, since: float, until: float) -> list[tuple[float, int]]:
        """Seconds between events, with the tokens that the second one brings: of all waits that lie in a span of time
        or reach into it."""
        pairs = zip(self.events, self.events[1:], strict=False)
        return [(now - before, count) for (before, _), (now, count) in pairs if since <= now and before <= until]


Ask = Callable[[Sequence[int]], Heard]  # continues a prompt


class Client:
    """Asks a server, over a connection for each request."""

    def __init__(self, url: str) -> None:
        place = urlparse(url)
        self._host, self._port = str(place.hostname), place.port
        self.place = f"{self._host}:{self._port}"

    def complete(
        self, prompt: Sequence[int], count: int, draft: str | None = None, until: threading.Event | None = None
    ) -> Heard:
        """A stream, heard to its end, or until an event is set."""
        more = {
            "stream": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            **({} if draft is None else {"draft": draft}),
        }
        heard = Heard(time.perf_counter())
        with self._asked(prompt, count, more) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    self._note(heard, json.loads(line[6:]))
                if until is not None and until.is_set():
                    break
        return heard

    def count(self, prompt: Sequence[int], count: int) -> Heard:
        """An answer as a whole, of which only the number of tokens is known: from another server."""
        heard = Heard(time.perf_counter())
        with self._asked(prompt, count, {}) as answer:
            made = json.loads(answer.read()).get("usage", {}).get("completion_tokens")
        if made != count:
            raise InputError(f"{self.place} has generated {made} tokens, expected {count}")
        return heard

    @contextmanager
    def _asked(self, prompt: Sequence[int], count: int, more: Mapping[str, Any]) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request for so many tokens. more: fields of the request."""
        body = {
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            **more,
        }
        connection = http.client.HTTPConnection(self._host, self._port, timeout=3600)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise InputError(f"{self.place} refuses: {answer.read()[:300].decode('utf-8', 'replace')}")
            yield answer
        except OSError as error:
            raise InputError(f"{self.place} does not answer: {error}") from None
        finally:
            connection.close()

    def _note(self, heard: Heard, event: dict[str, Any]) -> None:
        if "error" in event:
            raise InputError(f"the server failed: {event['error']['message']}")
        for choice in event["choices"]:
            tokens = choice.get("token_ids") or []
            if tokens:
                heard.events.append((time.perf_counter(), len(tokens)))
                heard.tokens += tokens
        if not event["choices"]:
            heard.draft_tokens, heard.accepted_tokens = (event["timings"][n] for n in ("draft_n", "draft_n_accepted"))


@contextmanager
def served(model: str, draft: str | None, *more: str) -> Iterator[Client]:
    """A client of a server that runs in a process of its own."""
    chosen = [] if draft is None else ["--draft", draft]
    command = [sys.executable, "-m", "foretoken", "serve", model, "--port", "0", "--log", "none", *chosen, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said = line
            if "base URL" in line:
                yield Client(line.split()[-1])
                return
        raise SettingError(f"the server did not begin ({said.strip()})")
    finally:
        process.terminate()
        process.stderr.close()
        process.wait(60)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    expect_counts(args, repeats=1, max_new_tokens=2)
    others = {name: Client(url) for name, url in map(_named, args.beside or ())}
    tokenizer = Tokenizer.load(resolve(args.model))
    suite = suite_for(args.model, args.suite)
    prompts = [first_turn(prompt, tokenizer) for prompt in suite.prompts]
    expect_device(LoadSettings(device=args.device).device)
    with served(args.model, args.draft, "--device", args.device) as client:
        ways: dict[str, Ask] = {
            _DRAFTED: partial(client.complete, count=args.max_new_tokens),
            _PLAIN: partial(client.complete, count=args.max_new_tokens, draft="none"),
            **{name: partial(other.count, count=args.max_new_tokens) for name, other in others.items()},
        }
        load = [_under_load(ways, prompts, count, args) for count in args.at_once or AT_ONCE]
        newcomer = _newcomer(client, prompts, args) if args.prompt_tokens else None
    return {
        **asked_of(args.model, suite),
        "device": args.device if args.device == "cpu" else name_of(torch.device(args.device)),
        "draft": args.draft or "auto",
        "new_tokens": args.max_new_tokens,
        "repeats": args.repeats,
        "load": load,
        "newcomer": newcomer,
    }


def _named(spec: str) -> tuple[str, str]:
    """A server's name and its address."""
    name, equals, url = spec.partition("=")
    if not name or not equals or not urlparse(url).port or name in (_DRAFTED, _PLAIN):
        raise SettingError(f"--beside is {spec!r}, expected NAME=URL, such as llama.cpp=http://127.0.0.1:8080")
    return name, url


def _under_load(
    ways: Mapping[str, Ask], prompts: Sequence[Sequence[int]], count: int, args: argparse.Namespace
) -> dict[str, Any]:
    """So many requests at once, in each way."""
    asked = [prompts[at % len(prompts)][-_READ - at // len(prompts) :] for at in range(count)]
    runs: dict[str, list[tuple[float, list[Heard]]]] = {name: [] for name in ways}
    for repeat in track(range(args.repeats + 1), f"{count} at once"):
        for name in list(ways)[:: -1 if repeat % 2 else 1]:
            began = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                heard = list(pool.map(ways[name], asked))
            runs[name].append((time.perf_counter() - began, heard))
    runs = {name: its[1:] for name, its in runs.items()}  # the first does not count
    drafted, plain = runs[_DRAFTED], runs[_PLAIN]
    texts = [
        (a.tokens, b.tokens) for (_, x), (_, y) in zip(drafted, plain, strict=True) for a, b in zip(x, y, strict=True)
    ]
    every = [each for _, heard in drafted for each in heard]
    speeds = {
        name: round(median(count * args.max_new_tokens / took for took, _ in its), 2) for name, its in runs.items()
    }
    ratios = {
        name: [round(other[0] / ours[0], 3) for ours, other in zip(drafted, its, strict=True)]
        for name, its in runs.items()
    }
    return {
        "at_once": count,
        "tokens_per_second": speeds[_DRAFTED],
        "plain_tokens_per_second": speeds[_PLAIN],
        "times_plain": round(median(ratios[_PLAIN]), 3),
        "times_plain_by_repeat": ratios[_PLAIN],
        "draft_tokens": sum(each.draft_tokens for each in every),
        "accepted_tokens": sum(each.accepted_tokens for each in every),
        "texts_with_other_tokens": sum(a != b for a, b in texts),
        "beside": {
            name: {
                "tokens_per_second": speeds[name],
                "ours_times": round(median(ratios[name]), 3),
                "ours_times_by_repeat": ratios[name],
            }
            for name in list(ways)[2:]
        },
    }


def _newcomer(client: Client, prompts: Sequence[Sequence[int]], args: argparse.Namespace) -> dict[str, Any]:
    """A request with a long prompt, alone and while others decode."""
    long = [token for prompt in prompts for token in prompt]
    size = args.prompt_tokens
    if len(long) < size + args.repeats:
        raise SettingError(f"the suite has {len(long)} tokens in all, expected {size + args.repeats}")

    def newcomer(at: int) -> list[int]:  # each of its own, so that nothing of it was read before
        return [long[at], *long[at + 1 :][: size - 1]][::-1]

    alone, beside, begun = [], [], 0
    gaps: list[tuple[float, int]] = []
    while_read: list[tuple[float, int]] = []
    for repeat in track(range(args.repeats), "a newcomer"):
        alone.append(client.complete(newcomer(2 * repeat), 2).first)
        done = threading.Event()
        with ThreadPoolExecutor(_OTHERS) as pool:
            others = [
                pool.submit(_text_after_text, client, prompts[at % len(prompts)][-_READ:], args.decoding, done)
                for at in range(_OTHERS)
            ]
            time.sleep(args.lead)
            came = time.perf_counter()
            try:
                new = client.complete(newcomer(2 * repeat + 1), 2)
            finally:
                done.set()
            heard = [text for other in others for text in other.result()]
        beside.append(new.first)
        first = new.events[0][0]
        for each in heard:
            gaps += each.gaps(each.began, each.events[-1][0])
            while_read += each.gaps(came, first)
            begun += came < each.began < first
    return {
        "prompt_tokens": size,
        "others": _OTHERS,
        "first_token_alone_seconds": round(median(alone), 3),
        "first_token_beside_seconds": round(median(beside), 3),
        "times_alone": round(median(beside) / median(alone), 3),
        "texts_begun_meanwhile": begun,  # of the others, each of which has waited for its own first token
        "others_between_tokens": _spread(_of_tokens(gaps)),
        "others_between_tokens_while_it_is_read": _spread(_of_tokens(while_read)),
        "others_between_events_while_it_is_read": _spread([seconds for seconds, _ in while_read]),
    }


def _text_after_text(client: Client, prompt: Sequence[int], count: int, until: threading.Event) -> list[Heard]:
    """Texts of one who goes on decoding until an event is set."""
    heard = []
    while not until.is_set():
        heard.append(client.complete(prompt, count, None, until))
    return [text for text in heard if text.events]


def _of_tokens(gaps: Sequence[tuple[float, int]]) -> list[float]:
    return [seconds / count for seconds, count in gaps for _ in range(count)]


def _spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile, in milliseconds, and how many there were."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    middle, late = median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {
        "count": len(ordered),
        "median_ms": round(1e3 * middle, 2),
        "p99_ms": round(1e3 * late, 2),
        "p99_times_median": round(late / middle, 2),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 64)
    parser.add_argument("--draft", help="the server's draft (auto)")
    parser.add_argument("--device", default="cpu", help="of the server's model: cpu or cuda (%(default)s)")
    parser.add_argument("--at-once", action="append", type=int, help="requests; several times (1, 2, 4, 8, 16)")
    parser.add_argument("--repeats", type=int, default=4, help="even, so that both orders count alike (%(default)s)")
    parser.add_argument(
        "--prompt-tokens", type=int, default=512, help="of the newcomer's prompt (%(default)s); 0: none"
    )
    parser.add_argument(
        "--decoding", type=int, default=1000, help="tokens of each text of those that decode (%(default)s)"
    )
    parser.add_argument("--lead", type=float, default=2.0, help="seconds before the newcomer comes (%(default)s)")
    parser.add_argument("--beside", action="append", help="NAME=URL of another server with this model; several times")
    carry_out("serving", parser, measure)


if __name__ == "__main__":
    main()

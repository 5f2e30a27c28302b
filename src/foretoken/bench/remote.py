"""How fast is a model on a host, over networks of several kinds? `python -m foretoken.bench.remote --model MODEL`.

The host is a process of its own on this machine, and a relay stands for the network (`foretoken.remote.relay`). The
client drafts in this process. First the same drafts are measured in this process without any network, where the host
would draft by itself. Each way generates the same prompts, in turn; every second prompt in reverse order. Every text is
compared with plain decoding's. Each draft is also measured with drafting ahead, and eight clients beside one,
without a relay. The host and its clients share the cores of one machine, so a client that drafts with a model is slower
here than on a machine of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple

from rich.progress import track

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.api.remote import connect
from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, drafting, first_turns, suite_for
from foretoken.errors import ForetokenError
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.relay import PROFILES, Relay
from foretoken.results.completion import Completion

DRAFTS = ("lookup",)
NETWORKS = ("lan", "base", "5g", "4g")
PLAIN = "none"
CLIENTS = 8
_WARM_UP = 4  # tokens


class Way(NamedTuple):
    """A row. network: a profile of the relay; empty: the model is in this process. ahead: the next round is drafted
    and sent while a verdict is on its way."""

    network: str
    draft: str
    ahead: bool = False


@dataclass
class _Run:
    """The texts of a way, and what went over the network."""

    model: Model
    relay: Relay | None = None
    texts: list[Completion] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each text, behind its first token
    sent: int = 0
    received: int = 0
    wire: int = 0

    def generate(self, prompt: Sequence[int], **settings: Any) -> None:
        """Generate one text, and count."""
        before, stream = self._counted(), self.model.stream(prompt, **settings)
        next(stream)
        began = perf_counter()
        for _ in stream:
            pass
        self.seconds.append(perf_counter() - began)
        self.texts.append(stream.completion)
        sent, received, wire = (now - was for now, was in zip(self._counted(), before, strict=True))
        self.sent, self.received, self.wire = self.sent + sent, self.received + received, self.wire + wire

    def _counted(self) -> tuple[int, int, int]:
        if self.relay is None:
            return 0, 0, 0
        link = _verifier_of(self.model).link
        return link.bytes_sent, link.bytes_received, self.relay.bytes


@contextmanager
def _host(model: str) -> Iterator[int]:
    """A host in a process of its own: the port at which it listens."""
    command = [sys.executable, "-m", "foretoken", "host", model, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = None
            for line in process.stderr:
                if (found := re.search(r"listens at ws://127\.0\.0\.1:(\d+);", line)) is not None:
                    break
            if found is None:
                raise ForetokenError("the host could not be started; try `foretoken host` by hand")
            yield int(found[1])
        finally:
            process.terminate()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    expect_counts(args, num_prompts=1, max_new_tokens=2)
    networks, drafts = args.network or NETWORKS, args.draft or DRAFTS
    expect_once("network", networks)
    expect_once("draft", drafts)
    suite = suite_for(args.model, args.suite, args.num_prompts)
    here = {draft: _Run(load(args.model, draft=draft)) for draft in (PLAIN, *drafts)}
    plain = here[PLAIN].model
    about = {**asked_of(args.model, suite), "threads": plain.target.threads}
    prompts = first_turns(suite, plain)
    settings = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature, "ignore_eos": True}
    rows, trips = [], {}
    _in_turn({Way("", draft): run for draft, run in here.items()}, prompts, settings, "in one process")
    rows += [_row(Way("", draft), run, here[PLAIN]) for draft, run in here.items()]
    truth = _Run(plain, texts=here[PLAIN].texts)
    here.clear()
    with _host(args.model) as port:
        for network in networks:
            relay = Relay("127.0.0.1", port, PROFILES[network])
            ways = [Way(network, PLAIN), *(Way(network, draft, ahead) for draft in drafts for ahead in (False, True))]
            runs = {way: _Run(_connected(relay.port, way), relay) for way in ways}
            _in_turn(runs, prompts, settings, network)
            rows += [_row(way, run, truth) for way, run in runs.items()]
            for run in runs.values():
                verifier = _verifier_of(run.model)
                trips[network] = round(verifier.link.round_trip, 5)
                verifier.close()  # or it would try to come back while the next network is measured
            relay.close()
        together = [_together(port, drafts[0], count, prompts, settings) for count in (1, CLIENTS)]
    return {
        **about,
        "new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "num_prompts": len(prompts),
        "round_trip_seconds": trips,  # of a connection's first message
        "rows": rows,
        "clients": together,
    }


def _connected(port: int, way: Way) -> Model:
    model = connect(f"ws://127.0.0.1:{port}", draft=way.draft)
    if way.ahead:
        model.far = replace(model.far, ahead=1)
    return model


def _verifier_of(model: Model) -> RemoteVerifier:
    assert isinstance(model._verifier, RemoteVerifier)
    return model._verifier


def _together(
    port: int, draft: str, count: int, prompts: Sequence[tuple[int, ...]], settings: dict[str, Any]
) -> dict[str, Any]:
    """What several clients get together, each of whom generates all prompts, beginning with another one."""
    models = [_connected(port, Way("", draft)) for _ in range(count)]
    done: list[Completion] = []

    def generate(at: int) -> None:
        for number in range(len(prompts)):
            its = (at + number) % len(prompts)
            done.append(models[at].generate(prompts[its], **settings, seed=its))

    threads = [Thread(target=generate, args=(at,)) for at in range(count)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - began
    for model in models:
        _verifier_of(model).close()
    tokens = sum(len(text.tokens) for text in done)
    return {"clients": count, "draft": draft, "texts": len(done), "tokens_per_second": round(tokens / seconds, 3)}


def _in_turn(runs: dict[Way, _Run], prompts: Sequence[tuple[int, ...]], settings: dict[str, Any], where: str) -> None:
    for run in runs.values():
        run.model.generate(prompts[0], **{**settings, "max_new_tokens": _WARM_UP, "seed": 0})
    for number, prompt in enumerate(track(prompts, where)):
        for run in list(runs.values())[:: -1 if number % 2 else 1]:
            run.generate(prompt, **settings, seed=number)


def _row(way: Way, run: _Run, plain: _Run) -> dict[str, Any]:
    """A row of the record. plain: plain decoding in one process, whose texts are the truth."""
    speeds = [(len(text.tokens) - 1) / took for text, took in zip(run.texts, run.seconds, strict=True)]
    rounds = sum(text.stats.passes for text in run.texts)
    tokens = sum(len(text.tokens) for text in run.texts)
    return {
        "network": way.network or None,
        "draft": way.draft,
        "ahead": way.ahead,
        "tokens_per_second": round(geometric_mean(speeds), 3),
        "seconds_per_round": round(sum(run.seconds) / rounds, 5),
        **drafting(run.texts),
        "bytes_sent_per_token": round(run.sent / tokens, 1),
        "bytes_received_per_token": round(run.received / tokens, 1),
        "bytes_on_the_wire_per_token": round(run.wire / tokens, 1),
        "texts_with_other_tokens": sum(
            text.tokens != right.tokens for text, right in zip(run.texts, plain.texts, strict=True)
        ),
        "promise": sorted({text.promise for text in run.texts}),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 64)
    parser.add_argument("--draft", action="append", help="can be given several times (lookup)")
    parser.add_argument(
        "--network", action="append", choices=PROFILES, help="can be given several times (lan, base, 5g, 4g)"
    )
    parser.add_argument("--num-prompts", type=int, default=4, help="of the suite (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0)
    carry_out("remote", parser, measure)


if __name__ == "__main__":
    main()

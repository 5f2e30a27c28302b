"""How fast is a model on a host, over networks of several kinds? `python -m foretoken.bench.remote --model MODEL`.

The host is a process of its own on this machine, and a relay stands for the network (`foretoken.remote.relay`). The
client drafts in this process. First the same drafts are measured in this process without any network, where the host
would draft by itself. Each way generates the same prompts, in turn; every second prompt in reverse order. Every text is
compared with plain decoding's. A draft that sees nothing of the model is also measured with drafting ahead, and eight
clients beside one, without a relay. The host and its clients share the cores of one machine, so a client that drafts
with a model is slower here than on a machine of its own. --slowdown makes a client's drafts take longer.

A drafter that was trained for the model (`--draft moa`, or its folder) is packed for its clients first. For each row
the record also has the seconds of a round that were to be expected: the same rounds on a clock of its own
(`foretoken.remote.virtual`), with the passes' times in one process and the relay's networks. (What a Mixture of
Attentions observes belongs to nobody there, so its rounds are expected too short.) On that clock, up to 32 clients
share a host, each with a machine of its own, and draft themselves or let the host draft.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, sleep
from typing import Any, NamedTuple, TypeVar

from rich.progress import track

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.api.pacing import first_price
from foretoken.api.remote import connect
from foretoken.bench import played
from foretoken.bench.fields import expect_counts, expect_once
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, drafting, first_turns, suite_for
from foretoken.common.source import EMBEDDED_DRAFTERS, resolve
from foretoken.drafters.packing import pack
from foretoken.errors import ForetokenError
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, Turn, Verdict
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.features import bytes_of_row
from foretoken.remote.network import PROFILES
from foretoken.remote.relay import Relay
from foretoken.results.completion import Completion
from foretoken.trained.files import is_trained

T = TypeVar("T")
DRAFTS = ("lookup",)
PACES = ("auto", "fixed")
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
    slowdown: float = 1.0
    texts: list[Completion] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each text, behind its first token
    sent: int = 0
    received: int = 0
    wire: int = 0
    of_prompts: int = 0  # bytes until the first token, in both directions, without what is on the wire beside them

    def generate(self, prompt: Sequence[int], **settings: Any) -> None:
        """Generate one text, and count."""
        before, stream = self._counted(), self.model.stream(prompt, **settings)
        next(stream)
        read, began = self._counted(), perf_counter()
        for _ in stream:
            pass
        self.seconds.append(perf_counter() - began)
        self.texts.append(stream.completion)
        sent, received, wire = (now - was for now, was in zip(self._counted(), before, strict=True))
        self.sent, self.received, self.wire = self.sent + sent, self.received + received, self.wire + wire
        self.of_prompts += sum(now - was for now, was in zip(read[:2], before[:2], strict=True))

    def _counted(self) -> tuple[int, int, int]:
        if self.relay is None:
            return 0, 0, 0
        link = verifier_of(self.model).link
        return link.bytes_sent, link.bytes_received, self.relay.bytes


class _Slowed:
    """A drafter whose work takes `times` as long. It has all that the drafter has."""

    def __init__(self, drafter: Drafter, times: float) -> None:
        self._drafter, self._times = drafter, times

    def propose(self, turns: Sequence[Turn]) -> Sequence[Draft]:
        return self._slowly(lambda: self._drafter.propose(turns))

    def observe(self, verdicts: Sequence[Verdict]) -> Sequence[Work] | None:
        return self._slowly(lambda: self._drafter.observe(verdicts))

    def _slowly(self, work: Callable[[], T]) -> T:
        began = perf_counter()
        done = work()
        sleep((self._times - 1) * (perf_counter() - began))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


class Drafts:
    """Drafts as they are named beside the model, and on a client. model: the model. into: for packed folders."""

    def __init__(self, model: str, drafts: Sequence[str], into: Path) -> None:
        self.folders: list[str] = []  # of trained drafters, where the model is
        self._there: dict[str, str] = {}
        for draft in drafts:
            first, rest = re.fullmatch(r"([^,:]*)(.*)", draft, re.DOTALL).groups()  # type: ignore[union-attr]
            place = EMBEDDED_DRAFTERS.get(first, Path(first))
            if is_trained(place) and first not in EMBEDDED_DRAFTERS:
                packed = into / str(len(self.folders))
                pack(resolve(model), place, packed)
                self.folders.append(first)
                self._there[draft] = f"{packed}{rest}"

    def there(self, draft: str) -> str:
        """On a client."""
        return self._there.get(draft, draft)


@contextmanager
def _host(model: str, drafters: Sequence[str] = ()) -> Iterator[int]:
    """A host in a process of its own: the port at which it listens."""
    command = [sys.executable, "-m", "foretoken", "host", model, "--listen", "127.0.0.1:0"]
    command += [part for drafter in dict.fromkeys(drafters) for part in ("--drafter", drafter)]
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
    here = {draft: _Run(load(args.model, draft=draft, pace=args.pace)) for draft in (PLAIN, *drafts)}
    plain = here[PLAIN].model
    about = {**asked_of(args.model, suite), "threads": plain.target.threads}
    prompts = first_turns(suite, plain)
    settings = {
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "ignore_eos": True,
        "keep_rounds": True,
    }
    rows, trips = [], {}
    _in_turn({Way("", draft): run for draft, run in here.items()}, prompts, settings, "in one process")
    rows += [_row(Way("", draft), run, here[PLAIN]) for draft, run in here.items()]
    truth = _Run(plain, texts=here[PLAIN].texts)
    near = {draft: run.texts for draft, run in here.items()}
    every = [text for texts in near.values() for text in texts]
    checking = played.checking_in(every, first_price(plain.target) if plain.target.device.type == "cpu" else None)
    sees = {draft: run.model.drafter.needs != Needs() or _observes(run.model) for draft, run in here.items()}
    here.clear()
    with TemporaryDirectory(prefix="foretoken-") as folder, ExitStack() as stack:
        named = Drafts(args.model, drafts, Path(folder))
        port = stack.enter_context(_host(args.model, named.folders))
        near_by = _Run(_connected(port, Way("", PLAIN), named, args))
        _in_turn({Way("", PLAIN): near_by}, prompts, settings, "without a network")
        verifier_of(near_by.model).close()
        host = played.Host(checking, played.handling_of(near_by.texts, near_by.seconds, checking))
        carried: list[played.Row] = []
        for network in networks:
            relay = Relay("127.0.0.1", port, PROFILES[network])
            possible = [(draft, ahead) for draft in drafts for ahead in (False, True) if not (ahead and sees[draft])]
            ways = [Way(network, PLAIN), *(Way(network, draft, ahead) for draft, ahead in possible)]
            runs = {
                way: _Run(_connected(relay.port, way, named, args), relay, 1.0 if way.draft == PLAIN else args.slowdown)
                for way in ways
            }
            _in_turn(runs, prompts, settings, network)
            rows += [{**_row(way, run, truth), **_expected(way, run, host)} for way, run in runs.items()]
            steps = {
                (way.draft, False): [played.steps_of(text, _width(run)) for text in run.texts]
                for way, run in runs.items()
                if not way.ahead
            }
            steps |= {(draft, True): [played.steps_of(text) for text in near[draft]] for draft in drafts}
            carried += played.carried(steps, network, host)
            for run in runs.values():
                verifier = verifier_of(run.model)
                trips[network] = round(verifier.link.round_trip, 5)
                verifier.close()  # or it would try to come back while the next network is measured
            relay.close()
        models = [_connected(port, Way("", drafts[0]), named, args) for _ in range(1 + CLIENTS)]
        together = [{"draft": drafts[0], **_together(some, prompts, settings)} for some in (models[:1], models[1:])]
    return {
        **about,
        "new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "num_prompts": len(prompts),
        "pace": args.pace,
        "client_slowdown": args.slowdown,
        "round_trip_seconds": trips,  # of a connection's first message
        "rows": rows,
        "clients": together,
        "clients_on_a_clock_of_its_own": {
            "seconds_of_a_pass_by_rows": {rows: round(each, 5) for rows, each in checking.seconds.items()},
            "seconds_beside": round(host.handling, 5),
            "rows": carried,
        },
    }


def _connected(port: int, way: Way, named: Drafts, args: argparse.Namespace) -> Model:
    model = connect(f"ws://127.0.0.1:{port}", draft=named.there(way.draft), pace=args.pace)
    if way.ahead:
        model.far = replace(model.far, ahead=1)
    if args.slowdown != 1 and way.draft != PLAIN:
        model.drafter = _Slowed(model.drafter, args.slowdown)
    return model


def _observes(model: Model) -> bool:
    """Whether a drafter looks at the model's caches when it drafts, as a Mixture of Attentions does."""
    return getattr(model.drafter, "beside", None) is not None


def _expected(way: Way, run: _Run, host: played.Host) -> dict[str, float]:
    """The seconds of a round as they are to be expected; nothing for rounds that overlap."""
    if way.ahead:
        return {}
    return {"expected_seconds_per_round": round(played.seconds_per_round(run.texts, way.network, host, _width(run)), 5)}


def _width(run: _Run) -> int:
    """The bytes that a client's drafter sees of each token."""
    model = run.model
    return bytes_of_row(verifier_of(model).about.offered.layout(model.drafter.needs))


def verifier_of(model: Model) -> RemoteVerifier:
    """The client of a host that a model runs on."""
    assert isinstance(model._verifier, RemoteVerifier)
    return model._verifier


def _together(models: Sequence[Model], prompts: Sequence[tuple[int, ...]], settings: dict[str, Any]) -> dict[str, Any]:
    """What several clients get together, each of whom generates all prompts, beginning with another one."""
    done: list[Completion] = []

    def generate(at: int) -> None:
        for number in range(len(prompts)):
            its = (at + number) % len(prompts)
            done.append(models[at].generate(prompts[its], **settings, seed=its))

    threads = [Thread(target=generate, args=(at,)) for at in range(len(models))]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - began
    for model in models:
        verifier_of(model).close()
    tokens = sum(len(text.tokens) for text in done)
    return {"clients": len(models), "texts": len(done), "tokens_per_second": round(tokens / seconds, 3)}


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
        "rounds": rounds,
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
    parser.add_argument("--pace", choices=PACES, default="auto", help="how much is drafted (%(default)s)")
    parser.add_argument("--slowdown", type=float, default=1.0, help="a client's drafts take so many times as long (1)")
    carry_out("remote", parser, measure)


if __name__ == "__main__":
    main()

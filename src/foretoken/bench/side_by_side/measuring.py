"""Decodes prompts in turn with Foretoken and with peers on the same weights: `foretoken bench peers run`.

One peer at a time runs beside Foretoken. A turn is one prompt: our plain decoding, our drafts, the peer's plain
decoding, its speculative modes. Every second turn begins with the peer. Only figures of the same turn are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from foretoken.api.model import Model
from foretoken.bench.ceilings import bandwidth
from foretoken.bench.decode import Progress
from foretoken.bench.side_by_side.environments import Environment
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start
from foretoken.bench.side_by_side.rows import OURS, PLAIN, Sample, Way, row
from foretoken.bench.statistics import bandwidths, rounded
from foretoken.bench.target import Ready, Settings
from foretoken.common.provenance import provenance
from foretoken.common.source import resolve
from foretoken.decoder.config import read_config
from foretoken.errors import InputError, SettingError, nearest
from foretoken.rehearsal import honest

WARM_UP = 8  # new tokens for the first prompt, in each mode
MEMORY = 1 << 28  # bytes that are read to measure memory's speed: peers need the rest
Generate = Callable[[tuple[int, ...], int], tuple[Sequence[int], float]]  # tokens and seconds
_Asking = tuple[Way, Generate]


@dataclass(frozen=True, kw_only=True)
class Asked(Settings):
    """What is to be measured. work: a folder for what peers convert the model to. peer_draft: a draft checkpoint for
    the peers that take one. modes: of peers; None: all. timeout: seconds that a peer may be silent."""

    peers: Sequence[Environment]
    work: Path
    max_new_tokens: int | None = 64
    peer_draft: str | None = None
    modes: Sequence[str] | None = None
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        super().__post_init__()
        known = list(dict.fromkeys(mode for peer in self.peers for mode in peer.peer.modes))
        for mode in self.modes or ():
            if mode not in known:
                raise SettingError(f"no peer that is asked for has a mode {mode!r}{nearest(mode, known)}")
        if not self.timeout > 0:
            raise SettingError(f"timeout is {self.timeout:g}, expected seconds, more than 0")


def measure(
    asked: Asked, *, progress: Progress | None = None, keep: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Measure; returns the record. keep: called with the record each time a peer is done. Raises ForetokenError for
    wrong settings; a peer that fails is in the record, with the reason, and the others continue."""
    if not asked.peers:
        raise InputError("no peer is installed; `foretoken bench peers install` makes their environments")
    origin = provenance()
    peer_draft = None if asked.peer_draft is None else resolve(asked.peer_draft)
    if peer_draft is not None:
        honest.expect_honest_draft(resolve(asked.model, asked.loading.revision, accept=read_config), peer_draft)
    opened = asked.opened(origin)
    plain = opened.models["none"]
    start = Start(plain.folder.resolve(), asked.work.resolve(), plain.target.threads, peer_draft, asked.timeout)
    about = {
        "kind": "peers",
        **opened.about,
        "promise": plain.promise,
        "peer_draft": None if asked.peer_draft is None else Path(asked.peer_draft).name,
    }
    measurement = _Measurement(asked, opened, start, progress or (lambda *_: None))
    record: dict[str, Any] = {}
    for peer in asked.peers:
        measurement.beside(peer)
        record = {**origin, **about, **measurement.results()}
        if keep is not None:
            keep(record)
    return record


def _ours(model: Model) -> Generate:
    def generate(tokens: tuple[int, ...], count: int) -> tuple[Sequence[int], float]:
        began = perf_counter()
        done = model.generate(tokens, max_new_tokens=count, ignore_eos=True)
        return done.tokens, perf_counter() - began

    return generate


class _Measurement:
    def __init__(self, asked: Asked, opened: Ready, start: Start, progress: Progress) -> None:
        self._asked, self._opened, self._start, self._progress = asked, opened, start, progress
        self._ours: list[_Asking] = [(_our_way(draft, model), _ours(model)) for draft, model in opened.models.items()]
        self._ways = [way for way, _ in self._ours]
        self._bandwidth = bandwidth(start.threads, MEMORY)
        self._samples: list[Sample] = []
        self._peers: dict[str, dict[str, Any]] = {}

    def results(self) -> dict[str, Any]:
        """The results so far."""
        return {
            "peers": self._peers,
            **bandwidths(sample.bandwidth for sample in self._samples),
            "rows": [rounded(asdict(row(way, self._samples))) for way in self._ways],
            "samples": [sample.to_json() for sample in self._samples],
        }

    def beside(self, environment: Environment) -> None:
        """Measure every prompt in turn with a peer."""
        name = environment.peer.name
        self._progress(f"starting {name}", 0, 1)
        about: dict[str, Any] = {}
        self._peers[name] = about
        ways = []
        try:
            with PeerProcess(environment, self._start) as peer:
                about |= {**peer.about, "preloaded": [Path(library).name for library in environment.preloaded]}
                ways = _ways_of(name, peer.about["modes"], self._asked.modes)
                self._turns(peer, ways)
        except PeerError as failed:
            about["error"] = str(failed)
            ways = ways or [Way(name, PLAIN, "")]
            for way in ways:
                way.why = way.why or str(failed)
        self._ways += ways

    def _turns(self, peer: PeerProcess, ways: Sequence[Way]) -> None:
        plain_first = sorted(ways, key=lambda way: way.of is not None)
        theirs: list[_Asking] = [(way, partial(peer.ask, way.mode)) for way in plain_first]
        prompts = self._opened.tokens
        done, total = 0, self._asked.repeats * len(prompts)
        for way, generate in filter(_works, [*self._ours, *theirs]):
            self._progress(f"warming up {way.engine} {way.mode}", 0, total)
            with _noting_failure(way, ways):
                generate(next(iter(prompts.values())), WARM_UP)
        for repeat in range(self._asked.repeats):
            for number, (prompt, tokens) in enumerate(prompts.items()):
                self._progress(f"{peer.name}, {prompt}", done, total)
                turn, memory = (peer.name, prompt, repeat), self._bandwidth()
                before: dict[tuple[str, str], float] = {}  # seconds for the prompt and one token, by engine and mode
                order = [*self._ours, *theirs] if (repeat + number) % 2 == 0 else [*theirs, *self._ours]
                for way, generate in filter(_works, order):
                    with _noting_failure(way, ways):
                        if way.of is None:
                            before[way.engine, way.mode] = generate(tokens, 1)[1]
                        new, seconds = generate(tokens, self._opened.new_tokens)
                        alone = before[way.engine, way.of or way.mode]
                        self._samples.append(Sample(way.engine, way.mode, *turn, tuple(new), seconds, alone, memory))
                done += 1


def _works(asking: _Asking) -> bool:
    """Whether a way has not failed, in this turn or before."""
    return asking[0].why is None


@contextmanager
def _noting_failure(way: Way, ways: Sequence[Way]) -> Iterator[None]:
    """A context that notes a mode that fails, together with the modes in `ways` that are compared with it. The error
    of a peer that has ended is raised."""
    try:
        yield
    except PeerError as failed:
        if failed.is_over:
            raise
        way.why = str(failed)
        for other in ways:
            if other.of == way.mode:
                other.why = f"{way.mode} failed: {failed}"


def _our_way(draft: str, model: Model) -> Way:
    settings = f"{model.target.arithmetic}, weights {model.target.home}"
    is_plain = model.draft == "none"
    return Way(OURS, PLAIN if is_plain else draft, settings, of=None if is_plain else PLAIN)


def _ways_of(name: str, modes: dict[str, dict[str, Any]], wanted: Sequence[str] | None) -> list[Way]:
    """A peer's modes as the peer describes them: the wanted ones, and the plain ones that they are compared with."""
    kept = {PLAIN, *(modes if wanted is None else wanted)}
    kept |= {about["of"] for mode, about in modes.items() if mode in kept and about.get("of")}
    return [
        Way(name, mode, str(about.get("settings", "")), about.get("of"), about.get("error"))
        for mode, about in modes.items()
        if mode in kept
    ]

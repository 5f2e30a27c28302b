"""How fast is a model that does not fit into memory? Each draft in a process of its own, under the same bound.

    python -m foretoken.bench.offload MODEL --memory 1GiB --draft subspec --draft subspec,lookup --out record.json

The bound holds for a whole process, so that no two drafts can be measured in one. The processes run one after the
other, in the order A B A B. Each generates the same prompts. Its peak memory and what it read from the disk are the
system's counts. Plain decoding does nothing but read, so the disk's own speed is measured before and after each of its
texts. The tokens are compared with those of the model in memory. With `--peer` other engines generate the same prompts
under the same bound (`offload_peers`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from time import perf_counter, sleep
from typing import Any, NamedTuple

from foretoken.api.build import load
from foretoken.bench import offload_peers, on_gpu
from foretoken.bench.bounded import forget_peak_memory, peak_memory, read_bytes
from foretoken.bench.disk import read_speed, reads_directly
from foretoken.bench.fields import expect_counts
from foretoken.bench.script import first_turns
from foretoken.bench.suites import open_suite
from foretoken.bench.target import called, expect_honest
from foretoken.common.files import expect_new, write_json
from foretoken.common.provenance import provenance
from foretoken.common.source import resolve
from foretoken.copies.beside import described
from foretoken.decoder.config import read_config
from foretoken.decoder.shards import weight_files
from foretoken.decoder.streaming import stream_of
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import ForetokenError, SettingError
from foretoken.offload.stream import Stream
from foretoken.settings.load import LoadSettings

_KIND = "offload"
_WARM_UP = 2  # tokens
_STILL = 0.2  # seconds without a read, after which the buffer is full


@dataclass(frozen=True)
class Asked:
    """What one process generates. tokens: of each prompt. settings: of the load. read_ahead: as `Stream.read_ahead` has
    it."""

    model: str
    settings: dict[str, Any]
    prompts: str
    count: int
    tokens: int
    temperature: float
    read_ahead: int | None = None


class Way(NamedTuple):
    """A row. draft: as a user writes it. as_asked: parts of layers are read when they are asked for, and no earlier.
    bounded: whether the bound holds; a draft that needs more memory can still show what is accepted of it."""

    draft: str
    as_asked: bool = False
    bounded: bool = True

    @property
    def called(self) -> str:
        """The name in tables."""
        more = ", read as asked" if self.as_asked else "" if self.bounded else ", in memory"
        return called(self.draft) + more


def generated(asked: Asked) -> dict[str, Any]:
    """In a process of its own: load, generate, and what the system counted."""
    model = load(asked.model, **asked.settings)
    device = model.target.device
    suite = open_suite(asked.prompts, model.tokenizer, count=asked.count)
    prompts = first_turns(suite, model)
    if (layers := stream_of(model.target.weights)) is not None:
        layers.read_ahead(asked.read_ahead)
    model.generate(prompts[0], max_new_tokens=_WARM_UP)
    on_cpu = device.type == "cpu"
    only_reads = on_cpu and asked.settings["draft"] == "none" and layers is not None
    is_slowed = asked.settings.get("disk_bandwidth") is not None  # then the disk's own speed says nothing
    files = weight_files(model.folder) if only_reads and not is_slowed else []
    peak = peak_memory if on_cpu else partial(on_gpu.peak_memory, device)
    moved = read_bytes if on_cpu else partial(_copied, layers)
    rows, peaks, disk = [], [peak()], _disk(files)
    for number, prompt in enumerate(prompts):
        before = moved()
        stream = model.stream(
            prompt, max_new_tokens=asked.tokens, temperature=asked.temperature, seed=number, ignore_eos=True
        )
        pieces = [(perf_counter(), moved()) for _ in stream]
        done, stats, bytes_read = stream.completion, stream.completion.stats, moved() - before
        peaks.append(peak())
        earlier, disk = disk, _disk(files)
        rows.append(
            {
                "prompt": number,
                "tokens": len(done.tokens),
                "sha256": hashlib.sha256(json.dumps(done.tokens).encode()).hexdigest(),
                "tokens_per_second": stats.tokens_per_second,
                "seconds": {
                    "prompt": stats.prefill_seconds,
                    "decoding": stats.decode_seconds,
                    "drafts": stats.draft_seconds,
                    "checks": stats.check_seconds,
                },
                "checks": stats.passes,
                "tokens_per_check": (len(done.tokens) - 1) / stats.passes if stats.passes else None,
                "bytes_read": bytes_read,
                "disk_bytes_per_second": [*earlier, *disk],
                # between the first piece of text and the last: the pass of the prompt is arithmetic for the most part
                "decoding": {"seconds": pieces[-1][0] - pieces[0][0], "bytes_read": pieces[-1][1] - pieces[0][1]},
            }
        )
    return {
        "home": model.target.home,
        "arithmetic": model.target.arithmetic,
        "promise": model.promise,
        "threads": model.target.threads,
        "peak_memory": max(peaks),
        "bus_bytes_per_second": None if on_cpu or layers is not None else round(on_gpu.bus_speed(device)),
        "gpu": None if on_cpu else on_gpu.name_of(device),
        "prompts": rows,
    }


def _copied(layers: Stream | None) -> int:
    """The bytes of layers that were copied to a GPU."""
    return 0 if layers is None else layers.traffic.bytes


def _disk(files: Sequence[Path]) -> list[int]:
    """Bytes a second of reads that nothing slows down, twice; none without files. Waits until reading ahead has ended.
    What is measured here takes 16 MB of memory, which the process's peak leaves out where the system allows it."""
    if not files:
        return []
    read = -1
    while (now := read_bytes()) != read:
        read = now
        sleep(_STILL)
    found = [round(read_speed(files)) for _ in range(2)]
    forget_peak_memory()
    return found


def _run(asked: Asked) -> dict[str, Any]:
    """One process. Raises ForetokenError with what it said if it failed."""
    command = [sys.executable, "-m", "foretoken.bench.offload", "--child", json.dumps(asdict(asked))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ForetokenError(f"draft {asked.settings['draft']!r} could not be measured: {said[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    origin = provenance()
    expect_counts(arguments, count=1, tokens=2, plain_tokens=2, repeats=1)  # one token has no speed
    bound = {"memory": arguments.memory, "disk_bandwidth": arguments.disk_bandwidth, "context": arguments.context}
    settings = LoadSettings.of({**bound, "device": arguments.device})  # refuses at once
    if arguments.peer and arguments.device != "cpu":
        raise SettingError("peers are measured on the CPU alone; leave peer or device out")
    if arguments.peer and arguments.disk_bandwidth is not None:
        raise SettingError("disk_bandwidth slows down only our own reads, and not a peer's; leave one of them out")
    ways = [Way("none"), *map(Way, arguments.draft), *(Way(draft, as_asked=True) for draft in arguments.as_asked)]
    ways += [Way(draft, bounded=False) for draft in arguments.in_memory]
    folder = resolve(arguments.model)
    for way in ways:
        expect_honest(way.draft, LoadSettings(), folder)

    def asked(way: Way) -> Asked:
        tokens = arguments.plain_tokens if way.draft == "none" else arguments.tokens
        its = {name: value for name, value in bound.items() if value is not None} if way.bounded else {}
        ahead = 0 if way.as_asked else None
        its = {"draft": way.draft, "device": arguments.device, **its}
        return Asked(arguments.model, its, arguments.prompts, arguments.count, tokens, arguments.temperature, ahead)

    truth, threads, here = {}, 0, dict[str, Any]()
    for tokens in {arguments.tokens, arguments.plain_tokens}:
        _say(f"the model in memory, for comparison, {tokens} tokens")
        found = _run(replace(asked(Way("none", bounded=False)), tokens=tokens))
        truth[tokens], threads = [row["sha256"] for row in found["prompts"]], found["threads"]
        here = {name: found[name] for name in ("arithmetic", "promise", "gpu", "bus_bytes_per_second")}
    runs: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways}
    files = weight_files(folder)
    for repeat in range(arguments.repeats):
        for way, its in runs.items():
            _say(f"{way.called}, {repeat + 1} of {arguments.repeats}")
            its.append(_run(asked(way)))
            _say(f"{geometric_mean(_speeds(its)):.2f} tokens/s")
    plain = geometric_mean(_speeds(runs[ways[0]]))
    rows = [{**_row(way, its, plain, truth), "quantisers": _quantisers(way, folder)} for way, its in runs.items()]
    peers = []
    for name in arguments.peer:
        _say(f"{name}, under the bound")
        assert isinstance(settings.memory, int)
        peers.append(offload_peers.measure(offload_peers.Asked.of(name, arguments, settings.memory, threads)))
    return {
        "kind": _KIND,
        **origin,
        "model": Path(arguments.model).name,
        "bound": settings.memory,
        **{name: getattr(arguments, name) for name in ("disk_bandwidth", "context", "prompts", "count", "tokens")},
        **{name: getattr(arguments, name) for name in ("plain_tokens", "temperature", "repeats")},
        "device": arguments.device,
        **here,
        "direct_reads": reads_directly(files),
        "rows": rows,
        "peers": peers,
    }


def _row(way: Way, runs: Sequence[dict[str, Any]], plain: float, truth: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """A row of the record. plain: tokens a second of plain decoding under the bound. truth: by the number of tokens,
    what each text must be."""
    speed = geometric_mean(_speeds(runs))
    every = [geometric_mean(row["tokens_per_second"] for row in run["prompts"]) for run in runs]
    right = truth[runs[0]["prompts"][0]["tokens"]]
    texts = [row for run in runs for row in run["prompts"]]
    return {
        "draft": way.called,
        "bounded": way.bounded,
        "tokens_per_second": round(speed, 4),
        "deviation": round(stdev(every), 4) if len(every) > 1 else None,  # of the repeats
        "times_plain": round(speed / plain, 3) if way.bounded else None,
        "tokens_per_check": round(mean(text["tokens_per_check"] for text in texts), 2),
        "length": round(_length(texts), 2),
        "peak_memory": max(run["peak_memory"] for run in runs),
        "bytes_read_per_check": round(
            sum(text["decoding"]["bytes_read"] for text in texts) / sum(text["checks"] for text in texts)
        ),
        "bytes_read_per_second": round(median(map(_reading, texts))),
        "share_of_disk": _share_of_disk(texts),
        "identical": all(text["sha256"] == right[text["prompt"]] for text in texts),
        "runs": list(runs),
    }


def _speeds(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Tokens a second after the first token: of each prompt, the median over its repeats."""
    by_prompt = zip(*(run["prompts"] for run in runs), strict=True)
    return [median(row["tokens_per_second"] for row in rows) for rows in by_prompt]


def _reading(text: dict[str, Any]) -> float:
    """Bytes a second that were read while a text was decoded; 0 if it came in one piece."""
    read, seconds = text["decoding"]["bytes_read"], text["decoding"]["seconds"]
    return read / seconds if seconds else 0.0


def _share_of_disk(texts: Sequence[dict[str, Any]]) -> float | None:
    """What decoding read, beside what the disk gave just before and after the text: the median over texts. None if that
    was not measured. It is no ceiling: the disk is measured for a second, after a rest, and is slower after more."""
    measured = [text for text in texts if text["disk_bytes_per_second"]]
    shares = [_reading(text) / median(text["disk_bytes_per_second"]) for text in measured]
    return round(median(shares), 3) if shares else None


def _quantisers(way: Way, folder: Path) -> dict[str, str]:
    """How the low-bit weights of a draft were made, by format: in a copy beside the model, or rounded at load."""
    made, config = {}, read_config(folder)
    for level in find_levels(name_levels(replace(LoadSettings(), draft=way.draft)), folder):
        if level.format is not None:
            copy = described(folder, config, level.format)
            made[level.format.label] = "direct" if copy is None else copy.quantiser
    return made


def _length(texts: Sequence[dict[str, Any]]) -> float:
    """The average acceptance length as SubSpec's code counts it: all tokens over all passes, the prompt's included."""
    found: float = mean(text["tokens"] / (text["checks"] + 1) for text in texts)
    return found


def _say(what: str) -> None:
    print(f"-- {what}", file=sys.stderr, flush=True)


def main() -> None:
    """The command line."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(generated(Asked(**json.loads(sys.argv[2])))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--memory", required=True)
    parser.add_argument("--draft", action="append", required=True)
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--as-asked", help="a draft: parts of layers are read when asked for, not ahead", **several)
    parser.add_argument("--in-memory", help="a draft that is measured without the bound", **several)
    parser.add_argument("--peer", choices=offload_peers.PEERS, help="another engine", **several)
    parser.add_argument("--within", type=shlex.split, default=[], help="a command that runs a peer under the bound")
    parser.add_argument("--peer-tokens", type=int, default=16, help="for each prompt of a peer, which may be slow")
    parser.add_argument("--work", type=Path, default=Path(), help="the folder for what peers make of the model")
    parser.add_argument("--disk-bandwidth")
    parser.add_argument("--device", default="cpu", help="cpu; or cuda, for a bound of a GPU's memory (%(default)s)")
    parser.add_argument("--context", type=int)
    parser.add_argument("--prompts", default="auto")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--plain-tokens", type=int, default=48, help="for plain decoding, which is slow")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        expect_new(arguments.out)
        record = measure(arguments)
        write_json(arguments.out, record)
    except ForetokenError as error:
        sys.exit(f"foretoken: {error}")
    first = record["rows"][0]
    plain, share = first["bytes_read_per_second"], first["share_of_disk"]
    if share and record["direct_reads"]:
        print(f"plain decoding reads {plain / 1e9:.2f} GB/s, {share:.2f} of what the disk gives by itself")
    for row in record["rows"]:
        times = "" if row["times_plain"] is None else f" {row['times_plain']:6.2f} times plain,"
        print(
            f"{row['draft']:40} {row['tokens_per_second']:8.2f} tokens/s{times} {row['tokens_per_check']:5.1f} tokens "
            f"a check, peak {row['peak_memory'] / 1e6:6.0f} MB, identical: {'yes' if row['identical'] else 'NO'}"
        )
    for row in record["peers"]:
        print(offload_peers.line(row))


if __name__ == "__main__":
    main()

"""How fast is a model that does not fit into memory? Each draft in a process of its own, under the same bound.

    python -m foretoken.bench.offload MODEL --memory 1GiB --draft none --draft subspec --out record.json

The bound holds for a whole process, so that no two drafts can be measured in one. The processes run one after the
other, in the order A B A B. Each generates the same prompts. Its peak memory and what it read from the disk are the
system's counts. The tokens are compared with those of the model in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from foretoken.api.build import load
from foretoken.bench.script import first_turns
from foretoken.bench.suites import open_suite
from foretoken.common.files import expect_new, write_json
from foretoken.common.provenance import provenance
from foretoken.errors import ForetokenError
from foretoken.settings.load import LoadSettings

_KIND = "offload"
_WARM_UP = 2  # tokens


@dataclass(frozen=True)
class Asked:
    """What one process generates. tokens: of each prompt. settings: of the load."""

    model: str
    settings: dict[str, Any]
    prompts: str
    count: int
    tokens: int
    temperature: float


def generated(asked: Asked) -> dict[str, Any]:
    """In a process of its own: load, generate, and what the system counted."""
    model = load(asked.model, **asked.settings)
    suite = open_suite(asked.prompts, model.tokenizer, count=asked.count)
    prompts = first_turns(suite, model)
    model.generate(prompts[0], max_new_tokens=_WARM_UP)
    rows = []
    for number, prompt in enumerate(prompts):
        before = _read()
        done = model.generate(
            prompt, max_new_tokens=asked.tokens, temperature=asked.temperature, seed=number, ignore_eos=True
        )
        stats = done.stats
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
                "bytes_read": _read() - before,
            }
        )
    status = _status("/proc/self/status")
    return {"home": model.target.home, "peak_memory": 1024 * int(status["VmHWM"].split()[0]), "prompts": rows}


def _read() -> int:
    """What this process has read from disks, by the system's count."""
    return int(_status("/proc/self/io")["read_bytes"])


def _status(file: str) -> dict[str, str]:
    lines = Path(file).read_text(encoding="ascii", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


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
    bound = {"memory": arguments.memory, "disk_bandwidth": arguments.disk_bandwidth, "context": arguments.context}
    LoadSettings.of(bound)  # refuses at once
    common = (arguments.prompts, arguments.count)

    def asked(draft: str, **settings: Any) -> Asked:
        tokens = arguments.plain_tokens if draft == "none" and settings else arguments.tokens
        return Asked(arguments.model, {"draft": draft, **settings}, *common, tokens, arguments.temperature)

    _say("the model in memory, for comparison")
    truth = [row["sha256"] for row in _run(asked("none"))["prompts"]]
    short = Asked(arguments.model, {"draft": "none"}, *common, arguments.plain_tokens, arguments.temperature)
    truth_of = {arguments.tokens: truth, arguments.plain_tokens: [row["sha256"] for row in _run(short)["prompts"]]}
    runs: dict[str, list[dict[str, Any]]] = {draft: [] for draft in ("none", *arguments.draft)}
    for repeat in range(arguments.repeats):
        for draft, its in runs.items():
            _say(f"{draft}, {repeat + 1} of {arguments.repeats}")
            its.append(_run(asked(draft, **{name: value for name, value in bound.items() if value is not None})))
    plain = _speeds(runs["none"])
    rows = []
    for draft, its in runs.items():
        speeds = _speeds(its)
        tokens = its[0]["prompts"][0]["tokens"]
        rows.append(
            {
                "draft": draft,
                "tokens_per_second": round(geometric_mean(speeds), 4),
                "times_plain": round(geometric_mean(speeds) / geometric_mean(plain), 3),
                "tokens_per_check": round(_mean(its, "tokens_per_check"), 2),
                "peak_memory": max(run["peak_memory"] for run in its),
                "bytes_read_per_check": round(_mean(its, "bytes_read") / _mean(its, "checks")),
                "identical": all(
                    row["sha256"] == truth_of[tokens][row["prompt"]] for run in its for row in run["prompts"]
                ),
                "runs": its,
            }
        )
    return {
        "kind": _KIND,
        **origin,
        "model": Path(arguments.model).name,
        "bound": LoadSettings.of(bound).memory,
        **{name: getattr(arguments, name) for name in ("disk_bandwidth", "context", "prompts", "count", "tokens")},
        **{name: getattr(arguments, name) for name in ("plain_tokens", "temperature", "repeats")},
        "promise": "exact",
        "rows": rows,
    }


def _speeds(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Tokens a second after the first token: of each prompt, the median over its repeats."""
    by_prompt = zip(*(run["prompts"] for run in runs), strict=True)
    return [median(row["tokens_per_second"] for row in rows) for rows in by_prompt]


def _mean(runs: Sequence[dict[str, Any]], what: str) -> float:
    values: list[float] = [row[what] for run in runs for row in run["prompts"]]
    return sum(values) / len(values)


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
    parser.add_argument("--disk-bandwidth")
    parser.add_argument("--context", type=int)
    parser.add_argument("--prompts", default="heldout-20")
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
    for row in record["rows"]:
        print(
            f"{row['draft']:32} {row['tokens_per_second']:8.2f} tokens/s {row['times_plain']:6.2f} times plain, "
            f"{row['tokens_per_check']:5.1f} tokens a check, peak {row['peak_memory'] / 1e6:6.0f} MB, identical: "
            f"{'yes' if row['identical'] else 'NO'}"
        )


if __name__ == "__main__":
    main()

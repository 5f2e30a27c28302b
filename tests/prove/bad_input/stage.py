"""The sound world that cases spoil: checkpoints, a copy beside one, records. The commands themselves make it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from foretoken.common.source import EMBEDDED
from tests.prove.bad_input.alter import read_header, with_header
from tests.prove.bad_input.sandbox import Command, run

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
TALK = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<reply>"
COPY = "plain-int4-g64"
WORDS = ["--max-new-tokens", "12", "--threads", "1"]  # of every generation here

QUESTIONS = (
    b'{"question_id": 1, "category": "code", "turns": ["def add(a, b):", "def sub(a, b):"]}\n'
    b'{"question_id": 2, "category": "text", "turns": ["import os"]}\n'
)
BENCH = [
    "bench",
    "decode",
    "--model",
    "stdlib-1m",
    "--draft",
    "lookup",
    "--prompts",
    "questions.jsonl",
    "--num-prompts",
    "2",
]
BENCH += ["--repeats", "1", "--max-new-tokens", "4", "--threads", "1", "--json", "bench.json"]

RESULTS = Path(__file__).parents[3] / "results"
SHORT = ["--prompts", "questions.jsonl", "--num-prompts", "2", "--max-new-tokens", "3", "--threads", "1"]
TUNE = ["tune", "fractal", "stdlib-1m", *SHORT, "--minutes", "0.001", "--repeats", "1", "--json", "tuned.json"]
REPRODUCE = ["reproduce", "fractal", "--scale", "embedded", "--model", "stdlib-1m", "--only", "table5"]
REPRODUCE += ["--num-prompts", "1", "--max-new-tokens", "2", "--threads", "1"]

SHAPE = "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096,head-dim=64"  # of a rehearsal that fits

# the controls: what is spoiled afterwards must run through before
CONTROLS: dict[str, Command] = {
    "quantize": Command(["quantize", "plain", "--format", "int4", "--threads", "1"]),
    "record": Command(["generate", PROMPT, "--model", "plain", "--record", "record.json", *WORDS]),
    "sampled record": Command(
        [
            "generate",
            PROMPT,
            "--model",
            "plain",
            "--temperature",
            "0.9",
            "--seed",
            "3",
            "--record",
            "sampled.json",
            "--draft",
            "int4,lookup",
            "--logit-bias",
            "5=1",
            *WORDS,
        ]
    ),
    "picture": Command(
        ["generate", PROMPT, "--model", "sharded", "--plot", "rounds.svg", "--draft", "stdlib-1m", *WORDS]
    ),
    "verify": Command(["verify", "record.json"]),
    "verify sampled": Command(["verify", "sampled.json", "--draft", "none"]),
    "copy": Command(["generate", PROMPT, "--model", COPY, "--json", *WORDS]),
    "chat": Command(["chat", "--model", "talk", "--system", "Be brief.", *WORDS], b"hello\n/stats\nmore\n"),
    "plain chat": Command(["chat", "--plain", "--model", "plain", *WORDS], b"def f(x):\n    return\n"),
    "measurement": Command(BENCH),
    "report": Command(["bench", "report", "bench.json", "--out", "report.md"]),
    "report of peers": Command(["bench", "report", "peers.json"]),
    "rehearsal": Command(["rehearse", "rehearsal", "--model", "plain", "--shape", SHAPE]),
    "measured rehearsal": Command(
        [*BENCH[:2], "--model", "rehearsal", "--draft", "int8", *BENCH[6:-1], "rehearsed.json"],
    ),
    "examined": Command(["doctor", "--quick", "--json", "--model", "rehearsal"]),
    "tuning": Command(TUNE),
    "reproduction": Command(REPRODUCE),
    "regex": Command(["generate", PROMPT, "--model", "plain", "--regex", "[a-z]{1,9}", *WORDS]),
    "schema": Command(["generate", PROMPT, "--model", "plain", "--json-schema", '{"type": "integer"}', *WORDS]),
    "tree": Command(["generate", PROMPT, "--draft", "stdlib-1m:k=2:depth=3", "--audit", "--stats", *WORDS]),
}


# those that make what cases are made of
NEEDED = ("quantize", "record", "sampled record")


def build(stage: Path, controls: Iterable[str] = CONTROLS) -> dict[str, str]:
    """Make the world in an empty folder; what went wrong with which control."""
    for name in ("plain", "sharded", "talk"):
        shutil.copytree(EMBEDDED["stdlib-1m"], stage / name)
    _shard(stage / "sharded")
    about = json.loads((stage / "talk" / "tokenizer_config.json").read_text(encoding="utf-8"))
    (stage / "talk" / "tokenizer_config.json").write_text(
        json.dumps({**about, "chat_template": TALK}), encoding="utf-8"
    )
    wrong = {}
    (stage / "questions.jsonl").write_bytes(QUESTIONS)
    record = json.loads(max(RESULTS.glob("*-peers-*.json")).read_bytes())  # to make one takes minutes
    (stage / "peers.json").write_text(json.dumps({**record, "samples": []}), encoding="utf-8")
    logs = stage / ".logs"
    logs.mkdir()
    for name in controls:
        done = run(CONTROLS[name], stage, logs)
        if done.code != 0:
            wrong[name] = f"exit code {done.code}, {done.ended_by}: {done.err[-2000:]}"
    return wrong


def lend(stage: Path, names: tuple[str, ...], folder: Path) -> None:
    """Parts of the world, copied into a case's folder."""
    for name in names:
        source = stage / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What lies in a folder, so that a change of it shows."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(top, name)
            about = os.lstat(path)
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            size, when = (0, 0) if is_folder else (about.st_size, about.st_mtime_ns)
            found[os.path.relpath(path, folder)] = (about.st_mode, size, when)
    return found


def _shard(folder: Path) -> None:
    """Write the weights as two shards with an index."""
    whole = folder / "model.safetensors"
    header, numbers = read_header(whole.read_bytes())
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    index: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard, data, parts = f"model-{number:05}-of-00002.safetensors", b"", {}
        for name in part:
            begin, end = header[name]["data_offsets"]
            parts[name] = {**header[name], "data_offsets": [len(data), len(data) + end - begin]}
            data += numbers[begin:end]
            index[name] = shard
        (folder / shard).write_bytes(with_header(parts, data))
    whole.unlink()
    about = {"metadata": {"total_size": len(numbers)}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(about), encoding="utf-8")

"""Suites of prompts. A suite stores where each prompt is found and its hash, never the text itself.

Held-out prompts are cut from files of the standard library that no embedded model was trained on: 128 tokens from the
start of a line. `python -m foretoken.bench.suites OUT.json` writes the suite anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from foretoken.errors import InputError, nearest
from foretoken.text import Tokenizer
from foretoken.training import corpus

SUITES = Path(__file__).parent / "suites"
LENGTH = 128  # tokens


@dataclass(frozen=True)
class Prompt:
    """`tokens` are the first LENGTH tokens of the file's text from character `offset` on, which starts a line."""

    file: str
    offset: int
    sha256: str
    tokens: tuple[int, ...] = ()


def load_suite(name: str, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts of a suite, cut from this machine's standard library; refused where that differs."""
    entries = json.loads(_suite_file(name).read_bytes())
    texts = dict(corpus.read_texts(corpus.HELDOUT_FILES))
    prompts = []
    for entry in entries:
        prompt = _cut(entry["file"], texts.get(entry["file"], ""), entry["offset"], tokenizer)
        if prompt is None or prompt.sha256 != entry["sha256"]:
            raise InputError(
                f"{entry['file']} of this machine's standard library is not the one that suite {name} was cut from; "
                "use CPython 3.11.7, with its test package, and the embedded models' tokenizer"
            )
        prompts.append(prompt)
    return prompts


def suite_hash(name: str) -> str:
    """SHA-256 of a suite, and so of all its prompts' hashes."""
    return hashlib.sha256(_suite_file(name).read_bytes()).hexdigest()


def _suite_file(name: str) -> Path:
    known = sorted(path.stem for path in SUITES.glob("*.json"))
    if name not in known:
        raise InputError(f"there is no suite {name!r}{nearest(name, known)}")
    return SUITES / f"{name}.json"


def cut_suite(tokenizer: Tokenizer, count: int) -> list[Prompt]:
    """`count` held-out prompts, spread over all files; the longest files give more than one."""
    texts = corpus.read_texts(corpus.HELDOUT_FILES)
    texts.sort(key=lambda item: (-len(item[1]), item[0]))
    prompts: list[Prompt] = []
    for share in (3, 2):  # from a third of the way into each file on, then from half of the way
        for name, text in texts:
            at = text.find("\n", len(text) // share) + 1
            prompt = _cut(name, text, at, tokenizer)
            if prompt is not None and len(prompts) < count:
                prompts.append(prompt)
    return prompts


def _cut(file: str, text: str, offset: int, tokenizer: Tokenizer) -> Prompt | None:
    tokens = tokenizer.encode(text[offset : offset + 40 * LENGTH])[:LENGTH]
    if len(tokens) < LENGTH:
        return None
    return Prompt(file, offset, hashlib.sha256(json.dumps(tokens).encode()).hexdigest(), tuple(tokens))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Cut a suite of held-out prompts.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tokenizer", type=Path, default=corpus.MODELS / "stdlib-7m")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.tokenizer)
    if tokenizer is None:
        raise SystemExit(f"suites: {args.tokenizer} has no tokenizer")
    rows = [{k: v for k, v in asdict(p).items() if k != "tokens"} for p in cut_suite(tokenizer, args.count)]
    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Cuts the suite of held-out prompts: `python -m foretoken.bench.suites OUT.json`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from foretoken.bench.suites.heldout import cut_suite
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import corpus


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
    rows = [{k: v for k, v in asdict(cut).items() if k != "tokens"} for cut in cut_suite(tokenizer, args.count)]
    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""`foretoken demo`: the main job on the embedded model, with drafting and plainly, and whether they are identical."""

from __future__ import annotations

import sys

import typer

from foretoken.cli.common import load
from foretoken.common.source import DEFAULT_MODEL

PROMPT = '''class Stack:
    """A last-in, first-out stack."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Add an item."""
        self.items.append(item)

    def pop(self):'''


def demo() -> None:
    """Complete a few lines of Python with the embedded model, with drafting and without, and compare the two."""
    from foretoken.cli.show import summary

    completions = []
    for draft, title in (("lookup", "with drafting (lookup)"), ("none", "plainly")):
        model = load(DEFAULT_MODEL, draft=draft)
        model.generate(PROMPT, max_new_tokens=8)  # what runs first pays for memory and threads that the next one finds
        print(f"-- {title}\n{PROMPT}", end="", flush=True)
        stream = model.stream(PROMPT, max_new_tokens=160)
        for piece in stream:
            print(piece.text, end="", flush=True)
        print(f"\n-- {summary(stream.completion)}\n", flush=True)
        completions.append(stream.completion)
    with_drafting, plain = completions
    ratio = with_drafting.stats.tokens_per_second / plain.stats.tokens_per_second
    print(f"with drafting {ratio:.1f} times as fast as plainly, here and on this prompt")
    identical = with_drafting.tokens == plain.tokens
    print(f"identical: {'yes' if identical else 'no'}")
    if not identical:
        print("foretoken: drafting changed the output, which must never happen: please report this", file=sys.stderr)
        raise typer.Exit(1)

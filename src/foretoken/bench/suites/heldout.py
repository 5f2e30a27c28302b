"""Held-out prompts of the standard library. A suite stores each prompt's place and hash, never the text itself.

Prompts are cut from files that no embedded model was trained on: 128 tokens from the start of a line.
`python -m foretoken.bench.suites OUT.json` writes the suite anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from foretoken.bench.suites.types import Prompt
from foretoken.errors import InputError
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import corpus

BUILT_IN = {"heldout-20": 20, "heldout-40": 40}  # how many of the prompts
CUTS = Path(__file__).with_name("heldout.json")
LENGTH = 128  # tokens
MAX_NEW_TOKENS = 200
LICENCE = "PSF-2.0"


@dataclass(frozen=True)
class Cut:
    """`tokens` are the first LENGTH tokens of the file's text from character `offset` on, which starts a line."""

    file: str
    offset: int
    sha256: str
    tokens: tuple[int, ...] = ()


def heldout(name: str, tokenizer: Tokenizer | None) -> list[Prompt]:
    """The prompts of a suite, cut from this machine's standard library. A library that differs is refused."""
    if tokenizer is None:
        raise InputError(f"the prompts of {name} are text, and the model has no tokenizer; give prompts of token ids")
    return [Prompt(f"heldout-{at}", (cut.tokens,)) for at, cut in enumerate(load_cuts(name, tokenizer), 1)]


def load_cuts(name: str, tokenizer: Tokenizer) -> list[Cut]:
    """The cuts of a suite, with the tokens that are found there."""
    texts = dict(corpus.read_texts(corpus.HELDOUT_FILES))
    cuts = []
    for entry in json.loads(CUTS.read_bytes())[: BUILT_IN[name]]:
        cut = _cut(entry["file"], texts.get(entry["file"], ""), entry["offset"], tokenizer)
        if cut is None or cut.sha256 != entry["sha256"]:
            raise InputError(
                f"{entry['file']} of this machine's standard library is not the one that suite {name} was cut from; "
                "use CPython 3.11.7, with its test package, and the embedded models' tokenizer"
            )
        cuts.append(cut)
    return cuts


def cut_suite(tokenizer: Tokenizer, count: int) -> list[Cut]:
    """`count` held-out prompts, spread over all files; the longest files give more than one."""
    texts = corpus.read_texts(corpus.HELDOUT_FILES)
    texts.sort(key=lambda item: (-len(item[1]), item[0]))
    cuts = (
        _cut(name, text, text.find("\n", len(text) // share) + 1, tokenizer)
        for share in (3, 2)  # from a third of each file on, then from half of it
        for name, text in texts
    )
    return list(islice(filter(None, cuts), count))


def _cut(file: str, text: str, offset: int, tokenizer: Tokenizer) -> Cut | None:
    tokens = tokenizer.encode(text[offset : offset + 40 * LENGTH])[:LENGTH]
    if len(tokens) < LENGTH:
        return None
    return Cut(file, offset, hashlib.sha256(json.dumps(tokens).encode()).hexdigest(), tuple(tokens))

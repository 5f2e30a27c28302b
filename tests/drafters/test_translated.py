"""A draft with another tokenizer: what it is told, what becomes of its tokens, and that no output changes."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import foretoken
from foretoken.common.source import resolve
from foretoken.drafters.translated import TranslatedDrafter
from foretoken.protocol.types import Request, Turn, Verdict
from foretoken.text.tokenizer import Tokenizer
from tests.fakes import Fake
from tests.fakes_translated import Foreign, Pairs, translated

PROMPT = 'def read(self, size=-1):\n    """Read at most size bytes, which'


def told(drafter: TranslatedDrafter, position: int, tokens: list[int]) -> None:
    drafter.observe([Verdict(0, 1, position, (), tuple(tokens), ("target",) * len(tokens))])


def test_the_draft_is_told_the_text_whatever_is_taken_back() -> None:
    chance, text = random.Random(7), [random.Random(8).randrange(509) for _ in range(400)]
    foreign = Foreign({0: text})
    drafter, at = translated(foreign), 20
    drafter.begin([Request(0, tuple(text[:at]), 380)])
    checked = right = 0
    while at < 380:
        (draft,) = drafter.propose([Turn(0, 3, at, 8, 8)])
        right += list(draft.tokens) == text[at : at + len(draft.tokens)] and len(draft.tokens) > 3
        checked += 1
        guess = [chance.randrange(509) for _ in range(chance.randrange(6))]
        if guess:  # a guess of the level above, which may be longer than what the draft encodes again
            told(drafter, at, guess)
            at_most = 100 if chance.random() < 0.1 else 0
            back = max(20, at - chance.randrange(at_most + 1))
            drafter.rewind(0, back)
            at = back
        step = chance.randrange(1, 9)
        told(drafter, at, text[at : at + step])
        at += step
        assert foreign.said(0) == Pairs().decode(text[:at])
    assert right == checked > 30, "whatever it drafted was translated into the tokens that follow"
    drafter.end(0)
    drafter.end(0)
    assert not foreign.texts


class Listener(Fake):
    """Proposes nothing, and remembers what it was told."""

    def guess(self, turn: Turn) -> list[int]:
        return []


def test_half_a_character_waits_for_its_other_half() -> None:
    tokenizer = Tokenizer.load(resolve("stdlib-1m"))
    text = "x = 'naïve 🙂 日本語' # ok"
    tokens = tokenizer.encode(text)
    listener = Listener()
    drafter = TranslatedDrafter(listener, tokenizer, tokenizer)
    drafter.begin([Request(0, tuple(tokens[:3]), 99)])
    halves = 0
    for at in range(3, len(tokens)):
        told(drafter, at, tokens[at : at + 1])
        heard = tokenizer.decode(listener.texts[0])
        assert text.startswith(heard)
        asked = drafter.propose([Turn(0, 1, at + 1, 4, 4)])
        assert bool(asked) == (heard == tokenizer.decode(tokens[: at + 1])), "nothing is drafted within a character"
        halves += not asked
    assert halves > 3
    assert tokenizer.decode(listener.texts[0]) == text


def marking_the_beginning(text: str) -> Tokenizer:
    """A tokenizer that puts a space before each text that it encodes, as those of SentencePiece do."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    rust.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    rust.train_from_iterator([text], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust))


def test_a_long_text_is_not_encoded_again_as_a_whole_though_its_beginning_is_marked() -> None:
    ours = Tokenizer.load(resolve("stdlib-1m"))
    text = Path(json.__file__).read_text(encoding="utf-8")[:6000]
    theirs, tokens = marking_the_beginning(text), ours.encode(text)
    listener = Listener()
    drafter = TranslatedDrafter(listener, ours, theirs)
    drafter.begin([Request(0, tuple(tokens[:40]), 9999)])
    for at in range(40, len(tokens), 4):
        told(drafter, at, tokens[at : at + 4])
    (heard,) = listener.texts.values()
    assert theirs.decode(heard) == text
    assert list(heard) == theirs.encode(text), "as if it had been encoded as a whole"
    assert drafter._texts[0].anchor > len(heard) - 300


@pytest.fixture(scope="module")
def foreign_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stdlib-1m with 200 more tokens, and all tokens in another order."""
    source, out = resolve("stdlib-1m"), tmp_path_factory.mktemp("models") / "other-tokens"
    shutil.copytree(source, out)
    more, generator = 200, torch.Generator().manual_seed(1)
    written = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = written["model"]["vocab"]
    first = len(vocabulary)
    place = [0, 1, *(2 + torch.randperm(first + more - 2, generator=generator)).tolist()]
    vocabulary = {**vocabulary, **{f"<unused {number}>": first + number for number in range(more)}}
    written["model"]["vocab"] = {token: place[number] for token, number in vocabulary.items()}
    (out / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    tensors = load_file(out / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    moved = torch.zeros(first + more, rows.shape[1], dtype=rows.dtype)
    moved[torch.tensor(place[:first])] = rows
    tensors["model.embed_tokens.weight"] = moved
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps({**config, "vocab_size": first + more}), encoding="utf-8")
    return out


@pytest.mark.parametrize("below", ["", ",lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_with_other_tokens_drafts_what_it_would_draft_with_the_same(
    foreign_model: Path, below: str, temperature: float
) -> None:
    def generate(draft: str) -> foretoken.Generation:
        model = foretoken.load("stdlib-7m", draft=draft, pace="fixed")
        return model.generate(PROMPT, max_new_tokens=60, temperature=temperature, seed=3)

    plain = generate("none")
    same, other = (generate(f"{draft}{below}") for draft in ("stdlib-1m", foreign_model))
    assert other.tokens == plain.tokens
    assert other.stats.accepted_tokens >= 10
    if not temperature:
        assert other.stats.accepted_tokens >= 0.9 * same.stats.accepted_tokens
        assert "other-tokens" in other.origins
    assert other.stats.accepted_tokens < other.stats.draft_tokens


def test_a_user_is_told_that_drafts_are_translated(foreign_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foretoken"):
        model = foretoken.load("stdlib-7m", draft=f"{foreign_model}:tokens=4", rule="rejection")
    assert "other-tokens has another tokenizer: what it drafts is translated, as text" in caplog.messages
    prompts = [PROMPT, "import os\nimport "]
    both = [one.tokens for one in model.generate_many(prompts, max_new_tokens=30, temperature=0.8, seed=3)]
    assert both == [model.generate(one, max_new_tokens=30, temperature=0.8, seed=3).tokens for one in prompts]

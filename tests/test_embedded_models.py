"""The embedded models through the public interface: what a user gets, and that drafting never changes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.decoder.loading import DTYPES

PROMPTS = {
    "repeats": "def one(self):\n    self.assertEqual(1, 1)\n\n\ndef two(self):\n    self.assertEqual(2, 2)\n\n\ndef",
    "new": "import os\nimport sys\n\n\ndef main(argv):",
    "one token": "x",
    "not code": "Dæmoner – 悪魔 – 🙂 élan",
}


@pytest.fixture(scope="module")
def models() -> dict[tuple[str, str], foretoken.Model]:
    return {
        (draft, dtype): foretoken.load("stdlib-7m", draft=draft, dtype=dtype, pace="fixed")
        for draft in ("none", "lookup:min_match=1:tokens=20")
        for dtype in ("bfloat16", "float32")
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", PROMPTS)
def test_drafting_changes_neither_a_token_nor_a_bit(
    models: dict[tuple[str, str], foretoken.Model], name: str, dtype: str
) -> None:
    plain, drafted = (
        models[draft, dtype].generate(PROMPTS[name], max_new_tokens=60, ignore_eos=True, keep_logits=True)
        for draft in ("none", "lookup:min_match=1:tokens=20")
    )
    assert plain.tokens == drafted.tokens
    assert plain.text == drafted.text
    assert plain.logits is not None
    assert drafted.logits is not None
    assert torch.equal(plain.logits, drafted.logits)
    assert plain.stats.draft_tokens == 0
    if name == "repeats":
        assert 0 < drafted.stats.accepted_tokens < drafted.stats.draft_tokens


def test_the_logits_are_those_of_transformers() -> None:
    from transformers import AutoModelForCausalLM

    from foretoken.decoder.rows import chain

    model = foretoken.load("stdlib-7m", dtype="float32")
    prompt = model.tokens_of(PROMPTS["repeats"])
    theirs = AutoModelForCausalLM.from_pretrained(EMBEDDED["stdlib-7m"], dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt])).logits[0]
    rows = chain(model.target.new_cache(), prompt)
    got = model.target.head(model.target.forward(rows))
    assert float((got - expected).abs().max() / expected.abs().max()) <= 1e-5


def test_streamed_pieces_are_the_completion() -> None:
    model = foretoken.load("stdlib-7m", pace="fixed")  # a pace may find that lookup does not pay
    stream = model.stream(PROMPTS["repeats"], max_new_tokens=30)
    pieces = list(stream)
    assert tuple(piece.token for piece in pieces) == stream.completion.tokens
    assert "".join(piece.text for piece in pieces) == stream.completion.text
    assert {piece.origin for piece in pieces} == {"target", "lookup"}


@pytest.mark.parametrize("count", [1, 4, 9, 30])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 3}])
def test_a_closed_stream_has_what_came_so_far_and_leaves_the_model_usable(count: int, sampled: dict[str, Any]) -> None:
    model = foretoken.load("stdlib-7m")
    asked: dict[str, Any] = {"logprobs": 1, "keep_logits": True, "hash_logits": True, "ignore_eos": True, **sampled}
    stream = model.stream(PROMPTS["repeats"], max_new_tokens=30, audit=True, **asked)
    pieces = [next(stream) for _ in range(count)]
    stream.close()
    stream.close()
    assert list(stream) == []
    got, whole = stream.completion, model.generate(PROMPTS["repeats"], max_new_tokens=count, **asked)
    if count == 30:  # the last piece was among them
        assert (got.finish_reason, got.audit is not None and got.audit.identical) == ("length", True)
    else:
        assert (got.finish_reason, got.stop_string, got.audit) == ("cancelled", None, None)
    assert got.text == "".join(piece.text for piece in pieces)
    assert got.origins == tuple(piece.origin for piece in pieces)
    assert len(got.tokens) == count
    for name in ("tokens", "logits_sha256", "logprobs", "seed", "prompt_tokens"):
        assert getattr(got, name) == getattr(whole, name)
    assert got.logits is not None
    assert torch.equal(got.logits, whole.logits)  # type: ignore[arg-type]
    assert got.stats.prefill_seconds > 0


def test_a_stream_that_has_not_ended_has_no_completion_nor_has_one_of_which_nothing_came() -> None:
    model = foretoken.load("stdlib-7m")
    stream = model.stream(PROMPTS["repeats"], max_new_tokens=30)
    for step in (lambda: None, lambda: next(stream)):
        step()
        with pytest.raises(foretoken.InputError, match="the stream has not ended, or ended with an error"):
            _ = stream.completion
    early = model.stream(PROMPTS["repeats"])
    early.close()
    assert list(early) == []
    with pytest.raises(foretoken.InputError, match="closed before its first piece, so it has no completion"):
        _ = early.completion
    done = model.stream(PROMPTS["repeats"], max_new_tokens=3)
    assert len(list(done)) == 3
    done.close()
    assert done.completion.finish_reason == "length"
    stream.close()
    assert len(model.generate(PROMPTS["repeats"], max_new_tokens=5).tokens) == 5


def test_token_ids_and_text_are_the_same_prompt() -> None:
    model = foretoken.load("stdlib-7m")
    ids = model.tokens_of("def add(")
    assert model.generate(ids, max_new_tokens=9).tokens == model.generate("def add(", max_new_tokens=9).tokens
    with pytest.raises(foretoken.PromptError, match="the prompt holds token 4096; the model has tokens 0 to 4095"):
        model.generate([1, 4096])
    assert model.tokens_of(torch.tensor(ids)) == ids  # type: ignore[arg-type]
    odd: list[Any] = [3, b"def", [True, False], [1.5], [float("inf")], None, [[1]]]
    for prompt in odd:
        with pytest.raises(foretoken.PromptError, match="expected text, token ids, or messages"):
            model.generate(prompt)
    with pytest.raises(foretoken.SettingError, match="did you mean 'max_new_tokens'"):
        model.generate("x", max_tokens=3)


def test_end_tokens_end_a_generation_unless_they_are_ignored(tmp_path: Path) -> None:
    model = foretoken.load("stdlib-7m")
    tokens = model.generate(PROMPTS["new"], max_new_tokens=12, ignore_eos=True).tokens
    folder = tmp_path / "model"
    folder.mkdir()
    for file in EMBEDDED["stdlib-7m"].iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4000, tokens[7]]}), encoding="utf-8")
    ends = foretoken.load(folder)
    assert ends.end_tokens == {4000, tokens[7]}
    first = tokens.index(tokens[7])
    done = ends.generate(PROMPTS["new"], max_new_tokens=12)
    assert (done.tokens, done.finish_reason) == (tokens[: first + 1], "stop")
    assert ends.generate(PROMPTS["new"], max_new_tokens=12, ignore_eos=True).tokens == tokens


def test_end_tokens_that_cannot_be_read_are_not_replaced_by_others(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    place = tmp_path / "model" / "generation_config.json"
    for wrong in (True, 1.0, -1, 4096, "x", [0, None]):
        place.write_text(json.dumps({"eos_token_id": wrong}), encoding="utf-8")
        with pytest.raises(foretoken.CheckpointError, match=r"eos_token_id is .*, expected ids below 4096"):
            foretoken.load(tmp_path / "model")
    place.unlink()
    place.symlink_to("nowhere")
    with pytest.raises(foretoken.ModelNotFoundError, match=r"has no generation_config\.json"):
        foretoken.load(tmp_path / "model")


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_models_fit_what_was_promised_of_them(name: str) -> None:
    folder = EMBEDDED[name]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["num_key_value_heads"] <= 2
    assert config["head_dim"] <= 64
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert record["heldout_loss_nats_per_token"] < {"stdlib-7m": 3.0, "stdlib-1m": 3.6}[name]
    tokenizers = {(f / "tokenizer.json").read_bytes() for f in EMBEDDED.values()}
    assert len(tokenizers) == 1, "drafts share their target's tokenizer"
    sizes = sum(file.stat().st_size for f in EMBEDDED.values() for file in f.iterdir())
    assert sizes < 20e6
    assert foretoken.load(name).target.weights.embedding.dtype == DTYPES["bfloat16"]

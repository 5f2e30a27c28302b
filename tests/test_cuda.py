"""The same code on a GPU. Its promise there is the weaker one, so it is compared with the CPU, and with itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.decoder.rows import chain
from foretoken.training.drafter import Recipe, Training
from foretoken.training.kinds import Kind

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")

PROMPT = "def test_one(self):\n    self.assertEqual(1, 1)\n\n\ndef test_two(self):"


def test_a_gpu_says_what_the_cpu_says() -> None:
    logits = []
    for device in ("cpu", "cuda"):
        model = foretoken.load("stdlib-7m", device=device, dtype="float32")
        rows = chain(model.target.new_cache(), model.tokens_of(PROMPT))
        logits.append(model.target.head(model.target.forward(rows)).cpu())
    assert float((logits[0] - logits[1]).abs().max() / logits[0].abs().max()) <= 1e-4


def test_drafting_on_a_gpu_gives_what_plain_decoding_gives_there() -> None:
    plain, drafted = (
        foretoken.load("stdlib-7m", device="cuda", draft=draft, pace="fixed").generate(PROMPT, max_new_tokens=60)
        for draft in ("none", "lookup")
    )
    assert plain.tokens == drafted.tokens
    assert drafted.stats.accepted_tokens > 0
    assert drafted.promise == "algorithmic"


@pytest.mark.parametrize("kind", [Kind(), Kind(inferred=1), Kind("eagle2"), Kind("eagle3")], ids=str)
def test_a_drafter_is_trained_on_a_gpu_and_used_on_the_cpu(tmp_path: Path, kind: Kind) -> None:
    model = foretoken.load("stdlib-1m", draft="none")
    stream = torch.tensor(model.tokens_of(PROMPT * 30))
    recipe = Recipe(20 * 2 * 48, kind, batch=2, length=48, warmup=2, checkpoints=2, prompts=2, new_tokens=12)
    training = Training(model, stream, stream[-200:], tmp_path / "it", recipe, "cuda")
    losses: list[float] = []
    training.run(lambda progress: losses.append(progress.loss))
    assert losses[-1] < losses[0]
    plain = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    drafted = foretoken.load("stdlib-1m", draft=str(tmp_path / "it")).generate(
        PROMPT, max_new_tokens=24, ignore_eos=True
    )
    assert drafted.tokens == plain.tokens

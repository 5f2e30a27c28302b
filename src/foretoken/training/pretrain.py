"""Train an embedded model from nothing: `python -m foretoken.training.pretrain --size 7m --out DIR`.

The model is transformers' own Llama, so the result is an ordinary Hugging Face checkpoint. Matrices are trained with
Muon, embeddings and norms with AdamW. The learning rate warms up, stays flat until half-time, then falls linearly to
zero.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from foretoken.errors import InputError
from foretoken.training import corpus
from foretoken.training.precision import mixed


@dataclass(frozen=True)
class Shape:
    """The shape of a model. At most 2 key/value heads of size 64, so that any larger Llama can hold it, padded."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 64


SHAPES = {
    "7m": Shape(4, 384, 896, 6, 2),
    "1m": Shape(2, 128, 384, 4, 2),
}


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run. Rates are peak rates; lengths are in tokens, times in steps."""

    size: str = "7m"
    steps: int = 2400
    batch: int = 16
    length: int = 512
    muon_rate: float = 3e-3
    adamw_rate: float = 3e-3
    weight_decay: float = 0.05
    warmup: int = 60
    clip: float = 1.0
    seed: int = 0
    evaluate_every: int = 200


def learning_rate(step: int, recipe: Recipe) -> float:
    """The factor on the peak rates at `step`: up over the warm-up, flat, down to zero over the second half."""
    half = recipe.steps // 2
    return min(1.0, (step + 1) / recipe.warmup, max(0.0, (recipe.steps - step) / (recipe.steps - half)))


def build_model(shape: Shape, vocab_size: int, end_token: int, pad_token: int) -> torch.nn.Module:
    """An untrained transformers Llama, with smaller initial weights in the output layers of each block."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=end_token,
        eos_token_id=end_token,
        pad_token_id=pad_token,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **asdict(shape),
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    depth = math.sqrt(2 * shape.num_hidden_layers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.div_(depth)
    return model


def optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for everything else."""
    if not hasattr(torch.optim, "Muon"):
        raise InputError(f"torch {torch.__version__} has no Muon; training needs torch 2.9 or later")
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    others = [p for _, p in named if id(p) not in chosen]
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.muon_rate,
            weight_decay=recipe.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def batch_loss(model: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, nats per token, of `tokens[:, 1:]` given what precedes them. tokens: [batch, length + 1]."""
    with mixed(torch.device("cpu")):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def heldout_loss(model: Callable[..., Any], stream: torch.Tensor, length: int, windows: int | None = None) -> float:
    """Mean loss over the held-out stream cut into windows of `length`; all of them, or `windows` spread evenly."""
    starts = torch.arange(0, len(stream) - length - 1, length)
    if windows is not None:
        starts = starts[:: max(1, len(starts) // windows)]
    losses = [
        batch_loss(model, torch.stack([stream[s : s + length + 1] for s in part])) * len(part)
        for part in torch.split(starts, 16)
    ]
    return float(sum(losses) / len(starts))


def train(recipe: Recipe, tokenizer_folder: Path, out: Path, *, compile_model: bool = True) -> dict[str, object]:
    """Train, write the checkpoint to `out` (a temporary folder first, then renamed) and return the record."""
    from tokenizers import Tokenizer

    if out.exists():
        raise InputError(f"{out} exists already; name a new folder, or remove it")
    torch.manual_seed(recipe.seed)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    end_token, pad_token = (tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|pad|>"))
    if end_token is None or pad_token is None:
        raise InputError(f"the tokenizer in {tokenizer_folder} lacks <|endoftext|> or <|pad|>; use an embedded model's")
    texts = corpus.read_texts(corpus.TRAIN_FILES)
    stream = torch.tensor(corpus.token_stream(texts, tokenizer, end_token))
    heldout = torch.tensor(corpus.token_stream(corpus.read_texts(corpus.HELDOUT_FILES), tokenizer, end_token))
    model = build_model(SHAPES[recipe.size], tokenizer.get_vocab_size(), end_token, pad_token)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.2f} M parameters, {len(stream) / 1e6:.2f} M tokens to train on", flush=True)
    step_model = torch.compile(model) if compile_model else model
    opts = optimizers(model, recipe)
    peaks = [[g["lr"] for g in o.param_groups] for o in opts]
    generator = torch.Generator().manual_seed(recipe.seed)
    began = time.perf_counter()
    smooth = None
    for step in range(recipe.steps):
        starts = torch.randint(len(stream) - recipe.length - 1, (recipe.batch,), generator=generator)
        loss = batch_loss(step_model, torch.stack([stream[s : s + recipe.length + 1] for s in starts]))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for optimizer, peak in zip(opts, peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = rate * learning_rate(step, recipe)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smooth = float(loss) if smooth is None else 0.95 * smooth + 0.05 * float(loss)
        if (step + 1) % 20 == 0:
            rate = (step + 1) * recipe.batch * recipe.length / (time.perf_counter() - began)
            left = (recipe.steps - step - 1) * recipe.batch * recipe.length / rate / 60
            print(
                f"step {step + 1}/{recipe.steps} loss {smooth:.3f} {rate:,.0f} tokens/s {left:.0f} min left", flush=True
            )
        if (step + 1) % recipe.evaluate_every == 0:
            print(f"  held-out loss {heldout_loss(step_model, heldout, recipe.length, 64):.3f}", flush=True)
    model.to(torch.bfloat16)
    record = {
        "recipe": asdict(recipe),
        "parameters": parameters,
        "train_tokens": recipe.steps * recipe.batch * recipe.length,
        "corpus_sha256": corpus.fingerprint(texts),
        "heldout_loss_nats_per_token": round(heldout_loss(model, heldout, recipe.length), 4),
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    write_checkpoint(model, tokenizer_folder, out, record)
    print(json.dumps(record, indent=1))
    return record


def write_checkpoint(model: torch.nn.Module, tokenizer_folder: Path, out: Path, record: dict[str, object]) -> None:
    """Write model, tokenizer and training record to a temporary folder beside `out`, then rename it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        folder = Path(scratch) / out.name
        model.save_pretrained(folder)  # type: ignore[operator]
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer_folder / name, folder / name)
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        folder.rename(out)


def main() -> None:
    """The command line."""
    defaults = Recipe()
    parser = argparse.ArgumentParser(description="Train an embedded model from nothing.")
    parser.add_argument("--size", choices=sorted(SHAPES), default=defaults.size)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--tokenizer", type=Path, default=corpus.MODELS / "stdlib-7m", help="folder of tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile (slower, needs no compiler)")
    args = parser.parse_args()
    recipe = replace(defaults, size=args.size, steps=args.steps, seed=args.seed)
    try:
        train(recipe, args.tokenizer, args.out, compile_model=not args.no_compile)
    except InputError as error:
        raise SystemExit(f"pretrain: {error}") from None


if __name__ == "__main__":
    main()

"""transformers: plain, with prompt lookup and, where a draft checkpoint is given, assisted generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answering import Generate, Peer, own_output

out = own_output()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

LOOKUP = 10  # tokens


def loaded(checkpoint: Path, **placed: Any) -> Any:
    """A model in the type of its weights, without the checkpoint's own settings for generation. placed: where its parts
    lie, as `from_pretrained` takes it."""
    # never run a checkpoint's own program, nor ask whether to: standard input holds the measurement's requests
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto", trust_remote_code=False, **placed).eval()
    for sampled in ("temperature", "top_p", "top_k", "min_p"):
        setattr(model.generation_config, sampled, None)
    model.generation_config.eos_token_id = None  # else the assistant stops at end tokens
    model.generation_config.pad_token_id = 0
    return model


def greedy(model: Any, **settings: Any) -> Generate:
    """Generation with transformers' own settings for a mode."""

    def generate(tokens: list[int], count: int) -> list[int]:
        ids = torch.tensor([tokens])
        more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": count, **settings}
        with torch.inference_mode():
            new: list[int] = model.generate(ids, **more)[0, len(tokens) :].tolist()
        return new

    return generate


def main() -> None:
    """Load, then answer."""
    peer = Peer("transformers", "torch")
    torch.set_num_threads(peer.threads)
    model = peer.prepare("load", loaded, peer.checkpoint)
    said = f"{str(model.dtype).removeprefix('torch.')}, {model.config._attn_implementation} attention, not compiled"
    peer.offer("plain", said, greedy(model))
    peer.offer("lookup", f"prompt_lookup_num_tokens={LOOKUP}", greedy(model, prompt_lookup_num_tokens=LOOKUP), "plain")
    draft = peer.draft
    if draft is not None:
        # the draft's length and confidence come from the assistant's generation_config, and nowhere else
        said = f"assistant_model {draft.name}, by its own generation_config, otherwise transformers' defaults"
        peer.try_to_offer("assisted", said, lambda: greedy(model, assistant_model=loaded(draft)), "plain")
    peer.serve(out)


if __name__ == "__main__":
    main()

"""transformers with accelerate's disk offload: every layer is read from the checkpoint's files in each pass."""

from __future__ import annotations

from typing import Any

import torch
from answering import Peer
from transformers import AutoConfig
from transformers_peer import greedy, loaded, out  # first, because it takes standard output for itself


def on_disk(peer: Peer) -> Any:
    """The model, of which only embedding, output layer and norm are in memory."""
    layers = AutoConfig.from_pretrained(peer.checkpoint).num_hidden_layers
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{layer}": "disk" for layer in range(layers)}
    return loaded(peer.checkpoint, device_map=places, offload_folder=peer.work / "accelerate")


def main() -> None:
    """Load, then answer."""
    peer = Peer("transformers", "accelerate", "torch")
    torch.set_num_threads(peer.threads)
    model = peer.prepare("load", on_disk, peer)
    peer.offer("plain", "device_map with all layers on the disk", greedy(model))
    peer.serve(out)


if __name__ == "__main__":
    main()

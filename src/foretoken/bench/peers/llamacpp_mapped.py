"""llama.cpp on weights that it maps: the system keeps as much of the file in memory as there is room for."""

from __future__ import annotations

from functools import partial

import llama_cpp
from answering import Peer, made, own_output
from llama_gguf import convert
from llamacpp import Model, greedy


def main() -> None:
    """Convert, then answer."""
    out = own_output()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    peer = Peer("llama-cpp-python", "gguf")
    place = peer.work / "model-bf16.gguf"
    file = peer.prepare("convert", made, place, peer.checkpoint, partial(convert, peer.checkpoint))
    peer.offer("plain", "weights as in the checkpoint, mapped", greedy(peer.prepare("load", Model, file, peer.threads)))
    peer.serve(out)


if __name__ == "__main__":
    main()

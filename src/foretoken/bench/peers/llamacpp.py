"""llama.cpp on a checkpoint of the Llama architecture: run by a Python that has `llama-cpp-python` and `gguf`, not by
Foretoken's own.

    python llamacpp.py CHECKPOINT WORK THREADS

It writes WORK/model-bf16.gguf from the checkpoint's safetensors and WORK/model-q4_0.gguf from that, says so with a line
of JSON, then answers each line of standard input, `FORMAT ROWS COUNT` (such as `q4_0 1 16`), with the seconds of COUNT
passes of ROWS rows after a prompt of 100 tokens, a JSON number in each line; until its input ends.
"""

from __future__ import annotations

import json
import mmap
import sys
from ctypes import c_int32
from pathlib import Path
from time import perf_counter

import gguf
import llama_cpp
import numpy as np

PROMPT = 100
FILE_TYPES = {"q4_0": 2, "q8_0": 7}  # llama.cpp's LLAMA_FTYPE_MOSTLY_...
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def convert(checkpoint: Path, out: Path) -> None:
    """A checkpoint with one file of bf16 weights as GGUF. Its tokenizer is left out: what is measured is passes."""
    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, shape, numbers in tensors(checkpoint / "model.safetensors"):
        data = numbers.reshape(shape)
        if name.endswith("q_proj.weight"):
            data = interleaved(data, heads)
        if name.endswith("k_proj.weight"):
            data = interleaved(data, kv_heads)
        if len(shape) == 1:  # llama.cpp wants norms in float32
            writer.add_tensor(renamed(name), (data.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = np.ascontiguousarray(data).view(np.uint8)
            writer.add_tensor(renamed(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(path: Path) -> list[tuple[str, list[int], np.ndarray]]:
    """Name, shape and numbers, as 16 bits each, of the tensors of a safetensors file."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(memory[:8], "little")
    header = json.loads(memory[8 : 8 + size])
    found = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{name} is {entry['dtype']}; expected a checkpoint of bf16 weights")
        start, stop = entry["data_offsets"]
        numbers = np.frombuffer(memory, np.uint16, (stop - start) // 2, 8 + size + start)
        found.append((name, entry["shape"], numbers))
    return found


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order of llama.cpp's rotary positions: pairs lie side by side."""
    outputs, inputs = weight.shape
    return weight.reshape(heads, 2, outputs // heads // 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def renamed(name: str) -> str:
    """A tensor's name in GGUF."""
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    base = name.removesuffix(".weight")
    if base in whole:
        return f"{whole[base]}.weight"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def requantise(source: Path, out: Path, format: str) -> None:
    """A GGUF in another format, by llama.cpp's own quantiser, the output layer too."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = FILE_TYPES[format]
    parameters.pure = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), parameters):
        raise SystemExit(f"llama.cpp did not quantise {source} to {format}")


class Model:
    """A model with a prompt read."""

    def __init__(self, path: Path, threads: int) -> None:
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 1024, 512, 512
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise SystemExit(f"llama.cpp did not load {path}")
        self._position = 0
        self.run(PROMPT)

    def run(self, rows: int) -> float:
        """Seconds of one pass, the logits of all its rows with it."""
        if self._position + rows > 1000:
            memory = llama_cpp.llama_get_memory(self._context)
            llama_cpp.llama_memory_seq_rm(memory, 0, PROMPT, -1)
            self._position = PROMPT
        batch = llama_cpp.llama_batch_init(rows, 0, 1)
        batch.n_tokens = rows
        for i in range(rows):
            batch.token[i] = 5
            batch.pos[i] = self._position + i
            batch.n_seq_id[i] = c_int32(1)
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        began = perf_counter()
        if llama_cpp.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp did not decode")
        llama_cpp.llama_get_logits(self._context)
        seconds = perf_counter() - began
        llama_cpp.llama_batch_free(batch)
        self._position += rows
        return seconds


def main() -> None:
    """Convert, then measure what is asked for."""
    checkpoint, work, threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    plain = work / "model-bf16.gguf"
    convert(checkpoint, plain)
    requantise(plain, work / "model-q4_0.gguf", "q4_0")
    print(
        json.dumps({"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode()}),
        flush=True,
    )
    models: dict[str, Model] = {}
    for line in sys.stdin:
        format, rows, count = line.split()
        if format not in models:
            models[format] = Model(work / f"model-{format}.gguf", threads)
        print(json.dumps([models[format].run(int(rows)) for _ in range(int(count))]), flush=True)


if __name__ == "__main__":
    main()

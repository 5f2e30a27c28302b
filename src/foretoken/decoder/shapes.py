"""The tensors that a checkpoint of a configuration holds: their names and shapes."""

from __future__ import annotations

from collections.abc import Collection

from foretoken.decoder.config import DecoderConfig

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
OUTPUT = -1  # the number of the output layer, where layers are numbered


def linear_shapes(config: DecoderConfig, *, without: Collection[int] = ()) -> dict[str, tuple[int, int]]:
    """The shapes of a model's linear layers, [outputs, inputs] by name. The output layer comes last, tied or not.
    without: layers whose linear layers are left out, `OUTPUT` for the output layer."""
    c = config
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, int]] = {}
    for i in range(c.num_layers):
        if i in without:
            continue
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        enters = 2 * c.hidden_size if c.wide and i == 0 else c.hidden_size
        shapes[f"{attention}.q_proj"] = (queries, enters)
        shapes[f"{attention}.k_proj"] = shapes[f"{attention}.v_proj"] = (keys, enters)
        shapes[f"{attention}.o_proj"] = (c.hidden_size, queries)
        shapes[f"{mlp}.gate_proj"] = shapes[f"{mlp}.up_proj"] = (c.intermediate_of(i), c.hidden_size)
        shapes[f"{mlp}.down_proj"] = (c.hidden_size, c.intermediate_of(i))
    if OUTPUT not in without:
        shapes[HEAD] = (c.vocab_size, c.hidden_size)
    return shapes


def stored_as(name: str, config: DecoderConfig) -> str:
    """The name of the tensor that holds a linear layer's weight. For a tied output layer it is the embedding."""
    return f"{EMBEDDING if name == HEAD and config.tied else name}.weight"


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors that a checkpoint of this configuration must hold, without low-bit weights,
    in the order in which a pass uses them."""
    c = config
    linears = linear_shapes(c)
    biases = {"q_proj": c.qkv_bias, "k_proj": c.qkv_bias, "v_proj": c.qkv_bias, "o_proj": c.output_bias, HEAD: False}
    shapes: dict[str, tuple[int, ...]] = {f"{EMBEDDING}.weight": (c.vocab_size, c.hidden_size)}

    def linear(*names: str) -> None:
        for name in names:
            if c.low_bit is None and not (name == HEAD and c.tied):
                shapes[f"{name}.weight"] = linears[name]
            if biases.get(name.rpartition(".")[2], c.mlp_bias):
                shapes[f"{name}.bias"] = linears[name][:1]

    for i in range(c.num_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (c.hidden_size,)
        linear(*(f"{layer}.self_attn.{name}_proj" for name in "qkvo"))
        if c.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (c.head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (c.head_dim,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (c.hidden_size,)
        linear(*(f"{layer}.mlp.{name}_proj" for name in ("gate", "up", "down")))
    shapes["model.norm.weight"] = (c.hidden_size,)
    linear(HEAD)
    return shapes

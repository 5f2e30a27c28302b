"""The shapes of models that people run: how wide, how deep, how many rows of vocabulary. No weights, no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from foretoken.errors import SettingError, nearest, quoted

SHAPED = ("llama", "qwen2")  # the families that a shape may have


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, as counts. tied: whether one matrix is embedding and output layer."""

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer's seven matrices."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def linear_parameters(self) -> int:
        """The parameters that a pass multiplies with: the layers' matrices and the output layer."""
        return self.num_layers * self.layer_parameters + self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters. A tied output layer is counted once."""
        biases = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.model_type == "qwen2" else 0
        norms = 2 * self.num_layers * self.hidden_size + self.hidden_size
        embedding = 0 if self.tied else self.vocab_size * self.hidden_size
        return self.linear_parameters + embedding + norms + self.num_layers * biases

    def bytes(self, per_parameter: float = 2) -> int:
        """The bytes of the weights. per_parameter: 2 for bf16 or fp16."""
        return round(self.parameters * per_parameter)

    @property
    def cache_bytes(self) -> int:
        """The bytes of one token in a cache of bf16 keys and values."""
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim


def _table(*shapes: Shape) -> dict[str, Shape]:
    return {shape.name: shape for shape in shapes}


# from the models' config.json; the names are those of the models
SHAPES: dict[str, Shape] = _table(
    Shape("llama-68m", "llama", 768, 3072, 2, 12, 12, 64, 32000, False),
    Shape("llama-3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    Shape("llama-3.2-3b", "llama", 3072, 8192, 28, 24, 8, 128, 128256, True),
    Shape("llama-3.1-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    Shape("codellama-13b", "llama", 5120, 13824, 40, 40, 40, 128, 32016, False),
    Shape("qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, True),
    Shape("qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    Shape("qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False),
)


def shape_of(text: str, *, vocab_size: int | None = None, num_layers: int | None = None) -> Shape:
    """A shape by its name, or by its numbers: `hidden=2048,layers=16,heads=32,kv-heads=8,intermediate=8192,vocab=4096`.
    The numbers may include `head-dim` (default: hidden / heads), `tied` (yes or no; default: no) and `type` (llama or
    qwen2; default: llama). vocab_size, num_layers: replace the shape's. Raises SettingError.
    """
    shape = SHAPES.get(text) or _from_numbers(text)
    if vocab_size is not None:
        shape = replace(shape, vocab_size=_count(vocab_size, "vocab_size"))
    if num_layers is not None:
        shape = replace(shape, num_layers=_count(num_layers, "num_layers"))
    return shape


def _count(value: object, name: str) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if not 1 <= count <= 1 << 24:
        raise SettingError(f"{name} of a shape is {quoted(value, 40)}, expected a whole number, 1 to {1 << 24}")
    return count


def _tied(value: str, name: str) -> bool:
    if value not in ("yes", "no"):
        raise SettingError(f"{name} of a shape is {quoted(value, 40)}, expected yes or no")
    return value == "yes"


def _family(value: str, name: str) -> str:
    if value not in SHAPED:
        raise SettingError(f"{name} of a shape is {quoted(value, 40)}{nearest(value, SHAPED)}")
    return value


_KEYS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "hidden": ("hidden_size", _count),
    "layers": ("num_layers", _count),
    "heads": ("num_heads", _count),
    "kv-heads": ("num_kv_heads", _count),
    "intermediate": ("intermediate_size", _count),
    "vocab": ("vocab_size", _count),
    "head-dim": ("head_dim", _count),
    "tied": ("tied", _tied),
    "type": ("model_type", _family),
}
_MAY_BE_LEFT_OUT = ("head-dim", "tied", "type")


def _from_numbers(text: str) -> Shape:
    if "=" not in text:
        raise SettingError(f"the shape {quoted(text)} is not known{nearest(text, SHAPES)}; or give its numbers")
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in _KEYS or not equals:
            raise SettingError(f"a shape has no {quoted(part)}{nearest(key, _KEYS)}; expected key=value, with commas")
        field, read = _KEYS[key]
        if field in given:
            raise SettingError(f"the shape {quoted(text)} says {key} twice; say it once")
        given[field] = read(value, key)
    absent = [key for key, (field, _) in _KEYS.items() if field not in given and key not in _MAY_BE_LEFT_OUT]
    if absent:
        raise SettingError(f"the shape {quoted(text)} lacks {', '.join(absent)}; add {absent[0]}=NUMBER")
    hidden, heads, kv_heads = given["hidden_size"], given["num_heads"], given["num_kv_heads"]
    if hidden % heads:  # transformers does not load such a shape, whatever the head size
        raise SettingError(f"{heads} heads do not divide {hidden} hidden channels; expected a divisor")
    if heads % kv_heads:
        raise SettingError(f"{heads} query heads cannot share {kv_heads} key/value heads; expected a divisor")
    made = Shape(**{"name": text, "model_type": "llama", "head_dim": hidden // heads, "tied": False, **given})
    if made.head_dim % 2:
        raise SettingError(f"head-dim of a shape is {made.head_dim}, expected an even number: positions need pairs")
    return made

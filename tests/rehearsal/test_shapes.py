"""Shapes by name and by numbers."""

from __future__ import annotations

import pytest

from foretoken.errors import SettingError
from foretoken.rehearsal.shapes import SHAPES, shape_of

NUMBERS = "hidden=2048,layers=16,heads=32,kv-heads=8,intermediate=8192,vocab=4096"


@pytest.mark.parametrize(
    ("name", "parameters"),  # as their authors count them
    [
        ("llama-68m", 68_030_208),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("codellama-13b", 13_016_028_160),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_shapes_have_the_parameters_of_the_models_that_they_are_named_after(name: str, parameters: int) -> None:
    shape = SHAPES[name]
    assert shape.name == name
    assert shape.parameters == parameters
    assert shape.bytes() == 2 * parameters


def test_every_shape_is_there() -> None:
    assert len(SHAPES) == 8


def test_numbers_make_a_shape_and_some_of_it_can_be_said_apart() -> None:
    shape = shape_of(NUMBERS)
    assert (shape.hidden_size, shape.head_dim, shape.tied, shape.model_type) == (2048, 64, False, "llama")
    assert shape.parameters == 989_923_328
    shape = shape_of(f"{NUMBERS},head-dim=128,tied=yes,type=qwen2")
    assert (shape.head_dim, shape.tied, shape.model_type) == (128, True, "qwen2")
    shape = shape_of("llama-3.2-1b", vocab_size=4096, num_layers=3)
    assert (shape.name, shape.vocab_size, shape.num_layers, shape.tied) == ("llama-3.2-1b", 4096, 3, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("llama-3.2", "the shape 'llama-3.2' is not known; did you mean 'llama-3.2-3b'? (known: codellama-13b, "),
        ("hidden=64,width=3", "a shape has no 'width=3'"),
        ("hidden=64,layers", "a shape has no 'layers'"),
        ("hidden=64,hidden=64", "the shape 'hidden=64,hidden=64' says hidden twice; say it once"),
        ("hidden=0", "hidden of a shape is '0', expected a whole number, 1 to 16777216"),
        ("hidden=many", "hidden of a shape is 'many', expected a whole number, 1 to 16777216"),
        ("hidden=64,heads=4", "the shape 'hidden=64,heads=4' lacks layers, kv-heads, intermediate, vocab; add layers="),
        (f"{NUMBERS},tied=true", "tied of a shape is 'true', expected yes or no"),
        (f"{NUMBERS},type=gpt2", "type of a shape is 'gpt2' (known: llama, qwen2)"),
        (NUMBERS.replace("heads=32", "heads=30", 1), "30 heads do not divide 2048 hidden channels; expected a d"),
        (NUMBERS.replace("kv-heads=8", "kv-heads=7"), "32 query heads cannot share 7 key/value heads; expected a div"),
        (f"{NUMBERS},head-dim=63", "head-dim of a shape is 63, expected an even number: positions need pairs"),
    ],
)
def test_what_is_no_shape_is_refused(given: str, message: str) -> None:
    with pytest.raises(SettingError) as error:
        shape_of(given)
    assert str(error.value).startswith(message)

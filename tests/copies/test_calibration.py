"""What layers read, against transformers; and copies that were made with it, beside copies that were only rounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import foretoken
from foretoken.api.own_text import own_texts, pieces
from foretoken.copies import calibration
from foretoken.copies import quantise as copies
from foretoken.copies.calibration import Calibration
from foretoken.decoder.config import read_config, read_json
from foretoken.decoder.linear import Linear
from foretoken.decoder.loading import load_weights, mapped_tensors
from foretoken.decoder.shapes import linear_shapes, stored_as
from foretoken.errors import CheckpointError, ContractError, InputError
from foretoken.formats import format_of, gptq
from foretoken.formats.quantiser import Quantiser, quantise
from foretoken.formats.values import dequantise
from foretoken.formats.weight import QuantisedWeight
from tests.copies.conftest import copy_of, write_checkpoint

TEXTS = [(5, 9, 33, 70, 2, 8, 8, 41), (17, 3, 60), tuple(range(20, 90, 3))]
FORMAT = format_of("int4-g32")
Made = tuple[Quantiser, Sequence[Sequence[int]]]  # how a copy is made, and on which texts


def coded(linear: Linear) -> QuantisedWeight:
    assert isinstance(linear.weight, QuantisedWeight)
    return linear.weight


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="llama, biases"),
        pytest.param({"model_type": "qwen2", "tie_word_embeddings": True}, id="qwen2, tied"),
        pytest.param({"model_type": "qwen3"}, id="qwen3"),
        pytest.param({"model_type": "mistral", "sliding_window": 7}, id="mistral, a window"),
    ],
)
@pytest.mark.parametrize("together", [1024, 20])
def test_layers_read_what_they_read_in_transformers(
    changes: dict[str, object], together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the layer that is asked for, and behind layers that have become low-bit."""
    monkeypatch.setattr(calibration, "_ROWS", together)
    folder = write_checkpoint(tmp_path / "model", dtype=torch.float32, **changes)
    config = read_config(folder)
    tensors = mapped_tensors(folder, config)
    ours = Calibration(config, tensors, TEXTS, 1)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if config.tied:  # the copy's output layer changes, and its embedding does not
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())

    def moments(name: str) -> torch.Tensor:
        rows: list[torch.Tensor] = []
        hook = theirs.get_submodule(name).register_forward_pre_hook(lambda _, given: rows.append(given[0][0]))
        with torch.inference_mode():
            for text in TEXTS:
                theirs(torch.tensor([text]))
        hook.remove()
        x = torch.cat(rows)
        return x.T @ x / len(x)

    made: dict[str, torch.Tensor] = {}
    for name in linear_shapes(config):
        if name.endswith(("q_proj", "lm_head")):  # all layers before have become what they are in the copy
            for each, values in made.items():
                theirs.get_submodule(each).weight.data = values
        factor = ours.factor(name)
        assert torch.allclose(factor, gptq.factor(moments(name)), rtol=1e-3, atol=1e-3 * float(factor.abs().max())), (
            name
        )
        weight = tensors[stored_as(name, config)]
        for rows in weight.tensor_split(2):
            quantised = quantise(rows, FORMAT, name=name, quantiser="gptq", factor=factor)
            ours.keep(name, quantised)
            made[name] = torch.cat([made.get(name, torch.empty(0, weight.shape[1])), dequantise(quantised).float()])
    for layer in range(config.num_layers):  # nothing of the copy stays in memory
        name = f"model.layers.{layer}.mlp.down_proj"
        assert ours._pass.layer(layer).down.values.data_ptr() == tensors[f"{name}.weight"].data_ptr()


def test_each_type_of_weights_has_a_copy_of_its_own(tmp_path: Path) -> None:
    """bf16, fp16, and an embedding in float32 above layers in bf16."""
    found = {}
    for kind in ("bfloat16", "float16", "mixed"):
        dtype = torch.float32 if kind == "mixed" else getattr(torch, kind)
        folder = write_checkpoint(tmp_path / kind, dtype=dtype)
        if kind == "mixed":
            tensors = load_file(folder / "model.safetensors")
            layers = {name: tensor.bfloat16() for name, tensor in tensors.items() if "layers" in name}
            save_file({**tensors, **layers}, folder / "model.safetensors", metadata={"format": "pt"})
        out = copy_of(folder, "int4", quantiser="gptq", texts=TEXTS)
        config, weights = read_config(folder), load_weights(out, read_config(out))
        own = load_weights(folder, config)
        away = [
            float((dequantise(coded(one)).float() - other.values.float()).norm() / other.values.float().norm())
            for one, other in zip(weights.linears, own.linears, strict=True)
        ]
        assert max(away) < 0.25
        found[kind] = weights
    assert not torch.equal(coded(found["bfloat16"].head).codes, coded(found["float16"].head).codes)


def test_inputs_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"] *= 1e30  # its products are beyond float32
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = r"^on the texts to calibrate on, model\.layers\.1\.self_attn\.q_proj reads numbers that are NaN or infini"
    with pytest.raises(CheckpointError, match=said):
        copy_of(folder, "int4", quantiser="gptq", texts=TEXTS)
    assert not folder.with_name("model-int4-g64").exists()


@pytest.mark.parametrize(("text", "came"), [((), "nothing"), ((5, 97), "the token 97"), ((-1,), "the token -1")])
def test_a_text_that_the_model_cannot_read_is_refused(text: tuple[int, ...], came: str, model: Path) -> None:
    config = read_config(model)
    with pytest.raises(InputError, match=f"^text 2 to calibrate on has {came}; expected token ids from 0 to 96$"):
        Calibration(config, mapped_tensors(model, config), [(1, 2), text])


def test_texts_are_for_gptq_alone(model: Path) -> None:
    wrong: tuple[Made, ...] = (("direct", TEXTS), ("gptq", ()))
    for how, texts in wrong:
        plan = copies.plan(model, model.with_name("out"), FORMAT, quantiser=how)
        with pytest.raises(ContractError, match=f"^{how} came with {len(texts)} texts"):
            copies.write(plan, texts=texts)
        assert not model.with_name("out").exists()


def test_a_copy_made_on_its_models_own_text_guesses_better(tmp_path: Path) -> None:
    """On other text of the model's: how often a copy's likeliest token is the model's."""
    folder = tmp_path / "model"
    folder.symlink_to(foretoken.load("stdlib-1m").folder)
    model = foretoken.load(str(folder), draft="none")
    read, unseen = own_texts(model, 32, 64), own_texts(model, 80, 64)[40:]
    assert not set(read) & set(unseen)
    right = {}
    made: tuple[Made, ...] = (("direct", ()), ("gptq", read))
    for how, texts in made:
        out = tmp_path / how
        copies.write(copies.plan(folder, out, format_of("int3"), quantiser=how), texts=texts)
        copy = foretoken.load(str(out), draft="none")
        right[how] = sum(
            copy.generate(text, max_new_tokens=1).tokens == model.generate(text, max_new_tokens=1).tokens
            for whole in unseen
            for text in (whole[:20], whole[:40], whole[:60])
        )
    assert right["gptq"] > right["direct"] + 5


def test_own_texts_begin_alike_and_go_on_by_chance() -> None:
    model = foretoken.load("stdlib-1m", draft="none")
    texts = own_texts(model, 5, 30)
    assert [len(text) for text in texts] == 5 * [30]
    assert {text[0] for text in texts} == {0}  # <|endoftext|>
    assert len(set(texts)) == 5
    assert texts == own_texts(model, 5, 30)
    assert model.tokenizer is not None
    model.tokenizer._tokenizer.bos_token = "def"
    (first,) = model.tokenizer.encode_part("def")
    assert {text[0] for text in own_texts(model, 3, 4)} == {first}


def test_a_model_without_tokenizer_or_end_token_writes_as_much_as_its_context_holds(tmp_path: Path) -> None:
    model = foretoken.load(str(write_checkpoint(tmp_path / "model", max_position_embeddings=9)), draft="none")
    assert model.tokenizer is None
    assert [len(text) for text in own_texts(model, 2)] == [9, 9]


def test_texts_of_others_are_cut_and_taken_from_everywhere() -> None:
    assert pieces([(1,) * 300, (2,)]) == [(1,) * 256, (1,) * 44, (2,)]
    many = pieces([tuple(range(256 * 200))])
    assert len(many) == 64
    assert many[0][0] < 256 * 10
    assert many[-1][0] > 256 * 190
    short = pieces([(number,) * 20 for number in range(5000)])
    assert 0.99 * 64 * 256 <= sum(map(len, short)) <= 64 * 256
    with pytest.raises(InputError, match=r"^the text to calibrate on has no token"):
        pieces([()])


def test_the_copy_names_how_it_was_made_and_drafts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_checkpoint(tmp_path / "llama")
    out = copy_of(folder, "mxfp4", quantiser="gptq", texts=TEXTS)
    assert read_config(out).low_bit == format_of("mxfp4")
    assert load_weights(out, read_config(out)).nbytes < load_weights(folder, read_config(folder)).nbytes
    assert read_json(out / "config.json")["quantization_config"]["quantizer"] == "gptq"
    plain = foretoken.load(str(folder), draft="none").generate((1, 2, 3), max_new_tokens=20)
    with caplog.at_level("INFO", logger="foretoken"):
        drafting = foretoken.load(str(folder), draft="mxfp4:tokens=4", pace="fixed")
    assert f"read from {out} (gptq)" in caplog.text
    done = drafting.generate((1, 2, 3), max_new_tokens=20)
    assert done.tokens == plain.tokens

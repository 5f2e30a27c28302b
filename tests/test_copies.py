"""Low-bit copies of a model as its drafts, and low-bit models as targets: from `load` on."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import foretoken
from foretoken import build
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import dequantised, quantised
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import Weights, linear_shapes
from foretoken.drafters.reading import DecoderDrafter
from foretoken.errors import CheckpointError, DraftSpecError
from foretoken.formats import FORMATS, format_of
from foretoken.formats.weight import QuantisedWeight
from foretoken.model import Model
from foretoken.source import EMBEDDED
from foretoken.types import Completion
from tests.levels import HERE, at_level, forget
from tests.tiny import needs_native

PROMPT = "def read(self, size=-1):\n    "
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3}
SAMPLINGS = {"greedy": {}, "sampled": SAMPLED}
samplings = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(draft: str, model: str | Path = "stdlib-1m", **settings: Any) -> Model:
    return foretoken.load(model, draft=draft, **settings)


def copies(model: Model) -> list[DecoderDrafter]:
    """Its drafters that a decoder stands behind, nearest to the target first."""
    found, drafter = [], model._drafter
    while isinstance(drafter, DecoderDrafter):
        found.append(drafter)
        drafter = getattr(drafter, "inner", None)
    return found


def generate(model: Model, **settings: Any) -> Completion:
    return model.generate(PROMPT, max_new_tokens=40, hash_logits=True, ignore_eos=True, **settings)


def expect_equal(done: Completion, plain: Completion) -> None:
    assert done.tokens == plain.tokens
    assert done.text == plain.text
    assert done.logits_sha256 == plain.logits_sha256 is not None
    assert done.promise == plain.promise == "exact"


# -- what comes out ---------------------------------------------------------------------------------------------------

DRAFTS = (
    *FORMATS,
    "mxfp4,lookup",
    "mxfp4:inputs=bf16",
    "mxfp4:own-cache",
    "int4:group=32:inputs=bf16:tokens=9",
    "int3:group=128:own-cache,lookup",
    "mxfp4:k=3:depth=4",
    "int2:k=2:depth=3:shape=rerank:own-cache",
    "int4,mxfp4,int2,lookup:tokens=3",
    "int8:own-cache,int2,lookup",
    "mxfp4,stdlib-1m,lookup",
    "int3-g32,stdlib-1m:format=mxfp4",
    "stdlib-1m:format=int3:group=32,lookup",
    "int4,int2,stdlib-1m:format=mxfp4:inputs=bf16",
)


@samplings
@pytest.mark.parametrize("draft", DRAFTS)
def test_a_copy_drafts_what_plain_decoding_says(draft: str, sampling: dict[str, Any]) -> None:
    done = generate(load(draft), **sampling)
    expect_equal(done, generate(load("none"), **sampling))
    assert done.stats.accepted_tokens > 0
    assert set(done.origins) >= {"target", load(draft).levels[0]}


@samplings
def test_a_copy_of_the_larger_model_does_too(sampling: dict[str, Any]) -> None:
    plain = generate(load("none", "stdlib-7m"), **sampling)
    for draft in ("mxfp4,lookup", "int2:own-cache", "int4,stdlib-1m:format=mxfp4,lookup"):
        done = generate(load(draft, "stdlib-7m"), **sampling)
        expect_equal(done, plain)
        assert done.stats.accepted_tokens > 5


def test_the_levels_of_a_ladder_of_copies_all_draft() -> None:
    done = generate(load("int4,int2,lookup", "stdlib-7m"))
    assert set(done.origins) == {"target", "int4", "int2", "lookup"}


@samplings
@pytest.mark.parametrize("settings", [{"weights": "copied"}, {"dtype": "float32"}, {"dtype": "float16"}], ids=str)
@pytest.mark.parametrize("draft", ["mxfp4,lookup", "int3:k=2:depth=4", "int4:own-cache,int2"])
def test_it_does_whatever_type_the_weights_have_and_wherever_they_lie(
    draft: str, settings: dict[str, Any], sampling: dict[str, Any]
) -> None:
    done = generate(load(draft, **settings), **sampling)
    expect_equal(done, generate(load("none", **settings), **sampling))
    assert done.stats.accepted_tokens > 0


@needs_native
@pytest.mark.parametrize("level", HERE)
def test_it_does_at_every_level_with_any_number_of_threads(level: str) -> None:
    expected = generate(load("none"))
    with at_level(level):
        for threads in (1, 2):
            for weights in ("mapped", "copied"):
                model = load("mxfp4,int2,lookup", threads=threads, weights=weights)
                assert model.target.arithmetic == copies(model)[1].model.arithmetic == f"native {level}"
                expect_equal(generate(model), expected)


@contextmanager
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()


@samplings
def test_it_does_in_pytorch(monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]) -> None:
    with in_pytorch(monkeypatch):
        plain = generate(load("none"), **sampling)
        for draft in ("mxfp4,lookup", "int2:own-cache", "int4:k=2:depth=3"):
            model = load(draft)
            assert model.target.arithmetic == copies(model)[0].model.arithmetic == "pytorch"
            done = generate(model, **sampling)
            expect_equal(done, plain)
            assert done.stats.accepted_tokens > 0


@pytest.mark.parametrize("draft", ["mxfp4,lookup", "int4:own-cache", "int2:k=2:depth=3"])
def test_several_completions_are_those_of_plain_decoding(draft: str) -> None:
    def several(model: Model) -> list[Completion]:
        return model.completions(PROMPT, n=3, max_new_tokens=24, hash_logits=True, **SAMPLED)

    drafted, plain = several(load(draft)), several(load("none"))
    assert len({done.tokens for done in plain}) == 3
    for one, other in zip(drafted, plain, strict=True):
        expect_equal(one, other)
    assert sum(done.stats.accepted_tokens for done in drafted) > 0


@pytest.mark.parametrize("draft", ["mxfp4,lookup", "mxfp4,int2", "int3:own-cache,lookup"])
def test_a_talk_is_that_of_plain_decoding(draft: str) -> None:
    def talk(model: Model) -> list[Completion]:
        chat, turns = model.chat(plain=True), []
        for said in ("def add(a, b):", "\n\ndef sub(a, b):", "\n\nclass Stack:\n    def push("):
            stream = chat.send(said, max_new_tokens=16, hash_logits=True)
            for _ in stream:
                pass
            turns.append(stream.completion)
        return turns

    drafted, plain = talk(load(draft)), talk(load("none"))
    for one, other in zip(drafted, plain, strict=True):
        expect_equal(one, other)
    assert sum(done.stats.accepted_tokens for done in drafted) > 0


def test_an_audit_of_a_copy_s_drafts_finds_nothing() -> None:
    done = load("mxfp4,lookup").generate(PROMPT, max_new_tokens=24, audit=True, **SAMPLED)
    assert done.audit is not None
    assert done.audit.identical


def test_under_the_rejection_rule_a_copy_is_judged_by_its_own_distribution() -> None:
    for draft in ("mxfp4", "int4:k=2:shape=full", "mxfp4,int2"):
        model = load(draft, rule="rejection")
        expect_tokens = generate(load("none")).tokens
        assert generate(model).tokens == expect_tokens  # greedily
        done = generate(model, **SAMPLED)
        assert done.promise == "algorithmic"
        assert done.stats.accepted_tokens > 0


# -- what a copy shares -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["mapped", "copied"])
@pytest.mark.parametrize("model", ["stdlib-1m", "stdlib-7m"])
def test_what_is_in_no_format_is_the_target_s_memory(model: str, weights: str) -> None:
    loaded = load("mxfp4,int2:own-cache", model, weights=weights)
    assert len(copies(loaded)) == 2
    for copy in copies(loaded):
        mine, theirs = copy.model.weights, loaded.target.weights
        assert mine.embedding.data_ptr() == theirs.embedding.data_ptr()
        assert mine.norm.data_ptr() == theirs.norm.data_ptr()
        assert set(mine.tensors) <= set(theirs.tensors)
        for name, tensor in mine.tensors.items():
            assert tensor.data_ptr() == theirs.tensors[name].data_ptr(), name
        assert {linear.format for linear in mine.linears} <= {"mxfp4", "int2-g64"}
        assert copy.model.threads == loaded.target.threads


def test_a_copy_is_the_same_whatever_layout_the_target_s_weights_have() -> None:
    one, other = (copies(load("mxfp4", weights=weights))[0].model.weights for weights in ("mapped", "copied"))
    for mine, theirs in zip(one.linears, other.linears, strict=True):
        assert isinstance(mine.weight, QuantisedWeight)
        assert isinstance(theirs.weight, QuantisedWeight)
        assert torch.equal(mine.weight.codes, theirs.weight.codes)
        assert torch.equal(mine.weight.scales, theirs.weight.scales)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what is mapped")
def test_no_file_stays_mapped_for_a_copy_of_copied_weights() -> None:
    def files() -> list[str]:
        gc.collect()
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.endswith(".safetensors")]

    before = files()
    model = load("mxfp4,lookup", weights="copied")
    assert files() == before
    assert generate(model).tokens


def test_options_reach_the_copy() -> None:
    def linears(draft: str) -> set[tuple[str, str]]:
        return {(linear.format, linear.inputs) for linear in copies(load(draft))[0].model.weights.linears}

    assert linears("mxfp4") == {("mxfp4", "int8")}
    assert linears("int4") == linears("int4-g64") == {("int4-g64", "int8")}
    assert linears("int4:group=32:inputs=bf16") == {("int4-g32", "bf16")}
    assert linears("int2:inputs=int8:k=2") == {("int2-g64", "int8")}
    assert linears("stdlib-1m:format=int8:inputs=bf16") == {("int8", "bf16")}
    assert linears("stdlib-1m") == {("bfloat16", "bf16")}


class Counted:
    """How many rows each pass of a decoder has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passes: dict[int, list[int]] = {}
        forward, run, chain = Decoder.forward, Decoder.run, Decoder.draft_chain

        def counted_forward(decoder: Decoder, rows: Rows) -> torch.Tensor:
            self.of(decoder).append(len(rows))
            return forward(decoder, rows)

        def counted_run(decoder: Decoder, rows: Rows) -> Outputs:
            self.of(decoder).append(len(rows))
            return run(decoder, rows)

        def counted_chain(decoder: Decoder, cache: Cache, token: int, count: int, **options: Any) -> list[int]:
            self.of(decoder).extend([1] * count)
            return chain(decoder, cache, token, count, **options)

        monkeypatch.setattr(Decoder, "forward", counted_forward)
        monkeypatch.setattr(Decoder, "run", counted_run)
        monkeypatch.setattr(Decoder, "draft_chain", counted_chain)

    def of(self, decoder: Decoder) -> list[int]:
        return self._passes.setdefault(id(decoder), [])


LONG = tuple(range(2, 302))


@samplings
def test_copies_that_share_keys_and_values_read_no_prompt(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    counted = Counted(monkeypatch)
    model = load("int4:tokens=6,int2:tokens=4,lookup:tokens=3")
    done = model.generate(LONG, max_new_tokens=30, ignore_eos=True, **sampling)
    assert sum(counted.of(model.target)) >= len(LONG)
    upper, lower = (counted.of(copy.model) for copy in copies(model))
    assert upper
    assert lower
    assert max(upper) <= 1 + 4  # a root and what the level below guessed
    assert max(lower) <= 1 + 3
    assert sum(upper) + sum(lower) < 12 * len(done.tokens)
    tree = load("mxfp4:k=2:depth=3")
    tree.generate(LONG, max_new_tokens=20, ignore_eos=True, **sampling)
    (rows,) = (counted.of(copy.model) for copy in copies(tree))
    assert 0 < max(rows) <= 2


def test_one_that_has_its_own_reads_the_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = load("mxfp4:own-cache,int2")
    model.generate(LONG, max_new_tokens=20, ignore_eos=True)
    upper, lower = (counted.of(copy.model) for copy in copies(model))
    assert upper[:2] == [256, len(LONG) - 1 - 256]
    assert max(upper[2:]) < 10
    assert max(lower) < 10  # on views of the upper one's


@pytest.mark.parametrize("draft", ["mxfp4", "mxfp4,int2,lookup", "mxfp4:own-cache,int2"])
def test_nothing_of_a_sequence_stays_when_it_has_ended(draft: str) -> None:
    model = load(draft)
    generate(model)
    model.completions(PROMPT, n=2, max_new_tokens=5, **SAMPLED)
    for drafter in copies(model):
        assert not drafter._readings
        opened = getattr(drafter, "opened", None)
        assert opened is None or not opened._caches


def test_what_a_copy_lends_to_the_one_below_it_takes_back_where_a_round_breaks_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load("int4,int2,lookup")
    first, second = copies(model)
    opened: Any = getattr(first, "opened", None)
    lent = []

    def fail(turns: Any) -> Any:
        lent.append(len(opened._caches))
        raise OSError("gone")

    assert getattr(second, "opened", None) is None, "nothing below it is a copy"
    monkeypatch.setattr(second, "propose", fail)
    with pytest.raises(OSError, match="gone"):
        generate(model)
    assert lent == [1]
    assert not opened._caches


# -- low-bit targets --------------------------------------------------------------------------------------------------


def write(folder: Path, weights: Weights, coded: str | None) -> Path:
    """The small embedded model with other weights: a checkpoint in a low-bit format, or of bf16 ones."""
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = foretoken.load("stdlib-1m", draft="none").target.config
    tensors = dict(weights.tensors)
    head, *layers = weights.linears
    for name, linear in zip(linear_shapes(config), [*layers, head], strict=True):
        if isinstance(linear.weight, QuantisedWeight):
            tensors[f"{name}.weight.codes"], tensors[f"{name}.weight.scales"] = (
                linear.weight.codes,
                linear.weight.scales,
            )
        else:
            tensors[f"{name}.weight"] = linear.values
    raw["tie_word_embeddings"] = coded is not None  # the values of the output layer are others than the embedding
    if coded is not None:
        raw["quantization_config"] = {"quant_method": "foretoken", "format": coded}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def low_bit(label: str) -> Weights:
    target = foretoken.load("stdlib-1m", draft="none").target
    return quantised(target.weights, target.config, format_of(label))


@samplings
@pytest.mark.parametrize("label", ["mxfp4", "int4-g32", *["int8", "int3-g64", "int2-g128"] * bool(HERE)])
def test_a_low_bit_model_is_the_bf16_model_of_its_values_with_every_draft(
    tmp_path: Path, label: str, sampling: dict[str, Any]
) -> None:
    weights = low_bit(label)
    low = write(tmp_path / "low", weights, label)
    plain = generate(load("none", write(tmp_path / "bf16", dequantised(weights), None)), **sampling)
    accepted = 0
    for settings in ({}, {"weights": "copied"}):
        for draft in ("none", "lookup", "mxfp4,lookup", "int2:own-cache", "int4:k=2:depth=3"):
            model = load(draft, low, **settings)
            assert {linear.format for linear in model.target.weights.linears} == {label}
            done = generate(model, **sampling)
            expect_equal(done, plain)
            accepted += done.stats.accepted_tokens
    assert accepted > 20
    assert plain.tokens != generate(load("none"), **sampling).tokens or label == "int8"


def test_a_copy_of_a_low_bit_model_in_its_own_format_is_always_right(tmp_path: Path) -> None:
    done = generate(load("mxfp4:inputs=bf16:tokens=4", write(tmp_path / "low", low_bit("mxfp4"), "mxfp4")))
    assert done.stats.accepted_tokens == done.stats.draft_tokens > 20


def test_a_low_bit_model_may_draft_for_another(tmp_path: Path) -> None:
    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    plain = generate(load("none", "stdlib-7m"))
    for draft, inputs in (
        (str(low), "int8"),
        (f"{low}:k=2:depth=3:inputs=int8", "int8"),
        (f"{low}:format=int4:group=64:inputs=bf16,lookup", "bf16"),  # in which it is
    ):
        model = load(draft, "stdlib-7m")
        assert {(linear.format, linear.inputs) for linear in copies(model)[0].model.weights.linears} == {
            ("int4-g64", inputs)
        }
        done = generate(model)
        expect_equal(done, plain)
        assert done.stats.accepted_tokens > 0


def test_what_a_low_bit_checkpoint_cannot_be_is_refused_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("weights were loaded")

    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    monkeypatch.setattr(build, "load_weights", never)
    for draft, message in (
        (
            f"{low}:format=int2",
            f"draft '{low}' is in int4-g64 already, of which no other format is made; leave format out, or name the "
            "model that it was made of",
        ),
        (f"{low}:format=int4:group=32", f"draft '{low}' is in int4-g64 already"),
        (f"{low}:group=64", f"draft '{low}': 'group' belongs to a low-bit format; add format=int4"),
        (f"{low}:own-cache", f"draft '{low}' is no copy of the model, and has a cache of its own anyhow; leave"),
        ("stdlib-1m:own-cache", "draft 'stdlib-1m' is no copy of the model, and has a cache of its own anyhow; leave"),
        ("stdlib-1m:inputs=bf16", "draft 'stdlib-1m': 'inputs' belongs to a low-bit format; add format=int4, or leav"),
    ):
        with pytest.raises(DraftSpecError) as error:
            load(draft, "stdlib-7m")
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (
            "stdlib-1m,int4-g32",
            "draft 'int4-g32' is a copy of the model, and would draft for 'stdlib-1m' here; put it first, or name a "
            "copy of that one: stdlib-1m:format=int4:group=32",
        ),
        (
            "mxfp4,stdlib-1m:tokens=2,int2,lookup",
            "draft 'int2' is a copy of the model, and would draft for 'stdlib-1m' here; put it first, or name a copy "
            "of that one: stdlib-1m:format=int2",
        ),
    ],
)
def test_a_copy_below_another_checkpoint_is_refused(draft: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        load(draft, "stdlib-7m")
    assert str(error.value) == message


def test_a_low_bit_model_in_pytorch_says_the_same_with_drafts_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    with in_pytorch(monkeypatch):
        plain = generate(load("none", low))
        for draft in ("lookup", "mxfp4"):
            caplog.clear()
            expect_equal(generate(load(draft, low)), plain)
            told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(told) == (2 if draft == "mxfp4" else 1), "once of the model, once of the draft"
            assert told[0].startswith(f"{low} (int4-g64) runs in PyTorch (the native module is ")
            assert told[0].endswith("it is no smaller and no faster than the weights that it was made of")


def test_a_model_that_holds_no_numbers_has_no_copy(tmp_path: Path) -> None:
    weights = low_bit("mxfp4")
    plain = dequantised(weights)
    bad: Sequence[Linear] = plain.linears
    bad[1].values[3, 5] = torch.nan
    folder = write(tmp_path / "bad", plain, None)
    with pytest.raises(CheckpointError, match=r"^model\.layers\.0\.self_attn\.q_proj\.weight holds 1 NaN and 0 inf"):
        load("mxfp4", folder)

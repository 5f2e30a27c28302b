"""Where weights lie by default: copied where that pays and memory is left, else mapped; no token shows it."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import foretoken
from foretoken.api.model import Model
from foretoken.common.source import EMBEDDED
from foretoken.copies import quantise
from foretoken.decoder import loading
from foretoken.decoder.config import read_config
from foretoken.decoder.homes import choice as home
from foretoken.decoder.homes.choice import SMALL, SPARE, Home, choose
from foretoken.decoder.low_bit import quantised, size_in
from foretoken.decoder.shapes import expected_shapes
from foretoken.errors import ModelError
from foretoken.formats import format_of
from foretoken.kernels import native
from foretoken.settings.load import LoadSettings
from tests.copies.loaded import in_pytorch
from tests.isas import HERE, with_isa
from tests.tiny import needs_native

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
GB = 10**9
FITTING: dict[str, Any] = {"isa": "avx512", "has_layout": True, "needed": 3 * GB, "besides": 0, "left": 16 * GB}
HAS_LAYOUT = native.module() is not None and native.repacks(native.isa())
needs_layout = pytest.mark.skipif(not HAS_LAYOUT, reason="weights are read as fast as they lie in the file")


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "SMALL", 0)


def files_mapped() -> list[str]:
    gc.collect()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.endswith(".safetensors")]


def generate(model: Model) -> tuple[tuple[int, ...], str | None]:
    done = model.generate(PROMPT, max_new_tokens=16, hash_logits=True, ignore_eos=True)
    return done.tokens, done.logits_sha256


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("bfloat16", {}, Home("copied", "avx512 has a faster layout for bfloat16")),
        ("bfloat16", {"isa": None}, Home("mapped", "a copy is for the native engine on the CPU")),
        (
            "bfloat16",
            {"isa": "generic", "has_layout": False},
            Home("mapped", "generic reads them as fast as they lie in the file"),
        ),
        ("float16", {}, Home("mapped", "no instruction set has a faster layout for float16")),
        ("float32", {}, Home("mapped", "no instruction set has a faster layout for float32")),
        ("mxfp4", {}, Home("mapped", "no instruction set has a faster layout for mxfp4")),
        ("bfloat16", {"needed": 14_560_032}, Home("mapped", "copying 14.6 MB would only make loading slower")),
        ("bfloat16", {"left": None}, Home("mapped", "this system does not tell how much memory is left")),
        (
            "bfloat16",
            {"left": 4 * GB},
            Home("mapped", "4.00 GB of memory are left, and a copy needs 3.00 GB and 2 GiB to spare", lacking=True),
        ),
        (
            "bfloat16",
            {"left": 5_500_000_000, "besides": 800_000_000},
            Home(
                "mapped",
                "5.50 GB of memory are left, and a copy needs 3.00 GB, 800.0 MB for low-bit copies and 2 GiB to spare",
                lacking=True,
            ),
        ),
    ],
)
def test_weights_are_copied_where_that_is_faster_and_memory_is_left(
    kind: str, changes: dict[str, Any], expected: Home
) -> None:
    assert choose(kind, **{**FITTING, **changes}) == expected


def test_memory_and_size_count_to_the_byte() -> None:
    def chosen(**changes: int) -> str:
        return choose("bfloat16", **{**FITTING, **changes}).name

    assert chosen(needed=SMALL, left=SMALL + SPARE) == "copied"
    assert chosen(needed=SMALL, left=SMALL + SPARE - 1) == "mapped"
    assert chosen(needed=SMALL - 1) == "mapped"
    assert chosen(needed=SMALL, besides=1, left=SMALL + SPARE) == "mapped"


def test_auto_is_the_default_and_leaves_the_embedded_models_where_they_are() -> None:
    assert LoadSettings().weights == "auto"
    model = foretoken.load("stdlib-7m", draft="stdlib-1m,lookup", pace="fixed")
    assert model.settings.weights == "auto"
    assert {name: decoder.home for name, decoder in model.decoders.items()} == {
        "target": "mapped",
        "stdlib-1m": "mapped",
    }


def test_memory_is_not_even_looked_at_for_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "memory_left", lambda: pytest.fail("it is"))
    assert foretoken.load("stdlib-7m").target.home == "mapped"


@needs_layout
@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what is mapped")
@pytest.mark.parametrize("draft", ["none", "stdlib-1m,lookup", "mxfp4,lookup", "fractal:n=2:w=2"])
def test_where_it_pays_target_and_drafts_are_copied_and_no_file_stays_mapped(draft: str) -> None:
    before = files_mapped()
    model = foretoken.load("stdlib-7m", draft=draft, pace="fixed")
    assert {decoder.home for decoder in model.decoders.values()} == {"copied"}
    assert model.target.weights.layouts > {"rows"}, "a tied output layer stays in rows, all else has the isa's layout"
    assert files_mapped() == before
    assert generate(model) == generate(foretoken.load("stdlib-7m", draft="none", weights="mapped"))
    assert files_mapped() == before


@needs_native
@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("isa", HERE)
def test_the_level_decides(isa: str) -> None:
    with with_isa(isa):
        has_layout = native.repacks(isa)
        model = foretoken.load("stdlib-1m", draft="none")
        assert model.target.home == ("copied" if has_layout else "mapped")
        assert model.target.weights.layouts == ({"rows", isa} if has_layout else {"rows"})
    assert has_layout == (isa != "generic"), "as docs/benchmarks.md says"


@pytest.mark.usefixtures("nothing_is_small")
def test_pytorch_reads_them_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_pytorch(monkeypatch):
        monkeypatch.setattr(home, "SMALL", 0)
        assert foretoken.load("stdlib-1m").target.home == "mapped"


@needs_layout
@pytest.mark.usefixtures("nothing_is_small")
def test_it_says_what_it_did_and_what_it_would_do_with_more_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, isa = EMBEDDED["stdlib-1m"], native.isa()

    def told(**settings: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            foretoken.load("stdlib-1m", draft="none", **settings)
        return [record.getMessage() for record in caplog.records if record.name == loading.__name__]

    (message,) = told()
    assert message.startswith(f"the weights in {folder}, 2.0 MB, were copied into memory in 0.")
    assert message.endswith(f" s: {isa} has a faster layout for bfloat16")
    assert told(weights="mapped") == told(weights="copied") == []
    monkeypatch.setattr(loading, "memory_left", lambda: 2 * GB)
    assert told() == [
        f"the weights in {folder} stay mapped: 2.00 GB of memory are left, and a copy needs 2.0 MB and 2 GiB to spare"
    ]
    assert told(weights="copied") == [], "who asks for a copy gets it"


@needs_layout
@pytest.mark.usefixtures("nothing_is_small")
def test_memory_that_low_bit_drafts_will_take_is_kept_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(EMBEDDED["stdlib-7m"])
    whole = sum(
        tensor.nbytes for tensor in foretoken.load("stdlib-7m", weights="mapped").target.weights.tensors.values()
    )
    taken = size_in(format_of("mxfp4"), config)
    smaller = size_in(format_of("int8"), read_config(EMBEDDED["stdlib-1m"]))

    def homes(draft: str, left: int) -> str:
        monkeypatch.setattr(loading, "memory_left", lambda: left + SPARE + (1 << 12))  # and what lines round up
        return foretoken.load("stdlib-7m", draft=draft, pace="fixed").target.home

    assert 0.2 < taken / whole < 0.35
    assert homes("none", whole) == homes("lookup", whole) == "copied"
    assert homes("mxfp4", whole) == homes("stdlib-1m:format=int8", whole) == "mapped"
    assert homes("mxfp4", whole + taken) == homes("stdlib-1m:format=int8", whole + smaller) == "copied"
    assert homes("mxfp4,stdlib-1m:format=int8", whole + taken) == "mapped"


@needs_layout
@pytest.mark.usefixtures("nothing_is_small")
def test_a_system_that_does_not_give_what_it_says_is_left_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where vm.overcommit_memory is 2."""

    def refuse(*args: Any, **options: Any) -> None:
        raise ModelError("the machine does not give it; leave them where they are, with weights 'mapped'")

    expected = generate(foretoken.load("stdlib-1m", weights="mapped"))
    monkeypatch.setattr("foretoken.decoder.homes.huge_pages.together", lambda kinds, **more: refuse() if kinds else {})
    with caplog.at_level(logging.INFO):
        model = foretoken.load("stdlib-1m")
    assert model.target.home == "mapped"
    assert f"the weights in {EMBEDDED['stdlib-1m']} stay mapped: the machine does not give it" in caplog.text
    assert generate(model) == expected
    with pytest.raises(ModelError, match="the machine does not give it"):
        foretoken.load("stdlib-1m", weights="copied")


def test_the_size_of_a_copy_is_what_it_takes() -> None:
    target = foretoken.load("stdlib-1m", draft="none").target
    for label in ("mxfp4", "int4-g32"):
        made = quantised(target.weights, target.config, format_of(label))
        parts = [part for linear in made.linears for part in (linear.weight.codes, linear.weight.scales)]  # type: ignore[union-attr]
        assert size_in(format_of(label), target.config) == sum(-(-part.nbytes // 64) * 64 for part in parts)


@pytest.mark.usefixtures("nothing_is_small")
def test_low_bit_models_stay_where_they_are(tmp_path: Path) -> None:
    quantise.write(quantise.plan(EMBEDDED["stdlib-1m"], tmp_path / "low", format_of("int4")))
    assert foretoken.load(tmp_path / "low").target.home == "mapped"
    assert foretoken.load(tmp_path / "low", weights="copied").target.home == "copied"


def test_what_was_converted_is_in_memory_of_its_own() -> None:
    for dtype in ("float32", "float16"):
        assert foretoken.load("stdlib-1m", dtype=dtype, weights="mapped").target.home == "copied"
    assert foretoken.load("stdlib-1m", dtype="bfloat16", weights="mapped").target.home == "mapped"


@pytest.mark.parametrize("recorded", ["auto", "mapped", "copied"])
def test_records_of_any_home_are_verified(recorded: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    foretoken.record(path, foretoken.load("stdlib-1m", weights=recorded), PROMPT, max_new_tokens=6)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["settings"]["weights"] == recorded
    assert foretoken.verify(path).verified
    content["settings"]["weights"] = "mapped"  # as in records of before there was auto
    path.write_text(json.dumps(content), encoding="utf-8")
    assert foretoken.verify(path).verified


@needs_layout
def test_a_record_is_proven_where_auto_means_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    model = foretoken.load("stdlib-1m")
    assert model.target.home == "mapped"
    foretoken.record(path, model, PROMPT, max_new_tokens=6)
    monkeypatch.setattr(home, "SMALL", 0)
    assert foretoken.load("stdlib-1m").target.home == "copied"
    assert foretoken.verify(path).verified


@needs_layout
def test_a_model_of_some_size_is_copied_unasked(tmp_path: Path) -> None:
    raw = json.loads((EMBEDDED["stdlib-1m"] / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**raw, "vocab_size": 280_000}), encoding="utf-8")
    shapes = expected_shapes(read_config(tmp_path))
    save_file({n: torch.ones(s, dtype=torch.bfloat16) for n, s in shapes.items()}, tmp_path / "model.safetensors")
    assert foretoken.load(tmp_path, draft="none").target.home == "copied"

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foretoken.bench import kernels, passes
from foretoken.bench.ceilings import STREAMS, Ceiling
from foretoken.bench.kernels import FLOATS, bench
from foretoken.bench.roofline import draw
from foretoken.errors import NativeError, SettingError
from foretoken.formats.weight import expect_valid
from foretoken.kernels import native
from foretoken.prices import measuring
from tests.tiny import needs_native

pytestmark = needs_native
SMALL = 1 << 22  # bytes: nothing here is a measurement


def test_the_record_has_every_kernel_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ceiling.__init__, "__defaults__", (SMALL,))
    heard: list[float] = []
    formats = ("bf16", "fp32", "mxfp4", "int4-g32")
    record = bench(shapes=((64, 96),), rows=(1, 3), rounds=2, formats=formats, progress=heard.append)
    assert heard[-1] == 1.0
    assert heard == sorted(heard)
    results = record["results"]
    names = ["linear_bf16", *["linear_bf16_repacked"] * native.repacks(native.isa()), "linear_fp32"]
    names += [f"linear_mxfp4_{inputs}" for inputs in ("int8", "bf16", "fp32")]
    names += [f"linear_int4-g32_{inputs}" for inputs in ("int8", "bf16")]
    assert sorted(result["kernel"] for result in results) == sorted(2 * names)
    assert {result["kernel"]: result["bytes"] for result in results if result["n"] == 1}["linear_mxfp4_int8"] == (
        64 * 96 * 17 // 32
    )
    assert [roof["kernel"] for roof in record["roofs"]] == names
    assert all(roof["gflops"] > 0 for roof in record["roofs"])
    for result in results:
        assert (result["m"], result["k"]) == (64, 96)
        assert result["isa"] == native.isa()
        assert result["fraction_of_bandwidth"] > 0
        assert result["seconds"] > 0
    low, high = record["read_bandwidth_range_gb_per_s"]
    assert low <= record["read_bandwidth_gb_per_s"] <= high
    json.dumps(record)


FORMATS = (*FLOATS, "mxfp4", "int8", *(f"int{bits}-g{group}" for bits in (4, 3, 2) for group in (32, 64, 128)))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_multiplied_is_valid(name: str) -> None:
    memory = torch.full((1 << 16,), kernels._FILL, dtype=torch.uint8)
    weights = kernels._rotation(memory, name, 40, 200)
    assert len(weights) > 1
    for weight in weights:
        if isinstance(weight, torch.Tensor):
            assert 0.1 < float(weight.float().min()) <= float(weight.float().max()) < 1000
        else:
            expect_valid(weight, name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_roof_is_products_alone(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now, sizes = 0.0, set()

    def linear(x: torch.Tensor, weight: kernels.Weight, *_: object, **__: object) -> torch.Tensor:
        nonlocal now
        now += 0.5 + 1e-9 * x.shape[0] * weight.shape[0] * weight.shape[1]  # packing and waking cost as much each time
        sizes.add(weight.nbytes)
        return x

    monkeypatch.setattr(native, "linear", linear)
    monkeypatch.setattr(measuring, "perf_counter", lambda: now)
    kernel = kernels._Kernel("x", name, "generic", threads)
    kernel.measure_roof()
    assert kernel.roof == 2.0
    assert 0.8 * threads < max(sizes) / (1 << 19) <= threads
    assert max(sizes) == 4 * min(sizes)


def test_a_record_is_drawn_and_the_same_record_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Ceiling.__init__, "__defaults__", (SMALL,))
    record = bench(shapes=((64, 96), (32, 32)), rows=(1, 2), rounds=1, formats=("mxfp4", "bf16"))
    for name in ("a.svg", "b.svg", "c.png"):
        draw(tmp_path / name, record)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "mxfp4_int8" in text
    assert "64 outputs, 96 inputs" in text  # the largest
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_an_instruction_set_or_format_that_is_not_there_is_refused() -> None:
    with pytest.raises(NativeError, match="there is no instruction set 'sse'"):
        bench(isa="sse")
    with pytest.raises(SettingError, match="there is no format 'bf61'"):
        bench(formats=("bf61",))


@pytest.mark.parametrize("level", native.supported())
@pytest.mark.parametrize("streams", STREAMS)
def test_reading_reads_in_every_way(level: str, streams: int) -> None:
    memory = torch.zeros(SMALL + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 64 :][:SMALL]
    assert native.read_seconds(memory, 2, streams, level) > 0


def test_the_record_has_a_choice_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "VOCABULARIES", (100, 300))
    results = passes.choices("generic", rounds=1)
    assert len(results) == 2 * 2 * len(passes.WARPS)
    assert {result["kernel"] for result in results} == {"choose"}
    assert all(result["microseconds"] > 0 for result in results)
    json.dumps(results)


def test_a_pass_reads_all_of_a_checkpoint_but_the_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "num_attention_heads": 4, "head_dim": 16}
    monkeypatch.setattr(passes, "SHAPE", {**passes.SHAPE, **small, "num_key_value_heads": 2})
    monkeypatch.setattr(passes, "CONTEXT", 300)
    size = passes.write_checkpoint(tmp_path, layers=2)
    ceiling = Ceiling(1, native.isa(), SMALL)
    rows = passes.passes(tmp_path, "mapped", ceiling, size, rounds=1)
    assert [row["rows"] for row in rows] == list(passes.ROWS)
    assert passes.attention(tmp_path, ceiling, rounds=1)["cache_bytes"] == 2 * 2 * 300 * 2 * 2 * 16

from __future__ import annotations

import importlib
import math
import random
import struct
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NoReturn

import pytest
import torch

from foretoken import kernels
from foretoken.errors import ContractError, NativeError
from foretoken.kernels import native
from tests.isas import forget
from tests.oracles import first_largest
from tests.tiny import needs_native

INFINITY, NAN = math.inf, math.nan
SIZES = [*range(1, 71), 1000, 4096]  # every way to fill a vector and leave a rest, then sizes of vocabularies


HERE = native.testable()


def _native_at(isa: str) -> kernels.Argmax:
    return lambda logits: native.argmax(logits, isa)


def _implementations() -> Iterator[object]:
    yield pytest.param(kernels._argmax_torch, id="torch")
    for isa in (*native.ISAS, native.EMULATED):
        skip = pytest.mark.skipif(isa not in HERE, reason="not built, or not on this machine")
        yield pytest.param(_native_at(isa), id=isa, marks=skip)


every_implementation = pytest.mark.parametrize("argmax", list(_implementations()))


@pytest.fixture
def fresh() -> Iterator[Callable[[], None]]:
    """Forgets what was decided about implementations: by calling it, and at the end."""

    forget()
    yield forget
    forget()


# -- the answer -------------------------------------------------------------------------------------------------------


@every_implementation
def test_it_is_the_index_of_the_largest(argmax: kernels.Argmax) -> None:
    dice = random.Random(0)
    for size in SIZES:
        values = [dice.gauss(0, 10) for _ in range(size)]
        assert argmax(torch.tensor(values)) == values.index(max(values)), size


@every_implementation
def test_on_a_tie_the_lowest_index_wins(argmax: kernels.Argmax) -> None:
    dice = random.Random(1)
    for size in SIZES:
        # few different values: the largest is there many times
        values = [float(dice.randrange(-2, 2)) for _ in range(size)]
        assert argmax(torch.tensor(values)) == first_largest(values), size
        assert argmax(torch.full((size,), -3.5)) == 0, size


@every_implementation
def test_the_largest_is_found_wherever_it_stands(argmax: kernels.Argmax) -> None:
    for size in (1, 7, 8, 9, 16, 31, 33, 70):
        for place in range(size):
            logits = torch.full((size,), -1.0)
            logits[place:] = 2.0  # from here on, all the same
            assert argmax(logits) == place, (size, place)


@every_implementation
def test_zeros_of_both_signs_are_equal(argmax: kernels.Argmax) -> None:
    for size in SIZES[:70]:
        zeros = torch.zeros(size)
        zeros[::2] = -0.0
        assert argmax(zeros) == 0, size
        assert argmax(-zeros) == 0, size
        assert argmax(torch.cat((torch.tensor([-1.0]), zeros))) == 1, size


@every_implementation
def test_the_next_larger_number_wins(argmax: kernels.Argmax) -> None:
    # an implementation that rounds would tie them; denormals must not count as zero
    for low, high in ((1.0, 1.0 + 2**-23), (-1.0 - 2**-23, -1.0), (0.0, 2.0**-149), (-(2.0**-149), -0.0)):
        for size in SIZES[1:40]:
            logits = torch.full((size,), low)
            logits[-1] = high
            assert argmax(logits) == size - 1, (low, high, size)


@every_implementation
def test_minus_infinity_is_a_number_like_others(argmax: kernels.Argmax) -> None:
    for size in SIZES:
        nothing = torch.full((size,), -INFINITY)
        assert argmax(nothing) == 0, size
        nothing[-1] = torch.finfo(torch.float32).min
        assert argmax(nothing) == size - 1, size


@every_implementation
def test_infinity_is_the_largest(argmax: kernels.Argmax) -> None:
    for size in SIZES:
        logits = torch.full((size,), torch.finfo(torch.float32).max)
        logits[size // 2 :] = INFINITY
        assert argmax(logits) == size // 2, size


@every_implementation
def test_a_nan_anywhere_gives_none(argmax: kernels.Argmax) -> None:
    for size in range(1, 71):
        logits = torch.arange(float(size))
        for place in range(size):
            logits[place] = NAN
            assert argmax(logits) is None, (size, place)
            logits[place] = place
        assert argmax(logits) == size - 1, size
    for size in (1000, 4096):
        for place in (0, 1, 15, 16, size // 2, size - 17, size - 1):
            logits = torch.full((size,), INFINITY)
            logits[place] = NAN
            assert argmax(logits) is None, (size, place)


@every_implementation
@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF])
def test_every_kind_of_nan_counts(argmax: kernels.Argmax, bits: int) -> None:
    # quiet and signalling, of both signs: a comparison of bits would take some of them for numbers
    for size in (1, 8, 17, 40):
        for place in (0, size // 2, size - 1):
            logits = torch.arange(float(size))
            logits.view(torch.int32)[place] = struct.unpack("i", struct.pack("I", bits))[0]
            assert argmax(logits) is None, (size, place)


@every_implementation
def test_logits_may_begin_anywhere(argmax: kernels.Argmax) -> None:
    for start in range(17):  # not where vectors begin
        logits = torch.arange(60.0)[start:]
        assert argmax(logits) == 59 - start, start
        assert argmax(-logits) == 0, start


@pytest.mark.parametrize("isa", ["off", *HERE])
def test_logits_that_do_not_lie_in_a_row_are_read_right(
    monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], isa: str
) -> None:
    if isa == "off":
        monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    else:
        monkeypatch.setenv("FORETOKEN_ISA", isa)
    table = torch.zeros(20, 3)
    table[13, 1] = 1.0
    table[7, 0] = 5.0  # the next in memory is of another column
    assert kernels.argmax(table[:, 1]) == 13
    assert kernels.argmax(torch.arange(30.0)[::7]) == 4


BAD = [
    (torch.zeros(0), "argmax got no logits; expected float32 [V], V > 0"),
    (torch.zeros(2, 3), "logits is float32 [2, 3] on cpu; expected float32 [V] on the CPU"),
    (torch.zeros(()), "logits is float32 [] on cpu; expected float32 [V] on the CPU"),
    (torch.zeros(3).double(), "logits is float64 [3] on cpu; expected float32 [V] on the CPU"),
    (torch.zeros(3).bfloat16(), "logits is bfloat16 [3] on cpu; expected float32 [V] on the CPU"),
    (torch.zeros(3, dtype=torch.int64), "logits is int64 [3] on cpu; expected float32 [V] on the CPU"),
    (torch.zeros(3, device="meta"), "logits is float32 [3] on meta; expected float32 [V] on the CPU"),
    (torch.zeros(9)[::3], "logits has strides (3,); expected contiguous memory: call .contiguous()"),
]


@pytest.mark.parametrize(("logits", "message"), BAD)
def test_what_is_not_a_row_of_logits_is_refused(logits: torch.Tensor, message: str) -> None:
    # before the module is looked for: a wrong call is wrong on every machine
    with pytest.raises(ContractError) as error:
        native.argmax(logits, "generic")
    assert str(error.value) == message


@pytest.mark.parametrize("isa", ["off", *HERE])
@pytest.mark.parametrize("logits", [bad for bad, _ in BAD if bad.device.type == "cpu" and bad.is_contiguous()])
def test_whichever_implementation_runs_the_same_is_refused(
    monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], logits: torch.Tensor, isa: str
) -> None:
    if isa == "off":
        monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    else:
        monkeypatch.setenv("FORETOKEN_ISA", isa)
    with pytest.raises(ContractError, match=r"; expected float32 \[V\]"):
        kernels.argmax(logits)


# -- which implementation ---------------------------------------------------------------------------------------------


def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    monkeypatch.setitem(sys.modules, "foretoken._native", None)


def machine() -> str:
    """What `explain` says of this machine: the instruction sets that it has, and why it lacks others."""
    module = native.module()
    assert module is not None
    lacks = [f"not {name}: {module.why_not(native._NUMBERS[name])}" for name in native.ISAS if name not in HERE]
    return "; ".join([", ".join(native.supported()), *lacks])


@needs_native
def test_the_highest_level_of_the_machine_is_used(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    monkeypatch.delenv("FORETOKEN_ISA", raising=False)
    supported = native.supported()
    assert supported[0] == "generic"  # which every machine has
    assert supported == [isa for isa in native.ISAS if isa in supported]
    assert native.isa() == supported[-1]
    assert native.explain() == f"{supported[-1]} (this machine has {machine()})"
    assert kernels.explain().splitlines() == [
        f"decoder   native, {supported[-1]}, {torch.get_num_threads()} threads",
        f"native    {native.explain()}",
    ]


@needs_native
@pytest.mark.parametrize("isa", [*native.ISAS, native.EMULATED])
def test_a_level_can_be_forced(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], isa: str) -> None:
    if isa not in HERE:
        pytest.skip("not on this machine")
    monkeypatch.setenv("FORETOKEN_ISA", isa)
    assert native.isa() == isa
    assert native.explain() == f"{isa}, forced by FORETOKEN_ISA (this machine has {machine()})"
    assert kernels.argmax(torch.tensor([1.0, 3.0, 3.0])) == 1


@needs_native
@pytest.mark.parametrize(
    ("isa", "hint"),
    [("generics", "; did you mean 'generic'?"), ("AVX2", ""), ("generic ", "; did you mean 'generic'?")],
)
def test_an_unknown_level_is_refused(
    monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], isa: str, hint: str
) -> None:
    monkeypatch.setenv("FORETOKEN_ISA", isa)
    with pytest.raises(NativeError) as error:
        native.isa()
    known = ", ".join(sorted(native.supported()))  # what another machine has is of no use here
    assert str(error.value) == f"FORETOKEN_ISA is {isa!r}{hint} (known: {known})"
    monkeypatch.setenv("FORETOKEN_LEVEL", isa)  # as it was called before
    monkeypatch.delenv("FORETOKEN_ISA")
    with pytest.raises(NativeError, match="FORETOKEN_LEVEL is"):
        native.isa()


def test_a_level_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    *there, best = native.ISAS
    old = ModuleType("foretoken._native")
    reasons = {native._NUMBERS[best]: "this machine lacks its instructions"}
    old.why_not = lambda number: reasons.get(number, "")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foretoken._native", old)
    monkeypatch.delenv("FORETOKEN_NATIVE", raising=False)
    monkeypatch.setenv("FORETOKEN_ISA", best)
    with pytest.raises(NativeError) as error:
        native.isa()
    assert str(error.value) == (
        f"FORETOKEN_ISA is {best}, but this machine lacks its instructions; it has {', '.join(there)}"
    )


def test_switched_off_everything_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    assert native.module() is None
    assert kernels._argmax("cpu") is kernels._argmax_torch
    assert kernels.argmax(torch.tensor([1.0, 3.0, 3.0])) == 1
    lines = kernels.explain().splitlines()
    assert lines[1:] == ["native    off, by FORETOKEN_NATIVE"]
    assert lines[0].startswith(f"decoder   PyTorch {torch.__version__}, {torch.get_num_threads()} threads")


def test_not_built_everything_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    not_built(monkeypatch)
    for wanted in (None, "auto"):
        fresh()
        if wanted is None:
            monkeypatch.delenv("FORETOKEN_NATIVE", raising=False)
        else:
            monkeypatch.setenv("FORETOKEN_NATIVE", wanted)
        assert native.module() is None
        assert kernels.argmax(torch.tensor([1.0, 3.0, 3.0])) == 1
        assert native.explain() == (
            "not built: installed without a C++ compiler, or with FORETOKEN_NATIVE=off; everything works, in PyTorch"
        )
        assert kernels.explain().splitlines()[0].startswith("decoder   PyTorch ")


def test_a_module_that_is_required_must_be_there(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    not_built(monkeypatch)
    monkeypatch.setenv("FORETOKEN_NATIVE", "required")
    with pytest.raises(NativeError) as error:
        native.module()
    assert str(error.value) == (
        "FORETOKEN_NATIVE=required, but the native module is not built; install a C++ compiler, then install "
        "Foretoken again"
    )


@pytest.mark.parametrize("wanted", ["yes", "OFF"])
def test_an_unknown_wish_for_the_module_is_refused(
    monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], wanted: str
) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", wanted)
    with pytest.raises(NativeError) as error:
        native.module()
    assert str(error.value) == f"FORETOKEN_NATIVE is {wanted!r}; expected auto, required or off"


def test_without_a_module_there_is_no_level(monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    with pytest.raises(NativeError, match=r"^there is no native module, so no instruction set is in use$"):
        native.isa()


@pytest.mark.parametrize(
    "failure",
    [ImportError("undefined symbol", name="foretoken._native"), ModuleNotFoundError("No module named 'x'", name="x")],
)
def test_a_module_that_is_there_and_does_not_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], failure: ImportError
) -> None:
    def fail(name: str) -> NoReturn:
        raise failure

    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setenv("FORETOKEN_NATIVE", "auto")
    with pytest.raises(
        NativeError, match=r"^the native module does not load \(.+\); install Foretoken again, or set"
    ) as e:
        native.module()
    assert e.value.__cause__ is failure


@needs_native
def test_a_gpu_is_served_by_pytorch(fresh: Callable[[], None]) -> None:
    assert kernels._argmax("cuda") is kernels._argmax_torch
    assert kernels._argmax("cpu") is not kernels._argmax_torch

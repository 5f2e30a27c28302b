"""The kernels of 64-bit ARM, cross-compiled and run by an emulator: they agree with plain C++, bit for bit.

Debian's packages g++-aarch64-linux-gnu and qemu-user are needed. What is compared is what is compared before an
instruction set is used anywhere (csrc/agreement.cpp).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src/foretoken/kernels/csrc"
PARTS = ("isas", "agreement", "isa_generic", "isa_amx_emulated", "isa_neon", "isa_dotprod")
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
LACKS = "this machine lacks its instructions"

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(None in (COMPILER, EMULATOR), reason="no compiler for aarch64, or no qemu-user"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aarch64")
    objects = []
    for source in (HERE / "aarch64.cpp", *(SOURCES / f"{part}.cpp" for part in PARTS)):
        flags = ["-march=armv8.2-a+dotprod"] if source.stem == "isa_dotprod" else []
        objects.append(folder / f"{source.stem}.o")
        options = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-DFORETOKEN_DOTPROD"]
        _run(COMPILER, *options, *flags, "-I", SOURCES, "-c", source, "-o", objects[-1])
    _run(COMPILER, "-static", *objects, "-o", folder / "agrees")
    return folder / "agrees"


@pytest.mark.parametrize(
    ("processor", "bytes_too"), [("max", "agrees"), ("neoverse-n1", "agrees"), ("cortex-a72", LACKS)]
)
def test_they_agree_with_plain_code(program: Path, processor: str, bytes_too: str) -> None:
    said = _run(EMULATOR, "-cpu", processor, program)
    assert said.splitlines() == ["neon: agrees", f"dotprod: {bytes_too}"]


def _run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The native module under sanitizers: `python -m tests.prove.sanitized`, as `make prove` runs it.

Builds the module twice more, instrumented, into build/sanitized and build/thread-sanitized: with AddressSanitizer and
UBSan for the kernels' tests and a slice of the proof, with ThreadSanitizer for what several threads do. The tests run
in a process into which the sanitizers' runtime is loaded first. Anything that they find fails that process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = "-O1 -g -fno-omit-frame-pointer"


@dataclass(frozen=True)
class Sanitizers:
    """Some that go together in one build. The runtimes are loaded in their order."""

    name: str
    folder: str
    flags: str
    runtimes: tuple[str, ...]
    options: Mapping[str, str]
    tests: tuple[str, ...]


MEMORY = Sanitizers(
    name="AddressSanitizer and UBSan",
    folder="sanitized",
    flags="-fsanitize=address,undefined -fno-sanitize-recover=all",
    runtimes=("libasan.so", "libubsan.so", "libstdc++.so.6"),
    options={
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # what Python keeps until the end is not ours to report
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    tests=(
        "tests/kernels",
        "tests/decoder/test_native_pass.py",
        "tests/decoder/test_native_long_contexts.py",
        "tests/decoder/test_native_many_rows.py",
        "tests/prove/test_slice.py",
    ),
)
THREADS = Sanitizers(
    name="ThreadSanitizer",
    folder="thread-sanitized",
    flags="-fsanitize=thread",
    runtimes=("libtsan.so", "libstdc++.so.6"),
    # a race is told where it happens, and fails the process when it ends; Python and PyTorch are not instrumented, so
    # what they do among themselves is not looked at; some tests fork
    options={"TSAN_OPTIONS": "exitcode=66 ignore_noninstrumented_modules=1 die_after_fork=0"},
    tests=tuple(f"tests/decoder/test_{name}.py" for name in ("native_threads", "draft_chain", "native_pass", "views")),
)

RUN = """
import importlib.util, sys
import pytest, foretoken
spec = importlib.util.spec_from_file_location("foretoken._native", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["foretoken._native"] = module
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def main() -> None:
    """Build, and run."""
    _prove(MEMORY, os.environ.get("CXX", "c++"))
    # clang 14's runtime of ThreadSanitizer fails as it starts on some kernels; gcc's does not
    gcc = shutil.which("g++")
    if gcc is None:
        raise SystemExit("sanitized: ThreadSanitizer needs g++, which is not here; install it")
    _prove(THREADS, gcc)


def _prove(sanitizers: Sanitizers, compiler: str) -> None:
    build = ROOT / "build" / sanitizers.folder
    environment = {**os.environ, "FORETOKEN_NATIVE": "required", "CXX": compiler}
    configure = ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=None"]
    configure += [f"-DCMAKE_CXX_FLAGS={FLAGS} {sanitizers.flags}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "-j"], env=environment, check=True, stdout=subprocess.DEVNULL)
    (module,) = build.glob("_native*.so")
    environment |= {
        "LD_PRELOAD": " ".join(_runtime(compiler, name) for name in sanitizers.runtimes),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **sanitizers.options,
    }
    command = [sys.executable, "-c", RUN, str(module), *sanitizers.tests]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(
            f"sanitized: the tests failed, or {sanitizers.name} found something (exit code {done.returncode})"
        )
    print(f"sanitized: {sanitizers.name} found nothing")


def _runtime(compiler: str, name: str) -> str:
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


if __name__ == "__main__":
    main()

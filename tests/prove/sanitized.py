"""The native module under AddressSanitizer and UBSan: `python -m tests.prove.sanitized`, as `make prove` runs it.

Builds the module once more, instrumented, into build/sanitized, and runs the kernels' tests and a slice of the proof on
it, in a process into which the sanitizers' runtime is loaded first. Anything that they find ends that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
TESTS = ("tests/kernels", "tests/decoder/test_native_pass.py", "tests/prove/test_slice.py")

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
    compiler = os.environ.get("CXX", "c++")
    build = ROOT / "build" / "sanitized"
    environment = {**os.environ, "FORETOKEN_NATIVE": "required", "CXX": compiler}
    configure = ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "-j"], env=environment, check=True, stdout=subprocess.DEVNULL)
    (module,) = build.glob("_native*.so")
    runtimes = [_runtime(compiler, name) for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")]
    environment |= {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # what Python keeps until the end is not ours to report
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, "-c", RUN, str(module), *TESTS], env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"sanitized: the tests failed, or a sanitizer stopped them (exit code {done.returncode})")
    print("sanitized: the sanitizers found nothing")


def _runtime(compiler: str, name: str) -> str:
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


if __name__ == "__main__":
    main()

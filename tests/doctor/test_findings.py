"""What is said of machines that tests do not have."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.doctor.facts import QUICK, Amx, Busy, Checkpoint, Fit, Fitting, Gpu, Part
from foretoken.doctor.findings import Finding
from tests.doctor.machines import GIB, GOOD, findings_of, machine

NO_NATIVE = {"native": "absent", "isa": None, "best": None, "compiler": None, "rows_alike": True}


def test_of_a_good_machine_there_is_nothing_to_improve() -> None:
    found = findings_of(GOOD)
    assert {finding.status for finding in found.values()} == {"good"}
    assert found["cores"].text == "All 4 are usable."
    assert found["memory"].text == "34.4 GB, of which 25.8 GB are available."
    assert found["memory speed"].text == (
        "Read at 33.3 GB/s in huge pages in 8 streams, 29.7 GB/s in small pages in 4 streams (4 threads, the best of 1 "
        "to 16 streams each)."
    )
    assert found["promise"].text.startswith("exact: token for token")
    assert list(found) == [
        "processor", "cores", "memory", "system", "load", "arithmetic", "instructions", "amx", "promise", "versions",
        "threads", "waiting", "memory speed", "huge pages", "disk speed", "models", "matplotlib", "gpu",
    ]  # fmt: skip


def check(found: Finding, status: str, text: str, advice: str) -> None:
    assert found.status == status
    assert text in found.text
    assert found.advice is not None
    assert advice in found.advice


CASES: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "a container's share of the cores": (
        {"machine": {"core_quota": 1.5}, "threads": {"torch": 2}},
        "cores", "note", "gives the time of 1.5 of 4 cores", "--cpus",
    ),
    "taskset": ({"machine": {"allowed_cores": 1}}, "cores", "note", "may run on 1 of 4 cores", "taskset"),
    "thin memory": (
        {"machine": {"memory_available": 600_000_000}},
        "memory", "warning", "of which 600 MB are available", "Close other programs",
    ),
    "a container's memory": (
        {"machine": {"memory_limit": 2 * GIB, "memory_limited_by": "a control group", "memory_available": GIB}},
        "memory", "note", "a control group allows this process 2.15 GB", "docker's --memory",
    ),
    "a shell's memory": (
        {"machine": {"memory_limit": GIB, "memory_limited_by": "ulimit -v", "memory_available": GIB // 2}},
        "memory", "warning", "ulimit -v allows this process 1.07 GB", "`ulimit -v unlimited`",
    ),
    "somebody else": (
        {"machine": {"busy_cores": 1.9, "busiest": (Busy("make", 12, 1.9),)}},
        "load", "warning", "use 1.9 of 4 cores now; load average 0.1: make (process 12, 1.9)", "Wait for them",
    ),
    "somebody else, and memory's speed": (
        {"machine": {"busy_cores": 1.9, "busiest": (Busy("make", 12, 1.9),)}},
        "memory speed", "note", "while other processes wanted memory, too: more is there", "when nothing else does",
    ),
    "a host that halves it": (
        {"memory_speed": {"other": 17.5e9}},
        "memory speed", "note", "some seconds before or after at 17.5 GB/s", "measure in turn",
    ),
    "somebody a moment ago": (
        {"machine": {"load": 5.3}}, "load", "note", "load average is 5.3, for 4 cores", "wait for it",
    ),
    "the host's others": ({"machine": {"steal": 0.2}}, "host", "warning", "20 % of the cores' time", "dedicated cores"),
    "switched off": (
        {"engine": {**NO_NATIVE, "native": "off"}},
        "arithmetic", "warning", "FORETOKEN_NATIVE=off", "`unset FORETOKEN_NATIVE`",
    ),
    "no compiler": ({"engine": NO_NATIVE}, "arithmetic", "warning", "there is no C++ compiler", "gcc 12 or clang 14"),
    "a compiler that came later": (
        {"engine": {**NO_NATIVE, "compiler": "/usr/bin/g++"}},
        "arithmetic", "warning", "is not built", "There is a compiler now (/usr/bin/g++): install Foretoken again",
    ),
    "a module that does not load": (
        {"engine": {**NO_NATIVE, "native": "broken", "error": "the native module does not load (x); install it again"}},
        "arithmetic", "problem", "The native module does not load (x).", "Install it again.",
    ),
    "a variable that is nonsense": (
        {"engine": {**NO_NATIVE, "native": "broken", "error": "FORETOKEN_NATIVE is 'x'; expected auto or off"}},
        "arithmetic", "problem", "FORETOKEN_NATIVE is 'x'.", "`unset FORETOKEN_NATIVE`, or set it to auto or off.",
    ),
    "PyTorch that treats rows unalike": (
        {"engine": {**NO_NATIVE, "rows_alike": False}},
        "promise", "warning", "exact, at a price", "--promise algorithmic",
    ),
    "a forced isa": (
        {"engine": {"isa": "avx2", "forced": "avx2"}},
        "instructions", "note", "forces avx2, where amx would be in use", "`unset FORETOKEN_ISA`",
    ),
    "a forced isa that is nonsense": (
        {"engine": {"isa": None, "forced": "x", "error": "FORETOKEN_ISA is 'x' (known: amx, avx2)"}},
        "instructions", "problem", "FORETOKEN_ISA is 'x' (known: amx, avx2).", "or set it to amx, the best here",
    ),
    "a isa without a module": (
        {"engine": {**NO_NATIVE, "forced": "amx"}},
        "instructions", "note", "without the native module it says nothing", "`unset FORETOKEN_ISA`",
    ),
    "no AVX2": (
        {"engine": {"isa": "generic", "best": "generic", "amx": Amx((), None)}},
        "instructions", "warning", "shows no AVX2", "-cpu host",
    ),
    "an old compiler": (
        {"engine": {"isa": "avx512", "best": "avx512", "unbuilt": ("avx512bf16", "amx")}},
        "instructions", "note", "avx512: the processor has avx512bf16, amx, the compiler", "gcc 12",
    ),
    "AMX that the system refuses": (
        {"engine": {"isa": "avx512bf16", "best": "avx512bf16", "lacking": {"amx": "this machine lacks it"},
                    "amx": Amx(("amx_bf16",), "Invalid argument")}},
        "amx", "warning", "the system refuses it (Invalid argument)", "Linux 5.16",
    ),
    "AMX that sums otherwise": (
        {"engine": {"isa": "avx512bf16", "best": "avx512bf16",
                    "lacking": {"amx": "its instructions do not sum in the formats' order on this machine"}}},
        "amx", "warning", "avx512bf16 runs instead", "please report it",
    ),
    "AMX without what it needs": (
        {"engine": {"isa": "avx512", "best": "avx512", "lacking": {"amx": "this machine lacks its instructions"}}},
        "amx", "warning", "cannot be used: this machine lacks its instructions", "-cpu host",
    ),
    "a package of another version": (
        {"untested": ("torch 2.14.0 (<2.14,>=2.8 is asked for)",)},
        "versions", "warning", "Installed is torch 2.14.0", "pip install",
    ),
    "a package that is not there": (
        {"parts": (Part("llguidance", None, "grammars", "llguidance>=1.9,<2"),)},
        "llguidance", "note", "Not installed, for grammars", "`pip install 'llguidance>=1.9,<2'`",
    ),
    "more threads than a container's cores": (
        {"machine": {"core_quota": 2.0}, "threads": {"torch": 4}},
        "threads", "warning", "4 threads of arithmetic for 2 usable cores: they wait", "`export OMP_NUM_THREADS=2`",
    ),
    "one thread": (
        {"threads": {"torch": 1, "environment": {"OMP_NUM_THREADS": "1"}}},
        "threads", "warning", "(OMP_NUM_THREADS=1): the others idle", "`unset OMP_NUM_THREADS`, or give `--threads 4`",
    ),
    "one thread without a reason": (
        {"threads": {"torch": 3}}, "threads", "warning", "one of them idles", "`export OMP_NUM_THREADS=4`",
    ),
    "threads that are bound": (
        {"threads": {"bound_cores": 1, "environment": {"OMP_PROC_BIND": "true"}}},
        "binding", "warning", "to 1 of 4 cores (OMP_PROC_BIND=true)", "`unset OMP_PROC_BIND`",
    ),
    "threads that spin because they were told to": (
        {"threads": {"environment": {"OMP_WAIT_POLICY": "ACTIVE"}, "spin_ms": 10.0}},
        "waiting", "warning", "10 ms or more after work (OMP_WAIT_POLICY=ACTIVE)", "OMP_WAIT_POLICY=passive",
    ),
    "threads that spin": (
        {"threads": {"environment": {"KMP_BLOCKTIME": "infinite"}, "spin_ms": 99.0}},
        "waiting", "warning", "99 ms or more", "`export OMP_WAIT_POLICY=passive`",
    ),
    "PyTorch beside another program": (
        {"engine": NO_NATIVE, "machine": {"busy_cores": 2.0}},
        "waiting", "note", "other programs want the same cores", "OMP_WAIT_POLICY=passive",
    ),
    "huge pages switched off": (
        {"huge_pages": {"setting": "never", "share": 0.0}},
        "huge pages", "warning", "(never)", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    "huge pages kept from this process": (
        {"huge_pages": {"disabled": True, "share": 0.0}},
        "huge pages", "warning", "PR_SET_THP_DISABLE", "another shell",
    ),
    "memory in pieces": ({"huge_pages": {"share": 0.25}}, "huge pages", "note", "got 25 %", "compact_memory"),
    "no memory to measure with": (
        {"memory_speed": None, "memory_not_measured": "only 9 MB of memory are available"},
        "memory speed", "note", "Not measured: only 9 MB of memory are available.", "Free some",
    ),
    "a slow disk": (
        {"disk": {"direct": 0.1e9}}, "disk speed", "note", "3.00 GB of a model take 30 s the first time", "HF_HOME",
    ),
    "a disk that cannot be read": (
        {"disk": {"not_measured": "no model lies there, and nothing can be written"}},
        "disk speed", "note", "nothing can be written", "HF_HOME",
    ),
    "no place for models": (
        {"disk": {"writable": False}}, "models", "warning", "/models, which cannot be written to", "`export HF_HOME=",
    ),
    "a full disk": ({"disk": {"free": GIB}}, "models", "note", "has 1.07 GB free", "Free some"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_in_the_way_is_said_with_what_to_do(name: str) -> None:
    changes, topic, status, text, advice = CASES[name]
    check(findings_of(machine(**changes))[topic], status, text, advice)


def test_without_the_native_module_the_promise_is_exact_and_nothing_is_said_of_levels() -> None:
    found = findings_of(machine(engine=NO_NATIVE))
    assert found["promise"].status == "good"
    assert "other text than the native module's" in found["promise"].text
    assert "instructions" not in found
    assert "amx" not in found


def test_no_promise_is_made_where_nothing_runs() -> None:
    assert "promise" not in findings_of(machine(engine={"isa": None, "error": "x", "forced": "x"}))
    assert "promise" not in findings_of(machine(engine={"native": "broken", "error": "x"}))


def test_a_processor_without_amx_lacks_nothing() -> None:
    lacking = {"amx": "this machine lacks its instructions"}
    changes = {"isa": "avx512bf16", "best": "avx512bf16", "lacking": lacking, "amx": Amx((), None)}
    found = findings_of(machine(engine=changes))
    assert "amx" not in found
    assert found["instructions"].status == "good"
    assert "avx512bf16, the best that is here; this machine has no amx" in found["instructions"].text
    arm = findings_of(
        machine(
            machine={"architecture": "aarch64"}, engine={"isa": "generic", "best": "generic", "amx": Amx(None, None)}
        )
    )
    assert arm["instructions"].status == "good"


def test_two_threads_of_one_core_may_have_one_thread_of_arithmetic_or_two() -> None:
    for count in (2, 3, 4):
        found = findings_of(machine(machine={"physical_cores": 2}, threads={"torch": count}))
        assert found["threads"].status == "good"
        assert found["cores"].text == "All 4 are usable (2 physical cores)."
    assert findings_of(machine(machine={"physical_cores": 2}, threads={"torch": 1}))["threads"].status == "warning"


def test_what_a_system_does_not_tell_is_left_out() -> None:
    unknown = {
        "virtual": None, "physical_cores": None, "memory_total": None, "memory_available": None, "load": None,
        "busy_cores": None, "steal": None,
    }  # fmt: skip
    found = findings_of(
        machine(
            machine=unknown,
            engine={"amx": Amx(None, None), "isa": "generic", "best": "generic"},
            threads={"spin_ms": None},
            huge_pages={"setting": None, "share": None},
            disk={"free": None, "direct": None},
        )
    )
    assert not {"memory", "load", "host", "amx", "waiting", "huge pages"} & set(found)
    assert found["disk speed"].text.startswith("Read at 8.00 GB/s once it is in the system's cache: model.safetensors")


def test_what_was_left_out_to_be_quick_is_no_finding_to_act_on() -> None:
    found = findings_of(machine(memory_speed=None, memory_not_measured=QUICK, disk={"not_measured": QUICK}))
    assert found["memory speed"] == Finding("memory speed", "good", "Not measured (--quick).")
    assert found["disk speed"] == Finding("disk speed", "good", "Not measured (--quick).")


def test_a_gpu_is_named_with_what_it_promises() -> None:
    found = findings_of(machine(gpus=(Gpu("A GPU", 80 * GIB),)))
    assert found["gpu"].text == "A GPU (85.9 GB): `--device cuda` uses it, with the promise exact."
    found = findings_of(machine(gpus=(Gpu("A GPU", 80 * GIB, "it is old"),)))
    assert found["gpu"].text.endswith(" uses it, with the promise algorithmic, slowly (it is old).")


def asked(checkpoint: Checkpoint, *fits: str) -> dict[str, Finding]:
    formats = tuple(
        Fit(name, GIB, GIB, 2 * GIB, whether, 30.0) for name, whether in zip(("bf16", "int4"), fits, strict=False)
    )
    return findings_of(machine(checkpoint=checkpoint, fits=(Fitting("m", 10, formats),) if fits else ()))


def test_a_model_is_told_with_its_promise_and_whether_it_fits() -> None:
    whole = Checkpoint("m", "/m", "llama", "bf16", here=True)
    found = asked(whole, "yes", "yes")
    assert found["model"].text == "m (llama, bf16) runs native with the instruction set amx; promise: exact."
    assert found["fits"].text == (
        "With keys and values and a draft it takes 2.15 GB; memory allows at most 30 tokens/s plainly."
    )
    assert "models" not in found, "the hub's folder says nothing of a model that is here"
    check(asked(whole, "without a draft copy", "yes")["fits"], "note", "a low-bit copy of it that drafts", "lookup")
    check(asked(whole, "no", "yes")["fits"], "warning", "more than is available", "quantize m --format int4")
    check(asked(whole, "no", "no")["fits"], "warning", "more than is available", "Use a smaller model.")
    assert "fits" not in asked(whole)


def test_a_model_that_cannot_be_used_is_a_problem() -> None:
    broken = Checkpoint("m", "/m", error="model_type 'x' is not supported; supported: llama")
    check(
        asked(broken)["model"], "problem", "model_type 'x' is not supported.", "Use another model; supported are llama."
    )
    absent = Checkpoint("a/m", "/cache", "llama", "bf16", here=False)
    check(asked(absent, "yes")["weights"], "note", "not on this machine yet", "--model a/m")
    strange = Checkpoint("m", "/m", "llama", "bf16", True, "linear layers side by side are bf16 and fp16")
    check(asked(strange, "yes")["model"], "warning", "runs in PyTorch: linear layers", "--dtype bfloat16")

"""What computes, with which instruction set, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator

from foretoken.doctor.facts import Facts
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, WARNING, Finding, gigabytes

_SUMS = "its instructions do not sum"  # how the module says it of an instruction set
_AGAIN = "install Foretoken again"


def arithmetic(facts: Facts) -> Iterator[Finding]:
    """Native, or PyTorch, and why."""
    engine = facts.engine
    if engine.native == "here":
        yield Finding("arithmetic", GOOD, "The native module is here: a whole pass is one call into C++.")
    elif engine.native == "broken":
        error, _, advice = (engine.error or "").partition("; ")
        unknown = advice.startswith("expected")  # FORETOKEN_NATIVE is nothing that it may be
        cure = f"`unset FORETOKEN_NATIVE`, or set it to {advice.removeprefix('expected ')}" if unknown else advice
        yield Finding("arithmetic", PROBLEM, f"{_sentence(error)}.", f"{_sentence(cure or _AGAIN)}.")
    elif engine.native == "off":
        yield Finding(
            "arithmetic",
            WARNING,
            "FORETOKEN_NATIVE=off switches the native module off: PyTorch computes, several times slower.",
            "`unset FORETOKEN_NATIVE`; if Foretoken was installed with it set, install it again.",
        )
    elif engine.compiler is not None:
        yield Finding(
            "arithmetic",
            WARNING,
            "The native module is not built: PyTorch computes, several times slower.",
            f"There is a compiler now ({engine.compiler}): {_AGAIN}, with FORETOKEN_NATIVE=required to see what fails.",
        )
    else:
        yield Finding(
            "arithmetic",
            WARNING,
            "The native module is not built, as there is no C++ compiler: PyTorch computes, several times slower.",
            f"Install gcc 12 or clang 14, or later (Debian, Ubuntu: `sudo apt install g++`), then {_AGAIN}.",
        )


def instructions(facts: Facts) -> Iterator[Finding]:
    """Which instruction set is in use, and which others there are."""
    engine = facts.engine
    if engine.native != "here":
        if engine.forced is not None:
            yield Finding(
                "instructions",
                NOTE,
                f"FORETOKEN_ISA is {engine.forced}, and without the native module it says nothing.",
                "`unset FORETOKEN_ISA`, or get the native module first.",
            )
        return
    if engine.isa is None:
        error = (engine.error or "").partition(";")[0]
        yield Finding(
            "instructions", PROBLEM, f"{error}.", f"`unset FORETOKEN_ISA`, or set it to {engine.best}, the best here."
        )
        return
    if engine.isa != engine.best:
        yield Finding(
            "instructions",
            NOTE,
            f"FORETOKEN_ISA forces {engine.isa}, where {engine.best} would be in use: the same bits, slower.",
            "`unset FORETOKEN_ISA`, unless it is meant so.",
        )
        return
    if engine.unbuilt:
        yield Finding(
            "instructions",
            NOTE,
            f"{engine.isa}: the processor has {', '.join(engine.unbuilt)}, the compiler that built Foretoken not.",
            f"Install gcc 12 or clang 14, or later, then {_AGAIN}.",
        )
    elif engine.isa == "generic" and facts.machine.architecture.lower() in ("x86_64", "amd64"):
        yield Finding(
            "instructions",
            WARNING,
            "generic: plain C++, because this processor, or what virtualises it, shows no AVX2 with FMA and F16C.",
            "If the processor has AVX2, let the virtual machine see it (QEMU: `-cpu host`).",
        )
    elif engine.isa == "generic":
        yield Finding("instructions", GOOD, f"generic: plain C++: other instruction sets are x86-64's; {_same()}.")
    else:
        forced = ", forced by FORETOKEN_ISA" if engine.forced else ""
        others = f"; this machine has no {', '.join(engine.lacking)}" if engine.lacking else ""
        yield Finding("instructions", GOOD, f"{engine.isa}, the best that is here{forced}{others}; {_same()}.")


def amx(facts: Facts) -> Iterator[Finding]:
    """Whether tiles work, where the processor has them."""
    engine = facts.engine
    flags, why = engine.amx.flags, engine.lacking.get("amx")
    if engine.native != "here" or not flags or "amx" in engine.unbuilt:
        return
    if why is None:
        yield Finding("amx", GOOD, "Works: its sums are those of plain C++, bit for bit (looked at just now).")
    elif engine.amx.refused is not None:
        yield Finding(
            "amx",
            WARNING,
            f"The processor has AMX, and the system refuses it ({engine.amx.refused}).",
            "Use Linux 5.16 or later; in a container, let its seccomp profile allow arch_prctl.",
        )
    elif why.startswith(_SUMS):
        yield Finding(
            "amx",
            WARNING,
            f"The processor has AMX, and does not sum in its documented order: {engine.isa} runs instead.",
            "Nothing is wrong with results; please report it, with `foretoken doctor --json`.",
        )
    elif "amx_bf16" not in flags:
        yield Finding("amx", GOOD, f"This processor's AMX has no bf16 ({', '.join(flags)}): it is not used.")
    else:
        yield Finding(
            "amx",
            WARNING,
            f"The processor has AMX, and it cannot be used: {why}.",
            "Let the virtual machine see AMX and AVX-512 VNNI (QEMU: `-cpu host`, on Linux 5.17 or later).",
        )


def promise(facts: Facts) -> Iterator[Finding]:
    """What is promised of the tokens."""
    engine = facts.engine
    if engine.native == "broken" or (engine.native == "here" and engine.isa is None):
        return
    if engine.native == "here":
        yield Finding("promise", GOOD, "exact: token for token and logit bit for bit what plain decoding gives.")
    elif engine.rows_alike is False:
        yield Finding(
            "promise",
            WARNING,
            "exact, at a price: PyTorch treats rows of a product unalike here, so each is computed alone.",
            "Get the native module; or `--promise algorithmic`, which gives the exactness up for speed.",
        )
    else:
        yield Finding(
            "promise", GOOD, "exact, with PyTorch's own sums: other text than the native module's, now and then."
        )


def versions(facts: Facts) -> Iterator[Finding]:
    """Whether packages are of versions that Foretoken asks for."""
    if facts.untested:
        yield Finding(
            "versions",
            WARNING,
            f"Installed is {'; '.join(facts.untested)}.",
            "Install Foretoken again: `pip install .` where it lies takes versions that were tested.",
        )
        return
    named = (f"{name} {facts.versions[name]}" for name in ("torch", "transformers") if facts.versions.get(name))
    yield Finding("versions", GOOD, f"{', '.join(named)}.")


def parts(facts: Facts) -> Iterator[Finding]:
    """Packages that only some commands need."""
    for part in facts.parts:
        if part.version is not None:
            yield Finding(part.name, GOOD, f"{part.version}, for {part.gives}.")
        else:
            yield Finding(part.name, NOTE, f"Not installed, for {part.gives}.", f"`pip install '{part.install}'`.")


def gpus(facts: Facts) -> Iterator[Finding]:
    """GPUs that PyTorch sees."""
    if not facts.gpus:
        yield Finding("gpu", GOOD, "PyTorch sees none, and none is needed.")
        return
    names = ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in facts.gpus)
    yield Finding("gpu", GOOD, f"{names}: `--device cuda` uses it, with the promise algorithmic.")


def _same() -> str:
    return "every instruction set gives the same bits"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]

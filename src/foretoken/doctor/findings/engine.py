"""Findings on what computes, its instruction set and promise, and the packages that it needs or may use."""

from __future__ import annotations

from foretoken.doctor.facts import Facts, Part
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, WARNING, Finding, Said, gigabytes, sentence

_SUMS = "its instructions do not sum"  # start of the module's reason against an instruction set
_AGAIN = "install Foretoken again"
_COMPILER = "Install gcc 12 or clang 14, or later"
_SLOWLY = "PyTorch computes, several times slower"
_SAME = "every instruction set gives the same bits"


def arithmetic(facts: Facts) -> Said:
    """Whether the native module or PyTorch computes, and why."""
    engine = facts.engine
    if engine.native == "here":
        return GOOD, "The native module is here: a whole pass is one call into C++.", None
    if engine.native == "broken":
        error, _, advice = (engine.error or "").partition("; ")
        if advice.startswith("expected"):  # FORETOKEN_NATIVE has an unknown value
            advice = f"`unset FORETOKEN_NATIVE`, or set it to {advice.removeprefix('expected ')}"
        return PROBLEM, f"{sentence(error)}.", f"{sentence(advice or _AGAIN)}."
    if engine.native == "off":
        text = f"FORETOKEN_NATIVE=off switches the native module off: {_SLOWLY}."
        return WARNING, text, "`unset FORETOKEN_NATIVE`; if Foretoken was installed with it set, install it again."
    if engine.compiler is not None:
        there = f"There is a compiler now ({engine.compiler})"
        advice = f"{there}: {_AGAIN}, with FORETOKEN_NATIVE=required to see what fails."
        return WARNING, f"The native module is not built: {_SLOWLY}.", advice
    text = f"The native module is not built, as there is no C++ compiler: {_SLOWLY}."
    return WARNING, text, f"{_COMPILER} (Debian, Ubuntu: `sudo apt install g++`), then {_AGAIN}."


def instructions(facts: Facts) -> Said | None:
    """The instruction set in use, and those that this machine lacks."""
    engine = facts.engine
    if engine.native != "here":
        if engine.forced is None:
            return None
        text = f"FORETOKEN_ISA is {engine.forced}, and without the native module it says nothing."
        return NOTE, text, "`unset FORETOKEN_ISA`, or get the native module first."
    if engine.isa is None:
        error = (engine.error or "").partition(";")[0]
        return PROBLEM, f"{error}.", f"`unset FORETOKEN_ISA`, or set it to {engine.best}, the best here."
    if engine.isa != engine.best:
        text = f"FORETOKEN_ISA forces {engine.isa}, where {engine.best} would be in use: the same bits, slower."
        return NOTE, text, "`unset FORETOKEN_ISA`, unless you set it on purpose."
    if engine.unbuilt:
        has = f"{engine.isa}: the processor has {', '.join(engine.unbuilt)}"
        return NOTE, f"{has}, the compiler that built Foretoken not.", f"{_COMPILER}, then {_AGAIN}."
    if engine.isa != "generic":
        forced = ", forced by FORETOKEN_ISA" if engine.forced else ""
        others = f"; this machine has no {', '.join(engine.lacking)}" if engine.lacking else ""
        return GOOD, f"{engine.isa}, the best that is here{forced}{others}; {_SAME}.", None
    if facts.machine.architecture.lower() in ("x86_64", "amd64"):
        text = "generic: plain C++, because this processor, or what virtualises it, shows no AVX2 with FMA and F16C."
        return WARNING, text, "If the processor has AVX2, let the virtual machine see it (QEMU: `-cpu host`)."
    return GOOD, f"generic: plain C++, the only one for this kind of processor; {_SAME}.", None


def amx(facts: Facts) -> Said | None:
    """Whether AMX tiles work, where the processor has them."""
    engine = facts.engine
    flags, why = engine.amx.flags, engine.lacking.get("amx")
    if engine.native != "here" or not flags or "amx" in engine.unbuilt:
        return None
    if why is None:
        return GOOD, "Works: its sums are those of plain C++, bit for bit (checked just now).", None
    if engine.amx.refused is not None:
        text = f"The processor has AMX, and the system refuses it ({engine.amx.refused})."
        return WARNING, text, "Use Linux 5.16 or later; in a container, let its seccomp profile allow arch_prctl."
    if why.startswith(_SUMS):
        text = f"The processor has AMX, and does not sum in its documented order: {engine.isa} runs instead."
        return WARNING, text, "Nothing is wrong with results; please report it, with `foretoken doctor --json`."
    if "amx_bf16" not in flags:
        return GOOD, f"This processor's AMX has no bf16 ({', '.join(flags)}): it is not used.", None
    advice = "Let the virtual machine see AMX and all of AVX-512 (QEMU: `-cpu host`, on Linux 5.17 or later)."
    return WARNING, f"The processor has AMX, and it cannot be used: {why}.", advice


def promise(facts: Facts) -> Said | None:
    """The promise about the tokens."""
    engine = facts.engine
    if engine.native == "broken" or (engine.native == "here" and engine.isa is None):
        return None
    if engine.native == "here":
        return GOOD, "exact: token for token and logit bit for bit what plain decoding gives.", None
    if engine.rows_alike is False:
        text = "exact, at a price: PyTorch treats rows of a product unalike here, so each is computed alone."
        advice = "Get the native module; or `--promise algorithmic`, which gives the exactness up for speed."
        return WARNING, text, advice
    return GOOD, "exact, with PyTorch's own sums: other text than the native module's, now and then.", None


def versions(facts: Facts) -> Said:
    """Whether the installed packages have versions that Foretoken asks for."""
    if facts.untested:
        advice = "Install Foretoken again: `pip install .` where it lies takes versions that were tested."
        return WARNING, f"Installed is {'; '.join(facts.untested)}.", advice
    named = (f"{name} {facts.versions[name]}" for name in ("torch", "transformers") if facts.versions.get(name))
    return GOOD, f"{', '.join(named)}.", None


def part(part: Part) -> Finding:
    """A package that only some commands need; its name is the topic."""
    if part.version is not None:
        return Finding(part.name, GOOD, f"{part.version}, for {part.gives}.")
    return Finding(part.name, NOTE, f"Not installed, for {part.gives}.", f"`pip install '{part.install}'`.")


def gpu(facts: Facts) -> Said:
    """The GPUs that PyTorch sees."""
    if not facts.gpus:
        return GOOD, "PyTorch sees none, and none is needed.", None
    names = ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in facts.gpus)
    why = next((gpu.why_not for gpu in facts.gpus if gpu.why_not), None)
    promise = "exact" if why is None else f"algorithmic, slowly ({why})"
    return GOOD, f"{names}: `--device cuda` uses it, with the promise {promise}.", None

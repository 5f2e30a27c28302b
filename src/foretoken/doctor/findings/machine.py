"""Processor, cores, memory, and who else wants them."""

from __future__ import annotations

from collections.abc import Iterator

from foretoken.doctor.facts import Facts, Machine
from foretoken.doctor.findings.finding import GOOD, NOTE, WARNING, Finding, gigabytes, several

_LITTLE = 1_000_000_000  # bytes of memory, below which even a small model is tight
_BUSY = 0.25  # of the usable cores
_STEAL = 0.05


def processor(facts: Facts) -> Iterator[Finding]:
    """What it is called, and whether it is a virtual one."""
    machine = facts.machine
    virtual = ", virtual" if machine.virtual else ""
    yield Finding("processor", GOOD, f"{machine.processor} ({machine.architecture}{virtual}).")


def cores(facts: Facts) -> Iterator[Finding]:
    """How many can be used, and what holds back the others."""
    machine = facts.machine
    physical = machine.physical_cores
    pairs = f" ({several(physical, 'physical core')})" if physical and physical < machine.allowed_cores else ""
    if machine.core_quota is not None:
        yield Finding(
            "cores",
            NOTE,
            f"A control group gives the time of {machine.core_quota:.3g} of "
            f"{several(machine.allowed_cores, 'core')}{pairs}.",
            "To use more, start the container with more, such as with docker's --cpus.",
        )
    elif machine.allowed_cores < machine.cores:
        yield Finding(
            "cores",
            NOTE,
            f"This process may run on {machine.allowed_cores} of {several(machine.cores, 'core')}{pairs}.",
            "To use all, start it without taskset, numactl or --cpuset-cpus, or give those more cores.",
        )
    else:
        yield Finding("cores", GOOD, f"All {machine.cores} are usable{pairs}." if machine.cores > 1 else "1, usable.")


def memory(facts: Facts) -> Iterator[Finding]:
    """How much there is, and what a container or a shell leaves of it."""
    machine = facts.machine
    if machine.memory_total is None:
        return
    text = f"{gigabytes(machine.memory_total)}"
    if machine.memory_available is not None:
        text += f", of which {gigabytes(machine.memory_available)} are available"
    if machine.memory_limit is not None:
        text += f"; {machine.memory_limited_by} allows this process {gigabytes(machine.memory_limit)}"
    if machine.memory_available is not None and machine.memory_available < _LITTLE:
        yield Finding("memory", WARNING, text + ".", f"{_more(facts)}, or use a small model, such as stdlib-7m.")
    elif machine.memory_limit is not None:
        yield Finding("memory", NOTE, text + ".", f"To use more: {_more(facts, small=True)}.")
    else:
        yield Finding("memory", GOOD, text + ".")


def _more(facts: Facts, *, small: bool = False) -> str:
    by = facts.machine.memory_limited_by
    words = {
        "ulimit -v": "Raise the limit, with `ulimit -v unlimited` in the same shell",
        "a control group": "Give the container or service more, such as with docker's --memory",
        None: "Close other programs",
    }[by]
    return words[0].lower() + words[1:] if small else words


def system(facts: Facts) -> Iterator[Finding]:
    """The operating system."""
    yield Finding("system", GOOD, f"{facts.machine.system}; Python {facts.versions['python']}.")


def is_busy(machine: Machine) -> bool:
    """Whether other processes take so much of the cores that speeds measured meanwhile say little."""
    return machine.busy_cores is not None and machine.busy_cores >= max(_BUSY, _BUSY * machine.usable_cores)


def others(facts: Facts) -> Iterator[Finding]:
    """Other processes, and other guests of the same host."""
    machine = facts.machine
    if machine.busy_cores is not None:
        names = ", ".join(f"{busy.name} (process {busy.pid}, {busy.cores:.1f})" for busy in machine.busiest)
        load = "" if machine.load is None else f"; load average {machine.load:.1f}"
        if is_busy(machine):
            text = f"Other processes use {machine.busy_cores:.1f} of {several(machine.cores, 'core')} now{load}"
            yield Finding(
                "load",
                WARNING,
                f"{text}{': ' if names else ''}{names}.",
                "Wait for them, or end them: a pass is as slow as its slowest thread, and so are speeds measured now.",
            )
        elif machine.load is not None and machine.load > machine.cores:
            yield Finding(
                "load",
                NOTE,
                f"No other process is busy now, but the last minute's load average is {machine.load:.1f}, for "
                f"{several(machine.cores, 'core')}.",
                "If something else still runs, wait for it: speeds measured meanwhile say little.",
            )
        else:
            yield Finding("load", GOOD, f"No other process is busy{load}.")
    if machine.steal is not None and machine.steal > _STEAL:
        yield Finding(
            "host",
            WARNING,
            f"The host gives {100 * machine.steal:.0f} % of the cores' time to other guests (steal).",
            "Expect speeds that change from minute to minute; ask for dedicated cores, or use another host.",
        )

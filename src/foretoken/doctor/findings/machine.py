"""Processor, cores, memory, and who else wants them."""

from __future__ import annotations

from foretoken.doctor.facts import Facts, Machine
from foretoken.doctor.findings.finding import GOOD, NOTE, WARNING, Said, gigabytes, sentence, several

_LITTLE = 1_000_000_000  # bytes of memory, below which even a small model is tight
_BUSY = 0.25  # of the usable cores
_STEAL = 0.05
_MORE = {  # memory, by what limits it
    "ulimit -v": "raise the limit, with `ulimit -v unlimited` in the same shell",
    "a control group": "give the container or service more, such as with docker's --memory",
    None: "close other programs",
}


def processor(facts: Facts) -> Said:
    """What it is called, and whether it is a virtual one."""
    machine = facts.machine
    return GOOD, f"{machine.processor} ({machine.architecture}{', virtual' if machine.virtual else ''}).", None


def cores(facts: Facts) -> Said:
    """How many can be used, and what holds back the others."""
    machine, allowed = facts.machine, facts.machine.allowed_cores
    physical = machine.physical_cores
    pairs = f" ({several(physical, 'physical core')})" if physical and physical < allowed else ""
    if machine.core_quota is not None:
        text = f"A control group gives the time of {machine.core_quota:.3g} of {several(allowed, 'core')}{pairs}."
        return NOTE, text, "To use more, start the container with more, such as with docker's --cpus."
    if allowed < machine.cores:
        text = f"This process may run on {allowed} of {several(machine.cores, 'core')}{pairs}."
        return NOTE, text, "To use all, start it without taskset, numactl or --cpuset-cpus, or give those more cores."
    return GOOD, f"All {machine.cores} are usable{pairs}." if machine.cores > 1 else "1, usable.", None


def memory(facts: Facts) -> Said | None:
    """How much there is, and what a container or a shell leaves of it."""
    machine, available = facts.machine, facts.machine.memory_available
    if machine.memory_total is None:
        return None
    more, text = _MORE[machine.memory_limited_by], gigabytes(machine.memory_total)
    text += "" if available is None else f", of which {gigabytes(available)} are available"
    if machine.memory_limit is not None:
        text += f"; {machine.memory_limited_by} allows this process {gigabytes(machine.memory_limit)}"
    if available is not None and available < _LITTLE:
        return WARNING, f"{text}.", f"{sentence(more)}, or use a small model, such as stdlib-7m."
    if machine.memory_limit is not None:
        return NOTE, f"{text}.", f"To use more: {more}."
    return GOOD, f"{text}.", None


def system(facts: Facts) -> Said:
    """The operating system."""
    return GOOD, f"{facts.machine.system}; Python {facts.versions['python']}.", None


def is_busy(machine: Machine) -> bool:
    """Whether other processes take so much of the cores that speeds measured meanwhile say little."""
    return machine.busy_cores is not None and machine.busy_cores >= max(_BUSY, _BUSY * machine.usable_cores)


def load(facts: Facts) -> Said | None:
    """Other processes."""
    machine, every = facts.machine, several(facts.machine.cores, "core")
    if machine.busy_cores is None:
        return None
    average = "" if machine.load is None else f"; load average {machine.load:.1f}"
    if is_busy(machine):
        names = ", ".join(f"{busy.name} (process {busy.pid}, {busy.cores:.1f})" for busy in machine.busiest)
        text = f"Other processes use {machine.busy_cores:.1f} of {every} now{average}{': ' if names else ''}{names}."
        advice = "Wait for them, or end them: a pass is as slow as its slowest thread, and so are speeds measured now."
        return WARNING, text, advice
    if machine.load is not None and machine.load > machine.cores:
        text = f"No other process is busy now, but the last minute's load average is {machine.load:.1f}, for {every}."
        return NOTE, text, "If something else still runs, wait for it: speeds measured meanwhile say little."
    return GOOD, f"No other process is busy{average}.", None


def host(facts: Facts) -> Said | None:
    """Other guests of the same host."""
    steal = facts.machine.steal
    if steal is None or steal <= _STEAL:
        return None
    text = f"The host gives {100 * steal:.0f} % of the cores' time to other guests (steal)."
    advice = "Expect speeds that change from minute to minute; ask for dedicated cores, or use another host."
    return WARNING, text, advice

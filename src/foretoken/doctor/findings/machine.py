"""Findings on processor, cores and memory, on other processes that use them, and on the threads of arithmetic."""

from __future__ import annotations

from foretoken.common.progress import many
from foretoken.doctor.facts import BINDING, COUNTING, WAITING, Facts, Machine, Threads
from foretoken.doctor.findings.finding import GOOD, NOTE, WARNING, Said, gigabytes, sentence

_LITTLE = 1_000_000_000  # bytes of memory, below which even a small model is tight
_BUSY = 0.25  # of the usable cores
_STEAL = 0.05
_SPIN = 50.0  # milliseconds: longer than a pass of a small model
_MORE = {  # how to get more memory, by what limits it
    "ulimit -v": "raise the limit, with `ulimit -v unlimited` in the same shell",
    "a control group": "give the container or service more, such as with docker's --memory",
    None: "close other programs",
}


def processor(facts: Facts) -> Said:
    """The processor's name, and whether it is virtual."""
    machine = facts.machine
    return GOOD, f"{machine.processor} ({machine.architecture}{', virtual' if machine.virtual else ''}).", None


def cores(facts: Facts) -> Said:
    """How many cores are usable, and what holds back the others."""
    machine, allowed = facts.machine, facts.machine.allowed_cores
    physical = machine.physical_cores
    pairs = f" ({many(physical, 'physical core')})" if physical and physical < allowed else ""
    if machine.core_quota is not None:
        text = f"A control group gives the time of {machine.core_quota:.3g} of {many(allowed, 'core')}{pairs}."
        return NOTE, text, "To use more, start the container with more, such as with docker's --cpus."
    if allowed < machine.cores:
        text = f"This process may run on {allowed} of {many(machine.cores, 'core')}{pairs}."
        return NOTE, text, "To use all, start it without taskset, numactl or --cpuset-cpus, or give those more cores."
    return GOOD, f"All {machine.cores} are usable{pairs}." if machine.cores > 1 else "1, usable.", None


def memory(facts: Facts) -> Said | None:
    """How much memory the machine has, and how much a container or a shell leaves of it."""
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
    """Whether other processes use so many cores that speeds measured now say little."""
    return machine.busy_cores is not None and machine.busy_cores >= max(_BUSY, _BUSY * machine.usable_cores)


def load(facts: Facts) -> Said | None:
    """Whether other processes are busy."""
    machine, every = facts.machine, many(facts.machine.cores, "core")
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
    """Whether other guests of the same host take the cores' time."""
    steal = facts.machine.steal
    if steal is None or steal <= _STEAL:
        return None
    text = f"The host gives {100 * steal:.0f} % of the cores' time to other guests (steal)."
    advice = "Expect speeds that change from minute to minute; ask for dedicated cores, or use another host."
    return WARNING, text, advice


def threads(facts: Facts) -> Said:
    """The number of threads of arithmetic: PyTorch's own, unless --threads sets it."""
    count, usable = facts.threads.torch, facts.machine.usable_cores
    names, because = _set(facts.threads, COUNTING)
    fewest = min(facts.machine.physical_cores or usable, usable)
    text = f"{many(count, 'thread')} of arithmetic for {many(usable, 'usable core')}{because}"
    if count > usable:
        advice = f"`export OMP_NUM_THREADS={usable}`, or give `--threads {usable}`."
        return WARNING, f"{text}: they wait for each other.", advice
    if count < fewest:
        idle = "one of them idles" if usable - count == 1 else "the others idle"
        cure = f"unset {' '.join(names)}" if names else f"export OMP_NUM_THREADS={fewest}"
        return WARNING, f"{text}: {idle}.", f"`{cure}`, or give `--threads {fewest}`."
    return GOOD, f"{text}.", None


def binding(facts: Facts) -> Said | None:
    """Whether PyTorch's OpenMP binds this process, and thus all later threads, to fewer cores."""
    bound, every = facts.threads.bound_cores, many(facts.machine.allowed_cores, "core")
    if bound is None:
        return None
    names, because = _set(facts.threads, BINDING)
    text = f"Importing PyTorch ties this process to {bound} of {every}{because}, and all threads of arithmetic with it."
    return WARNING, text, f"`unset {' '.join(names or BINDING[:3])}`."


def waiting(facts: Facts) -> Said | None:
    """Whether PyTorch's threads keep their cores when they have no work."""
    spin, policy = facts.threads.spin_ms, facts.threads.environment.get("OMP_WAIT_POLICY", "").lower()
    if policy == "active" or (spin or 0) >= _SPIN:
        names, because = _set(facts.threads, WAITING)
        long = "long" if spin is None else f"{spin:.0f} ms or more"
        text = f"PyTorch's threads keep their cores for {long} after work{because}, while ours want them."
        unset = f", and `unset {' '.join(names[1:])}`" if names[1:] else ""
        return WARNING, text, f"`export OMP_WAIT_POLICY=passive`{unset}."
    if facts.engine.native != "here" and policy != "passive" and (facts.machine.busy_cores or 0) >= 0.5:
        text = "PyTorch computes while other programs want the same cores: its threads then wait for each other."
        return NOTE, text, "`export OMP_WAIT_POLICY=passive`."
    if spin is None:
        return None
    short = f"{spin:.0f} ms" if spin >= 1 else "less than a millisecond"
    return GOOD, f"PyTorch's threads keep their cores for {short} after work: out of our way.", None


def _set(threads: Threads, names: tuple[str, ...]) -> tuple[list[str], str]:
    """The names of the variables that are set, and their values as a bracket for a sentence."""
    here = {name: threads.environment[name] for name in names if name in threads.environment}
    said = ", ".join(f"{name}={value}" for name, value in here.items())
    return list(here), f" ({said})" if said else ""

"""Whether there are as many threads as cores, and whether PyTorch's get in the way of ours."""

from __future__ import annotations

from foretoken.doctor import facts as known
from foretoken.doctor.facts import Facts, Threads
from foretoken.doctor.findings.finding import GOOD, NOTE, WARNING, Said, several

_SPIN = 50.0  # milliseconds: longer than a pass of a small model


def threads(facts: Facts) -> Said:
    """Threads of arithmetic: as many as PyTorch takes, unless --threads says otherwise."""
    count, usable = facts.threads.torch, facts.machine.usable_cores
    names, because = _set(facts.threads, known.COUNTING)
    fewest = min(facts.machine.physical_cores or usable, usable)
    text = f"{several(count, 'thread')} of arithmetic for {several(usable, 'usable core')}{because}"
    if count > usable:
        advice = f"`export OMP_NUM_THREADS={usable}`, or give `--threads {usable}`."
        return WARNING, f"{text}: they wait for each other.", advice
    if count < fewest:
        idle = "one of them idles" if usable - count == 1 else "the others idle"
        cure = f"unset {' '.join(names)}" if names else f"export OMP_NUM_THREADS={fewest}"
        return WARNING, f"{text}: {idle}.", f"`{cure}`, or give `--threads {fewest}`."
    return GOOD, f"{text}.", None


def binding(facts: Facts) -> Said | None:
    """Whether PyTorch's OpenMP ties this process to fewer cores, where all later threads then are."""
    bound, every = facts.threads.bound_cores, several(facts.machine.allowed_cores, "core")
    if bound is None:
        return None
    names, because = _set(facts.threads, known.BINDING)
    text = f"Importing PyTorch ties this process to {bound} of {every}{because}, and all threads of arithmetic with it."
    return WARNING, text, f"`unset {' '.join(names or known.BINDING[:3])}`."


def waiting(facts: Facts) -> Said | None:
    """Whether PyTorch's threads keep their cores when they have no work."""
    spin, policy = facts.threads.spin_ms, facts.threads.environment.get("OMP_WAIT_POLICY", "").lower()
    if policy == "active" or (spin or 0) >= _SPIN:
        names, because = _set(facts.threads, known.WAITING)
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
    """Those of the variables that are set; and how a sentence says to what."""
    here = {name: threads.environment[name] for name in names if name in threads.environment}
    said = ", ".join(f"{name}={value}" for name, value in here.items())
    return list(here), f" ({said})" if said else ""

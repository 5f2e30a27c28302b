"""Whether there are as many threads as cores, and whether PyTorch's get in the way of ours."""

from __future__ import annotations

from collections.abc import Iterator

from foretoken.doctor.facts import Facts
from foretoken.doctor.findings.finding import GOOD, NOTE, WARNING, Finding, several

_SPIN = 50.0  # milliseconds: longer than a pass of a small model
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def count(facts: Facts) -> Iterator[Finding]:
    """Threads of arithmetic: as many as PyTorch takes, unless --threads says otherwise."""
    threads, usable = facts.threads, facts.machine.usable_cores
    set_by = [f"{name}={threads.environment[name]}" for name in _COUNTS if name in threads.environment]
    because = f" ({', '.join(set_by)})" if set_by else ""
    fewest = min(facts.machine.physical_cores or usable, usable)
    if threads.torch > usable:
        yield Finding(
            "threads",
            WARNING,
            f"{several(threads.torch, 'thread')} of arithmetic for {several(usable, 'usable core')}{because}: they "
            "wait for each other.",
            f"`export OMP_NUM_THREADS={usable}`, or give `--threads {usable}`.",
        )
    elif threads.torch < fewest:
        advice = f"`unset {' '.join(name.partition('=')[0] for name in set_by)}`" if set_by else None
        advice = advice or f"`export OMP_NUM_THREADS={fewest}`"
        yield Finding(
            "threads",
            WARNING,
            f"{several(threads.torch, 'thread')} of arithmetic for {several(usable, 'usable core')}{because}: "
            f"{'one of them idles' if usable - threads.torch == 1 else 'the others idle'}.",
            f"{advice}, or give `--threads {fewest}`.",
        )
    else:
        yield Finding(
            "threads",
            GOOD,
            f"{several(threads.torch, 'thread')} of arithmetic for {several(usable, 'usable core')}{because}.",
        )


def binding(facts: Facts) -> Iterator[Finding]:
    """Whether PyTorch's OpenMP ties this process to fewer cores, where all later threads then are."""
    threads = facts.threads
    if threads.bound_cores is None:
        return
    names = [name for name in _BINDING if name in threads.environment]
    because = f" ({', '.join(f'{name}={threads.environment[name]}' for name in names)})" if names else ""
    yield Finding(
        "binding",
        WARNING,
        f"Importing PyTorch ties this process to {threads.bound_cores} of "
        f"{several(facts.machine.allowed_cores, 'core')}{because}, and all threads of arithmetic with it.",
        f"`unset {' '.join(names or _BINDING[:3])}`.",
    )


def spinning(facts: Facts) -> Iterator[Finding]:
    """Whether PyTorch's threads keep their cores when they have no work."""
    threads, native = facts.threads, facts.engine.native == "here"
    policy = threads.environment.get("OMP_WAIT_POLICY", "").lower()
    if policy == "active" or (threads.spin_ms or 0) >= _SPIN:
        names = [n for n in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT") if n in threads.environment]
        because = f" ({', '.join(f'{name}={threads.environment[name]}' for name in names)})" if names else ""
        spins = f"{threads.spin_ms:.0f} ms or more" if threads.spin_ms is not None else "long"
        yield Finding(
            "waiting",
            WARNING,
            f"PyTorch's threads keep their cores for {spins} after work{because}, while ours want them.",
            "`export OMP_WAIT_POLICY=passive`" + (f", and `unset {' '.join(names[1:])}`." if names[1:] else "."),
        )
    elif not native and policy != "passive" and (facts.machine.busy_cores or 0) >= 0.5:
        yield Finding(
            "waiting",
            NOTE,
            "PyTorch computes while other programs want the same cores: its threads then wait for each other.",
            "`export OMP_WAIT_POLICY=passive`.",
        )
    elif threads.spin_ms is not None:
        spins = f"{threads.spin_ms:.0f} ms" if threads.spin_ms >= 1 else "less than a millisecond"
        yield Finding("waiting", GOOD, f"PyTorch's threads keep their cores for {spins} after work: out of our way.")

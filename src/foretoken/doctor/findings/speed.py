"""How fast memory and disk are, and what a model that was asked about makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from foretoken.doctor.facts import QUICK, Facts
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, WARNING, Finding, gigabytes, several, speed
from foretoken.doctor.findings.machine import is_busy

_SLOW_DISK = 0.3e9  # bytes a second
_EXAMPLE = 3e9  # bytes of a model that is read from it
_LITTLE_SPACE = 5_000_000_000
_STEADY = 0.8  # of memory's speed some seconds before
_WELL = 0.5  # share in huge pages
_FULL_SIZE = 1 << 30  # bytes that were read; less may have been in the processor's cache
_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"


def memory(facts: Facts) -> Iterator[Finding]:
    """What a token that reads all weights is bound by."""
    found = facts.memory_speed
    if found is None:
        yield _left_out("memory speed", facts.memory_not_measured, "Free some, then run `foretoken doctor` again.")
        return
    kinds = [
        f"{speed(value)} in {kind} pages{_streams(found.streams.get(kind))}"
        for kind, value in (("huge", found.huge), ("small", found.small))
        if value
    ]
    how = f"{several(found.threads, 'thread')}, the best of 1 to 16 streams each"
    if found.by != "native":
        how = f"by {found.by}, on {several(found.threads, 'thread')}, so a little more is there"
    if found.size < _FULL_SIZE:
        how += f"; only {gigabytes(found.size)} were read, so the processor's cache may have helped"
    text = f"Read at {', '.join(kinds)} ({how})"
    if is_busy(facts.machine):
        advice = "Run `foretoken doctor` again when nothing else does."
        yield Finding("memory speed", NOTE, f"{text}, while other processes wanted memory, too: more is there.", advice)
    elif found.other is not None and found.other < _STEADY * found.best:
        yield Finding(
            "memory speed",
            NOTE,
            f"{text}, and some seconds before or after at {speed(found.other)}: somebody else uses this host's memory.",
            "Expect speeds that change from minute to minute; measure in turn, as `foretoken bench decode` does.",
        )
    else:
        yield Finding("memory speed", GOOD, f"{text}.")


def _streams(count: int | None) -> str:
    return "" if count is None else f" in {several(count, 'stream')}"


def huge_pages(facts: Facts) -> Iterator[Finding]:
    """What `--weights copied` and low-bit copies are given."""
    pages = facts.huge_pages
    if pages.setting is None:
        return
    if pages.setting == "never":
        yield Finding(
            "huge pages",
            WARNING,
            "Switched off on this system (never): copied weights are read more slowly.",
            f"`echo madvise | sudo tee {_SETTING}` (for a container, on its host).",
        )
    elif pages.disabled:
        yield Finding(
            "huge pages",
            WARNING,
            "Switched off for this process by whoever started it (prctl PR_SET_THP_DISABLE).",
            "Start it from another shell or service manager, or switch that setting of theirs off.",
        )
    elif pages.share is not None and pages.share < _WELL:
        yield Finding(
            "huge pages",
            NOTE,
            f"Set to {pages.setting}, and memory that asked for them got {100 * pages.share:.0f} %: what is free is in "
            "pieces.",
            "`echo 1 | sudo tee /proc/sys/vm/compact_memory`, or free memory and try again.",
        )
    else:
        got = "" if pages.share is None else f", and memory that asks for them gets them ({100 * pages.share:.0f} %)"
        yield Finding("huge pages", GOOD, f"Set to {pages.setting}{got}: `--weights copied` and copies use them.")


def disk(facts: Facts) -> Iterator[Finding]:
    """What loading a model for the first time is bound by."""
    found = facts.disk
    where = f"{found.folder}{' (in memory)' if found.in_memory else ''}"
    if found.not_measured is not None:
        yield _left_out("disk speed", found.not_measured, "Name a folder with room, with `export HF_HOME=FOLDER`.")
        return
    speeds = [] if found.direct is None else [f"{speed(found.direct)} from the disk"]
    speeds += [] if found.cached is None else [f"{speed(found.cached)} once it is in the system's cache"]
    text = f"Read at {', '.join(speeds) or 'no speed'}: {found.read} in {where}"
    if found.direct is not None and found.direct < _SLOW_DISK:
        yield Finding(
            "disk speed",
            NOTE,
            f"{text}; {gigabytes(_EXAMPLE)} of a model take {_EXAMPLE / found.direct:.0f} s the first time.",
            "Keep models on a faster disk: `export HF_HOME=FOLDER`.",
        )
    else:
        yield Finding("disk speed", GOOD, f"{text}.")


def place(facts: Facts) -> Iterator[Finding]:
    """Where models lie, and whether there is room for one."""
    found = facts.disk
    asked = facts.checkpoint is not None
    if not found.writable and not asked:
        yield Finding(
            "models",
            WARNING,
            f"Models from the hub are kept in {found.folder}, which cannot be written to.",
            "`export HF_HOME=FOLDER` with a folder of your own.",
        )
    elif found.free is not None and found.free < _LITTLE_SPACE:
        yield Finding(
            "models",
            NOTE,
            f"The disk of {found.folder} has {gigabytes(found.free)} free, less than many a model takes.",
            "Free some, or `export HF_HOME=FOLDER` with a folder on another disk.",
        )
    elif not asked:
        free = "" if found.free is None else f" ({gigabytes(found.free)} free)"
        yield Finding("models", GOOD, f"Those from the hub are kept in {found.folder}{free}.")


def checkpoint(facts: Facts) -> Iterator[Finding]:
    """A model that was asked about: what it is, what it promises, whether it fits."""
    found = facts.checkpoint
    if found is None:
        return
    if found.error is not None:
        text, _, advice = found.error.partition("; ")
        if not advice or advice.startswith("supported"):
            advice = "use another model" + advice.replace("supported:", "; supported are", 1)
        yield Finding("model", PROBLEM, f"{text}.", f"{advice[:1].upper()}{advice[1:]}.")
        return
    native = facts.engine.native == "here" and facts.engine.isa is not None
    if found.why_not_native is not None:
        yield Finding(
            "model",
            WARNING,
            f"{found.name} ({found.model_type}, {found.format}) runs in PyTorch: {found.why_not_native}.",
            "Give `--dtype bfloat16`, which converts it.",
        )
    else:
        runs = f"native with the instruction set {facts.engine.isa}" if native else "in PyTorch"
        yield Finding("model", GOOD, f"{found.name} ({found.model_type}, {found.format}) runs {runs}; promise: exact.")
    if not found.here:
        yield Finding(
            "weights",
            NOTE,
            "Its weights are not on this machine yet.",
            f'`foretoken generate --model {found.name} "Hello"` fetches them.',
        )
    if not facts.fits:
        return
    own = facts.fits[0].formats[0]
    smaller = [fit.format for fit in facts.fits[0].formats[1:] if fit.fits in ("yes", "without a draft copy")]
    if own.fits == "no":
        cure = f"`foretoken quantize {found.name} --format {smaller[-1]}`" if smaller else "use a smaller model"
        yield Finding(
            "fits",
            WARNING,
            f"It needs {gigabytes(own.needs)} of memory, more than is available: every token would read it from disk.",
            f"{cure[0].upper() + cure[1:]}{', and use that copy as the model' if smaller else ''}.",
        )
    elif own.fits == "without a draft copy":
        yield Finding(
            "fits",
            NOTE,
            "It fits, and a low-bit copy of it that drafts does not.",
            "Draft with `--draft lookup`, which takes no memory.",
        )
    elif own.fits == "yes":
        rate = (
            ""
            if own.tokens_per_second is None
            else f"; memory allows at most {own.tokens_per_second:.3g} tokens/s plainly"
        )
        yield Finding("fits", GOOD, f"With keys and values and a draft it takes {gigabytes(own.needs)}{rate}.")


def _left_out(topic: str, why: str | None, advice: str) -> Finding:
    if why == QUICK:
        return Finding(topic, GOOD, "Not measured (--quick).")
    return Finding(topic, NOTE, f"Not measured: {why}.", advice)

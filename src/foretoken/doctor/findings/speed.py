"""Findings on the speed of memory and disk, on the room for models, and on the model that the user named."""

from __future__ import annotations

from foretoken.common.progress import many
from foretoken.doctor.facts import QUICK, Facts
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, WARNING, Said, gigabytes, sentence, speed
from foretoken.doctor.findings.machine import is_busy

_SLOW_DISK = 0.3e9  # bytes a second
_EXAMPLE = 3e9  # bytes of an example model that is read from the disk
_LITTLE_SPACE = 5_000_000_000
_STEADY = 0.8  # of the best speed: a second measurement below that was disturbed
_WELL = 0.5  # least share in huge pages that counts as working
_FULL_SIZE = 1 << 30  # bytes that were read; less may have been in the processor's cache
_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"


def memory_speed(facts: Facts) -> Said:
    """Memory's speed, which bounds a token that reads all weights."""
    found = facts.memory_speed
    if found is None:
        return _left_out(facts.memory_not_measured, "Free some, then run `foretoken doctor` again.")
    streams = {kind: f" in {many(count, 'stream')}" for kind, count in found.streams.items()}
    speeds = {"huge": found.huge, "small": found.small}
    kinds = (f"{speed(value)} in {kind} pages{streams.get(kind, '')}" for kind, value in speeds.items())
    how = f"{many(found.threads, 'thread')}, the best of 1 to 16 streams each"
    if found.by != "native":
        how = f"by {found.by}, on {many(found.threads, 'thread')}, so a little more is there"
    if found.size < _FULL_SIZE:
        how += f"; only {gigabytes(found.size)} were read, so the processor's cache may have helped"
    text = f"Read at {', '.join(kinds)} ({how})"
    if is_busy(facts.machine):
        text += ", while other processes wanted memory, too: more is there."
        return NOTE, text, "Run `foretoken doctor` again when nothing else does."
    if found.other is not None and found.other < _STEADY * found.best:
        text += f", and some seconds before or after at {speed(found.other)}: somebody else uses this host's memory."
        advice = "Expect speeds that change from minute to minute; measure in turn, as `foretoken bench decode` does."
        return NOTE, text, advice
    return GOOD, f"{text}.", None


def huge_pages(facts: Facts) -> Said | None:
    """Whether `--weights copied` and low-bit copies get huge pages."""
    pages = facts.huge_pages
    if pages.setting is None:
        return None
    if pages.setting == "never":
        text = "Switched off on this system (never): copied weights are read more slowly."
        return WARNING, text, f"`echo madvise | sudo tee {_SETTING}` (for a container, on its host)."
    if pages.disabled:
        text = "Switched off for this process by whoever started it (prctl PR_SET_THP_DISABLE)."
        return WARNING, text, "Start it from another shell or service manager, or switch that setting of theirs off."
    share = "" if pages.share is None else f"{100 * pages.share:.0f} %"
    if pages.share is not None and pages.share < _WELL:
        text = f"Set to {pages.setting}, and memory that asked for them got {share}: what is free is in pieces."
        return NOTE, text, "`echo 1 | sudo tee /proc/sys/vm/compact_memory`, or free memory and try again."
    got = f", and memory that asks for them gets them ({share})" if share else ""
    return GOOD, f"Set to {pages.setting}{got}: `--weights copied` and copies use them.", None


def disk_speed(facts: Facts) -> Said:
    """The disk's speed, which bounds the first load of a model."""
    found = facts.disk
    if found.not_measured is not None:
        return _left_out(found.not_measured, "Name a folder with room, with `export HF_HOME=FOLDER`.")
    ways = ((found.direct, "from the disk"), (found.cached, "once it is in the system's cache"))
    speeds = ", ".join(f"{speed(value)} {way}" for value, way in ways if value is not None)
    text = f"Read at {speeds or 'no speed'}: {found.read} in {found.folder}{' (in memory)' if found.in_memory else ''}"
    if found.direct is not None and found.direct < _SLOW_DISK:
        text += f"; {gigabytes(_EXAMPLE)} of a model take {_EXAMPLE / found.direct:.0f} s the first time."
        return NOTE, text, "Keep models on a faster disk: `export HF_HOME=FOLDER`."
    return GOOD, f"{text}.", None


def models(facts: Facts) -> Said | None:
    """Where models are kept, and whether there is room for one."""
    found, asked = facts.disk, facts.checkpoint is not None
    if not found.writable and not asked:
        text = f"Models from the hub are kept in {found.folder}, which cannot be written to."
        return WARNING, text, "`export HF_HOME=FOLDER` with a folder of your own."
    if found.free is not None and found.free < _LITTLE_SPACE:
        text = f"The disk of {found.folder} has {gigabytes(found.free)} free, less than many a model takes."
        return NOTE, text, "Free some, or `export HF_HOME=FOLDER` with a folder on another disk."
    if asked:
        return None
    free = "" if found.free is None else f" ({gigabytes(found.free)} free)"
    return GOOD, f"Those from the hub are kept in {found.folder}{free}.", None


def _left_out(why: str | None, advice: str) -> Said:
    return (GOOD, "Not measured (--quick).", None) if why == QUICK else (NOTE, f"Not measured: {why}.", advice)


def model(facts: Facts) -> Said | None:
    """What the model is, what computes it, and its promise."""
    found, engine = facts.checkpoint, facts.engine
    if found is None:
        return None
    if found.error is not None:
        text, _, advice = found.error.partition("; ")
        if not advice or advice.startswith("supported"):
            advice = "use another model" + advice.replace("supported:", "; supported are", 1)
        return PROBLEM, f"{text}.", f"{sentence(advice)}."
    called = f"{found.name} ({found.model_type}, {found.format})"
    if found.why_not_native is not None:
        text = f"{called} runs in PyTorch: {found.why_not_native}."
        return WARNING, text, "Give `--dtype bfloat16`, which converts it."
    native = engine.native == "here" and engine.isa is not None
    runs = f"native with the instruction set {engine.isa}" if native else "in PyTorch"
    return GOOD, f"{called} runs {runs}; promise: exact.", None


def weights(facts: Facts) -> Said | None:
    """Whether the model's weights are on this machine."""
    found = facts.checkpoint
    if found is None or found.error is not None or found.here:
        return None
    advice = f'`foretoken generate --model {found.name} "Hello"` fetches them.'
    return NOTE, "Its weights are not on this machine yet.", advice


def fits(facts: Facts) -> Said | None:
    """Whether the model fits into memory, and if not, which format does."""
    found = facts.checkpoint
    if found is None or found.error is not None or not facts.fits:
        return None
    own, *others = facts.fits[0].formats
    needs = f"{gigabytes(own.needs)}"
    if own.fits == "no":
        text = f"It needs {needs} of memory, more than is available: every token would read it from disk."
        smaller = [fit.format for fit in others if fit.fits in ("yes", "without a draft copy")]
        if not smaller:
            return WARNING, text, "Use a smaller model."
        quantise = f"`foretoken quantize {found.name} --format {smaller[-1]}`"
        return WARNING, text, f"{quantise}, and use that copy as the model."
    if own.fits == "without a draft copy":
        text = "It fits, and a low-bit copy of it that drafts does not."
        return NOTE, text, "Draft with `--draft lookup`, which takes no memory."
    if own.fits is None:
        return None
    most = own.tokens_per_second
    rate = "" if most is None else f"; memory allows at most {most:.3g} tokens/s plainly"
    return GOOD, f"With keys and values and a draft it takes {needs}{rate}.", None

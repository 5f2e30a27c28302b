"""What runs a model that was asked about, what is promised of it, and whether it fits."""

from __future__ import annotations

from foretoken.doctor.facts import Facts
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, WARNING, Said, gigabytes, sentence


def model(facts: Facts) -> Said | None:
    """What it is, what it runs on, and what it promises."""
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
    """Whether its weights are here."""
    found = facts.checkpoint
    if found is None or found.error is not None or found.here:
        return None
    advice = f'`foretoken generate --model {found.name} "Hello"` fetches them.'
    return NOTE, "Its weights are not on this machine yet.", advice


def fits(facts: Facts) -> Said | None:
    """Whether it fits into memory, and what does where it does not."""
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

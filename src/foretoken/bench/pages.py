"""Records as pages show them: tables in Markdown, where a record was measured, and how far it can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.bench.fields import is_number
from foretoken.bench.statistics import FEWEST, SLOW
from foretoken.common.progress import many as many
from foretoken.common.provenance import isa_of
from foretoken.errors import one_line

shown = one_line  # also makes a line safe for a terminal, which should not obey a file's content


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table with columns of constant width: the first `left` are aligned left, all others right."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    under = ["-" * width if at < left else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    lines = []
    for row in (cells[0], under, *cells[1:]):
        columns = enumerate(zip(row, widths, strict=True))
        padded = [cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in columns]
        lines.append(f"| {' | '.join(padded)} |")
    return lines


def where(record: Mapping[str, Any]) -> str:
    """Machine, engine and commit of a record, in a line."""
    return f"{machine(record)}; commit {record['commit'] or 'unknown'}"


def machine(record: Mapping[str, Any]) -> str:
    """The processor, the number of threads, and the engine; or the GPU and its engine. As much of it as is known."""
    its = record["machine"]
    if its.get("gpu"):
        return f"{its['gpu']}, engine {record.get('arithmetic')}"
    if its.get("threads") is None:  # of a record in which no model was measured
        return f"{its.get('processor')}"
    return f"{its.get('processor')}, {its['threads']} threads, engine {isa_of(its) or 'PyTorch'}"


def memory(record: dict[str, Any]) -> str:
    """A sentence on memory's speed meanwhile: if memory was much slower for a while, something else ran."""
    speed, span = record.get("read_bandwidth_gb_per_s"), record.get("read_bandwidth_range_gb_per_s")
    if speed is None:
        return ""
    between = f" ({span[0]} to {span[1]})" if isinstance(span, list) and len(span) == 2 else ""
    slow = record.get("slow_memory_percent")
    disturbed = f"; during {slow:g} % of the generations at less than {SLOW} of that" if is_number(slow) else ""
    return f" Memory was read at {speed} GB/s{between}{disturbed}."


def asked(record: dict[str, Any]) -> str:
    """The prompts, their suite, the new tokens per prompt, and the number of repeats."""
    suite = record["suite"]
    return (
        f"{many(suite.get('prompts'), 'prompt')} of {suite.get('name')}, {record['max_new_tokens']} new tokens each, "
        f"{many(record['repeats'], 'time')}"
    )


def rehearsed(record: dict[str, Any]) -> str:
    """A sentence on what a rehearsal imitates; empty for any other model."""
    made = record.get("rehearsal")
    if not isinstance(made, dict):
        return ""
    source = made.get("source")
    name = source.get("name") if isinstance(source, dict) else source
    return f" A rehearsal: the shape of {made.get('shape')}, the function of {name}."


def how_sure(prompts: int) -> str:
    """The name of an interval over so many prompts."""
    return "95 %" if prompts >= FEWEST else f"range of {prompts}"


def times(value: float | None, interval: Sequence[float] | None, unit: str = "") -> str:
    """How many times as fast, with its interval; empty without one. unit: what is written behind the value."""
    return "" if value is None or interval is None else f"{value:.2f}{unit} ({interval[0]:.2f} to {interval[1]:.2f})"

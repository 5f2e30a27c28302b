"""A reproduction's record as Markdown: each table and figure, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.bench.pages import many, markdown, rehearsed, where


def report(record: dict[str, Any], pictures: Mapping[str, str]) -> list[str]:
    """The lines of a report. pictures: names of files beside it, by figure."""
    lines = [f"# {record['title']}, measured again", "", _about(record), "", identity(record), ""]
    for name, table in record["tables"].items():
        lines += [f"## {table['title']}", "", *rows(table["rows"]), ""]
        if name in pictures:
            lines += [f"![{table['title']}]({pictures[name]})", ""]
        lines += [line for note in table["notes"] for line in (note, "")]
    if record["missing"]:
        lines += [f"Not made yet: {', '.join(record['missing'])}.", ""]
    return lines


def identity(record: dict[str, Any]) -> str:
    """A sentence on whether every text equals plain decoding's."""
    lines = [*record["generations"], *record["watched"]]
    if not lines:
        return "Foretoken itself has generated nothing here, so no text was compared with plain decoding."
    tokens = sum(line["tokens"] for line in lines)
    beside = f"{many(len(lines), 'generation')}, {tokens} tokens in all, each compared with plain cached decoding"
    if record["differing_tokens"]:
        wrong = sorted({line["method"] for line in lines if line["differing"]})
        return f"**{record['differing_tokens']} tokens DIFFER** ({', '.join(wrong)}): {beside}."
    return f"No token differs: {beside}. Promise: {record['promise'] or 'nothing was generated'}."


def _about(record: dict[str, Any]) -> str:
    models = record["models"]
    # a model's entry has the part of the machine that was in use
    machine = next((its["machine"] for its in models.values()), record["machine"])
    lines = [f"Scale: {record['scale']}. {where({**record, 'machine': machine})}; {record['date'][:10]}."]
    lines += [f"{name}: {its['model_bytes'] / 1e6:.0f} MB of weights.{rehearsed(its)}" for name, its in models.items()]
    lines.append("A figure of the paper and ours stand beside each other; where the paper has none, ours is alone.")
    return " ".join(lines)


def rows(given: Sequence[dict[str, Any]]) -> list[str]:
    """A table in Markdown: labels first. A figure takes two columns if the paper has it in some row, else one."""
    names = list(dict.fromkeys(name for row in given for name in row))
    figures = [name for name in names if any(isinstance(row.get(name), dict) for row in given)]
    labels = [name for name in names if name not in figures]
    columns: list[tuple[str, list[str]]] = [(name, [str(row.get(name, "")) for row in given]) for name in labels]
    for name in figures:
        values = [row.get(name) or {} for row in given]
        ours = "ours" if any(value.get("paper") is not None for value in values) else f"{name}: ours"
        if ours == "ours":
            columns.append((f"{name}: paper", [number(value.get("paper")) for value in values]))
        columns.append((ours, [_with_interval(value) for value in values]))
    return markdown([head for head, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)))


def _with_interval(value: Mapping[str, Any]) -> str:
    said, interval = number(value.get("ours")), value.get("interval")
    return f"{said} ({number(interval[0])} to {number(interval[1])})" if said and interval else said


def number(value: Any) -> str:
    """A number with three digits, or all digits before the point; a count as it is; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if isinstance(value, int) or 1000 <= abs(value) < 1e6 else f"{value:.3g}"

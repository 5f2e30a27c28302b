"""A reproduction's record as Markdown: each table and figure, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.bench.pages import many, markdown, rehearsed, where


def report(record: dict[str, Any], pictures: Mapping[str, str]) -> list[str]:
    """The lines of a report; `pictures` are the names of files beside it, by the figure."""
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
    """Whether every text is plain decoding's, as a sentence."""
    lines = [*record["generations"], *record["watched"]]
    tokens = sum(line["tokens"] for line in lines)
    beside = f"{many(len(lines), 'generation')}, {tokens} tokens in all, each compared with plain cached decoding"
    if record["differing_tokens"]:
        wrong = sorted({line["method"] for line in lines if line["differing"]})
        return f"**{record['differing_tokens']} tokens DIFFER** ({', '.join(wrong)}): {beside}."
    return f"No token differs: {beside}. Promise: {record['promise'] or 'nothing was generated'}."


def _about(record: dict[str, Any]) -> str:
    lines = [f"Scale: {record['scale']}. {where({**record, 'machine': _machine(record)})}; {record['date'][:10]}."]
    lines += [
        f"{name}: {its['model_bytes'] / 1e6:.0f} MB of weights.{rehearsed(its)}"
        for name, its in record["models"].items()
    ]
    lines.append("A figure of the paper and ours stand beside each other; where the paper has none, ours is alone.")
    return " ".join(lines)


def _machine(record: dict[str, Any]) -> dict[str, Any]:
    """The machine, with what was in use of it."""
    its: Mapping[str, Any] = next(iter(record["models"].values()), {"machine": record["machine"]})
    machine: dict[str, Any] = its["machine"]
    return machine


def rows(given: Sequence[dict[str, Any]]) -> list[str]:
    """A table in Markdown: labels first; of a figure that the paper has in some row two columns, of others one."""
    names = list(dict.fromkeys(name for row in given for name in row))
    figures = [name for name in names if any(isinstance(row.get(name), dict) for row in given)]
    both = {name for name in figures if any(_of(row, name, "paper") is not None for row in given)}
    head = [name for name in names if name not in figures]
    labels = list(head)
    for name in figures:
        head += [f"{name}: paper", "ours"] if name in both else [f"{name}: ours"]
    body = []
    for row in given:
        cells = [str(row.get(name, "")) for name in labels]
        for name in figures:
            if name in both:
                cells.append(number(_of(row, name, "paper")))
            cells.append(_ours(row.get(name)))
        body.append(cells)
    return markdown(head, body)


def _of(row: Mapping[str, Any], name: str, whose: str) -> Any:
    value = row.get(name)
    return value.get(whose) if isinstance(value, dict) else None


def _ours(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    said, interval = number(value.get("ours")), value.get("interval")
    return f"{said} ({number(interval[0])} to {number(interval[1])})" if said and interval else said


def number(value: Any) -> str:
    """Three digits, and all that stand before the point; a count as it is; nothing where there is nothing."""
    if value is None:
        return ""
    if isinstance(value, int) or 1000 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}"

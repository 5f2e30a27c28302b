"""The page `/docs`: the routes and their fields, from the server's own description. It needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; }
h2 { margin-top: 2.5rem; font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
"""


def reference(description: Mapping[str, Any]) -> str:
    """The page. description: in the form of OpenAPI 3.1."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(description['info']['title'])}: the interface</title><style>{_STYLE}</style>",
        f"<h1>{escape(description['info']['title'])} {escape(description['info']['version'])}</h1>",
        f"<p>{escape(description['info']['description'])} Fields that only OpenAI or others have are refused by name "
        "if they would change the text. <a href=/openapi.json>openapi.json</a> describes the same for programs. "
        "<a href=/>The page</a> shows a text while it is drafted.</p>",
    ]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(route['summary'])}.</p>")
            content = route.get("requestBody", {}).get("content", {})
            schema = _resolved(content.get("application/json", {}).get("schema"), description)
            if schema:
                parts.append(_table(schema))
    return "".join(parts)


def _table(schema: Mapping[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td>"
        f"<td>{'needed. ' if name in needed else ''}{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table><tr><th>Field<th>Type<th></tr>{''.join(rows)}</table>"


def _kind(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return "object"
    kinds = [_kind(each) for each in field.get("anyOf", ()) if each.get("type") != "null"]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    kind = str(field.get("type", "any"))
    return f"list of {_kind(field.get('items', {}))}" if kind == "array" else kind


def _resolved(schema: Mapping[str, Any] | None, description: Mapping[str, Any]) -> Mapping[str, Any]:
    name = (schema or {}).get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = description.get("components", {}).get("schemas", {}).get(name, {})
    return found

"""Does drafting change output under a grammar? `python -m foretoken.bench.constrained --model MODEL --out FILE`.

Each prompt of a suite is continued under each of some regular expressions and JSON schemas: greedily and sampled,
plainly and with each draft. Every output must match its grammar, checked by Python's own `re` and `json`, and equal the
output of plain decoding under the same grammar, bit for bit. The record has the drafted, accepted and rejected tokens,
and the acceptance of draft models that do not know the grammar. All grammars here are bounded, so an output that was
cut short is a fault too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import track

from foretoken.api.build import load, with_draft
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, changed, drafting, first_turns, suite_for
from foretoken.bench.suites import Suite
from foretoken.protocol.types import Request
from foretoken.results.completion import Completion
from foretoken.sampling.sampler import Sampler
from foretoken.sampling.samplers import Samplers

DRAFTS = ("lookup", "stdlib-1m", "stdlib-1m,lookup", "stdlib-1m:k=3:depth=4")
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class Grammar:
    """What an output must match: a regular expression, or a JSON schema."""

    name: str
    regex: str | None = None
    schema: dict[str, Any] | None = None

    @property
    def setting(self) -> dict[str, Any]:
        """The grammar as an argument of `Model.generate`."""
        return {"regex": self.regex} if self.schema is None else {"json_schema": self.schema}

    def fits(self, text: str) -> bool:
        """Whether a whole text matches."""
        if self.schema is None:
            return re.fullmatch(self.regex or "", text) is not None
        try:
            return fits(json.loads(text), self.schema)
        except ValueError:
            return False


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


_NAME = {"type": "string", "pattern": "^[a-z_]{1,16}$"}
_KIND = {"enum": ["int", "str", "bool", None]}
_COUNT = {"type": "integer", "minimum": -10, "maximum": 4096}

GRAMMARS = (
    Grammar("date", r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    Grammar("version", r"v?[0-9]{1,2}(\.[0-9]{1,3}){1,3}(-(alpha|beta|rc)[0-9]?)?"),
    Grammar("call", r"[a-z_]{1,16}\((self|[a-z]{1,8})(, [a-z]{1,8}=([0-9]{1,4}|None)){0,3}\)"),
    Grammar("sentence", r"[A-ZÄÖÜ][a-zäöüß]{1,12}( [a-zäöüß]{1,12}){2,12}[.!?]"),
    Grammar("method", r"def [a-z_]{2,20}\(self(, [a-z]{1,10}){0,3}\):\n    return self\.[a-z_]{2,20}(\(\))?\n"),
    Grammar("record", schema=_object(name=_NAME, count=_COUNT, flag={"type": "boolean"})),
    Grammar("text", schema=_object(title={"type": "string", "minLength": 4, "maxLength": 40}, done={"const": True})),
    Grammar("list", schema={"type": "array", "items": {"anyOf": [_COUNT, {"type": "null"}]}, "maxItems": 12}),
    Grammar("choice", schema={"enum": ["self", "cls", "args", {"kwargs": [1, 2]}]}),
    Grammar(
        "signature",
        schema=_object(
            function=_NAME,
            parameters={"type": "array", "items": _object(name=_NAME, type=_KIND), "minItems": 1, "maxItems": 3},
            returns=_KIND,
        ),
    ),
)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value matches a schema, by the keywords that are used here; any other keyword is a KeyError."""
    return all(_KEYWORDS[keyword](value, wanted, schema) for keyword, wanted in schema.items())


_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "null": type(None)}
_KEYWORDS: dict[str, Callable[[Any, Any, dict[str, Any]], bool]] = {
    "type": lambda v, kind, _: isinstance(v, _TYPES[kind]) and (kind == "boolean" or not isinstance(v, bool)),
    "properties": lambda v, known, _: all(fits(v[name], schema) for name, schema in known.items() if name in v),
    "required": lambda v, names, _: all(name in v for name in names),
    "additionalProperties": lambda v, _, schema: set(v) <= set(schema["properties"]),
    "items": lambda v, schema, _: all(fits(item, schema) for item in v),
    "minItems": lambda v, count, _: len(v) >= count,
    "maxItems": lambda v, count, _: len(v) <= count,
    "minLength": lambda v, count, _: len(v) >= count,
    "maxLength": lambda v, count, _: len(v) <= count,
    "minimum": lambda v, least, _: v >= least,
    "maximum": lambda v, most, _: v <= most,
    "pattern": lambda v, pattern, _: re.search(pattern, v) is not None,
    "const": lambda v, wanted, _: v == wanted and type(v) is type(wanted),
    "enum": lambda v, values, _: any(v == wanted and type(v) is type(wanted) for wanted in values),
    "anyOf": lambda v, schemas, _: any(fits(v, schema) for schema in schemas),
}


class Untold(Samplers):
    """Makes samplers without the grammar, for a draft that guesses as if the text were free."""

    def target(self, request: Request) -> Sampler:
        """The target's sampler without the grammar."""
        return super().target(replace(request, sampling=replace(request.sampling, constraint=None)))


Asked = tuple[tuple[int, ...], Grammar, dict[str, Any]]  # a prompt, the grammar of its continuation, and the settings


def _row(asked: Sequence[Asked], plain: Sequence[Completion], done: Sequence[Completion]) -> dict[str, Any]:
    drafted = drafting(done)
    rate = drafted["accepted_tokens"] / drafted["draft_tokens"] if drafted["draft_tokens"] else None
    return {
        "outputs": len(done),
        "tokens": sum(len(a.tokens) for a in done),
        "outputs_that_do_not_match": sum(not g.fits(a.text) for (_, g, _), a in zip(asked, done, strict=True)),
        "outputs_that_were_cut_short": sum(a.finish_reason != "stop" for a in done),
        **changed("outputs", plain, done),
        **drafted,
        "draft_acceptance_rate": None if rate is None else round(rate, 4),
    }


def compare(model: str, suite: Suite, drafts: Sequence[str], max_new_tokens: int) -> list[dict[str, Any]]:
    """One row per draft and temperature, plain decoding first."""
    plain_model = load(model, draft="none")
    prompts = list(enumerate(first_turns(suite, plain_model)))
    untold = [draft for draft in drafts if draft != "lookup"]
    ways = [("none", True, plain_model), *((draft, True, with_draft(plain_model, draft)) for draft in drafts)]
    ways += [(draft, False, with_draft(plain_model, draft, samplers=Untold(None))) for draft in untold]
    rows = []
    for temperature in TEMPERATURES:
        how = {"max_new_tokens": max_new_tokens, "temperature": temperature, "hash_logits": True}
        asked: list[Asked] = [(p, g, {**how, **g.setting, "seed": at}) for at, p in prompts for g in GRAMMARS]
        plain: list[Completion] = []
        for draft, told, loaded in ways:
            name = f"{draft}, {temperature:g}" + ", not told" * (not told)
            shown = track(asked, name, disable=not sys.stderr.isatty())
            done = [loaded.generate(prompt, **settings) for prompt, _, settings in shown]
            plain = plain or done
            about = {"draft": draft, "draft_is_told_the_grammar": told, "temperature": temperature}
            rows.append({**about, **_row(asked, plain, done)})
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Does drafting change what a grammar allows?")
    add_model_and_suite(parser, new_tokens=400, each="output")
    parser.add_argument("--draft", action="append", help=f"may come again ({'; '.join(DRAFTS)})")
    rows = carry_out("constrained", parser, _measure)["results"]
    faults = [name for name in rows[0] if name.startswith("outputs_")]
    if any(row[name] for row in rows for name in faults):
        raise SystemExit("constrained: an output does not match, was cut short, or drafting changed it")


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    suite = suite_for(args.model, args.suite)
    return {
        **asked_of(args.model, suite),
        "grammars": {grammar.name: grammar.regex or grammar.schema for grammar in GRAMMARS},
        "results": compare(args.model, suite, args.draft or DRAFTS, args.max_new_tokens),
    }


if __name__ == "__main__":
    main()

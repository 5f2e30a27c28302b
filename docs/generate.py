"""Writes the documents that follow from the code: `python docs/generate.py`; `--check` only says if they are stale."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import foretoken.errors
from foretoken.bench import figures
from foretoken.cli.app import app
from foretoken.drafters.table import CHAIN, CHECKPOINT_OPTIONS, COPY_OPTIONS, DRAFTERS, OF_COPIES, TRAINED, TREE
from foretoken.formats import FORMATS

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _default(option: Any) -> str:
    """An option's default; of what is left open, in words."""
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.default
    if isinstance(default, list):
        default = ", ".join(map(str, default)) or None
    if isinstance(default, bool) and option.opts and option.secondary_opts:  # which of its two names says what is usual
        return f"`{(option.opts if default else option.secondary_opts)[0]}`"
    return "" if default is None or isinstance(default, bool) else f"`{default}`"


def _drafts() -> Iterator[str]:
    """What `--draft` takes."""
    yield from (
        "",
        "## Drafts",
        "",
        "`--draft` (and `draft=` in Python) takes the name of a draft, perhaps with options: `NAME:option=value:...`. "
        "Several drafts with commas between them are a ladder. The first one drafts for the model; each of the others "
        "drafts for the one to its left, which checks it. [drafters.md](drafters.md) says how they work.",
        "",
    )
    yield from ("| name | what it is | options |", "|---|---|---|")
    rows: list[tuple[str, str, Mapping[str, Any]]] = [
        *((f"`{name}`", entry.summary, entry.options) for name, entry in DRAFTERS.items()),
        (
            ", ".join(f"`{name}`" for name in FORMATS),
            "the model's own copy in a low-bit format drafts a chain, on the model's keys and values",
            {**CHAIN.options, **COPY_OPTIONS},
        ),
        ("a checkpoint", CHAIN.summary, {**CHAIN.options, **CHECKPOINT_OPTIONS}),
        (
            "the folder of a [trained drafter](drafters.md#trained-drafters), or `moa`; or the folder or hub id of one "
            "[that others have trained](drafters.md#drafters-that-others-have-trained)",
            "a small network that was trained for the model drafts a chain; with an option of a tree, a tree",
            {**TRAINED.options, **{n: kind for n, kind in CHECKPOINT_OPTIONS.items() if n not in OF_COPIES}},
        ),
        ("a copy, a checkpoint or a trained drafter, with one of these options", TREE.summary, TREE.options),
    ]
    for name, summary, its_options in rows:
        options = ", ".join(f"`{option}`{_choices(kind)}" for option, kind in its_options.items())
        yield f"| {name} | {summary} | {options} |"


def _choices(kind: Any) -> str:
    return f" ({', '.join(kind)})" if isinstance(kind, tuple) else ""


def command_line() -> Iterator[str]:
    """docs/cli.md."""
    yield "# The command line"
    yield ""
    yield "<!-- written by docs/generate.py as far as the mark below -->"
    for name, command in _commands(typer.main.get_command(app)):
        yield from ("", f"## foretoken {name}", "", " ".join((command.help or "").split()), "")
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        named = [a.name.upper() if a.required else f"[{a.name.upper()}]" for a in arguments]
        usage = " ".join(["foretoken", name, *(["[OPTIONS]"] if options else []), *named])
        yield from ("```", usage, "```")
        if arguments:
            yield from ("", "| | default | |", "|---|---|---|")
        for argument in arguments:
            yield f"| `{argument.name.upper()}` | | {argument.help} |"
        panels: dict[str, list[Any]] = {}
        for option in options:
            panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(option)
        for panel, its_options in panels.items():
            yield from ("", f"| {panel} | default | |", "|---|---|---|")
            for option in its_options:
                names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
                yield f"| {names} | {_default(option)} | {option.help} |"
    yield from _drafts()
    yield from ("", END_OF_COMMANDS)
    _, _, by_hand = (DOCS / "cli.md").read_text(encoding="utf-8").partition(END_OF_COMMANDS)
    yield by_hand.removeprefix("\n").removesuffix("\n")


def _described(name: str) -> Iterator[tuple[Any, str]]:
    """The fields of a dataclass, each with the comment above it."""
    source = inspect.getsource(getattr(foretoken, name))
    for field in dataclasses.fields(getattr(foretoken, name)):
        said = re.search(rf"((?:^    # .+\n)+)    {field.name}: ", source, re.MULTILINE)
        if said is None:
            raise SystemExit(f"{name}.{field.name} has no comment above it; say there what it is")
        meaning = " ".join(line.strip().removeprefix("# ") for line in said[1].splitlines())
        yield field, meaning.replace("|", r"\|")


def _settings(name: str) -> Iterator[str]:
    """A table of the fields of settings."""
    yield from ("| setting | default | |", "|---|---|---|")
    for field, meaning in _described(name):
        yield f"| `{field.name}` | `{field.default!r}` | {meaning} |"


def _fields(name: str) -> Iterator[str]:
    """The docstring of a result, and its fields with their types and meanings."""
    yield from inspect.cleandoc(getattr(foretoken, name).__doc__).splitlines()
    yield from ("", "| field | type | |", "|---|---|---|")
    for field, meaning in _described(name):
        kind = str(field.type).replace("|", r"\|")
        yield f"| `{field.name}` | {kind} | {meaning} |"


def _errors() -> Iterator[str]:
    """The tree of errors, as errors.py draws it."""
    yield from (foretoken.errors.__doc__ or "").split("\n\n")[1].splitlines()


def python_interface() -> Iterator[str]:
    """docs/python.md: written by hand, but for what stands between its marks."""
    makers = {"settings": _settings, "fields": _fields, "errors": _errors}
    within = False
    for line in (DOCS / "python.md").read_text(encoding="utf-8").splitlines():
        if line == "<!-- end -->":
            within = False
        if within:
            continue
        yield line
        mark = re.fullmatch(r"<!-- (\w+)(?:: (\w+))? -->", line)
        if mark is not None and mark[1] in makers:
            within = True
            yield from ("", *makers[mark[1]](*filter(None, [mark[2]])), "")


def with_figures(page: str, shown: list[str]) -> Iterator[str]:
    """A page with figures between its two marks."""
    before, _, rest = (ROOT / page).read_text(encoding="utf-8").partition(FIGURES)
    _, end, after = rest.partition(END_OF_FIGURES)
    if not end:
        raise SystemExit(f"{page} has no place for figures: {FIGURES} and {END_OF_FIGURES}")
    yield f"{before}{FIGURES}"
    yield from ("", *shown, "")
    yield f"{END_OF_FIGURES}{after}".removesuffix("\n")


END_OF_COMMANDS = "<!-- end of what docs/generate.py writes -->"
FIGURES, END_OF_FIGURES = "<!-- figures: written by docs/generate.py -->", "<!-- end of figures -->"
DOCUMENTS: dict[str, Callable[[], Iterator[str]]] = {
    "docs/cli.md": command_line,
    "docs/python.md": python_interface,
    "README.md": lambda: with_figures("README.md", figures.table(ROOT / "results", "results/")),
    "results/README.md": lambda: with_figures("results/README.md", figures.table(ROOT / "results", "")),
    "docs/peers.md": lambda: with_figures("docs/peers.md", figures.beside_others(ROOT / "results", "../results/")),
}


def main() -> None:
    stale = []
    for name, lines in DOCUMENTS.items():
        path, text = ROOT / name, "\n".join(lines()) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv:
            stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if "--check" not in sys.argv:  # the same numbers make the same picture, where matplotlib is the same
        figures.draw_beside_others(ROOT / "results", DOCS / "peers.png")
    if stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run `make docs` and commit the result")


if __name__ == "__main__":
    main()

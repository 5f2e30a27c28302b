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
from foretoken.drafters.table import CHAIN, CHECKPOINT_OPTIONS, COPY_OPTIONS, DRAFTERS, TREE
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
    return "" if default is None or default is False else f"`{default}`"


def _drafts() -> Iterator[str]:
    """What `--draft` takes."""
    yield from (
        "",
        "## Drafts",
        "",
        "What `--draft` (and `draft=` in Python) takes: a name, perhaps with options, `NAME:option=value:...`; or "
        "several with commas between them, a ladder, nearest to the model first: each is sped up by the one behind "
        "it, and checks what that one drafts. How they work is said in [drafters.md](drafters.md).",
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
        ("a copy or a checkpoint, with one of these options", TREE.summary, TREE.options),
    ]
    for name, summary, its_options in rows:
        options = ", ".join(f"`{option}`{_choices(kind)}" for option, kind in its_options.items())
        yield f"| {name} | {summary} | {options} |"
    yield from (
        "",
        "`group` is how many inputs share a scale and a zero point, in int4, int3 and int2: 32, 64 or 128, otherwise "
        "64. `inputs` is what rows are rounded to before they meet low-bit weights, otherwise int8. "
        "`own-cache` takes no value: the copy then reads the prompt itself, into keys and values of its own. "
        "`own-layers=0+1` leaves those layers, counted from 0, as they are in the model: they cost no memory more and "
        "round nothing, and are read as slowly as in the model. `format` "
        "makes a checkpoint that drafts a low-bit one at load; one that is low-bit already has `inputs`, and if it was "
        "made of the model, it is a copy like any other, with `own-cache`. Copies stand before other checkpoints.",
        "",
        "`tokens` is the most draft tokens a round, and of a tree `nodes` is (num_speculative_tokens, for the first "
        "level); a tree has at most 4096 nodes, and `k` times `depth` is no more. Examples: `lookup`; "
        "`lookup:min_match=3:tokens=6`; `stdlib-1m:tokens=4`, a checkpoint that drafts a chain; `stdlib-1m,lookup`, "
        "the same, sped up by lookup; `PATH:k=4:depth=6`, a tree; `PATH:k=4:depth=6:shape=best-first:nodes=16`; "
        "`mxfp4`, the model's copy; `mxfp4,lookup`; `int4:group=32,int2,lookup`, two copies and lookup; "
        "`int8:k=2:depth=3:own-cache`; `PATH:format=int4`.",
    )


def _choices(kind: Any) -> str:
    return f" ({', '.join(kind)})" if isinstance(kind, tuple) else ""


def command_line() -> Iterator[str]:
    """docs/cli.md."""
    yield "# The command line"
    yield ""
    yield "<!-- written by docs/generate.py; do not edit -->"
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
                names = ", ".join(f"`{name}`" for name in option.opts or option.secondary_opts)
                yield f"| {names} | {_default(option)} | {option.help} |"
    yield from _drafts()
    yield from (
        "",
        "## Low-bit copies",
        "",
        "A draft that is named by a format, such as `int4`, is made of the model's weights at every load; of a large "
        "model that takes a while, and rounding is all there is time for. `foretoken quantize` does it once, and "
        "`--quantizer hqq` does it better: without OUT it writes `MODEL-int4-g64` beside the folder MODEL, where "
        "`--draft int4` looks for it. A copy says whose it is: if the model's weights have changed since, a line on "
        "standard error says so, and they are rounded as if there was none. Another line says of every low-bit draft "
        "how large it is, and where it was read or that it was cast.",
        "",
        "A copy is a checkpoint: `--model MODEL-int4-g64` generates with it, as exactly as with any other model, and "
        "`--draft PATH` drafts with it for another. It holds codes and scales of every linear layer and of the head, "
        "and the rest as it was; the tokenizer's files come along. It is there when it is whole and not before: "
        "whatever ends the command, nothing is left under its name, and what a killed one leaves under another "
        "(`.foretoken-*.partial`) the next one removes.",
        "",
        "## Choosing tokens",
        "",
        "Without `--temperature` decoding is greedy. With it tokens are drawn, and no draft changes any of "
        "them: the noise is a function of the seed and of the place in the text "
        "([lossless.md](lossless.md#sampling-the-same-noise-with-drafting-and-without)). The summary tells the seed, "
        "and the same model, prompt and settings with `--seed` give the same text again, with any draft. In this "
        "order: penalties, `--logit-bias`, the form of the output, temperature, `--top-k`, `--top-p`, `--min-p`. "
        "`--rule rejection` is the classical rule instead: the same distribution, but another text with another "
        "draft, so it can neither be audited nor recorded.",
        "",
        "`--n` completions share the passes of the model. Each is printed under a line `== 1 of 3`, when all are "
        "there; its summary, on standard error, begins with `1 of 3`. `--json` prints one object a "
        "completion, each on a line of its own: the same object whatever `--n` is, so that who reads lines reads both.",
        "",
        "`--stop` takes its text as it is, and is looked for in the output only. The text ends before the stop string "
        "that is complete first, wherever tokens divide it, and nothing that is cut was printed before. The tokens "
        "(`--json`) end with the one that completed it.",
        "",
        "## Conversations",
        "",
        "A model that was tuned for conversations answers a prompt that its chat template has written. `foretoken "
        "generate --chat` applies the template to one prompt, as a user's message, behind the message of `--system`. "
        "Without `--chat` the model goes on with the prompt as it is; a line on standard error says so, where there is "
        "a template and the prompt does not begin as it does. With `--json` there is no such line.",
        "",
        "`foretoken chat` needs a checkpoint with a chat template; `--plain` needs none: what you type is put to the "
        "text, as a line of its own, and the model goes on from there. A turn is the generation of the whole "
        "conversation, token for token; the model reads only what it has not read in an earlier turn (`/stats` says "
        "how much it had). A reply that Ctrl-C has ended stays in the conversation as far as it came; a second Ctrl-C, "
        "before the model has answered to the first, ends the process.",
        "",
        "On a terminal, lines that are pasted together are one message, and a backslash at the end of a line continues "
        "it. `exit` and `quit` leave. In a pipe or a `--prompt-file` each line is a message, as it is. Commands are "
        "obeyed in both: `/regenerate` takes the last reply back and generates it again, with a new seed (greedily it "
        "would be the same, unless it was interrupted); `/system TEXT` begins a new conversation with that system "
        "message, `/reset` with the one that there was; `/save FILE` writes the conversation as a list of JSON "
        "messages, and replaces a saved conversation, no other file; `/stats`, `/help` and `/exit`. When the context "
        "is full, a shorter text, `/reset` or `/system` goes on.",
        "",
        "`--json` prints the object of `generate --json` for each reply; an interrupted one has the `finish_reason` "
        "`cancelled`. `--stats` prints the table after each reply. `--audit` decodes each whole reply again. `--record "
        "FILE` writes, at the end, the record of the last whole reply: its prompt is the whole conversation before it, "
        "so `foretoken verify` proves the reply by itself. It needs the promise `exact`.",
        "",
        "## Environment and exit codes",
        "",
        "Environment: `FORETOKEN_ISA` forces an instruction set (generic, avx2, avxvnni, avx512, "
        "avx512vnni, avx512bf16, amx: same output, other speed); `FORETOKEN_NATIVE` is auto, off (everything in "
        "PyTorch, whose output is another) or required.",
        "",
        "Exit codes: 0; 1 if `demo`, `verify` or `--audit` finds a difference; 2 for what cannot be used, with the "
        "reason in one line on standard error; 141 if the output's reader went away. Ctrl-C ends a command at once, "
        "without a message, as its signal does (shells say 130): text that was printed stays, and no file is left half "
        "written; a record or a JSON object that was not complete is not there.",
        "",
        "## Audits and records",
        "",
        "`--audit` decodes the same prompt once more without drafting, in the same process, and compares the tokens: a "
        "line on standard error says `audit: identical`, or at which token the two part and by how much the logits do. "
        "It costs the time of plain decoding. What was sampled is sampled again, with the same seeded noise.",
        "",
        "`--record FILE` writes the prompt, the settings, the seed, the tokens, a SHA-256 of their logits and one of "
        "each file of the model that decides something. `foretoken verify FILE` generates again and compares all of "
        "it, bit for bit: later, with another draft, with another number of threads, or on another machine. Of a "
        "prompt that a chat template wrote, a record holds the tokens. A record "
        "of the native engine needs the native engine and the same architecture (x86-64, say), not the same "
        "instruction set; one of PyTorch needs `FORETOKEN_NATIVE=off`, and the same PyTorch, threads and processor "
        "if its bits are to be equal. A model that moved is named with `--model`.",
        "",
        "With `--json` neither line is printed. The audit is `audit` in the object (null without `--audit`): "
        "`identical`, `compared_tokens`, and where the two part: `position`, `token` and `plain_token`, their `logit` "
        "and `plain_logit`, and the `gap` between these; the exit code is 1 then, as ever. Of the record there is "
        "nothing in the object: it is in its file.",
        "",
        "A prompt that begins with a dash comes after `--`: `foretoken generate -- '-x = 3'`.",
    )


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

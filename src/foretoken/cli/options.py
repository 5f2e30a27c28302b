"""The options that commands share: one for each setting of loading and of generating."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from foretoken.cli import common
from foretoken.common.files import read_bytes
from foretoken.drafters.table import DRAFTERS
from foretoken.errors import SettingError, quoted
from foretoken.formats import FORMATS
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

_OTHERS = "Options"
_LOADING, _LENGTH, _SAMPLING, _FORM = "Model and draft", "Length and end", "Sampling", "Form of the output"

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="A folder, a hub id (owner/name) or an embedded model.", rich_help_panel=_LOADING
    ),
]
Prompts = Annotated[
    str,
    typer.Option(
        help="A suite's name, or a file of prompts (.txt, .jsonl, Spec-Bench's question.jsonl). auto: everyday-20; "
        "but heldout-20 for models with the embedded models' tokenizer, if Foretoken runs on CPython 3.11.7. "
        "docs/suites.md describes both."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Threads of arithmetic.", show_default="as many as PyTorch takes"),
]
Plot = Annotated[Path | None, typer.Option(help="Draw a picture into a file (.png, .svg).")]


def _option(kind: Any, panel: str, help: str, *names: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help, rich_help_panel=panel, **more)]


LOAD: dict[str, Any] = {
    "draft": _option(
        list[str],
        _LOADING,
        f"What proposes tokens: {'; '.join(DRAFTERS)}; a low-bit copy of the model ({', '.join(FORMATS)}); a "
        "checkpoint (folder, hub id, stdlib-1m); or a drafter that was trained for the model (folder or hub "
        "id, moa). lookup searches the text so far. Options follow a colon: lookup:min_match=3. Commas make a "
        "ladder: with mxfp4,lookup, the copy drafts for the model, and lookup for the copy. auto chooses for you: "
        "subspec,lookup if layers are read from the disk; else what `foretoken recommend` found best for this model on "
        "this machine; else a good guess. docs/drafters.md describes all drafts, and how auto chooses.",
        metavar="<str>",
    ),
    "num_speculative_tokens": _option(
        int | None,
        _LOADING,
        "Draft at most this many tokens in every round. In a ladder this holds for the draft that is named first; "
        "--pace chooses for the others.",
        show_default="what --pace chooses",
    ),
    "rule": _option(
        str,
        _LOADING,
        "How drafts are judged when sampling. walk: every draft gives the same text. rejection: each "
        "draft gives another text from the same distribution.",
    ),
    "pace": _option(
        str,
        _LOADING,
        "How many tokens are drafted in a round. fixed: as many as you set, or the draft's default. auto: as "
        "many as give the most tokens a second, which is learned while generating; if the draft can be a chain or a "
        "tree, auto chooses the faster form, too. replay:FILE: the choices that the record FILE holds, round by "
        "round. Under the promise exact, the pace never changes the output.",
    ),
    "dtype": _option(str, _LOADING, "auto, bfloat16 (bf16), float16 (fp16) or float32 (fp32)."),
    "device": _option(str, _LOADING, "cpu or cuda."),
    "promise": _option(
        str,
        _LOADING,
        "exact: every token and every logit is as without a draft. algorithmic: the same method, but rounding may "
        "differ. auto: exact where possible, which is on the CPU and on most GPUs.",
    ),
    "weights": _option(
        str,
        _LOADING,
        "Where the weights are kept. mapped: in their files. copied: in memory, in huge pages. auto: copied if that is "
        "faster and leaves 2 GiB free.",
    ),
    "memory": _option(
        str | None,
        _LOADING,
        "The most memory that the process may use, such as 8GiB. Layers for which there is no room are read from the "
        "disk in each pass. With --device cuda: the most of the GPU's memory; the other layers are copied from the "
        "machine's memory.",
        show_default="no bound",
    ),
    "context": _option(
        int | None,
        _LOADING,
        "The most tokens of one text, prompt and output together.",
        show_default="the model's; 1024 with --memory",
    ),
    "stream_layers": _option(
        str | None,
        _LOADING,
        "Read this many layers (or all) from the disk in each pass, even if there is memory for them.",
        show_default="none",
    ),
    "disk_bandwidth": _option(
        str | None,
        _LOADING,
        "Read no faster than this from the disk, such as 1.4GB/s. `foretoken plan` takes it as the disk's speed.",
        show_default="as fast as it can",
    ),
    "verify_weights": _option(
        bool,
        _LOADING,
        "Check all weights that come from the disk. Each file's hash is compared with the hub's, if there is one. "
        "Layers that are read in each pass are compared with what was read when the model was loaded.",
        "--verify-weights",
    ),
    "cache": _option(
        bool,
        _LOADING,
        "Decode without a cache of keys and values: each pass reads the whole text again. If the promise is exact, the "
        "output is the same.",
        " /--no-cache",
        show_default=False,
    ),
    "threads": _option(
        int | None, _LOADING, "Threads for the arithmetic.", "--threads", "-t", show_default="as many as PyTorch takes"
    ),
    "revision": _option(
        str | None, _LOADING, "Branch, tag or commit of a hub model.", show_default="the hub's main branch"
    ),
}
_FAR = "A model on a host"
Remote = Annotated[
    str | None,
    typer.Option(
        help="Where `foretoken host` runs: ws://HOST:PORT or wss://HOST:PORT. The model is there, and what drafts is "
        "here: lookup (which auto takes), a small model or a trained drafter. Options for the model itself are then "
        "the host's.",
        metavar="URL",
        show_default="the model is here",
        rich_help_panel=_FAR,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="With --remote: a file with the token that the host asks for.",
        show_default="no token",
        rich_help_panel=_FAR,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        help="With --remote: a PEM file with the certificate of whoever signed the host's, or with the host's own, "
        "if it signed that itself.",
        show_default="as the system trusts",
        rich_help_panel=_FAR,
    ),
]
Offline = Annotated[
    str,
    typer.Option(
        help="With --remote: what happens when the host is gone for good. stop: the text ends. keep: the draft goes on "
        "alone, if it is a model, and nobody checks what it writes. The exit code is 1 either way. hold: the text "
        "waits for the host, which checks what was written meanwhile, and is finished.",
        rich_help_panel=_FAR,
    ),
]
_VERBOSE = _option(
    bool,
    _OTHERS,
    "Print more to standard error, such as which low-bit copies were found beside the model's folder.",
    "--verbose",
    "-v",
)
GENERATE: dict[str, Any] = {
    "max_new_tokens": _option(
        int, _LENGTH, "Stop after this many tokens, or where the model's context is full.", "--max-new-tokens", "-n"
    ),
    "ignore_eos": _option(bool, _LENGTH, "Continue after an end token.", "--ignore-eos"),
    "stop": _option(
        list[str] | None,
        _LENGTH,
        r"Stop at this text and leave it out; can be given several times. In a shell, $'\n' is a line break.",
        metavar="TEXT",
        show_default="none",
    ),
    "temperature": _option(float, _SAMPLING, "0: greedy. 1: the model's own probabilities. Higher: more varied."),
    "top_k": _option(int, _SAMPLING, "Sample from this many of the likeliest tokens; 0: from all."),
    "top_p": _option(float, _SAMPLING, "Sample from the fewest tokens whose probabilities sum to at least this."),
    "min_p": _option(
        float, _SAMPLING, "Sample from tokens with at least this share of the likeliest token's probability."
    ),
    "repetition_penalty": _option(float, _SAMPLING, "Above 1: tokens of the prompt and the output get less likely."),
    "presence_penalty": _option(float, _SAMPLING, "Above 0: tokens of the output get less likely."),
    "frequency_penalty": _option(
        float, _SAMPLING, "Above 0: tokens get less likely, the more often they are in the output."
    ),
    "logit_bias": _option(
        list[str] | None,
        _SAMPLING,
        "Add a number to the logit of a token id, such as 198=-5; can be given several times.",
        metavar="ID=NUMBER",
        show_default="none",
    ),
    "seed": _option(
        int | None,
        _SAMPLING,
        "The seed of the random numbers. The summary shows which one was used (in a conversation: /stats).",
        show_default="drawn",
    ),
    "n": _option(int, _SAMPLING, "How many completions, each with random numbers of its own."),
    "regex": _option(
        str | None, _FORM, "The output matches this regular expression, from beginning to end.", show_default="none"
    ),
    "json_schema": _option(
        str | None,
        _FORM,
        "The output is JSON of this schema: a file's name, or the schema itself.",
        metavar="FILE_OR_TEXT",
        show_default="none",
    ),
    "grammar": _option(
        str | None,
        _FORM,
        "The output follows the grammar in this file, which is in llguidance's Lark syntax.",
        metavar="FILE",
        show_default="none",
    ),
    "private_suffix": _option(
        str | None,
        _FAR,
        "With --remote: text behind the prompt that the host never sees, nor anything that follows. The draft writes "
        "the answer alone, and must be a model.",
        metavar="TEXT",
        show_default="none",
    ),
    "logprobs": _option(
        int | None,
        "Options",
        "Print the log probability of each output token, and of the N likeliest tokens at its position, where "
        "N is the number that you give.",
        show_default="no log probabilities",
    ),
}


def with_settings(
    *, without: tuple[str, ...] = (), generating: bool = True, **defaults: Any
) -> Callable[[Callable[..., None]], Any]:
    """For a command that takes `loading` and, if `generating`, that too, which are made from these options before it is
    called.

    without: settings that make no sense for it. defaults: where they are others than the settings' own.
    """
    every = {**LOAD, **(GENERATE if generating else {})}
    options = {name: option for name, option in every.items() if name not in without}
    usual = {**vars(GenerateSettings()), **vars(LoadSettings()), "stop": None, "verbose": False, **defaults}
    usual["draft"] = [usual["draft"]]

    def decorate(command: Callable[..., None]) -> Any:
        def run(verbose: bool, **given: Any) -> None:
            common.details(verbose)
            chosen = {name: given.pop(name) for name in options}
            if "draft" in chosen:
                chosen["draft"] = _one_draft(chosen["draft"])
            loading = LoadSettings.of({name: chosen[name] for name in LOAD if name in chosen})
            if generating:
                given["generating"] = _generating({name: chosen[name] for name in GENERATE if name in chosen})
            command(loading=loading, **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in own if p.name not in ("loading", "generating")]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual[name], annotation=option)
            for name, option in options.items()
        ]
        parameters.append(
            inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_VERBOSE)
        )
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        return run

    return decorate


def without_effect(generating: GenerateSettings, loading: LoadSettings) -> list[str]:
    """The options that change nothing because decoding is greedy."""
    if generating.temperature > 0:
        return []
    usual, names = GenerateSettings(), ("top_k", "top_p", "min_p", "seed", "n")
    given = [name for name in names if getattr(generating, name) != getattr(usual, name)]
    rule = ["--rule"] if loading.rule != LoadSettings().rule else []
    return [*(f"--{name.replace('_', '-')}" for name in given), *rule]


def _one_draft(given: Sequence[str]) -> str:
    if len(given) > 1:
        raise SettingError(
            f"--draft came {len(given)} times, expected once; for a draft that others speed up, join them with commas, "
            "such as mxfp4,lookup"
        )
    return given[0]


def _generating(chosen: dict[str, Any]) -> GenerateSettings:
    schema, grammar = chosen.get("json_schema"), chosen.get("grammar")
    return GenerateSettings.of(
        {
            **chosen,
            "stop": tuple(chosen["stop"] or ()),
            "logit_bias": _bias(chosen["logit_bias"] or []),
            "json_schema": None if schema is None else _schema(schema),
            "grammar": None if grammar is None else _read(grammar, "grammar", "name a file"),
        }
    )


def _bias(texts: list[str]) -> dict[int, float] | None:
    bias: dict[int, float] = {}
    for text in texts:
        given = re.fullmatch(r"([0-9]{1,10})=([-+.0-9e]{1,30})", text)
        try:
            token, number = (int(given[1]), float(given[2])) if given else (-1, 0.0)
        except ValueError:
            given = None
        if not given:
            raise SettingError(f"--logit-bias is {quoted(text)}, expected ID=NUMBER, such as 198=-5")
        if token in bias:
            raise SettingError(f"--logit-bias names token {token} twice; name it once")
        bias[token] = number
    return bias or None


def _schema(given: str) -> str:
    if given.lstrip()[:1] == "{":
        return given
    return _read(given, "schema", "name a file, or give a schema, which begins with {")


def _read(file: str, what: str, expected: str) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"the {what} in {file} is not UTF-8 (byte {error.start}); expected text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"the {what} {quoted(file, 80)} cannot be read ({reason}); {expected}") from None

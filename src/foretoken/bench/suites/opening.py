"""Finds the prompts of the suite that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from foretoken.bench.suites import heldout
from foretoken.bench.suites.datasets import download, local_files, prompts_of
from foretoken.bench.suites.files import EXPECTED, json_prompts, text_prompts, told
from foretoken.bench.suites.table import DATA_SETS
from foretoken.bench.suites.types import Prompt, Suite, digest, first
from foretoken.errors import InputError, nearest, quoted
from foretoken.settings.generate import GenerateSettings
from foretoken.text.tokenizer import Tokenizer

AUTO = "auto"
HELD_OUT = "heldout-20"
EVERYDAY = "everyday-20"  # what people ask at home and at work, written for this suite: for every model
_EVERYDAY = Path(__file__).with_name("everyday.jsonl")
_NAMES = (AUTO, EVERYDAY, *heldout.BUILT_IN, *DATA_SETS)
SPEC_BENCH_TOKENS = 1024  # per turn, unless its scripts are told otherwise


def open_suite(spec: str, tokenizer: Tokenizer | None, *, count: int | None = None) -> Suite:
    """The prompts that a name or a path stands for. Raises InputError.

    spec: a built-in suite ("everyday-20", "heldout-20"); "auto", heldout-20 if this tokenizer and this machine's
    standard library are those that it was cut with, else everyday-20; a data set ("gsm8k"), from the hub;
    NAME=FOLDER_OR_FILE, the same data set from the user's files; or a path: question.jsonl of Spec-Bench, JSON lines, a
    text, or a folder of texts.
    count: the number of prompts; with several categories, the first ones of each, as evenly as possible.
    tokenizer: the model's, for prompts that are cut to a number of tokens.
    """
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise InputError(f"the number of prompts is {count!r:.40}, expected a whole number from 1 on")
    name, equals, place = spec.partition("=")
    if spec == AUTO:
        return _first_that_fits(tokenizer, count)
    if spec == EVERYDAY:
        prompts, _ = json_prompts(_EVERYDAY)
        return _suite(spec, prompts, count, GenerateSettings.max_new_tokens, licence="Apache-2.0")
    if spec in heldout.BUILT_IN:
        return _suite(spec, heldout.heldout(spec, tokenizer), count, heldout.MAX_NEW_TOKENS, licence=heldout.LICENCE)
    if name not in DATA_SETS:
        return _from_path(spec, count)
    if equals and not place:
        raise InputError(f"{spec!r} names no place; expected {name}=FOLDER_OR_FILE, or {name} for the hub's")
    data_set, path = DATA_SETS[name], Path(os.path.expanduser(place))
    files = local_files(path, data_set) if equals else download(data_set)
    prompts = prompts_of(data_set, files, tokenizer, count)
    source = told(path) if equals else data_set.hub
    return _suite(name, prompts, count, data_set.max_new_tokens, source, data_set.licence)


def _first_that_fits(tokenizer: Tokenizer | None, count: int | None) -> Suite:
    """heldout-20, for the embedded models and rehearsals of them, or everyday-20, for every model with a tokenizer."""
    try:
        return open_suite(HELD_OUT, tokenizer, count=count)
    except InputError:
        return open_suite(EVERYDAY, tokenizer, count=count)


def _from_path(spec: str, count: int | None) -> Suite:
    if not spec:
        raise InputError(f"no suite is named; {EXPECTED}, or a name{nearest(spec, _NAMES)}")
    path = Path(os.path.expanduser(spec))  # unchanged if the user after ~ does not exist
    name, most = told(path), GenerateSettings.max_new_tokens
    if os.path.isdir(path) or (os.path.isfile(path) and path.suffix == ".txt"):
        return _suite(name, text_prompts(path), count, most, name)
    if os.path.isfile(path) and path.suffix == ".jsonl":
        prompts, is_spec_bench = json_prompts(path)
        if is_spec_bench:
            licence = "that of each data set it is made of"
            return _suite("spec-bench", prompts, count, SPEC_BENCH_TOKENS, name, licence)
        return _suite(name, prompts, count, most, name)
    if os.path.exists(path):
        raise InputError(f"{quoted(spec, 200)} is no suite; {EXPECTED}")
    if path.suffix in (".jsonl", ".txt"):
        raise InputError(f"there is no file {quoted(spec, 200)}; {EXPECTED}")
    raise InputError(f"there is no suite {quoted(spec, 200)}, nor such a file{nearest(spec.partition('=')[0], _NAMES)}")


def _suite(
    name: str, prompts: list[Prompt], count: int | None, most: int, source: str = "", licence: str = ""
) -> Suite:
    chosen = first(prompts, count)
    return Suite(name, digest(chosen), chosen, most, source, licence)

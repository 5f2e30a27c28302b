"""`foretoken quantize`: a low-bit copy of a model, in a folder of its own."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, cast

import typer

from foretoken.cli import options
from foretoken.cli.common import say
from foretoken.cli.stoppable import stoppable
from foretoken.common.progress import many, size
from foretoken.common.source import EMBEDDED, resolve
from foretoken.errors import SettingError
from foretoken.formats import FORMATS, format_of
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.model import Model
    from foretoken.bench.suites import Suite
    from foretoken.copies.quantise import CopyPlan
    from foretoken.formats.quantiser import Quantiser

_FEW = 4000  # tokens to calibrate on
_MARGIN = 1.02  # what a process uses differs a little from run to run


def quantize(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.", show_default=False)
    ],
    format: Annotated[
        str,
        typer.Option(help=f"{', '.join(FORMATS)}. A name such as int4-g128 also gives --group.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="The copy's folder. If MODEL is a folder, OUT can be left out. Then the copy lies beside MODEL, where "
            "--draft looks for it: MODEL-mxfp4, MODEL-int4-g64 and so on.",
            show_default="MODEL-FORMAT",
        ),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(help="For int4, int3 and int2: how many inputs share a scale (32, 64 or 128).", show_default="64"),
    ] = None,
    quantizer: Annotated[
        str,
        typer.Option(
            help="direct: only round the weights. gptq (not for int8): round weight after weight, and adjust those "
            "still to come so that a layer's output on the calibration text (--calibrate) changes least. This makes "
            "the best 4-bit drafts. It takes ten minutes for a billion parameters, about two hours for eight billion. "
            "hqq (only for int4, int3 and int2): search for better zero points."
        ),
    ] = "direct",
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="For gptq: the calibration text, a file (.txt, .jsonl) or a suite, of which at most 16384 tokens are "
            "used. Without this option, the model itself writes the text, and must fit into memory, or be given "
            "--memory.",
            show_default="8192 tokens that the model writes",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The most memory that the process may use, such as 8GiB, also while the model writes its text.",
            show_default="no bound",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing copy.")] = False,
    threads: options.Threads = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of a hub model.", show_default="the hub's main branch"),
    ] = None,
) -> None:
    """Write a low-bit copy of a model, in which linear layers and the head have 2 to 8 bits a weight.

    The copy is a checkpoint. It can draft for the original model, or be used alone: `--model` takes its folder. If
    MODEL-int4-g64 (int4, groups of 64) lies beside the original's folder, `--draft int4` reads it. Otherwise,
    `--draft int4` rounds the weights each time the model is loaded.
    """
    chosen = format_of(format, group)
    bound = LoadSettings(memory=memory, threads=threads)
    if calibrate is not None and quantizer != "gptq":
        raise SettingError(f"--calibrate is for --quantizer gptq, and the quantizer is {quantizer}; leave one out")
    if out is None and (model in EMBEDDED or not os.path.isdir(os.path.expanduser(model))):
        raise SettingError(
            f"there is no folder {model!r:.80} that a copy could lie beside; check the name, or give the "
            "copy's folder, OUT"
        )

    from foretoken.copies import place, quantise
    from foretoken.copies.beside import place_beside
    from foretoken.copies.checkpoint import FILES
    from foretoken.formats.quantiser import expect_quantiser

    expect_quantiser(chosen, quantizer)  # before a download
    file = _file_of_prompts(calibrate)
    if out is not None:
        place.tidy(out)
        place.expect_place(out, replace=force, ours=FILES)
    folder = resolve(model, revision, accept=quantise.expect_original)
    out = place_beside(folder, chosen) if out is None else out
    with stoppable():
        began = perf_counter()
        made = quantise.plan(folder, out, chosen, quantiser=cast("Quantiser", quantizer), replace=force)
        say(f"{chosen.label}, {size(made.bytes_after)} to {out}, where {size(made.free)} are free")
        if bound.memory is not None:
            _expect_room(made, bound.memory, own_text=calibrate is None)
        texts: Sequence[Sequence[int]] = ()
        if calibrate is not None:
            texts = _texts_of(calibrate, file, folder)
        elif quantizer == "gptq":
            texts = _own_texts(folder, bound)
        spent = quantise.write(made, threads=threads, texts=texts)
    how = "" if quantizer == "direct" else f" ({spent.quantiser_seconds:.1f} s of them {quantizer})"
    if quantizer != "gptq":  # which runs the model, too
        how += f", {spent.bytes_read / spent.seconds / 1e9:.2g} GB/s"
    say(
        f"{size(made.bytes_before)} became {size(made.bytes_after)}, {made.bits:.2f} bits a weight in linear layers, "
        f"in {perf_counter() - began:.1f} s{how}"
    )


def _file_of_prompts(calibrate: str | None) -> Suite | None:
    """The prompts of a file. None for the name of a suite, which may need the model's tokenizer."""
    if calibrate is None or not Path(calibrate).suffix:
        return None
    from foretoken.bench.suites import open_suite

    return open_suite(calibrate, None)


def _texts_of(calibrate: str, file: Suite | None, folder: Path) -> Sequence[Sequence[int]]:
    """The token ids of a suite, or of a file that was read."""
    from foretoken.api.checkpoint import read_tokenizer
    from foretoken.api.own_text import pieces
    from foretoken.bench.suites import first_turn, open_suite

    _, tokenizer = read_tokenizer(folder)
    suite = file or open_suite(calibrate, tokenizer)
    texts = pieces([first_turn(prompt, tokenizer) for prompt in suite.prompts])
    tokens = sum(map(len, texts))
    few = "" if tokens >= _FEW else f"; a text of {_FEW} tokens or more makes a better copy"
    say(f"{many(tokens, 'token')} of {calibrate} show what its layers read{few}")
    return texts


def _expect_room(made: CopyPlan, bound: str | int, *, own_text: bool) -> None:
    """Raise SettingError for a bound of memory within which the copy cannot be made."""
    from foretoken.api.checkpoint import read_tokenizer
    from foretoken.api.offloading import memory_of_libraries
    from foretoken.api.own_text import LENGTH, MOST, TEXTS
    from foretoken.common.malloc import give_back_freed_memory
    from foretoken.copies.quantise import memory_to_write

    give_back_freed_memory()  # what malloc keeps would count as memory in use
    if made.quantiser == "gptq":
        read_tokenizer(made.folder)  # whose libraries will be in memory
    needed = memory_of_libraries() + memory_to_write(made, TEXTS * LENGTH if own_text else MOST)
    if needed > int(bound):
        other = ", or --quantizer direct, which needs less" if made.quantiser == "gptq" else ""
        raise SettingError(
            f"memory is {size(int(bound))}, and to make the copy by {made.quantiser} may take {size(needed)}; allow "
            f"--memory {math.ceil(_MARGIN * needed / 2**30 * 100) / 100:.2f}GiB{other}"
        )


def _own_texts(folder: Path, bound: LoadSettings) -> Sequence[Sequence[int]]:
    """Text that the model writes, within a bound of memory if there is one. The model is no longer in memory when this
    returns."""
    from foretoken.api.build import load
    from foretoken.api.offloading import larger_than_memory
    from foretoken.api.own_text import LENGTH, TEXTS, own_texts

    large = larger_than_memory(folder) if bound.memory is None else None
    if large is not None:
        needed, left = large
        raise SettingError(
            f"the model takes {size(needed)} of memory to write a text, and {size(left)} are free; give a bound with "
            "--memory, or a text of your own with --calibrate FILE"
        )
    say("the model writes some text, which shows what its layers read")
    if bound.memory is None:
        model = load(str(folder), draft="none", threads=bound.threads)
    else:
        model = _bounded(folder, bound, (TEXTS * LENGTH, TEXTS // 4 * LENGTH, LENGTH))
    texts = own_texts(model)
    del model
    gc.collect()  # a model refers to itself: without this, it would stay for a while
    return texts


def _bounded(folder: Path, bound: LoadSettings, contexts: Sequence[int]) -> Model:
    """The model within a bound of memory, with the first context for which there is room: with a long one it writes
    more texts at once, and is read less often."""
    from foretoken.api.build import load

    refused: SettingError | None = None
    for context in contexts:
        try:
            return load(str(folder), draft="none", threads=bound.threads, memory=bound.memory, context=context)
        except SettingError as error:
            refused = error
    raise SettingError(f"{refused}; or give a text of your own with --calibrate FILE")

"""`foretoken recommend`: which draft to use for a model on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.cli.progress import bar
from foretoken.common.files import expect_new, write_json
from foretoken.errors import InputError
from foretoken.settings.load import LoadSettings

# what differs between the drafts; and what reads layers from the disk, where `auto` asks for no recommendation
_WITHOUT = ("draft", "num_speculative_tokens", "rule", "cache", "pace", "memory", "stream_layers", "disk_bandwidth")


@options.with_settings(without=_WITHOUT, generating=False)
def recommend(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another draft to measure, as --draft takes it: a smaller model, or a drafter that others have "
            "trained. The option can be repeated.",
            metavar="DRAFT",
        ),
    ] = None,
    prompts: options.Prompts = "auto",
    num_prompts: Annotated[int, typer.Option(help="How many of the prompts are used.", min=1)] = 6,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="The most new tokens for each prompt.", min=2)
    ] = 64,
    temperature: Annotated[float, typer.Option(help="0: greedily.", min=0.0)] = 0.0,
    repeats: Annotated[int, typer.Option(help="How often each prompt is completed with each draft.", min=1)] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the record of the measurement to a file.")
    ] = None,
) -> None:
    """Measure which draft is fastest for a model on this machine, and remember it.

    It completes a few prompts with each of these, in turn: no draft; lookup; a drafter that was trained for the model,
    if one lies beside it (MODEL-moa); if the copies of the model fit into memory, mxfp4,lookup; mxfp4:k=2,lookup;
    int4:k=2,lookup; and what --also names. It prints a table, and the command to use. From then on, `--draft auto` (the
    default of generate and chat) uses the recommended draft for this model, machine and settings, unless layers are
    read from the disk. The best draft depends on the text: give prompts of your own with --prompts. It takes all cores:
    close other programs. Exit code 1 if a token differs from plain decoding.
    """
    if json_file is not None:
        expect_new(json_file)

    from foretoken.api.automatic import remember
    from foretoken.bench import decode
    from foretoken.bench import recommend as bench
    from foretoken.common.source import resolve
    from foretoken.decoder.config import read_config

    decode.Asked(model, [], prompts, num_prompts, max_new_tokens, repeats, loading, [temperature])  # refuses at once
    drafts, left_out = bench.candidates(model, loading, also or ())
    asked = decode.Asked(model, drafts, prompts, num_prompts, max_new_tokens, repeats, loading, [temperature])
    with saying(), bar(is_kept=True) as progress:
        found, record = bench.measure(asked, progress)
    found = replace(found, left_out=left_out)
    if json_file is not None:
        write_json(json_file, record)
        say(f"record: {json_file}")
    print("\n".join(bench.lines(model, found)))
    folder = resolve(model, loading.revision, accept=read_config)
    try:
        place = remember(found.recommended, folder, read_config(folder), loading)
        print("It is the default from now on, for this model on this machine.")
        say(f"remembered in {place}")
    except InputError as error:
        say(f"it cannot be remembered ({error.args[0].partition(';')[0]}); give the draft with --draft")
    if not all(run["identical"] for run in record["runs"]):
        raise typer.Exit(1)

"""Which trained drafter learns most of the same text? `python -m foretoken.bench.heads --model MODEL --work FOLDER`.

Drafters of several kinds are trained for one model, each on the same windows of the same text, in as many steps. For
each, the record has the tokens that a check of held-out text gains with its chains, by how much text it has read. A row
that was broken off goes on, and one that is there is not trained again.

The rows are those of Zimmer et al. 2025, table 5, with EAGLE-3, a block and independent drafters beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from foretoken.api.build import load
from foretoken.api.checkpoint import expect_device
from foretoken.api.model import Model
from foretoken.bench.fields import expect_counts
from foretoken.bench.on_gpu import name_of
from foretoken.bench.script import carry_out
from foretoken.common.files import write_json
from foretoken.common.pictures import expect_drawable, new_figure, save, style
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.errors import InputError, SettingError, nearest
from foretoken.settings.load import LoadSettings
from foretoken.trained.files import parameters_of
from foretoken.training import data
from foretoken.training.drafter import DRAFTED, PRESETS, Recipe, Training
from foretoken.training.kinds import Kind

ROWS: Mapping[str, Kind] = {
    "moa-3": Kind(inferred=3),
    "moa-1": Kind(inferred=1),
    "moa": Kind(),
    "moa-1-mean": Kind(inferred=1, observer="mean"),
    "moa-1-states": Kind(inferred=1, observer="states"),
    "moa-states": Kind(observer="states"),
    "eagle2": Kind("eagle2"),
    "eagle2-wide": Kind("eagle2", wide=2.25),
    "eagle2-deep": Kind("eagle2", depth=3),
    "eagle3": Kind("eagle3"),
    "block": Kind("block"),
    "independent": Kind("independent"),
    "independent-3": Kind("independent", depth=3),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which trained drafter learns most of the same text?")
    parser.add_argument("--model", default="stdlib-7m", help="a folder, a hub id or an embedded model (%(default)s)")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the drafters")
    parser.add_argument("--data", nargs="+", default=[data.STDLIB], help="as `train moa` takes it (%(default)s)")
    parser.add_argument("--tokens", type=int, help="to train on (as many as the text has)")
    parser.add_argument("--batch", type=int, default=Recipe.batch, help="windows of a step (%(default)s)")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="which to train (all): " + ", ".join(ROWS))
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["best"], help="losses (%(default)s)")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="trains each row once with each seed (0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--plot", type=Path, help="draw the curves here, .png or .svg")
    carry_out("heads", parser, _measure)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    for row in args.rows:
        if row not in ROWS:
            raise SettingError(f"there is no row {row!r}{nearest(row, ROWS)}")
    if args.plot is not None:
        expect_drawable(args.plot)
    expect_counts(args, batch=1)
    expect_device(LoadSettings(device=args.device).device)
    model = load(args.model, draft="none")
    if model.tokenizer is None:
        raise InputError(f"{args.model} has no tokenizer, so no text can be read for it")
    streams = data.read(args.data, model.tokenizer)
    asked = [(row, preset, seed) for preset in args.preset for row in args.rows for seed in args.seed]
    rows = []
    for at, (row, preset, seed) in enumerate(asked, 1):
        print(f"{at} of {len(asked)}: {row}, {preset}, seed {seed}", file=sys.stderr, flush=True)
        tokens = args.tokens or len(streams.learned)
        recipe = Recipe(tokens, ROWS[row], preset=preset, seed=seed, batch=args.batch)
        found = trained(model, streams, args.work / f"{row}-{preset}-{seed}", recipe, args.device)
        rows.append({"row": row, **found})
    record = {
        "model": Path(args.model).name,
        "model_sha256": fingerprint(model.folder, read_config(model.folder)),
        "device": args.device if args.device == "cpu" else name_of(torch.device(args.device)),
        "tokens": {"learned": len(streams.learned), "heldout": len(streams.heldout)},
        "chains_of": DRAFTED,
        "rows": rows,
    }
    if args.plot is not None:
        draw(args.plot, rows, Path(args.model).name)
    return record


def trained(model: Model, streams: data.Streams, out: Path, recipe: Recipe, device: str) -> dict[str, Any]:
    """A row of the record: trained now, or before. out: the drafter's folder; beside it lies the row."""
    place = out.with_name(f"{out.name}.json")
    training = Training(model, *streams, out, recipe, device)
    identity = json.loads(json.dumps(training.identity))
    if place.exists():
        row: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        if row.get("identity") != identity:
            raise InputError(
                f"{place} is of another model, of other text or with other settings; name another folder with --work"
            )
        return row
    with training.alone():
        training.resume()
        progress = training.run(lambda each: _tell(each.step, recipe.steps))
        row = {
            "recipe": asdict(recipe),
            "identity": identity,
            "rate": recipe.peak,
            "parameters": sum(each.numel() for each in training.network.parameters()),
            "of_which_written": parameters_of(training.config) if recipe.kind.written else 0,
            "seconds": round(progress.seconds),
            "points": [asdict(point) for point in progress.points],
        }
        write_json(place, row)
        training.finish()
    return row


def _tell(step: int, steps: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  step {step} of {steps}", end="" if step < steps else "\n", file=sys.stderr, flush=True)


def draw(path: Path, rows: Sequence[Mapping[str, Any]], model: str) -> None:
    """Tokens a check by tokens read: a line for each row, its name at its end."""
    figure = new_figure(10, 6)
    axes = figure.subplots()
    ends = []
    for at, row in enumerate(rows):
        colour, _ = style(at)
        read = [point["tokens"] / 1e6 for point in row["points"]]
        axes.plot(read, [point["acceptance"] for point in row["points"]], color=colour, linewidth=1.5)
        ends.append((row["points"][-1]["acceptance"], f"{row['row']}, {row['recipe']['preset']}", colour, read[-1]))
    lowest, most = 0.0, max(read for *_, read in ends)
    for value, name, colour, _ in sorted(ends):  # names do not overlap
        lowest = max(value, lowest + 0.11)
        axes.annotate(f"{value:.2f} {name}", (most * 1.01, lowest), color=colour, fontsize=8, va="center")
    axes.set(xlabel="million tokens read", ylabel="tokens a check, the bonus counted", xlim=(0, most * 1.3))
    axes.set_ylim(top=lowest + 0.15)
    axes.set_title(f"Drafters for {model}: greedy chains of {DRAFTED} on held-out text")
    save(figure, path)


if __name__ == "__main__":
    main()

"""The trained drafters of Mixture of Attentions' tables: trained for the small model, and padded for its rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.bench.heads import ROWS, trained
from foretoken.bench.reproduce import moa_reported as reported
from foretoken.bench.reproduce.asked import checkpoint, made_in
from foretoken.bench.reproduce.papers import Data, Subject
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.common.source import EMBEDDED, resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.errors import InputError
from foretoken.rehearsal import write
from foretoken.rehearsal.drafter import PaddedDrafter, padded
from foretoken.rehearsal.shapes import shape_of
from foretoken.trained.files import is_trained
from foretoken.trained.sizes import MOST_OBSERVED
from foretoken.training import data
from foretoken.training.drafter import Recipe

HEADS = {  # in tables 2, 3, 4 and 10; as `bench.heads` calls them
    reported.OURS_3: "moa-3",
    reported.OURS_1: "moa-1",
    reported.OURS: "moa",
    reported.EAGLE: "eagle2",
    reported.LARGE: "independent-3",
    reported.SMALL: "independent",
}
BESIDE = {"EAGLE-3": "eagle3", "a block, seven tokens in one pass": "block"}  # which are not in the paper
ABLATED = {  # in table 5
    reported.OURS_3: "moa-3",
    reported.OURS_1: "moa-1",
    reported.OURS: "moa",
    "Ours (TLI=1, -LSA)": "moa-1-mean",
    "Ours (TLI=1, -LSA, o inputs)": "moa-1-states",
    "Ours (TLI=0, -LSA, o inputs)": "moa-states",
    "EAGLE": "eagle2",
    "EAGLE (more params)": "eagle2-wide",
    "EAGLE (more layers)": "eagle2-deep",
}
ALL = {**HEADS, **BESIDE}  # the rows of drafters that are measured, by their names
TREE, CHAIN = "k=8:depth=6", "tokens=4"  # the paper's beam; the chains of table 5
LEARNED = {"embedded": 24_000}  # tokens of text that each drafter reads; elsewhere all of the text
_BRIEF = {"checkpoints": 1, "prompts": 3, "new_tokens": 32}  # of a training that is brief itself


def learned(bench: Workbench, subject: Subject, row: str) -> Mapping[str, Any]:
    """What came of the training of a row, as `bench.heads` records it. It is trained now, unless it was before."""
    small = resolve(subject.checkpoint)
    model, streams = _lessons(subject.checkpoint)
    brief = bench.asked.scale in LEARNED
    tokens = LEARNED.get(bench.asked.scale, len(streams.learned))
    more: dict[str, Any] = _BRIEF if brief else {}
    recipe = Recipe(tokens, ROWS[row], **more)
    bench.progress(f"{bench.part}: training {row} on {tokens:,} tokens", 0, 1)
    return trained(model, streams, _folder(bench, small) / row, recipe, bench.asked.loading.device)


@cache
def _lessons(checkpoint: str) -> tuple[Model, data.Streams]:
    """A model, and the text on which its drafters are trained: reading it takes half a minute."""
    model = load(checkpoint, draft="none")
    if model.tokenizer is None:
        raise InputError(f"{checkpoint} has no tokenizer, so no text can be read for it; take another model")
    return model, data.read([data.STDLIB], model.tokenizer)


def head(bench: Workbench, subject: Subject, row: str) -> Path:
    """The folder of a trained drafter for a subject: as it was trained, or padded to the size of a rehearsal."""
    learned(bench, subject, row)
    small = resolve(subject.checkpoint)
    its = _folder(bench, small) / row
    if subject.shape is None:
        return its
    place = Path(checkpoint(subject, bench.asked.work))
    out = place.with_name(f"{place.name}-{row}-{bench.asked.scale}")
    if not is_trained(out):
        padding(subject, its, place, out).write()
    return out


def padding(subject: Subject, drafter: Path, rehearsal: Path, out: Path) -> PaddedDrafter:
    """A drafter of the small model, to be written for its rehearsal. Raises InputError if it cannot be."""
    small = resolve(subject.checkpoint)
    size = shape_of(subject.shape or "", num_layers=subject.num_layers, vocab_size=read_config(small).vocab_size)
    name = small.name if subject.checkpoint not in EMBEDDED else subject.checkpoint
    its = padded(drafter, write.plan(small, rehearsal, write.Asked(size, name), replace=True), out)
    its.expect_room()
    return its


def in_as_many_layers(subject: Subject) -> Subject:
    """The subject, in fewer layers if the small model has few: a drafter observes eight layers, or all if there are
    fewer, and that of a rehearsal must observe as many."""
    if subject.shape is None:
        return subject
    there = read_config(resolve(subject.checkpoint)).num_layers
    return subject if there >= MOST_OBSERVED else replace(subject, num_layers=there)


def is_real(bench: Workbench) -> bool:
    """Whether the paper's own checkpoints and data are measured."""
    return bench.asked.scale == "paper"


def subject_of(bench: Workbench) -> tuple[Subject, Data]:
    """What is measured, and on which prompts if a table names none."""
    subject = in_as_many_layers(bench.subjects[0])
    return subject, subject.data["HumanEval"] if is_real(bench) else next(iter(subject.data.values()))


def _folder(bench: Workbench, small: Path) -> Path:
    its = fingerprint(small, read_config(small))[:12]
    return made_in(bench.asked.work) / f"heads-{small.name}-{its}-{bench.asked.scale}"

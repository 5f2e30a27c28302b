"""What to reproduce, and its checkpoints (in a user's folders, on the hub or rehearsed) and prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from foretoken.bench.fields import expect_counts
from foretoken.bench.reproduce.papers import Data, Subject
from foretoken.bench.suites.table import DATA_SETS
from foretoken.common.files import cache_folder
from foretoken.common.source import EMBEDDED, resolve
from foretoken.copies import quantise
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.errors import InputError, SettingError, nearest, quoted
from foretoken.formats import Format
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import Shape, shape_of
from foretoken.settings.load import LoadSettings
from foretoken.settings.values import one_of

# seconds; minutes at a large model's speed; an hour with as many layers as the paper's models; as in the paper
SCALES = ("embedded", "rehearsal", "geometry", "paper")


@dataclass(frozen=True)
class Asked:
    """What to reproduce. only: names of tables and figures; empty: all. model: replaces the small model of a small
    scale. models: folders that hold the paper's own checkpoints. data: NAME=PLACE, or one suite at a small scale.
    layers: of the rehearsals, only those with these numbers of layers; empty: all. out: the record's folder. work: the
    rehearsals' folder; None: a user's cache. Raises SettingError."""

    paper: str
    scale: str = "rehearsal"
    only: Sequence[str] = ()
    model: str | None = None
    models: Sequence[Path] = ()
    data: Sequence[str] = ()
    layers: Sequence[int] = ()
    num_prompts: int | None = None
    max_new_tokens: int | None = None
    out: Path = Path()
    work: Path | None = None
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        if self.models and self.scale != "paper":
            raise SettingError("models are the paper's own checkpoints; give scale paper, or model for a small scale")
        if self.model is not None and self.scale == "paper":
            raise SettingError("at scale paper the models are the paper's; give the folders where they lie as models")
        if self.layers and self.scale not in ("rehearsal", "geometry"):
            raise SettingError("layers choose among rehearsals; give scale geometry, or leave layers out")
        expect_counts(self, num_prompts=1, max_new_tokens=2)  # one token has no speed

    def subjects(self, subjects: Sequence[Subject]) -> list[Subject]:
        """A scale's subjects, with a user's model, folders and prompts in place of theirs."""
        if self.layers:
            counts = {subject.num_layers for subject in subjects}
            for count in self.layers:
                if count not in counts:
                    there = ", ".join(map(str, sorted(counts)))
                    raise SettingError(f"layers is {count}, and there are rehearsals of {there} layers")
            subjects = [subject for subject in subjects if subject.num_layers in self.layers]
        if self.model is not None:
            subjects = [replace(subject, checkpoint=self.model) for subject in subjects]
        return with_data(self, found_in(subjects, self.models) if self.models else subjects)


def checkpoint(subject: Subject, work: Path | None) -> str:
    """What `load` takes for a subject: its checkpoint, or its rehearsal, which is made in `work` unless it is there.

    Raises what `rehearse` raises for a model that does not fit into the shape.
    """
    if subject.shape is None:
        return subject.checkpoint
    size = shape_of(subject.shape, num_layers=subject.num_layers)
    return _rehearsed(subject.checkpoint, subject.shape, size, work)


def small_checkpoint(subject: Subject, work: Path | None) -> str:
    """The same for the checkpoint that drafts for a subject."""
    if subject.small_shape is None:
        return subject.small
    return _rehearsed(subject.small, subject.small_shape, shape_of(subject.small_shape), work)


def low_bit_checkpoint(folder: Path, format: Format, work: Path | None) -> str:
    """The folder of a checkpoint's low-bit copy, which is a model of its own; made in `work` unless it is there."""
    out = made_in(work) / f"{folder.name}-{fingerprint(folder, read_config(folder))[:12]}-{format.label}"
    if not out.is_dir():
        quantise.write(quantise.plan(folder, out, format))
    return str(out)


def made_in(work: Path | None) -> Path:
    """The folder for checkpoints that are made. Raises InputError if it cannot be made."""
    work = cache_folder("rehearsals") if work is None else work
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"no folder {work} for rehearsals can be made ({error.strerror}); name one with --work"
        ) from None
    return work


def _rehearsed(model: str, shape: str, size: Shape, work: Path | None) -> str:
    """The folder of a model's rehearsal in the size of a shape."""
    small = resolve(model)
    config = write.expect_small(small, size, model)
    local = model not in EMBEDDED and Path(model).expanduser().is_dir()
    name = small.resolve().name if local else model.rpartition("/")[2]
    called = re.sub(r"[:,=]+", "-", shape)  # these have a meaning in a draft's text
    its = f"{name}-{fingerprint(small, config)[:12]}-{called}-{size.num_layers}"
    out = made_in(work) / f"{its}-v{write.VERSION}"  # a rehearsal by an older generator is not used again
    if not out.is_dir():  # a rehearsal is written whole, or not at all
        of_its_words = replace(size, vocab_size=config.vocab_size)  # the body is what is measured
        write.write(write.plan(small, out, write.Asked(of_its_words, name)))
    return str(out)


def found_in(subjects: Sequence[Subject], folders: Sequence[Path]) -> list[Subject]:
    """The subjects whose checkpoints are in one of the folders, as owner/name or as name, each with its folder. Raises
    InputError if there are none."""
    found = []
    for subject in subjects:
        place = _place(subject.checkpoint, folders)
        if place is not None:
            small = _place(subject.small, folders) if subject.small else None
            found.append(replace(subject, checkpoint=str(place), small=str(small or subject.small)))
    if not found:
        expected = ", ".join(subject.checkpoint.rpartition("/")[2] for subject in subjects)
        raise InputError(f"{folders[0]} holds no checkpoint of this paper; expected folders called {expected}")
    return found


def _place(checkpoint: str, folders: Sequence[Path]) -> Path | None:
    names = (checkpoint, checkpoint.rpartition("/")[2])
    places = (folder / name for folder in folders for name in names if (folder / name / "config.json").is_file())
    return next(places, None)


def with_data(asked: Asked, subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects with the user's prompts. At scale paper, NAME=PLACE replaces a data set of the paper's. At a small
    scale, whose data sets are not the paper's own, one suite replaces all of them."""
    real, own = asked.scale == "paper", {spec.partition("=")[0]: spec for spec in asked.data}
    if len(asked.data) > 1 and not real:
        raise SettingError(f"{len(asked.data)} suites were given, and at this scale one is measured on; give one")
    for name, spec in own.items() if real else ():
        if "=" not in spec or name not in DATA_SETS:
            near = nearest(name, DATA_SETS)
            raise SettingError(f"{quoted(spec)} names no place of a data set{near}; expected NAME=FOLDER_OR_FILE")

    def given(data: Data) -> Data:
        suite = own.get(data.suite, data.suite) if real else (*asked.data, data.suite)[0]
        count, most = asked.num_prompts or data.count, asked.max_new_tokens or data.max_new_tokens
        return Data(suite, count, most, data.cut if suite == data.suite else None)

    return [replace(s, data={name: given(data) for name, data in s.data.items()}) for s in subjects]

"""What a reproduction measures: checkpoints named, in a user's folders, on the hub or rehearsed here; and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.paper import Data, Subject
from foretoken.bench.suites.table import DATA_SETS
from foretoken.common.source import EMBEDDED, resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.errors import InputError, SettingError, nearest, quoted
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of


def subjects_of(asked: Asked, subjects: Sequence[Subject]) -> list[Subject]:
    """A scale's subjects, with a user's model, folders and prompts in the place of theirs."""
    if asked.model is not None:
        subjects = [replace(subject, checkpoint=asked.model) for subject in subjects]
    return with_data(asked, found_in(subjects, asked.models))


def checkpoint(subject: Subject, work: Path) -> str:
    """What `load` takes for a subject: itself, or its rehearsal, which is made where it is not there yet.

    Raises what `rehearse` raises of a model that does not fit into the shape.
    """
    if subject.shape is None:
        return subject.checkpoint
    small, size = resolve(subject.checkpoint), shape_of(subject.shape, num_layers=subject.num_layers)
    config = write.expect_small(small, size, subject.checkpoint)
    shape = replace(size, vocab_size=config.vocab_size)  # the body is what is measured
    local = subject.checkpoint not in EMBEDDED and Path(subject.checkpoint).expanduser().is_dir()
    name = small.resolve().name if local else subject.checkpoint.rpartition("/")[2]
    out = work / f"{name}-{fingerprint(small, config)[:12]}-{subject.shape}-{subject.num_layers}"
    if not out.is_dir():  # it is written whole, or not at all
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"no folder {work} for rehearsals can be made ({error.strerror}); name one with --work"
            ) from None
        write.write(write.plan(small, out, write.Asked(shape, name)))
    return str(out)


def found_in(subjects: Sequence[Subject], folders: Sequence[Path]) -> list[Subject]:
    """The subjects whose checkpoints lie in one of some folders, as owner/name or as name, each with its folder;
    without folders all of them, from the hub. Raises InputError where there is none."""
    if not folders:
        return list(subjects)
    found = []
    for subject in subjects:
        names = (subject.checkpoint, subject.checkpoint.rpartition("/")[2])
        places = [folder / name for folder in folders for name in names if (folder / name / "config.json").is_file()]
        if places:
            found.append(replace(subject, checkpoint=str(places[0])))
    if not found:
        expected = ", ".join(subject.checkpoint.rpartition("/")[2] for subject in subjects)
        raise InputError(f"{folders[0]} holds no checkpoint of this paper; expected folders called {expected}")
    return found


def with_data(asked: Asked, subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects with prompts of the user's: at scale paper NAME=PLACE for a data set of the paper's; at another,
    where the data sets are not its own, one suite instead of all."""
    real, own = asked.scale == "paper", {spec.partition("=")[0]: spec for spec in asked.data}
    if len(asked.data) > 1 and not real:
        raise SettingError(f"{len(asked.data)} suites were given, and at this scale one is measured on; give one")
    for name, spec in own.items() if real else ():
        if "=" not in spec or name not in DATA_SETS:
            near = nearest(name, DATA_SETS)
            raise SettingError(f"{quoted(spec)} names no place of a data set{near}; expected NAME=FOLDER_OR_FILE")

    def given(data: Data) -> Data:
        suite = own.get(data.suite, data.suite) if real else (*asked.data, data.suite)[0]
        return Data(suite, asked.num_prompts or data.count, asked.max_new_tokens or data.max_new_tokens)

    return [replace(s, data={name: given(data) for name, data in s.data.items()}) for s in subjects]

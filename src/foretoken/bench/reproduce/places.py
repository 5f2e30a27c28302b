"""Where checkpoints are that a reproduction measures: named, in a user's folders, on the hub, or rehearsed here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.bench.reproduce.paper import Data, Subject
from foretoken.bench.suites.table import DATA_SETS
from foretoken.common.source import EMBEDDED, resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.errors import InputError, SettingError, nearest, quoted
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of


def default_work() -> Path:
    """Where rehearsals are made, unless a user says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretoken" / "rehearsals"


def checkpoint(subject: Subject, work: Path) -> str:
    """What `load` takes for a subject: itself, or its rehearsal, which is made where it is not there yet.

    Raises what `rehearse` raises of a model that does not fit into the shape.
    """
    if subject.rehearsed is None:
        return subject.checkpoint
    small = resolve(subject.checkpoint)
    size = shape_of(subject.rehearsed.shape, num_layers=subject.rehearsed.num_layers)
    config = write.expect_small(small, size, subject.checkpoint)
    shape = replace(size, vocab_size=config.vocab_size)  # the body is what is measured
    local = subject.checkpoint not in EMBEDDED and Path(subject.checkpoint).expanduser().is_dir()
    name = small.resolve().name if local else subject.checkpoint.rpartition("/")[2]
    said = f"{name}-{fingerprint(small, config)[:12]}-{subject.rehearsed.shape}-{subject.rehearsed.num_layers}"
    out = work / said
    if not out.is_dir():  # it is written whole, or not at all
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"no folder {work} for rehearsals can be made ({error.strerror}); name one with --work"
            ) from None
        write.write(write.plan(small, out, shape, name=name))
    return str(out)


def in_place(subjects: Sequence[Subject], model: str) -> list[Subject]:
    """The subjects of a small scale, with a model of the user's in the place of theirs."""
    return [replace(subject, checkpoint=model) for subject in subjects]


def found_in(subjects: Sequence[Subject], folders: Sequence[Path]) -> list[Subject]:
    """The subjects whose checkpoints lie in one of some folders, as owner/name or as name, each with its folder;
    without folders all of them, from the hub. Raises InputError where there is none."""
    if not folders:
        return list(subjects)
    found = []
    for subject in subjects:
        owner_and_name = subject.checkpoint
        places = [folder / part for folder in folders for part in (owner_and_name, owner_and_name.rpartition("/")[2])]
        place = next((place for place in places if (place / "config.json").is_file()), None)
        if place is not None:
            found.append(replace(subject, checkpoint=str(place)))
    if not found:
        names = ", ".join(subject.checkpoint.rpartition("/")[2] for subject in subjects)
        raise InputError(f"{folders[0]} holds no checkpoint of this paper; expected folders called {names}")
    return found


def with_data(
    subjects: Sequence[Subject], given: Sequence[str], count: int | None, max_new_tokens: int | None, *, real: bool
) -> list[Subject]:
    """The subjects with prompts of the user's. given: NAME=PLACE for a data set of theirs; where the data sets are not
    the paper's own (`real`), one suite instead of what is there."""
    places = {}
    for spec in given:
        name, equals, _ = spec.partition("=")
        if real and not (equals and name in DATA_SETS):
            raise SettingError(
                f"{quoted(spec)} names no place of a data set{nearest(name, DATA_SETS)}; expected NAME=FOLDER_OR_FILE"
            )
        places[name] = spec
    if not real and len(given) > 1:
        raise SettingError(f"{len(given)} suites were given, and at this scale one is measured on; give one")

    def changed(data: Data) -> Data:
        suite = places.get(data.suite, data.suite) if real else (given[0] if given else data.suite)
        return Data(suite, count or data.count, max_new_tokens or data.max_new_tokens)

    return [replace(s, data={name: changed(data) for name, data in s.data.items()}) for s in subjects]

"""A reproduction, from its beginning or from where one was interrupted, to its record, report and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from foretoken.bench.fields import difference, expect
from foretoken.bench.reproduce import places
from foretoken.bench.reproduce.paper import SCALES, Subject
from foretoken.bench.reproduce.papers import paper
from foretoken.bench.reproduce.parts import Paper
from foretoken.bench.reproduce.report import report
from foretoken.bench.reproduce.workbench import Progress, Workbench
from foretoken.common.files import expect_place, read_json, write_bytes, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.common.provenance import provenance
from foretoken.errors import InputError, SettingError, nearest, quoted
from foretoken.settings.load import LoadSettings

KIND = "reproduce"
SEAL = "sha256"  # of all else in a record: one that goes on is believed in every number
_FIELDS = {
    "date": "str",
    "paper": "str",
    "scale": "str",
    "asked": "dict[str, Any]",
    "machine": "dict[str, Any]",
    "models": "dict[str, Any]",
    "tables": "dict[str, Any]",
    "missing": "list",
    "measurements": "list",
    "generations": "list",
    "watched": "list",
}


@dataclass(frozen=True)
class Asked:
    """What is to be reproduced. only: of which tables and figures; none: of all. model: instead of the small model of a
    small scale; models: folders in which the paper's own checkpoints lie. data: NAME=PLACE, or at a small scale one
    suite. out: the folder of the record. Raises SettingError."""

    paper: str
    scale: str = "rehearsal"
    only: Sequence[str] = ()
    model: str | None = None
    models: Sequence[Path] = ()
    data: Sequence[str] = ()
    num_prompts: int | None = None
    max_new_tokens: int | None = None
    out: Path = Path()
    work: Path = field(default_factory=places.default_work)
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SettingError(f"scale is {quoted(self.scale)}{nearest(self.scale, SCALES)}")
        if self.models and self.scale != "paper":
            raise SettingError("models are the paper's own checkpoints; give scale paper, or model for a small scale")
        if self.model is not None and self.scale == "paper":
            raise SettingError("at scale paper the models are the paper's; give the folders where they lie as models")
        for name, least in (("num_prompts", 1), ("max_new_tokens", 2)):  # of one token there is no speed
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise SettingError(f"{name} is {value!r}, expected a whole number, {least} or more")

    def subjects(self, its: Paper) -> list[Subject]:
        """What is measured."""
        real = self.scale == "paper"
        subjects = list(its.subjects[self.scale])
        if self.model is not None:
            subjects = places.in_place(subjects, self.model)
        if real:
            subjects = places.found_in(subjects, self.models)
        return places.with_data(subjects, self.data, self.num_prompts, self.max_new_tokens, real=real)

    def to_json(self, subjects: Sequence[Subject]) -> dict[str, Any]:
        """What has to be the same for one record: all but which tables, which may be more the next time."""
        loading = {name: getattr(self.loading, name) for name in ("dtype", "device", "weights", "threads", "promise")}
        models = list(dict.fromkeys(subject.called for subject in subjects))
        data = [each.partition("=")[0] if "=" in each else Path(each).name for each in self.data]
        asked = {"models": models, "data": data, "num_prompts": self.num_prompts, "max_new_tokens": self.max_new_tokens}
        return {**asked, **loading}


@dataclass(frozen=True)
class Reproduction:
    """A record, and the files that were written of it."""

    record: dict[str, Any]
    place: Path
    page: Path
    pictures: Sequence[Path]

    @property
    def differing_tokens(self) -> int:
        """Of all generations: tokens that are not plain decoding's."""
        count: int = self.record["differing_tokens"]
        return count


def reproduce(asked: Asked, progress: Progress | None = None) -> Reproduction:
    """Make a paper's tables and figures, and write them down after each; go on where the same was interrupted.

    Raises ForetokenError for what cannot be measured, and InputError where there is no place for the record, or another
    record in it.
    """
    its = paper(asked.paper)
    chosen = its.chosen(asked.only)
    subjects = asked.subjects(its)
    place, record = _begin(asked, subjects)
    page = place.with_suffix(".md")
    pictures = {name: place.with_name(f"{place.stem}-{name}.png") for name in chosen if its.parts[name].draw}
    expect_place(place)
    expect_place(page, what="report")
    for picture in pictures.values():
        expect_drawable(picture)

    keep = partial(_keep, place, record)
    tell = progress or (lambda *_: None)
    bench = Workbench(asked.scale, subjects, record, asked.loading, asked.work, keep, tell)
    missing = [name for name in chosen if name not in record["tables"]]
    for at, name in enumerate(missing):
        following = f" (then {missing[at + 1]})" if at + 1 < len(missing) else ""
        bench.part = f"{name}{following}"
        made = its.parts[name].make(bench).to_json()
        tables = {**record["tables"], name: made}
        record["tables"] = {each: tables[each] for each in its.parts if each in tables}
        record["missing"] = [each for each in its.parts if each not in tables]
        keep()
    for name, picture in pictures.items():
        draw = its.parts[name].draw
        assert draw is not None
        if record["tables"][name]["rows"]:  # a guess may never have been asked for, where texts are short
            draw(picture, record["tables"][name]["rows"])
    shown = {name: picture.name for name, picture in _drawn(its, record, place).items()}
    write_bytes(page, ("\n".join(report(record, shown)).rstrip() + "\n").encode(), what="report")
    return Reproduction(record, place, page, list(pictures.values()))


def _drawn(its: Paper, record: dict[str, Any], place: Path) -> dict[str, Path]:
    """The pictures that lie beside a record, those of an earlier call among them."""
    names = [name for name in record["tables"] if its.parts[name].draw]
    pictures = {name: place.with_name(f"{place.stem}-{name}.png") for name in names}
    return {name: picture for name, picture in pictures.items() if picture.is_file()}


def _keep(place: Path, record: dict[str, Any]) -> None:
    record["differing_tokens"] = sum(line["differing"] for line in (*record["generations"], *record["watched"]))
    record["promise"] = min((line["promise"] for line in record["generations"]), default=None)
    record[SEAL] = _sealed(record)
    write_json(place, record)


def _sealed(record: dict[str, Any]) -> str:
    asjson = json.loads(json.dumps({name: value for name, value in record.items() if name != SEAL}))
    return hashlib.sha256(json.dumps(asjson, sort_keys=True).encode()).hexdigest()


def _begin(asked: Asked, subjects: Sequence[Subject]) -> tuple[Path, dict[str, Any]]:
    """Where the record is, and what it holds already: today's, or one of the same that was not finished."""
    origin = provenance()
    if not asked.out.is_dir():
        raise InputError(f"there is no folder {asked.out} for the record; make it first")
    said = {"paper": asked.paper, "scale": asked.scale, "asked": asked.to_json(subjects)}
    begun = {
        "kind": KIND,
        **origin,
        **said,
        "title": paper(asked.paper).title,
        "promise": None,
        "differing_tokens": 0,
        "models": {},
        "missing": list(paper(asked.paper).parts),
        "tables": {},
        "measurements": [],
        "generations": [],
        "watched": [],
    }
    name = f"{KIND}-{asked.paper}-{asked.scale}.json"
    place = asked.out / f"{origin['date'][:10]}-{name}"
    same = json.loads(json.dumps({**said, "commit": origin["commit"], "machine": origin["machine"]}))
    for earlier in sorted(asked.out.glob(f"*-{name}"), reverse=True):
        record = read(earlier)
        was = {key: record.get(key) for key in same}
        if was == same and (record["missing"] or earlier == place):
            if record.get(SEAL) != _sealed(record):
                raise InputError(f"{earlier} was changed after it was written; move it away, or name another folder")
            return earlier, record
        if earlier == place:
            raise InputError(
                f"{place} is another reproduction ({difference(was, same)}); repeat its command to go on "
                "with it, move it away, or name another folder"
            )
    return place, begun


def read(path: Path) -> dict[str, Any]:
    """A record of a reproduction. Raises InputError."""
    record = read_json(path, "move it away")
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise InputError(f"{path} is no record of a reproduction; move it away, or name another folder")
    expect(record, _FIELDS, str(path))
    return record

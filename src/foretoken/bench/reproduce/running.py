"""Runs a reproduction, from its beginning or from where it was interrupted, to its record, report and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.bench.decode import Progress
from foretoken.bench.fields import difference, expect
from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.papers import Data, Paper, Subject, paper
from foretoken.bench.reproduce.report import report
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.bench.statistics import rounded
from foretoken.common.files import expect_place, read_json, write_bytes, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.common.provenance import provenance
from foretoken.errors import InputError, SettingError

KIND = "reproduce"
SEAL = "sha256"  # of all else in a record: the numbers of a continued record are not measured again
_LISTS = ("measurements", "generations", "watched")
# what stays the same in one record; its tables do not, because the next call may add some
_SAME = ("paper", "scale", "asked", "commit", "machine")
_FIELDS = {
    **dict.fromkeys(("date", "paper", "scale"), "str"),
    **dict.fromkeys(("asked", "machine", "models", "tables"), "dict[str, Any]"),
    **dict.fromkeys(("missing", *_LISTS), "list"),
}


class Reproduction(NamedTuple):
    """A record, and the files that were written from it."""

    record: dict[str, Any]
    place: Path
    page: Path
    pictures: Sequence[Path]


def reproduce(asked: Asked, progress: Progress = lambda *_: None) -> Reproduction:
    """Make a paper's tables and figures, and write them down after each; continue where the same was interrupted.

    Raises ForetokenError for what cannot be measured, and InputError if the record cannot be written, or its file
    holds a different record.
    """
    its = paper(asked.paper)
    if asked.scale == "paper" and asked.loading.dtype == "auto":
        asked = replace(asked, loading=replace(asked.loading, dtype=its.dtype))
    if asked.scale not in its.subjects:
        raise SettingError(
            f"there is no scale {asked.scale!r} of {asked.paper}; expected one of {', '.join(its.subjects)}"
        )
    chosen = its.chosen(asked.only)
    subjects = asked.subjects(its.subjects[asked.scale])
    place, record = _begin(asked, its, subjects)
    page = place.with_suffix(".md")
    pictures = {name: place.with_name(f"{place.stem}-{name}.png") for name in its.parts if its.parts[name].draw}
    expect_place(place)
    expect_place(page, what="report")
    for name in chosen:
        if name in pictures:
            expect_drawable(pictures[name])

    bench = Workbench(asked, subjects, record, partial(_keep, place, record), progress)
    missing = [name for name in chosen if name not in record["tables"]]
    for name, following in zip_longest(missing, missing[1:]):
        bench.part = name if following is None else f"{name} (then {following})"
        title, rows, notes, _ = its.parts[name]
        made = {"title": title, "rows": rounded(list(rows(bench))), "notes": list(notes)}
        tables = {**record["tables"], name: made}
        record["tables"] = {each: tables[each] for each in its.parts if each in tables}
        record["missing"] = [each for each in its.parts if each not in tables]
        bench.keep()
    drawn = []
    for name in chosen:
        draw, shown = its.parts[name].draw, record["tables"][name]["rows"]
        if draw is not None and shown:  # where texts are short, there may be no guess
            draw(pictures[name], shown)
            drawn.append(pictures[name])
    # pictures of earlier calls are among them
    there = {name: picture.name for name, picture in pictures.items() if picture.is_file() and name in record["tables"]}
    write_bytes(page, ("\n".join(report(record, there)).rstrip() + "\n").encode(), what="report")
    return Reproduction(record, place, page, drawn)


def _begin(asked: Asked, its: Paper, subjects: Sequence[Subject]) -> tuple[Path, dict[str, Any]]:
    """The record's file and its content: today's record, or an unfinished one of the same reproduction."""
    origin = provenance()
    settings = {
        "models": list(dict.fromkeys(subject.called for subject in subjects)),
        "layers": list(asked.layers),
        "data": [Data(each).called for each in asked.data],
        "num_prompts": asked.num_prompts,
        "max_new_tokens": asked.max_new_tokens,
        **{name: getattr(asked.loading, name) for name in ("dtype", "device", "weights", "threads", "promise")},
    }
    said = {"paper": asked.paper, "scale": asked.scale, "asked": settings}
    known = {"title": its.title, "promise": None, "differing_tokens": 0, "missing": list(its.parts)}
    empty: dict[str, Any] = {"models": {}, "tables": {}, **{name: [] for name in _LISTS}}
    record = {"kind": KIND, **origin, **said, **known, **empty}
    name = f"{KIND}-{asked.paper}-{asked.scale}.json"
    place = asked.out / f"{origin['date'][:10]}-{name}"
    same = json.loads(json.dumps({name: record[name] for name in _SAME}))
    for earlier in sorted(asked.out.glob(f"*-{name}"), reverse=True):
        found = read(earlier)
        was = {name: found.get(name) for name in _SAME}
        if was == same and (found["missing"] or earlier == place):
            if found.get(SEAL) != _sealed(found):
                raise InputError(f"{earlier} was changed after it was written; move it away, or name another folder")
            return earlier, found
        if earlier == place:
            raise InputError(
                f"{place} is another reproduction ({difference(was, same)}); repeat its command to go on "
                "with it, move it away, or name another folder"
            )
    return place, record


def _keep(place: Path, record: dict[str, Any]) -> None:
    record["differing_tokens"] = sum(line["differing"] for line in (*record["generations"], *record["watched"]))
    record["promise"] = min((line["promise"] for line in record["generations"]), default=None)
    record[SEAL] = _sealed(record)
    write_json(place, record)


def _sealed(record: dict[str, Any]) -> str:
    all_else = {name: value for name, value in record.items() if name != SEAL}
    return hashlib.sha256(json.dumps(all_else, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """A record of a reproduction. Raises InputError."""
    record = read_json(path, "move it away")
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise InputError(f"{path} is no record of a reproduction; move it away, or name another folder")
    expect(record, _FIELDS, str(path))
    return record

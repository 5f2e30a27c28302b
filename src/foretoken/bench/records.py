"""Reads records of measurements; what a report needs is checked before any of it is used."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from foretoken.bench.fields import expect, expect_fields
from foretoken.bench.runs import KIND, Run
from foretoken.bench.side_by_side.rows import Row
from foretoken.common.files import read_json
from foretoken.errors import InputError, quoted

KINDS = (KIND, "peers")
_COMMON = {"kind": "str", "model": "str", "machine": "dict[str, Any]", "commit": "str | None"}
_COMMON |= {"suite": "dict[str, Any]", "max_new_tokens": "int", "repeats": "int"}
_DECODE = {"versions": "dict[str, Any]", "weights": "str", "model_bytes": "int", "runs": "list"}
_DECODE |= {"read_bandwidth_gb_per_s": "float | None"}
_PEERS = {"promise": "str", "peers": "dict[str, Any]", "rows": "list"}
_MEASURED = dict.fromkeys(("ms_per_token", "ms_per_token_with_prompt", "tokens_per_second", "like_ours"), "float")
_MEASURED |= {"equal_to_ours": "int", "times_our_plain": "float"}  # the numbers of a row that ran

# fields of a run that older records lack
_LATER = tuple(field.name for field in fields(Run) if field.default is None)


def read(path: Path) -> dict[str, Any]:
    """A record of `bench decode` or `bench peers`, with everything that a report reads. Raises InputError."""
    record = read_json(path, "name a record of a measurement")
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        kind = record.get("kind") if isinstance(record, dict) else None
        what = "no record of a measurement" if kind is None else f"a record of kind {quoted(kind, 40)}"
        raise InputError(f"{path} is {what}; expected one that `bench decode` or `bench peers` wrote")
    expect(record, _COMMON | (_DECODE if record["kind"] == KIND else _PEERS), str(path))
    expect(record["suite"], {"prompts": "int"}, f"{path}: suite")
    if record["kind"] != KIND:
        expect(record["machine"], {"threads": "int"}, f"{path}: machine")
        for name in record["peers"]:
            expect(record["peers"], {name: "dict[str, Any]"}, f"{path}: peers")
            expect({"versions": {}, **record["peers"][name]}, {"versions": "dict[str, Any]"}, f"{path}: peers: {name}")
        for number, row in enumerate(record["rows"]):
            _expect_row(row, f"{path}: rows[{number}]")
        return record
    if not record["runs"]:
        raise InputError(f"{path} has no runs; expected one or more: measure again")
    for number, run in enumerate(record["runs"]):
        known = {**dict.fromkeys(_LATER), **run} if isinstance(run, dict) else run
        expect_fields(known, Run, f"{path}: runs[{number}]")
    return record


def _expect_row(row: Any, where: str) -> None:
    expect_fields(row, Row, where)
    if row["why"] is None:
        expect(row, _MEASURED, where)
    if row["of"] is not None and row["prompts"]:
        expect(row, {"equal_to_own_plain": "int"}, where)
    if row["first_difference"] is not None:
        expect(row["first_difference"], {"prompt": "str", "position": "int"}, f"{where}: first_difference")

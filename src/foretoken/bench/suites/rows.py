"""Rows of files that others wrote: JSON lines, CSV, parquet. Errors name the file and the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from foretoken.common.files import readable
from foretoken.errors import InputError, quoted
from foretoken.text.tokenizer import expect_whole

SUFFIXES = (".parquet", ".jsonl", ".csv")
_MOST_TOKEN = 2**31 - 1
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """Some named values, and where they were found: `number` is their line or row, from 1 on.

    Each method raises InputError if a value has the wrong type.
    """

    where: str
    number: int
    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        """A text that is not empty."""
        return self._expect_text(name, self._value(name, "text"))

    def name(self, name: str) -> str:
        """A text of one line, or a whole number: a name that a table can show."""
        value = self._value(name, "a name or a whole number")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
            return str(value)
        if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable():
            return value
        return self._refuse(name, value, "a name of at most 200 printed characters, or a whole number from 0 on")

    def truth(self, name: str) -> bool:
        """True or false; false if the value is absent."""
        value = self.values.get(name, False)
        return value if isinstance(value, bool) else self._refuse(name, value, "true or false")

    def tokens(self, name: str) -> tuple[int, ...]:
        """Token ids, at least one."""
        return self._expect_tokens(name, self._value(name, "token ids"))

    def turns(self, name: str, *, ids: bool = True) -> tuple[str | tuple[int, ...], ...]:
        """A list of at least one turn: texts, or (`ids`) lists of token ids."""
        expected = "a list of turns, one at least"
        turns = self._value(name, expected)
        if not isinstance(turns, list) or not turns:
            self._refuse(name, turns, expected)
        return tuple(
            self._expect_tokens(f"{name}[{at}]", turn)
            if ids and isinstance(turn, list)
            else self._expect_text(f"{name}[{at}]", turn)
            for at, turn in enumerate(turns)
        )

    def _value(self, name: str, expected: str) -> Any:
        if name not in self.values:
            here = quoted(", ".join(map(str, self.values)), 120)
            raise InputError(f"{self.where}: there is no {name!r}, expected {expected}; the fields are {here}")
        return self.values[name]

    def _expect_text(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            return self._refuse(name, value, "text that is not empty")
        expect_whole(value, f"{self.where}: {name}")
        return value

    def _expect_tokens(self, name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not value:
            return self._refuse(name, value, "a list of token ids, one at least")
        for token in value:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _MOST_TOKEN:
                self._refuse(name, token, f"token ids, whole numbers from 0 to {_MOST_TOKEN}", holds=True)
        return tuple(value)

    def _refuse(self, name: str, value: Any, expected: str, *, holds: bool = False) -> NoReturn:
        try:
            told = quoted(value)
        except RecursionError:  # nested almost too deeply to be read
            told = f"a {type(value).__name__} of many levels"
        raise InputError(f"{self.where}: {name} {'holds' if holds else 'is'} {told}, expected {expected}")


def read_rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """The rows of a file with one of the SUFFIXES, one after the other; of a parquet file, only `fields`. Raises
    InputError."""
    if path.suffix == ".parquet":
        return parquet_rows(path, fields)
    return csv_rows(path) if path.suffix == ".csv" else json_lines(path)


def json_lines(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines. Empty lines are skipped."""
    with readable(path, "name a file of prompts"), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            said, where = line.removeprefix(_BOM).rstrip(), f"{path}, line {number}"
            if said:
                yield Row(where, number, _object(said, where))


def csv_rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file, with the names in its first line."""
    line = 0
    try:
        with readable(path, "name a file of rows"), open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for values in reader:
                line = reader.line_num
                yield Row(f"{path}, line {line}", line, values)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}, after line {line}: no CSV in UTF-8 ({error}); fetch the file again") from None


def parquet_rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """The rows of a parquet file, counted from 1. Raises InputError without pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path.name} is read with pyarrow, which is not installed; pip install 'foretoken[suites]'"
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64, columns=list(fields)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", number, values)
    except Exception as error:  # for a damaged file, pyarrow raises what the damage leads to
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}, after row {number}: no parquet ({reason:.100}); fetch the file again") from None


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 (byte {error.start}); expected JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON ({error.msg} at character {error.pos}); expected one object") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply; expected one flat JSON object") from None
    except ValueError as error:  # NaN, or a number of thousands of digits
        raise InputError(f"{where} is not JSON ({str(error).splitlines()[0]:.80}); expected one object") from None
    if not isinstance(value, dict):
        raise InputError(f'{where} is {type(value).__name__}, expected one JSON object, as in {{"prompt": "..."}}')
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")

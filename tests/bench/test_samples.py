"""What was measured is kept, whatever ends the measurement; and nothing else is taken for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.samples import Journal, added, journal_of
from foretoken.errors import InputError
from tests.bench.test_runs import sample

ASKED = {"model": "m", "temperatures": [0.0, 0.8], "commit": "abc"}
SAMPLES = [sample("none", "a", 1.0), sample("copy", "a", 0.5), sample("copy", "b", 0.25)]


def _spoiled(without: str = "", **changes: Any) -> bytes:
    line = {name: value for name, value in {**asdict(SAMPLES[1]), **changes}.items() if name != without}
    return f"{json.dumps({'measuring': ASKED})}\n{json.dumps(line)}\n".encode()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    journal = Journal(path, ASKED)
    for each in SAMPLES:
        journal.add(each)
    return path


def test_a_measurement_goes_on_where_it_ended(record: Path) -> None:
    again = Journal(record, ASKED)
    assert again.samples == SAMPLES
    again.add(sample("none", "c", 1.0))
    assert len(Journal(record, ASKED).samples) == 4


@pytest.mark.parametrize("cut", [1, 5, 300])
def test_a_line_that_was_cut_short_is_measured_again(record: Path, cut: int) -> None:
    place = journal_of(record)
    place.write_bytes(place.read_bytes()[:-cut])
    again = Journal(record, ASKED)
    assert again.samples == SAMPLES[:2]
    again.add(SAMPLES[2])
    assert Journal(record, ASKED).samples == SAMPLES


def test_a_journal_that_was_cut_in_its_first_line_begins_anew(record: Path) -> None:
    journal_of(record).write_bytes(b'{"measuring": {"mo')
    journal = Journal(record, ASKED)
    assert journal.samples == []
    journal.add(SAMPLES[0])
    assert Journal(record, ASKED).samples == SAMPLES[:1]


def test_what_is_not_to_be_kept_is_gone_from_the_file_too(record: Path) -> None:
    journal = Journal(record, ASKED)
    journal.keep(lambda each: each.prompt == "a")
    assert journal.samples == SAMPLES[:2]
    journal.add(SAMPLES[2])
    assert Journal(record, ASKED).samples == SAMPLES


def test_nothing_is_there_before_the_first_sample(tmp_path: Path) -> None:
    Journal(tmp_path / "record.json", ASKED)
    assert list(tmp_path.iterdir()) == []


def test_another_measurement_is_not_taken_for_this_one(record: Path) -> None:
    before = journal_of(record).read_bytes()
    with pytest.raises(InputError, match=r'beginning of another measurement \(commit was "abc", and is "abd"\)'):
        Journal(record, {**ASKED, "commit": "abd"})
    assert journal_of(record).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"no journal\n",
        b"[1]\n",
        b'{"measuring": 3}\n',
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        json.dumps({"measuring": ASKED}).encode() + b'\n{"draft": "none"}\n',
        json.dumps({"measuring": ASKED}).encode() + b"\n7\n",
        _spoiled(decode_seconds="1"),
        _spoiled(repeat=True),
        _spoiled(levels={"copy": {"passes": 3}}),
        _spoiled(levels=[3]),
        _spoiled(without="cost"),  # of a version that did not count it: one record has samples of one kind
        _spoiled(cost={"target": {"flops": 1, "weight_bytes": "2", "cache_bytes": 3}}),
        _spoiled(cost={"target": {"flops": 1}}),
        _spoiled(tokens=[["a"]]),
        _spoiled(accepted_per_position=[0.5]),
    ],
)
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    record = tmp_path / "record.json"
    journal_of(record).write_bytes(content)
    with pytest.raises(InputError, match=r"record\.json\.part"):
        Journal(record, ASKED)
    assert journal_of(record).read_bytes() == content


def test_without_a_record_nothing_is_written(tmp_path: Path) -> None:
    journal = Journal(None, ASKED)
    journal.add(SAMPLES[0])
    assert journal.samples == SAMPLES[:1]
    assert list(tmp_path.iterdir()) == []


def test_counts_by_position_are_added_whatever_their_lengths() -> None:
    assert added([(3, 2), (), (1, 1, 1)]) == (4, 3, 1)
    assert added([]) == ()

"""A report says what its records say, and compares only what can be compared."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench import records
from foretoken.bench.pages import markdown
from foretoken.bench.plots import draw
from foretoken.bench.report import lines, report, table
from foretoken.errors import InputError

RUN: dict[str, Any] = {
    "draft": "none",
    "temperature": 0.0,
    "promise": "exact",
    "prompts": 2,
    "tokens": 128,
    "tokens_per_second": 10.0,
    "tokens_per_second_with_prefill": 9.0,
    "speedup": 1.0,
    "speedup_interval": [1.0, 1.0],
    "speedup_with_prefill": 1.0,
    "speedup_of_total": 1.0,
    "mean_acceptance_length": 1.0,
    "draft_acceptance_rate": 0.0,
    "accepted_per_position": [],
    "drafts": 0,
    "draft_tokens": 0,
    "accepted_tokens": 0,
    "bytes_per_token": 2e9,
    "share_of_ceiling": 0.8,
    "levels": [],
    "identical": True,
    "first_difference": None,
}
DRAFTED = {
    **RUN,
    "draft": "mxfp4,lookup",
    "tokens_per_second": 23.456,
    "speedup": 2.3456,
    "speedup_interval": [1.9, 2.71],
    "speedup_of_total": 2.2,
    "speedup_with_prefill": 2.1,
    "mean_acceptance_length": 4.5,
    "draft_acceptance_rate": 0.75,
    "accepted_per_position": [20, 15, 10],
    "drafts": 20,
    "draft_tokens": 60,
    "accepted_tokens": 45,
}


def record(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(
        {
            "kind": "decode",
            "model": "small",
            "commit": "abc123",
            "machine": {"processor": "A Processor", "threads": 2, "level": "avx2"},
            "versions": {},
            "suite": {"name": "heldout-20", "prompts": 2},
            "max_new_tokens": 64,
            "repeats": 3,
            "weights": "mapped",
            "model_bytes": 2_000_000_000,
            "read_bandwidth_gb_per_s": 30.0,
            "runs": [RUN, DRAFTED],
            **changes,
        }
    )


def test_a_section_holds_what_was_measured() -> None:
    text = "\n".join(report([(Path("a.json"), record())]))
    assert "A Processor, 2 threads, engine avx2; commit abc123" in text
    assert "## small" in text
    assert "3 times, in turn with plain decoding. Memory was read at 30.0 GB/s. Tokens" in text
    row = next(line for line in text.splitlines() if line.startswith("| mxfp4,lookup"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "mxfp4,lookup",
        "23.5",
        "9.0",
        "2.35 (1.90 to 2.71)",
        "2.20",
        "2.10",
        "4.50",
        "2.00 GB",
        "0.80",
        "exact",
        "yes",
    ]
    positions = [line for line in text.splitlines() if line.startswith("| mxfp4,lookup")][1]
    assert [cell.strip() for cell in positions.strip("|").split("|")] == ["mxfp4,lookup", "75", "100", "75", "50"]


def test_a_model_has_one_section_and_what_a_file_holds_moves_no_terminal() -> None:
    other = record(suite={"name": "mine", "prompts": 2}, commit="abc\x1b[2J123")
    text = report([(Path(name), each) for name, each in (("a", record(commit=other["commit"])), ("b", other))])
    assert [line for line in text if line.startswith("## ")] == ["## small"]
    assert all(line.isprintable() for line in text)
    assert "abc\\x1b[2J123" in text[2]


def test_a_disturbed_measurement_says_so() -> None:
    assert not any("Something else ran" in line for line in lines(record(slow_memory_percent=5.0)))
    for disturbed in (record(slow_memory_percent=20.0), record(runs=[RUN, {**DRAFTED, "share_of_ceiling": 1.38}])):
        assert any(line.startswith("**Something else ran meanwhile**") for line in lines(disturbed))
    text = "\n".join(lines(record(slow_memory_percent=20.0)))
    assert "Memory was read at 30.0 GB/s; during 20 % of the generations at less than 0.8 of that." in text


def test_the_fastest_is_named_where_it_is_surely_faster() -> None:
    many = record(runs=[RUN, {**DRAFTED, "prompts": 10}, {**DRAFTED, "prompts": 10, "draft": "x", "speedup": 1.1}])
    assert lines(many)[-1] == (
        "Greedily, --draft mxfp4,lookup is fastest: its speed-up is 2.35 (1.90 to 2.71) on these prompts."
    )
    assert lines(record())[-1].endswith("on these prompts; of so few prompts that says little.")
    for changes in ({"identical": False}, {"speedup_interval": [0.9, 3.0]}, {"mean_acceptance_length": 1.0}):
        unsure = record(runs=[RUN, {**DRAFTED, **changes}])
        assert lines(unsure)[-1] == "Greedily, nothing here is surely faster than plain decoding on these prompts."


def test_a_difference_cannot_be_overlooked() -> None:
    where = {"prompt": "heldout-3", "repeat": 0, "turn": 0, "position": 17, "token": 5, "plain_token": 9}
    text = "\n".join(lines(record(runs=[RUN, {**DRAFTED, "identical": False, "first_difference": where}])))
    assert "mxfp4,lookup differs from plain decoding first in prompt heldout-3, token 17: 5 instead of 9." in text
    assert "NO |" in text


def test_other_machines_and_other_commits_are_not_compared() -> None:
    here, there = record(), record(machine={"processor": "Another", "threads": 2, "level": "avx2"})
    with pytest.raises(InputError, match=r"a.json and b.json differ in machine \(processor: 'A Processor' and"):
        report([(Path("a.json"), here), (Path("b.json"), there)])
    with pytest.raises(InputError, match=r"differ in commit \('abc123' and 'def456'\)"):
        report([(Path("a.json"), here), (Path("b.json"), record(commit="def456"))])
    assert report([(Path("a.json"), here), (Path("b.json"), record(model="large"))])
    pictured = report([(Path("a.json"), here)], {Path("a.json"): "a rec.png"})
    assert "![small](a%20rec.png)" in pictured
    with pytest.raises(InputError, match=r"a.json and b.json hold the same measurement of small; name one of them"):
        report([(Path("a.json"), here), (Path("b.json"), here)])
    for commit in (None, "abc123-dirty-01234567"):
        unknown = [(Path(name), record(commit=commit)) for name in ("a.json", "b.json")]
        with pytest.raises(InputError, match=r"a.json was measured with code that no commit holds"):
            report(unknown)
        assert report(unknown[:1])


def test_operations_are_shown_where_they_were_counted() -> None:
    counted = {"flops_per_token": 2_471_600_000.0, "cache_bytes_per_token": 4e6}
    old, new = table([RUN, DRAFTED]), table([{**RUN, **counted}, DRAFTED])
    assert "GFLOP" not in old[0]
    cells = [[cell.strip() for cell in line.split("|")] for line in new]
    at = cells[0].index("GFLOP a token")
    assert cells[0][at + 1] == "bytes a token"
    assert [line[at] for line in cells[2:]] == ["2.47", ""]
    assert [line[:at] + line[at + 1 :] for line in cells] == [[c.strip() for c in line.split("|")] for line in old]


def test_columns_stand_under_each_other() -> None:
    table = markdown(["draft", "x"], [["a|b", "1.00"], ["c", "10.00"]])
    assert len({len(line) for line in table}) == 1
    assert table[2] == "| a\\|b  |  1.00 |"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_text(json.dumps(record()))
    assert records.read(place) == record()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "no record of a measurement"),
        (b"{}", "no record of a measurement; expected one that `bench decode`"),
        (json.dumps(record(kind="passes")).encode(), "a record of kind 'passes'"),
        (json.dumps(record(machine=[])).encode(), "machine is [], expected an object"),
        (json.dumps(record(repeats=True)).encode(), "repeats is True, expected a whole number"),
        (json.dumps(record(read_bandwidth_gb_per_s=float("nan"))).encode(), "expected a number or null"),
        (json.dumps(record(read_bandwidth_gb_per_s=10**400)).encode(), "expected a number or null"),
        (json.dumps(record(model_bytes=10**400)).encode(), "expected a whole number"),
        (json.dumps(record(runs=[])).encode(), "has no runs"),
        (json.dumps(record(runs=[3])).encode(), "runs[0] is 3, expected an object"),
        (json.dumps(record(runs=[RUN, {**RUN, "speedup": "fast"}])).encode(), "runs[1]: speedup is 'fast', expected a"),
        (json.dumps(record(runs=[{**RUN, "flops_per_token": "x"}])).encode(), "flops_per_token is 'x', expected a"),
        (json.dumps(record(runs=[{**RUN, "speedup_interval": [1]}])).encode(), "speedup_interval is [1], expected two"),
        (json.dumps(record(runs=[{**RUN, "accepted_per_position": ["x"]}])).encode(), "expected whole numbers"),
        (json.dumps(record(runs=[{k: v for k, v in RUN.items() if k != "drafts"}])).encode(), "drafts is absent"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    place = tmp_path / "a.json"
    place.write_bytes(content)
    with pytest.raises(InputError) as refused:
        records.read(place)
    assert said in str(refused.value)
    assert str(place) in str(refused.value)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [RUN, DRAFTED, {**DRAFTED, "temperature": 0.8, "share_of_ceiling": None}]
    draw(tmp_path / "a.png", record(runs=runs))
    draw(tmp_path / "a.svg", record(runs=runs, read_bandwidth_gb_per_s=None))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "a.svg").read_bytes()
    draw(tmp_path / "a.svg", record(runs=runs, read_bandwidth_gb_per_s=None))
    assert (tmp_path / "a.svg").read_bytes() == first

"""The tables that README shows are those of the newest records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from foretoken.bench.figures import NOTHING, beside_others, draw_beside_others, table
from foretoken.bench.side_by_side.picture import _note
from foretoken.bench.side_by_side.rows import OURS, PLAIN, Sample, Way, row
from tests.bench.test_report import DRAFTED, RUN, record

ROOT = Path(__file__).parent.parent.parent


def test_a_table_has_each_models_newest_record_of_one_machine(tmp_path: Path) -> None:
    assert table(tmp_path, "results/") == [NOTHING]
    sampled = [{**run, "temperature": 0.8} for run in (RUN, {**DRAFTED, "identical": False})]
    records = {
        "b.json": record(date="2026-11-22T10:00:00+00:00", runs=[RUN, DRAFTED, *sampled]),
        "a.json": record(date="2026-11-21T10:00:00+00:00", runs=[RUN]),  # an older one of the same
        "large.json": record(model="large", model_bytes=9_000_000_000, date="2026-11-20T10:00:00+00:00", runs=[RUN]),
        "elsewhere.json": record(model="else", machine={"processor": "B"}, date="2026-11-21T10:00:00+00:00"),
        "before.json": record(model="before", commit="fff", date="2026-11-21T10:00:00+00:00"),
        "other.json": {"results": []},
    }
    for name, content in records.items():
        (tmp_path / name).write_text(json.dumps(content))
    lines = table(tmp_path, "results/")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0] == ["model", "draft", "greedy", "with prompts", "temperature 0.8", "with prompts"]
    assert cells[2:] == [
        ["[before](results/before.json)", "plain", "10.0 tok/s", "9.0 tok/s", "", ""],
        ["", "`mxfp4,lookup`", "2.35× (1.90 to 2.71)", "2.10×", "", ""],
        ["[small](results/b.json)", "plain", "10.0 tok/s", "9.0 tok/s", "10.0 tok/s", "9.0 tok/s"],
        ["", "`mxfp4,lookup`", "2.35× (1.90 to 2.71)", "2.10×", "NOT identical", ""],
        ["[large](results/large.json)", "plain", "10.0 tok/s", "9.0 tok/s", "", ""],
    ]
    assert (
        "Each prompt was completed 3 times with each draft, in turn, on A Processor with 2 threads; "
        "commit fff (before), abc123 (small, large). All outputs kept the promise `exact`." in lines[-1]
    )


def test_beside_others_stands_the_newest_record(tmp_path: Path) -> None:
    assert beside_others(tmp_path, "../results/") == [NOTHING]
    way = Way(OURS, PLAIN, "draft none")
    decoded = [Sample(OURS, PLAIN, "none", f"p{i}", 0, (1, 2, 3), 2.0, 1.0) for i in range(10)]
    measured = {
        "kind": "peers",
        "model": "small",
        "commit": "abc123",
        "machine": {"processor": "A", "threads": 2},
        "suite": {"name": "heldout-20", "prompts": 10},
        "max_new_tokens": 64,
        "repeats": 1,
        "promise": "exact",
        "rows": [asdict(row(way, decoded))],
        "peers": {},
    }
    for name, date in (("old.json", "2026-11-20"), ("new.json", "2026-11-22"), ("older.json", "2026-11-19")):
        (tmp_path / name).write_text(json.dumps({**measured, "date": date}))
    text = "\n".join(beside_others(tmp_path, "../results/"))
    assert text.startswith("[Record](../results/new.json): A, 2 threads")
    assert "our best is x (95 %)" in text


def test_the_picture_beside_others_is_of_the_newest_record(tmp_path: Path) -> None:
    draw_beside_others(tmp_path, tmp_path / "peers.png")
    assert not (tmp_path / "peers.png").exists(), "there is nothing to draw"
    newest = ROOT / "results" / "2026-11-22-peers-1b-4096.json"
    (tmp_path / newest.name).write_bytes(newest.read_bytes())
    draw_beside_others(tmp_path, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    notes = {(row["engine"], row["mode"]): _note(row) for row in json.loads(newest.read_bytes())["rows"]}
    assert notes["foretoken", "mxfp4,lookup"] == notes["llamacpp", "plain"] == ""
    assert notes["llamacpp", "q4_0"] == "   other weights, another output"
    assert notes["transformers", "assisted"] == "   changed tokens in 2 of 10 prompts"

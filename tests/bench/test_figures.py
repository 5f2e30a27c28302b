"""The tables that README shows are those of the newest records."""

from __future__ import annotations

import json
from pathlib import Path

from foretoken.bench.figures import NOTHING, table
from tests.bench.test_report import DRAFTED, RUN, record


def test_a_table_has_each_models_newest_record(tmp_path: Path) -> None:
    assert table(tmp_path, "results/") == [NOTHING]
    faster = [RUN, {**DRAFTED, "speedup_of_total": 3.0}]
    sampled = [{**run, "temperature": 0.8} for run in (RUN, {**DRAFTED, "speedup_of_total": 1.5})]
    records = {
        "2026-11-22-b.json": record(date="2026-11-22T10:00:00+00:00", runs=[*faster, *sampled]),
        "2026-11-23-a.json": record(date="2026-11-21T10:00:00+00:00"),  # an older one, whatever it is called
        "large.json": record(model="large", model_bytes=9_000_000_000, date="2026-11-20T10:00:00+00:00", runs=[RUN]),
        "other.json": {"results": []},
    }
    for name, content in records.items():
        (tmp_path / name).write_text(json.dumps(content))
    lines = table(tmp_path, "results/")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert cells[0] == ["model", "temperature", "plainly, tokens/s", "`mxfp4,lookup`"]
    assert cells[2] == ["[small](results/2026-11-22-b.json)", "0", "10.0", "3.00"]
    assert cells[3] == ["[small](results/2026-11-22-b.json)", "0.8", "10.0", "1.50"]
    assert cells[4] == ["[large](results/large.json)", "0", "10.0", ""]
    assert lines[-1].endswith("on A Processor, 2 threads.")

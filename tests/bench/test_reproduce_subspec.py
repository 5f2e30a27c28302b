"""SubSpec measured again: the paper's own numbers, and its tables and figures with ours beside them."""

from __future__ import annotations

from statistics import mean

import pytest

from foretoken.bench.reproduce.subspec_reported import PLAIN, TABLE_1, TABLE_6

# where the paper contradicts itself: target, draft, temperature, and which figure
DOUBTFUL = {
    ("Llama-3.1 8B", "EAGLE-2", 0.6, "length"),
    ("DeepSeek-R1-Distill Qwen 7B", "none", 0.0, "mean"),
    ("DeepSeek-R1-Distill Qwen 7B", "SubSpec", 0.0, "length"),
    ("DeepSeek-R1-Distill Qwen 32B", "SubSpec", 0.0, "speed-up"),
}


def test_the_papers_means_follow_from_its_cells_but_where_it_contradicts_itself() -> None:
    plain = {line.target: line.mean for line in (*TABLE_1, *TABLE_6) if line.draft == PLAIN}
    found = set()
    for line in (*TABLE_1, *TABLE_6):
        follows = {
            "mean": line.mean == pytest.approx(mean(line.tokens_per_second), abs=0.02),
            "length": line.mean_length == pytest.approx(mean(line.lengths), abs=0.02),
            "speed-up": line.speedup == pytest.approx(line.mean / plain[line.target], rel=0.015),
        }
        found |= {(line.target, line.draft, line.temperature, what) for what, right in follows.items() if not right}
    assert found == DOUBTFUL
    assert len(TABLE_1) == 30

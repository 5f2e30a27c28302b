"""A seeded sample of a product in which every pair of values of every two factors occurs at least once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Rows of the product, few and different for different seeds. Greedy: each row starts from an uncovered pair."""
    rng = random.Random(seed)
    names = list(factors)
    missing = {(a, x, b, y) for a, b in combinations(names, 2) for x, y in product(factors[a], factors[b])}
    order = sorted(missing, key=repr)
    rng.shuffle(order)
    rows = []
    for a, x, b, y in order:
        if (a, x, b, y) not in missing:
            continue
        row = {a: x, b: y}
        for name in names:
            if name not in row:
                values = list(factors[name])
                rng.shuffle(values)
                row[name] = max(values, key=lambda v, n=name: sum(p in missing for p in _pairs({**row, n: v}, names)))
        missing -= set(_pairs(row, names))
        rows.append({name: row[name] for name in names})
    assert not missing
    return rows


def _pairs(row: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, Any, str, Any]]:
    return [(a, row[a], b, row[b]) for a, b in combinations(names, 2) if a in row and b in row]

from __future__ import annotations

import os
from pathlib import Path

import pytest

# nothing in the tests may reach for a network
os.environ["HF_HUB_OFFLINE"] = "1"
# several processes share the cores, and threads that wait by looking take them from each other: ten times as long
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

HERE = Path(__file__).parent
# What stands above the arithmetic: measuring, drawing, files, and the command line. Whatever multiplies, it comes out
# the same, so it meets one of the two engines; what the command line generates, and says of its engine, meets both.
ABOVE = (
    *("bench", "cli", "timeline", "prove", "copies/test_place.py", "test_repository.py"),
    *("test_generate_many.py", "test_generate_beside.py", "engine/test_open_loop.py"),
)
WITH_BOTH = ("cli/test_generate.py", "cli/test_doctor.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(HERE)
        if any(place.is_relative_to(above) for above in ABOVE) and place.as_posix() not in WITH_BOTH:
            item.add_marker("above_arithmetic")

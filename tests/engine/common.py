"""What the tests of the engine share."""

from __future__ import annotations

import pytest

from foretoken.protocol.types import Request
from tests.tiny import ARITHMETICS
from tests.world import make_world

both = pytest.mark.parametrize("arithmetic", ARITHMETICS)


def request(sequence: int = 0, count: int = 20) -> Request:
    return Request(sequence, make_world().plains[sequence].prompt, count, keep_logits=True)

"""A config.json that is not as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.decoder.config import parse_config
from foretoken.errors import ForetokenError
from tests.tiny import BASE


def refusal(raw: dict[str, Any]) -> ForetokenError:
    """The error that a config.json like `BASE` but for some keys gives; a key of None is there, and null."""
    with pytest.raises(ForetokenError) as caught:
        parse_config({**BASE, **raw})
    assert "\n" not in str(caught.value)
    return caught.value


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in BASE.items() if name != key}

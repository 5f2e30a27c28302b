"""Lines of a batch, as a file has them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from foretoken.settings.generate import GenerateSettings

pytest.importorskip("pydantic")

from foretoken.serve.batch_lines import Lines, Usual

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def asks(name: str, body: Mapping[str, Any], url: str = COMPLETIONS) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def lines_of(*given: Any, usual: Usual | None = None) -> Lines:
    raw = b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in given)
    return Lines(io.BytesIO(raw), "in.jsonl", usual or Usual.of(GenerateSettings()))

"""Drafts inside vLLM: `make vllm`. Without vLLM, nothing is collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []

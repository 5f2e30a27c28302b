"""Clients of others against a real server: `make clients`. Without their packages, nothing is collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",  # it reads no .env file
    "LANGSMITH_TRACING": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "OPENAI_API_KEY": "none",
    "TQDM_DISABLE": "1",
}
PACKAGES = ("langchain_openai", "litellm", "lm_eval", "schemathesis")
collect_ignore_glob = ["test_*.py"] if any(find_spec(name) is None for name in PACKAGES) else []

if not collect_ignore_glob:
    from tests.prove.serving.process import Process, started
    from tests.talks import talking

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """stdlib-7m with a chat template."""
        return talking(tmp_path_factory.mktemp("clients") / "talker", model="stdlib-7m")

    @pytest.fixture(scope="session")
    def server(folder: Path) -> Iterator[Process]:
        """A server of it, whose arithmetic is in float32. There must be no traceback in its log."""
        with started(folder, ["--dtype", "float32", "--draft", "lookup"]) as process:
            yield process
            assert "Traceback" not in process.said, process.said[-5000:]


@pytest.fixture(autouse=True)
def _client(request: pytest.FixtureRequest) -> None:
    """Say which client it is."""
    name = request.module.CLIENT
    print(f"\n{name} {version(name)}", flush=True)

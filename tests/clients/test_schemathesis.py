"""schemathesis: requests that are drawn from the server's own description. None may be answered with 5xx.

Texts have 48 tokens at most, whatever a request asks for, so that there is time for many requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.prove.serving.process import started
from tests.talks import talking

CLIENT = "schemathesis"
ROOT = Path(__file__).parents[2]
_EXAMPLES = 100  # of each route


def test_no_route_fails(tmp_path: Path) -> None:
    folder = talking(tmp_path / "talker")
    with started(folder, ["--draft", "lookup", "--max-model-len", "48"]) as server:
        _drawn(server.url, tmp_path)
        assert "Traceback" not in server.said, server.said[-5000:]


def _drawn(url: str, folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json"]
    command += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    command += ["--max-examples", str(_EXAMPLES), "--seed", "1", "--no-color", "--request-timeout", "60"]
    command += ["--suppress-health-check", "all"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.clients.hooks"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    found = re.search(r"([\d,]+) generated, ([\d,]+) passed", done.stdout)
    assert found is not None, done.stdout[-3000:]
    assert found[1] == found[2]
    assert int(found[1].replace(",", "")) > 500
    print(f"{found[1]} requests")

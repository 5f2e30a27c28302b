"""Records between engines, instruction sets and PyTorch's vectors: proven again, or refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import foretoken
from tests.tiny import needs_native
from tests.transcript.records import COUNT, MODEL, refusal, run


@needs_native
@pytest.mark.prove
def test_the_native_bits_are_the_same_at_another_level_and_with_pytorchs_other_vectors(
    whole: Path, tmp_path: Path
) -> None:
    """PyTorch computes the table of rotations, and its vectorised functions differ in the last place."""
    other = {"FORETOKEN_ISA": "generic", "ATEN_CPU_CAPABILITY": "default"}
    verified = run("verify", whole, **other)
    assert (verified.returncode, verified.stdout) == (0, f"verified: {COUNT} tokens and their logits, bit for bit\n")
    path = tmp_path / "generic.json"
    made = run("generate", "def add(", "--model", MODEL, "--max-new-tokens", 12, "--record", path, **other)
    assert made.returncode == 0, made.stderr
    assert "native generic" in made.stderr
    assert foretoken.verify(path, draft="none", threads=1).verified


@pytest.mark.prove
@pytest.mark.parametrize("vectors", ["default", pytest.param("avx2", marks=pytest.mark.prove)])
def test_the_table_of_rotations_is_the_same_with_pytorchs_other_vectors(vectors: str) -> None:
    """Else no bit of a pass would be the same on two machines. Frequencies in float32 were not."""
    code = """
import hashlib, torch
from foretoken.decoder.config import RopeConfig
from foretoken.decoder.rope import RopeTable
digest = hashlib.sha256()
for theta in (1e4, 5e5, 1e6):
    for kind in ("default", "llama3", "yarn", "dynamic", "linear"):
        for head_dim in (8, 32, 64, 80, 96, 128):
            table = RopeTable(RopeConfig(theta=theta, type=kind, factor=4.0), head_dim, torch.device("cpu"))
            for tensor in table(list(range(3000, 3100))):
                digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""
    digests = set()
    for env in (dict(os.environ), {**os.environ, "ATEN_CPU_CAPABILITY": vectors}):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.mark.prove
@needs_native
def test_the_engines_refuse_each_others_records(whole: Path, tmp_path: Path) -> None:
    off = run("verify", whole, FORETOKEN_NATIVE="off")
    assert off.returncode == 2
    assert off.stderr == (
        f"foretoken: {whole} was made by the native engine; here runs pytorch because the native module is off, by "
        "FORETOKEN_NATIVE, and its bits are others: verify it where the native engine runs\n"
    )
    path = tmp_path / "pytorch.json"
    made = run(
        "generate", "def add(", "--model", MODEL, "--max-new-tokens", 6, "--record", path, FORETOKEN_NATIVE="off"
    )
    assert made.returncode == 0, made.stderr
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["arithmetic"]["engine"] == "pytorch"
    assert refusal(path) == (
        f"{path} was made by pytorch; here runs the native engine, and its bits are others: "
        "verify it with FORETOKEN_NATIVE=off"
    )
    proven = run("verify", path, "--draft", "none", FORETOKEN_NATIVE="off")
    assert (proven.returncode, proven.stdout) == (0, "verified: 6 tokens and their logits, bit for bit\n")
    told["arithmetic"]["torch"] = "1.0"
    told["logits_sha256"] = "0" * 64
    path.write_text(json.dumps(told), encoding="utf-8")
    differs = run("verify", path, FORETOKEN_NATIVE="off")
    assert (differs.returncode, differs.stdout) == (
        1,
        "differs: 6 tokens are equal, but their logits differ in some bit "
        f"(recorded with torch 1.0, here {torch.__version__})\n",
    )

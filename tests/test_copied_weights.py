"""Weights in memory of their own: the same numbers, one allocation, and no file that stays."""

from __future__ import annotations

import errno
import gc
import io
import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import foretoken
from foretoken.common import progress as progress_module
from foretoken.common.progress import progress
from foretoken.common.source import EMBEDDED
from foretoken.decoder.config import parse_config
from foretoken.decoder.homes.huge_pages import copied
from foretoken.decoder.shapes import expected_shapes
from foretoken.errors import ModelError
from foretoken.results.completion import Completion
from tests.tiny import BASE, needs_native

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
HUGE_PAGE = 2 << 20


def files_mapped() -> list[str]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.endswith(".safetensors")]


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_copied_weights_are_the_mapped_ones_side_by_side(dtype: str) -> None:
    mapped = foretoken.load("stdlib-1m", dtype=dtype).target.weights.tensors
    copies = copied(dict(mapped), next(iter(mapped.values())).dtype)
    assert list(copies) == list(mapped)
    at = next(iter(copies.values())).data_ptr()
    assert at % HUGE_PAGE == 0
    for name, tensor in copies.items():
        assert torch.equal(tensor, mapped[name])
        assert tensor.data_ptr() % 64 == 0
        assert tensor.is_contiguous()
        assert tensor.data_ptr() == at
        at += -(-tensor.numel() * tensor.element_size() // 64) * 64


@needs_native  # PyTorch's bits may depend on where in a line of memory a weight begins
@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
@pytest.mark.parametrize("draft", ["lookup", "none"])
def test_they_say_the_same_bit_for_bit(dtype: str, draft: str) -> None:
    def generate(weights: str) -> Completion:
        model = foretoken.load("stdlib-7m", dtype=dtype, draft=draft, weights=weights, pace="fixed")
        return model.generate(PROMPT, max_new_tokens=24, hash_logits=True)

    a, b = generate("mapped"), generate("copied")
    assert a.tokens == b.tokens
    assert a.logits_sha256 == b.logits_sha256 is not None


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what is mapped")
def test_the_file_is_let_go() -> None:
    gc.collect()  # what tests before this one have left would go in between
    before = files_mapped()
    mapped = foretoken.load("stdlib-1m")
    assert len(files_mapped()) > len(before), "the list would show it"
    del mapped
    copy = foretoken.load("stdlib-1m", weights="copied")
    assert files_mapped() == before
    assert copy.generate(PROMPT, max_new_tokens=2).tokens


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no account of resident memory")
def test_no_second_copy_stays_in_memory(tmp_path: Path) -> None:
    """200 MB in bf16: copied, they are in memory once, as the process's own; mapped and read, once, as the file's."""
    shape = {"hidden_size": 1024, "vocab_size": 98_000, "tie_word_embeddings": True, "num_attention_heads": 16}
    raw = {**BASE, **shape, "num_hidden_layers": 1, "head_dim": 64}
    shapes = expected_shapes(parse_config(raw))
    size = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    assert 200e6 < size < 210e6
    save_file({n: torch.ones(s, dtype=torch.bfloat16) for n, s in shapes.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    code = """
import json, re, sys
from pathlib import Path
from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.loading import load_weights

def resident():
    status = Path("/proc/self/status").read_text()
    return {kind: 1024 * int(re.search(f"{kind}:\\\\s+(\\\\d+)", status)[1]) for kind in ("RssAnon", "RssFile")}

folder = Path(sys.argv[1])
config = parse_config(read_json(folder / "config.json"))
load_weights(Path(sys.argv[2]), parse_config(read_json(Path(sys.argv[2]) / "config.json")), copy=True)
before = resident()
weights = load_weights(folder, config, copy=sys.argv[3] == "copied")
total = sum(int(tensor.view(-1)[::512].float().sum()) for tensor in weights.tensors.values())  # every page is read
print(json.dumps({kind: now - before[kind] for kind, now in resident().items()}))
"""
    small = str(EMBEDDED["stdlib-1m"])

    def grown(how: str) -> dict[str, int]:
        command = [sys.executable, "-c", code, str(tmp_path), small, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    slack = 30e6
    copies, mapped = grown("copied"), grown("mapped")
    assert size <= copies["RssAnon"] < size + slack
    assert copies["RssFile"] < slack
    assert mapped["RssAnon"] < slack
    assert size <= mapped["RssFile"] < size + slack, "or the test measures nothing"


def test_conversion_goes_straight_into_the_allocation() -> None:
    tensors = {"a": torch.randn(7, 5), "b": torch.randn(3).to(torch.float16)}
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    given = dict(tensors)
    copies = copied(given, torch.bfloat16)
    assert not given, "what was copied is let go at once"
    assert all(torch.equal(copies[name], expected[name]) for name in tensors)
    storage = {tensor.untyped_storage().data_ptr() for tensor in copies.values()}
    assert len(storage) == 1


def test_memory_that_is_not_to_be_had_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ModelError) as error:
        copied({"a": torch.zeros(10_000_000)}, torch.bfloat16)
    assert str(error.value) == (
        "the machine does not give 0.02 GB of memory for the weights (Cannot allocate memory); leave them where they "
        "are, with weights 'mapped'"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "total", "shown"), [(True, 100, True), (True, 99, False), (False, 100, False)])
def test_a_bar_is_shown_for_what_is_large_and_to_a_terminal(
    terminal: bool, total: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(progress_module, "LARGE", 100)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading what is large", total) as done:
        for _ in range(4):
            done(25)
    assert ("reading what is large" in screen.getvalue()) == shown
    assert "\x1b[?25l" not in screen.getvalue(), "the cursor stays: a process that Ctrl-C ends would not bring it back"


def test_shards_are_copied_too(tmp_path: Path) -> None:
    config = parse_config({**BASE, "hidden_size": 32, "vocab_size": 96})
    tensors = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(i)).bfloat16()
        for i, (name, shape) in enumerate(expected_shapes(config).items())
    }
    names = list(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "hidden_size": 32, "vocab_size": 96}), encoding="utf-8")
    mapped, copy = (foretoken.load(tmp_path, draft="none", weights=weights) for weights in ("mapped", "copied"))
    one, other = (model.generate([1, 2, 3], max_new_tokens=9, ignore_eos=True) for model in (mapped, copy))
    assert one.tokens == other.tokens

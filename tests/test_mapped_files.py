"""Files that weights are mapped from: what changes under way is one clear error, and never other logits or a crash."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.model import Model
from foretoken.common.source import EMBEDDED
from foretoken.copies import quantise
from foretoken.decoder import loading
from foretoken.decoder.config import read_config
from foretoken.decoder.homes.huge_pages import copied
from foretoken.decoder.homes.mapped import MappedFiles, forget
from foretoken.decoder.loading import mapped_tensors
from foretoken.errors import BatchError, CheckpointError, ContractError
from foretoken.formats import format_of

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
ADVICE = (
    ", and the model reads its weights there: what came since cannot be trusted; load the model again, with weights "
    "'copied' if the file goes on changing"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    shutil.copytree(EMBEDDED["stdlib-1m"], place)
    return place


def overwrite(file: Path) -> None:
    """Zeros for some of its numbers, in the same file. Its time is put forward: clocks of files may be coarse."""
    before = file.stat()
    with open(file, "r+b") as there:
        there.seek(before.st_size // 2)
        there.write(bytes(10_000))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def generate(model: Model, **settings: Any) -> foretoken.Completion:
    return model.generate(PROMPT, max_new_tokens=12, ignore_eos=True, **settings)


def refusal(make: Callable[[], object], kind: type[Exception] = CheckpointError) -> str:
    with pytest.raises(kind) as error:
        make()
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


ASKED: dict[str, Callable[[Model], object]] = {
    "generate": generate,
    "stream": lambda model: list(model.stream(PROMPT, max_new_tokens=3)),
    "completions": lambda model: model.completions(PROMPT, n=2, max_new_tokens=3, temperature=0.8, seed=1),
    "chat": lambda model: list(model.chat(plain=True).send(PROMPT, max_new_tokens=3)),
    "audit": lambda model: generate(model, audit=True),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=list(ASKED))
def test_a_file_that_was_overwritten_is_found_before_it_is_read(
    ask: Callable[[Model], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(folder)
    ask(model)
    overwrite(folder / "model.safetensors")
    monkeypatch.setattr("foretoken.api.model.Engine", lambda *args, **options: pytest.fail("it runs"))
    for _ in range(2):
        assert refusal(lambda: ask(model)) == f"{folder / 'model.safetensors'} has changed since it was loaded{ADVICE}"


@pytest.mark.parametrize("draft", ["none", "lookup", "mxfp4,lookup"])
def test_a_file_that_is_overwritten_between_two_pieces_ends_the_stream(draft: str, folder: Path) -> None:
    model = foretoken.load(folder, draft=draft, pace="fixed")
    expected = generate(model).tokens
    stream = model.stream(PROMPT, max_new_tokens=12, ignore_eos=True)
    before = [next(stream).token for _ in range(5)]
    overwrite(folder / "model.safetensors")
    assert "has changed since it was loaded" in refusal(lambda: next(stream))
    assert tuple(before) == expected[:5]
    assert "has changed since it was loaded" in refusal(lambda: generate(model))


def test_what_came_of_a_pass_in_which_a_file_changed_is_not_passed_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(folder, draft="none")
    run, passes = type(model.target).run, []

    def run_and_change(*args: Any, **options: Any) -> Any:
        outputs = run(*args, **options)
        passes.append(outputs)
        if len(passes) == 4:
            overwrite(folder / "model.safetensors")
        return outputs

    monkeypatch.setattr(type(model.target), "run", run_and_change)
    pieces: list[foretoken.Piece] = []
    assert "has changed since it was loaded" in refusal(
        lambda: pieces.extend(model.stream(PROMPT, max_new_tokens=12, ignore_eos=True))
    )
    assert len(passes) == 4
    assert len(pieces) == 4, "the prompt's, and those of three passes"


def test_the_prompts_of_many_that_were_done_before_keep_their_completions(folder: Path) -> None:
    model = foretoken.load(folder)
    prompts = [PROMPT, "import os\n", "def add(", "class Stack:"]
    alone = model.generate(prompts[0], max_new_tokens=8).tokens
    done = model.generate_many(prompts, max_new_tokens=8, at_once=1, as_completed=True)
    index, first = next(done)
    assert (index, first.tokens) == (0, alone)
    overwrite(folder / "model.safetensors")
    with pytest.raises(BatchError) as error:
        next(done)
    assert [each is None for each in error.value.completions] == [False, True, True, True]
    assert set(error.value.errors) == {1, 2, 3}
    assert {type(each) for each in error.value.errors.values()} == {CheckpointError}
    assert f"{folder / 'model.safetensors'} has changed since it was loaded" in str(error.value)
    assert "4 of 4 prompts failed" in refusal(lambda: model.generate_many(prompts, max_new_tokens=8), BatchError)


CUT = """
import os, sys
import foretoken
from foretoken.errors import CheckpointError

folder, when = sys.argv[1:3]
file = folder + "/model.safetensors"
model = foretoken.load(folder, draft=sys.argv[3], pace="fixed")
stream = model.stream("def add(", max_new_tokens=20, ignore_eos=True)
if when == "under way":
    for _ in range(3):
        next(stream)
os.truncate(file, 4096)
try:
    for _ in stream:
        pass
except CheckpointError as error:
    print(error)
    try:
        model.generate("def add(", max_new_tokens=3)
    except CheckpointError as again:
        print(again)
"""


@pytest.mark.parametrize(
    ("when", "draft"),
    [
        ("under way", "mxfp4,lookup"),
        ("beforehand", "none"),
        pytest.param("under way", "none", marks=pytest.mark.prove),
        pytest.param("beforehand", "mxfp4,lookup", marks=pytest.mark.prove),
    ],
)
def test_a_file_that_was_cut_short_is_an_error_and_no_crash(when: str, draft: str, folder: Path) -> None:
    size = (folder / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", CUT, str(folder), when, draft]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    # a draft that PyTorch computes, and a copy no faster than so small a model, have a warning each; nothing else has
    warned = ("runs in PyTorch", "cannot speed up")
    assert [line for line in done.stderr.splitlines() if not any(words in line for words in warned)] == []
    message = f"{folder / 'model.safetensors'} has changed since it was loaded (it had {size:,} bytes, and has 4,096)"
    assert done.stdout == 2 * f"{message}{ADVICE}\n"


@pytest.mark.parametrize("change", [overwrite, Path.unlink, lambda file: os.truncate(file, 100)])
def test_copied_weights_do_not_care(change: Callable[[Path], object], folder: Path) -> None:
    model = foretoken.load(folder, weights="copied", draft="mxfp4,lookup", pace="fixed")
    before = generate(model, hash_logits=True)
    stream = model.stream(PROMPT, max_new_tokens=12, ignore_eos=True)
    next(stream)
    change(folder / "model.safetensors")
    assert len(list(stream)) == 11
    assert generate(model, hash_logits=True).logits_sha256 == before.logits_sha256


@pytest.mark.parametrize("home", ["auto", "mapped", "copied"])
def test_a_file_that_changes_while_it_is_converted_is_an_error(
    home: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = MappedFiles.expect_names

    def then_changed(files: MappedFiles) -> None:
        mapped(files)
        overwrite(folder / "model.safetensors")

    monkeypatch.setattr(MappedFiles, "expect_names", then_changed)
    said = refusal(lambda: foretoken.load(folder, dtype="float32", weights=home))
    assert said.startswith(f"{folder / 'model.safetensors'} has changed since it was loaded")


def test_what_was_converted_does_not_care(folder: Path) -> None:
    model = foretoken.load(folder, dtype="float32")
    before = generate(model).tokens
    overwrite(folder / "model.safetensors")
    assert generate(model).tokens == before


def test_a_file_that_was_replaced_or_removed_stays_what_it_was(folder: Path) -> None:
    """What is mapped is the file, not its name: downloads and editors put another one in its place."""
    file = folder / "model.safetensors"
    model = foretoken.load(folder)
    before = generate(model, hash_logits=True).logits_sha256
    other = folder / "other"
    other.write_bytes(os.urandom(file.stat().st_size))
    other.replace(file)
    assert generate(model, hash_logits=True).logits_sha256 == before
    shutil.rmtree(folder)
    assert generate(model, hash_logits=True).logits_sha256 == before


def test_a_file_that_was_changed_behind_another_name_is_found(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").hardlink_to(folder / "model.safetensors")
    model = foretoken.load(folder)
    (folder / "model.safetensors").unlink()
    generate(model)
    overwrite(tmp_path / "kept")
    assert "has changed since it was loaded" in refusal(lambda: generate(model))


def test_files_of_drafts_count(folder: Path) -> None:
    for options in ("", ":format=int8", ":k=2:depth=2"):
        model = foretoken.load("stdlib-7m", draft=f"{folder}{options}", pace="fixed")
        generate(model)
        overwrite(folder / "model.safetensors")
        assert str(folder / "model.safetensors") in refusal(partial(generate, model))
    model = foretoken.load("stdlib-7m", draft=str(folder), weights="copied", pace="fixed")
    overwrite(folder / "model.safetensors")
    assert generate(model).tokens


def test_low_bit_models_count_and_copies_beside_the_model_are_in_memory(folder: Path) -> None:
    low = folder.with_name("model-int4-g64")
    quantise.write(quantise.plan(folder, low, format_of("int4")))
    beside, alone = foretoken.load(folder, draft="int4", pace="fixed"), foretoken.load(low, draft="none")
    generate(alone)
    overwrite(low / "model.safetensors")
    assert str(low / "model.safetensors") in refusal(lambda: generate(alone))
    assert generate(beside).stats.accepted_tokens > 0


def test_every_shard_is_looked_at(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file in files:
        file.write_bytes(bytes(100))
    mapped = MappedFiles(files)
    assert mapped.changed() is None
    os.truncate(files[1], 50)
    error = mapped.changed()
    assert str(error) == f"{files[1]} has changed since it was loaded (it had 100 bytes, and has 50){ADVICE}"
    with pytest.raises(CheckpointError, match="has changed since"):
        mapped.expect_unchanged()
    assert "cannot be read (No such file" in refusal(lambda: MappedFiles([tmp_path / "d"]))


def test_a_file_that_is_replaced_while_it_is_loaded_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, find = folder / "model.safetensors", loading.mapped_tensors

    def replace_and_find(*args: Any) -> Any:
        shutil.copy(file, folder / "other")
        (folder / "other").replace(file)
        return find(*args)

    monkeypatch.setattr(loading, "mapped_tensors", replace_and_find)
    assert refusal(lambda: foretoken.load(folder)) == f"{file} was replaced while it was being loaded; load it again"


def test_a_file_that_changes_while_it_is_copied_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_and_change(*args: Any) -> Any:
        made = copied(*args)
        overwrite(folder / "model.safetensors")
        return made

    monkeypatch.setattr(loading, "copied", copy_and_change)
    assert "has changed since" in refusal(lambda: foretoken.load(folder, weights="copied"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
def test_no_file_stays_open_when_the_model_is_gone(folder: Path) -> None:
    def opened() -> int:
        gc.collect()
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == str(folder / "model.safetensors") for link in links)

    model = foretoken.load(folder, draft="mxfp4", pace="fixed")
    assert opened() == 1
    copy = foretoken.load(folder, draft="mxfp4", weights="copied", pace="fixed")
    assert opened() == 1
    del model
    assert opened() == 0
    assert generate(copy).tokens


def test_pages_that_are_forgotten_are_read_again_and_other_memory_is_kept() -> None:
    folder = EMBEDDED["stdlib-7m"]
    tensor = max(mapped_tensors(folder, read_config(folder)).values(), key=lambda each: each.nbytes)
    own = tensor.clone()
    for each in (tensor, own, own[1:]):
        forget(each)
    with pytest.raises(ContractError, match="not contiguous"):
        forget(tensor.T)
    assert torch.equal(tensor, own)
    assert float(own.float().abs().sum()) > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what memory is used for")
def test_pages_that_are_forgotten_are_not_in_memory() -> None:
    def of_files() -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in status if line.startswith("RssFile")).split()[1])

    folder = EMBEDDED["stdlib-7m"]
    tensor = max(mapped_tensors(folder, read_config(folder)).values(), key=lambda each: each.nbytes)
    tensor.float().sum()
    before = of_files()
    forget(tensor)
    assert of_files() < before - tensor.nbytes // 2

"""A copy is there whole or not at all, and takes the place of nothing but a copy."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.copies import place
from foretoken.copies import quantise as copies
from foretoken.copies.tensors import TensorFile
from foretoken.decoder.config import QUANT_METHOD
from foretoken.errors import InputError
from foretoken.formats import FORMATS
from tests.copies.conftest import copy_of, left_in, write_checkpoint

FULL = OSError(errno.ENOSPC, "No space left on device")


def breaking(function: Callable[..., Any], after: int, reason: BaseException) -> Callable[..., Any]:
    """A function that works so many times and then breaks off."""
    calls = 0

    def called(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise reason
        return function(*args, **named)

    return called


STAGES = {
    "the folder": (Path, "mkdir", 0),
    "the folder's lock": (place, "locked", 0),
    "the locked folder's name": (Path, "rename", 0),
    "the folder within it": (Path, "mkdir", 1),
    "the first rows": (TensorFile, "write", 0),
    "rows in the middle": (TensorFile, "write", 17),
    "the end of a file": (TensorFile, "close", 0),
    "the end of the last file": (TensorFile, "close", 2),
    "the index": (copies, "write_json", 0),
    "a file beside the weights": (shutil, "copyfile", 0),
    "the fingerprint": (copies, "fingerprint", 0),
    "the configuration": (copies, "write_json", 1),
    "the disk": (os, "fsync", 3),
    "its name": (Path, "rename", 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("reason", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "replacing"])
def test_what_breaks_off_leaves_nothing_and_what_was_there(
    stage: str, reason: BaseException, there: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "generation_config.json").write_text("{}", encoding="utf-8")
    out = model.parent / "copy"
    before = {}
    if there:
        copy_of(model, "int2", out)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
    plan = copies.plan(model, out, FORMATS["int4"], replace=there, shard=9000)
    assert len(plan.shards) > 2
    where, name, after = STAGES[stage]
    monkeypatch.setattr(where, name, breaking(getattr(where, name), after, reason))
    with pytest.raises((InputError, KeyboardInterrupt)) as error:
        copies.write(plan)
    monkeypatch.undo()
    if reason is FULL:
        assert str(error.value) == (
            f"the copy cannot be written to {out} (No space left on device); free some space, or name a folder "
            "elsewhere"
        )
    assert left_in(model.parent) == (["copy", "llama"] if there else ["llama"])
    assert {path.name: path.read_bytes() for path in out.glob("*")} == before
    copies.write(plan)  # and it can be tried again
    assert foretoken.load(out, draft="none").target.config.low_bit == plan.format


def test_an_old_copy_comes_back_where_the_new_one_gets_no_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = copy_of(model, "int2", model.parent / "copy")
    plan = copies.plan(model, out, FORMATS["int4"], replace=True)
    rename = Path.rename

    def refuse(path: Path, to: Path) -> Path:
        if path.name == "new":
            raise FULL
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InputError):
        copies.write(plan)
    assert left_in(model.parent) == ["copy", "llama"]
    assert foretoken.load(out, draft="none").target.config.low_bit == FORMATS["int2"]


def test_a_run_that_is_killed_leaves_no_copy_and_the_next_one_takes_away_what_it_left(model: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from foretoken.copies import quantise as copies
from foretoken.formats import FORMATS
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
copies.write(copies.plan(Path(sys.argv[1]), Path(sys.argv[2]), FORMATS["int4"]))
"""
    out = model.parent / "copy"
    done = subprocess.run([sys.executable, "-c", code, model, out], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    left = left_in(model.parent)
    assert len(left) == 2
    assert left[0].startswith(".foretoken-")
    assert (model.parent / left[0] / "new" / "model.safetensors").exists()
    copy_of(model, out=out)
    assert left_in(model.parent) == ["copy", "llama"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such processes")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("there", "step"), [*((False, step) for step in range(5)), *((True, s) for s in range(12))])
def test_killed_at_any_step_a_run_leaves_what_was_there_or_the_new_one(
    there: bool, step: int, after: bool, tmp_path: Path
) -> None:
    out = tmp_path / "copy"

    def fill(folder: Path, name: str) -> None:
        about = {"quantization_config": {"quant_method": QUANT_METHOD, "format": name}}
        (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
        (folder / "model.safetensors").write_text(name, encoding="utf-8")

    if there:
        out.mkdir()
        fill(out, "the old one")
    child = os.fork()
    if child == 0:
        steps = 0

        def killing(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **named: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == step + 1 and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = function(*args, **named)
                if steps == step + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return called

        try:
            for where, function in ((Path, "mkdir"), (Path, "rename"), (os, "unlink"), (os, "rmdir")):
                setattr(where, function, killing(getattr(where, function)))
            with place.written_whole(out, replace=True, ours=copies.FILES) as folder:
                fill(folder, "the new one")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "there are not so many steps"
    whole = out.exists()
    for left in tmp_path.glob(".foretoken-*.new"):
        assert not list(left.iterdir())
        os.utime(left, (1, 1))
    place.tidy(out)
    assert left_in(tmp_path) == (["copy"] if there or whole else [])
    if there or whole:
        named = step > (5 if there else 3) or (after and step == (5 if there else 3))
        assert (out / "model.safetensors").read_text(encoding="utf-8") == ("the new one" if named else "the old one")
        assert left_in(out) == ["config.json", "model.safetensors"]


def test_what_a_killed_run_was_replacing_is_back_before_anything_is_looked_at(model: Path) -> None:
    out = copy_of(model, "int2", model.parent / "copy")
    work = model.parent / ".foretoken-0.partial"
    for folder in (work, work / "new", work / "old"):
        folder.mkdir()
    out.rename(work / "old" / "copy")
    with pytest.raises(InputError, match="is there, a copy in int2-g64; give --force to replace it"):
        copies.plan(model, out, FORMATS["int4"])
    assert left_in(model.parent) == ["copy", "llama"]


def test_a_half_removed_old_copy_never_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "copy"
    out.mkdir()
    about = {"quantization_config": {"quant_method": QUANT_METHOD, "format": "int2"}}
    (out / "config.json").write_text(json.dumps(about), encoding="utf-8")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it were killed in it
    with place.written_whole(out, replace=True, ours=copies.FILES) as folder:
        (folder / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.undo()
    (work,) = tmp_path.glob(".foretoken-*")
    assert left_in(work) == ["gone", "old"]
    shutil.rmtree(out)
    place.tidy(out)
    assert left_in(tmp_path) == []


def test_a_folder_that_gets_its_lock_just_now_is_left_alone(tmp_path: Path) -> None:
    fresh = tmp_path / ".foretoken-0.new"
    fresh.mkdir()
    place.tidy(tmp_path / "copy")
    assert fresh.exists()


def test_what_another_run_is_writing_is_left_alone(model: Path) -> None:
    with place.written_whole(model.parent / "other", replace=False, ours=()) as partial:
        (partial / "config.json").write_text("{}", encoding="utf-8")
        copy_of(model)
    assert left_in(model.parent) == ["llama", "llama-int4-g64", "other"]


def test_what_came_to_lie_there_meanwhile_is_not_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = model.parent / "copy"
    plan = copies.plan(model, out, FORMATS["int4"])
    look = copies.fingerprint

    def meanwhile(*given: Any) -> str:
        monkeypatch.setattr(copies, "fingerprint", look)
        copy_of(model, "int2", out)
        return look(*given)

    monkeypatch.setattr(copies, "fingerprint", meanwhile)
    with pytest.raises(InputError, match="is there, a copy in int2-g64; give --force to replace it"):
        copies.write(plan)
    assert left_in(model.parent) == ["copy", "llama"]
    assert foretoken.load(out, draft="none").target.config.low_bit == FORMATS["int2"]


def refusal(model: Path, out: Path | str, *, replace: bool = False) -> str:
    before = left_in(model.parent)
    with pytest.raises(InputError) as error:
        copies.plan(model, Path(out), FORMATS["int4"], replace=replace)
    assert left_in(model.parent) == before
    return str(error.value)


@pytest.mark.parametrize("replace", [False, True])
def test_what_is_there_and_is_no_copy_is_refused(replace: bool, model: Path) -> None:
    other = write_checkpoint(model.with_name("other"))
    (model.parent / "file").touch()
    (model.parent / "empty").mkdir()
    for out in (model, other, model.parent / "empty", model.parent):
        assert refusal(model, out, replace=replace) == (
            f"{out} is there, and is no low-bit copy of a model; expected the name of a new folder, or of such a copy "
            "with --force"
        )
    out = model.parent / "file"
    assert refusal(model, out, replace=replace) == (
        f"{out} is there, and is no folder; expected the name of a new one for the copy"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/copy", "{folder}/file/copy cannot hold the copy (Not a directory); name another folder"),
        ("a\0b", "{folder}/a\\x00b cannot hold the copy (embedded null byte); name another folder"),
        ("x" * 300, "File name too long); name another folder"),
    ],
)
def test_a_place_that_can_hold_no_folder_is_refused(name: str, message: str, model: Path) -> None:
    (model.parent / "file").touch()
    assert refusal(model, model.parent / name).endswith(message.format(folder=model.parent))


def test_a_folder_that_cannot_be_written_to_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda folder, mode: Path(folder) != model.parent)
    assert refusal(model, model.parent / "copy") == (
        f"the folder {model.parent} cannot be written to; name one elsewhere for the copy"
    )


def test_a_copy_is_replaced_only_if_that_is_asked_for(model: Path) -> None:
    out = copy_of(model, "int2", model.parent / "copy", shard=3000)
    assert refusal(model, out) == (
        f"{out} is there, a copy in int2-g64; give --force to replace it, or name another folder"
    )
    copy_of(model, "int8", out, replace=True)
    assert left_in(out) == ["config.json", "model.safetensors"]
    assert left_in(model.parent) == ["copy", "llama"]
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["quantization_config"]["format"] == "int8"


def test_a_copy_in_which_somebody_keeps_something_is_not_replaced(model: Path) -> None:
    out = copy_of(model)
    (out / "notes.txt").touch()
    assert refusal(model, out, replace=True) == (
        f"{out} holds 'notes.txt', which no copy of ours has, and replacing it would lose it; take it away, or name "
        "another folder"
    )


def test_a_link_keeps_leading_to_the_copy(model: Path) -> None:
    out, link = copy_of(model), model.parent / "link"
    link.symlink_to(out)
    copy_of(model, "int2", link, replace=True)
    assert link.is_symlink()
    assert foretoken.load(out, draft="none").target.config.low_bit == FORMATS["int2"]


def test_a_name_without_a_folder_is_in_the_one_where_we_are(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    copy_of(Path("llama"), out=Path("copy"))
    assert left_in(model.parent) == ["copy", "llama"]

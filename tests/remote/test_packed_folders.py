"""What a trained drafter's folder holds for a client, and which folders a client cannot draft with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.common.source import EMBEDDED
from foretoken.drafters.packing import is_packed, pack
from foretoken.errors import CheckpointError, DraftSpecError, InputError
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from tests.remote.served import MODEL, PROMPT, client, plain


def test_a_packed_folder_holds_no_more_than_a_client_needs(
    drafters: dict[str, Path], clients: dict[str, str], tmp_path: Path
) -> None:
    place = Path(clients["moa-1"])
    assert is_packed(place)
    assert not is_packed(drafters["moa-1"])
    last = plain().target.config.num_layers - 1
    theirs, own = (load_file(each / "model.safetensors") for each in (place / "target", place))
    assert {name for name in theirs if ".layers." not in name} == {"model.embed_tokens.weight", "model.norm.weight"}
    assert {name.split(".")[2] for name in theirs if ".layers." in name} == {str(last)}
    assert {name for name in own if "observer" in name} == {"observer.projection.weight", "observer.projection.bias"}
    pack(EMBEDDED[MODEL], drafters["moa"], tmp_path / "out")
    pack(EMBEDDED[MODEL], drafters["moa-1"], tmp_path / "out")  # which takes its place
    assert (tmp_path / "out" / "config.json").read_text() == (place / "config.json").read_text()
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="was not packed for clients; name another folder"):
        pack(EMBEDDED[MODEL], drafters["moa"], tmp_path / "other")
    with pytest.raises(CheckpointError, match="was trained for a model whose"):
        pack(EMBEDDED["stdlib-7m"], drafters["moa"], tmp_path / "third")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "other"}, "nothing is left over"


def test_whoever_may_read_new_files_may_read_a_drafter(
    drafters: dict[str, Path], clients: dict[str, str], tmp_path: Path
) -> None:
    """safetensors writes files for their owner alone. Then a server under another name could not load one."""
    (tmp_path / "new").touch()
    usual = (tmp_path / "new").stat().st_mode
    written = [file for place in (drafters["moa"], Path(clients["moa-1"])) for file in place.rglob("*.*")]
    assert len(written) == 2 + 4
    assert {file.stat().st_mode for file in written} == {usual}


def test_what_a_client_cannot_draft_with_is_refused_in_a_line(
    host: Host, drafters: dict[str, Path], clients: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"nothing of the model that it was trained for.*foretoken pack"):
        client(host, draft=str(drafters["moa"]))
    with pytest.raises(CheckpointError, match="was trained for another model"):
        client(host, draft="moa")
    with pytest.raises(DraftSpecError, match="put it first"):
        client(host, draft=f"stdlib-1m,{clients['moa']}")
    with pytest.raises(CheckpointError, match="was packed for clients, without the part that runs beside the model"):
        foretoken.load(MODEL, draft=clients["moa"])
    spoiled = tmp_path / "spoiled"
    shutil.copytree(clients["moa"], spoiled)
    (spoiled / "target" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        client(host, draft=str(spoiled))
    bare = hosted(plain(), Listening(port=0), Limits())
    try:
        with pytest.raises(InputError, match="foretoken host MODEL --drafter FOLDER"):
            client(bare, draft=clients["moa"])
        assert client(bare, draft=clients["eagle3"]).generate(PROMPT, max_new_tokens=4).tokens
    finally:
        bare.close()
    with pytest.raises(CheckpointError, match="was trained for a model whose"):
        hosted(foretoken.load("stdlib-7m", draft="none"), Listening(port=0), Limits(), [str(drafters["moa"])])

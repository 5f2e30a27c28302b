"""A tokenizer's files: none of them is a program that runs here, and what its library would panic over is said."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoTokenizer

from foretoken.common.source import EMBEDDED
from foretoken.errors import CheckpointError
from foretoken.text.tokenizer import Tokenizer, _without_warnings

PEERS = Path(__file__).parent.parent / "src" / "foretoken" / "bench" / "peers"
Change = Callable[[dict[str, Any]], object]
PROGRAM = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
Path(__file__).with_name("it-ran").touch()
class Own(PreTrainedTokenizerFast):
    pass
"""


def altered(folder: Path, file: str, change: Change) -> Path:
    """A copy of an embedded model with one file changed."""
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    change(content)
    (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def with_a_program(folder: Path) -> Path:
    """A checkpoint whose tokenizer is a program of its own."""
    own = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}, "tokenizer_class": "Own"}
    altered(folder, "tokenizer_config.json", lambda told: told.update(own))
    (folder / "tokenization_own.py").write_text(PROGRAM, encoding="utf-8")
    return folder


def foretoken(*words: object, stdin: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own. home: where a program of a checkpoint's would be copied to."""
    env = {**os.environ, "HF_HOME": str(home)}
    command = [sys.executable, "-m", "foretoken", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=env)


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "--max-new-tokens", 1, "--model"),
        pytest.param(("chat", "--plain", "--model"), marks=pytest.mark.prove),
        pytest.param(("generate", "--draft"), marks=pytest.mark.prove),
    ],
    ids=["generate", "chat", "draft"],
)
def test_a_tokenizer_that_is_a_program_is_refused_and_nobody_is_asked(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    folder = with_a_program(tmp_path / "model")
    ran = foretoken(*words, folder, stdin="y\n", home=tmp_path / "home")
    assert not list(tmp_path.rglob("it-ran")), "the program of the checkpoint ran"
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"foretoken: the tokenizer in {folder} is a program of the checkpoint's own (tokenization_own.Own), which "
        "Foretoken never runs; name a checkpoint with a tokenizer.json of a kind that transformers knows\n"
    )


def test_a_program_beside_a_tokenizer_that_is_known_is_let_lie(tmp_path: Path) -> None:
    folder = with_a_program(tmp_path / "model")
    path = folder / "tokenizer_config.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**told, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    loaded, known = Tokenizer.load(folder), Tokenizer.load(EMBEDDED["stdlib-1m"])
    assert loaded is not None
    assert known is not None
    assert loaded.encode("def f(x):") == known.encode("def f(x):")
    assert not list(tmp_path.rglob("it-ran"))


def test_a_peer_runs_no_program_of_a_checkpoints_either(tmp_path: Path) -> None:
    own = {"model_type": "own", "auto_map": {"AutoConfig": "tokenization_own.Own"}}
    folder = altered(tmp_path / "model", "config.json", lambda told: told.update(own))
    (folder / "tokenization_own.py").write_text(PROGRAM, encoding="utf-8")
    code = "import pathlib, sys, transformers_peer; transformers_peer.loaded(pathlib.Path(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": str(PEERS), "HF_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", code, folder], input="y\n", capture_output=True, text=True, check=False, env=env
    )
    assert not list(tmp_path.rglob("it-ran")), "the program of the checkpoint ran"
    assert ran.returncode == 1
    assert "contains custom code" in ran.stderr


def test_what_transformers_advises_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that a model of type `` is used for one of another type, where only a tokenizer is read."""
    heard: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    log, handler, load = logging.getLogger("transformers"), Listening(), AutoTokenizer.from_pretrained

    def advising(*args: Any, **settings: Any) -> Any:
        log.getChild("configuration_utils").warning("You are using a model of type `` to instantiate another")
        return load(*args, **settings)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", advising)
    log.addHandler(handler)
    try:
        assert Tokenizer.load(EMBEDDED["stdlib-1m"]) is not None
        assert heard == []
        log.warning("of something else")
        assert heard == ["of something else"]
    finally:
        log.removeHandler(handler)


def test_threads_that_load_tokenizers_leave_the_level_as_it_was() -> None:
    log = logging.getLogger("transformers")
    before = log.level
    first, other = _without_warnings(), _without_warnings()
    first.__enter__()
    other.__enter__()
    first.__exit__(None, None, None)
    assert log.level == logging.ERROR, "the other one is still loading"
    other.__exit__(None, None, None)
    assert log.level == before


# -- what the library panics over -------------------------------------------------------------------------------------


def _model(**values: object) -> Change:
    return lambda told: told["model"].update(values)


def _put(**values: object) -> Change:
    return lambda told: told.update(values)


def _template(single: list[Any], special: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
_KNOWN = {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}}
_BEGIN = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
PANICS: dict[str, tuple[Change, str]] = {
    "a prefix": (
        _model(continuing_subword_prefix="٣"),
        "continuing_subword_prefix is '٣', and not every merge goes on with it",
    ),
    "a prefix that ends the process": (
        _model(continuing_subword_prefix="x"),
        "continuing_subword_prefix is 'x', and not every merge goes on with it",
    ),
    "a template": (
        _put(post_processor=_template([_BEGIN, _TEXT], {})),
        "its template names the token '<|begin|>', which is not among its special_tokens",
    ),
    "a template among others": (
        _put(post_processor={"type": "Sequence", "processors": [_template([_BEGIN, _TEXT], {})]}),
        "its template names the token '<|begin|>', which is not among its special_tokens",
    ),
    "a template for two": (
        _put(post_processor=_template([_TEXT, {"Sequence": {"id": "B", "type_id": 0}}], {})),
        "its template for one text names a second",
    ),
    "nothing before": (
        _put(normalizer={"type": "Prepend", "prepend": ""}),
        "its normalizer Prepend has nothing to look for or to put",
    ),
    "nothing replaced": (
        _put(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": ""}, "content": "▁"}, {"type": "NFC"}],
            }
        ),
        "its normalizer Replace has nothing to look for or to put",
    ),
}


@pytest.mark.parametrize("which", PANICS)
def test_what_the_library_would_panic_over_is_one_line_and_nothing_else(
    which: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, reason = PANICS[which]
    folder = altered(tmp_path / "model", "tokenizer.json", change)

    def encode() -> None:
        loaded = Tokenizer.load(folder)
        assert loaded is not None
        loaded.encode("def f(x): 1")

    with pytest.raises(CheckpointError) as error:
        encode()
    assert str(error.value) == f"the tokenizer in {folder} cannot be loaded ({reason}); fetch its files again"
    assert capfd.readouterr().err == "", "Rust says a panic before Python hears of it"


@pytest.mark.parametrize(
    "change",
    [
        _model(continuing_subword_prefix=""),
        _put(post_processor=_template([_BEGIN, _TEXT], _KNOWN)),
        _put(normalizer={"type": "Prepend", "prepend": "▁"}),
        _put(normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": ""}),
    ],
)
def test_what_is_sound_is_loaded(change: Change, tmp_path: Path) -> None:
    loaded = Tokenizer.load(altered(tmp_path / "model", "tokenizer.json", change))
    assert loaded is not None
    assert loaded.encode("def f(x): 1")


def test_a_prefix_that_every_merge_goes_on_with_is_sound(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "##b": 1, "ab": 2}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[("a", "##b")], continuing_subword_prefix="##")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded is not None
    assert loaded.encode("ab") == [2]

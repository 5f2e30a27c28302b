"""Files that are no record, or none that makes sense, are refused with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import foretoken
from foretoken.errors import DraftSpecError, ForetokenError, ModelNotFoundError, SettingError
from foretoken.transcript.layout import _FIELDS
from tests.transcript.records import ENGINE, Altered, Record, put, refusal


def settings(**values: object) -> Callable[[Record], object]:
    return lambda told: told["settings"].update(values)


def test_a_file_that_is_no_record_is_refused(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "record.json"
    assert refusal(path) == f"{path} cannot be read (No such file or directory); name the file of a record"
    assert refusal(tmp_path) == f"{tmp_path} cannot be read (Is a directory); name the file of a record"
    content = whole.read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:cut])
        assert re.fullmatch(
            re.escape(str(path)) + r" is not JSON \(.*\); it may be cut short: expected a record", refusal(path)
        )
    for other in (b"\xff\xfe", b"[" * 100_000, b"9" * 10_000):
        path.write_bytes(other)
        assert "is not JSON" in refusal(path) or "is not a record" in refusal(path)
    for value in ([], 3, None, {}, {"format": "another"}):
        path.write_text(json.dumps(value), encoding="utf-8")
        assert refusal(path) == (f"{path} is not a record of a generation; expected one that `generate --record` wrote")


@pytest.mark.parametrize("version", [1, 3, 0, "2", None, True, 2.0])
def test_another_version_is_refused(altered: Altered, version: object) -> None:
    path = altered(put(version=version))
    assert refusal(path) == (
        f"{path} is a record of version {version!r}, expected 2; verify it with the Foretoken that wrote it, or record "
        "it again"
    )


@pytest.mark.parametrize("name", _FIELDS)
def test_a_field_that_is_missing_is_named(altered: Altered, name: str) -> None:
    *path, last = name.split(".")

    def change(told: Record) -> None:
        for key in path:
            told = told[key]
        del told[last]

    file = altered(change)
    assert refusal(file) == f"{file} lacks {name}; it is no whole record: record it again"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(model=3), "model is 3, expected text"),
        (put(prompt=[]), "lacks prompt.text; it is no whole record"),
        (lambda told: told["prompt"].update(tokens=[]), "prompt.tokens is [], expected token ids"),
        (lambda told: told["prompt"].update(tokens=[True]), "prompt.tokens is [True], expected token ids"),
        (put(tokens=[1, -1]), "tokens is [1, -1], expected token ids"),
        (put(tokens="12"), "tokens is '12', expected token ids"),
        (put(finish_reason="eos"), "finish_reason is 'eos', expected stop or length"),
        (put(logits_sha256="0x12"), "logits_sha256 is '0x12', expected 64 hexadecimal digits"),
        (put(files={}), "files is {}, expected names of files with 64"),
        (put(files={"config.json": 1}), "files is {'config.json': 1}, expected names of files with 64"),
        (put(arithmetic={"engine": "other"}), "arithmetic.engine is 'other', expected native, pytorch or triton"),
        (put(promise="perfect"), "promise is 'perfect', expected exact or algorithmic"),
        (put(provenance=1), "lacks provenance.versions.foretoken"),
        (settings(temperature=0.7), "settings.seed is None, expected a whole number, because tokens were sampled"),
        (settings(seed=1), "settings.seed is 1, expected null, because decoding is greedy"),
        (settings(temperature=0.7, seed=-1), "seed is -1, expected a whole number, 0 to 18446744073709551615"),
        (settings(temperature=0.7, seed=1.5), "settings.seed is 1.5, expected a whole number, or null"),
        (settings(temperature=-1, seed=1), "temperature is -1, expected 0 (greedy), or a number, 0.001 to 100"),
        (settings(temperature=True), "settings.temperature is True, expected a number"),
        (settings(temperature="warm"), "settings.temperature is 'warm', expected a number"),
        (settings(top_k=-1), "top_k is -1, expected a whole number, 0 to 2147483648"),
        (settings(top_p="all"), "top_p is 'all', expected a number, above 0 to 1"),
        (settings(repetition_penalty=0), "repetition_penalty is 0, expected a number, 0.01 to 100"),
        (settings(stop="x"), "settings.stop is 'x', expected texts"),
        (settings(stop=["x", ""]), "stop is '', expected a text or several, none of them empty"),
        (settings(stop=[1]), "settings.stop is [1], expected texts"),
        (settings(logit_bias=[1]), "settings.logit_bias is [1], expected null, or token ids with a number each"),
        (settings(logit_bias={"x": 1}), "settings.logit_bias is {'x': 1}, expected null, or token ids with a number"),
        (settings(logit_bias={"1": "x"}), "the logit_bias of token 1 is 'x', expected a number, -1000 to 1000"),
        (settings(logit_bias={"99999": 1}), "logit_bias names token 99999; the model has tokens 0 to 4095"),
        (settings(regex=1), "settings.regex is 1, expected text or null"),
        (settings(json_schema={}), "settings.json_schema is {}, expected text or null"),
        (settings(regex="("), "("),
        (put(stop_string=1), "stop_string is 1, expected text or null"),
        (lambda told: told["settings"].update(dtype="int8"), "dtype is 'int8'"),
        (lambda told: told["settings"].update(dtype=["float32"]), "dtype is ['float32']"),
        (lambda told: told["settings"].update(draft=None), "draft is None, expected text"),
        (lambda told: told["settings"].update(max_new_tokens="all"), "max_new_tokens is 'all', expected a whole"),
        (lambda told: told["settings"].update(ignore_eos=1), "ignore_eos is 1, expected True or False"),
        (lambda told: told["prompt"].update(tokens=[10**9], text=None), "the prompt holds token 1000000000; the model"),
        (lambda told: told["prompt"].update(text=""), "the prompt is empty; expected at least one token"),
        (lambda told: told["prompt"].update(text="\ud800"), "the prompt is not text: character 0 is half a character"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_by_name(
    altered: Altered, change: Callable[[Record], object], message: str
) -> None:
    path = altered(change)
    said = refusal(path)
    assert said.startswith(str(path))
    assert message in said


_LINES = "a\nb\r" + "x" * 5000


@pytest.mark.parametrize(
    "change",
    [
        put(version=_LINES),
        put(model=_LINES),
        put(model=_LINES, revision=_LINES),
        put(revision=_LINES),
        put(files={_LINES: "0" * 64}),
        put(arithmetic={"engine": ENGINE, "architecture": _LINES, "threads": 1}, tokens=[1]),
        put(arithmetic={"engine": ENGINE, "torch": _LINES, "processor": _LINES, "threads": 1}, tokens=[1]),
        put(provenance={"versions": {"foretoken": _LINES}}, tokens=[1]),
        put(finish_reason=_LINES),
        settings(draft=_LINES),
        settings(draft=f"lookup:{_LINES}=1"),
        settings(draft=f"lookup:tokens={_LINES}"),
        settings(device=_LINES),
        settings(regex=f"({_LINES}"),
        settings(json_schema=_LINES),
        settings(json_schema=json.dumps({"type": _LINES})),
        settings(stop=[_LINES, 1]),
        settings(logit_bias={_LINES: 1}),
        settings(logit_bias={"1": _LINES}),
    ],
    ids=range(19),
)
def test_what_a_record_holds_is_told_on_one_line_and_cut(altered: Altered, change: Callable[[Record], object]) -> None:
    path = altered(change)
    try:
        said = foretoken.verify(path).difference
    except ForetokenError as error:
        said = str(error)
    assert said is not None
    assert len(said.splitlines()) == 1
    assert said.isprintable()
    assert len(said) < 450 + 2 * len(str(path))


def test_a_draft_that_is_not_here_is_named_with_what_to_do(altered: Altered) -> None:
    path = altered(settings(draft="/no/such/folder,lookup", num_speculative_tokens=5))
    assert refusal(path).startswith(f"{path} names what drafted, and that is not here: there is no folder")
    path = altered(settings(draft="mxfp5"))
    assert refusal(path).startswith(f"{path} names what drafted, and that is not here: there is no draft 'mxfp5'")
    assert refusal(path).endswith("say with --draft (draft=) what is to draft, 'none' for example: it proves the same")
    assert foretoken.verify(path, draft="none").verified


def test_what_the_caller_gives_is_not_blamed_on_the_record(whole: Path) -> None:
    assert refusal(whole, draft="lokup", kind=DraftSpecError).startswith("there is no draft 'lokup'; did you mean")
    assert refusal(whole, threads=0, kind=SettingError) == "threads is 0, expected a whole number, 1 or more"
    assert refusal(whole, "no/such/folder", kind=ModelNotFoundError).startswith("there is no folder 'no/such/folder'")

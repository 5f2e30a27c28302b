"""`foretoken recommend`, and the draft `auto` that it chooses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from foretoken.api import automatic
from foretoken.api.automatic import Recommended
from foretoken.api.build import load
from foretoken.bench import recommend
from foretoken.bench.recommend import Found, Row, best_of
from foretoken.common.source import EMBEDDED, resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.drafters.trained import trained_for
from foretoken.kernels import native
from foretoken.settings.load import LoadSettings
from foretoken.trained.files import write_trained
from foretoken.trained.network import Mixture, Stack
from foretoken.trained.sizes import eagle2_for, mixture_for
from tests.cli.conftest import Cli
from tests.published import random_published, write_published

SMALL = ("stdlib-1m", "--num-prompts", 2, "--max-new-tokens", 6)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where recommendations are kept, empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "foretoken" / "recommended"


def remembered(draft: str) -> Path:
    folder = resolve("stdlib-1m")
    return automatic.remember(Recommended(draft, 1.5), folder, read_config(folder), LoadSettings())


def test_a_published_drafter_is_measured_and_named_from_the_root(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load("stdlib-1m", draft="none").target
    write_published(tmp_path / "heads" / "it", *random_published(target, sees=(0, 2)), 4096, "sglang")
    monkeypatch.chdir(tmp_path)
    done = cli("recommend", *SMALL, "--also", "heads/it:tokens=2", "--also", "lookup")
    assert done.code == 0, done.err
    measured = [line.split()[0] for line in done.out.splitlines()[1:7]]
    assert f"{tmp_path}/heads/it:tokens=2" in measured
    assert measured.count("lookup") == 1
    refused = cli("recommend", *SMALL, "--also", "no/such")
    assert refused.code == 2
    assert refused.err.count("\n") == 1


def test_what_is_fastest_is_said_remembered_and_used(cli: Cli, tmp_path: Path, memory: Path) -> None:
    done = cli("recommend", *SMALL, "--json", tmp_path / "record.json")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    drafts = {line.split()[0] for line in lines[1:6]}
    assert drafts == {"none", "lookup", "mxfp4,lookup", "mxfp4:k=2,lookup", "int4:k=2,lookup"}
    (kept,) = memory.iterdir()
    best = json.loads(kept.read_text())
    assert best["draft"] in drafts
    said = "Plain decoding is best here: --draft none"
    if best["draft"] != "none":
        said = f"Use: foretoken generate --model stdlib-1m --draft {best['draft']}"
    assert said in lines
    record = json.loads((tmp_path / "record.json").read_text())
    assert {run["draft"] for run in record["runs"]} == drafts
    assert load("stdlib-1m", draft="auto").draft == best["draft"]
    again = cli("recommend", *SMALL, "--json", tmp_path / "record.json")
    assert again.code == 2
    assert "is there already" in again.err


def test_the_remembered_draft_is_used_and_gives_the_same_text(cli: Cli) -> None:
    remembered("mxfp4,lookup:tokens=3")
    done = cli("generate", "-m", "stdlib-1m", "-v", "-n", 20, "def add(")
    assert "draft auto: mxfp4,lookup:tokens=3 (measured here: 1.50 times plain decoding)" in done.err
    assert done.out == cli("generate", "-m", "stdlib-1m", "--draft", "none", "-n", 20, "def add(").out


@pytest.mark.parametrize("content", ["{", "[]", '{"draft": 3, "speedup": 1.5}', "\0"])
def test_what_is_remembered_no_more_is_measured_again(content: str, caplog: pytest.LogCaptureFixture) -> None:
    remembered("none").write_text(content)
    assert load("stdlib-1m").draft == "lookup"
    assert "run `foretoken recommend` again" in caplog.text


def test_a_recommendation_is_for_the_settings_that_were_measured() -> None:
    remembered("none")
    assert load("stdlib-1m").draft == "none"
    assert load("stdlib-1m", dtype="float32").draft != "none"


def test_a_drafter_that_lies_beside_its_model_is_tried_and_remembered(cli: Cli, tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    config = read_config(model)
    its = mixture_for(config, fingerprint(model, config))
    write_trained(tmp_path / "model-moa", its, Mixture(its, config.norm_eps).state_dict())
    done = cli("recommend", model, *SMALL[1:])
    assert done.code == 0, done.err
    drafts = [word for line in done.out.splitlines() for word in line.split()[:1]]
    assert f"{model}-moa,lookup" in drafts
    assert {f"{model}-moa:k=2,lookup", f"{model}-moa:k=4,lookup"} <= set(drafts)
    automatic.remember(Recommended(f"{model}-moa,lookup", 1.5), model, config, LoadSettings())
    assert load(str(model)).draft == f"{model}-moa,lookup"
    shutil.rmtree(f"{model}-moa")
    gone = cli("generate", "-m", model, "-n", 4, "def add(")
    assert gone.code == 0
    assert "the recommended draft cannot be used (there is no folder '/" in gone.err  # and a long path is cut
    assert f"`foretoken recommend {model}` finds another" in gone.err
    assert not trained_for(model)
    (tmp_path / "model-moa").mkdir()
    (tmp_path / "model-moa" / "config.json").write_text('{"foretoken_drafter": "mixture", "version": 1}')
    assert not trained_for(model)
    assert recommend.candidates(str(model), LoadSettings())[0][0] == "lookup"
    assert trained_for(EMBEDDED["stdlib-7m"]) == ["moa"]


def test_a_drafter_that_lookup_cannot_speed_up_is_tried_alone(tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    config = read_config(model)
    its = eagle2_for(config, fingerprint(model, config))
    write_trained(tmp_path / "model-moa", its, Stack(its, config.norm_eps).state_dict())
    drafts, _ = recommend.candidates(str(model), LoadSettings())
    assert [draft for draft in drafts if "moa" in draft] == [f"{model}-moa"]


def test_the_rejection_rule_gets_a_chain() -> None:
    remembered("mxfp4:k=2,lookup")
    assert load("stdlib-1m").settings.draft == "mxfp4:k=2,lookup"
    assert load("stdlib-1m", rule="rejection").settings.draft == "mxfp4,lookup"


@pytest.mark.skipif(native.module() is None, reason="without native code a copy is no faster than the model")
def test_a_model_that_is_not_small_begins_with_a_copy_if_it_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    assert load("stdlib-1m").draft == "lookup"
    monkeypatch.setattr(automatic, "_SMALL", 1000)
    assert load("stdlib-1m").draft == "mxfp4:k=2,lookup"
    said = "draft auto: %s (a guess; `foretoken recommend stdlib-1m` measures what is fastest)"
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "draft auto" in record.msg]
    assert told == [("DEBUG", said % "lookup"), ("INFO", said % "mxfp4:k=2,lookup")]
    monkeypatch.setattr(automatic, "memory_left", lambda: 1 << 30)
    assert load("stdlib-1m").draft == "lookup"


def test_a_copy_that_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "memory_left", lambda: 1 << 20)
    drafts, left_out = recommend.candidates("stdlib-1m", LoadSettings())
    assert drafts == ["lookup"]
    assert set(left_out) == set(recommend.OF_COPIES)
    assert "1.0 MB are free" in left_out["mxfp4,lookup"]


def test_a_place_that_cannot_be_written_is_said(cli: Cli, memory: Path) -> None:
    memory.parent.write_text("a file where a folder should be")
    done = cli("recommend", *SMALL)
    assert done.code == 0
    assert "-- it cannot be remembered (" in done.err
    assert done.err.endswith("; give the draft with --draft\n")
    assert "from now on" not in done.out


PROMPTS = "6 prompts of everyday-20, 64 new tokens each"


def row(draft: str, speedup: float, size: int = 10) -> Row:
    return Row(draft, 10 * speedup, speedup, (speedup, speedup), size)


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ((row("none", 1), row("lookup", 1.01)), "none"),
        ((row("none", 1), row("lookup", 1.5), row("mxfp4", 1.52, 12)), "lookup"),
        ((row("none", 1), row("lookup", 1.5), row("mxfp4", 1.7, 12)), "mxfp4"),
        ((row("none", 1), row("lookup", 0.4)), "none"),
    ],
)
def test_the_fastest_is_best_if_it_gains_and_among_equals_the_smallest(rows: tuple[Row, ...], best: str) -> None:
    assert best_of(rows).draft == best


def test_what_was_left_out_is_said_and_plain_decoding_recommended_where_it_is_best() -> None:
    plain = row("none", 1)
    said = recommend.lines("a folder", Found([plain, row("lookup", 0.9)], plain, PROMPTS, {"mxfp4": "too large"}))
    assert said[-1] == "Plain decoding is best here: --draft none"
    assert "mxfp4: not measured, too large" in said
    assert f"Measured on {PROMPTS}. Other texts can have another best draft: --prompts FILE." in said
    fast = row("lookup", 2)
    said = recommend.lines("a folder", Found([plain, fast], fast, PROMPTS, made=("int4-g64",)))
    assert said[-1] == "Use: foretoken generate --model 'a folder' --draft lookup"


def test_a_copy_that_was_made_can_be_kept(tmp_path: Path) -> None:
    plain, fast = row("none", 1), row("mxfp4", 2)
    said = recommend.lines(str(tmp_path), Found([plain, fast], fast, PROMPTS, made=("mxfp4",)))
    assert said[-1] == (
        "A better copy, which is then not made at each load, takes minutes to hours: "
        f"foretoken quantize {tmp_path} --format mxfp4 --quantizer gptq"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--num-prompts", 0), "num-prompts"),
        (("--prompts", "heldout-21"), "there is no suite 'heldout-21'"),
        (("--max-new-tokens", 5000), "the model has room for"),
        (("--json", "/dev/null/file.json"), "/dev/null/file.json cannot hold the record (Not a directory)"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(cli: Cli, options: tuple[object, ...], said: str) -> None:
    done = cli("recommend", "stdlib-1m", *options)
    assert done.code == 2
    assert said in done.err
    assert [line for line in done.err.splitlines() if line.startswith("foretoken: ")][0:] == done.err.splitlines()

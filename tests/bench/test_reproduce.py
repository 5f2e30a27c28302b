"""A paper measured again: every table with the paper's numbers beside ours, on from where it was interrupted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from foretoken.api.build import load
from foretoken.api.model import Model
from foretoken.bench import generations
from foretoken.bench.generations import Generation
from foretoken.bench.reproduce import fractal
from foretoken.bench.reproduce.asked import Asked
from foretoken.bench.reproduce.fractal import BASELINE, CACHED, CHAINS, FRACTAL, OTHERS, OURS, PAPER
from foretoken.bench.reproduce.fractal_reported import HYPERPARAMETERS, REPORTED
from foretoken.bench.reproduce.papers import REFERENCE, Data, Subject
from foretoken.bench.reproduce.running import Reproduction, read, reproduce
from foretoken.bench.suites import open_suite
from foretoken.common.files import write_json
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError
from tests.tiny import one_thread

__all__ = ["one_thread"]

METHODS = [BASELINE, FRACTAL, REFERENCE.name, CACHED, OURS, *CHAINS.values(), *OTHERS.values()]
COUNT = len(METHODS)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    pytest.importorskip("matplotlib")
    return reproduce(Asked("fractal", "embedded", out=tmp_path_factory.mktemp("reproduction")))


def _rows(done: Reproduction, table: str, **labels: Any) -> list[dict[str, Any]]:
    rows = done.record["tables"][table]["rows"]
    return [row for row in rows if all(row[name] == value for name, value in labels.items())]


def test_every_table_and_figure_is_made_and_no_token_differs(done: Reproduction) -> None:
    record = read(done.place)
    assert record == json.loads(json.dumps(done.record))
    assert list(record["tables"]) == list(PAPER.parts)
    assert record["missing"] == []
    assert record["differing_tokens"] == 0
    assert record["promise"] == "exact"
    assert {"machine", "commit", "versions", "command", "date", "asked", "models"} <= set(record)
    page = done.page.read_text()
    assert "No token differs" in page
    for picture in done.pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"]({picture.name})" in page
    assert [picture.stem.rpartition("-")[2] for picture in done.pictures] == ["figure3", "figure4"]


def test_ours_follows_from_the_generations_and_stands_beside_the_papers(done: Reproduction) -> None:
    (first,) = [m for m in done.record["measurements"] if [name for name, *_ in m["methods"]] == METHODS]
    lines = [g for g in done.record["generations"] if g["measurement"] == first["measurement"]]
    assert len(lines) == len(METHODS) * 2
    seconds = {(g["method"], g["prompt"]): g["decode_seconds"] / g["decoded"] for g in lines}
    prompts = {g["prompt"] for g in lines}
    rows = _rows(done, "table1", model="stdlib-7m", data="heldout-20")
    assert [row["method"] for row in rows] == METHODS
    for row in rows:
        assert row["checks"] == sum(len(g["rounds"]) for g in lines if g["method"] == row["method"]) > 0
        ratio = median(seconds[BASELINE, prompt] / seconds[row["method"], prompt] for prompt in prompts)
        assert row["speed-up"]["ours"] == pytest.approx(ratio, rel=1e-3)
        assert row["FLOPs"]["ours"] > 0
    sizes = {row["method"]: row["the copy's MB"]["ours"] for row in rows}
    assert sizes[BASELINE] == sizes[REFERENCE.name] == sizes[OTHERS["lookup"]] == sizes["lookup, cached"] is None
    assert sizes[FRACTAL] == sizes[CHAINS["int8"]] > 1.5 * sizes[CHAINS["mxfp4"]], "one copy, whatever drafts with it"
    # what stands in for the paper's model stands in no row of the paper's
    assert {row["model"] for row in rows if row["tokens/s"]["paper"] is not None} == set()
    papers = _rows(done, "table1", model="Llama-3 3B", data="GSM8K")
    assert [row["method"] for row in papers] == [BASELINE, FRACTAL]
    assert [row["tokens/s"] for row in papers] == [{"paper": its, "ours": None} for its in (12.2, 14.6)]
    assert [row["speed-up"]["paper"] for row in papers] == [1.0, 1.2]
    plain = rows[0]["FLOPs"]["ours"]
    assert plain > 3 * rows[2]["FLOPs"]["ours"], "each token of eight reads all before it again"
    code, ours = _rows(done, "table2", method=FRACTAL)
    assert (code["tokens/s"]["paper"], code["FLOPs"]["paper"]) == (4.43, 4e15)
    assert (ours["model"], ours["data"], ours["tokens/s"]["paper"]) == ("stdlib-7m", "heldout-20", None)
    (elsewhere,) = _rows(done, "table1", model="Llama-3 8B", data="XSUM", method=FRACTAL)
    assert elsewhere["tokens/s"] == {"paper": 4.06, "ours": None}


def test_acceptance_times_and_parameters_are_the_papers_and_ours(done: Reproduction) -> None:
    ratios = {row["data"]: row["acceptance ratio"]["paper"] for row in _rows(done, "table4", model="Llama-3 8B")}
    assert ratios == {"GSM8K": 0.49, "XSUM": 0.46, "CNN/DM": 0.54}
    (its,) = _rows(done, "table4", model="Llama-3 3B", data="GSM8K")
    assert its["accepted a check"]["paper"] == 7.74
    for row in _rows(
        done, "table4", model="stdlib-7m"
    ):  # n and w are 1: three tokens, of which the first is right by construction
        assert 1 / 3 <= row["acceptance ratio"]["ours"] <= 1
        assert row["accepted a check"]["ours"] == pytest.approx(3 * row["acceptance ratio"]["ours"], rel=1e-3)
        assert row["of it beyond n"]["ours"] == pytest.approx(row["accepted a check"]["ours"] - 1, abs=1e-3)
    (whole,) = _rows(done, "table3", model="stdlib-7m")
    names = [f"{name} (paper h, ours s)" for name in (BASELINE, FRACTAL)]
    plain, method = (whole[name]["ours"] for name in names)
    assert whole["change, %"] == {"paper": None, "ours": pytest.approx(100 * (method / plain - 1), abs=0.02)}
    (papers,) = _rows(done, "table3", model="CodeLlama-13B")
    assert papers["change, %"] == {"paper": -62.8, "ours": None}
    for row in _rows(done, "table5"):
        if row["model"]:
            assert row["layers"]["ours"] == row["layers"]["paper"]
            assert row["n"]["ours"] == row["n"]["paper"] == row["w"]["ours"] == row["w"]["paper"]
        else:
            assert (row["ours"], row["layers"]["ours"], row["n"]["ours"]) == ("stdlib-7m", 4, 1)


def test_figures_have_every_n_and_w_and_every_fractal_layer(done: Reproduction) -> None:
    speeds = _rows(done, "figure3")
    assert {(r["cache"], r["n"], r["w"]) for r in speeds} == {
        (cache, n, w) for cache in ("no cache", "cached") for n in (1, 2) for w in (1, 2)
    }
    assert all(row["tokens/s"]["ours"] > 0 for row in speeds)
    assert {(line["method"], line["prompt"], line["tokens"], line["differing"]) for line in done.record["watched"]} == {
        (cache, prompt, 8, 0) for cache in ("no cache", "cached") for prompt in ("heldout-1", "heldout-2")
    }
    for cache in ("no cache", "cached"):
        layers = _rows(done, "figure4", cache=cache)
        assert [row["after"].split()[0] for row in layers] == ["layer", "the"], "one fractal layer, and the draft"
        assert all(row["guesses"] > 0 for row in layers)
        assert layers[-1]["correct tokens"]["ours"] >= 1, "the first token is right by construction"


def test_acceptance_by_n_stands_beside_the_papers(done: Reproduction) -> None:
    rows = _rows(done, "acceptance")
    assert [(row["n = w"], row["cache"]) for row in rows] == [
        (n, cache) for n in (2, 4) for cache in ("no cache", "cached")
    ]
    for row in rows:
        n = row["n = w"]
        assert "paper" not in row["accepted a check"], "the paper has 7 only"
        if row["accepted a check"]["ours"] is not None:  # in eight tokens there is no whole draft of nine
            assert 1 <= row["accepted a check"]["ours"] <= 2 * n + 1
    assert rows[0]["accepted a check"]["ours"] is not None


def test_the_prediction_is_that_of_its_formula(done: Reproduction) -> None:
    rows = _rows(done, "prediction")
    assert [row["method"] for row in rows] == [FRACTAL, CACHED, *CHAINS.values()]
    for row in rows:
        plain = 2 if "fractal" in row["method"] else 1
        predicted = (row["accepted a check"]["ours"] + 1) / (plain + row["inner passes"] * row["c"]["ours"])
        assert row["predicted speed-up"]["ours"] == pytest.approx(predicted, rel=1e-3)
        share = row["measured"]["ours"] / predicted
        assert row["of the prediction"]["ours"] == pytest.approx(share, rel=1e-3)


def test_the_papers_numbers_agree_with_each_other() -> None:
    for its in REPORTED:
        plain, method = its.tokens_per_second
        if (its.model, its.data) != ("Llama-3 3B", "CNN/DM"):  # as the report says
            assert its.speedup == pytest.approx(method / plain, abs=0.011), its
        assert its.change == pytest.approx(100 * (its.hours[1] / its.hours[0] - 1), abs=0.06), its
    gpus = {"CodeLlama-13B": 3}
    hours = [sum(its.hours[at] * gpus.get(its.model, 2) for its in REPORTED) for at in (0, 1)]
    assert hours == pytest.approx([94.5, 44.9])  # "compute budget", in GPU hours
    for layers, n, w, _ in HYPERPARAMETERS.values():
        assert n == w == fractal.default_n(layers)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods that prompts were decoded with; the first of the third prompt's ends it all, as Ctrl-C does."""
    seen: list[str] = []
    names = {(method.draft, method.cache): method.name for method in fractal._methods(2)}  # of stdlib-1m
    really = generations.ask

    def ask(model: Model, *args: Any) -> Any:
        seen.append(names[model.settings.draft, model.settings.cache])
        if len(seen) == 2 * COUNT + 1:
            raise KeyboardInterrupt
        return really(model, *args)

    monkeypatch.setattr(generations, "ask", ask)
    return seen


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, calls: list[str]) -> None:
    asked = Asked(
        "fractal", "embedded", ("table1", "table5"), "stdlib-1m", num_prompts=3, max_new_tokens=4, out=tmp_path
    )
    with pytest.raises(KeyboardInterrupt):
        reproduce(asked)
    assert calls[: 2 * COUNT] == METHODS + METHODS[::-1]
    (place,) = tmp_path.iterdir()
    kept = read(place)
    assert len(kept["generations"]) == 2 * COUNT
    assert kept["tables"] == {}
    done = reproduce(asked)
    assert len(calls) == 2 * COUNT + 1 + COUNT, "one prompt was left"
    assert done.place == place
    assert done.record["generations"][: 2 * COUNT] == kept["generations"]
    assert list(done.record["tables"]) == ["table1", "table5"]
    assert "figure3" in done.record["missing"]
    more = reproduce(Asked(**{**vars(asked), "only": ("table4",)}))
    assert len(calls) == 3 * COUNT + 1, "its generations are those of table 1"
    assert list(more.record["tables"]) == ["table1", "table4", "table5"]
    assert more.record["tables"]["table1"] == done.record["tables"]["table1"]
    with pytest.raises(InputError, match=r"another reproduction \(num_prompts was 3, and is 2\); repeat its command"):
        reproduce(Asked(**{**vars(asked), "num_prompts": 2}))
    write_json(place, {**more.record, "generations": more.record["generations"][1:]})
    with pytest.raises(InputError, match="was changed after it was written; move it away, or name another folder"):
        reproduce(asked)
    place.write_text("{}")
    with pytest.raises(InputError, match="no record of a reproduction; move it away, or name another folder"):
        reproduce(asked)


def test_a_table_alone_is_made_of_the_papers_own_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale paper, on a small model that lies where the paper's would, and on data sets as on the hub."""
    place = tmp_path / "models" / "meta-llama" / "Llama-3.2-3B-Instruct"
    place.parent.mkdir(parents=True)
    shutil.copytree(EMBEDDED["stdlib-1m"], place)
    rows = {
        "gsm8k": {"question": "How many?"},
        "xsum": {"document": "x = 1\n" * 400},
        "cnn-dailymail": {"article": "y"},
    }
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    asked = Asked(
        "fractal",
        "paper",
        ("table1",),
        models=[tmp_path / "nothing", tmp_path / "models"],
        data=[f"{name}={tmp_path / name}.jsonl" for name in rows],
        max_new_tokens=4,
        out=tmp_path,
    )
    done = reproduce(asked)
    measured = {(m["model"], m["name"]): m for m in done.record["measurements"]}
    assert list(measured) == [("Llama-3.2-3B-Instruct", name) for name in rows]
    assert {m["count"] for m in measured.values()} == {300}
    assert done.record["asked"]["dtype"] == "float32", "as the paper's code loads its models"
    longest = max(g["prompt_tokens"] for g in done.record["generations"])
    assert 400 < longest <= 512, "articles are cut to 512 tokens, and this one is longer"
    (row,) = _rows(done, "table1", data="XSUM", model="Llama-3 3B", method=FRACTAL)
    assert row["tokens/s"]["paper"] == 8.49
    assert row["tokens/s"]["ours"] > 0
    assert done.record["differing_tokens"] == 0
    assert str(tmp_path) not in done.place.read_text()
    with pytest.raises(InputError, match=r"no checkpoint of this paper; expected folders called Llama-3.2-3B-I"):
        reproduce(Asked("fractal", "paper", models=[tmp_path / "nothing"], out=tmp_path))


def test_checks_that_the_end_of_the_text_cut_are_not_counted() -> None:
    known = {"method": "m", "prompt": "1", "prompt_tokens": 5, "tokens": 10, "differing": 0, "decoded": 9, "passes": 4}
    more = {"prefill_seconds": 0.0, "decode_seconds": 1.0, "promise": "exact", "flops": None}
    more |= {"draft_seconds": 0.5, "check_seconds": 0.5, "draft_passes": 0}
    # 9 tokens are left after the prompt's: 3 + 1, then 1 + 1 of 5 left, then 3 left, where 3 and the bonus do not fit
    one = Generation(**known, **more, rounds=((3, 3, 4), (3, 1, 2), (2, 2, 3)))
    assert list(one.whole_rounds(3, 10)) == [(3, 3), (3, 1)]
    assert Generation.read(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises(InputError, match="a generation: tokens is 'ten', expected a whole number"):
        Generation.read({**one.to_json(), "tokens": "ten"})


def test_prompts_may_be_cut_and_the_record_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale geometry, on one layer count that the small model has."""
    short = Data("heldout-20", 1, 6, cut=9)
    subject = Subject("Llama-3 3B", "stdlib-1m", {"GSM8K": short})
    monkeypatch.setattr(fractal, "PAPER", replace(PAPER, subjects={**PAPER.subjects, "geometry": (subject,)}))
    done = reproduce(Asked("fractal", "geometry", ("table4",), out=tmp_path))
    assert {g["prompt_tokens"] for g in done.record["generations"]} == {9}
    (measured,) = done.record["measurements"]
    assert measured["cut"] == 9
    whole = open_suite("heldout-20", load("stdlib-1m").tokenizer, count=1)
    assert measured["sha256"] != whole.sha256
    sizes = [(its.num_layers, fractal.default_n(its.num_layers)) for its in PAPER.subjects["geometry"]]
    assert sizes == [(layers, n) for layers, n, *_ in HYPERPARAMETERS.values()]

"""What reproductions are made of: places of checkpoints, tables as pages show them, passes in turn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foretoken.bench.generations import differing
from foretoken.bench.pages import machine
from foretoken.bench.reproduce import asked as places
from foretoken.bench.reproduce import parts
from foretoken.bench.reproduce.asked import SCALES, Asked
from foretoken.bench.reproduce.papers import PAPERS, Data, Method, Subject, beside, paper
from foretoken.bench.reproduce.parts import correct_tokens
from foretoken.bench.reproduce.report import identity, rows
from foretoken.bench.reproduce.running import reproduce
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.bench.suites import Prompt
from foretoken.errors import InputError, ModelNotFoundError, SettingError
from foretoken.rehearsal import honest, write
from foretoken.settings.generate import GenerateSettings
from tests.tiny import one_thread

__all__ = ["one_thread"]

SHAPE = "hidden=256,layers=9,heads=8,kv-heads=4,intermediate=700,vocab=9000,head-dim=64"


def _texts(*texts: tuple[int, ...]) -> Any:
    return [SimpleNamespace(tokens=text) for text in texts]


def test_tokens_that_differ_lack_or_are_too_many_are_counted() -> None:
    assert differing(_texts((1, 2, 3)), _texts((1, 2, 3))) == 0
    assert differing(_texts((1, 2, 3), (4, 5)), _texts((1, 9, 3), (4,))) == 2
    assert differing(_texts((1,)), _texts((1,), (7, 8))) == 2


def test_a_rehearsal_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("large", "stdlib-1m", {}, SHAPE, 3)
    assert subject.called == f"stdlib-1m as 3 layers of {SHAPE}"
    made = places.checkpoint(subject, tmp_path / "work")
    about = honest.about(Path(made))
    assert about is not None
    assert (about.source_name, about.shape, len(about.layers)) == ("stdlib-1m", SHAPE, 2)
    config = honest.read_config(Path(made))
    assert (config.num_layers, config.vocab_size) == (3, 4096), "its small model's vocabulary"
    monkeypatch.setattr(write, "write", lambda plan: pytest.fail("it is there already"))
    assert places.checkpoint(subject, tmp_path / "work") == made
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"no folder .* for rehearsals can be made .*; name one with --work"):
        places.checkpoint(subject, tmp_path / "file")


def test_the_checkpoint_that_drafts_is_rehearsed_too(tmp_path: Path) -> None:
    subject = Subject("large", "stdlib-1m", {}, SHAPE, 3, small="stdlib-1m", small_shape=SHAPE)
    assert subject.small_called == f"stdlib-1m as {SHAPE}"
    made = Path(places.small_checkpoint(subject, tmp_path))
    assert not set(":,=") & set(made.name), "the folder can be named as a draft"
    assert honest.read_config(made).num_layers == 9
    assert str(made) != places.checkpoint(subject, tmp_path)
    bench = Workbench(Asked("ml-specqd", work=tmp_path), [subject], {}, lambda: None, lambda *_: None)
    assert bench.small(subject) == str(made)
    assert bench._told(f"{made}:k=5,lookup", subject) == f"{made.name}:k=5,lookup", "no folder of this machine"


def test_prompts_of_ones_own_take_the_place_of_the_data() -> None:
    subjects = [Subject("large", "hub/id", {"A": Data("gsm8k", 300, 256), "B": Data("xsum", 300, 128)})]
    (own,) = places.with_data(Asked("fractal", "paper", data=["gsm8k=some/folder"], num_prompts=7), subjects)
    assert own.data == {"A": Data("gsm8k=some/folder", 7, 256), "B": Data("xsum", 7, 128)}
    (other,) = places.with_data(Asked("fractal", data=["mine.jsonl"], max_new_tokens=5), subjects)
    assert other.data == {"A": Data("mine.jsonl", 300, 5), "B": Data("mine.jsonl", 300, 5)}
    with pytest.raises(SettingError, match=r"'gsm8k' names no place of a data set.*expected NAME=FOLDER_OR_FILE"):
        places.with_data(Asked("fractal", "paper", data=["gsm8k"]), subjects)
    with pytest.raises(SettingError, match="2 suites were given, and at this scale one is measured on"):
        places.with_data(Asked("fractal", data=["a", "b"]), subjects)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scale": "papr"}, "scale is 'papr'; did you mean 'paper'"),
        ({"models": [Path()]}, "models are the paper's own checkpoints; give scale paper"),
        ({"scale": "paper", "model": "stdlib-1m"}, "at scale paper the models are the paper's"),
        ({"num_prompts": 0}, "num_prompts is 0, expected a whole number, 1 or more"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1, expected a whole number, 2 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Asked("fractal", **wrong)


def test_a_paper_whose_model_is_nowhere_says_how_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="; --models takes a folder that holds the paper's"):
        reproduce(Asked("fractal", "paper", out=tmp_path))


def test_a_machine_on_which_nothing_was_measured_has_no_threads() -> None:
    assert machine({"machine": {"processor": "Z80"}}) == "Z80"
    assert machine({"machine": {"processor": "Z80", "threads": 2, "isa": None}}) == "Z80, 2 threads, engine PyTorch"


def test_every_paper_in_the_table_can_be_had() -> None:
    for name in PAPERS:
        its = paper(name)
        assert {"embedded", "rehearsal"} <= set(its.subjects) <= set(SCALES)
        assert "paper" in its.subjects or name == "moa", "whose drafters must be trained"
        assert its.chosen([]) == list(its.parts)
        with pytest.raises(SettingError, match="there is no 'tabel1' in this paper; did you mean 'table1"):
            its.chosen(["tabel1"])
    with pytest.raises(SettingError, match="there is no paper 'fractl' to reproduce; did you mean 'fractal'"):
        paper("fractl")


def test_a_figure_that_the_paper_has_in_some_row_has_two_columns() -> None:
    given = [
        {"model": "a", "speed": beside(1.5, 12345.6), "ours alone": beside(None, 0.123456)},
        {"model": "b", "speed": beside(None, 2.0, (1.0, 3.0)), "ours alone": beside(None, None)},
    ]
    head, _, one, other = ([cell.strip() for cell in line.split("|")[1:-1]] for line in rows(given))
    assert head == ["model", "speed: paper", "ours", "ours alone: ours"]
    assert one == ["a", "1.5", "12346", "0.123"]
    assert other == ["b", "", "2 (1 to 3)", ""]


def test_the_report_says_loudly_that_tokens_differ() -> None:
    lines = [{"tokens": 8, "differing": 0, "method": "plain"}, {"tokens": 8, "differing": 2, "method": "wrong"}]
    said = identity({"generations": lines, "watched": [], "differing_tokens": 2, "promise": "exact"})
    assert "2 tokens DIFFER" in said
    assert "(wrong)" in said


def test_guesses_are_counted_up_to_the_first_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, method = Prompt("p", ((7, 7, 7),)), Method("m", "fractal")
    drafter = SimpleNamespace(watch=None)
    text = tuple(range(10, 20))  # of which the method decodes the first six
    made = [
        SimpleNamespace(position=4, layers=(3, 7), tokens=((11, 0, 13), (11, 12, 13), (11, 12, 13, 0))),
        SimpleNamespace(position=7, layers=(3,), tokens=((0, 15), (14, 15, 16))),
        SimpleNamespace(position=11, layers=(3,), tokens=((18, 19), (18, 19, 20))),  # its draft goes beyond the truth
    ]
    noted = []

    model = SimpleNamespace(tokenizer=None, drafter=drafter)

    def ask(asked: Any, prompt: Prompt, how: GenerateSettings) -> Any:
        if asked is model:
            drafter.watch.extend(made)
        return [SimpleNamespace(tokens=text[: how.max_new_tokens])]

    monkeypatch.setattr(parts, "ask", ask)
    bench = SimpleNamespace(
        part="figure",
        progress=lambda *told: None,
        suite=lambda subject, data: SimpleNamespace(prompts=[prompt]),
        open=lambda subject: SimpleNamespace(model=lambda draft, cache: model if draft == "fractal" else None),
        watched=lambda *told: noted.append(told[-2:]),
    )
    subject = Subject("large", "small", {})
    counted = correct_tokens(cast(Workbench, bench), subject, Data("suite", max_new_tokens=6), method, 4)
    assert counted == {"layer 3": [1, 0, 2], "layer 7": [3], "the draft": [3, 3]}
    assert noted == [(text[:6], text)]
    assert drafter.watch is None


def test_layers_choose_among_rehearsals() -> None:
    its = paper("fractal").subjects
    (one,) = Asked("fractal", "geometry", layers=[32]).subjects(its["geometry"])
    assert one.num_layers == 32
    with pytest.raises(SettingError, match="layers is 5, and there are rehearsals of 28, 32, 40 layers"):
        Asked("fractal", "geometry", layers=[28, 5]).subjects(its["geometry"])
    with pytest.raises(SettingError, match="layers choose among rehearsals; give scale geometry, or leave layers out"):
        Asked("fractal", "embedded", layers=[28])

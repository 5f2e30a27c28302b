"""Pictures are valid files, whole or not there, and say what they show. How they look is for eyes."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.common.pictures import expect_drawable
from foretoken.errors import InputError, SettingError
from foretoken.protocol.types import Budget
from foretoken.results.completion import Completion
from foretoken.timeline.draw import draw
from foretoken.timeline.page import LEVELS
from tests.timeline.rounds import PROMPT, completion, rounds

matplotlib = pytest.importorskip("matplotlib")


def texts(done: Completion, monkeypatch: pytest.MonkeyPatch, path: Path) -> list[str]:
    """The words of a picture."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(path, done, "large")
    root = ElementTree.parse(path).getroot()
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("count", [0, 1, 5, 40, 700])
def test_a_png_of_any_number_of_rounds(tmp_path: Path, count: int) -> None:
    from matplotlib.image import imread

    path = tmp_path / "rounds.png"
    draw(path, completion(rounds(count)), "large")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(path)
    assert pixels.shape[1] == 1950
    assert pixels.shape[0] > 300
    assert pixels.min() < 0.5 < pixels.max()
    assert [entry.name for entry in tmp_path.iterdir()] == ["rounds.png"]


def test_an_svg_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = texts(completion(rounds(200)), monkeypatch, tmp_path / "rounds.svg")
    for expected in (
        "large, drafted by small, lookup",
        "All 200 rounds: tokens a round",
        "300 of 600 drafted tokens accepted, 50 %",  # of small by the target
        "200 of 400 drafted tokens accepted, 50 %",  # of lookup by small
        "in detail below",
        "accepted",
        "rejected",
        "bonus token",
    ):
        assert any(expected in text for text in said), expected


def test_what_the_pace_chose_is_drawn_where_it_chose_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heading = "What the pace chose: the longest chain that each level may draft, or how many tokens its tree had"
    records = [replace(each, budgets={0: (Budget(3, 3), Budget(2, 2))}) for each in rounds(60)]
    cut = {0: (Budget(1, 1), Budget(0, 0))}  # as the text ends
    records[-1] = replace(records[-1], budgets=cut, drafted={0: 1}, accepted={0: 1}, new_tokens={0: 2})
    assert heading not in texts(completion(records), monkeypatch, tmp_path / "fixed.svg")
    without = (Budget(0, 0), Budget(8, 8))  # the first level is left out
    records[20:40] = [replace(each, budgets={0: without}) for each in records[20:40]]
    said = texts(completion(records), monkeypatch, tmp_path / "paced.svg")
    assert heading in said


def test_plain_decoding_has_a_picture_with_one_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = texts(completion([PROMPT, *rounds(0), *rounds(0)][:1], levels=()), monkeypatch, tmp_path / "plain.svg")
    assert "large, decoding plainly" in said
    assert "Where the time went" in said


def test_a_round_that_was_held_up_leaves_room_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = texts(completion(rounds(12, stall=4)), monkeypatch, tmp_path / "stall.svg")
    assert any("5 goes on to the right: it took 506 ms, for 1 token" in text for text in said)
    assert "12" in said or "round 12" in said, "the last round is there"


def test_names_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = completion(rounds(3), levels=("$small_{x}$", "l<o>okup"))
    said = texts(done, monkeypatch, tmp_path / "names.svg")
    assert "large, drafted by $small_{x}$, l<o>okup" in said
    long = "x" * 300
    said = texts(completion(rounds(3), levels=(long, "lookup")), monkeypatch, tmp_path / "long.svg")
    assert max(map(len, said)) < 150


def test_the_same_numbers_make_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        draw(tmp_path / name, completion(rounds(5)), "large")
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.parametrize("name", ["rounds.pdf", "rounds", "rounds.json", "png"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=r"is no name for a picture; expected one that ends in \.png or \.svg"):
        expect_drawable(tmp_path / name)


def test_a_place_that_cannot_hold_it_is_refused(tmp_path: Path) -> None:
    expect_drawable(tmp_path / "ROUNDS.PNG")
    expect_drawable(tmp_path / "made when it is drawn" / "rounds.png")
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    with pytest.raises(InputError, match="is a folder; expected the name of a file for the picture"):
        expect_drawable(folder)


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as error:
        expect_drawable(tmp_path / "rounds.png")
    assert str(error.value) == "pictures need matplotlib, which is not installed; run `pip install matplotlib`"


def test_a_completion_without_rounds_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="generate it with keep_rounds=True"):
        draw(tmp_path / "rounds.png", replace(completion(rounds(1)), rounds=None), "large")


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rounds.png"
    path.write_bytes(b"what was there")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"the picture cannot be written to .* \(No space left on device\)"):
        draw(path, completion(rounds(1)), "large")
    assert path.read_bytes() == b"what was there"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rounds.png"]


def test_more_levels_than_colours(tmp_path: Path) -> None:
    levels = [f"level-{i}" for i in range(len(LEVELS) + 2)]
    draw(tmp_path / "many.png", completion(rounds(2), levels=levels), "large")
    assert (tmp_path / "many.png").exists()

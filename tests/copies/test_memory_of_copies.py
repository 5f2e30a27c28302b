"""Memory that will not suffice for low-bit copies is refused with the sum of its parts, before any is made."""

from __future__ import annotations

import logging

import pytest

import foretoken
from foretoken.api import levels
from foretoken.api.automatic import Recommended
from foretoken.api.build import with_draft
from foretoken.decoder.low_bit import size_in
from foretoken.errors import SettingError
from foretoken.formats import FORMATS

DRAFT = "mxfp4,int8,lookup"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """No amount of memory is too small to look at, and 9 MB are left."""
    monkeypatch.setattr(levels, "_LITTLE", 0)
    monkeypatch.setattr(levels, "memory_left", lambda: 9_000_000)
    monkeypatch.setattr(levels, "cast", lambda *_, **__: pytest.fail("it casts"))


@pytest.mark.usefixtures("little")
def test_the_sum_of_its_parts_is_named_and_what_to_do() -> None:
    with pytest.raises(SettingError) as error:
        foretoken.load("stdlib-7m", draft=DRAFT)
    assert str(error.value) == (
        "the draft mxfp4,int8,lookup needs 3.9 MB for mxfp4 + 7.3 MB for int8 = 11.2 MB of memory, and 9.0 MB are left;"
        " close other programs, leave a level out, or use --draft lookup (draft='lookup'), which needs no copy"
    )
    config = foretoken.load("stdlib-7m", draft="none").target.config
    assert sum(size_in(FORMATS[name], config) for name in ("mxfp4", "int8")) == pytest.approx(11.2e6, rel=0.01)


@pytest.mark.usefixtures("little")
def test_weights_that_are_converted_or_copied_count() -> None:
    for settings, needed in (({"dtype": "float32"}, r"29\.1"), ({"weights": "copied"}, r"14\.6")):
        with pytest.raises(SettingError, match=rf"needs {needed} MB for the weights \+ 3\.9 MB for mxfp4 = "):
            foretoken.load("stdlib-7m", draft="mxfp4", **settings)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("draft", ["none", "lookup", "stdlib-1m"])
def test_drafts_without_copies_are_never_refused(draft: str) -> None:
    for settings in ({"dtype": "float32"}, {"weights": "copied"}):
        assert foretoken.load("stdlib-7m", draft=draft, **settings).draft == draft


@pytest.mark.usefixtures("little")
def test_a_draft_that_was_recommended_gives_way_to_lookup(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("foretoken.api.automatic.recall", lambda *_: Recommended("mxfp4,int8", 2.0))
    with caplog.at_level(logging.INFO):
        assert foretoken.load("stdlib-7m").draft == "lookup"
    assert "draft lookup for now: the draft mxfp4,int8 needs 3.9 MB for mxfp4 + 7.3 MB for int8" in caplog.text


@pytest.mark.usefixtures("little")
def test_another_draft_for_a_loaded_model_counts_what_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    model = foretoken.load("stdlib-7m", draft="lookup")
    with pytest.raises(SettingError, match=r"for mxfp4 \+ .* for int8 = "):
        with_draft(model, DRAFT)
    monkeypatch.undo()
    there: dict[levels.LoadedAs, levels.LoadedLevel] = {}
    with_draft(model, DRAFT, loaded=there)
    monkeypatch.setattr(levels, "_LITTLE", 0)
    monkeypatch.setattr(levels, "memory_left", lambda: 0)
    assert with_draft(model, DRAFT, loaded=there).draft == DRAFT


def test_what_fits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_LITTLE", 0)
    for left in (12_000_000, None):  # None: not known
        monkeypatch.setattr(levels, "memory_left", lambda left=left: left)
        assert foretoken.load("stdlib-7m", draft=DRAFT).draft == DRAFT

"""Prices that are kept for the next load: for this model, machine and number of threads, at today's speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.api import pacing
from foretoken.decoder.decoder import Decoder
from foretoken.prices import remembered
from foretoken.prices.price import Price
from tests.tiny import tiny_decoder

SEEN = Price({1: 0.1, 8: 0.11, 16: 0.12})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "foretoken" / "prices"


def test_a_price_is_recalled_at_the_speed_of_today() -> None:
    decoder = tiny_decoder()
    assert remembered.recall(decoder, 0.1) is None
    remembered.keep(decoder, SEEN)
    assert remembered.recall(tiny_decoder(), 0.1) == SEEN, "its weights' values make no difference"
    found = remembered.recall(decoder, 0.12)
    assert found is not None
    assert found.of(16) == pytest.approx(0.144)
    assert remembered.recall(decoder, 0.2) is None, "the machine is another one today"
    assert remembered.recall(decoder, 0.05) is None
    assert remembered.recall(tiny_decoder(num_hidden_layers=5), 0.1) is None
    assert remembered.recall(tiny_decoder(num_attention_heads=2, head_dim=16), 0.1) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"seconds": {}}', '{"seconds": {"1": "x"}}', '{"seconds": {"1": 0}}', '{"seconds": 3}'],
)
def test_a_file_that_holds_no_prices_is_passed_over_and_replaced(folder: Path, text: str) -> None:
    decoder = tiny_decoder()
    remembered.keep(decoder, SEEN)
    (file,) = folder.iterdir()
    file.write_text(text)
    assert remembered.recall(decoder, 0.1) is None
    remembered.keep(decoder, SEEN)
    assert remembered.recall(decoder, 0.1) == SEEN


def test_nothing_is_kept_where_nothing_can_be_written(folder: Path) -> None:
    folder.parent.write_text("a file stands where the folder should be")
    remembered.keep(tiny_decoder(), SEEN)
    assert remembered.recall(tiny_decoder(), 0.1) is None


def test_the_second_load_measures_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    seconds, each = 0.2, 0.1

    def quick(decoder: Decoder, rows: list[int], prefix: int, *, warm: bool = False) -> Price:
        assert warm == (len(rows) == 4 or rows == [64, 128]), "a pass to warm up is made once"
        measured.append(len(rows))
        return Price({count: seconds * (1 + each * count) for count in rows})

    monkeypatch.setattr(pacing, "quick", quick)
    first, second = pacing.first_price(tiny_decoder()), pacing.first_price(tiny_decoder())
    assert first is not None
    assert first == second
    assert measured == [1, 4, 1]
    seconds = 0.001
    pacing.first_price(tiny_decoder())
    assert measured == [1, 4, 1, 1, 5], "where that takes no time, it is measured anew"
    assert len(list(folder.iterdir())) == 1
    seconds, each = 0.2, 0.001
    measured.clear()
    remembered.keep(tiny_decoder(), Price({count: seconds * (1 + each * count) for count in (1, 8, 16, 24, 32)}))
    many = [pacing.first_price(tiny_decoder()) for _ in range(3)]
    assert measured == [1, 2, 1, 1], "where rows cost little, many of them are measured, too, and kept"
    assert many[0] is not None
    assert many[0].of(128) == pytest.approx(0.2 * 1.128)
    assert many[0] == many[1] == many[2]
    seconds = 3.0
    assert pacing.first_price(tiny_decoder()) is None

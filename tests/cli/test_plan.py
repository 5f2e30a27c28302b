"""`foretoken plan`: a bound of memory, and what it means."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def little_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.offloading.memory_in_use", lambda: 300 << 20)


def test_a_plan_shows_what_uses_the_memory_and_what_is_read(cli: Cli) -> None:
    done = cli("plan", "stdlib-7m", "--stream-layers", "all", "--draft", "subspec", "--disk-bandwidth", "2GB/s")
    assert done.code == 0, done.err
    assert done.out.startswith("stdlib-7m, draft subspec, texts of up to 2,048 tokens\n")
    for name in ("Python and its libraries", "substitutes of the others", "buffer for reads", "together"):
        (line,) = [line for line in done.out.splitlines() if line.startswith(name)]
        assert " MB" in line
    assert "0 of 4 layers stay in memory; each pass reads " in done.out
    assert "At 2.00 GB/s (as given) that takes " in done.out
    read, each = (float(re.findall(shape, done.out)[0]) for shape in (r"that takes (\S+) s", r"draft takes (\S+) s"))
    accepted, least, whole = (
        [float(number) for number in re.findall(rf"{name} +(.+)", done.out)[0].split()]
        for name in ("accepted:\n", "without the time of drafting", "with the draft's 48 passes")
    )
    assert accepted == [10, 30], "the tree is 48 deep"
    assert least == pytest.approx([read / 11, read / 31], rel=0.1), "of 30 draft tokens and one more"
    assert whole == pytest.approx([(read + 48 * each) / 11, (read + 48 * each) / 31], rel=0.1)


def test_a_plan_with_lookup_counts_a_pass_of_the_draft_for_each_token(cli: Cli) -> None:
    done = cli("plan", "stdlib-7m", "--stream-layers", "all", "--disk-bandwidth", "2GB/s")
    assert done.code == 0, done.err
    assert done.out.startswith("stdlib-7m, draft subspec,lookup, ")
    assert "with a draft pass for each of them" in done.out
    assert "Lookup saves some of these passes" in done.out


def test_a_plan_measures_the_disk(cli: Cli) -> None:
    done = cli("plan", "stdlib-7m", "--stream-layers", "2", "--draft", "none")
    assert done.code == 0, done.err
    assert "2 of 4 layers stay in memory" in done.out
    assert "GB/s (measured just now)" in done.out


def test_a_plan_says_that_all_stays(cli: Cli) -> None:
    done = cli("plan", "stdlib-7m", "--memory", "2GiB")
    assert done.code == 0, done.err
    assert " of 2.15 GB" in done.out
    assert "All 4 layers stay in memory: nothing is read while it generates." in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no bound to plan for; give one, such as --memory 8GiB"),
        (("--memory", "1MB"), "at least (Python and its libraries 339.7 MB, embedding, output layer, norms"),
        (("--memory", "lots"), "memory is 'lots', expected an amount such as 8GiB or 500MB"),
        (("--memory", "1GiB", "--disk-bandwidth", "0GB/s"), "expected an amount such as 1.4GB/s"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("plan", "stdlib-7m", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1

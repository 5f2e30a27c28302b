"""How it is written: on a terminal, in a pipe, where letters are few."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest

from foretoken.doctor.facts import Facts, Fit, Fitting
from foretoken.doctor.findings import judge
from foretoken.doctor.report import as_json, print_report, summary
from tests.doctor.machines import GIB, GOOD, machine

FITS = (
    Fitting(
        "a model",
        10,
        (
            Fit("bf16", 16 * GIB, GIB, GIB, "no", 0.0786),
            Fit("int8", 8 * GIB, GIB, GIB, "without a draft copy", 3.96),
            Fit("int4", 990_000_000, GIB, GIB, "yes", 12.4),
        ),
    ),
)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def printed(
    facts: Facts,
    monkeypatch: pytest.MonkeyPatch,
    *,
    encoding: str = "utf-8",
    terminal: bool = False,
    columns: int = 80,
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    memory = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", (Terminal if terminal else io.TextIOWrapper)(memory, encoding=encoding))
    print_report(facts, judge(facts))
    sys.stdout.flush()
    return memory.getvalue().decode(encoding)


def said(facts: Facts) -> str:
    return summary([finding for group in judge(facts).values() for finding in group])


def test_the_summary_counts_what_is_to_be_done() -> None:
    assert said(GOOD) == "Nothing to improve."
    assert said(machine(machine={"allowed_cores": 2}, threads={"torch": 2})) == "Nothing to improve; 1 note (cores)."
    two = machine(huge_pages={"setting": "never"}, threads={"torch": 64}, disk={"direct": 1e8})
    assert said(two) == "2 things to improve: threads, huge pages; 1 note (disk speed)."
    stopped = machine(engine={"isa": None, "error": "x", "forced": "x"}, threads={"torch": 64})
    assert said(stopped) == "Foretoken cannot run like this: see instructions; then 1 thing to improve: threads."
    assert as_json(stopped, judge(stopped))["status"] == "problem"
    assert as_json(GOOD, judge(GOOD))["status"] == "good"


def test_what_fits_is_a_table_with_its_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(replace(GOOD, fits=FITS), monkeypatch)
    table = [line.split() for line in text[text.index("What fits into 25.8 GB") :].splitlines()]
    assert table[1] == ["model", "bf16", "tok/s", "int8", "tok/s", "int4", "tok/s"]
    assert table[2] == ["a", "model", "17.2", "GB", "0.08-", "8.59", "GB", "4.0*", "990", "MB", "12"]
    assert "* fits into memory with the keys and values of 4096 tokens, but with no room for an mxfp4 copy." in text
    assert "- does not fit into memory with the keys and values of 4096 tokens, so the disk limits the speed." in text
    quick = tuple(replace(fit, tokens_per_second=None, fits=None) for fit in FITS[0].formats)
    text = printed(replace(GOOD, fits=(Fitting("m", 1, quick),)), monkeypatch)
    assert text.splitlines()[-1].split() == ["m", "17.2", "GB", "8.59", "GB", "990", "MB"], "no legend of nothing"


def test_numbers_are_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(replace(GOOD, fits=FITS), monkeypatch, terminal=True, columns=40))
    table = [line.split() for line in text[text.index("What fits into 25.8 GB") :].splitlines()]
    assert table[1:5] == [
        ["model", "format"],
        ["a", "model", "bf16", "17.2", "GB", "0.08-"],
        ["int8", "8.59", "GB", "4.0*"],
        ["int4", "990", "MB", "12"],
    ]
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "…" not in text


def test_a_terminal_has_marks_and_colours_and_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    facts = machine(huge_pages={"setting": "never"})
    text = printed(replace(facts, fits=FITS), monkeypatch, terminal=True)
    assert "✓" in text
    assert "!" in text
    assert "\x1b[33m" in text
    assert "warning" not in text
    plain = printed(facts, monkeypatch)
    assert "huge pages    warning: Switched off on this system" in plain
    assert "\x1b" not in plain
    assert plain.isascii()


def test_what_an_output_cannot_write_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine(machine={"processor": "Prozessor® \udcff"}, disk={"folder": "/модели"})
    text = printed(facts, monkeypatch, encoding="ascii")
    assert "Prozessor\\xae \\udcff (x86_64)" in text
    assert "/\\u043c" in text
    assert "✓" not in printed(facts, monkeypatch, encoding="ascii", terminal=True)


def test_nobody_may_be_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    print_report(GOOD, judge(GOOD))

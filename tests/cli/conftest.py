"""Runs the command line in this process, which has torch in memory already."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from foretoken.cli.app import main


class Ran:
    """Exit code, standard output and standard error of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Cli = Callable[..., Ran]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*args: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["foretoken", *map(str, args)])
        # click calls a program "python -m PACKAGE" where this is a package, as under `python -m pytest`
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Ran(int(str(code or 0)), captured.out, captured.err)

    return run

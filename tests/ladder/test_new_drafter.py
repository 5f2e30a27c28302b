"""A drafter in a file of its own and a row in the table: nothing else is needed for it to be there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import foretoken
from foretoken.drafters.table import DRAFTERS
from foretoken.errors import DraftSpecError
from tests.contracts.stage import Stage
from tests.contracts.table import TABLE, shipped
from tests.contracts.test_lossless import run_all, sample
from tests.engine.open_loop import COUNT, Loop, seven
from tests.ladder import toy
from tests.world import chain_of

PROMPT = "x = [0, 0, 0, 0, 0, 0,"


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, "toy", toy.ENTRY)


def test_it_drafts_and_the_text_is_the_same() -> None:
    plain = foretoken.load("stdlib-7m", draft="none").generate(PROMPT, max_new_tokens=40)
    for draft in ("toy", "toy:times=5:tokens=5", "stdlib-1m,toy"):
        done = foretoken.load("stdlib-7m", draft=draft, pace="fixed").generate(PROMPT, max_new_tokens=40)
        assert done.tokens == plain.tokens
        assert done.stats.draft_tokens > 0
    for draft, times in (("toy", 2), ("toy:times=5", 5)):
        drafter = foretoken.load("stdlib-7m", draft=draft, pace="fixed").drafter
        assert isinstance(drafter, toy.ToyDrafter)
        assert drafter.times == times


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("toy:time=3", "draft 'toy' has no option 'time'; did you mean 'times'"),
        ("toy,lookup", "'toy' cannot be sped up by 'lookup'"),
        ("toy:tokens=5000", "draft 'toy:tokens=5000' asks for 5000 tokens a round, expected at most 4096"),
        ("toi", "there is no draft 'toi'; did you mean 'toy'"),
    ],
)
def test_what_is_wrong_with_its_name_is_told(draft: str, said: str) -> None:
    with pytest.raises(DraftSpecError, match=re.escape(said)):
        foretoken.load("stdlib-7m", draft=draft, pace="fixed")


def test_it_is_in_help_and_in_the_documents() -> None:
    program = (
        "from foretoken.drafters.table import DRAFTERS; from tests.ladder.toy import ENTRY; DRAFTERS['toy'] = ENTRY\n"
        "import runpy, sys\n"
        "sys.path.insert(0, 'docs')\n"
        "import generate\n"
        "print('\\n'.join(generate._drafts()))\n"
        "from foretoken.cli.app import main\n"
        "sys.argv = ['foretoken', 'generate', '--help']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "| `toy` | says the last token again, `times` times | `times`" in done.stdout
    listed = r";\s*(│\s*)*".join(map(re.escape, DRAFTERS))
    assert re.search(listed, done.stdout), done.stdout


def test_it_is_in_the_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "toy" in shipped()
    loop = Loop(shipped()["toy"].make(Stage(seven(), Loop().caches, "chain")), budgets=chain_of(3))
    for sequence in (0, 1):
        loop.admit(sequence)
    loop.run()
    for sequence in (0, 1):
        loop.expect_as_alone(sequence)
    assert sum(sum(record.drafted.values()) for record in loop.records) > COUNT
    monkeypatch.setitem(TABLE, "toy", shipped()["toy"])
    events = run_all("toy", [{**case, "drafter": "toy"} for case in sample() if case["drafter"] == "lookup"])
    assert events["cases"] > 20

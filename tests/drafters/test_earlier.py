"""`lookup:earlier`: what was generated before as a source of drafts."""

from __future__ import annotations

import random

import pytest

import foretoken
from foretoken.drafters.earlier import EarlierTexts
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.suffixes import REACH
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import Request, Turn, Verdict
from tests.fakes import Known

PROMPT = "def read(self, size=-1):\n    "


def said(drafter: LookupDrafter, sequence: int, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    drafter.begin([Request(sequence, prompt, 99)])
    drafter.observe([Verdict(sequence, 0, len(prompt), (), tokens, ("target",) * len(tokens))])
    drafter.end(sequence)
    drafter.end(sequence)


def drafted(drafter: LookupDrafter, *prompt: int) -> tuple[int, ...]:
    drafter.begin([Request(9, prompt, 99)])
    (draft,) = drafter.propose([Turn(9, 3, 40, 4, 4)])
    return draft.tokens


def test_the_longest_match_is_followed_wherever_it_is() -> None:
    drafter = LookupDrafter(2, Known([[4, 1, 2, 3, 70, 71], [5, 5, 1, 2, 3, 80]]), earlier=EarlierTexts())
    said(drafter, 0, (7, 8, 1), (2, 3, 50, 51))
    said(drafter, 1, (6, 1), (2, 3, 60, 61))
    assert drafted(drafter, 9, 2, 3) == (60, 61), "of earlier outputs, the latest; it ends with its text"
    assert drafted(drafter, 8, 1, 2, 3) == (50, 51), "the end of its prompt belongs to it"
    assert drafted(drafter, 4, 1, 2, 3) == (70, 71), "a longer one in the files"
    assert drafted(drafter, 5, 2, 3, 8, 2, 3) == (8, 2, 3, 8), "the text's own, if none is longer"
    assert drafter.matched(9) == 2
    assert drafted(drafter, 9, 3) == ()
    said(drafter, 2, (1, 2, 3, 4, 5), ())
    assert drafted(drafter, 1, 2, 3, 4) == (), "a prompt alone is no output"


def test_it_finds_what_a_search_finds() -> None:
    chance, earlier, texts = random.Random(3), EarlierTexts(), list[list[int]]()
    for _ in range(30):
        texts.append([chance.randrange(4) for _ in range(chance.randrange(1, 60))])
        earlier.keep(texts[-1])
        end = [chance.randrange(4) for _ in range(chance.randrange(1, 50))]
        runs = {
            tuple(text[at : at + size]) for text in texts for size in range(1, REACH + 1) for at in range(len(text))
        }
        longest = max((size for size in range(1, min(REACH, len(end)) + 1) if tuple(end[-size:]) in runs), default=0)
        match = earlier.longest(end, 1)
        assert (match.length if match else 0) == longest
        if match:
            run = end[len(end) - longest :]
            following = earlier.following(match, 5)
            assert any(
                text[at : at + longest] == run and text[at + longest : at + longest + 5] == following
                for text in texts
                for at in range(len(text))
            )


def test_the_older_half_is_forgotten_when_there_is_too_much() -> None:
    earlier = EarlierTexts(most=100)
    for number in range(20):
        earlier.keep([1000 + number, 1, *range(10 * number, 10 * number + 8)])
        assert len(earlier._automaton.text) <= 100
        assert earlier.longest([1000 + number, 1], 2) is not None
    assert earlier.longest([1000, 1], 2) is None
    assert earlier.longest([1018, 1], 2) is not None
    earlier.keep(range(5000, 5500))
    assert earlier.following(earlier.longest([5480], 1) or pytest.fail("the end of it is kept"), 2) == [5481, 5482]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("draft", ["lookup:earlier", "mxfp4:tokens=3,lookup:earlier"])
def test_an_answer_that_was_given_before_is_drafted_and_the_text_stays(draft: str, sampling: dict[str, float]) -> None:
    plain = foretoken.load("stdlib-1m", draft="none").generate(PROMPT, max_new_tokens=48, **sampling)
    model = foretoken.load("stdlib-1m", draft=draft, pace="fixed")
    first, second = (model.generate(PROMPT, max_new_tokens=48, **sampling) for _ in range(2))
    assert first.tokens == second.tokens == plain.tokens
    its = [
        next(level.accepted_tokens for level in one.stats.levels if level.name == "lookup") for one in (first, second)
    ]
    assert its[1] > its[0] + 5


def test_it_does_not_go_with_the_rejection_rule() -> None:
    with pytest.raises(DraftSpecError, match="'lookup:earlier': with 'earlier', a draft depends on what was generated"):
        foretoken.load("no-such-model", draft="lookup:earlier", rule="rejection")

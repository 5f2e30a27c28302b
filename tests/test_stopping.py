from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.stopping import cut, limit
from foretoken.types import TARGET, Features, FinishReason, Request, Verdict

END = 9
PROMPT = (1, 2, 3)
LONG = 100  # a context that nothing here fills


def request(max_new_tokens: int = 50, end_tokens: frozenset[int] = frozenset({END})) -> Request:
    return Request(0, PROMPT, max_new_tokens, end_tokens)


def verdict_of(tokens: tuple[int, ...], position: int = len(PROMPT)) -> Verdict:
    """All but the last token accepted, with features and logits in which every row can be told."""
    n = len(tokens)
    return Verdict(
        sequence=0,
        round=1,
        position=position,
        accepted=tuple(range(10, 10 + n - 1)),
        tokens=tokens,
        origins=(*("lookup" for _ in range(n - 1)), TARGET),
        # one row for each token that the pass committed: the last one of before, then the accepted
        features=Features(position - 1, {"hidden": torch.arange(float(n))[:, None], "keys": torch.arange(n)}),
        logits=torch.arange(10.0, 10 + n)[:, None],
    )


def assert_cut(verdict: Verdict, whole: Verdict, count: int, reason: FinishReason) -> None:
    """`verdict` is the first `count` tokens of `whole`, in all its parts."""
    assert verdict.finish_reason == reason
    assert verdict.tokens == whole.tokens[:count]
    assert verdict.origins == whole.origins[:count]
    assert verdict.accepted == whole.accepted[:count]
    assert (verdict.sequence, verdict.round, verdict.position) == (whole.sequence, whole.round, whole.position)
    assert verdict.logits is not None
    assert verdict.logits.flatten().tolist() == [10.0 + i for i in range(count)]
    assert verdict.features is not None
    # the cache keeps positions up to that of the last token but one: as many rows as there are tokens
    assert verdict.features.start == verdict.position - 1
    assert verdict.features.tensors["hidden"].flatten().tolist() == [float(i) for i in range(count)]
    assert verdict.features.tensors["keys"].tolist() == list(range(count))


def test_the_limit_is_the_smaller_of_what_was_asked_and_what_the_context_leaves() -> None:
    assert limit(request(5), LONG) == 5
    assert limit(request(5), len(PROMPT) + 2) == 2
    assert limit(request(5), len(PROMPT) + 5) == 5


def test_a_verdict_within_all_bounds_stays_as_it_is() -> None:
    whole = verdict_of((5, 6, 7))
    assert cut(whole, request(), LONG) is whole


@pytest.mark.parametrize("offset", range(4))
def test_an_end_token_ends_the_text_wherever_it_stands(offset: int) -> None:
    tokens = [5, 6, 7, 8]
    tokens[offset] = END
    whole = verdict_of(tuple(tokens))
    assert_cut(cut(whole, request(), LONG), whole, offset + 1, "stop")


def test_the_first_of_several_end_tokens_counts() -> None:
    whole = verdict_of((5, 8, END, 6))
    assert_cut(cut(whole, request(end_tokens=frozenset({END, 8})), LONG), whole, 2, "stop")


def test_without_end_tokens_none_ends_the_text() -> None:
    whole = verdict_of((5, END, 6))
    assert cut(whole, request(end_tokens=frozenset()), LONG) is whole


@pytest.mark.parametrize("room", range(1, 5))
def test_max_new_tokens_cuts_in_the_middle_of_a_verdict(room: int) -> None:
    whole = verdict_of((5, 6, 7, 8))
    assert_cut(cut(whole, request(room), LONG), whole, room, "length")


@pytest.mark.parametrize("room", range(1, 5))
def test_the_context_length_cuts_in_the_middle_of_a_verdict(room: int) -> None:
    whole = verdict_of((5, 6, 7, 8))
    assert_cut(cut(whole, request(), len(PROMPT) + room), whole, room, "length")


def test_tokens_of_earlier_verdicts_count_towards_the_length() -> None:
    whole = verdict_of((5, 6, 7), position=len(PROMPT) + 8)
    assert_cut(cut(whole, request(10), LONG), whole, 2, "length")


def test_an_end_token_beyond_the_length_is_not_seen() -> None:
    whole = verdict_of((5, 6, END))
    assert_cut(cut(whole, request(2), LONG), whole, 2, "length")


def test_an_end_token_at_the_last_allowed_place_is_a_stop() -> None:
    whole = verdict_of((5, END, 6))
    assert_cut(cut(whole, request(2), LONG), whole, 2, "stop")


def test_a_prompt_verdict_that_stops_at_once_keeps_the_features_of_the_whole_prompt() -> None:
    # it has more rows than tokens, and loses none
    features = Features(0, {"hidden": torch.arange(float(len(PROMPT)))})
    whole = Verdict(0, 0, len(PROMPT), (), (END,), (TARGET,), features)
    stopped = cut(whole, request(), LONG)
    assert (stopped.tokens, stopped.finish_reason) == ((END,), "stop")
    assert stopped.features is features


def test_a_verdict_without_features_and_logits_is_cut_too() -> None:
    whole = Verdict(0, 1, len(PROMPT), (0, 1), (5, END, 6), ("lookup", "lookup", TARGET))
    stopped = cut(whole, request(), LONG)
    assert (stopped.tokens, stopped.accepted, stopped.features, stopped.logits) == ((5, END), (0, 1), None, None)


@given(
    passes=st.lists(st.lists(st.sampled_from([5, 6, END]), min_size=1, max_size=4), min_size=10, max_size=10),
    max_new_tokens=st.integers(1, 9),
    context_left=st.integers(1, 9),
)
@settings(deadline=None, max_examples=200)
def test_a_text_ends_where_plain_decoding_ends_however_passes_divide_it(
    passes: list[list[int]], max_new_tokens: int, context_left: int
) -> None:
    stream = [token for tokens in passes for token in tokens]  # longer than any limit here
    asked, context_length = request(max_new_tokens), len(PROMPT) + context_left

    plain: list[int] = []
    reason: FinishReason = "length"
    while len(plain) < min(max_new_tokens, context_left):
        plain.append(stream[len(plain)])
        if plain[-1] == END:
            reason = "stop"
            break

    text: list[int] = []
    for tokens in passes:
        verdict = cut(verdict_of(tuple(tokens), len(PROMPT) + len(text)), asked, context_length)
        text += verdict.tokens
        if verdict.finish_reason is not None:
            break
    assert (text, verdict.finish_reason) == (plain, reason)

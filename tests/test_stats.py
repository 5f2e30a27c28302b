from __future__ import annotations

from foretoken.stats import summarise
from foretoken.types import RoundRecord, Stats

PROMPT = RoundRecord(round=0, drafted={}, accepted={0: 0}, new_tokens={0: 1}, propose_seconds=0.0, check_seconds=0.5)


def record(drafted: int, accepted: int, propose_seconds: float = 0.25, check_seconds: float = 0.75) -> RoundRecord:
    """A round of sequence 0: what was accepted, and the bonus."""
    return RoundRecord(1, {0: drafted}, {0: accepted}, {0: accepted + 1}, propose_seconds, check_seconds)


def test_counts_and_rates_are_those_of_the_fields_terms() -> None:
    assert summarise([PROMPT, record(4, 3), record(0, 0), record(4, 1), record(2, 0)], 0) == Stats(
        drafts=3,  # rounds in which something was drafted
        draft_tokens=10,
        accepted_tokens=4,
        draft_acceptance_rate=0.4,
        mean_acceptance_length=2.0,  # 4 accepted and 4 bonus tokens in 4 passes
        accepted_per_position=(2, 1, 1),
        tokens_per_second=2.0,  # 8 tokens in 4 seconds, the prompt's token left out
        tokens_per_second_with_prefill=2.0,  # 9 tokens in 4.5 seconds
        prefill_seconds=0.5,
        decode_seconds=4.0,
    )


def test_a_verdict_that_was_cut_counts_what_was_kept() -> None:
    # four drafted and accepted, of which two were kept, without a bonus
    stats = summarise([PROMPT, RoundRecord(1, {0: 4}, {0: 2}, {0: 2}, 0.0, 1.0)], 0)
    assert (stats.draft_tokens, stats.accepted_tokens, stats.mean_acceptance_length) == (4, 2, 2.0)
    assert stats.accepted_per_position == (1, 1)


def test_plain_decoding_gains_one_token_a_pass() -> None:
    assert summarise([PROMPT, record(0, 0), record(0, 0)], 0) == Stats(
        mean_acceptance_length=1.0,
        tokens_per_second=1.0,
        tokens_per_second_with_prefill=1.2,
        prefill_seconds=0.5,
        decode_seconds=2.0,
    )


def test_a_generation_that_ends_with_its_prompt_has_no_decoding() -> None:
    assert summarise([PROMPT], 0) == Stats(tokens_per_second_with_prefill=2.0, prefill_seconds=0.5)


def test_decoding_that_took_no_measurable_time_has_no_rate() -> None:
    stats = summarise([PROMPT, record(4, 3, propose_seconds=0.0, check_seconds=0.0)], 0)
    assert (stats.tokens_per_second, stats.decode_seconds) == (0.0, 0.0)
    assert stats.tokens_per_second_with_prefill == 10.0
    assert stats.mean_acceptance_length == 4.0


def test_a_generation_that_took_no_measurable_time_has_no_rate() -> None:
    prompt = RoundRecord(0, {}, {0: 0}, {0: 1}, 0.0, 0.0)
    assert summarise([prompt], 0).tokens_per_second_with_prefill == 0.0


TWO = [
    RoundRecord(0, {}, {0: 0, 1: 0}, {0: 1, 1: 1}, 0.0, 1.0),
    RoundRecord(1, {0: 4, 1: 2}, {0: 4, 1: 0}, {0: 5, 1: 1}, 0.0, 1.0),
    RoundRecord(2, {1: 3}, {1: 1}, {1: 2}, 0.0, 1.0),  # sequence 0 has finished
    RoundRecord(3, {1: 0}, {1: 0}, {1: 1}, 0.0, 1.0),
]


def test_each_of_several_sequences_counts_its_own_tokens_and_passes() -> None:
    first, second = summarise(TWO, 0), summarise(TWO, 1)
    assert (first.drafts, first.draft_tokens, first.accepted_tokens) == (1, 4, 4)
    assert (first.draft_acceptance_rate, first.mean_acceptance_length) == (1.0, 5.0)
    assert first.accepted_per_position == (1, 1, 1, 1)
    assert (second.drafts, second.draft_tokens, second.accepted_tokens) == (2, 5, 1)
    assert (second.draft_acceptance_rate, second.mean_acceptance_length) == (0.2, 4 / 3)
    assert second.accepted_per_position == (1,)
    assert (second.decode_seconds, second.tokens_per_second) == (3.0, 4 / 3)


def test_a_sequence_is_not_charged_for_rounds_after_its_last() -> None:
    first = summarise(TWO, 0)
    assert (first.decode_seconds, first.tokens_per_second) == (1.0, 5.0)

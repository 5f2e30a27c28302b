from __future__ import annotations

import pytest

import foretoken
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from foretoken.results.stats import LevelStats, Stats, summarise

PROMPT = RoundRecord(0, {}, {0: 0}, {0: 1}, propose_seconds=0.0, check_seconds=0.5, read={0: 5})


def record(drafted: int, accepted: int, propose_seconds: float = 0.25, check_seconds: float = 0.75) -> RoundRecord:
    """A round of sequence 0: what was accepted, and the bonus."""
    return RoundRecord(1, {0: drafted}, {0: accepted}, {0: accepted + 1}, propose_seconds, check_seconds)


def test_counts_and_rates_are_those_of_the_fields_terms() -> None:
    assert summarise([PROMPT, record(4, 3), record(0, 0), record(4, 1), record(2, 0)], 0) == Stats(
        passes=4,
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
        draft_seconds=1.0,
        check_seconds=3.0,
    )


def test_a_verdict_that_was_cut_counts_what_was_kept() -> None:
    # four drafted and accepted, of which two were kept, without a bonus
    stats = summarise([PROMPT, RoundRecord(1, {0: 4}, {0: 2}, {0: 2}, 0.0, 1.0)], 0)
    assert (stats.passes, stats.draft_tokens, stats.accepted_tokens, stats.mean_acceptance_length) == (1, 4, 2, 2.0)
    assert stats.accepted_per_position == (1, 1)


def test_plain_decoding_gains_one_token_a_pass() -> None:
    assert summarise([PROMPT, record(0, 0), record(0, 0)], 0) == Stats(
        passes=2,
        mean_acceptance_length=1.0,
        tokens_per_second=1.0,
        tokens_per_second_with_prefill=1.2,
        prefill_seconds=0.5,
        decode_seconds=2.0,
        draft_seconds=0.5,
        check_seconds=1.5,
    )


def test_a_generation_that_ends_with_its_prompt_has_no_decoding() -> None:
    assert summarise([PROMPT], 0) == Stats(tokens_per_second_with_prefill=2.0, prefill_seconds=0.5)


def test_decoding_that_took_no_measurable_time_has_no_rate() -> None:
    stats = summarise([PROMPT, record(4, 3, propose_seconds=0.0, check_seconds=0.0)], 0)
    assert (stats.tokens_per_second, stats.decode_seconds) == (0.0, 0.0)
    assert stats.tokens_per_second_with_prefill == 10.0
    assert stats.mean_acceptance_length == 4.0


def test_a_generation_that_took_no_measurable_time_has_no_rate() -> None:
    prompt = RoundRecord(0, {}, {0: 0}, {0: 1}, 0.0, 0.0, read={0: 5})
    assert summarise([prompt], 0).tokens_per_second_with_prefill == 0.0


TWO = [
    RoundRecord(0, {}, {0: 0, 1: 0}, {0: 1, 1: 1}, 0.0, 1.0, read={0: 5, 1: 7}),
    RoundRecord(1, {0: 4, 1: 2}, {0: 4, 1: 0}, {0: 5, 1: 1}, 0.0, 1.0),
    RoundRecord(2, {1: 3}, {1: 1}, {1: 2}, 0.0, 1.0),  # sequence 0 has finished
    RoundRecord(3, {1: 0}, {1: 0}, {1: 1}, 0.0, 1.0),
]


def test_each_of_several_sequences_counts_its_own_tokens_and_passes() -> None:
    first, second = summarise(TWO, 0), summarise(TWO, 1)
    assert (first.passes, second.passes) == (1, 3)
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


def test_a_prompt_that_is_read_in_several_rounds_is_no_decoding_of_its_own_and_of_others_it_is() -> None:
    records = [
        RoundRecord(0, {}, {0: 0}, {0: 1}, 0.0, 1.0, read={0: 5}),
        RoundRecord(1, {0: 3}, {0: 2}, {0: 3}, 0.5, 1.5, read={1: 256}),
        RoundRecord(2, {0: 3}, {0: 0, 1: 0}, {0: 1, 1: 1}, 0.5, 2.5, read={1: 44}),
        RoundRecord(3, {0: 1, 1: 2}, {0: 1, 1: 2}, {0: 2, 1: 3}, 0.5, 0.5),
    ]
    first, second = summarise(records, 0), summarise(records, 1)
    assert (first.passes, first.draft_tokens, first.accepted_tokens) == (3, 7, 3)
    assert (first.prefill_seconds, first.draft_seconds, first.check_seconds) == (1.0, 1.5, 4.5)
    assert (first.tokens_per_second, first.tokens_per_second_with_prefill) == (1.0, 1.0)
    assert (second.passes, second.draft_tokens, second.accepted_tokens) == (1, 2, 2)
    assert (second.prefill_seconds, second.decode_seconds) == (5.0, 1.0)
    assert (second.tokens_per_second, second.tokens_per_second_with_prefill) == (3.0, 4 / 6)


# -- levels -----------------------------------------------------------------------------------------------------------


def check(level: str, checked: int, accepted: int, seconds: float = 0.25) -> Work:
    """A pass of a level over the root and what the level below it drafted; it gains what is accepted, and a token."""
    return Work(level, 1 + checked, 0.0, seconds, accepted + 1, checked, accepted, passes=1)


def drafting(tokens: int, seconds: float = 0.125) -> Work:
    """A draft of the level at the end, which has no model."""
    return Work("lookup", 0, 0.0, seconds, tokens)


def round_of(accepted: int, *work: Work, sequence: int = 0, drafted: int | None = None) -> RoundRecord:
    """A round to which the first level brought all that it gained, if nothing else is said."""
    gained = sum(w.draft_tokens for w in work if w.level == "small") if drafted is None else drafted
    s = sequence
    return RoundRecord(1, {s: gained}, {s: accepted}, {s: accepted + 1}, 2.0, 6.0, work={s: work})


LADDER = ("small", "lookup")


def test_a_levels_drafts_are_counted_where_they_were_checked() -> None:
    records = [
        PROMPT,
        # it reads what it had not seen; then 3 guessed and 2 right, nothing guessed, 2 guessed and none right
        round_of(
            3,
            Work("small", 4, 0.0, 0.5, passes=1),
            drafting(3),
            check("small", 3, 2),
            drafting(0),
            check("small", 0, 0),
            drafting(2),
            check("small", 2, 0),
        ),
        round_of(1, drafting(1), check("small", 1, 1)),
    ]
    stats = summarise(records, 0, LADDER)
    small, lookup = stats.levels
    assert small == LevelStats(
        "small",
        passes=5,
        rows=4 + 4 + 1 + 3 + 2,
        seconds=1.5,
        time_share=1.5 / 16,
        drafts=2,
        draft_tokens=7,
        accepted_tokens=4,
        draft_acceptance_rate=4 / 7,
        mean_acceptance_length=3.0,  # 6 tokens in 2 passes of the target
        accepted_per_position=(2, 1, 1),
    )
    assert lookup == LevelStats(
        "lookup",
        seconds=0.5,
        time_share=0.5 / 16,
        drafts=3,  # checks at which there was something to check
        draft_tokens=6,
        accepted_tokens=3,
        draft_acceptance_rate=0.5,
        mean_acceptance_length=7 / 4,  # 7 tokens in 4 checking passes; the one that only read is none
        accepted_per_position=(2, 1),
    )
    assert (stats.draft_seconds, stats.check_seconds, stats.decode_seconds) == (4.0, 12.0, 16.0)


def test_drafts_count_for_the_level_that_made_them_where_the_pace_leaves_one_out() -> None:
    both = {0: (Budget(4, 4), Budget(2, 2))}
    first = RoundRecord(
        1, {0: 4}, {0: 3}, {0: 4}, 0.0, 1.0, work={0: (Work("small", 3, 0.0, 0.1, 4, 2, 1, 1),)}, budgets=both
    )
    left_out = {0: (Budget(0, 0), Budget(8, 8))}
    second = RoundRecord(2, {0: 8}, {0: 5}, {0: 6}, 0.0, 1.0, work={0: (Work("lookup"),)}, budgets=left_out)
    none = RoundRecord(3, {0: 0}, {0: 0}, {0: 1}, 0.0, 1.0, budgets={0: (Budget(0, 0), Budget(0, 0))})
    small, lookup = summarise([PROMPT, first, second, none], 0, ("small", "lookup")).levels
    assert (small.draft_tokens, small.accepted_tokens, small.drafts) == (4, 3, 1)
    assert (lookup.draft_tokens, lookup.accepted_tokens, lookup.drafts) == (2 + 8, 1 + 5, 2)
    assert (small.mean_acceptance_length, lookup.mean_acceptance_length) == ((4 + 1) / 2, (4 + 6) / 2)


def test_the_first_level_says_what_the_whole_says() -> None:
    stats = summarise([PROMPT, round_of(2, drafting(2), check("small", 2, 2)), round_of(0)], 0, LADDER)
    for name in ("drafts", "draft_tokens", "accepted_tokens", "draft_acceptance_rate", "mean_acceptance_length"):
        assert getattr(stats.levels[0], name) == getattr(stats, name) > 0
    assert stats.levels[0].accepted_per_position == stats.accepted_per_position == (1, 1)


def test_levels_that_drafted_nothing_are_there_with_nothing() -> None:
    assert summarise([PROMPT], 0, LADDER).levels == (LevelStats("small"), LevelStats("lookup"))
    small, lookup = summarise([PROMPT, round_of(1, drafting(0), check("small", 0, 0))], 0, LADDER).levels
    assert (small.draft_tokens, small.accepted_tokens, small.mean_acceptance_length) == (1, 1, 2.0)
    assert (lookup.drafts, lookup.draft_tokens, lookup.draft_acceptance_rate) == (0, 0, 0.0)
    assert (lookup.mean_acceptance_length, lookup.accepted_per_position) == (1.0, ())


def test_a_level_all_of_whose_drafts_are_right() -> None:
    records = [PROMPT, *(round_of(5, drafting(4), check("small", 4, 4)) for _ in range(3))]
    small, lookup = summarise(records, 0, LADDER).levels
    assert (small.draft_acceptance_rate, small.accepted_per_position) == (1.0, (3,) * 5)
    assert (lookup.draft_acceptance_rate, lookup.accepted_per_position) == (1.0, (3,) * 4)
    assert (small.mean_acceptance_length, lookup.mean_acceptance_length) == (6.0, 5.0)


def test_what_was_cut_off_before_the_check_is_not_counted_as_drafted() -> None:
    small, _ = summarise([PROMPT, round_of(1, check("small", 0, 0), check("small", 0, 0), drafted=1)], 0, LADDER).levels
    assert (small.draft_tokens, small.accepted_tokens, small.passes) == (1, 1, 2)


def test_each_of_several_sequences_counts_the_work_for_its_own_drafts() -> None:
    both = RoundRecord(
        1,
        {0: 3, 1: 1},
        {0: 3, 1: 0},
        {0: 4, 1: 1},
        2.0,
        2.0,
        work={0: (drafting(2), check("small", 2, 2)), 1: (drafting(1), check("small", 1, 0, seconds=1.0))},
    )
    records = [RoundRecord(0, {}, {0: 0, 1: 0}, {0: 1, 1: 1}, 0.0, 0.5, read={0: 5, 1: 5}), both]
    (small, lookup), (other_small, other_lookup) = (summarise(records, s, LADDER).levels for s in (0, 1))
    assert (small.accepted_tokens, lookup.accepted_tokens, small.seconds) == (3, 2, 0.25)
    assert (other_small.accepted_tokens, other_lookup.accepted_tokens, other_small.seconds) == (0, 0, 1.0)
    assert (lookup.draft_tokens, other_lookup.draft_tokens) == (2, 1)


def test_a_real_ladder_adds_up() -> None:
    model = foretoken.load("stdlib-7m", draft="stdlib-1m,lookup", threads=1, pace="fixed")
    done = model.generate("def add(", max_new_tokens=48, ignore_eos=True, keep_rounds=True)
    stats = done.stats
    assert done.rounds is not None
    rounds = [r for r in done.rounds if not r.read]
    assert len(rounds) == len(done.rounds) - 1
    assert [level.name for level in stats.levels] == ["stdlib-1m", "lookup"]
    small, lookup = stats.levels
    bonus = sum(r.new_tokens[s] - r.accepted[s] for r in rounds for s in r.accepted)
    assert 1 + stats.accepted_tokens + bonus == len(done.tokens) == 48  # the first is the prompt's
    assert sum(origin == "target" for origin in done.origins) == 1 + bonus
    # of what lookup guessed the small model took some, of which the target took some
    assert 0 < done.origins.count("lookup") <= lookup.accepted_tokens <= lookup.draft_tokens
    assert 0 < small.accepted_tokens < small.draft_tokens == stats.draft_tokens
    assert done.origins.count("lookup") + done.origins.count("stdlib-1m") == small.accepted_tokens
    checks = [w for r in rounds for its in r.work.values() for w in its if w.level == "stdlib-1m" and w.draft_tokens]
    assert sum(w.draft_tokens for w in checks) == lookup.accepted_tokens + len(checks) >= small.draft_tokens
    assert small.passes >= len(checks)
    assert small.rows >= small.passes + lookup.draft_tokens
    # time
    assert 0 < lookup.seconds < small.seconds
    assert small.seconds + lookup.seconds <= stats.draft_seconds
    assert stats.draft_seconds + stats.check_seconds == pytest.approx(stats.decode_seconds)
    assert (
        stats.decode_seconds
        <= rounds[-1].began + rounds[-1].propose_seconds + rounds[-1].check_seconds - rounds[0].began
    )
    for r in rounds:
        for work in r.work.values():
            ends = [r.began, *(w.began + w.seconds for w in work)]
            assert all(end <= w.began for end, w in zip(ends, work, strict=False)), "the work does not overlap"
            assert ends[-1] <= r.began + r.propose_seconds


def test_a_tree_counts_its_passes_and_rows() -> None:
    model = foretoken.load("stdlib-7m", draft="stdlib-1m:k=2:depth=3", threads=1, pace="fixed")
    (level,) = model.generate("def add(", max_new_tokens=12, ignore_eos=True).stats.levels
    assert level.name == "stdlib-1m"
    assert level.drafts < level.passes <= 3 * (level.drafts + 1)
    assert level.rows >= level.draft_tokens / 2


def test_plain_decoding_has_no_levels() -> None:
    model = foretoken.load("stdlib-1m", draft="none", threads=1)
    assert model.generate("def add(", max_new_tokens=3).stats.levels == ()


def test_levels_of_one_name_are_told_apart() -> None:
    model = foretoken.load("stdlib-1m", draft="stdlib-1m,stdlib-1m:tokens=2,lookup", threads=1, pace="fixed")
    done = model.generate("def add(", max_new_tokens=24, ignore_eos=True)
    assert [level.name for level in done.stats.levels] == ["stdlib-1m", "stdlib-1m-2", "lookup"]
    assert all(level.seconds > 0 for level in done.stats.levels)
    assert "stdlib-1m-2" in done.origins

"""Our proposer inside vLLM: in float32, every draft leaves vLLM's text as it is without a draft.

In float32, rounding decides between two tokens hardly ever. Each engine runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foretoken.bench.suites import HELD_OUT, first_turn, open_suite
from foretoken.bench.vllm_engines import Answer, Asked, drafted, n_grams, vllm
from foretoken.common.source import EMBEDDED
from foretoken.text.tokenizer import Tokenizer

MODEL, MOST, TOKENS = EMBEDDED["stdlib-7m"], 5, 32
DRAFTS = ("lookup", "stdlib-1m", "mxfp4", "mxfp4,lookup", "mxfp4:own-cache,lookup", "moa", "moa,lookup")
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """Of different lengths. Two of them are the same."""
    tokenizer = Tokenizer.load(MODEL)
    suite = open_suite(HELD_OUT, tokenizer, count=6)
    found = [list(first_turn(prompt, tokenizer)) for prompt in suite.prompts]
    long = [token for prompt in found for token in prompt][:300]  # more than two of vLLM's pages
    return [*(prompt[: 40 + 25 * at] for at, prompt in enumerate(found[:4])), found[0][:40], long, long]


@pytest.fixture(scope="module")
def run(prompts: Prompts) -> Callable[..., Answer]:
    """Generate in an engine of its own."""

    def run(settings: dict[str, Any], tokens: int = TOKENS, **sampling: Any) -> Answer:
        asked = Asked(str(MODEL), "float32", 512, 4)
        with vllm(asked, settings) as engine:
            return engine.generate(prompts, tokens, **sampling)

    return run


@pytest.fixture(scope="module")
def plain(run: Callable[..., Answer]) -> list[list[int]]:
    """What vLLM generates by itself."""
    return run({}).texts


def test_n_grams_of_vllm_change_nothing_either(run: Callable[..., Answer], plain: list[list[int]]) -> None:
    assert run(n_grams(MOST)).texts == plain


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_draft_changes_a_text(draft: str, run: Callable[..., Answer], plain: list[list[int]]) -> None:
    texts, _, (_, proposed, accepted), *_ = run(drafted(draft, MOST, pace="fixed"))
    assert texts == plain
    assert 10 < accepted < proposed - 10


def test_on_the_keys_and_values_of_vllm_as_many_tokens_are_accepted_as_on_own_ones(run: Callable[..., Answer]) -> None:
    mirrored, own = (run(drafted(draft, MOST, pace="fixed")).counts[2] for draft in ("mxfp4", "mxfp4:own-cache"))
    assert abs(mirrored - own) < 0.1 * own


@pytest.mark.parametrize(
    "more",
    [
        {"enable_prefix_caching": True},
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 64},
        {"num_gpu_blocks_override": 5},  # so few pages that requests are taken out and begun again
    ],
    ids=["shared prefixes", "prompts in chunks", "few pages"],
)
def test_what_vllm_does_with_requests_changes_nothing(
    more: dict[str, Any], run: Callable[..., Answer], plain: list[list[int]]
) -> None:
    texts, _, (_, proposed, accepted), cached, taken_out = run({**drafted("mxfp4", MOST, pace="fixed"), **more})
    assert texts == plain
    assert 10 < accepted < proposed - 10
    assert (cached > 0) == ("enable_prefix_caching" in more)
    assert (taken_out > 0) == ("num_gpu_blocks_override" in more)


def test_sampled_text_is_drafted_for(run: Callable[..., Answer]) -> None:
    texts, _, (_, proposed, accepted), *_ = run(drafted("mxfp4", MOST, pace="fixed"), temperature=0.7, seed=1)
    assert {len(text) for text in texts} == {TOKENS}
    assert 10 < accepted < proposed - 10


def test_the_pace_auto_begins_without_drafts_and_then_makes_some(run: Callable[..., Answer]) -> None:
    tokens = 160
    texts, _, (passes, proposed, accepted), *_ = run(drafted("lookup", MOST), tokens)
    assert {len(text) for text in texts} == {tokens}
    assert 0 < passes < len(texts) * tokens - accepted
    assert 0 < accepted < proposed


def test_two_workers_that_share_the_model_draft_alike(run: Callable[..., Answer], plain: list[list[int]]) -> None:
    texts, _, (_, proposed, accepted), *_ = run(
        {**drafted("mxfp4,lookup", MOST, pace="fixed"), "tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    )
    same = sum(map(list.__eq__, texts, plain))  # two workers add in another order
    assert same >= len(plain) - 1
    assert 10 < accepted < proposed - 10


@pytest.mark.parametrize(
    ("said", "why"), [({"draft": "lookop"}, "did you mean 'lookup'"), ({"darft": "lookup"}, "did you mean 'draft'")]
)
def test_vllm_shows_what_is_wrong(said: dict[str, str], why: str, run: Callable[..., Answer]) -> None:
    with pytest.raises(Exception, match=why):
        run({**drafted("lookup", MOST), "additional_config": {"foretoken": said}})

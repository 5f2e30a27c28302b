"""What answers of every kind have in common: counts, speeds, log probabilities, and what was drafted in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from foretoken.api.model import Model
from foretoken.common.version import VERSION
from foretoken.drafters.lookup import PREDICTION
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import TARGET
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.results.stats import Stats
from foretoken.serve.asked import Done, Gained
from foretoken.serve.asking import Wanted

_OF_LEVELS = ("seconds", "passes", "draft_tokens", "checked_tokens", "accepted_tokens")  # of each round, added up
Describe = Callable[[int], str]  # the text of one token


def fingerprint(model: Model) -> str:
    """What decides the bits of an answer, besides the request."""
    return f"foretoken-{VERSION}-{model.promise}-{model.target.arithmetic.replace(' ', '-')}"


def usage(prompts: Sequence[Sequence[Done]]) -> dict[str, Any]:
    """OpenAI's counts, of all prompts and their completions."""
    read = sum(done[0].completion.prompt_tokens for done in prompts)
    every = [each for done in prompts for each in done]
    written = sum(len(each.completion.tokens) for each in every)
    accepted = sum(each.completion.origins.count(PREDICTION) for each in every)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(done[0].completion.cached_tokens for done in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(each.predicted for each in every) - accepted,
            "reasoning_tokens": 0,
        },
    }


def own(model: Model, wanted: Wanted, prompts: Sequence[Sequence[Done]]) -> dict[str, Any]:
    """What front ends read under vLLM's and llama.cpp's names, and what only Foretoken says. Speeds and acceptance are
    told of a single text."""
    first_level = wanted.prompts[0][0].first_level
    every = [each.completion for done in prompts for each in done]
    first = every[0]
    said: dict[str, Any] = {
        "promise": min((each.promise for each in every), key=("none", "algorithmic", "exact").index),
        "seed": first.seed,
        "draft": ",".join(model.levels[first_level:]) or "none" if first_level else first.draft,
        "arithmetic": first.arithmetic,
        "why_no_draft": _why_no_draft(model, first_level, first.stats),
    }
    if len(every) > 1:
        return {"metrics": {"speculative_decoding": None}, "timings": None, "foretoken": {**said, "stats": None}}
    return {
        "metrics": {"speculative_decoding": _acceptance(first.stats)},
        "timings": _timings(first),
        "foretoken": {**said, "stats": _stats(first.stats)},
    }


def _acceptance(stats: Stats) -> dict[str, Any] | None:
    """As vLLM's `docs/features/per_request_metrics.md` names it."""
    if not stats.drafts:
        return None
    return {
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "num_drafts": stats.drafts,
        "num_draft_tokens": stats.draft_tokens,
        "num_accepted_draft_tokens": stats.accepted_tokens,
        "num_accepted_tokens_per_pos": list(stats.accepted_per_position),
    }


def _timings(done: Completion) -> dict[str, Any]:
    """As llama.cpp's server names it. The first token comes with the prompt."""
    stats, read = done.stats, done.prompt_tokens - done.cached_tokens
    return {
        "cache_n": done.cached_tokens,
        "prompt_n": read,
        "prompt_ms": 1e3 * stats.prefill_seconds,
        "prompt_per_second": read / stats.prefill_seconds if stats.prefill_seconds else 0.0,
        "predicted_n": len(done.tokens),
        "predicted_ms": 1e3 * stats.decode_seconds,
        "predicted_per_second": stats.tokens_per_second,
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
    }


def _stats(stats: Stats) -> dict[str, Any]:
    return {name: value for name, value in asdict(stats).items() if name != "cost"}


def _why_no_draft(model: Model, first_level: int, stats: Stats) -> str | None:
    """Why nothing was drafted, in a sentence; None if something was."""
    if stats.draft_tokens:
        return None
    if not model.levels:
        return "The server was started without a draft."
    if first_level >= len(model.levels):
        return "The request asked for no draft."
    if not stats.passes:
        return "The text ended with its first token, which needs no draft."
    return "Nothing repeated, or plain decoding was expected to be faster."


def finished(completion: Completion, stop_tokens: Sequence[int]) -> dict[str, Any]:
    """Why a text ended. stop_reason is vLLM's: the stop string, or the token of the request's that ended it."""
    reason: str | int | None = completion.stop_string
    last = completion.tokens[-1] if completion.tokens else None
    if reason is None and completion.finish_reason == "stop" and last in stop_tokens:
        reason = last
    return {"finish_reason": completion.finish_reason, "stop_reason": reason}


def legacy_logprobs(
    found: Sequence[TokenLogprobs | None], texts: Sequence[str], offset: int, describe: Describe
) -> dict[str, Any]:
    """The log probabilities of `/v1/completions`. found: None for the first token of a prompt, which has none. offset:
    of the first token in the text."""
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": list(texts),
        "token_logprobs": [None if each is None else each.logprob for each in found],
        "top_logprobs": [
            # of two tokens with one text, the likelier one stays
            None if each is None else {describe(token): value for token, value in reversed((*each.top, own_of(each)))}
            for each in found
        ],
        "text_offset": offsets,
    }


def own_of(each: TokenLogprobs) -> tuple[int, float]:
    """The token that was chosen, with its log probability."""
    return each.token, each.logprob


def chat_logprobs(found: Sequence[TokenLogprobs], describe: Describe) -> dict[str, Any]:
    """The log probabilities of a chat's answer."""
    return {
        "content": [
            {
                **_token(*own_of(each), describe),
                "top_logprobs": [_token(token, value, describe) for token, value in each.top],
            }
            for each in found
        ],
        "refusal": None,
    }


def _token(token: int, logprob: float, describe: Describe) -> dict[str, Any]:
    text = describe(token)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def trace(gained: Gained, written: int, describe: Describe) -> dict[str, Any]:
    """What happened in a round, for people to look at. written: tokens of the text before it."""
    record, verdict = gained.record, gained.verdict
    return {
        "round": record.round,
        "at": gained.at,
        "draft_seconds": record.propose_seconds,
        "check_seconds": record.check_seconds,
        "read": verdict.read,
        "sequences": len({*record.drafted, *record.read}),
        "position": written,
        "tokens": [
            {
                "id": piece.token,
                "text": piece.text,
                "origin": piece.origin,
                "logprob": gained.logprobs[at].logprob if at < len(gained.logprobs) else None,
            }
            for at, piece in enumerate(gained.pieces)
        ],
        "after": len(verdict.accepted),
        "rejected": _rejected(gained, describe),
        "levels": _levels(record, verdict.sequence),
    }


def _rejected(gained: Gained, describe: Describe) -> list[dict[str, Any]]:
    """The draft tokens that were not accepted. Parents count within them; -1 hangs on the accepted path."""
    draft = gained.draft
    if draft is None:
        return []
    accepted = set(gained.verdict.accepted)
    left = [at for at in range(len(draft)) if at not in accepted]
    place = {node: at for at, node in enumerate(left)}
    return [
        {
            "id": draft.tokens[at],
            "text": describe(draft.tokens[at]),
            "origin": draft.origins[at],
            "parent": place.get(draft.parents[at], -1),
        }
        for at in left
    ]


def _levels(record: RoundRecord, sequence: int) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for work in record.work.get(sequence, ()):
        if work.level == TARGET:
            continue
        its = found.setdefault(work.level, {"name": work.level, **dict.fromkeys(_OF_LEVELS, 0)})
        for name in _OF_LEVELS:
            its[name] += getattr(work, name)
    return list(found.values())

"""Slow and plainly right versions of what the library does fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from foretoken.protocol.types import Distribution, SamplingParams

NextToken = Callable[[tuple[int, ...]], int]  # a target, as a function of the tokens that came before


def plain_decoding(target: NextToken, count: int) -> list[int]:
    """The first `count` tokens that the target says, one by one."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(target(tuple(tokens)))
    return tokens


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The tokens from the root's child down to and including `node`; none for the root, -1."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def longest_path_of_the_target(tokens: Sequence[int], parents: Sequence[int], target: NextToken) -> list[int]:
    """Of all paths in the tree that say what plain decoding says, the longest: every one is tried."""
    best: list[int] = []
    for node in range(len(tokens)):
        path = path_to(node, parents)
        if len(path) > len(best) and [tokens[i] for i in path] == plain_decoding(target, len(path)):
            best = path
    return best


def earlier_ends(text: Sequence[int], length: int) -> list[int]:
    """Where the last `length` tokens of the text ended earlier in it (overlaps count)."""
    run = list(text[len(text) - length :])
    return [end for end in range(length - 1, len(text) - 1) if list(text[end - length + 1 : end + 1]) == run]


def longest_repeated_end(text: Sequence[int]) -> int:
    """How many tokens at the end of the text, at most, have occurred in it before."""
    return max((length for length in range(1, len(text)) if earlier_ends(text, length)), default=0)


def first_largest(values: Sequence[float]) -> int | None:
    """The lowest index of the largest value; None if any is NaN."""
    if any(value != value for value in values):
        return None
    largest = max(values)
    return next(i for i, value in enumerate(values) if value == largest)


def edited_logits(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """Repetition, frequency and presence penalty, then bias, token by token, each operation rounded to float32."""
    edited = []
    for token, logit in enumerate(logits):
        x = np.float32(logit)
        if token in prompt or token in output:
            penalty = np.float32(params.repetition_penalty)
            x = x / penalty if x > 0 else x * penalty
        x = x - np.float32(output.count(token)) * np.float32(params.frequency_penalty)
        x = x - np.float32(token in output) * np.float32(params.presence_penalty)
        for biased, bias in params.logit_bias:
            if biased == token:
                x = x + np.float32(bias)
        edited.append(float(x))
    return edited


def sampled_distribution(logits: Sequence[float], params: SamplingParams) -> Distribution:
    """Softmax of logits / temperature, cut by top-k, top-p, min-p in turn. No cut may be at a tie or threshold."""
    x = [float(np.float32(logit) / np.float32(params.temperature)) for logit in logits]
    largest = max(x)
    weights = {token: math.exp(logit - largest) for token, logit in enumerate(x)}
    order = sorted(weights, key=lambda token: -weights[token])
    if params.top_k:
        order = order[: params.top_k]
    total = math.fsum(weights[token] for token in order)
    kept = [t for i, t in enumerate(order) if math.fsum(weights[s] for s in order[:i]) < params.top_p * total]
    kept = [token for token in kept if weights[token] >= params.min_p]
    probs = np.zeros(len(x))
    for token in kept:
        probs[token] = weights[token] / math.fsum(weights[t] for t in kept)
    return probs

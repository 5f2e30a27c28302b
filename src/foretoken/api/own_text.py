"""Text that a model writes by itself, from nothing: what it will read when it is used, without data to look for."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.api.model import Model
from foretoken.errors import InputError

TEXTS, LENGTH = 32, 256  # tokens of each; twice as many gained nothing, nor did lower temperatures (LOG.md)
_SEED = 1
MOST = 2 * TEXTS * LENGTH  # tokens of somebody else's text


def own_texts(model: Model, count: int = TEXTS, length: int = LENGTH) -> list[tuple[int, ...]]:
    """Texts of `length` tokens, or of the model's context if that is shorter, sampled at temperature 1. Each begins
    with the token with which the model's texts begin, or with an end token, behind which a new text begins."""
    first = model.tokenizer.first_token if model.tokenizer is not None else None
    if first is None:
        first = min(model.end_tokens, default=0)
    context = model.target.config.context_length
    most = min(length, context)
    if most < 2:
        return [(first,)]
    chosen = {"temperature": 1.0, "max_new_tokens": most - 1, "ignore_eos": True}
    # under a bound of memory there is room for the keys and values of one text of the whole context
    at_once = count if model.settings.memory is None else min(count, context // most)
    done = [
        each
        for group, begun in enumerate(range(0, count, at_once))
        for each in model.completions((first,), n=min(at_once, count - begun), seed=_SEED + group, **chosen)
    ]
    return [(first, *each.tokens) for each in done]


def pieces(texts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Texts of somebody else, cut into pieces of at most LENGTH tokens. Of more than MOST tokens, pieces are taken from
    everywhere. Raises InputError if there is no token."""
    cut = [text[at : at + LENGTH] for text in texts for at in range(0, len(text), LENGTH)]
    if not cut:
        raise InputError("the text to calibrate on has no token; give a text of some thousands")
    share = min(MOST / sum(map(len, cut)), 1.0)
    return [piece for at, piece in enumerate(cut) if int((at + 1) * share) > int(at * share)]

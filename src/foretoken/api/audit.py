"""The audit: decodes a generated text once more, plainly, and finds the first difference."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace

from foretoken.drafters.nothing import NothingDrafter
from foretoken.loop.engine import Engine
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Budget, Request
from foretoken.results.completion import Audit


def audit(verifier: Verifier, request: Request, tokens: tuple[int, ...]) -> Audit:
    """Decode a request plainly, for as many tokens as `tokens` has, and compare. Stops at the first difference.

    The request must be for a sequence that the verifier does not have. Raises the error that ends the plain decoding.
    """
    request = replace(request, max_new_tokens=len(tokens), keep_logits=True)
    position = 0
    with closing(Engine(verifier, NothingDrafter(), budgets=[Budget(0, 0)]).run([request])) as rounds:
        for verdict in itertools.chain.from_iterable(rounds):
            if verdict.error is not None:
                raise verdict.error
            if not verdict.tokens:
                continue
            assert verdict.logits is not None
            for token, plain, row in zip(tokens[position:], verdict.tokens, verdict.logits, strict=False):
                if token != plain:
                    logit, plain_logit = float(row[token]), float(row[plain])
                    return Audit(False, position + 1, position, token, plain, logit, plain_logit)
                position += 1
    if position < len(tokens):  # plain decoding has met an end token that the generation passed over
        return Audit(False, position + 1, position, tokens[position])
    return Audit(True, position)

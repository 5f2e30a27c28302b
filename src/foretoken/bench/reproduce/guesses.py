"""What drafts were on their way to what they became, compared with the truth."""

from __future__ import annotations

from typing import Any

from foretoken.bench.reproduce.paper import REFERENCE, Data, Method, Subject
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.bench.suites import first_turn

DRAFT = "the draft"


def correct_tokens(bench: Workbench, subject: Subject, data: Data, method: Method, beyond: int) -> dict[str, list[int]]:
    """Of each guess of a fractal drafter, how many tokens from the first on are plain decoding's: by the layer before
    which it was made, and at last of the draft. data: with a number of new tokens.

    The truth is decoded `beyond` what the method decodes, so that it covers the last guesses; where the text has ended
    by then, they are left out.
    """
    correct: dict[str, list[int]] = {}
    suite, most = bench.suite(subject, data), bench.new_tokens(subject, data)
    model: Any = bench.open(subject).with_method(method)
    drafter = model.drafter  # a fractal one
    for number, prompt in enumerate(suite.prompts):
        bench.progress(f"{bench.part}: {subject.called}, {method.name}, prompt {prompt.id}", number, len(suite.prompts))
        start = len(first_turn(prompt, model.tokenizer))
        truth, *_ = bench.complete(subject, REFERENCE, prompt, number, most + beyond)
        watched: list[Any] = []
        drafter.watch = watched
        own, *_ = bench.complete(subject, method, prompt, number, most)
        drafter.watch = None
        bench.watched(subject, method, prompt, own.tokens, truth.tokens)
        for guess in watched:
            right = truth.tokens[guess.position - start :]
            names = [f"layer {layer}" for layer in guess.layers[: len(guess.tokens) - 1]]
            for after, tokens in zip([*names, DRAFT], guess.tokens, strict=True):
                if len(tokens) <= len(right):
                    count = next((at for at, token in enumerate(tokens) if token != right[at]), len(tokens))
                    correct.setdefault(after, []).append(count)
    layers = sorted((name for name in correct if name != DRAFT), key=lambda name: int(name.split()[1]))
    return {name: correct[name] for name in [*layers, DRAFT] if name in correct}

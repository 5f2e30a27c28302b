"""What drafts were on their way to what they became, compared with the truth."""

from __future__ import annotations

from typing import Any

from foretoken.bench.decode import ask
from foretoken.bench.reproduce.paper import REFERENCE, Data, Method, Subject
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.bench.suites import first_turn
from foretoken.settings.generate import GenerateSettings

DRAFT = "the draft"


def correct_tokens(bench: Workbench, subject: Subject, data: Data, method: Method, beyond: int) -> dict[str, list[int]]:
    """Of each guess of a fractal drafter, how many tokens from the first on are plain decoding's: by the layer before
    which it was made, and at last of the draft. data: with a number of new tokens.

    The truth is decoded `beyond` what the method decodes, so that it covers the last guesses; where the text has ended
    by then, they are left out.
    """
    correct: dict[str, list[int]] = {}
    prompts, most = bench.suite(subject, data).prompts, bench.new_tokens(subject, data)
    opened = bench.open(subject)
    reference = opened.model(REFERENCE.draft, cache=REFERENCE.cache)
    model: Any = opened.model(method.draft, cache=method.cache)
    for number, prompt in enumerate(prompts):
        bench.progress(f"{bench.part}: {subject.called}, {method.name}, prompt {prompt.id}", number, len(prompts))
        start = len(first_turn(prompt, model.tokenizer))
        truth, *_ = ask(reference, prompt, GenerateSettings(max_new_tokens=most + beyond, seed=number))
        watched = model.drafter.watch = []  # by a fractal drafter
        own, *_ = ask(model, prompt, GenerateSettings(max_new_tokens=most, seed=number))
        model.drafter.watch = None
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

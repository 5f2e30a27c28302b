"""What is an answer worth whose question was partly kept from the host? `python -m foretoken.bench.private --model M`.

The first half of each prompt is safe: the host reads it, and the drafter sees what the model computes of it. The second
half is private: nothing of it is sent, and the drafter answers by itself (`private_suffix`). For comparison stand the
model's own answer, and what the drafter answers if nearly all of the prompt's first half is missing, but for its first
token. Of an answer two things are measured: how many tokens of its beginning are the model's own, and how probable the
model finds it, given the whole prompt (the mean of log probabilities, in nats a token; text that repeats itself is
probable, too).

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", appendix A.6 (which has no figures).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.progress import track

from foretoken.acceptance.walk import agreeing
from foretoken.api.build import load
from foretoken.api.hosting import host
from foretoken.api.model import Model
from foretoken.api.remote import connect
from foretoken.bench.cut_off import probability
from foretoken.bench.remote import Drafts, verifier_of
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, first_turns, suite_for
from foretoken.errors import ForetokenError, InputError
from foretoken.remote.host import Listening
from foretoken.remote.limits import Limits
from foretoken.remote.wire import Kind, Message, OpenBody
from foretoken.text.tokenizer import Tokenizer


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    suite = suite_for(args.model, args.suite, args.num_prompts)
    model = load(args.model, draft="none")
    if model.tokenizer is None:
        raise InputError(f"{args.model} has no tokenizer, so no prompt has a text; take another model")
    prompts = [_halves(prompt, model.tokenizer) for prompt in first_turns(suite, model)]
    settings = {"max_new_tokens": args.max_new_tokens, "ignore_eos": True}
    truth = [model.generate([*safe, *private], **settings).tokens for safe, private, _ in track(prompts, "the model")]
    own = [_worth(model, *its) for its in zip(prompts, truth, strict=True)]
    rows = []
    with TemporaryDirectory(prefix="foretoken-") as folder:
        named = Drafts(args.model, args.draft, Path(folder))
        running = host(model, Listening(port=0), Limits(), named.folders)
        try:
            for draft in args.draft:
                far = connect(running.url, draft=named.there(draft), pace="fixed")
                sent = listened(far)
                whole: list[tuple[float, int]] = []
                alone: list[tuple[float, int]] = []
                for prompt, its in zip(track(prompts, draft), truth, strict=True):
                    for seen, found in ((prompt.safe, whole), (prompt.safe[:1], alone)):
                        answer = far.generate(seen, private_suffix=prompt.text, **settings).tokens
                        found.append((_worth(model, prompt, answer), agreeing(its, answer)))
                verifier_of(far).close()
                rows.append(
                    {
                        "draft": draft,
                        "bytes_beside_the_safe_part": _told(
                            sent, [seen for p in prompts for seen in (p.safe, p.safe[:1])]
                        ),
                        **_figures(whole),
                        **{f"{name}_without_the_safe_part": figure for name, figure in _figures(alone).items()},
                        "log_probability_of_the_models_own": round(mean(own), 3),
                    }
                )
        finally:
            running.close()
    return {
        **asked_of(args.model, suite),
        "num_prompts": len(prompts),
        "new_tokens": args.max_new_tokens,
        "rows": rows,
    }


def _told(sent: Sequence[Message], safe: Sequence[list[int]]) -> int:
    """How many bytes a host was told beside the safe parts of prompts. safe: of each session. Raises ForetokenError if
    a session was opened with another prompt, or says anything of the answer."""
    openings = [OpenBody.read(message.body, 1 << 24) for message in sent if message.kind == Kind.OPEN]
    for body, expected in zip(openings, safe, strict=True):
        of_answer = {name: value for name, value in body.asked.items() if name not in ("features", "have")}
        if list(body.prompt) != expected or body.output or of_answer != {"max_new_tokens": 1}:
            raise ForetokenError("a host was told more than the safe part of a prompt; please report this")
    return sum(len(message.body) for message in sent if message.kind != Kind.OPEN)


class _Halves(NamedTuple):
    """A prompt's safe half, its private half as the client reads it, and the text of that."""

    safe: list[int]
    private: list[int]
    text: str


def _halves(prompt: Sequence[int], tokenizer: Tokenizer) -> _Halves:
    if len(prompt) < 2:
        raise InputError("a prompt has one token, so it has no private half; take other prompts")
    middle = len(prompt) // 2
    text = tokenizer.decode(list(prompt[middle:]))
    return _Halves(list(prompt[:middle]), list(tokenizer.encode_part(text)), text)


def _worth(model: Model, prompt: _Halves, answer: Sequence[int]) -> float:
    given = [*prompt.safe, *prompt.private]
    return probability(model, [*given, *answer], len(given))


def _figures(found: Sequence[tuple[float, int]]) -> dict[str, float]:
    return {
        "log_probability": round(mean(worth for worth, _ in found), 3),
        "right_from_the_beginning": round(mean(right for _, right in found), 2),
    }


def listened(model: Model) -> list[Message]:
    """The messages that a client sends from now on."""
    sent: list[Message] = []
    link = verifier_of(model).link
    send = link.send

    def heard(message: Message) -> None:
        sent.append(message)
        send(message)

    link.send = heard  # type: ignore[method-assign]
    return sent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 96)
    parser.add_argument("--draft", action="append", required=True, help="can be given several times")
    parser.add_argument("--num-prompts", type=int, default=10, help="of the suite (%(default)s)")
    carry_out("private", parser, measure)


if __name__ == "__main__":
    main()

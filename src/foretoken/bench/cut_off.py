"""What is the text worth that a client writes when its host is gone? `python -m foretoken.bench.cut_off --model MODEL`.

Each draft continues the same prompts over a network whose host goes away after some checked tokens, and goes on alone
(`foretoken.connect`, offline="keep"). The text behind the cut is compared with what the model would have written: how
many tokens of it are the same from the cut on, and how probable the model finds it (the mean of log probabilities, in
nats a token). For comparison stands the model's own text, of which the same is measured.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", table 4 (there: programs that pass).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

from foretoken.acceptance.walk import agreeing
from foretoken.api.build import load
from foretoken.api.hosting import host
from foretoken.api.model import Model
from foretoken.api.remote import KEEP, connect
from foretoken.bench.remote import Drafts, verifier_of
from foretoken.bench.script import add_model_and_suite, asked_of, carry_out, first_turns, suite_for
from foretoken.decoder.rows import chain
from foretoken.errors import ForetokenError, RemoteError
from foretoken.loop.output import log_probabilities
from foretoken.remote.host import Listening
from foretoken.remote.limits import Limits

CUTS = (1, 10, 25, 50)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of a measurement."""
    suite = suite_for(args.model, args.suite, args.num_prompts)
    model = load(args.model, draft="none")
    prompts = first_turns(suite, model)
    settings = {"max_new_tokens": args.max_new_tokens, "ignore_eos": True}
    truth = [model.generate(prompt, **settings).tokens for prompt in track(prompts, "the model")]
    rows = []
    with TemporaryDirectory(prefix="foretoken-") as folder:
        named = Drafts(args.model, args.draft, Path(folder))
        for draft in args.draft:
            for cut in args.cut:
                texts = []
                for prompt in track(prompts, f"{draft}, cut at {cut}"):
                    running = host(model, Listening(port=0), Limits(), named.folders)
                    try:
                        texts.append(_cut_off(running.url, named.there(draft), prompt, cut, settings))
                    finally:
                        running.close()
                rows.append({"draft": draft, "cut": cut, **_worth(model, prompts, truth, texts)})
    return {
        **asked_of(args.model, suite),
        "num_prompts": len(prompts),
        "new_tokens": args.max_new_tokens,
        "rows": rows,
    }


def _cut_off(url: str, draft: str, prompt: Sequence[int], cut: int, settings: dict[str, Any]) -> tuple[list[int], int]:
    """The tokens of a text whose host goes away when `cut` of them are checked, or a few more, because a verdict has
    several; and how many were checked."""
    model = connect(url, draft=draft, pace="fixed", offline=KEEP)
    verifier = verifier_of(model)
    stream = model.stream(list(prompt), **settings)
    for at, _ in enumerate(stream, 1):
        if at == cut:
            verifier.give_up(RemoteError("the host is gone"))
            break
    for _ in stream:
        pass
    verifier.close()
    done = stream.completion
    return list(done.tokens), len(done.tokens) - done.unverified


def _worth(
    model: Model,
    prompts: Sequence[tuple[int, ...]],
    truth: Sequence[tuple[int, ...]],
    texts: Sequence[tuple[list[int], int]],
) -> dict[str, Any]:
    """What texts are worth behind their cuts, beside the model's own."""
    right, own, theirs = [], [], []
    for prompt, its, (tokens, checked) in zip(prompts, truth, texts, strict=True):
        if list(its[:checked]) != tokens[:checked]:
            raise ForetokenError("a checked token is not the model's; please report this")
        behind = tokens[checked:]
        if not behind:
            continue
        right.append(agreeing(its[checked:], behind))
        start = len(prompt) + checked
        own.append(probability(model, [*prompt, *its[: len(tokens)]], start))
        theirs.append(probability(model, [*prompt, *tokens], start))
    return {
        "texts": len(right),
        "checked": round(mean(checked for _, checked in texts), 1),
        "behind": round(mean(len(tokens) - checked for tokens, checked in texts), 1),
        "right_from_the_cut_on": round(mean(right), 2) if right else None,
        "log_probability": round(mean(theirs), 3) if theirs else None,
        "log_probability_of_the_models_own": round(mean(own), 3) if own else None,
    }


def probability(model: Model, text: Sequence[int], start: int) -> float:
    """The mean log probability of a text's tokens from position `start` on, by the model."""
    cache = model.target.new_cache()
    outputs = model.target.run(chain(cache, list(text[:-1])))
    found = [log_probabilities(outputs.logits(at - 1), text[at], 0).logprob for at in range(start, len(text))]
    return mean(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_and_suite(parser, 96)
    parser.add_argument("--draft", action="append", required=True, help="can be given several times")
    parser.add_argument("--cut", type=int, nargs="+", default=list(CUTS), help="after so many tokens (1 10 25 50)")
    parser.add_argument("--num-prompts", type=int, default=10, help="of the suite (%(default)s)")
    carry_out("cut_off", parser, measure)


if __name__ == "__main__":
    main()

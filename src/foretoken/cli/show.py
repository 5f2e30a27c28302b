"""What a generation looks like to people and to programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import cycle
from typing import Any

from foretoken.cli.common import say
from foretoken.common.progress import many
from foretoken.errors import quoted
from foretoken.loop.output import Piece
from foretoken.protocol.types import TARGET
from foretoken.results.completion import Audit, Completion

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue")  # of levels, in turn; the target's tokens stay plain


def summary(completion: Completion, full_context: int | None = None) -> str:
    """One line: how many tokens, how fast, how drafting went, what was promised and what ran; the seed, when sampling.

    full_context: how many tokens the context holds, if it is that which ended the generation.
    """
    stats = completion.stats
    line = f"{many(len(completion.tokens), 'token')}, "
    if stats.tokens_per_second:  # the first token is the prompt's: of one there is no speed
        line += f"{stats.tokens_per_second:.1f} tokens/s"
        if stats.draft_tokens and stats.plain_tokens_per_second:
            line += f" (plain decoding: about {stats.plain_tokens_per_second:.1f})"
        line += ", "
    if stats.draft_tokens:
        line += (
            f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted, "
            f"{stats.mean_acceptance_length:.2f} tokens a check, "
        )
    else:
        line += "nothing drafted, "
    why = "" if full_context is None else f" (the context of {full_context} tokens is full)"
    if completion.stop_string is not None:
        why = f" ({quoted(completion.stop_string, 40)})"
    if completion.finish_reason == "cancelled":
        line += "cancelled"
    elif completion.unverified and completion.finish_reason != "disconnected":
        line += f"ended by {completion.finish_reason}{why}; nobody has checked it: part of the prompt is private"
    elif completion.unverified:
        line += f"the host is gone: nobody has checked the last {many(completion.unverified, 'token')}"
    elif completion.finish_reason == "disconnected":
        line += "cut off: the host is gone, and the text is what it had checked"
    else:
        line += f"ended by {completion.finish_reason}{why}"
    line += f"; promise: {completion.promise}; {completion.arithmetic}, "
    line += f"{completion.threads} thread{'' if completion.threads == 1 else 's'}"
    return line if completion.seed is None else f"{line}; seed {completion.seed}"


def audit(found: Audit, describe: Callable[[int], str]) -> str:
    """One line: whether plain decoding gives the same. `describe` tells how a token reads."""
    if found.identical:
        return f"audit: identical, {found.compared_tokens} tokens"
    assert found.token is not None
    differs = f"audit: differs at token {found.position}: {describe(found.token)}"
    if found.plain_token is None or found.logit is None or found.plain_logit is None:
        return f"{differs} where plain decoding has ended"
    return (
        f"{differs} (logit {found.logit:.6g}) where plain decoding has {describe(found.plain_token)} "
        f"({found.plain_logit:.6g}), {abs(found.plain_logit - found.logit):.3g} apart"
    )


def log_probabilities(completion: Completion, describe: Callable[[int], str]) -> list[str]:
    """A line a token: how probable the model found it, as a natural logarithm, and what it found likeliest."""
    lines = []
    for found in completion.logprobs or ():
        top = ", ".join(f"{describe(token)} {logprob:.3f}" for token, logprob in found.top)
        lines.append(f"{describe(found.token)} {found.logprob:.3f}" + (f" (likeliest: {top})" if top else ""))
    return lines


def as_json(completion: Completion) -> dict[str, Any]:
    """The object that `generate --json` prints of a completion."""
    found, logprobs = completion.audit, completion.logprobs
    return {
        "tokens": list(completion.tokens),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_string": completion.stop_string,
        "seed": completion.seed,
        "prompt_tokens": completion.prompt_tokens,
        "unverified": completion.unverified,
        "promise": completion.promise,
        "draft": completion.draft,
        "arithmetic": completion.arithmetic,
        "threads": completion.threads,
        "origins": list(completion.origins),
        "stats": {name: _known(name, value) for name, value in asdict(completion.stats).items()},
        "logprobs": None if logprobs is None else [asdict(token) for token in logprobs],
        "audit": None if found is None else {**asdict(found), "gap": found.gap},
    }


def _known(name: str, value: Any) -> Any:
    """A value of `Stats` as JSON: null where a speed is not known, of a single token for instance."""
    return None if name.endswith("_per_second") and value == 0 else value


def piece_as_json(piece: Piece) -> dict[str, Any]:
    """The object that `generate --json --stream` prints of a token."""
    found = {"token": piece.token, "text": piece.text, "origin": piece.origin}
    return {**found, "unverified": True} if piece.unverified else found


def marked(pieces: Iterable[Piece]) -> Iterator[str]:
    """The text of pieces. On a terminal, what the model has not checked is dim and underlined, also without colours."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    for piece in pieces:
        yield f"\x1b[2;4m{piece.text}\x1b[0m" if piece.unverified and piece.text and terminal else piece.text


def print_text(pieces: Iterable[str]) -> None:
    """Print a text piece by piece, and a line break at its end, if there is none."""
    last = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        last = piece or last
    if not last.endswith("\n"):
        print(flush=True)


def print_with_origins(pieces: Iterable[Piece], levels: Sequence[str] = ()) -> None:
    """Print the pieces as they come, each in the colour of who proposed it; then a legend, on standard error.

    levels: of the draft, nearest to the target first. The first has the same colour in every text, and so on.
    Asked for by name, so colours go into pipes too, unless NO_COLOR is set.
    """
    from rich.color import ColorSystem
    from rich.style import Style

    system = None if "NO_COLOR" in os.environ else ColorSystem.STANDARD
    colours = cycle(_COLOURS)
    styles = {TARGET: Style(), **{name: Style(color=next(colours)) for name in levels}}
    seen = {TARGET}
    for piece in pieces:
        seen.add(piece.origin)
        if piece.origin not in styles:
            styles[piece.origin] = Style(color=next(colours))
        style = styles[piece.origin] + Style(underline=True) if piece.unverified else styles[piece.origin]
        print(style.render(piece.text, color_system=system), end="", flush=True)
    print()
    names = (style.render(name, color_system=system) for name, style in styles.items() if name in seen)
    say(f"proposed by: {', '.join(names)}")

"""What a suite is: prompts, their source, and a hash of the prompts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foretoken.errors import PromptError
from foretoken.text.tokenizer import Tokenizer

Asked = str | tuple[int, ...]  # one turn of a user: text, or token ids


@dataclass(frozen=True)
class Prompt:
    """A prompt: one or several turns of a user, each as text or token ids.

    `id` is the same in every run: "81" of Spec-Bench, "heldout-3", "line 4". `category` is the suite's own, or empty.
    `chat`: an instruction, which goes through the model's chat template if it has one; otherwise the text is simply
    continued.
    """

    id: str
    turns: tuple[Asked, ...]
    category: str = ""
    chat: bool = False


@dataclass(frozen=True)
class Suite:
    """Prompts to measure on. Records with the same `sha256` have the same prompts, in the same order.

    `max_new_tokens`, of each turn, is what the suite's own authors or the papers allow: the default for users.
    `source` is a hub id or a file's name without its folders, or empty.
    """

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    source: str
    licence: str

    def about(self) -> dict[str, Any]:
        """The suite's fields in a record."""
        about = {"name": self.name, "sha256": self.sha256, "prompts": len(self.prompts)}
        return {**about, "source": self.source, "licence": self.licence}


def digest(prompts: Iterable[Prompt]) -> str:
    """SHA-256 of every turn of every prompt, and of whether the prompt is a chat. Ids and categories are left out."""
    asked = [{"turns": prompt.turns, "chat": prompt.chat} for prompt in prompts]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def first(prompts: Sequence[Prompt], count: int | None) -> tuple[Prompt, ...]:
    """The first `count` prompts in their order; with several categories, the first of each, as evenly as possible."""
    if count is None or count >= len(prompts):
        return tuple(prompts)
    seen = Counter[str]()
    rounds = []  # how many prompts of its category came before
    for prompt in prompts:
        rounds.append(seen[prompt.category])
        seen[prompt.category] += 1
    taken = sorted(range(len(prompts)), key=rounds.__getitem__)[:count]  # within a round, in their order
    return tuple(prompts[at] for at in sorted(taken))


def first_turn(prompt: Prompt, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The token ids of a prompt's first turn. The tokenizer encodes text, in its chat template if it has one and the
    prompt is a chat. Raises PromptError, which names the prompt, for text without a tokenizer, or text that the
    template refuses."""
    asked = prompt.turns[0]
    if not isinstance(asked, str):
        return asked
    if tokenizer is None:
        raise PromptError(f"prompt {prompt.id} is text, and the model has no tokenizer; give prompts of token ids")
    if not (prompt.chat and tokenizer.has_chat_template):
        return tuple(tokenizer.encode(asked))
    try:
        return tuple(tokenizer.encode_chat([{"role": "user", "content": asked}]))
    except PromptError as error:
        raise PromptError(f"prompt {prompt.id}: {error}") from None

"""Two tokenizers that cut text at different places, and a drafter that speaks the second one's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretoken.drafters.translated import TranslatedDrafter
from foretoken.protocol.types import Turn
from tests.fakes import Fake, Scripted

_LETTERS = "abcdefghijklmnopqrstuvw"  # 23 of them: two write 529 tokens


class Pairs:
    """Each token is two letters. A letter that is left over has no token."""

    def encode_part(self, text: str) -> list[int]:
        numbers = [_LETTERS.index(letter) for letter in text]
        return [23 * first + second for first, second in zip(numbers[::2], numbers[1::2], strict=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(_LETTERS[token // 23] + _LETTERS[token % 23] for token in tokens)

    def leaves_out(self, token: int) -> bool:
        return False


class Triples:
    """Each token is up to three letters; only the last of a text has fewer. Token 0 has none, and begins a text."""

    def encode(self, text: str) -> list[int]:
        return [0, *self.encode_part(text)]

    def encode_part(self, text: str) -> list[int]:
        tokens, text = [], text.replace("\n", "")  # which has no token here
        for at in range(0, len(text), 3):
            token = 0
            for letter in text[at : at + 3]:
                token = 24 * token + _LETTERS.index(letter) + 1
            tokens.append(token)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text = ""
        for token in tokens:
            letters = ""
            while token:
                token, number = divmod(token, 24)
                letters = _LETTERS[number - 1] + letters if number else letters
            text += letters
        return text

    def leaves_out(self, token: int) -> bool:
        return token == 0


class Foreign(Scripted):
    """Knows the continuation as `Scripted` does, and drafts it in `Triples`. told: what it was told last, as text."""

    name = "foreign"

    def __init__(self, truth: Mapping[int, Sequence[int]], shape: str = "chain") -> None:
        super().__init__(truth, shape)
        self.ours, self.theirs = Pairs(), Triples()

    def said(self, sequence: int) -> str:
        return self.theirs.decode(self.texts[sequence])

    def guess(self, turn: Turn) -> list[int]:
        said, whole = self.said(turn.sequence), self.ours.decode(self.truth[turn.sequence])
        right = self.theirs.encode_part(whole[len(said) :] if whole.startswith(said) else "")[: turn.depth]
        return self.spoiled(turn, right)


def translated(inner: Fake) -> TranslatedDrafter:
    """A drafter of `Triples`, for a model of `Pairs`."""
    ours, theirs = Pairs(), Triples()
    return TranslatedDrafter(inner, ours, theirs)  # type: ignore[arg-type]

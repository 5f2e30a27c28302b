"""A checkpoint with another tokenizer drafts: its tokens are translated, as text, into the model's.

The text so far is encoded for the checkpoint, which drafts greedily in its own tokens. Its draft is decoded, and the
text is encoded for the model. Two tokenizers divide text at different places, so a translation can be wrong; then the
model refuses tokens, and nothing worse happens.

Source: Timor et al. 2025 (arXiv 2502.05202), string-level exact match. There, sampled drafts are compared as text. Here
drafts are greedy, and the model's own rule judges their translation (docs/lossless.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretoken.acceptance.walk import agreeing
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, Request, SamplingParams, Turn, Verdict
from foretoken.text.stream import StreamDecoder
from foretoken.text.tokenizer import Tokenizer
from foretoken.trees.tree import longest_path

_HELD = 8  # the last tokens of the prompt, which may be encoded otherwise once text follows them
_TAIL = 32  # tokens at the end of the text that are encoded again in every round
_CONTEXT = 16  # tokens that are decoded together with new ones, because text may join over a token's border
_BEFORE = ("", "\n")  # what may stand before a part of the text while it is encoded (`_alone`)
_INCOMPLETE = "\ufffd"  # a tokenizer's output for bytes that are not a character yet


@dataclass
class _Text:
    """A sequence in both tokenizers' tokens. tokens: the model's. told: the draft's. tail: the text from the draft's
    token `anchor` on; the tokens before that are not encoded again. before: what stands before the tail while it is
    encoded."""

    request: Request
    tokens: list[int]
    decoder: StreamDecoder
    told: list[int]
    anchor: int
    tail: str
    before: str
    pieces: list[str] = field(default_factory=list)  # of the tail: what each of the model's last tokens added


class TranslatedDrafter:
    """Drafts with a drafter whose tokens are those of another tokenizer.

    inner: that drafter. ours, theirs: the tokenizers of the model and of the drafter.
    """

    needs = Needs()

    def __init__(self, inner: Drafter, ours: Tokenizer, theirs: Tokenizer) -> None:
        self.inner = inner
        self.name = inner.name
        self._ours, self._theirs = ours, theirs
        self._texts: dict[int, _Text] = {}  # by sequence; none for a text of which nothing can be encoded
        self._checks = 0  # rounds between this drafter and the inner one

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on, with their prompts encoded for the inner drafter."""
        for request in requests:
            self._begin(request, request.prompt)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """The inner drafter's chains, translated."""
        asked: list[Turn] = []
        own = {turn.sequence: turn for turn in turns}
        for turn in turns:
            text = self._texts.get(turn.sequence)
            if text is not None and not self._decoded(text.tokens[-_CONTEXT:]).endswith(_INCOMPLETE):
                asked.append(replace(turn, position=len(text.told)))
        drafts = self.inner.propose(asked) if asked else ()
        return [self._translated(own[draft.sequence], draft) for draft in drafts]

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Tell the inner drafter what the text has gained. It reads the prompt with its first draft."""
        work: list[Work] = []
        for verdict in verdicts:
            text = self._texts.get(verdict.sequence)
            if text is None or verdict.prompt_left:
                continue
            for token in verdict.tokens:
                text.tokens.append(token)
                text.pieces.append(text.decoder.feed(token))
                text.tail += text.pieces[-1]
            work += self._tell(verdict.sequence, text)
        return work

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        text = self._texts.get(sequence)
        if text is None:
            return
        kept, dropped = text.tokens[:position], len(text.tokens) - position
        if dropped > len(text.pieces):  # the anchor stands behind that position
            self.inner.end(sequence)
            self._begin(text.request, kept)
            return
        lost = sum(map(len, text.pieces[len(text.pieces) - dropped :]))
        text.tokens, text.decoder = kept, StreamDecoder(self._ours, kept)
        text.tail = text.tail[: len(text.tail) - lost]
        del text.pieces[len(text.pieces) - dropped :]
        self._tell(sequence, text)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._texts.pop(sequence, None)
        self.inner.end(sequence)

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, if anything is."""
        self.inner.forget(conversation)

    def _begin(self, request: Request, tokens: Sequence[int]) -> None:
        """Take a sequence on that has these tokens."""
        self._texts.pop(request.sequence, None)
        written = self._decoded(tokens)
        whole = self._theirs.encode(written)
        if not whole:
            return
        anchor, tail, before = self._anchor(written, whole)
        its = replace(request, prompt=tuple(whole), sampling=SamplingParams(), end_tokens=frozenset(), stop=())
        self.inner.begin([its])
        decoder = StreamDecoder(self._ours, tokens)
        self._texts[request.sequence] = _Text(request, list(tokens), decoder, whole, anchor, tail, before)

    def _anchor(self, written: str, whole: Sequence[int]) -> tuple[int, str, str]:
        """Where the part of a text begins that is encoded again once more text follows, that part, and what stands
        before it meanwhile: it must be encoded alone as it is within the text."""
        for kept in range(max(1, len(whole) - _HELD), max(0, len(whole) - 2 * _HELD), -1):
            tail = self._theirs.decode(whole[kept:])
            for before in _BEFORE:
                if written.endswith(tail) and self._alone(before, tail) == whole[kept:]:
                    return kept, tail, before
        return len(whole), "", ""

    def _alone(self, before: str, text: str) -> list[int]:
        """The draft's tokens for a part of a text. Some tokenizers mark the beginning of a text, with a space or a
        token. With a line break before the part, that is marked, and left out again."""
        first = self._theirs.encode_part(before) if before else []
        encoded = self._theirs.encode_part(before + text)
        return encoded[len(first) :] if encoded[: len(first)] == first else self._theirs.encode_part(text)

    def _tell(self, sequence: int, text: _Text) -> Sequence[Work]:
        """Bring the inner drafter up to the text's end. What it was told is taken back as far as it is encoded
        otherwise now."""
        tail = self._alone(text.before, text.tail)
        common = agreeing(text.told[text.anchor :], tail)
        place = text.anchor + common
        self._checks += 1
        new = tuple(tail[common:])
        if place < len(text.told) or not new:  # without new tokens, only its guesses are taken back
            self.inner.rewind(sequence, place)
        text.told[place:] = new
        verdict = Verdict(sequence, self._checks, place, (), new, (self.name,) * len(new))
        work = (self.inner.observe([verdict]) or ()) if new else ()
        self._move_anchor(text, tail)
        return work

    def _move_anchor(self, text: _Text, tail: Sequence[int]) -> None:
        """Let the tail begin later, at a place where its encoding does not depend on the text before."""
        if len(text.pieces) < 2 * _TAIL:
            return
        rest = "".join(text.pieces[-_TAIL:])
        for before in _BEFORE:
            encoded = self._alone(before, rest)
            if encoded and list(tail[-len(encoded) :]) == encoded:
                text.anchor += len(tail) - len(encoded)
                text.tail, text.before = rest, before
                del text.pieces[:-_TAIL]
                return

    def _translated(self, turn: Turn, draft: Draft) -> Draft:
        """A draft in the model's tokens: the longest path. Each token's origin is that of the token at its place."""
        text = self._texts[turn.sequence]
        path = longest_path(draft.parents)
        before = text.told[-_CONTEXT:]
        told, went_on = (self._theirs.decode([*before, *more]) for more in ((), [draft.tokens[i] for i in path]))
        follows = went_on[len(told) :].rstrip(_INCOMPLETE) if went_on.startswith(told) else ""
        most = turn.most
        tokens = self._encoded(text, follows)[: min(most.rows, most.depth)] if follows else []
        origins = [draft.origins[path[min(at, len(path) - 1)]] for at in range(len(tokens))]
        return turn.chain(tokens, origins, draft.work)

    def _encoded(self, text: _Text, follows: str) -> list[int]:
        """The model's tokens for what follows its text, encoded together with the end of that text if possible."""
        before = [token for token in text.tokens[-_CONTEXT:] if not self._ours.leaves_out(token)]
        together = self._ours.encode_part(self._ours.decode(before) + follows)
        if together[: len(before)] == before:
            return together[len(before) :]
        return self._ours.encode_part(follows)

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._ours.decode([token for token in tokens if not self._ours.leaves_out(token)])

"""Grammars that an output must follow, over a checkpoint's tokens: regular expressions and JSON schemas, by llguidance.

The library says which text may come next. Which tokens end a text is said by the request: they are allowed exactly
where the grammar may end, and nowhere else, whatever the tokenizer takes for its end. For the library the end is a
token that no model has, so that it never takes a model's token for one.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from foretoken.errors import GrammarError, quoted
from foretoken.text import Tokenizer
from foretoken.types import Request

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]

_END = "\0the end\0"
_COMPILED = 64  # grammars that are kept
# Between the parts of JSON: a space, or a line break and an indentation. The library's default has no bound, and small
# models like blank lines: they would never come to the next key. A schema may say otherwise, under "x-guidance".
_WHITESPACE = r" ?|\n[ \t]{0,32}"


class Grammars:
    """Of one tokenizer. Each grammar is compiled once; a sequence gets a copy, which costs no more than a token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._tokens: tuple[LLTokenizer, int] | None = None  # with the id of _END
        self._compiled: dict[tuple[str, str], LLMatcher] = {}

    def constraint(self, request: Request) -> GrammarConstraint | None:
        """Where a request's output begins. GrammarError if its grammar cannot be read, or allows nothing."""
        grammar = request.sampling.constraint
        if grammar is None:
            return None
        tokens, end = self._read_tokens()
        if grammar not in self._compiled:
            if len(self._compiled) == _COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = _compile(*grammar, tokens)
        constraint = GrammarConstraint(self._compiled[grammar], end, request.end_tokens)
        if constraint.stuck:
            raise GrammarError(f"{_called(*grammar)} leaves no token to begin with; let it match some text")
        return constraint

    def _read_tokens(self) -> tuple[LLTokenizer, int]:
        if self._tokens is None:
            text = None if self._tokenizer is None else self._tokenizer.json
            if text is None:
                lacking = "no tokenizer" if self._tokenizer is None else "a tokenizer that is no tokenizer.json"
                raise GrammarError(
                    f"the checkpoint has {lacking}, so its text can follow no grammar; leave regex and json_schema out"
                )
            self._tokens = _read_tokens(text)
        return self._tokens


class GrammarConstraint:
    """One sequence's place in a grammar. `end` is the library's end token, `end_tokens` are the request's.

    After the end nothing is allowed. Whoever guesses may go on all the same, and off the grammar too: such tokens are
    counted, so that they can be taken back.
    """

    def __init__(self, start: LLMatcher, end: int, end_tokens: frozenset[int]) -> None:
        self._matcher = start.deep_copy()
        self._end = end
        self._end_tokens = end_tokens
        self._ends = np.array(sorted(end_tokens), dtype=np.int64)
        self._beyond = 0  # tokens after the end, the one that ended it included
        self._here: Bools | None = None  # what may come next, once it has been asked for

    @property
    def stuck(self) -> bool:
        """Whether no token may come next."""
        return not self._allowed().any()

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return self._beyond > 0 or (self._matcher.is_accepting() and self.stuck)

    def allowed(self, size: int) -> Bools:
        """bool [size]: which tokens may come next."""
        here = self._allowed()
        return here[:size] if size <= len(here) else np.pad(here, (0, size - len(here)))

    def advance(self, token: int) -> None:
        """One more token."""
        self._here = None
        if self._beyond or token in self._end_tokens or token >= self._end or not self._follows(token):
            self._beyond += 1

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens."""
        self._here = None
        after = min(count, self._beyond)
        self._beyond -= after
        if count > after:
            self._matcher.rollback(count - after)

    def _follows(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def _allowed(self) -> Bools:
        if self._here is None:
            self._here = np.zeros(max(self._end, *(token + 1 for token in self._end_tokens), 0), dtype=np.bool_)
            if not self._beyond:
                bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
                self._here[: self._end] = np.unpackbits(bits, count=self._end, bitorder="little")
                self._here[self._ends] = self._matcher.is_accepting()
        return self._here


def _read_tokens(text: str) -> tuple[LLTokenizer, int]:
    """What the library needs to know of a tokenizer.json, and the id of the end that is added to it."""
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise GrammarError(
            "grammars need the package llguidance, which is not installed; pip install 'foretoken[grammar]'"
        ) from None
    from tokenizers import Tokenizer as Rust

    tokenizer = Rust.from_str(text)
    tokenizer.add_special_tokens([_END])
    end = tokenizer.token_to_id(_END)
    assert end is not None
    try:
        return LLTokenizer(tokenizer.to_str(), eos_token=end), end
    except ValueError as error:
        raise GrammarError(
            f"the checkpoint's tokenizer is of a kind that llguidance cannot read ({_reason(str(error)):.60}); "
            "leave regex and json_schema out"
        ) from None


def _compile(kind: str, text: str, tokens: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher

    if kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    else:
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"{_called(kind, text)} is not JSON ({error}); expected a JSON schema") from None
        if not isinstance(schema, dict):
            raise GrammarError(f"{_called(kind, text)} is no JSON schema; expected an object")
        try:
            says = any(name.startswith("whitespace") for name in dict(schema.get("x-guidance") or {}))
            grammar = LLMatcher.grammar_from_json_schema(text, {} if says else {"whitespace_pattern": _WHITESPACE})
        except (TypeError, ValueError) as error:  # of "x-guidance"
            raise GrammarError(f"{_called(kind, text)} cannot be followed: {_reason(str(error))}") from None
    matcher = LLMatcher(tokens, grammar, log_level=0)
    if matcher.is_error():
        raise GrammarError(f"{_called(kind, text)} cannot be followed: {_reason(matcher.get_error())}")
    return matcher


def _called(kind: str, text: str) -> str:
    return f"{kind} {quoted(text, 80)}"


def _reason(message: str) -> str:
    """The line of the library's message that says what is wrong, without where in the grammar that it made of ours."""
    found = re.search(r"^error: (.*)", message, re.MULTILINE)
    line = found[1] if found else (message.strip().splitlines() or ["llguidance does not say why"])[0]
    return re.sub(r'^at \d+\(\d+\): (invalid regex ".*" \(in regex\): )?', "", line)

"""Grammars over a checkpoint's tokens, by llguidance: regular expressions, JSON schemas, grammars in Lark syntax.

The library decides which text may come next. The request decides which tokens end a text: they are allowed exactly
where the grammar may end, and nowhere else, whatever the tokenizer's own end token is. The library's end token is a
number that no token of the model has, so it never takes a model's token for the end.

The library has limits, and gives up on a grammar beyond them. To give up is never taken for the end of a text. Nor does
it depend on other sequences with the same grammar: if the library gives up, it is asked once more from a fresh start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from foretoken.errors import GrammarError
from foretoken.protocol.types import Request
from foretoken.sampling.compiled import Compiled, read_tokens, reason
from foretoken.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
_Said = TypeVar("_Said")

_COMPILED = 64  # the most compiled grammars that are kept
_NO_TOKEN = "NoExtensionBias"  # the library's word for: no token may come next, though no text ends here


class Grammars:
    """The grammars over one tokenizer's tokens. Each is compiled once. A sequence gets a copy, which costs no more than
    a token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._tokens: tuple[LLTokenizer, int] | None = None  # with the id of the end
        self._compiled: dict[tuple[str, str], Compiled] = {}

    def constraint(self, request: Request) -> GrammarConstraint | None:
        """The state of a request's grammar before its output; None without a grammar. Raises GrammarError if the
        grammar cannot be read, or allows nothing."""
        grammar = request.sampling.constraint
        if grammar is None:
            return None
        tokens, end = self._read_tokens()
        if grammar not in self._compiled:
            new = Compiled(*grammar, tokens)
            if len(self._compiled) == _COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = new
        compiled = self._compiled[grammar]
        constraint = GrammarConstraint(compiled, end, request.end_tokens)
        if constraint.stuck:
            constraint.allowed(0)
            raise GrammarError(f"{compiled.called} leaves no token to begin with; let it match some text")
        return constraint

    def _read_tokens(self) -> tuple[LLTokenizer, int]:
        if self._tokens is None:
            text = None if self._tokenizer is None else self._tokenizer.json
            if text is None:
                lacking = "no tokenizer" if self._tokenizer is None else "a tokenizer that is no tokenizer.json"
                raise GrammarError(
                    f"the checkpoint has {lacking}, so its text can follow no grammar; leave regex, json_schema and "
                    "grammar out"
                )
            self._tokens = read_tokens(text)
        return self._tokens


class GrammarConstraint:
    """One sequence's place in a grammar. `end` is the library's end token; `end_tokens` are the request's.

    After the end nothing is allowed. A drafter may still go on, or leave the grammar. Such tokens are only counted, so
    that they can be taken back.
    """

    def __init__(self, grammar: Compiled, end: int, end_tokens: frozenset[int]) -> None:
        self._grammar = grammar
        self._start, _ = grammar.begin()
        self._matcher: LLMatcher | None = self._start.deep_copy()  # None: it must be made anew
        self._tokens: list[int] = []  # the tokens that the matcher has read
        self._end = end
        self._end_tokens = end_tokens
        self._ends = np.array(sorted(end_tokens), dtype=np.int64)
        self._beyond = 0  # tokens after the end, the one that ended it included
        self._lost: tuple[int, str] | None = None  # if the library gave up: after how many tokens, and why
        self._here: Bools | None = None  # which tokens may come next; None: not asked yet
        self._accepting = False  # whether the text may end here, known with `_here`

    @property
    def stuck(self) -> bool:
        """Whether no token may come next."""
        return not self._allowed().any()

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return self.stuck and (self._beyond > 0 or self._accepting) and self._lost is None

    def allowed(self, size: int) -> Bools:
        """bool [size]: which tokens may come next. GrammarError if the library cannot tell."""
        here = self._allowed()
        if self._lost is not None:
            raise GrammarError(
                f"{self._grammar.called} is too much for llguidance, which gave up on it ({self._lost[1]:.100}); make "
                "it simpler: fewer and smaller repetitions within one another, fewer optional properties"
            )
        return here[:size] if size <= len(here) else np.pad(here, (0, size - len(here)))

    def advance(self, token: int) -> None:
        """Take in one more token."""
        self._here = None
        if (
            self._beyond
            or self._lost is not None
            or token in self._end_tokens
            or token >= self._end
            or not self._follows(token)
        ):
            self._beyond += 1
        else:
            self._tokens.append(token)

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens."""
        self._here = None
        after = min(count, self._beyond)
        self._beyond -= after
        if count > after:
            del self._tokens[after - count :]
            if self._matcher is not None:
                self._matcher.rollback(count - after)
                if self._matcher.is_error():
                    self._matcher = None
        if self._lost is not None and len(self._tokens) + self._beyond < self._lost[0]:
            self._lost = None

    def _follows(self, token: int) -> bool:
        def consume(matcher: LLMatcher) -> bool:
            if matcher.try_consume_tokens([token]) == 1:
                return True
            matcher.compute_bitmask()  # the library may report only now that it has given up
            return False

        return bool(self._ask(consume, token))

    def _allowed(self) -> Bools:
        if self._here is None:
            here = np.zeros(max(self._end, *(token + 1 for token in self._end_tokens), 0), dtype=np.bool_)
            said = None if self._beyond or self._lost is not None else self._ask(self._look)
            if said is not None:
                here[: self._end], self._accepting = said
                here[self._ends] = self._accepting
            self._here = here
        return self._here

    def _look(self, matcher: LLMatcher) -> tuple[Bools, bool]:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed: Bools = np.unpackbits(bits, count=self._end, bitorder="little").astype(np.bool_)
        if np.count_nonzero(allowed) == 1:
            # If a text can go on in one way only, the library returns the next token without a check whether it has
            # given up, which may be why it found no other way. It reports that when it reads the token.
            matcher.consume_tokens([int(allowed.argmax())])
            matcher.rollback(1)
        return allowed, matcher.is_accepting()

    def _ask(self, ask: Callable[[LLMatcher], _Said], *token: int) -> _Said | None:
        """The library's answer about a `token`, or about the tokens that may come next. None if it gives up, which is
        noted.

        Only a failure on the sequence's tokens alone counts, without other tokens that were read and forgotten between
        them. A failure of the library's parser counts on any start; any other failure counts only on a start that no
        other sequence has used.
        """
        if self._grammar.given_up:
            why = self._grammar.given_up.get((*self._tokens, *token))
            if why is not None:
                self._lost = (len(self._tokens) + len(token), why)
                return None
        again = new = False
        while True:
            if self._matcher is None:
                again = True
                self._matcher, new = self._read_again()
            said = ask(self._matcher)
            if not self._matcher.is_error():
                return said
            error = self._matcher.get_error()
            self._matcher = None  # after an error a matcher can neither go on nor back
            if error.startswith(_NO_TOKEN):
                return said
            of_parser = error.lower().startswith("parser error")
            if not of_parser:
                self._grammar.drop(self._start)
            if new or (again and of_parser):
                self._lost = (len(self._tokens) + len(token), reason(error))
                self._grammar.give_up((*self._tokens, *token), self._lost[1])
                return None

    def _read_again(self) -> tuple[LLMatcher, bool]:
        """A new matcher at this place, and whether no other sequence has used its start."""
        self._start, new = self._grammar.begin()
        matcher = self._start.deep_copy()
        for token in self._tokens:
            if new:  # step by step, as in plain decoding: the library keeps some results that help later on
                self._look(matcher)
            matcher.consume_tokens([token])
        return matcher, new

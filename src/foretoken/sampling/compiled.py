"""A grammar as llguidance compiles it: over which tokens and within which limits. What it refuses is told in its words.

The library gives up on a start that sequences share before it would give up on one alone: who begins here is told
whether anybody has begun there before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from foretoken.errors import GrammarError, quoted
from foretoken.sampling.schema import expect_exact_blocks, read_schema
from foretoken.settings.generate import SETTING_OF

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_END = "\0the end\0"
# Between the parts of JSON: a space, or a line break and an indentation. The library's default has no bound, and small
# models like blank lines: they would never come to the next key. A schema may say otherwise, under "x-guidance".
WHITESPACE = r" ?|\n[ \t]{0,32}"
# Beyond the library's defaults, so that a schema may have some 2000 optional properties. The work for one token stays
# below a second.
_LIMITS = {"max_items_in_row": 10_000, "step_max_items": 1_000_000, "step_lexer_fuel": 1_000_000}
_GIVEN_UP = 256  # places that are kept, of one grammar


class Compiled:
    """A grammar that sequences begin with. Copies of one start share what the library works out on the way, and so
    its giving up: with such a start nobody begins again.

    `given_up` says after which tokens the library gave up on a start that nobody else had, and why.
    """

    def __init__(self, kind: str, text: str, tokens: LLTokenizer) -> None:
        self.called = _called(kind, text)
        self.given_up: dict[tuple[int, ...], str] = {}
        self._text = (kind, text)
        self._tokens = tokens
        self._start: LLMatcher | None = _compile(kind, text, tokens)

    def begin(self) -> tuple[LLMatcher, bool]:
        """A start, and whether nobody has begun with it."""
        new = self._start is None
        if self._start is None:
            self._start = _compile(*self._text, self._tokens)
        return self._start, new

    def drop(self, start: LLMatcher) -> None:
        """The library gave up on a copy of this start."""
        if self._start is start:
            self._start = None

    def give_up(self, tokens: tuple[int, ...], why: str) -> None:
        """The library cannot go on after these tokens."""
        if len(self.given_up) == _GIVEN_UP:
            del self.given_up[next(iter(self.given_up))]
        self.given_up[tokens] = why


def read_tokens(text: str) -> tuple[LLTokenizer, int]:
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
            f"the checkpoint's tokenizer is of a kind that llguidance cannot read ({reason(str(error)):.60}); "
            "leave regex, json_schema and grammar out"
        ) from None


def _compile(kind: str, text: str, tokens: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    called = _called(kind, text)
    if kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    elif kind == "lark":
        expect_exact_blocks(text, called)
        grammar = LLMatcher.grammar_from_lark(text)
    else:
        schema = read_schema(text, called)
        try:
            says = any(name.startswith("whitespace") for name in dict(schema.get("x-guidance") or {}))
            grammar = LLMatcher.grammar_from_json_schema(text, {} if says else {"whitespace_pattern": WHITESPACE})
        except (TypeError, ValueError) as error:  # of "x-guidance"
            raise GrammarError(f"{called} cannot be followed: {reason(str(error))}") from None
    limits = LLParserLimits(**_LIMITS, verbose_errors=False)
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(f"{called} cannot be followed: {reason(matcher.get_error())}")
    if kind == "lark" and not _goes_back(matcher.deep_copy()):
        raise GrammarError(
            f"{called} has max_tokens or stop, from which llguidance cannot go back, as drafts must; give suffix, or a "
            "regular expression of bounded length"
        )
    return matcher


def _goes_back(matcher: LLMatcher) -> bool:
    """Whether a token can be taken back, which the library says only when it is asked to."""
    allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little"))
    if len(allowed) and matcher.consume_tokens([int(allowed[0])]):
        matcher.rollback(1)
    return "rollback not supported" not in matcher.get_error()


def _called(kind: str, text: str) -> str:
    return f"{SETTING_OF[kind]} {quoted(text, 80)}"


def reason(message: str) -> str:
    """The line of the library's message that says what is wrong, without where in the grammar that it made of ours."""
    found = re.search(r"^error: (.*)", message, re.MULTILINE)
    line = found[1] if found else (message.strip().splitlines() or ["llguidance does not say why"])[0]
    # what to do about a grammar of another kind; all tokens that a Lark grammar could name
    line = re.sub("; (consider|try|following special tokens) .*", "", line)
    return re.sub(r'^at \d+\(\d+\): (invalid regex ".*" \(in regex\): )?', "", line)

"""Grammars that an output must follow, over a checkpoint's tokens: regular expressions and JSON schemas, by llguidance.

The library says which text may come next. Which tokens end a text is said by the request: they are allowed exactly
where the grammar may end, and nowhere else, whatever the tokenizer takes for its end. For the library the end is a
token that no model has, so that it never takes a model's token for one.

The library has limits, and gives up where a grammar is beyond them. That is never taken for the end of a text. Nor does
it depend on what others did with the same grammar: where the library gives up, it is asked once more afresh.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from foretoken.errors import GrammarError, quoted
from foretoken.protocol.types import Request
from foretoken.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
_Said = TypeVar("_Said")

_END = "\0the end\0"
_COMPILED = 64  # grammars that are kept
# Between the parts of JSON: a space, or a line break and an indentation. The library's default has no bound, and small
# models like blank lines: they would never come to the next key. A schema may say otherwise, under "x-guidance".
_WHITESPACE = r" ?|\n[ \t]{0,32}"
# Beyond the library's defaults, so that a schema may have some 2000 optional properties. The work for one token stays
# below a second.
_LIMITS = {"max_items_in_row": 10_000, "step_max_items": 1_000_000, "step_lexer_fuel": 1_000_000}
_NO_TOKEN = "NoExtensionBias"  # the library's word for: no token may come next, though no text ends here
_GIVEN_UP = 256  # places that are kept, of one grammar

# What a schema's keys hold that is neither a schema nor a list of schemas: schemas by name, values, or whatever.
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_VALUES = {"const", "enum"}
_NO_SCHEMAS = {"default", "examples", "example", "required", "x-guidance"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNTS = dict.fromkeys(("minItems", "maxItems", "minProperties", "maxProperties"), 2**64 - 1)
_COUNTS |= dict.fromkeys(("minLength", "maxLength"), 2**32 - 1)
_EXACT = 2**53  # from here on not every whole number is a double, which the library takes bounds for
_MOST_STEPS = 1_000_000  # of a multipleOf: it takes seconds


class Grammars:
    """Of one tokenizer. Each grammar is compiled once; a sequence gets a copy, which costs no more than a token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._tokens: tuple[LLTokenizer, int] | None = None  # with the id of _END
        self._compiled: dict[tuple[str, str], _Compiled] = {}

    def constraint(self, request: Request) -> GrammarConstraint | None:
        """Where a request's output begins. GrammarError if its grammar cannot be read, or allows nothing."""
        grammar = request.sampling.constraint
        if grammar is None:
            return None
        tokens, end = self._read_tokens()
        if grammar not in self._compiled:
            compiled = _Compiled(*grammar, tokens)
            if len(self._compiled) == _COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = compiled
        constraint = GrammarConstraint(self._compiled[grammar], end, request.end_tokens)
        if constraint.stuck:
            constraint.allowed(0)
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


class _Compiled:
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


class GrammarConstraint:
    """One sequence's place in a grammar. `end` is the library's end token, `end_tokens` are the request's.

    After the end nothing is allowed. Whoever guesses may go on all the same, and off the grammar too: such tokens are
    counted, so that they can be taken back.
    """

    def __init__(self, grammar: _Compiled, end: int, end_tokens: frozenset[int]) -> None:
        self._grammar = grammar
        self._start, _ = grammar.begin()
        self._matcher: LLMatcher | None = self._start.deep_copy()  # None: of no use any more
        self._tokens: list[int] = []  # what the matcher has read
        self._end = end
        self._end_tokens = end_tokens
        self._ends = np.array(sorted(end_tokens), dtype=np.int64)
        self._beyond = 0  # tokens after the end, the one that ended it included
        self._lost: tuple[int, str] | None = None  # after so many tokens the library gave up, and why
        self._here: Bools | None = None  # what may come next, once it has been asked for,
        self._accepting = False  # and whether the text may end

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
        """One more token."""
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
            matcher.compute_bitmask()  # where it gave up, it may not say so before
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
            # Of a text that can go on in one way only, the library tells the next token without a look at whether it
            # has given up, and may have found no other way because of that. When it reads the token, it says so.
            matcher.consume_tokens([int(allowed.argmax())])
            matcher.rollback(1)
        return allowed, matcher.is_accepting()

    def _ask(self, ask: Callable[[LLMatcher], _Said], *token: int) -> _Said | None:
        """What the library says, of a `token` or of what comes next. None if it gives up, which is noted.

        It does so where it gives up on the sequence's tokens alone, without whatever was read and forgotten between
        them: its parser on any start, the rest of it on one that nobody else had.
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
            self._matcher = None  # which can neither go on nor back
            if error.startswith(_NO_TOKEN):
                return said
            of_parser = error.lower().startswith("parser error")
            if not of_parser:
                self._grammar.drop(self._start)
            if new or (again and of_parser):
                self._lost = (len(self._tokens) + len(token), _reason(error))
                self._grammar.give_up((*self._tokens, *token), self._lost[1])
                return None

    def _read_again(self) -> tuple[LLMatcher, bool]:
        """A matcher at this place, and whether nobody else has begun where it began."""
        self._start, new = self._grammar.begin()
        matcher = self._start.deep_copy()
        for token in self._tokens:
            if new:  # then step by step, as plain decoding would: some of what is worked out helps later on
                self._look(matcher)
            matcher.consume_tokens([token])
        return matcher, new


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
    from llguidance import LLMatcher, LLParserLimits

    if kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    else:
        schema = _read_schema(text)
        try:
            says = any(name.startswith("whitespace") for name in dict(schema.get("x-guidance") or {}))
            grammar = LLMatcher.grammar_from_json_schema(text, {} if says else {"whitespace_pattern": _WHITESPACE})
        except (TypeError, ValueError) as error:  # of "x-guidance"
            raise GrammarError(f"{_called(kind, text)} cannot be followed: {_reason(str(error))}") from None
    limits = LLParserLimits(**_LIMITS, verbose_errors=False)
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(f"{_called(kind, text)} cannot be followed: {_reason(matcher.get_error())}")
    return matcher


def _read_schema(text: str) -> dict[str, Any]:
    """A JSON schema, whose numbers the library takes for what they are."""
    called = _called("json_schema", text)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{called} is not JSON ({error}); expected a JSON schema") from None
    if not isinstance(schema, dict):
        raise GrammarError(f"{called} is no JSON schema; expected an object")
    for name, value, exclusive in _numbers(schema):
        wrong = _wrong_number(name, value, exclusive)
        if wrong:
            raise GrammarError(f"{called} has {name} {quoted(value)}, {wrong}, or leave {name} out")
    return schema


def _numbers(schema: dict[str, Any]) -> Iterator[tuple[str, int | float, bool]]:
    """The numbers in a schema, each with its key, and whether it is a bound that is itself left out (as draft 4 says
    it). Whatever may be pointed to is taken for a schema."""
    parts: list[tuple[Any, str]] = [(schema, "")]  # with the key whose values they are
    while parts:
        part, values = parts.pop()
        if isinstance(part, list):
            parts += ((item, values) for item in part)
        elif isinstance(part, dict) and values:
            parts += ((item, values) for item in part.values())
        elif isinstance(part, dict):
            for key, value in part.items():
                if _is_number(value):
                    strict = part.get(f"exclusive{key.capitalize()}") is True
                    yield key, value, strict or key.startswith("exclusive")
                if key in _BY_NAME and isinstance(value, dict):
                    parts += ((item, "") for item in value.values())
                elif key not in _NO_SCHEMAS:
                    parts.append((value, key if key in _VALUES else ""))
        elif values and _is_number(part):
            yield values, part, False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_number(key: str, value: int | float, exclusive: bool) -> str:
    """What is wrong with a number in a schema, and what to give; nothing where the library does what it should."""
    if key in _VALUES or key in _BOUNDS:
        rounds = _rounds_value(value) if key in _VALUES else _rounds_bound(value, exclusive)
        return f"which llguidance would round; give whole numbers within ±{_EXACT - 1}" if rounds else ""
    if key in _COUNTS and value > _COUNTS[key]:
        return f"which llguidance cannot count to; give at most {_COUNTS[key]}"
    if key == "multipleOf" and value and not _is_counted(abs(value)):
        return f"which llguidance cannot follow; give a whole number up to {_MOST_STEPS:,}, or a rounder one"
    return ""


def _rounds_bound(value: int | float, exclusive: bool) -> bool:
    """Bounds are doubles, of whole numbers with 64 bits. What lies beside one that is left out is a double, too."""
    if exclusive:
        return abs(value) >= _EXACT
    return value != 2**63 - 1 and (abs(value) > 2**63 or float(value) != value)


def _rounds_value(value: int | float) -> bool:
    """Values are doubles too. Those that fit into 64 bits are written out, others in as few digits as tell them."""
    if isinstance(value, float):
        return False
    try:
        held = float(value)
    except OverflowError:
        return True
    written = min(int(held), 2**63 - 1) if abs(value) < 2**63 else int(Decimal(repr(held)))
    return written != value


def _is_counted(value: int | float) -> bool:
    """Whether the library can tell multiples: it counts in steps of a power of ten, and goes through all of one."""
    try:
        held, places = float(value), 0
    except OverflowError:
        return False
    while held % 1 and places < 10:
        held, places = held * 10, places + 1
    steps = Fraction(Decimal(repr(value))) * 10**places
    return bool(steps == held and steps <= _MOST_STEPS and steps * 10**places < 2**32)


def _called(kind: str, text: str) -> str:
    return f"{kind} {quoted(text, 80)}"


def _reason(message: str) -> str:
    """The line of the library's message that says what is wrong, without where in the grammar that it made of ours."""
    found = re.search(r"^error: (.*)", message, re.MULTILINE)
    line = found[1] if found else (message.strip().splitlines() or ["llguidance does not say why"])[0]
    line = re.sub("; (consider|try) .*", "", line)  # what to do about a grammar of another kind
    return re.sub(r'^at \d+\(\d+\): (invalid regex ".*" \(in regex\): )?', "", line)

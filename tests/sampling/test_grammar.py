"""Grammars over tokens: what may come next, where a text may end, and that going back is exact."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.common.source import EMBEDDED
from foretoken.errors import GrammarError, SettingError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.grammar import GrammarConstraint, Grammars
from foretoken.sampling.samplers import Samplers
from foretoken.settings.generate import GenerateSettings
from foretoken.text.stream import TextStream
from foretoken.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-7m"])
assert TOKENIZER is not None
SIZE = TOKENIZER.size
TEXT_OF = TOKENIZER.vocabulary
TOKEN_OF = {text: token for token, text in TEXT_OF.items()}
END = TOKEN_OF["<|endoftext|>"]
GRAMMARS = Grammars(TOKENIZER)
WORD = ("regex", "[a-z]{2,4}( [0-9]+)?")
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "items": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMA = ("json_schema", json.dumps(OBJECT))
# text that is free up to a mark, after which a form begins; and a special token of the tokenizer
LARK = (
    "lark",
    f"""start: FREE | head object <|pad|>?
head[lazy]: FREE "=> "
object: %json {SCHEMA[1]}
FREE: /[^{{}}]*/
""",
)


def constraint_of(grammar: tuple[str, str], *end_tokens: int) -> GrammarConstraint:
    request = Request(0, (1,), 9, frozenset(end_tokens), sampling=SamplingParams(constraint=grammar))
    constraint = GRAMMARS.constraint(request)
    assert constraint is not None
    return constraint


def advanced(constraint: GrammarConstraint, *texts: str) -> GrammarConstraint:
    for text in texts:
        constraint.advance(TOKEN_OF[text.replace(" ", "Ġ")])
    return constraint


def texts_allowed(constraint: GrammarConstraint) -> set[str]:
    return {TEXT_OF[int(token)] for token in np.flatnonzero(constraint.allowed(SIZE))}


# -- what may come next -----------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_what_may_come_next_leads_to_every_text_that_matches_and_to_no_other(data: st.DataObject) -> None:
    """Against the definition: a language of which all members are known.

    Of a text that can only go on in one way, the library allows the tokenizer's own tokens and not their parts.
    """
    language = data.draw(st.lists(st.text("abc {", min_size=1, max_size=6), min_size=1, max_size=4, unique=True))
    constraint = constraint_of(("regex", "|".join(re.escape(text).replace(r"\ ", " ") for text in language)), END)
    plain = {token: text.replace("Ġ", " ") for token, text in TEXT_OF.items() if token > 1}
    so_far = ""
    while not constraint.complete:
        allowed = np.flatnonzero(constraint.allowed(SIZE)).tolist()
        assert (END in allowed) is (so_far in language)
        nexts = {so_far + plain[token] for token in allowed if token != END}
        left = [member for member in language if member.startswith(so_far) and member != so_far]
        assert all(any(member.startswith(text) for member in left) for text in nexts), "leads to no text"
        assert all(any(member.startswith(text) for text in nexts) for member in left), "a text is left out"
        token = data.draw(st.sampled_from(allowed))
        constraint.advance(token)
        so_far += "" if token == END else plain[token]
    assert so_far in language


def test_the_mask_has_the_size_of_the_logits() -> None:
    constraint = constraint_of(WORD, END)
    whole = constraint.allowed(SIZE)
    assert whole.any()
    assert constraint.allowed(100).tolist() == whole[:100].tolist()
    padded = constraint.allowed(SIZE + 64)
    assert len(padded) == SIZE + 64
    assert not padded[SIZE:].any()
    assert padded[:SIZE].tolist() == whole.tolist()


def test_special_tokens_have_no_text_that_could_match() -> None:
    allowed = constraint_of(("regex", r"(.|\n)*")).allowed(SIZE)
    assert not allowed[END]
    assert not allowed[TOKEN_OF["<|pad|>"]]
    assert allowed.sum() > 4000


# -- where it ends ----------------------------------------------------------------------------------------------------


def test_end_tokens_are_allowed_exactly_where_the_grammar_may_end() -> None:
    constraint = constraint_of(WORD, END, 4000, SIZE + 7)  # one of text; one of which the tokenizer knows nothing
    ends = [END, 4000, SIZE + 7]
    assert TEXT_OF[4000].strip("Ġ").isalpha(), "else it would not have been allowed as text"
    assert constraint.allowed(SIZE + 8)[ends].tolist() == [False] * 3
    advanced(constraint, "d", "e")
    assert constraint.allowed(SIZE + 8)[ends].tolist() == [True] * 3
    advanced(constraint, " ")
    assert constraint.allowed(SIZE + 8)[ends].tolist() == [False] * 3
    advanced(constraint, "1")
    assert not constraint.complete, "digits may follow"
    for end in ends:
        constraint.advance(end)
        assert constraint.complete
        assert not constraint.allowed(SIZE + 8).any()
        constraint.rewind(1)
        assert constraint.allowed(SIZE + 8)[ends].tolist() == [True] * 3


def test_without_end_tokens_a_text_is_complete_where_nothing_but_its_end_could_follow() -> None:
    constraint = advanced(constraint_of(("regex", "abc?")), "ab")
    assert not constraint.complete
    assert texts_allowed(constraint) == {"c"}
    advanced(constraint, "c")
    assert constraint.complete
    assert not constraint.allowed(SIZE).any()
    constraint.rewind(1)
    assert not constraint.complete
    with_end = advanced(constraint_of(("regex", "abc?"), END), "ab", "c")
    assert texts_allowed(with_end) == {"<|endoftext|>"}
    assert not with_end.complete, "an end token is to come"


def test_after_the_end_and_off_the_grammar_nothing_is_allowed_and_nothing_raises() -> None:
    constraint = advanced(constraint_of(WORD, END), "ab")
    for token in (END, END, 5, SIZE + 1000, TOKEN_OF["ab"]):
        constraint.advance(token)
        assert not constraint.allowed(SIZE).any()
    constraint.rewind(5)
    assert constraint.allowed(SIZE)[END]
    for wrong in ("{", "<|pad|>"):
        constraint.advance(TOKEN_OF[wrong])
        assert not constraint.allowed(SIZE).any()
        constraint.rewind(1)
    assert advanced(constraint, " ").allowed(SIZE)[TOKEN_OF["7"]]


# -- going back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grammar", [WORD, SCHEMA, LARK, ("regex", r"(a|ab|abc)*;"), ("json_schema", "{}")])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**20)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_advancing_and_going_back_is_as_if_one_had_never_left(
    grammar: tuple[str, str], steps: list[tuple[int, int]]
) -> None:
    constraint = constraint_of(grammar, END)
    gained: list[int] = []
    for kind, number in steps:
        allowed = np.flatnonzero(constraint.allowed(SIZE))
        if kind < 3:
            count = number % (len(gained) + 1)
            constraint.rewind(count)
            del gained[len(gained) - count :]
        else:  # mostly what is allowed
            token = int(allowed[number % len(allowed)]) if kind < 9 and len(allowed) else number % (SIZE + 3)
            constraint.advance(token)
            gained.append(token)
        fresh = constraint_of(grammar, END)
        for token in gained:
            fresh.advance(token)
        assert np.array_equal(constraint.allowed(SIZE), fresh.allowed(SIZE))
        assert constraint.complete == fresh.complete


def test_copies_go_their_own_ways() -> None:
    one, other = constraint_of(SCHEMA, END), constraint_of(SCHEMA, END)
    advanced(one, "{", '"')
    assert texts_allowed(one) != texts_allowed(other)
    assert texts_allowed(other) == texts_allowed(constraint_of(SCHEMA, END))


# -- JSON -------------------------------------------------------------------------------------------------------------


def accepts(schema: object, text: str) -> bool:
    """Whether a text may come, in the longest tokens that are allowed, and be whole."""
    constraint = constraint_of(("json_schema", json.dumps(schema)))
    text = text.replace(" ", "Ġ").replace("\n", "Ċ")
    while text:
        fitting = [token for token in texts_allowed(constraint) if text.startswith(token)]
        if not fitting:
            return False
        longest = max(fitting, key=len)
        constraint.advance(TOKEN_OF[longest])
        text = text.removeprefix(longest)
    return constraint.complete


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"name": "abcd"}', True),
        ('{"name":"ab","items":[1,-2]}', True),
        ('{\n    "name" : "",\n    "items": []\n}', True),
        ('{"name": "abcde"}', False),
        ('{"items": []}', False),
        ('{"name": "a", "name": "b"}', False),
        ('{"name": "a"} ', False),
        ('{"name":\n\n"a"}', False),  # whitespace has bounds, or a small model would never leave it
        ('{"name":  "a"}', False),
        ("{\n" + 33 * " " + '"name": "a"}', False),
    ],
)
def test_a_schema_says_which_json_may_come(text: str, whole: bool) -> None:
    assert accepts(OBJECT, text) is whole


def test_a_schema_may_say_which_whitespace_it_wants() -> None:
    assert not accepts({"type": "array", "x-guidance": {"whitespace_flexible": False}}, "[ ]")
    assert accepts({"type": "array"}, "[ ]")


def test_a_schema_may_be_a_dict() -> None:
    chosen = GenerateSettings(json_schema=OBJECT)
    assert chosen.constraint == SCHEMA
    assert GenerateSettings(json_schema=SCHEMA[1]) == chosen
    with pytest.raises(SettingError, match=r"^json_schema is \{'enum': \{1\}\}, which JSON cannot hold \(Object of"):
        GenerateSettings(json_schema={"enum": {1}})


# -- what cannot be followed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (("regex", "("), "regex '(' cannot be followed: unclosed group"),
        (("regex", r"(a)\1"), r"regex '(a)\\1' cannot be followed: backreferences are not supported"),
        (("regex", ""), "regex '' leaves no token to begin with; let it match some text"),
        (
            ("json_schema", "{'a'}"),
            "json_schema \"{'a'}\" is not JSON (Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)); expected a JSON schema",
        ),
        (("json_schema", "3"), "json_schema '3' is no JSON schema; expected an object"),
        (
            ("json_schema", '{"type": "objec"}'),
            'json_schema \'{"type": "objec"}\' cannot be followed: Invalid type: objec',
        ),
        (
            ("json_schema", '{"not": {}}'),
            'json_schema \'{"not": {}}\' cannot be followed: Unimplemented keys: ["not"]',
        ),
        (("json_schema", '{"pattern": "("}'), 'json_schema \'{"pattern": "("}\' cannot be followed: unclosed group'),
        (
            ("json_schema", '{"x-guidance": {"lenient": 3}}'),
            'json_schema \'{"x-guidance": {"lenient": 3}}\' cannot be followed: '
            "invalid type: integer `3`, expected a boolean",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(grammar: tuple[str, str], message: str) -> None:
    with pytest.raises(GrammarError) as error:
        constraint_of(grammar)
    assert str(error.value) == message


def test_nesting_beyond_reason_is_refused() -> None:
    for grammar in (
        ("regex", "(" * 9999 + ")" * 9999),
        ("json_schema", "[" * 99999),
        ("json_schema", '{"a":' * 9999),
        ("lark", f"start: {'(' * 9999}x{')' * 9999}"),
        ("lark", f"start: %json {'[' * 99999}"),
        ("lark", 'start: %json {"a":' + '{"a":' * 9999),
    ):
        with pytest.raises(GrammarError, match=r"^(regex|json_schema|grammar) '.{79} (cannot be followed|is not JSON)"):
            constraint_of(grammar)


def test_a_checkpoint_without_a_tokenizer_follows_no_grammar() -> None:
    class Python:
        """As a tokenizer that is not the Rust library's."""

    request = Request(0, (1,), 9, sampling=SamplingParams(constraint=WORD))
    for tokenizer, lacking in ((None, "no tokenizer"), (Tokenizer(Python()), "a tokenizer that is no tokenizer.json")):
        samplers = Samplers(tokenizer)
        assert samplers.target(Request(0, (1,), 9)).plain
        for make in (samplers.target, samplers.independent):
            with pytest.raises(GrammarError) as error:
                make(request)
            assert str(error.value) == (
                f"the checkpoint has {lacking}, so its text can follow no grammar; leave regex, json_schema and "
                "grammar out"
            )


def test_a_tokenizer_that_the_library_cannot_read_is_refused_in_words() -> None:
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models
    from transformers import PreTrainedTokenizerFast

    rust = Rust(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    rust.decoder = decoders.Metaspace()
    grammars = Grammars(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust)))
    with pytest.raises(GrammarError) as error:
        grammars.constraint(Request(0, (1,), 9, sampling=SamplingParams(constraint=WORD)))
    assert str(error.value).startswith(
        "the checkpoint's tokenizer is of a kind that llguidance cannot read (can't determine decoder type"
    )


@pytest.mark.parametrize("pattern", [r"[a-z]+( [a-z]{1,5}){1,3}\.?", " ?(def|return) [a-z]{1,4}", "[éüab ]{2,6}"])
def test_what_was_allowed_is_text_that_matches_with_a_tokenizer_of_another_kind(pattern: str) -> None:
    """Spaces as letters of their own and single bytes, as in Llama 2."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefr.", "de", "def", "▁def", "▁a"]
    vocabulary = {word: token for token, word in enumerate(words)}
    merges = [("d", "e"), ("de", "f"), ("▁", "def"), ("▁", "a")]
    rust = Rust(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    rust.decoder = decoders.Sequence(parts)
    rust.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust))
    grammars, dice = Grammars(tokenizer), np.random.default_rng(1)
    request = Request(0, (1,), 9, frozenset([1]), sampling=SamplingParams(constraint=("regex", pattern)))
    for _ in range(20):
        constraint = grammars.constraint(request)
        assert constraint is not None
        stream = TextStream(tokenizer, tokenizer.encode("a b"))
        while not constraint.complete:
            allowed = np.flatnonzero(constraint.allowed(tokenizer.size))
            token = 1 if 1 in allowed and dice.random() < 0.5 else int(dice.choice(allowed))
            constraint.advance(token)
            stream.feed(token)
        stream.finish()
        assert re.fullmatch(pattern, "".join(stream.take()))


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError) as error:
        Grammars(TOKENIZER).constraint(Request(0, (1,), 9, sampling=SamplingParams(constraint=WORD)))
    assert str(error.value) == (
        "grammars need the package llguidance, which is not installed; pip install 'foretoken[grammar]'"
    )


def test_nothing_is_imported_before_a_grammar_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert Samplers(TOKENIZER).target(Request(0, (1,), 9)).plain


def test_a_grammar_is_compiled_once_and_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretoken.sampling import compiled as compiling
    from foretoken.sampling import grammar

    compiled: list[tuple[str, str]] = []

    def counting(kind: str, text: str, tokens: Any, compile: Callable[..., Any] = compiling._compile) -> Any:
        compiled.append((kind, text))
        return compile(kind, text, tokens)

    monkeypatch.setattr(compiling, "_compile", counting)
    monkeypatch.setattr(grammar, "_COMPILED", 2)
    grammars = Grammars(TOKENIZER)
    for text in "aabacab":
        grammars.constraint(Request(0, (1,), 9, sampling=SamplingParams(constraint=("regex", text))))
    assert [text for _, text in compiled] == ["a", "b", "c", "a", "b"]

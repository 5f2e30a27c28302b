from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from foretoken.common.source import EMBEDDED
from foretoken.errors import CheckpointError
from foretoken.text.stream import StreamDecoder
from foretoken.text.tokenizer import Tokenizer


def _save(tokenizer: tokenizers.Tokenizer, folder: Path, **special: str) -> Tokenizer:
    """Through a checkpoint's files, as a user's tokenizer comes."""
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    loaded = Tokenizer.load(folder)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's tokenizer files."""
    return tmp_path_factory.mktemp("byte_level")


@pytest.fixture(scope="module")
def byte_level(folder: Path) -> Tokenizer:
    """As Qwen's and Llama 3's: a token for every byte, some for several, one of them for half a character."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("h", "e"), ("l", "l"), ("Ġ", "t"), ("Ã", "©"), ("ð", "Ł")]  # he, ll, " t", é, and F0 9F
    vocabulary |= {a + b: len(vocabulary) + i for i, (a, b) in enumerate(merges)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _save(tokenizer, folder, bos_token="<|begin|>", eos_token="<|end|>")


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As Llama 2's and Mistral's: ▁ for a space, a token for each byte of characters that it does not know, and the
    first space of a text is taken away."""
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    symbols += ["▁", "a", "b", "c", "▁a", "▁b", "ab", "▁ab"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={symbol: i for i, symbol in enumerate(symbols)},
            merges=[("a", "b"), ("▁", "ab"), ("▁", "a"), ("▁", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder = tmp_path_factory.mktemp("metaspace")
    return _save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def streamed(tokenizer: Tokenizer, tokens: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    """What each token says, and at the end what was held back."""
    decoder = StreamDecoder(tokenizer, prompt)
    return [*(decoder.feed(token) for token in tokens), decoder.flush()]


# -- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert Tokenizer.load(tmp_path) is None


@pytest.mark.parametrize("contents", ["", "{", "{}", '{"version": "1.0"}', "[1]"])
def test_a_broken_tokenizer_is_an_error_of_one_line_that_names_the_folder(tmp_path: Path, contents: str) -> None:
    (tmp_path / "tokenizer.json").write_text(contents)
    with pytest.raises(CheckpointError) as error:
        Tokenizer.load(tmp_path)
    message = str(error.value)
    assert message.startswith(f"the tokenizer in {tmp_path} cannot be loaded (")
    assert message.endswith("); fetch its files again")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ValueError("\n first line\nsecond line\n"), "first line"),
        (OSError(), "OSError"),
        (KeyError("content"), "transformers cannot make sense of them, or of config.json"),
        (
            AttributeError("'str' object has no attribute 'get'"),
            "transformers cannot make sense of them, or of config.json",
        ),
        (
            ValueError("Validation error for field 'x':\n    TypeError: Field 'x' expected int, got float"),
            "config.json: Validation error for field 'x': Field 'x' expected int, got float",
        ),
        (ValueError("got: <class 'dict'>, no NoneType"), "got: dict, no null"),
        (ValueError("x" * 5000), "x" * 199 + "…"),
    ],
)
def test_of_what_transformers_says_the_first_line_is_told(
    failure: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise failure

    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(CheckpointError) as error:
        Tokenizer.load(tmp_path)
    assert str(error.value) == f"the tokenizer in {tmp_path} cannot be loaded ({said}); fetch its files again"
    assert error.value.__cause__ is failure  # the rest is there for who looks for it


def test_what_is_no_exception_of_a_tokenizers_files_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **kwargs: object) -> NoReturn:
        raise KeyboardInterrupt

    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", stop)
    with pytest.raises(KeyboardInterrupt):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer.json", {"model": {"continuing_subword_prefix": "٣"}}, "the tokenizer in {} cannot be loaded ("),
        ("tokenizer_config.json", {"auto_map": "1"}, "the tokenizer in {} cannot be loaded (transformers cannot make"),
        ("tokenizer_config.json", {"model_max_length": {"": 0}}, "the model's tokenizer cannot encode text ("),
    ],
    ids=["a panic of Rust", "transformers' own code fails", "what is looked at when text comes"],
)
def test_whatever_a_tokenizers_files_make_fail_is_an_error_about_them(
    file: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(content.get(key), dict) else value
    (folder / file).write_text(json.dumps(content), encoding="utf-8")

    def encode() -> None:
        loaded = Tokenizer.load(folder)
        assert loaded is not None
        loaded.encode("x" * 99)

    with pytest.raises(CheckpointError) as error:
        encode()
    assert str(error.value).startswith(message.format(folder))
    assert str(error.value).endswith("; fetch its files again")


def test_a_tokenizer_that_was_cut_short_is_an_error(byte_level: Tokenizer, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text()[:700])
    with pytest.raises(CheckpointError, match=r"^the tokenizer in .* cannot be loaded \(Unterminated string .*\); "):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_needs_no_other_file(byte_level: Tokenizer, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    alone = Tokenizer.load(tmp_path)
    assert alone is not None
    assert alone.encode("hello") == byte_level.encode("hello")
    assert alone.end_token is None  # which of its tokens ends a text is said elsewhere


def test_the_size_is_one_more_than_the_largest_id(byte_level: Tokenizer, metaspace: Tokenizer) -> None:
    assert byte_level.size == 256 + 5 + 2  # bytes, merges, and the special tokens, which come last
    assert metaspace.size == 3 + 256 + 8


def test_the_end_token_is_the_tokenizers_own(byte_level: Tokenizer, metaspace: Tokenizer) -> None:
    assert byte_level.end_token == 262
    assert metaspace.end_token == 2


def test_text_comes_back_as_it_was(byte_level: Tokenizer) -> None:
    # spaces before punctuation too, which transformers would tidy up if it were let
    text = "he said : no , I don 't .  <é😀>\n"
    assert byte_level.decode(byte_level.encode(text)) == text


def test_special_tokens_are_not_shown(byte_level: Tokenizer) -> None:
    hello = byte_level.encode("hello")
    begin, end = 261, 262
    assert byte_level.decode([begin, *hello, end]) == "hello"
    assert "".join(streamed(byte_level, [begin, *hello, end, *hello, end])) == "hellohello"


def test_special_tokens_that_stand_in_a_text_are_read_as_such(byte_level: Tokenizer) -> None:
    assert byte_level.encode("<|end|>") == [262]


# -- text that is still coming ----------------------------------------------------------------------------------------


def test_text_comes_token_by_token(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("hello the")
    assert streamed(byte_level, tokens) == ["he", "ll", "o", " t", "he", ""]


def test_half_a_character_is_held_back_until_the_rest_of_it_comes(byte_level: Tokenizer) -> None:
    # è in two tokens, é in one, 😀 in three, of which the first has two bytes
    assert streamed(byte_level, byte_level.encode("èé😀a")) == ["", "è", "é", "", "", "😀", "a", ""]


def test_a_character_that_is_never_finished_comes_with_the_flush(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("a😀")[:-1]
    assert streamed(byte_level, tokens) == ["a", "", "", "\ufffd"]


def test_a_character_that_is_broken_off_comes_with_what_follows(byte_level: Tokenizer) -> None:
    (a,) = byte_level.encode("a")
    assert streamed(byte_level, [*byte_level.encode("😀")[:-1], a]) == ["", "", "\ufffda", ""]


def test_nothing_comes_of_nothing(byte_level: Tokenizer) -> None:
    assert streamed(byte_level, []) == [""]
    assert streamed(byte_level, [], byte_level.encode("hello the")) == [""]


def test_the_prompt_is_not_said_again(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("hello the é😀 of a prompt that is longer than the context")
    assert "".join(streamed(byte_level, byte_level.encode("hello"), prompt)) == "hello"


@pytest.mark.parametrize(("text", "read"), [("aè", 2), ("a😀", 2), ("a😀", 3)])
def test_a_character_that_began_in_the_prompt_is_finished(byte_level: Tokenizer, text: str, read: int) -> None:
    tokens = byte_level.encode(text)
    assert "".join(streamed(byte_level, tokens[read:], tokens[:read])) == text[1:]


def test_text_after_a_prompt_that_ends_inside_a_character_is_whole(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("a😀")[:-1]
    assert "".join(streamed(byte_level, byte_level.encode("hello"), prompt)) == "hello"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.text("aé中😀 ", max_size=12))
@settings(deadline=None, max_examples=60)
def test_what_comes_piece_by_piece_is_the_text(byte_level: Tokenizer, text: str, prompt: str) -> None:
    tokens = byte_level.encode(text)
    pieces = streamed(byte_level, tokens, byte_level.encode(prompt))
    assert "".join(pieces) == text
    # no character comes late: nothing is left for the end, but what looks like half a character
    assert pieces[-1] == text[len(text.rstrip("\ufffd")) :]


@given(st.lists(st.one_of(st.integers(0, 262), st.integers(120, 200), st.sampled_from([260, 261, 262])), max_size=25))
@settings(deadline=None, max_examples=100)
def test_any_tokens_give_what_decoding_them_at_once_gives(byte_level: Tokenizer, tokens: list[int]) -> None:
    # bytes that are no text, halves of characters with special tokens between them
    assert "".join(streamed(byte_level, tokens)) == byte_level.decode(tokens)


@pytest.mark.parametrize("silent", [262, 263, 10**6], ids=["end", "of no text", "far beyond"])
def test_tokens_without_text_cost_nothing(byte_level: Tokenizer, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # which a generation that ignores end tokens may bring, or a model whose logits are more than its tokens
    lengths: list[int] = []
    decode = Tokenizer.decode

    def counted(self: Tokenizer, tokens: Sequence[int]) -> str:
        lengths.append(len(tokens))
        return decode(self, tokens)

    a, *smile = byte_level.encode("a😀")
    tokens = [a, *[silent] * 2000, *smile[:1], *[silent] * 2000, *smile[1:], *[silent] * 2000, a]
    whole = byte_level.decode(tokens)
    monkeypatch.setattr(Tokenizer, "decode", counted)
    pieces = streamed(byte_level, tokens)
    assert "".join(pieces) == whole == "a😀a"
    assert [(at, piece) for at, piece in enumerate(pieces) if piece] == [(0, "a"), (4003, "😀"), (6004, "a")]
    assert sum(lengths) < 50


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_what_decoding_leaves_out_changes_nothing_wherever_it_stands(
    byte_level: Tokenizer, metaspace: Tokenizer, data: st.DataObject
) -> None:
    tokenizer, ends = data.draw(st.sampled_from([(byte_level, [261, 262, 300]), (metaspace, [0, 1, 2, 300])]))
    tokens = data.draw(st.lists(st.one_of(st.integers(0, tokenizer.size - 1), st.sampled_from(ends)), max_size=20))
    kept = [token for token in tokens if not tokenizer.leaves_out(token)]
    assert all(tokenizer.leaves_out(token) for token in ends)
    assert tokenizer.decode(kept) == tokenizer.decode(tokens)


def test_of_a_tokenizer_written_in_python_special_tokens_are_left_out() -> None:
    written = SimpleNamespace(all_special_ids=[0, 7])
    assert [token for token in range(9) if Tokenizer(written).leaves_out(token)] == [0, 7]


# -- spaces that belong to words --------------------------------------------------------------------------------------


def test_the_first_space_of_a_text_is_the_tokenizers_own(metaspace: Tokenizer) -> None:
    tokens = metaspace.encode("ab a")
    assert metaspace.decode(tokens) == "ab a"
    assert streamed(metaspace, tokens) == ["ab", " a", ""]


def test_the_space_between_prompt_and_continuation_is_kept(metaspace: Tokenizer) -> None:
    prompt, continuation = metaspace.encode("ab a"), metaspace.encode("b ab")
    assert metaspace.decode(continuation) == "b ab"  # which decoding the continuation alone would lose
    assert streamed(metaspace, continuation, prompt) == [" b", " ab", ""]


def test_nothing_is_put_between_a_beginning_and_its_word(metaspace: Tokenizer) -> None:
    assert streamed(metaspace, metaspace.encode("ab"), prompt=[1]) == ["ab", ""]


@given(st.text("ab c", max_size=20), st.text("ab c", max_size=12))
@settings(deadline=None, max_examples=60)
def test_words_with_spaces_come_as_decoded_at_once(metaspace: Tokenizer, text: str, prompt: str) -> None:
    before, tokens = metaspace.encode(prompt), metaspace.encode(text)
    assert "".join(streamed(metaspace, tokens)) == metaspace.decode(tokens)
    whole = metaspace.decode([*before, *tokens])
    assert "".join(streamed(metaspace, tokens, before)) == whole[len(metaspace.decode(before)) :]


def test_characters_in_bytes_are_held_back_until_they_are_whole(metaspace: Tokenizer) -> None:
    assert streamed(metaspace, metaspace.encode("a😀b")) == ["a", "", "", "", "😀", "b", ""]


def test_many_characters_in_bytes_come_one_by_one(metaspace: Tokenizer) -> None:
    text = "😀😁😂"
    tokens = metaspace.encode(text)
    assert metaspace.decode(tokens) == text
    pieces = streamed(metaspace, tokens)
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)


def test_a_space_after_many_special_tokens_is_kept(metaspace: Tokenizer) -> None:
    # which a generation that ignores end tokens may bring
    (a,), (b,) = metaspace.encode("a"), metaspace.encode("b")
    tokens = [a, *[2] * 6, b]
    assert metaspace.decode(tokens) == "a b"
    assert "".join(streamed(metaspace, tokens)) == "a b"

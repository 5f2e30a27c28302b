"""Text to tokens and back, by a checkpoint's tokenizer. If it fails, the error names the tokenizer's files."""

from __future__ import annotations

import json
import logging
import operator
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from foretoken.common.files import read_bytes
from foretoken.errors import CheckpointError, PromptError, cut, quoted

_CONTENT = "foretoken"  # the content of a message with which a template is tried
# what a template is given otherwise, and what transformers takes for itself
_TAKEN = {"conversation", "conversations", "messages", "tools", "documents", "chat_template", "add_generation_prompt"}
_TAKEN |= {"continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"}
_TAKEN |= {"return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self"}
TOKENIZER_OF = "tokenizer"  # in a rehearsal's entry of config.json: the family of the model whose tokenizer it has
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
_lock = threading.Lock()
_levels: list[int] = []  # the level at which transformers logged, once for each thread that has made it quiet


class Tokenizer:
    """A checkpoint's tokenizer, as transformers loads it."""

    def __init__(self, tokenizer: Any, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._shown = shown  # special tokens that decoding does not leave out

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The tokenizer in a folder; None if it has none. A program of the checkpoint's own is never run. Raises
        CheckpointError if the tokenizer cannot be loaded."""
        if not any((folder / name).exists() for name in TOKENIZER_FILES):
            return None
        with _lock:  # transformers finds its classes when they are first asked for, and one thread at a time can
            from transformers import AutoTokenizer

        with _blaming_its_files(f"the tokenizer in {folder} cannot be loaded"), _without_warnings():
            _expect_sound_merges(folder / "tokenizer.json")
            try:
                # without trust_remote_code, transformers would ask on standard input, and run the program after a `y`
                load = partial(AutoTokenizer.from_pretrained, folder, local_files_only=True, trust_remote_code=False)
                try:
                    tokenizer = load(config=_small_configuration(folder))
                except (AttributeError, LookupError, TypeError, ImportError):  # it lacks what is asked for
                    tokenizer = load(config=_configuration(folder))
            except ValueError as error:
                if "trust_remote_code" not in str(error):
                    raise
                raise CheckpointError(
                    f"the tokenizer in {folder} is a program of the checkpoint's own ({_program(folder)}), which "
                    "Foretoken never runs; name a checkpoint with a tokenizer.json of a kind that transformers knows"
                ) from error
            _expect_sound_steps(getattr(tokenizer, "backend_tokenizer", None))
            return cls(tokenizer)

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    @property
    def vocabulary(self) -> dict[int, str]:
        """The text of each token id, as the tokenizer writes it."""
        return {token: text for text, token in self._tokenizer.get_vocab().items()}

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a template that writes a conversation as text for the model."""
        return bool(self._tokenizer.chat_template)

    @property
    def chat_template(self) -> str | None:
        """The text of the template that `encode_chat` takes where tools are given; None without one."""
        if not self.has_chat_template:
            return None
        try:
            template: str = self._tokenizer.get_chat_template(None, tools=[{}])
        except ValueError:  # several templates, and none of them is the usual one
            return None
        return template

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The token ids of a conversation, up to where the model's reply begins.

        Messages have a `role` and a `content`, or are what `text.messages.from_openai` makes. tools: functions that the
        model may call, in OpenAI's form. template_kwargs: more variables for the template, such as enable_thinking.
        add_generation_prompt: whether the beginning of a reply follows. continue_final_message: whether the model goes
        on with the last message instead; then no reply begins. Raises PromptError if the template refuses the
        conversation, or if `template_kwargs` has a name that is not free.
        """
        if taken := next((name for name in template_kwargs or {} if name in _TAKEN), None):
            raise PromptError(f"the chat template's variable {quoted(taken)} is not free; leave it out")
        if continue_final_message and add_generation_prompt:
            raise PromptError(
                "the model cannot go on with the last message and begin a reply; leave continue_final_message out, or "
                "give add_generation_prompt=False"
            )
        try:
            tokens: list[int] = self._tokenizer.apply_chat_template(
                list(messages),
                tools=None if tools is None else list(tools),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=True,
                return_dict=False,
                tokenizer_kwargs={"verbose": False},
                **(template_kwargs or {}),
            )
        except Exception as error:  # a template is a program of the checkpoint's: it raises what it likes
            raise PromptError(f"the chat template refuses the conversation ({_first_line(error)})") from error
        return tokens

    def begins_as_chat(self, text: str) -> bool:
        """Whether a text begins as texts of the chat template do: with a token of the template, or with the words that
        the template puts before the first content."""
        try:
            written: str = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": _CONTENT}], add_generation_prompt=True, tokenize=False
            )
        except Exception:  # a template may raise anything; then no text begins as its texts do
            return False
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        added = self._tokenizer.all_special_tokens if rust is None else rust.get_added_tokens_decoder().values()
        marks = tuple(mark for mark in map(str, added) if mark and mark in written)
        before = written.partition(_CONTENT)[0].strip()
        while found := next((mark for mark in marks if before.startswith(mark)), None):
            before = before.removeprefix(found).strip()
        begins = (*marks, before) if before else marks
        return text.lstrip().startswith(begins)

    @property
    def json(self) -> str | None:
        """The contents of a tokenizer.json, added tokens included; None for a tokenizer that is written in Python."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        return None if rust is None else rust.to_str()

    @property
    def first_token(self) -> int | None:
        """The token with which a text begins; if there is none, the end token."""
        token: int | None = self._tokenizer.bos_token_id
        return self.end_token if token is None else token

    @property
    def end_token(self) -> int | None:
        """The tokenizer's own end token, if it has one."""
        token: int | None = self._tokenizer.eos_token_id
        return token

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the tokens that the model expects at the beginning."""
        # not verbose: transformers' warning about long prompts would come before our error about them
        with _blaming_its_files("the model's tokenizer cannot encode text"):  # some parts are used only now
            tokens: list[int] = self._tokenizer.encode(text, verbose=False)
        return tokens

    def encode_part(self, text: str) -> list[int]:
        """The token ids of a text alone, without tokens of its beginning or end. Other threads may encode meanwhile."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        if rust is None:
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        else:  # not by transformers, which sets how texts are cut each time, also for who encodes beside
            tokens = rust.encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        hidden = not self._shown
        some = [token for token in tokens if hidden or token in self._shown or token not in self._special]
        text: str = self._tokenizer.decode(some, skip_special_tokens=hidden, clean_up_tokenization_spaces=False)
        return text

    def leaves_out(self, token: int) -> bool:
        """Whether decoding leaves this token out, whatever stands around it: a special token, or one without text."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        if token in self._special:
            return token not in self._shown
        return rust is not None and rust.id_to_token(token) is None

    @property
    def added(self) -> dict[str, bool]:
        """The texts of the tokens that were added to the vocabulary, such as `<|im_end|>`, each with whether decoding
        leaves it out."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        if rust is None:
            return dict.fromkeys(self._tokenizer.all_special_tokens, True)
        return {added.content: added.special for added in rust.get_added_tokens_decoder().values()}

    def showing(self, texts: Collection[str]) -> Tokenizer:
        """The same tokenizer, whose decoded text has these special tokens, too."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        shown = frozenset() if rust is None else self._special.intersection(map(rust.token_to_id, texts))
        return Tokenizer(self._tokenizer, shown) if shown else self

    @cached_property
    def _special(self) -> frozenset[int]:
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        if rust is None:
            return frozenset(self._tokenizer.all_special_ids)
        return frozenset(token for token, added in rust.get_added_tokens_decoder().items() if added.special)


def expect_whole(text: str, what: str) -> None:
    """Raise PromptError for text that cannot be encoded because it holds half of a pair of surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"{what} is not text: character {error.start} is half a character") from None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Within it, transformers does not advise how a checkpoint's files should have been written: a user cannot know
    what is meant, nor do anything about it. Several threads may be within it: the last one that leaves puts the level
    back that the first one found."""
    log = logging.getLogger("transformers")
    with _lock:
        _levels.append(log.level if not _levels else _levels[0])
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                log.setLevel(before)


@contextmanager
def _blaming_its_files(what: str) -> Iterator[None]:
    """Within it, whatever a tokenizer fails with becomes an error of one line about its files."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:
        # transformers raises what its many tokenizers raise; a panic of the one in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{what} ({_reason(error)}); fetch its files again") from error


def _reason(error: BaseException) -> str:
    """The line in which transformers says what is wrong with a tokenizer, or that it fails without such a word."""
    if isinstance(error, AttributeError | LookupError | NameError | RecursionError | TypeError):
        return "transformers cannot make sense of them, or of config.json"
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):  # it reads config.json, too: the next line says it
        lines = [f"config.json: {lines[0]} {re.sub(r'^[A-Za-z]+Error: ', '', lines[1].strip())}"]
    return re.sub(r"<class '([\w.]+)'>", r"\1", _first_line(error, lines)).replace("NoneType", "null")


def _first_line(error: BaseException, lines: Sequence[str] | None = None) -> str:
    lines = str(error).strip().splitlines() if lines is None else lines
    return cut(lines[0], 200) if lines else type(error).__name__


def _family(folder: Path) -> str | None:
    """The family of the model whose tokenizer a rehearsal has; None for any other checkpoint, which has its own."""
    try:
        named: Any = json.loads(read_bytes(folder / "config.json"))["rehearsal"][TOKENIZER_OF]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return named if isinstance(named, str) else None


def _configuration(folder: Path) -> Any:
    """For a rehearsal, transformers' configuration of the family whose tokenizer it has; else None."""
    family = _family(folder)
    if family is None:
        return None
    from transformers import AutoConfig

    return AutoConfig.for_model(family)


def _small_configuration(folder: Path) -> Any:
    """What transformers asks of a configuration to choose a kind of tokenizer. Its own classes import PyTorch's
    compiler, which takes half a second and 80 MB. None for a family that it does not know."""
    from transformers.models.auto.tokenization_auto import CONFIG_MAPPING_NAMES

    try:
        raw: Any = json.loads(read_bytes(folder / "config.json"))
        family = _family(folder) or raw["model_type"]
        name = CONFIG_MAPPING_NAMES[family]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    asked = {key: raw[key] for key in ("model_name", "tokenizer_class") if key in raw}
    return type(name, (), {**asked, "model_type": family, "_name_or_path": str(folder)})()


def _program(folder: Path) -> str:
    """What tokenizer_config.json names instead of a kind of tokenizer."""
    try:
        named: Any = json.loads(read_bytes(folder / "tokenizer_config.json"))["auto_map"]
        found: Any = named["AutoTokenizer"] if isinstance(named, dict) else named
        return cut(str(next(name for name in found if name)))
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return "auto_map"


# A panic of the tokenizer in Rust is printed before Python hears of it, and to print nothing would take standard error
# away from every thread and child of the process. So what is known to make it panic is looked for beforehand; all else
# becomes our error, too, below Rust's own words.


def _expect_sound_merges(file: Path) -> None:
    """Refuse, as a ValueError, merges that do not go on with the prefix of what goes on: the library cuts it off
    unseen, which ends in a panic, and where it takes memory for it, ends the process."""
    try:
        data = read_bytes(file)
        # a file of megabytes, which is read once more only for what hardly one has
        model = json.loads(data)["model"] if re.search(rb'"continuing_subword_prefix"\s*:\s*"[^"]', data) else {}
        prefix, merges = model["continuing_subword_prefix"], model["merges"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return  # what else is wrong with it is for the library to say
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(pair, list) and len(pair) == 2 and not str(pair[1]).startswith(prefix):
            raise ValueError(f"continuing_subword_prefix is {quoted(prefix)}, and not every merge goes on with it")


def _expect_sound_steps(rust: Any) -> None:
    """Refuse, as a ValueError, what a tokenizer would do with a text before and after it is cut, and panic over it."""
    for step in [*_steps(rust, "normalizer", "normalizers"), *_steps(rust, "post_processor", "processors")]:
        kind = step.get("type")
        if step.get("prepend") == "" or step.get("pattern") == {"String": ""}:
            raise ValueError(f"its normalizer {kind} has nothing to look for or to put")
        for piece in step.get("single", ()) if kind == "TemplateProcessing" else ():
            if piece.get("Sequence", {}).get("id") == "B":
                raise ValueError("its template for one text names a second")
            token = piece.get("SpecialToken", {}).get("id")
            if token is not None and token not in step["special_tokens"]:
                raise ValueError(f"its template names the token {quoted(token)}, which is not among its special_tokens")


def _steps(rust: Any, part: str, several: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer, as its file holds them, one or several."""
    found = getattr(rust, part, None)
    steps = [] if found is None else [json.loads(found.__getstate__())]
    for step in steps:  # which grows as it goes
        steps += step.get(several, ())
    return steps


def token_ids(prompt: Any) -> tuple[int, ...] | None:
    """Token ids from a list, tensor or array. None for anything else, such as bytes, truth values and fractions."""
    if isinstance(prompt, bytes | bytearray):
        return None
    try:
        if getattr(prompt, "ndim", 1) == 2 and len(prompt) == 1:  # a batch of one, as tokenizers give it
            prompt = prompt[0]
        items = list(prompt)
        return None if any(isinstance(item, bool) for item in items) else tuple(map(operator.index, items))
    except (TypeError, LookupError):  # a table of one row has no first item
        return None

"""Settings as dataclasses: one line a field, defaults in one place, unknown names refused with the nearest one."""

from __future__ import annotations

import json
import numbers
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from foretoken.errors import DraftSpecError, InputError, SettingError, cut, nearest, quoted


def _count(name: str, value: object, most: int | None = None, why: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(f"{name} is {quoted(value)}, expected a whole number, 1 or more")
    if most is not None and value > most:
        raise SettingError(f"{name} is {quoted(value)}, expected at most {most}{why}")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingError(f"{name} is {quoted(value)}, expected a whole number, {least} to {most}")


def _number(name: str, value: object, least: float, most: float, also: str = "", *, open_below: bool = False) -> None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not least <= value <= most
        or (open_below and value == least)
    ):
        span = f"above {least:g} to {most:g}" if open_below else f"{least:g} to {most:g}"
        raise SettingError(f"{name} is {quoted(value)}, expected {also}a number, {span}")


def _plain(value: Any) -> Any:
    """A number as Python's own, which others write down and compare; what is none stays what it is."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    except OverflowError:  # a fraction beyond what floats hold, which is refused as what it is
        return value


def _is_text(value: object) -> bool:
    """Whether it is text, and none that could never be written down: half a character is."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _json(name: str, value: Mapping[str, Any]) -> str:
    """As text. Parts that a dict shares are written out each time, which has no bound but this one."""
    if _is_larger(value, _MOST_JSON):
        wrong = f"which is more than {_MOST_JSON:,} characters of JSON; put what comes again under $defs, and point to "
        wrong += "it with $ref"
    else:
        try:
            return json.dumps(dict(value))
        except (TypeError, ValueError) as error:
            wrong = f"which JSON cannot hold ({error}); give plain dicts"
        except RecursionError:
            wrong = "which is nested too deeply; give it with fewer levels"
    shown = reprlib.Repr()  # whose size has a bound, too
    shown.maxlevel = shown.maxdict = shown.maxlist = 3
    raise SettingError(f"{name} is {cut(shown.repr(value))}, {wrong}")


def _is_larger(value: Mapping[str, Any], most: int) -> bool:
    """Whether a dict has at least so many characters as JSON; one that holds itself has."""
    pending: list[object] = [dict(value)]
    while pending and most > 0:
        part = pending.pop()
        if isinstance(part, dict):
            most -= sum(7 + len(key) if isinstance(key, str) else 7 for key in part)  # "key": 1, and a space
            pending += part.values()
        elif isinstance(part, list | tuple):
            most -= 3 * len(part)
            pending += part
        elif isinstance(part, str):
            most -= len(part)
    return most <= 0


def expect_threads(threads: object) -> None:
    """Refuse a number of threads of arithmetic that makes no sense here. None leaves it open."""
    if threads is None:
        return
    cores = os.cpu_count() or 1
    # 16 everywhere, so that what one machine wrote down can be tried on a smaller one
    why = f" on this machine: it has {cores} core{'s' * (cores > 1)}, and more threads than cores only wait"
    _count("threads", threads, max(16, cores), f"{why}; leave threads out, or give {cores}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        called = value if isinstance(value, str) else quoted(value)
        raise SettingError(f"{name} is {quoted(value)}{nearest(called, known)}")


MOST_DRAFT_TOKENS = 4096  # in a round
_MOST_JSON = 4 * 1024**2  # characters: a larger grammar is beyond the library, too


@dataclass(frozen=True)
class _Settings:
    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Settings from keywords; an unknown one is refused with the nearest known."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SettingError(f"there is no setting {quoted(name)}{nearest(name, known)}")
        return cls(**given)

    @classmethod
    def chosen(cls, ready: Self | None, given: Mapping[str, Any]) -> Self:
        """Settings ready-made, or from keywords."""
        if ready is None:
            return cls.of(given)
        if not isinstance(ready, cls):
            raise SettingError(f"settings came as {quoted(ready)}, expected them by name, or a {cls.__name__}")
        if given:
            raise SettingError(f"settings came both ready-made and by name ({cut(', '.join(given))}); give one of them")
        return ready


@dataclass(frozen=True)
class LoadSettings(_Settings):
    """How a model is loaded."""

    draft: str = "lookup"  # what drafts: a name, perhaps with options, or none; with commas between them, a ladder
    rule: str = "walk"  # by which drafts are judged when sampling: walk, or rejection (another text, one distribution)
    num_speculative_tokens: int | None = None  # most draft tokens a round; None: what suits the draft
    dtype: str = "auto"  # of the weights: auto (as in the checkpoint), bfloat16, float16 or float32
    device: str = "cpu"  # cpu or cuda
    promise: str = "auto"  # exact (on the CPU), algorithmic, or auto: exact wherever it can be kept
    weights: str = "auto"  # where they lie: mapped from their files, copied into memory, or auto: where that pays
    revision: str | None = None  # branch, tag or commit, for a model from the hub
    cache: bool = True  # keep keys and values; without, each pass computes the whole text (the same, where exact)
    threads: int | None = None  # of arithmetic; None: as many as PyTorch takes
    prefill_chunk: int = 256  # rows of prompts read in one pass
    rows_per_pass: int = 8192  # of prompts and drafts together, where that leaves each sequence one

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise SettingError(f"device is {quoted(self.device)}, expected cpu, cuda or cuda:NUMBER")
        _one_of("promise", self.promise, ("auto", "exact", "algorithmic"))
        if self.promise == "exact" and self.device != "cpu":
            raise SettingError(
                f"promise is 'exact', but device is {quoted(self.device)}: that a GPU keeps rows independent has not "
                "been shown; use the CPU, or promise 'auto'"
            )
        _one_of("weights", self.weights, ("auto", "mapped", "copied"))
        _one_of("rule", self.rule, ("walk", "rejection"))
        if self.promise == "exact" and self.rule == "rejection":
            raise SettingError(
                "promise is 'exact', but rule is 'rejection', which keeps the distribution of what is sampled, not its "
                "tokens; use rule 'walk', or promise 'auto'"
            )
        if not isinstance(self.draft, str):
            raise SettingError(f"draft is {quoted(self.draft)}, expected text, such as 'lookup' or 'none'")
        if self.revision is not None and not (_is_text(self.revision) and self.revision):
            raise SettingError(f"revision is {quoted(self.revision)}, expected text: a branch, tag or commit")
        if not isinstance(self.cache, bool):
            raise SettingError(f"cache is {quoted(self.cache)}, expected True or False")
        _count("prefill_chunk", self.prefill_chunk, 65_536)
        _count("rows_per_pass", self.rows_per_pass, 65_536)
        if self.num_speculative_tokens is not None:
            _count("num_speculative_tokens", self.num_speculative_tokens, MOST_DRAFT_TOKENS)
        expect_threads(self.threads)


@dataclass(frozen=True)
class GenerateSettings(_Settings):
    """How one text is generated. Greedily, unless a temperature is given."""

    max_new_tokens: int = 128  # stop after so many, if no end token came and the context is not full
    ignore_eos: bool = False  # go on after an end token
    stop: str | Sequence[str] = ()  # stop where the text comes to one of these, and cut it there
    temperature: float = 0.0  # 0: greedily; 1: as the model's probabilities are
    top_k: int = 0  # sample from the k likeliest tokens; 0: all
    top_p: float = 1.0  # sample from the fewest tokens that are this probable together
    min_p: float = 0.0  # sample from tokens at least this part as probable as the likeliest
    repetition_penalty: float = 1.0  # divides the logits of tokens in prompt and output (multiplies negative ones)
    presence_penalty: float = 0.0  # taken from the logits of tokens in the output
    frequency_penalty: float = 0.0  # taken from them once for each time that they are there
    logit_bias: Mapping[int, float] | None = None  # added to the logits of single tokens, by id
    seed: int | None = None  # of the dice; None: drawn, and told in the completion
    n: int = 1  # how many completions, each with dice of its own: for `completions`
    regex: str | None = None  # the output matches this regular expression, from beginning to end
    json_schema: str | Mapping[str, Any] | None = None  # the output is JSON of this schema: text, or what json reads
    logprobs: int | None = None  # return each token's log probability, and those of so many of the likeliest
    keep_logits: bool = False  # return the logits that each token was chosen from
    hash_logits: bool = False  # return their SHA-256, for which they need not be kept
    keep_rounds: bool = False  # return what each round did: see `Stats` for the sums
    audit: bool = False  # decode again plainly, and compare

    def __post_init__(self) -> None:
        super().__post_init__()
        _count("max_new_tokens", self.max_new_tokens)
        _count("n", self.n, 256)
        for name in ("ignore_eos", "keep_logits", "hash_logits", "keep_rounds", "audit"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is {quoted(getattr(self, name))}, expected True or False")
        greedy = isinstance(self.temperature, int | float) and self.temperature == 0.0
        if not greedy:  # below a thousandth, logits overflow; greedy is what is meant
            _number("temperature", self.temperature, 0.001, 100.0, "0 (greedy), or ")
        _number("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _whole("top_k", self.top_k, 0, 2**31)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, 100)
        self._expect_bias()
        several = isinstance(self.stop, Sequence) and not isinstance(self.stop, bytes | bytearray)
        wrong = [text for text in self.stops if not _is_text(text) or not text] if several else [self.stop]
        if wrong:
            raise SettingError(f"stop is {quoted(wrong[0])}, expected a text or several, none of them empty")
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", _json("json_schema", self.json_schema))  # text from here on
        for name in ("regex", "json_schema"):
            if getattr(self, name) is not None and not _is_text(getattr(self, name)):
                raise SettingError(f"{name} is {quoted(getattr(self, name))}, expected text")
        if self.regex is not None and self.json_schema is not None:
            raise SettingError("regex and json_schema were both given; give one of them")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, one or several."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def constraint(self) -> tuple[str, str] | None:
        """The grammar that the output must follow: its kind and its text."""
        if self.regex is not None:
            return ("regex", self.regex)
        return None if self.json_schema is None else ("json_schema", str(self.json_schema))

    def _expect_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise SettingError(f"logit_bias is {quoted(self.logit_bias)}, expected token ids with a number each")
        object.__setattr__(self, "logit_bias", {_plain(token): _plain(bias) for token, bias in self.logit_bias.items()})
        for token, bias in self.logit_bias.items():
            _whole("a token of logit_bias", token, 0, 2**31)
            _number(f"the logit_bias of token {token}", bias, -1000.0, 1000.0)


def expect_repeatable(rule: str, settings: GenerateSettings, what: str, error: type[InputError] = SettingError) -> None:
    """Refuse, with an `error`, what needs the same tokens to come again where the rule does not promise them."""
    if rule == "rejection" and settings.temperature > 0:
        raise error(
            f"{what} needs tokens that come again, and rule 'rejection' keeps their distribution only: another draft "
            "gives another text; use rule 'walk', or temperature 0"
        )


# int, float, the words that an option may be, bool: it is given, or not; list: numbers from 0 up, with + between them
OptionKind = type | tuple[str, ...]


@dataclass(frozen=True)
class DraftLevel:
    """One level of a draft: `NAME` or `NAME:option=value:...`; an option that is a name alone has the value ""."""

    name: str
    options: Mapping[str, str]

    def values(self, known: Mapping[str, OptionKind]) -> dict[str, Any]:
        """The options as what they are; an unknown one is refused."""
        values: dict[str, Any] = {}
        for key, text in self.options.items():
            if not known:
                raise DraftSpecError(f"draft {quoted(self.name)} takes no options; leave {quoted(key, 30)} out")
            if key not in known:
                raise DraftSpecError(f"draft {quoted(self.name)} has no option {quoted(key, 30)}{nearest(key, known)}")
            values[key] = self._value(key, text, known[key])
        return values

    def _value(self, key: str, text: str, kind: OptionKind) -> int | float | str | tuple[int, ...]:
        if kind is bool:
            if text:
                raise DraftSpecError(f"draft {quoted(self.name)}: {key} takes no value; leave {quoted(text, 30)} out")
            return True
        if not text:
            raise DraftSpecError(f"draft {quoted(self.name)}: {quoted(key, 30)} has no value; expected {key}=...")
        if isinstance(kind, tuple):
            if text not in kind:
                raise DraftSpecError(f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}{nearest(text, kind)}")
            return text
        if kind is list:
            if not re.fullmatch(r"[0-9]{1,4}(\+[0-9]{1,4})*", text):
                raise DraftSpecError(
                    f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected whole numbers with + between "
                    "them, such as 2+4+6"
                )
            return tuple(map(int, text.split("+")))
        if kind is int:
            if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
                raise DraftSpecError(
                    f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected a whole number, 1 to 9999"
                )
            return int(text)
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or not float(text) > 0:
            raise DraftSpecError(
                f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected a number above 0, such as 0.2"
            )
        return float(text)


def parse_draft(spec: str) -> tuple[DraftLevel, ...]:
    """Levels of a draft, nearest to the target first: commas between levels, colons between options."""
    if not spec.strip():
        raise DraftSpecError(
            f"draft is {quoted(spec, 30)}, expected a name, such as 'lookup', or 'none' for plain decoding"
        )
    levels = []
    for part in spec.split(","):
        called = quoted(part.strip())
        name, *pairs = part.strip().split(":")
        options: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not key or (equals and not value):
                raise DraftSpecError(f"draft {called}: {quoted(pair, 30)} is not an option; expected name=value")
            if key in options:
                raise DraftSpecError(f"draft {called} gives {quoted(key, 30)} twice; give it once")
            options[key] = value
        if not name:
            raise DraftSpecError(f"draft {quoted(spec)} has an empty level; expected names with commas between them")
        levels.append(DraftLevel(name, options))
    return tuple(levels)

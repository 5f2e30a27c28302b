"""How a text is generated. The comment above a setting is what docs/python.md says of it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.errors import InputError, SettingError, cut, quoted
from foretoken.settings.values import Settings, count, is_text, number, plain, whole

# the settings that give a grammar, with the kind that each is
_KINDS = {"regex": "regex", "json_schema": "json_schema", "grammar": "lark"}
SETTING_OF = {kind: name for name, kind in _KINDS.items()}
_MOST_JSON = 4 * 1024**2  # characters: a larger grammar is beyond the library, too


@dataclass(frozen=True)
class GenerateSettings(Settings):
    """How one text is generated. Greedily, unless a temperature is given."""

    # Stop after this many new tokens. An end token, a stop string or a full context can end the text earlier.
    max_new_tokens: int = 128
    # Whether to continue after an end token.
    ignore_eos: bool = False
    # A stop string, or several. The text ends before the one that is complete first in the output.
    stop: str | Sequence[str] = ()
    # Whether the text keeps the stop string that ended it.
    keep_stop: bool = False
    # Token ids that end the text, besides the model's own end tokens. They do so even with `ignore_eos`.
    stop_tokens: Sequence[int] = ()
    # How varied the text is. 0 is greedy: the likeliest token every time. 1 samples from the model's own probabilities.
    temperature: float = 0.0
    # Sample from this many of the likeliest tokens only. With 0, from all tokens.
    top_k: int = 0
    # Sample from the smallest set of likeliest tokens whose probabilities sum to at least this.
    top_p: float = 1.0
    # Sample only from tokens that have at least this share of the likeliest token's probability.
    min_p: float = 0.0
    # Makes tokens of the prompt and the output less likely, if above 1: it divides their positive logits and multiplies
    # their negative ones.
    repetition_penalty: float = 1.0
    # Makes tokens of the output less likely, if above 0: it is subtracted once from the logit of each.
    presence_penalty: float = 0.0
    # Makes tokens of the output less likely, if above 0: it is subtracted from the logit once for each time that the
    # token appears.
    frequency_penalty: float = 0.0
    # Numbers to add to the logits of single tokens: a dict from token id to number.
    logit_bias: Mapping[int, float] | None = None
    # The seed of the random numbers. With None, a seed is drawn, and the completion has it.
    seed: int | None = None
    # How many completions to generate, each with random numbers of its own. Only `completions` takes more than 1.
    n: int = 1
    # A regular expression. The whole output matches it.
    regex: str | None = None
    # A JSON schema, as text or as a dict. The output is JSON that follows it.
    json_schema: str | Mapping[str, Any] | None = None
    # A grammar in llguidance's Lark syntax. The whole output follows it.
    grammar: str | None = None
    # Return the log probability of each token, and those of this many of the likeliest tokens at its place. With None,
    # none.
    logprobs: int | None = None
    # Return the log probability of each of the prompt's tokens but the first, and those of this many of the likeliest
    # tokens at its place. The whole prompt is read for this. With None, none.
    prompt_logprobs: int | None = None
    # Whether to return the logits that each token was chosen from.
    keep_logits: bool = False
    # Whether to return a SHA-256 of these logits. The logits need not be kept for this.
    hash_logits: bool = False
    # Whether to return a `RoundRecord` for each round. `Stats` has their sums without this setting.
    keep_rounds: bool = False
    # Whether to decode the prompt once more plainly, and compare.
    audit: bool = False
    # Only for a model on a host: text behind the prompt that the host never sees, and nothing that follows it. The
    # client's draft writes the answer alone, and nobody checks it. It must be a model.
    private_suffix: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count("max_new_tokens", self.max_new_tokens)
        count("n", self.n, 256)
        for name in ("ignore_eos", "keep_stop", "keep_logits", "hash_logits", "keep_rounds", "audit"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is {quoted(getattr(self, name))}, expected True or False")
        greedy = isinstance(self.temperature, int | float) and self.temperature == 0.0
        if not greedy:  # below a thousandth, logits overflow; greedy is what is meant
            number("temperature", self.temperature, 0.001, 100.0, "0 (greedy), or ")
        number("top_p", self.top_p, 0.0, 1.0, open_below=True)
        number("min_p", self.min_p, 0.0, 1.0)
        number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        whole("top_k", self.top_k, 0, 2**31)
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 0, 100)
        self._expect_bias()
        self._expect_stop_tokens()
        several = isinstance(self.stop, Sequence) and not isinstance(self.stop, bytes | bytearray)
        wrong = [text for text in self.stops if not is_text(text) or not text] if several else [self.stop]
        if wrong:
            raise SettingError(f"stop is {quoted(wrong[0])}, expected a text or several, none of them empty")
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", _json("json_schema", self.json_schema))  # text from here on
        for name in _KINDS:
            if getattr(self, name) is not None and not is_text(getattr(self, name)):
                raise SettingError(f"{name} is {quoted(getattr(self, name))}, expected text")
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingError(f"{given[0]} and {given[1]} were both given; give one of them")
        if self.private_suffix is None:
            return
        if not is_text(self.private_suffix) or not self.private_suffix:
            raise SettingError(f"private_suffix is {quoted(self.private_suffix)}, expected text")
        if self.n != 1 or self.constraint is not None or self.audit or self.keeps_logits:
            raise SettingError(
                "private_suffix leaves the model out, so n, regex, json_schema, grammar, audit and logits cannot be "
                "had with it; leave them out"
            )

    def again(self, seed: int | None) -> GenerateSettings:
        """The same for a text that is asked for once more, with the seed that it had. Raises SettingError for several
        texts, and for one of which the host sees a part alone."""
        if self.n != 1 or self.private_suffix is not None:
            raise SettingError("n and private_suffix are for other texts than the host may check again; leave them out")
        return replace(self, seed=self.seed if seed is None else seed)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, one or several."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def keeps_logits(self) -> bool:
        """Whether the logits of each token are wanted."""
        wanted = self.logprobs is not None or self.prompt_logprobs is not None
        return self.keep_logits or self.hash_logits or wanted

    @property
    def constraint(self) -> tuple[str, str] | None:
        """The grammar that the output must follow: its kind (regex, json_schema or lark) and its text."""
        for name, kind in _KINDS.items():
            if getattr(self, name) is not None:
                return (kind, str(getattr(self, name)))
        return None

    def _expect_stop_tokens(self) -> None:
        given = self.stop_tokens
        if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
            raise SettingError(f"stop_tokens is {quoted(given)}, expected token ids")
        tokens = tuple(map(plain, given))
        if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in tokens):
            raise SettingError(f"stop_tokens is {quoted(given)}, expected token ids, each a whole number, 0 or more")
        object.__setattr__(self, "stop_tokens", tokens)

    def _expect_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise SettingError(f"logit_bias is {quoted(self.logit_bias)}, expected token ids with a number each")
        object.__setattr__(self, "logit_bias", {plain(token): plain(bias) for token, bias in self.logit_bias.items()})
        for token, bias in self.logit_bias.items():
            whole("a token of logit_bias", token, 0, 2**31)
            number(f"the logit_bias of token {token}", bias, -1000.0, 1000.0)


def expect_repeatable(rule: str, settings: GenerateSettings, what: str, error: type[InputError] = SettingError) -> None:
    """Refuse, with an `error`, what needs the same tokens to come again where the rule does not promise them."""
    if rule == "rejection" and settings.temperature > 0:
        raise error(
            f"{what} needs tokens that come again, and rule 'rejection' keeps their distribution only: another draft "
            "gives another text; use rule 'walk', or temperature 0"
        )


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

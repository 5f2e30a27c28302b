"""What a record looks like, and how one is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretoken.common.files import read_bytes
from foretoken.errors import TranscriptError, cut, quoted
from foretoken.settings.generate import GenerateSettings

FORMAT, VERSION = "foretoken transcript", 2
# of loading, what may decide a bit under some engine; the number of threads is told with the engine. The rule is not
# among them: what is recorded is what the walk gives, or greedy decoding, which is the same under any
LOAD_SETTINGS = ("draft", "num_speculative_tokens", "dtype", "device", "promise", "weights", "prefill_chunk")
GENERATE_SETTINGS = (
    "max_new_tokens",
    "ignore_eos",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "regex",
    "json_schema",
)


# what records of before it came do not tell, with what it was then
LATER_LOAD_SETTINGS: dict[str, Any] = {"cache": True, "context": None}
LATER_GENERATE_SETTINGS: dict[str, Any] = {"keep_stop": False, "stop_tokens": (), "grammar": None}


def read(path: Path) -> dict[str, Any]:
    """A record whose fields are all there and of the right kind. What settings may be is for the settings to say."""
    try:
        content = json.loads(read_bytes(path))
    except OSError as error:
        raise TranscriptError(f"{path} cannot be read ({error.strerror}); name the file of a record") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise TranscriptError(
            f"{path} is not JSON ({cut(reason, 80)}); it may be cut short: expected a record"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TranscriptError(f"{path} is not a record of a generation; expected one that `generate --record` wrote")
    version = content.get("version")
    if not _is_whole(version) or version != VERSION:
        raise TranscriptError(
            f"{path} is a record of version {quoted(version, 20)}, expected {VERSION}; verify it with the Foretoken "
            "that wrote it, or record it again"
        )
    for name, (fits, expected) in _FIELDS.items():
        value: Any = content
        for key in name.split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise TranscriptError(f"{path} lacks {name}; it is no whole record: record it again")
            value = value[key]
        if not fits(value):
            raise TranscriptError(f"{path}: {name} is {quoted(value)}, expected {expected}; record it again")
    _expect_dice(path, content["settings"])
    return content


def settings_to_json(settings: GenerateSettings, seed: int | None) -> dict[str, Any]:
    """The settings that decide what is generated, as a record holds them. seed: the one that was used."""
    told = {name: getattr(settings, name) for name in (*GENERATE_SETTINGS, *LATER_GENERATE_SETTINGS)}
    bias = None if settings.logit_bias is None else {str(token): bias for token, bias in settings.logit_bias.items()}
    return {**told, "stop": list(settings.stops), "logit_bias": bias, "seed": seed}


def settings_from_json(told: Mapping[str, Any]) -> GenerateSettings:
    """Settings from a record. Raises SettingError where one makes no sense."""
    wanted = {name: told[name] for name in GENERATE_SETTINGS}
    wanted |= {name: told.get(name, before) for name, before in LATER_GENERATE_SETTINGS.items()}
    if wanted["logit_bias"] is not None:
        wanted["logit_bias"] = {int(token): bias for token, bias in wanted["logit_bias"].items()}
    return GenerateSettings(**wanted, hash_logits=True)


def _expect_dice(path: Path, settings: Mapping[str, Any]) -> None:
    """What was sampled comes again only from the seed that it came from."""
    seed, sampled = settings["seed"], settings["temperature"] != 0
    if sampled == (seed is None):
        why = "a whole number, because tokens were sampled" if sampled else "null, because decoding is greedy"
        raise TranscriptError(f"{path}: settings.seed is {quoted(seed)}, expected {why}; record it again")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bias_or_null(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(re.fullmatch(r"[0-9]{1,10}", token) for token in value)


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(_is_whole(item) and item >= 0 for item in value)


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _are_hashes(value: object) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(_is_hash(item) for item in value.values())


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_is_text, "text"),
    "revision": (_is_text_or_null, "text or null"),
    "prompt.text": (_is_text_or_null, "text or null"),
    "prompt.tokens": (_are_tokens, "token ids"),
    **{f"settings.{name}": (lambda value: True, "a setting") for name in (*LOAD_SETTINGS, *GENERATE_SETTINGS)},
    "settings.stop": (_are_texts, "texts"),
    "settings.temperature": (_is_number, "a number"),
    "settings.logit_bias": (_is_bias_or_null, "null, or token ids with a number each"),
    "settings.seed": (lambda value: value is None or _is_whole(value), "a whole number, or null"),
    "settings.regex": (_is_text_or_null, "text or null"),
    "settings.json_schema": (_is_text_or_null, "text or null"),
    "promise": (lambda value: value in ("exact", "algorithmic"), "exact or algorithmic"),
    "arithmetic.engine": (lambda value: value in ("native", "pytorch", "triton"), "native, pytorch or triton"),
    "tokens": (_are_tokens, "token ids"),
    "text": (_is_text, "text"),
    "finish_reason": (lambda value: value in ("stop", "length"), "stop or length"),
    "stop_string": (_is_text_or_null, "text or null"),
    "logits_sha256": (_is_hash, "64 hexadecimal digits"),
    "files": (_are_hashes, "names of files with 64 hexadecimal digits each"),
    "provenance.versions.foretoken": (_is_text_or_null, "text or null"),
}

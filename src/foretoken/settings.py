"""Settings as dataclasses: one line a field, defaults in one place, unknown names refused with the nearest one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from foretoken.errors import DraftSpecError, SettingError, nearest


def _count(name: str, value: object, most: int | None = None, why: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(f"{name} is {value!r}, expected a whole number, 1 or more")
    if most is not None and value > most:
        raise SettingError(f"{name} is {value!r}, expected at most {most}{why}")


def expect_threads(threads: object) -> None:
    """Refuse a number of threads of arithmetic that makes no sense here. None leaves it open."""
    if threads is None:
        return
    cores = os.cpu_count() or 1
    # 16 everywhere, so that what one machine wrote down can be tried on a smaller one
    why = f" on this machine: it has {cores} core{'s' * (cores > 1)}, and more threads than cores only wait"
    _count("threads", threads, max(16, cores), f"{why}; leave threads out, or give {cores}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingError(f"{name} is {value!r}{nearest(str(value), known)}")


class _Settings:
    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Settings from keywords; an unknown one is refused with the nearest known."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise SettingError(f"there is no setting {name!r}{nearest(name, known)}")
        return cls(**given)


@dataclass(frozen=True)
class LoadSettings(_Settings):
    """How a model is loaded."""

    draft: str = "lookup"  # what drafts: a name, perhaps with options, or none for plain decoding
    num_speculative_tokens: int | None = None  # most draft tokens a round; None: what suits the draft
    dtype: str = "auto"  # of the weights: auto (as in the checkpoint), bfloat16, float16 or float32
    device: str = "cpu"  # cpu or cuda
    promise: str = "auto"  # exact (on the CPU), algorithmic, or auto: exact wherever it can be kept
    weights: str = "mapped"  # where they lie, on the CPU: mapped from their files, or copied into memory of their own
    revision: str | None = None  # branch, tag or commit, for a model from the hub
    threads: int | None = None  # of arithmetic; None: as many as PyTorch takes
    prefill_chunk: int = 256  # rows of the prompt read in one pass

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise SettingError(f"device is {self.device!r}, expected cpu, cuda or cuda:NUMBER")
        _one_of("promise", self.promise, ("auto", "exact", "algorithmic"))
        if self.promise == "exact" and self.device != "cpu":
            raise SettingError(
                f"promise is 'exact', but device is {self.device!r}: that a GPU keeps rows independent has not been "
                "shown; use the CPU, or promise 'auto'"
            )
        _one_of("weights", self.weights, ("mapped", "copied"))
        if not isinstance(self.draft, str):
            raise SettingError(f"draft is {self.draft!r}, expected text, such as 'lookup' or 'none'")
        _count("prefill_chunk", self.prefill_chunk, 65_536)
        if self.num_speculative_tokens is not None:
            _count("num_speculative_tokens", self.num_speculative_tokens, 4096)
        expect_threads(self.threads)


@dataclass(frozen=True)
class GenerateSettings(_Settings):
    """How one text is generated."""

    max_new_tokens: int = 128  # stop after so many, if no end token came and the context is not full
    ignore_eos: bool = False  # go on after an end token
    keep_logits: bool = False  # return the logits that each token was chosen from
    hash_logits: bool = False  # return their SHA-256, for which they need not be kept
    audit: bool = False  # decode again plainly, and compare

    def __post_init__(self) -> None:
        _count("max_new_tokens", self.max_new_tokens)
        for name in ("ignore_eos", "keep_logits", "hash_logits", "audit"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is {getattr(self, name)!r}, expected True or False")


@dataclass(frozen=True)
class DraftLevel:
    """One level of a draft: `NAME` or `NAME:option=value:...`."""

    name: str
    options: Mapping[str, str]

    def integers(self, known: Mapping[str, type]) -> dict[str, int]:
        """The options as whole numbers; an unknown one is refused."""
        values: dict[str, int] = {}
        for key, text in self.options.items():
            if key not in known:
                raise DraftSpecError(f"draft {self.name!r} has no option {key!r}{nearest(key, known)}")
            if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
                raise DraftSpecError(f"draft {self.name!r}: {key} is {text!r:.30}, expected a whole number, 1 to 9999")
            values[key] = int(text)
        return values


def parse_draft(spec: str) -> tuple[DraftLevel, ...]:
    """Levels of a draft, nearest to the target first: commas between levels, colons between options."""
    if not spec.strip():
        raise DraftSpecError(f"draft is {spec!r:.30}, expected a name, such as 'lookup', or 'none' for plain decoding")
    levels = []
    for part in spec.split(","):
        name, *pairs = part.strip().split(":")
        options: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key or not value:
                raise DraftSpecError(f"draft {part.strip()!r}: {pair!r} is not an option; expected name=value")
            if key in options:
                raise DraftSpecError(f"draft {part.strip()!r} gives {key!r} twice; give it once")
            options[key] = value
        if not name:
            raise DraftSpecError(f"draft {spec!r} has an empty level; expected names with commas between them")
        levels.append(DraftLevel(name, options))
    return tuple(levels)

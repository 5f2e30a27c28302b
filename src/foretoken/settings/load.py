"""How a model is loaded: one line for each setting, with its default."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from foretoken.errors import SettingError, quoted
from foretoken.settings.values import Settings, count, is_text, one_of

MOST_DRAFT_TOKENS = 4096  # in a round
_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class LoadSettings(Settings):
    """How a model is loaded."""

    draft: str = "lookup"  # what drafts: a name, with options if any; names with commas: a ladder; none: plain decoding
    rule: str = "walk"  # judges drafts when sampling: walk (same tokens), or rejection (same distribution, other text)
    num_speculative_tokens: int | None = None  # most draft tokens a round; None: the default of the draft
    dtype: str = "auto"  # type of the weights: auto (the checkpoint's), bfloat16 (bf16), float16 (fp16), float32 (fp32)
    device: str = "cpu"  # cpu, cuda or cuda:NUMBER
    promise: str = "auto"  # exact (only on the CPU), algorithmic, or auto: exact wherever it can be kept
    weights: str = "auto"  # where weights lie: mapped from their files, copied into memory, or auto: copied if it pays
    revision: str | None = None  # branch, tag or commit, for a model from the hub
    cache: bool = True  # keep keys and values; False: each pass computes the whole text (where exact, the same output)
    threads: int | None = None  # threads of arithmetic; None: as many as PyTorch takes
    prefill_chunk: int = 256  # most rows of prompts in one pass
    rows_per_pass: int = 8192  # most rows of prompts and drafts in one pass, but at least one for each sequence
    shared_rows: int = 16  # most rows when several sequences draft in one pass, roots included; 16 sequences draft none

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", _SHORT_DTYPES.get(self.dtype, self.dtype))
        one_of("dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise SettingError(f"device is {quoted(self.device)}, expected cpu, cuda or cuda:NUMBER")
        one_of("promise", self.promise, ("auto", "exact", "algorithmic"))
        if self.promise == "exact" and self.device != "cpu":
            raise SettingError(
                f"promise is 'exact', but device is {quoted(self.device)}: that a GPU keeps rows independent has not "
                "been shown; use the CPU, or promise 'auto'"
            )
        one_of("weights", self.weights, ("auto", "mapped", "copied"))
        one_of("rule", self.rule, ("walk", "rejection"))
        if self.promise == "exact" and self.rule == "rejection":
            raise SettingError(
                "promise is 'exact', but rule is 'rejection', which keeps the distribution of what is sampled, not its "
                "tokens; use rule 'walk', or promise 'auto'"
            )
        if not isinstance(self.draft, str):
            raise SettingError(f"draft is {quoted(self.draft)}, expected text, such as 'lookup' or 'none'")
        if self.revision is not None and not (is_text(self.revision) and self.revision):
            raise SettingError(f"revision is {quoted(self.revision)}, expected text: a branch, tag or commit")
        if not isinstance(self.cache, bool):
            raise SettingError(f"cache is {quoted(self.cache)}, expected True or False")
        count("prefill_chunk", self.prefill_chunk, 65_536)
        count("rows_per_pass", self.rows_per_pass, 65_536)
        count("shared_rows", self.shared_rows, 65_536)
        if self.num_speculative_tokens is not None:
            count("num_speculative_tokens", self.num_speculative_tokens, MOST_DRAFT_TOKENS)
        expect_threads(self.threads)


def expect_threads(threads: object) -> None:
    """Refuse a number of threads of arithmetic that makes no sense on this machine. None: the number is left open."""
    if threads is None:
        return
    cores = os.cpu_count() or 1
    # at least 16 are allowed everywhere, so that settings written on a large machine can be tried on a smaller one
    why = f" on this machine: it has {cores} core{'s' * (cores > 1)}, and more threads than cores only wait"
    count("threads", threads, max(16, cores), f"{why}; leave threads out, or give {cores}")

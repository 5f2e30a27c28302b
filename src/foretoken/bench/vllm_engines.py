"""Engines of vLLM, and one of our own beside them, each in a process of its own, for measurements and tests."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, NamedTuple

from foretoken.api.build import load
from foretoken.errors import ForetokenError, SettingError

_MATCH = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # tokens of vLLM's n-grams
_OURS = {"method": "custom_class", "model": "foretoken.integrations.vllm.Proposer"}
COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")  # as vLLM calls them
_OPENMP = "libiomp5.so"  # of the package intel-openmp; vLLM asks for it where it speculates
_SETTLES = 1.5  # seconds for which another engine's worker still looks for work without sleeping
_FEW = 2  # cores, one of which vLLM's scheduler would take by looking for work without sleeping: it shares the process
_HERE: dict[str, Callable[..., Answer]] = {}  # in an engine's process: what generates


class Asked(NamedTuple):
    """What all engines have in common. length: the most tokens of a text. together: the most texts at once."""

    model: str
    dtype: str
    length: int
    together: int


class Answer(NamedTuple):
    """What came of one call. counts: drafts, their tokens, and those that were accepted. cached: tokens of prompts that
    were not read, because another request had read them. taken_out: how often vLLM has taken a request out to begin it
    again later."""

    texts: list[list[int]]
    seconds: float
    counts: tuple[int, ...]
    cached: int = 0
    taken_out: int = 0


class Engine:
    """An engine in a new process. It ends with the `with` block. prepare: called there, with `given`, to load it."""

    def __init__(self, prepare: Callable[..., Callable[..., Answer]], *given: Any) -> None:
        with_openmp = openmp()
        if with_openmp is not None and _OPENMP not in os.environ.get("LD_PRELOAD", ""):
            # for processes that begin later: this one has loaded an OpenMP library already
            os.environ["LD_PRELOAD"] = ":".join(filter(None, (str(with_openmp), os.environ.get("LD_PRELOAD"))))
        self._process = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            self._process.submit(_prepare, prepare, given).result()
        except BaseException:
            self._process.shutdown()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.shutdown()

    def generate(self, prompts: Sequence[list[int]], tokens: int, **sampling: Any) -> Answer:
        """Continue prompts, all at once, by so many tokens each. sampling: greedy, if nothing is said."""
        return self._process.submit(_generate, prompts, tokens, sampling).result()


def vllm(asked: Asked, settings: dict[str, Any]) -> Engine:
    """An engine of vLLM's. settings: of vLLM, more than the usual ones. Raises SettingError if vLLM refuses them."""
    return Engine(_vllm, asked, settings)


def own(asked: Asked, draft: str) -> Engine:
    """Foretoken's own engine, with a draft."""
    return Engine(_own, asked, draft)


def n_grams(most: int) -> dict[str, Any]:
    """vLLM's settings for its own n-grams. most: the most tokens of a draft."""
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": most, **_MATCH}}


def drafted(draft: str, most: int, **more: Any) -> dict[str, Any]:
    """vLLM's settings for a draft of ours. more: others of our settings."""
    return {
        "speculative_config": {**_OURS, "num_speculative_tokens": most},
        "additional_config": {"foretoken": {"draft": draft, **more}},
    }


def openmp() -> Path | None:
    """The OpenMP library that vLLM's makers ask for, if it is installed."""
    place = Path(sysconfig.get_path("data")) / "lib" / _OPENMP
    return place if place.exists() else None


def _prepare(prepare: Callable[..., Callable[..., Answer]], given: tuple[Any, ...]) -> None:
    _HERE["generate"] = prepare(*given)


def _generate(prompts: Sequence[list[int]], tokens: int, sampling: dict[str, Any]) -> Answer:
    answer = _HERE["generate"](prompts, tokens, sampling)
    lengths = {len(text) for text in answer.texts}
    if lengths != {tokens}:
        raise ForetokenError(f"an engine gave texts of {sorted(lengths)} tokens, expected {tokens} of each")
    return answer


def _vllm(asked: Asked, settings: dict[str, Any]) -> Callable[..., Answer]:
    workers, cores = settings.get("tensor_parallel_size", 1), sorted(os.sched_getaffinity(0))
    each = [cores[at::workers] or cores for at in range(workers)]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(",".join(map(str, its)) for its in each))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "enforce_eager": True, "enable_prefix_caching": False}
    usual |= {"max_model_len": asked.length, "max_num_seqs": asked.together, "disable_log_stats": False}
    if len(cores) <= _FEW:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    else:
        usual["distributed_executor_backend"] = "mp"  # else vLLM binds no threads
    from vllm import LLM, SamplingParams

    try:
        llm: Any = LLM(model=asked.model, dtype=asked.dtype, **{**usual, **settings})
    except Exception as error:  # vLLM's own would not come through
        raise SettingError(f"vLLM does not load {asked.model} with {settings}: {error}") from None

    def counts() -> tuple[int, ...]:
        found = {metric.name: metric for metric in llm.get_metrics()}
        names = (*(f"spec_decode_{name}" for name in COUNTS), "num_preemptions")
        return tuple(int(getattr(found.get(f"vllm:{name}"), "value", 0)) for name in names)

    def generate(prompts: Sequence[list[int]], tokens: int, sampling: dict[str, Any]) -> Answer:
        sleep(_SETTLES)
        before, began = counts(), perf_counter()
        done = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(**{"temperature": 0, **sampling}, max_tokens=tokens, ignore_eos=True, detokenize=False),
            use_tqdm=False,
        )
        seconds = perf_counter() - began
        *drafts, taken_out = (one - other for one, other in zip(counts(), before, strict=True))
        texts = [list(each.outputs[0].token_ids) for each in done]
        return Answer(texts, seconds, tuple(drafts), sum(each.num_cached_tokens or 0 for each in done), taken_out)

    return generate


def _own(asked: Asked, draft: str) -> Callable[..., Answer]:
    model = load(asked.model, draft=draft)

    def generate(prompts: Sequence[list[int]], tokens: int, sampling: dict[str, Any]) -> Answer:
        sleep(_SETTLES)
        began = perf_counter()
        done = model.generate_many(prompts, at_once=asked.together, max_new_tokens=tokens, ignore_eos=True, **sampling)
        seconds = perf_counter() - began
        levels = [each.stats.levels[0] for each in done if each.stats.levels]
        drafts = sum(each.stats.passes for each in done)
        counts = (drafts, sum(its.draft_tokens for its in levels), sum(its.accepted_tokens for its in levels))
        return Answer([list(each.tokens) for each in done], seconds, counts)

    return generate

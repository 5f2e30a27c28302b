"""A small world to run drafters in: a tiny target, prompts, and what plain decoding makes of them.

The target is built so that every drafter has something to do: attention and feed-forward are weak, so the next token
depends mostly (not only) on the last one. Earlier text therefore predicts later text often, and not always.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.streaming import Stored, load_streamed
from foretoken.decoder.weights import assemble
from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import ForetokenError
from foretoken.formats import format_of
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Drafter, Verifier
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, PromptChunk, Request, SamplingParams, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.text.stopping import never
from foretoken.verification.local import LocalVerifier
from foretoken.verification.uncached import UncachedVerifier
from foretoken.verification.worker import WorkerVerifier
from tests.decoder.low_bit_files import stored
from tests.tiny import random_tensors, tiny_config

LONGEST = 20  # tokens of plain continuation that the contracts use
VOCABULARY = 509
_SEED = 1
GREEDY = SamplingParams()
_STARTS = (87, 75)  # chosen, with the seed, so that no token comes twice in either continuation


@dataclass(frozen=True)
class Plain:
    """Plain decoding of one prompt: the truth. `digests[n]` is that of the cache after n tokens."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: torch.Tensor
    digests: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """A target and the truth about some prompts; sequence s is `plains[s]`."""

    target: Decoder
    plains: tuple[Plain, ...]


def weak_decoder(seed: int, noise: float = 0.0, arithmetic: str = "auto", low_bit: str | None = None) -> Decoder:
    """A decoder whose blocks add little to the embedding. With `noise`, another draw is mixed in: a poor copy. With
    `low_bit`, its linear layers are in that format."""
    config = tiny_config(vocab_size=VOCABULARY, num_hidden_layers=3, hidden_size=24, head_dim=6, intermediate_size=40)
    tensors = random_tensors(config, seed)
    other = random_tensors(config, seed + 1000)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.15)
        if name == "model.norm.weight":  # so sharp that what is sampled can be guessed, too
            tensor.mul_(8)
        if noise and tensor.ndim == 2:
            tensor.add_(noise * tensor.std() * other[name] / other[name].std())
    weights = assemble(tensors, config)
    if low_bit is not None:
        weights = quantised(weights, config, format_of(low_bit))
    return Decoder(config, weights, arithmetic=arithmetic, threads=1)


@cache
def make_world(arithmetic: str = "auto", sampling: SamplingParams = GREEDY, low_bit: str | None = None) -> World:
    """Two prompts that end as they began, so that there is something to look up."""
    target = weak_decoder(_SEED, arithmetic=arithmetic, low_bit=low_bit)
    plains = []
    for start in _STARTS:
        orbit = decode(target, (start,), 40).tokens
        plains.append(decode(target, (*orbit[:30], 7, *orbit[:5]), LONGEST, sampling))
    return World(target, tuple(plains))


@cache
def from_disk(low_bit: str | None = None) -> Decoder:
    """The target of `make_world`, all layers of which are read from a file in each pass."""
    there = make_world(low_bit=low_bit).target
    config = replace(there.config, low_bit=None if low_bit is None else format_of(low_bit))
    folder = Path(tempfile.mkdtemp(prefix="foretoken-world-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tensors = there.weights.tensors if low_bit is None else stored(there.weights, config)
    save_file(tensors, folder / "model.safetensors")
    its = Stored.of(folder, config)
    largest = max(its.bytes_read(part) for part in range(its.parts))
    weights = load_streamed(its, range(its.parts), 2 * largest, rows=True)
    return Decoder(config, weights, arithmetic=there.arithmetic, threads=1)


def decode(target: Decoder, prompt: tuple[int, ...], count: int, sampling: SamplingParams = GREEDY) -> Plain:
    """Plain decoding, straight from the engine with a drafter that proposes nothing."""
    run = Run(target, NothingDrafter(), [Request(0, prompt, count, keep_logits=True, sampling=sampling)])
    result = run.sequences[0]
    caches = run.final_caches[0]
    digests = tuple(caches.digest_at(len(prompt) + n - 1) for n in range(1, count + 1))
    return Plain(prompt, result.tokens, result.logits, ("", *digests))


class Snapshot:
    """The committed keys and values of a cache, copied."""

    def __init__(self, cache: Cache) -> None:
        self._layers = [[t[: cache.length].clone() for t in cache.read(layer)] for layer in cache.layers]

    def digest_at(self, length: int) -> str:
        """As `Cache.digest`, of the first `length` positions."""
        digest = hashlib.sha256()
        for tensors in self._layers:
            for tensor in tensors:
                digest.update(tensor[:length].contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def chain_of(tokens: int, *below: int) -> list[Budget]:
    """The budgets of a chain, and of the levels below it."""
    return [Budget(count, count) for count in (tokens, *below)]


def read(verifier: Verifier, requests: Sequence[Request]) -> list[Verdict]:
    """Admit requests and read their prompts, in one pass; their first verdicts."""
    for request in requests:
        verifier.admit(request)
    return verifier.result(verifier.submit([], [PromptChunk(r.sequence, len(r.prompt)) for r in requests]))


@dataclass(frozen=True)
class Generated:
    """What one sequence became."""

    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    logits: torch.Tensor
    finish_reason: str | None


class Run:
    """One run of the engine: what came out, the caches as they stood at the end, and the rounds' records."""

    def __init__(
        self,
        target: Decoder,
        drafter: Drafter,
        requests: list[Request],
        *,
        num_speculative_tokens: int = 5,
        budgets: Sequence[Budget] = (),
        caches: Caches | None = None,
        prefill_chunk: int = 256,
        ahead: int = 0,
        wrap: Callable[[Verifier], Verifier] | None = None,
        stops_after: Callable[[int, int], bool] | None = None,
        samplers: MakeSampler = Sampler,
        cached: bool = True,
    ) -> None:
        """budgets: if they are not those of one level that drafts a chain of num_speculative_tokens."""
        caches = Caches() if caches is None else caches
        verifier: Verifier = (LocalVerifier if cached else UncachedVerifier)(
            target,
            caches,
            extractors=getattr(drafter, "extractors", ()),
            samplers=samplers,
            stops=never if stops_after is None else lambda request: partial(stops_after, request.sequence),
        )
        if wrap is not None:
            verifier = wrap(verifier)
        self.records: list[RoundRecord] = []
        engine = Engine(
            verifier,
            drafter,
            budgets=budgets or chain_of(num_speculative_tokens),
            schedule=Schedule(prompt_rows=prefill_chunk, ahead=ahead),
            recorder=self.records.append,
        )
        self.verdicts: dict[int, list[Verdict]] = {r.sequence: [] for r in requests}
        self.final_caches: dict[int, Snapshot] = {}
        self.errors: dict[int, ForetokenError] = {}
        with ExitStack() as ending:
            if isinstance(verifier, WorkerVerifier):
                ending.callback(verifier.close)
            for verdicts in engine.run(requests):
                for verdict in verdicts:
                    self.verdicts[verdict.sequence].append(verdict)
                    if verdict.error is not None:
                        self.errors[verdict.sequence] = verdict.error
                    elif verdict.finish_reason is not None:
                        self.final_caches[verdict.sequence] = Snapshot(caches[verdict.sequence])
        if len(requests) == 1 and self.errors:
            raise self.errors[requests[0].sequence]
        self.sequences = {s: _joined(v) for s, v in self.verdicts.items()}


def _joined(verdicts: list[Verdict]) -> Generated:
    logits = [v.logits for v in verdicts if v.logits is not None]
    return Generated(
        tuple(t for v in verdicts for t in v.tokens),
        tuple(o for v in verdicts for o in v.origins),
        torch.cat(logits) if logits else torch.empty(0),
        verdicts[-1].finish_reason,
    )

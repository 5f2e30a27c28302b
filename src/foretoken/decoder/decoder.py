"""The decoder: a forward pass over rows, checked against transformers, and exact for any number of rows.

`embed`, `layers` and `head` are separate calls because methods run ranges of layers: FractalLLM starts in the middle,
and Mixture of Attentions runs the last few. Hidden states between the calls are float32 [N, hidden]. `run` does all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.coded_prefix import coded_layers
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.cost import CostModel
from foretoken.decoder.gpu_pass import GpuPass
from foretoken.decoder.memory import FIRST_CAPACITY, Memory
from foretoken.decoder.native_pass import NativePass, why_not
from foretoken.decoder.outputs import Outputs, Scored
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.torch_pass import TorchPass
from foretoken.decoder.weights import Weights
from foretoken.errors import ContractError, NumericsError
from foretoken.kernels import forked, gpu, native, refusals
from foretoken.protocol.telemetry import Cost

T = TypeVar("T")

_AT_ONCE = 64  # rows of logits that are computed before they are asked for: 33 MB with a vocabulary of 128,256
_STRETCH = 4  # layers of a pass that lets others in between: each call costs some time of its own
_TOGETHER = 16  # rows that are computed when one of them is asked for; they cost hardly more than one


def why_not_int8(config: DecoderConfig) -> str | None:
    """Why drafts cannot read a model's old keys and values in int8; None if they can."""
    if not refusals.can_be_coded(config.head_dim):
        return f"its heads have {config.head_dim} numbers, and a multiple of 16 is needed, at most 256"
    return None if coded_layers(config.windows) else "all of its layers have a sliding window"


class Drafted(NamedTuple):
    """A chain that was drafted in one call."""

    tokens: list[int]
    cost: Cost


class Decoder:
    """A decoder-only transformer with its weights: a target, or a drafter's model. It holds no state of any sequence.

    A decoder runs natively if it can; `because` is the reason why it cannot, or None. `arithmetic` may ask for
    "pytorch", or for "native ISA": an instruction set other than the best, which changes no bit. With promise
    "algorithmic", PyTorch may sum in an order that depends on the number of rows; native passes never do. The cost of a
    call is added to its pass (`Rows.cost`).

    codes_places: for drafts; rows on views read whole blocks of old keys and values in int8, if the decoder runs
    natively, and if its heads and layers allow it (`why_not_int8`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        threads: int | None = None,
        promise: str = "exact",
        arithmetic: str = "auto",
        codes_places: bool = False,
    ) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        kind, _, isa = arithmetic.partition(" ")
        if kind == "auto" and self.device.type != "cpu" and gpu.why_not(self.device) is None:
            kind = "triton"
        asked = {"pytorch": "PyTorch was asked for", "triton": "it runs on a GPU"}
        self.because = asked[kind] if kind in asked else why_not(weights)
        if self.because is not None and weights.layouts != {"rows"}:
            raise ContractError(f"weights laid out for {weights.layouts} cannot run in PyTorch ({self.because})")
        if kind not in ("auto", "native", *asked) or (kind == "native" and self.because is not None):
            lacking = f" (not native here: {self.because})" if kind == "native" else ""
            raise ContractError(
                f"arithmetic is {arithmetic!r}; expected auto, pytorch, triton, native or native ISA{lacking}"
            )
        self.threads = threads or (forked.threads() if self.because is None else torch.get_num_threads())
        self._bad: str | None = None  # the weight that holds NaN or infinities; "": none does; None: not checked yet
        self.skips = 0  # so many tokens at the beginning of a text it does not read
        self.room = FIRST_CAPACITY  # positions for which a new cache has room at once; it then need not grow
        self.codes_places = codes_places and self.because is None and why_not_int8(config) is None
        self._costs = CostModel(config, weights, codes_places=self.codes_places)
        rope = RopeTable(config.rope, config.head_dim, self.device)
        self._pass: NativePass | GpuPass | TorchPass
        if kind == "triton":
            self._pass = GpuPass(config, weights, rope)
            self.promise = "exact"
        elif self.because is None:
            isa = isa or native.isa()
            self._pass = NativePass(config, weights, rope, self.threads, isa, codes_places=self.codes_places)
            self.promise = "exact"
        else:
            batched = promise == "algorithmic"
            self._pass = TorchPass(config, weights, rope, self.threads, batched=batched)
            # the same code runs on an old GPU, but nobody has shown that its kernels keep rows independent
            self.promise = "algorithmic" if batched or self.device.type != "cpu" else "exact"

    @property
    def arithmetic(self) -> str:
        """The engine: "native" with its instruction set, "triton" on a GPU, or "pytorch"."""
        return f"native {self._pass.isa}" if isinstance(self._pass, NativePass) else self._pass.name

    @property
    def home(self) -> str:
        """The home of the weights: mapped from their files, or copied into memory of their own."""
        return self.weights.home

    def new_cache(self, layers: range | None = None) -> Cache:
        """An empty cache for all layers or some, in the type that the engine keeps keys and values in."""
        c = self.config
        layers = range(c.num_layers) if layers is None else layers
        memory = Memory.empty(len(layers), c.num_kv_heads, c.head_dim, self._pass.cache_dtype, self.device)
        return Cache(layers, memory._replace(least=self.room))

    def code_places(self, cache: Cache) -> None:
        """Put old keys and values into int8 that rows on a view will read so. A pass would do it, too, but takes longer
        then than others."""
        if isinstance(self._pass, NativePass):
            self._pass.code_places(cache)

    def embed(self, tokens: list[int] | Rows) -> torch.Tensor:
        """The embeddings of tokens, or of the tokens of a pass: float32 [N, hidden]."""
        rows, tokens = (tokens, tokens.tokens) if isinstance(tokens, Rows) else (None, tokens)
        self._expect_known(tokens)
        hidden = self._pass.embed(tokens)
        self._add_cost(self._costs.embed(len(tokens)), rows)
        return hidden

    @torch.no_grad()  # not inference mode: drafters edit hidden states, and train on them
    def layers(
        self,
        hidden: torch.Tensor,
        rows: Rows,
        lo: int = 0,
        hi: int | None = None,
        entering: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run layers lo to hi (not included) over the rows, and write their keys and values to their slots.

        hidden: float32 [N, hidden], before layer lo. entering: what the attention of layer lo reads in place of its
        norm of `hidden`, float32 [N, inputs of its projections]; None: that norm. Returns the hidden states before
        layer hi. Raises ContractError where shapes or layers do not fit.
        """
        hi = self.config.num_layers if hi is None else hi
        expected = (len(rows), self.config.hidden_size)
        if not 0 <= lo <= hi <= self.config.num_layers or hidden.shape != expected:
            raise ContractError(
                f"layers {lo} to {hi} over hidden states {list(hidden.shape)}; expected a range within 0 to "
                f"{self.config.num_layers}, and hidden states {list(expected)}"
            )
        if lo < hi:
            wanted = (len(rows), self.weights.layers[lo].query.weight.shape[1])
            came = expected if entering is None else entering.shape
            given = hidden if entering is None else entering
            readable = given.is_contiguous() and given.dtype == torch.float32 and given.device == hidden.device
            if came != wanted or not (entering is None or readable):
                raise ContractError(
                    f"the attention of layer {lo} was given {given.dtype} {list(came)} on {given.device}; expected "
                    f"float32 {list(wanted)} on {hidden.device}, contiguous"
                )
        hidden = self._passed(lambda: self._pass.layers(hidden, rows, lo, hi, entering))
        self._add_cost(self._costs.layers(rows, lo, hi), rows)
        return hidden

    @torch.no_grad()
    def keys_and_values(
        self, layer: int, hidden: torch.Tensor, positions: Sequence[int], *, entering: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer would write for hidden states before it, float32 [N, hidden], at some
        positions: [N, kv_heads, head_dim] each. entering: `hidden` is what the layer's attention reads, so the layer's
        norm is left out."""
        if any(self.weights.homes):
            raise ContractError("keys and values were asked of a layer whose weights may be on the disk")
        if hidden.shape != (len(positions), self.config.hidden_size) or not 0 <= layer < self.config.num_layers:
            raise ContractError(
                f"layer {layer} was asked for keys and values of hidden states {list(hidden.shape)} at "
                f"{len(positions)} positions; expected [positions, {self.config.hidden_size}]"
            )
        return self._pass.keys_and_values(layer, hidden, list(positions), entering=entering)

    @torch.no_grad()
    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm of hidden states [N, hidden] that the last layer put out: float32."""
        return self._pass.norm(hidden)

    @torch.no_grad()
    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """The output layer of states behind the final norm, float32 [N, hidden], with its rows of padding: float32."""
        return self._pass.output(normed)

    @torch.no_grad()
    def head(self, hidden: torch.Tensor, rows: Rows | None = None) -> torch.Tensor:
        """Final norm and output layer: float32 logits [N, valid_vocab_size]. rows: the pass that bears the cost."""
        if hidden.ndim != 2 or hidden.shape[1] != self.config.hidden_size or hidden.device != self.device:
            raise ContractError(
                f"hidden states are {list(hidden.shape)} on {hidden.device}; expected [N, {self.config.hidden_size}] "
                f"on {self.device}"
            )
        with gpu.telling_of_memory():
            logits = self._pass.head(hidden)
        self._add_cost(self._costs.head(len(hidden)), rows)
        return logits

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """Hidden states of a whole pass, before the final norm: float32 [N, hidden]."""
        self._expect_known(rows.tokens)
        hidden = self._passed(lambda: self._pass.forward(rows))
        self._add_cost(self._costs.forward(rows), rows)
        return hidden

    @torch.no_grad()
    def run(self, rows: Rows) -> Outputs:
        """A whole pass: hidden states of all rows, and logits of all of them, computed at once."""
        self._expect_known(rows.tokens)
        hidden, scored = self._passed(lambda: self._pass.run(rows))
        self._add_cost(self._costs.forward(rows) + self._costs.head(len(rows)), rows)
        return Outputs(hidden, self._score(rows), self._together(rows), scored=scored)

    @torch.no_grad()
    def check(
        self,
        rows: Rows,
        wanted: Sequence[range],
        taps: Sequence[int] = (),
        between: Callable[[], object] | None = None,
    ) -> Outputs:
        """A whole pass, whose logits may be asked for at the rows `wanted`: a range for each walk, its root first.

        The logits of a few rows are computed at once. Of many rows, those of the roots and of the rows after them are
        computed first, and others when they are asked for. taps: layers whose input is kept. between: called before
        every fourth layer; the pass holds no threads meanwhile, so another pass can have them.
        """
        first = self._first(rows, wanted)
        if len(first) == len(rows) and not taps and between is None:
            return self.run(rows)
        kept: dict[int, torch.Tensor] = {}
        if taps or between is not None:
            hidden, lo = self.embed(rows), 0
            pauses = () if between is None else range(0, self.config.num_layers, _STRETCH)
            for layer in sorted({*taps, *pauses}):
                hidden, lo = self.layers(hidden, rows, lo, layer), layer
                if layer in taps:
                    kept[layer] = hidden
                if between is not None:
                    between()
            hidden = self.layers(hidden, rows, lo)
        else:
            hidden = self.forward(rows)
        outputs = Outputs(hidden, self._score(rows), self._together(rows), taps=kept)
        outputs.prepare(first)
        return outputs

    @torch.no_grad()
    def finish(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, *, first: int = 0) -> Outputs:
        """The rest of a pass, from hidden states before layer lo on. The outputs begin with row `first`, as their row
        0, and have logits and choices of each row."""
        hidden = self.layers(hidden, rows, lo)[first:]
        outputs = Outputs(hidden, self._score(rows), lambda row: ())
        outputs.prepare(range(len(hidden)))
        return outputs

    def _score(self, rows: Rows) -> Callable[[torch.Tensor], Scored]:
        """The output layer, for a pass that may ask for logits later."""

        def score(hidden: torch.Tensor) -> Scored:
            with torch.no_grad():
                logits = self.head(hidden, rows).cpu()  # walks and drafts look at one row after the other
            return Scored(logits, lambda row: kernels.argmax(logits[row]))

        return score

    def _add_cost(self, cost: Cost, rows: Rows | None) -> None:
        if rows is not None:
            rows.cost += cost

    def _first(self, rows: Rows, wanted: Sequence[range]) -> list[int]:
        """The rows whose logits are computed before they are asked for: all if they are few, else the beginning of each
        walk."""
        if sum(map(len, wanted)) <= _AT_ONCE:
            return [row for walk in wanted for row in walk]
        each = max(1, _AT_ONCE // len(wanted))
        return [row for walk in wanted if walk for row in rows.followers(walk.start, each)]

    def _together(self, rows: Rows) -> Callable[[int], Sequence[int]]:
        return lambda row: rows.followers(row, _TOGETHER)

    @torch.no_grad()
    def draft_chain(self, cache: Cache, token: int, count: int, *, writer: int | None = None) -> Drafted:
        """Draft `count` greedy tokens after `token` in one call, each from the one before. Returns tokens and cost.

        The keys and values of the rows are written to the cache's scratch, behind the slots in use. `writer` (from
        `new_writer`) is the tag to commit them with. A NaN ends the chain early.
        """
        self._expect_known([token])
        if count < 1:
            return Drafted([], Cost())
        rows = chain(cache, [token] * count, writer=writer)  # the other tokens are not known yet
        tokens = self._passed(lambda: self._pass.chain(cache, token, rows))
        self._add_cost(self._costs.steps(rows, min(count, len(tokens) + 1)), rows)  # the row of a NaN was computed, too
        return Drafted(tokens, rows.cost)

    def nan_error(self) -> NumericsError:
        """The error for a NaN among the logits. It names the weights that hold NaN or infinities, if any do."""
        if self._bad is None:  # to look at all weights takes as long as a pass, or longer
            self._bad = self.weights.first_not_finite() or ""
        bad = self._bad
        if bad:
            return NumericsError(f"the model's logits hold NaN: {bad} are NaN or infinite; fetch the checkpoint again")
        dtype = str(self.weights.embedding.dtype).removeprefix("torch.")
        advice = "load it as float32" if dtype != "float32" else "the checkpoint is of no use as it is"
        return NumericsError(
            f"the model's logits hold NaN though its weights are finite: they overflow {dtype}; {advice}"
        )

    def _passed(self, run: Callable[[], T]) -> T:
        """What a pass gives. One that is broken off holds no part of the model any more: Ctrl-C may come where a part
        is there already, and the code that would give it back is not yet in charge. Others would wait for its place."""
        try:
            with gpu.telling_of_memory():
                return run()
        except BaseException:
            for home in filter(None, self.weights.homes):
                with suppress(RuntimeError):  # of a GPU that is of no use any more: the first error says more
                    home.release()
            raise

    def _expect_known(self, tokens: list[int]) -> None:
        if not all(0 <= token < self.config.vocab_size for token in tokens):
            raise ContractError(f"tokens {tokens!r:.60} are not all within 0 to {self.config.vocab_size - 1}")

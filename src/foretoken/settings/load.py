"""How a model is loaded. The comment above a setting is what docs/python.md says of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from foretoken.errors import SettingError, quoted
from foretoken.settings.amounts import bytes_a_second, bytes_of
from foretoken.settings.values import Settings, count, is_text, one_of

MOST_DRAFT_TOKENS = 4096  # in a round
_FEW_BYTES = 1 << 10  # no program runs in so little: whoever writes less has left out the unit
AUTO = "auto"  # the draft that is chosen for the model and the machine
ALL = "all"  # layers
REPLAY = "replay:"  # the beginning of a pace that names a file
_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class LoadSettings(Settings):
    """How a model is loaded."""

    # What proposes tokens: a draft's name, which may have options (`lookup:min_match=3`), or `none` for plain decoding.
    # Commas make a ladder: in `mxfp4,lookup`, lookup drafts for the copy. `auto` takes the first of these drafts that
    # can be used:
    # (1) If layers are read from the disk: `subspec,lookup`. It drafts with low-bit copies of these layers. The copies
    # have 4 bits, or 3 or 2 where 4 do not fit.
    # (2) The draft that `foretoken recommend` found best for this model, machine and settings.
    # (3) `mxfp4:k=2,lookup`, or `mxfp4,lookup` with the rule `rejection`. It needs the CPU, the native engine, a KV
    # cache, a model of at least 50 million weights that is not low-bit itself, and a copy that fits into memory. The
    # copy lies beside the model, or takes about 10 seconds to make.
    # (4) `lookup`.
    draft: str = AUTO
    # How drafts are judged when sampling. `walk`: every draft gives the same text. `rejection`: each draft gives
    # another text from the same distribution.
    rule: str = "walk"
    # The most tokens that the draft's first level drafts in a round. If you give a number, it is the same in every
    # round, and `pace` chooses only for the levels below. With None, the pace `auto` chooses for all levels, and the
    # pace `fixed` takes the number in the draft's options, or the draft's default.
    num_speculative_tokens: int | None = None
    # How many tokens are drafted in a round. `fixed`: `num_speculative_tokens`, or as many as the draft's options say,
    # or its default. `auto`: as many as give the most tokens a second, which is learned while the model generates; if
    # the draft can be a chain or a tree, `auto` chooses the faster form, too. The output is the same. `auto` leaves
    # alone a length that you set yourself (`num_speculative_tokens`, or `tokens` in the draft's options), and the size
    # of fractal drafts and of most trees. With the rule `rejection`, lengths are fixed whatever `pace` says: there, the
    # text depends on how much is drafted, and one seed should give one text.
    # `replay:FILE`: in each round, as many as were drafted in the same round of the generation whose record is FILE
    # (`generate --record`). So you can compare runs that draft equally much. If a generation has more rounds than the
    # record, nothing is drafted in the rounds that the record lacks.
    pace: str = "auto"
    # The type of the weights: `bfloat16` (`bf16`), `float16` (`fp16`) or `float32` (`fp32`). With `auto`, the type is
    # that of the checkpoint.
    dtype: str = "auto"
    # Where the model runs: `cpu` or `cuda` (`cuda:1` for the second GPU).
    device: str = "cpu"
    # The promise to keep. `exact`: every token and every logit is as without a draft. `algorithmic` is the same method
    # without a guarantee for every bit. `auto` is exact wherever that can be kept: on the CPU, and on most GPUs.
    promise: str = "auto"
    # Where the weights lie. `mapped`: in their files. `copied`: in memory of their own. `auto`: copied where that is
    # faster and leaves 2 GiB free.
    weights: str = "auto"
    # The most memory that the whole process may use, such as `8GiB` (2**30 bytes each) or `8GB` (10**9). Layers for
    # which there is no room are read from the disk in each pass. In that case `subspec,lookup` is usually the best
    # draft. With None, there is no bound. `foretoken plan` shows what a bound would mean. On a GPU, it is the most of
    # the GPU's memory, and the other layers are copied from the machine's memory in each pass.
    memory: str | int | None = None
    # The most tokens of one text, prompt and output together. With None, as many as the model can read, but at
    # most 1024 if `memory` is given: room for their keys and values is part of the bound.
    context: int | None = None
    # How many layers are read from the disk in each pass even if there is memory for them: a number, or `all`. With
    # None, only those for which `memory` leaves no room.
    stream_layers: str | int | None = None
    # Reads from the disk no faster than this, such as `1.4GB/s`, to see what a slower disk would mean. With None, as
    # fast as the disk can.
    disk_bandwidth: str | int | None = None
    # Whether all weights that come from the disk are checked. When a file is loaded, its hash is compared with the
    # hub's, if there is one. Layers that each pass reads are compared, each time, with what they were at loading. The
    # check never changes the output. With False, nothing is checked.
    verify_weights: bool = False
    # The branch, tag or commit of a model from the hub. With None, the hub's main branch.
    revision: str | None = None
    # Whether keys and values are kept between passes. With False, each pass reads the whole text again; under the
    # promise `exact`, the output is the same.
    cache: bool = True
    # The number of threads for the arithmetic. With None, as many as PyTorch takes.
    threads: int | None = None
    # The most prompt tokens that one pass reads. There is one exception: if layers are read from the disk, and you give
    # no number of your own, a pass reads as many as there is memory for.
    prefill_chunk: int = 512
    # The most rows (prompt tokens and draft tokens) in one pass. Each sequence gets at least one row.
    rows_per_pass: int = 8192
    # Only for the pace `fixed`: the most rows in one pass when several sequences share it. Each sequence takes one row
    # for its last token, so with 16 sequences the default leaves no room for drafts.
    shared_rows: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", _SHORT_DTYPES.get(self.dtype, self.dtype))
        one_of("dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise SettingError(f"device is {quoted(self.device)}, expected cpu, cuda or cuda:NUMBER")
        one_of("promise", self.promise, ("auto", "exact", "algorithmic"))
        one_of("weights", self.weights, ("auto", "mapped", "copied"))
        one_of("rule", self.rule, ("walk", "rejection"))
        if not (isinstance(self.pace, str) and self.pace.startswith(REPLAY) and self.pace != REPLAY):
            one_of("pace", self.pace, ("fixed", "auto", f"{REPLAY}FILE"))
        elif self.rule == "rejection" or self.num_speculative_tokens is not None:
            other = "rule is 'rejection'" if self.rule == "rejection" else "num_speculative_tokens was given"
            raise SettingError(
                f"pace is {quoted(self.pace, 80)}, which says how much is drafted, and {other}; leave one of them out"
            )
        if self.promise == "exact" and self.rule == "rejection":
            raise SettingError(
                "promise is 'exact', but rule is 'rejection', which keeps the distribution of what is sampled, not its "
                "tokens; use rule 'walk', or promise 'auto'"
            )
        if isinstance(self.draft, os.PathLike):
            object.__setattr__(self, "draft", os.fspath(self.draft))
        if not isinstance(self.draft, str):
            raise SettingError(f"draft is {quoted(self.draft)}, expected text, such as 'lookup' or 'none'")
        if self.revision is not None and not (is_text(self.revision) and self.revision):
            raise SettingError(f"revision is {quoted(self.revision)}, expected text: a branch, tag or commit")
        for name in ("cache", "verify_weights"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is {quoted(getattr(self, name))}, expected True or False")
        count("prefill_chunk", self.prefill_chunk, 65_536)
        count("rows_per_pass", self.rows_per_pass, 65_536)
        count("shared_rows", self.shared_rows, 65_536)
        if self.num_speculative_tokens is not None:
            count("num_speculative_tokens", self.num_speculative_tokens, MOST_DRAFT_TOKENS)
        expect_threads(self.threads)
        self._expect_offloading()

    def _expect_offloading(self) -> None:
        """Read amounts, and refuse settings that contradict each other."""
        for name, read, example in (
            ("memory", bytes_of, "8GiB or 500MB"),
            ("disk_bandwidth", bytes_a_second, "1.4GB/s"),
        ):
            value = getattr(self, name)
            amount = read(value) if isinstance(value, str) else value
            least = _FEW_BYTES if isinstance(value, str) else 1
            if value is not None and not (type(amount) is int and amount >= least):
                raise SettingError(f"{name} is {quoted(value)}, expected an amount such as {example}")
            object.__setattr__(self, name, amount)
        if self.context is not None:
            count("context", self.context, 2**31 - 1)
        layers = self.stream_layers
        if isinstance(layers, str) and re.fullmatch(r"[0-9]{1,9}", layers):
            layers = int(layers)
        if layers is not None and not (isinstance(layers, str) and layers == ALL):
            if isinstance(layers, str):
                raise SettingError(f"stream_layers is {quoted(layers)}, expected a number, or all")
            count("stream_layers", layers, 100_000)
        object.__setattr__(self, "stream_layers", layers)
        if not self.offloads:
            if self.disk_bandwidth is not None:
                raise SettingError("disk_bandwidth is for layers that are read in each pass; give memory as well")
            return
        others = [
            f"{name} is {quoted(getattr(self, name))}"
            for name, usual in (("dtype", "auto"), ("weights", "auto"), ("cache", True))
            if getattr(self, name) != usual  # of which the type has been checked
        ]
        if others:
            raise SettingError(
                f"{others[0]}, which cannot be had under a bound of memory: layers that are read in each pass have the "
                "type and the place that they have in the files; leave it out"
            )

        if self.disk_bandwidth is not None and self.device != "cpu":
            raise SettingError(
                f"disk_bandwidth slows down reads from the disk, and with device {self.device!r} layers come from "
                "memory; leave it out"
            )

    @property
    def offloads(self) -> bool:
        """Whether layers may have to be read from the disk in each pass, or copied from memory to a GPU."""
        return self.memory is not None or self.stream_layers is not None


def expect_threads(threads: object) -> None:
    """Refuse a number of threads of arithmetic that makes no sense here. None leaves it open."""
    if threads is None:
        return
    cores = os.cpu_count() or 1
    # 16 everywhere, so that what one machine wrote down can be tried on a smaller one
    why = f" on this machine: it has {cores} core{'s' * (cores > 1)}, and more threads than cores only wait"
    count("threads", threads, max(16, cores), f"{why}; leave threads out, or give {cores}")

"""The facts about a machine. Sizes are in bytes, speeds in bytes per second; None: the system does not provide it."""

from __future__ import annotations

from dataclasses import dataclass

QUICK = "left out by --quick"  # why a speed was not measured
# variables that control threads: their number, their cores, and what they do without work
COUNTING = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
WAITING = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")


@dataclass(frozen=True)
class Busy:
    """A different process, and the number of cores that it used."""

    name: str
    pid: int
    cores: float


@dataclass(frozen=True)
class Machine:
    """Processor, cores and memory, and the other processes that use them."""

    processor: str
    architecture: str
    system: str
    virtual: bool | None
    cores: int  # that the system has
    allowed_cores: int  # that this process may run on
    physical_cores: int | None  # among the allowed cores: two threads of one core count once
    core_quota: float | None  # a control group's limit on the cores' time, in cores
    memory_total: int | None
    memory_available: int | None  # the least that the system, control groups and `ulimit -v` leave
    memory_limit: int | None  # a limit below the total
    memory_limited_by: str | None  # "a control group" or "ulimit -v"
    load: float | None  # the mean number of processes that wanted to run in the last minute
    busy_cores: float | None  # used by other processes, just now
    busiest: tuple[Busy, ...]
    steal: float | None  # share of the cores' time that the host gave to others

    @property
    def usable_cores(self) -> int:
        """Whole cores that this process can keep busy."""
        return min(self.allowed_cores, max(1, round(self.core_quota or self.allowed_cores)))


@dataclass(frozen=True)
class Amx:
    """AMX on this machine: the flags that the system lists, and its answer to a request for tiles."""

    flags: tuple[str, ...] | None
    refused: str | None  # the reason; None if the request was granted or could not be made


@dataclass(frozen=True)
class Engine:
    """The native module and its instruction sets."""

    native: str  # here, off (by FORETOKEN_NATIVE), absent (not built), or broken
    error: str | None  # why the module is broken, or why its instruction set cannot be used
    isa: str | None  # in use
    best: str | None  # the best instruction set that this machine has
    forced: str | None  # by FORETOKEN_ISA
    lacking: dict[str, str]  # instruction sets that cannot run here, and why
    unbuilt: tuple[str, ...]  # those of `lacking` that the processor has but the build lacks
    compiler: str | None  # found on the path
    amx: Amx
    rows_alike: bool | None  # for PyTorch: whether its products treat a block's rows alike


@dataclass(frozen=True)
class Threads:
    """The number of threads of arithmetic, and what PyTorch's own threads do when they have no work."""

    torch: int
    environment: dict[str, str]  # the variables that control them, if set
    bound_cores: int | None  # cores left to this process once PyTorch is imported, where those are fewer than before
    spin_ms: float | None  # milliseconds that a PyTorch thread keeps its core after work


@dataclass(frozen=True)
class HugePages:
    """Whether memory that asks for huge pages gets them."""

    setting: str | None  # always, madvise or never
    disabled: bool  # for this process, by whoever started it
    share: float | None  # of an allocation that asked for them


@dataclass(frozen=True)
class MemorySpeed:
    """The speed at which all threads together read memory once, by kind of page, in the best number of streams each."""

    huge: float
    small: float
    streams: dict[str, int]
    threads: int
    size: int  # of what was read
    by: str  # "native" or "PyTorch"
    other: float | None = None  # the best speed of both kinds at a different moment, which was no better

    @property
    def best(self) -> float:
        """The better of both kinds of page, in bytes per second."""
        return max(self.huge, self.small)


@dataclass(frozen=True)
class Disk:
    """The folder that holds models, and how fast its disk is read."""

    folder: str  # of the model, or where models from the hub are kept
    writable: bool
    free: int | None
    in_memory: bool  # a file system such as tmpfs
    read: str | None = None  # what was read: a file's name, or "a temporary file"
    size: int = 0
    direct: float | None = None
    cached: float | None = None
    not_measured: str | None = None  # why


@dataclass(frozen=True)
class Part:
    """A package that only some commands need."""

    name: str
    version: str | None  # None: not installed
    gives: str  # what it is for
    install: str  # pip's requirement


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch sees. why_not: why our kernels cannot run there; None if they can."""

    name: str
    memory: int
    why_not: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """The model that the user named, without its weights' values."""

    name: str
    folder: str
    model_type: str | None = None
    format: str | None = None  # bf16, fp16, fp32, or a low-bit format
    here: bool = False  # whether its weights are on this machine
    why_not_native: str | None = None
    error: str | None = None  # why it cannot be used


@dataclass(frozen=True)
class Fit:
    """A model in one format, and whether it fits."""

    format: str
    size: int  # of all weights
    read: int  # of the weights that each token reads
    needs: int  # of memory: weights, keys and values, a draft, and the process
    fits: str | None  # "yes", "without a draft copy" or "no"
    tokens_per_second: float | None  # the limit of plain decoding, by memory, or by the disk if it does not fit


@dataclass(frozen=True)
class Fitting:
    """A model in several formats."""

    name: str
    parameters: int
    formats: tuple[Fit, ...]


@dataclass(frozen=True)
class Facts:
    """All facts about a machine."""

    versions: dict[str, str | None]
    untested: tuple[str, ...]  # installed packages of versions that Foretoken does not ask for: "torch 2.14.0 (...)"
    machine: Machine
    engine: Engine
    threads: Threads
    huge_pages: HugePages
    memory_speed: MemorySpeed | None
    memory_not_measured: str | None
    disk: Disk
    parts: tuple[Part, ...]
    gpus: tuple[Gpu, ...]
    checkpoint: Checkpoint | None = None
    fits: tuple[Fitting, ...] = ()

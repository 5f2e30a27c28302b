"""What is known of a machine. Sizes are in bytes, speeds in bytes a second; None is what a system does not tell."""

from __future__ import annotations

from dataclasses import dataclass

QUICK = "left out by --quick"  # why a speed was not measured
# variables that steer threads: how many there are, where they run, what they do without work
COUNTING = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
WAITING = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")


@dataclass(frozen=True)
class Busy:
    """Another process, and how many cores it was using."""

    name: str
    pid: int
    cores: float


@dataclass(frozen=True)
class Machine:
    """Processor, cores, memory, and who else uses them."""

    processor: str
    architecture: str
    system: str
    virtual: bool | None
    cores: int  # that the system has
    allowed_cores: int  # that this process may run on
    physical_cores: int | None  # among those: two threads of one core count once
    core_quota: float | None  # cores' worth of time that a control group gives
    memory_total: int | None
    memory_available: int | None  # what the system, control groups and `ulimit -v` leave, the least of them
    memory_limit: int | None  # below the total
    memory_limited_by: str | None  # "a control group" or "ulimit -v"
    load: float | None  # processes that wanted to run, over the last minute
    busy_cores: float | None  # used by other processes, just now
    busiest: tuple[Busy, ...]
    steal: float | None  # share of the cores' time that the host gave to others

    @property
    def usable_cores(self) -> int:
        """Whole cores that this process can keep busy."""
        return min(self.allowed_cores, max(1, round(self.core_quota or self.allowed_cores)))


@dataclass(frozen=True)
class Amx:
    """What processor and system say of AMX: the flags that the system shows, and its answer to a request for tiles."""

    flags: tuple[str, ...] | None
    refused: str | None  # in words; None if it was granted, or could not be asked for


@dataclass(frozen=True)
class Engine:
    """The native module and its instruction sets."""

    native: str  # here, off (by FORETOKEN_NATIVE), absent (not built), or broken
    error: str | None  # why it is broken, or why its instruction set cannot be had
    isa: str | None  # in use
    best: str | None  # the highest that this machine has
    forced: str | None  # by FORETOKEN_ISA
    lacking: dict[str, str]  # instruction sets that cannot run here, and why
    unbuilt: tuple[str, ...]  # those among them that the processor has, and the build lacks
    compiler: str | None  # that is found on the path
    amx: Amx
    rows_alike: bool | None  # for PyTorch: whether its products treat a block's rows alike


@dataclass(frozen=True)
class Threads:
    """How many threads of arithmetic there will be, and what becomes of PyTorch's own when they have no work."""

    torch: int
    environment: dict[str, str]  # the variables that steer them, if set
    bound_cores: int | None  # that this process may run on once PyTorch is imported, where that is fewer than before
    spin_ms: float | None  # that a thread of PyTorch's keeps its core after work


@dataclass(frozen=True)
class HugePages:
    """Whether memory that asks for huge pages gets them."""

    setting: str | None  # always, madvise or never
    disabled: bool  # for this process, by whoever started it
    share: float | None  # of an allocation that asked for them


@dataclass(frozen=True)
class MemorySpeed:
    """How fast all threads together read memory once, by kind of page, in the best number of streams a thread."""

    huge: float
    small: float
    streams: dict[str, int]
    threads: int
    size: int  # of what was read
    by: str  # "native" or "PyTorch"
    other: float | None = None  # the best of both kinds at another moment, which was no better

    @property
    def best(self) -> float:
        """Bytes a second."""
        return max(self.huge, self.small)


@dataclass(frozen=True)
class Disk:
    """The place where models lie, and how fast it is read."""

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
    """A package that is not needed for everything."""

    name: str
    version: str | None  # None: not installed
    gives: str  # what it is for
    install: str  # what pip is asked for


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch sees."""

    name: str
    memory: int


@dataclass(frozen=True)
class Checkpoint:
    """A model that was asked about, without its weights' values."""

    name: str
    folder: str
    model_type: str | None = None
    format: str | None = None  # bf16, fp16, fp32, or a low-bit format
    here: bool = False  # whether its weights are on this machine
    why_not_native: str | None = None
    error: str | None = None  # why it cannot be used


@dataclass(frozen=True)
class Fit:
    """A model in a format."""

    format: str
    size: int  # of all weights
    read: int  # of the weights that each token reads
    needs: int  # of memory: weights, keys and values, a draft, and the process
    fits: str | None  # "yes", "without a draft copy" or "no"
    tokens_per_second: float | None  # at most, plainly: what memory allows, or the disk, where it does not fit


@dataclass(frozen=True)
class Fitting:
    """A model in several formats."""

    name: str
    parameters: int
    formats: tuple[Fit, ...]


@dataclass(frozen=True)
class Facts:
    """All of it."""

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

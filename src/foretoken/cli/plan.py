"""`foretoken plan`: what a bound of memory means for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from foretoken.cli import options
from foretoken.cli.common import saying
from foretoken.common.progress import many, size
from foretoken.errors import SettingError
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.offloading import Offloading

_BAR = 40  # characters for the whole bound
_LOOKUP = "Lookup saves some of these passes, and others run while the model checks. Rejected drafts need more."
_ACCEPTED = (10, 30, 60)  # draft tokens of a check, for which the least time of a token is shown


@options.with_settings(generating=False, without=("verify_weights",))
def plan(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
) -> None:
    """Show what a memory limit (--memory) means for a model: what stays in memory, what is read from the disk in each
    pass, and how long a token then takes.

    Nothing is loaded. The speeds of disk and memory are measured. --disk-bandwidth gives another for the disk. With
    --device cuda, the limit is one of the GPU's memory, and layers are copied from the machine's memory.
    """
    if not loading.offloads:
        raise SettingError("there is no bound to plan for; give one, such as --memory 8GiB")

    from foretoken.api.build import plan as planned
    from foretoken.api.checkpoint import expect_device

    expect_device(loading.device)
    with saying():
        found, draft = planned(model, **vars(loading))
        speeds = _speeds(found, loading)
    print("\n".join(_lines(model, found, draft, loading, speeds)))


class _Speeds(NamedTuple):
    """Bytes a second. reading: of the layers that each pass reads. how: where that number comes from. memory: of what
    is in memory; None if it was not measured, or says little: on a GPU, small kernels take most of a draft's time."""

    reading: float
    how: str
    memory: float | None


def _speeds(found: Offloading, loading: LoadSettings) -> _Speeds:
    if loading.device != "cpu":
        from torch import device

        from foretoken.bench.on_gpu import bus_speed

        return _Speeds(bus_speed(device(loading.device)), "measured just now", None)
    from foretoken.bench.disk import read_speed
    from foretoken.doctor.speed import memory_speed
    from foretoken.kernels import forked, native

    best = None
    if found.plan.streamed and any(found.plan.needs.substitutes):
        isa = None if native.module() is None else native.isa()
        memory, _ = memory_speed(loading.threads or forked.threads(), isa)
        best = None if memory is None else memory.best
    if isinstance(loading.disk_bandwidth, int):
        return _Speeds(float(loading.disk_bandwidth), "as given", best)
    return _Speeds(read_speed(found.stored.paths), "measured just now", best)


def _lines(model: str, found: Offloading, draft: str, loading: LoadSettings, speeds: _Speeds) -> list[str]:
    plan, bound = found.plan, loading.memory if isinstance(loading.memory, int) else found.plan.total
    lines = [f"{model}, draft {draft}, texts of up to {found.stored.config.context_length:,} tokens", ""]
    for name, count in plan.memory.items():
        bar = "█" * max(1, round(_BAR * count / bound))
        lines.append(f"{name:32} {size(count):>9}  {bar}")
    of = f" of {size(bound)}" if loading.memory is not None else ""
    lines += [f"{'together':32} {size(plan.total):>9}{of}", ""]
    if not plan.streamed:
        return [*lines, f"All {many(plan.needs.layers, 'layer')} stay in memory: nothing is read while it generates."]
    stay = f"{len(plan.resident)} of {many(plan.needs.layers, 'layer')} stay in memory"
    seconds, on_cpu = plan.bytes_a_pass / speeds.reading, loading.device == "cpu"
    moved = ("reads", "the disk") if on_cpu else ("copies", "the machine's memory")
    lines += [
        f"{stay}; each pass {moved[0]} {size(plan.bytes_a_pass)} from {moved[1]}.",
        f"At {speeds.reading / 1e9:.2f} GB/s ({speeds.how}) that takes {seconds:.2g} s: a token of plain decoding.",
    ]
    return [*lines, *_drafting(found, seconds, speeds)] if any(plan.needs.substitutes) else lines


def _drafting(found: Offloading, seconds: float, speeds: _Speeds) -> list[str]:
    """The seconds of a token with the draft, by how many draft tokens a check accepts. The check adds one itself."""
    its = found.levels[0]
    most, paper = its.budget.depth, its.options.get("shape") != "best-first"
    counts = [count for count in _ACCEPTED if count <= most] or [most]

    def row(name: str, passes: Callable[[int], float]) -> str:
        return f"{name:34}" + "".join(f"{passes(count) / (count + 1):10.2g}" for count in counts)

    lines = [
        "",
        "One pass checks many draft tokens, and adds one. The seconds of a token, if so many are accepted:",
        f"{'':34}" + "".join(f"{count:>10}" for count in counts),
        row("without the time of drafting", lambda count: seconds),
    ]
    if speeds.memory is not None:
        each = found.draft_bytes / speeds.memory
        what = f"with the draft's {most} passes" if paper else "with a draft pass for each of them"
        lines += [
            row(what, lambda count: seconds + (most if paper else count) * each),
            "",
            f"A pass of the draft takes {each:.2g} s: it reads {size(found.draft_bytes)} of memory at "
            f"{speeds.memory / 1e9:.0f} GB/s (measured just now).",
            *([] if paper else [_LOOKUP]),
        ]
    return [*lines, "A token takes longer where the arithmetic of a check takes longer than the reading."]

"""`foretoken plan`: what a bound of memory means for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import saying
from foretoken.common.progress import many, size
from foretoken.errors import SettingError
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.offloading import Offloading

_BAR = 40  # characters for the whole bound
_ACCEPTED = (10, 30, 60)  # tokens of a check, for which the time of a token is estimated
_READ = 256 << 20  # bytes that are read to measure memory


@options.with_settings(generating=False, without=("verify_weights",))
def plan(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
) -> None:
    """Show what a memory limit (--memory) means for a model: what stays in memory, what is read from the disk in each
    pass, and how long a token then takes.

    Nothing is loaded. The speeds of disk and memory are measured; --disk-bandwidth gives another speed of the disk.
    """
    if not loading.offloads:
        raise SettingError("there is no bound to plan for; give one, such as --memory 8GiB")

    from foretoken.api.build import plan as planned
    from foretoken.bench.ceilings import bandwidth
    from foretoken.kernels import forked
    from foretoken.offload.measure import read_speed

    with saying():
        found, draft = planned(model, **vars(loading))
        given = isinstance(loading.disk_bandwidth, int)
        speed = float(loading.disk_bandwidth or 0) if given else read_speed(found.stored.paths)
        memory = bandwidth(loading.threads or forked.threads(), _READ)() if found.bytes_a_draft else None
    lines = _lines(model, found, draft, loading, speed, "as given" if given else "measured just now")
    print("\n".join([*lines, *_with_drafts(found, speed, memory)]))


def _lines(model: str, found: Offloading, draft: str, loading: LoadSettings, speed: float, how: str) -> list[str]:
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
    seconds = plan.bytes_a_pass / speed
    lines += [
        f"{stay}; each pass reads {size(plan.bytes_a_pass)} from the disk.",
        f"At {speed / 1e9:.2f} GB/s ({how}) that takes {seconds:.2g} s, the least for a token of plain decoding.",
    ]
    return lines


def _with_drafts(found: Offloading, disk: float, memory: float | None) -> list[str]:
    """How long a token takes with substitutes, by arithmetic. disk, memory: speeds in bytes a second."""
    if memory is None:
        return []
    step = found.bytes_a_draft / memory
    each = [f"{(found.plan.bytes_a_pass / disk + count * step) / count:.2g} s" for count in _ACCEPTED]
    few, more, many_ = (str(count) for count in _ACCEPTED)
    return [
        f"One such pass checks a whole draft. A pass of the substitutes takes {step:.2g} s (from memory at "
        f"{memory / 1e9:.0f} GB/s).",
        f"If a check accepts {few}, {more} or {many_} tokens, and each takes a pass of the substitutes, a token takes "
        f"{each[0]}, {each[1]} or {each[2]}.",
    ]

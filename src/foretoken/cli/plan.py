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
_ACCEPTED = (10, 30, 60)  # draft tokens of a check, for which the least time of a token is shown


@options.with_settings(generating=False, without=("verify_weights",))
def plan(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
) -> None:
    """Show what a memory limit (--memory) means for a model: what stays in memory, what is read from the disk in each
    pass, and how long a token then takes.

    Nothing is loaded. The disk's speed is measured, unless --disk-bandwidth gives it.
    """
    if not loading.offloads:
        raise SettingError("there is no bound to plan for; give one, such as --memory 8GiB")

    from foretoken.api.build import plan as planned
    from foretoken.bench.disk import read_speed

    with saying():
        found, draft = planned(model, **vars(loading))
        given = isinstance(loading.disk_bandwidth, int)
        speed = float(loading.disk_bandwidth or 0) if given else read_speed(found.stored.paths)
    print("\n".join(_lines(model, found, draft, loading, speed, "as given" if given else "measured just now")))


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
    if any(plan.needs.substitutes):
        most = found.levels[0].budget.depth
        counts = [count for count in _ACCEPTED if count <= most] or [most]
        least = (f"{seconds / (count + 1):.2g} s if {count}" for count in counts)  # the check adds a token itself
        lines += [
            f"One pass checks many draft tokens. The least for a token is {', '.join(least)} of them are accepted.",
            "It is more where drafting, or the arithmetic of the pass, takes longer than the reading.",
        ]
    return lines

"""Judges facts, without looking at the machine: what is good, what is not, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foretoken.doctor.facts import Facts
from foretoken.doctor.findings import engine, machine, speed, threads
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, STATUSES, WARNING, Finding

__all__ = ["GOOD", "GROUPS", "NOTE", "PROBLEM", "STATUSES", "WARNING", "Finding", "judge"]

# in the order in which they are read: by the name of a group, what judges
GROUPS: dict[str, tuple[Callable[[Facts], Iterator[Finding]], ...]] = {
    "This machine": (machine.processor, machine.cores, machine.memory, machine.system, machine.others),
    "Engine": (engine.arithmetic, engine.instructions, engine.amx, engine.promise, engine.versions),
    "Threads": (threads.count, threads.binding, threads.spinning),
    "Speed": (speed.memory, speed.huge_pages, speed.disk, speed.place),
    "Optional": (engine.parts, engine.gpus),
    "Model": (speed.checkpoint,),
}


def judge(facts: Facts) -> dict[str, list[Finding]]:
    """All findings by group; a group about which nothing is known is left out."""
    found = {title: [finding for one in judges for finding in one(facts)] for title, judges in GROUPS.items()}
    return {title: findings for title, findings in found.items() if findings}

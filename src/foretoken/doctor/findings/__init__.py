"""Judges facts, without looking at the machine: what is good, what is not, and what to do about it."""

from __future__ import annotations

from foretoken.doctor.facts import Facts
from foretoken.doctor.findings import engine, machine, speed
from foretoken.doctor.findings.finding import GOOD, NOTE, PROBLEM, STATUSES, WARNING, Finding, Judge

__all__ = ["GOOD", "GROUPS", "NOTE", "PROBLEM", "STATUSES", "WARNING", "Finding", "judge"]

# the judges of each group, in the order of the report; a judge's name is its topic
GROUPS: dict[str, tuple[Judge, ...]] = {
    "This machine": (machine.processor, machine.cores, machine.memory, machine.system, machine.load, machine.host),
    "Engine": (engine.arithmetic, engine.instructions, engine.amx, engine.promise, engine.versions),
    "Threads": (machine.threads, machine.binding, machine.waiting),
    "Speed": (speed.memory_speed, speed.huge_pages, speed.disk_speed, speed.models),
    "Optional": (engine.gpu,),  # after the optional packages
    "Model": (speed.model, speed.weights, speed.fits),
}


def judge(facts: Facts) -> dict[str, list[Finding]]:
    """All findings by group; a group without findings is left out."""
    found: dict[str, list[Finding]] = {}
    for title, judges in GROUPS.items():
        said = {one.__name__.replace("_", " "): one(facts) for one in judges}
        found[title] = [Finding(topic, *what) for topic, what in said.items() if what is not None]
    found["Optional"] = [*map(engine.part, facts.parts), *found["Optional"]]
    return {title: findings for title, findings in found.items() if findings}

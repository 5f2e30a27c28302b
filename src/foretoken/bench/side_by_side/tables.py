"""A record of `bench peers` as Markdown, which is also what a terminal shows."""

from __future__ import annotations

from typing import Any

from foretoken.bench.pages import asked, how_sure, markdown, memory, rehearsed, shown, times, where


def table(record: dict[str, Any]) -> str:
    """A record's rows as a table, with what was measured above it and what did not run below."""
    rows, sure = record["rows"], how_sure(record["suite"]["prompts"])
    ran = [_cells(row, sure) for row in rows if row["why"] is None]
    lines = [where(record), "", _about(record), ""]
    if ran:
        lines += [*markdown(list(ran[0]), [list(cells.values()) for cells in ran]), ""]
    for row in rows:
        lines += _remarks(row, f"- {row['engine']} {row['mode']}")
    for name, peer in record["peers"].items():
        versions = [f"{package} {version}" for package, version in peer.get("versions", {}).items()]
        lines += [f"- {name}: {', '.join(versions)}"] if versions else []
    return "\n".join(map(shown, lines)).rstrip() + "\n"


def _cells(row: dict[str, Any], sure: str) -> dict[str, str]:
    """A row's cells by column."""

    def compared(name: str) -> str:
        return times(row[name], row[f"{name}_interval"])

    return {
        "engine": row["engine"],
        "mode": row["mode"],
        "ms a token": f"{row['ms_per_token']:.1f}",
        "tokens/s": f"{row['tokens_per_second']:.1f}",
        "with prompts": f"{1e3 / row['ms_per_token_with_prompt']:.1f}",
        f"x our plain ({sure})": compared("times_our_plain"),
        f"x its own plain ({sure})": compared("times_own_plain"),
        f"our best is x ({sure})": compared("our_best_times"),
        "as its own plain": "" if row["of"] is None else _equal(row["equal_to_own_plain"], row["prompts"]),
        "as ours": f"{row['equal_to_ours']} of {row['prompts']} ({row['like_ours']:g} tokens)",
    }


def _remarks(row: dict[str, Any], name: str) -> list[str]:
    """Remarks on what a row's cells do not show, one line each; without times, also whether its tokens were right."""
    if row["why"] is not None and not row["prompts"]:
        return [f"{name} did not run: {row['why']}"]
    lines = []
    if row["why"] is not None:
        equal = "" if row["of"] is None else f" As its own plain: {_equal(row['equal_to_own_plain'], row['prompts'])}."
        lines.append(f"{name} has no times: {row['why']}.{equal}")
    found = row["first_difference"]
    if found is not None:
        others = row["prompts"] - row["equal_to_own_plain"]
        lines.append(
            f"{name} leaves its own plain decoding in {others} of {row['prompts']} prompts, first in "
            f"{found['prompt']} at token {found['position'] + 1}."
        )
    if row["disturbed"] and row["why"] is None:
        lines.append(f"{name} was disturbed {row['disturbed']} times, which are left out: measure on an idle machine.")
    if not row["repeatable"]:
        lines.append(f"{name} did not say the same every time.")
    return lines


def _about(record: dict[str, Any]) -> str:
    return (
        f"{record['model']}.{rehearsed(record)} {asked(record)}, greedily, {record['machine']['threads']} threads "
        f"each, in turn; promise {record['promise']}.{memory(record)} "
        "'ms a token' leaves out the time that the engine's plain mode needs for the prompt. What a draft model needs "
        "for the prompt is in it. 'with prompts' is tokens a second of the whole time. 'x' is how many times as fast a "
        "mode is, in the same turn. 'our best is x' says how many times as fast our best mode is: for each prompt, the "
        "mode that was fastest on the other prompts."
    )


def _equal(count: int, prompts: int) -> str:
    return f"yes, {count} of {prompts}" if count == prompts else f"NO, {count} of {prompts}"

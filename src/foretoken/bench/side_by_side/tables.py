"""A record of `bench peers` as Markdown, which is also what a terminal shows."""

from __future__ import annotations

from typing import Any

from foretoken.bench.report import markdown
from foretoken.errors import InputError, quoted


def table(record: dict[str, Any]) -> str:
    """A record's rows as a table, with what was measured above it and what did not run below.

    Raises InputError for a record that is not whole.
    """
    try:
        return _table(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = quoted(str(error), 80)
        raise InputError(f"the record of peers is not as `bench peers run` writes it ({why}); measure again") from None


def _table(record: dict[str, Any]) -> str:
    rows = record["rows"]
    ran = [row for row in rows if row["why"] is None]
    head = [
        "engine",
        "mode",
        "ms a token",
        "tokens/s",
        "x our plain (95 %)",
        "x its own plain (95 %)",
        "as its own plain",
        "as ours",
    ]
    body = [
        [
            row["engine"],
            row["mode"],
            f"{row['ms_per_token']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            _times(row["times_our_plain"], row["times_our_plain_interval"]),
            _times(row["times_own_plain"], row["times_own_plain_interval"]),
            "" if row["of"] is None else _equal(row["equal_to_own_plain"], row["prompts"]),
            f"{row['equal_to_ours']} of {row['prompts']} ({row['like_ours']:g} tokens)",
        ]
        for row in ran
    ]
    lines = [_about(record), "", *markdown(head, body), ""]
    for row in ran:
        found = row["first_difference"]
        if found is not None:
            others = row["prompts"] - row["equal_to_own_plain"]
            lines.append(
                f"- {row['engine']} {row['mode']} leaves its own plain decoding in {others} of {row['prompts']} "
                f"prompts, first in {found['prompt']} at token {found['position'] + 1}."
            )
        if row["disturbed"]:
            lines.append(
                f"- {row['engine']} {row['mode']} was disturbed {row['disturbed']} times: measure on an idle machine."
            )
        if not row["repeatable"]:
            lines.append(f"- {row['engine']} {row['mode']} did not say the same every time.")
    lines += [f"- {row['engine']} {row['mode']} did not run: {row['why']}" for row in rows if row["why"] is not None]
    lines += [f"- {name}: {_versions(peer)}" for name, peer in record["peers"].items() if peer.get("versions")]
    return "\n".join(lines).rstrip() + "\n"


def _about(record: dict[str, Any]) -> str:
    suite, rehearsal = record["suite"], record["rehearsal"]
    made = (
        ""
        if rehearsal is None
        else f", a rehearsal (shape {rehearsal['shape']}, says what {rehearsal['source']['name']} says)"
    )
    return (
        f"{record['model']}{made}; {suite['prompts']} prompts of {suite['name']}, {record['max_new_tokens']} new "
        f"tokens each, {record['repeats']} times, greedily, {record['machine']['threads']} threads each, in turn; "
        f"promise {record['promise']}. A token's time is without the prompt's; x is how many times as fast."
    )


def _times(value: float | None, interval: list[float] | None) -> str:
    return "" if value is None or interval is None else f"{value:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _equal(count: int, prompts: int) -> str:
    return f"yes, {count} of {prompts}" if count == prompts else f"NO, {count} of {prompts}"


def _versions(peer: dict[str, Any]) -> str:
    return ", ".join(f"{package} {version}" for package, version in peer["versions"].items())

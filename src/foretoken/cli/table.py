"""`foretoken generate --stats`: what each level did, in what time."""

from __future__ import annotations

from foretoken.results.completion import Completion

_POSITIONS = 8  # of a draft that are shown
_MEANING = (
    "rows: tokens that the passes computed. length: tokens gained in a check, on average. by position: how often the "
    "first, the second, ... token of a draft was accepted."
)


def print_stats(completion: Completion) -> None:
    """Print a table on standard error: the target, and each level, nearest to it first, with its drafts' fate."""
    from rich.console import Console
    from rich.table import Table

    stats = completion.stats
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for title in ("ms", "%", "passes", "rows", "drafted", "accepted", "%", "length"):  # mean acceptance length
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("by position")  # the only one that may wrap
    checked = (str(stats.passes), str(stats.passes + stats.draft_tokens))
    table.add_row("target", *_time(stats.check_seconds, stats.decode_seconds), *checked)
    for level in stats.levels:
        positions = [str(count) for count in level.accepted_per_position[:_POSITIONS]]
        table.add_row(
            level.name,
            *_time(level.seconds, stats.decode_seconds),
            *(str(count) if level.passes else "" for count in (level.passes, level.rows)),
            str(level.draft_tokens),
            str(level.accepted_tokens),
            f"{100 * level.draft_acceptance_rate:.0f}",
            f"{level.mean_acceptance_length:.2f}",
            " ".join(positions) + (" ..." if len(level.accepted_per_position) > _POSITIONS else ""),
        )
    between = stats.draft_seconds - sum(level.seconds for level in stats.levels)
    called, seconds = ("both at once", stats.seconds_at_once) if stats.seconds_at_once else ("between them", between)
    table.add_row(called, *_time(seconds, stats.decode_seconds), style="dim")
    table.add_row("all decoding", *_time(stats.decode_seconds, stats.decode_seconds))
    table.add_row("the prompt", _time(stats.prefill_seconds, 0.0)[0], style="dim")
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 120  # no need to wrap where no terminal ends
    console.print(table)
    console.print(_MEANING, style="dim")


def _time(seconds: float, whole: float) -> tuple[str, str]:
    return f"{seconds * 1e3:.1f}", f"{100 * seconds / whole if whole else 0:.0f}"

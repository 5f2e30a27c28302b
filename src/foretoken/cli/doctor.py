"""`foretoken doctor`: what runs on this machine, and why."""

from __future__ import annotations


def doctor() -> None:
    """Say what runs on this machine, and why."""
    from foretoken import __version__, explain

    print(f"foretoken {__version__}\n{explain()}")

"""The command `foretoken`, which is `python -m foretoken`, too."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    # Ctrl-C ends the process at once, from the first moment: the imports of all commands take a while. Nothing is ever
    # half-written, and libraries that are just being imported take Python's own way of telling for a failure of theirs
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell has it for what runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from foretoken.cli import app

    app.main()


if __name__ == "__main__":
    main()

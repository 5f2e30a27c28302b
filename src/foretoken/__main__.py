"""The command `foretoken`, which is `python -m foretoken`, too."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    # from the first moment, Ctrl-C ends the process without a traceback: the imports of all commands take a while
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from foretoken.cli import app

    app.main()


if __name__ == "__main__":
    main()

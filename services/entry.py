"""The command `gyre`: reading all commands takes a moment, in which Ctrl-C is no stack trace either."""

import sys

from services.exits import EXIT_INTERRUPTED


def main() -> None:
    """Run the command that was asked for."""
    try:
        from services.cli.app import app
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(EXIT_INTERRUPTED)
    app()

"""The command line: one small module per verb."""

from __future__ import annotations

import os

_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process; always ends in an exit code."""
    try:
        # Not before: Ctrl-C may come while all of it is being imported, and has to end like any other.
        from floodmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        os._exit(_INTERRUPTED)

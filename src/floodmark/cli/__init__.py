"""The `floodmark` command line: one module per group of commands."""

from __future__ import annotations

import os

_INTERRUPTED = 130


def main() -> None:
    """Run the `floodmark` command and exit with its exit code."""
    try:
        # Imported here, so that Ctrl-C during the imports also exits with 130.
        from floodmark.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        os._exit(_INTERRUPTED)

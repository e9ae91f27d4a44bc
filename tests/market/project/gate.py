"""Where a test can have a call wait, wherever it runs, and be told which process of which machine that is."""

import os
import time
from pathlib import Path

FOLDER = Path(__file__).parent / "gate"
CLOSED = FOLDER / "closed"
PATIENCE = 600.0


def wait() -> None:
    """While the gate is closed: say who waits there, and wait."""
    end = time.monotonic() + PATIENCE
    while CLOSED.exists():
        (FOLDER / f"waits-{os.getpid()}").write_text(str(Path.cwd()))
        if time.monotonic() > end:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.05)

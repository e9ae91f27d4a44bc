"""Waiting for a condition: the only kind of waiting in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 600.0
"""Seconds. It protects against hanging; no test depends on it."""


def wait_until(condition: Callable[[], object]) -> None:
    """Return once the condition is true; `TimeoutError` if it never is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition never became true")
        time.sleep(0.005)

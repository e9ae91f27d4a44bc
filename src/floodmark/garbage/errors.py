"""What keeps garbage from being collected."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class ClockAhead(FloodmarkError):
    """This machine's clock is far ahead of the store's, so what is young would look old. Nothing was removed."""

    seconds: float

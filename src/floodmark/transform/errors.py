"""What can go wrong with transforms."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class TransformError(FloodmarkError):
    """A step could not be declared, planned or run."""

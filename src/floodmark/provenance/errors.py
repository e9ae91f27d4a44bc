"""What can go wrong when somebody asks where a record came from."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class ProvenanceError(FloodmarkError):
    """The root of these errors."""


class NoSuchRecord(ProvenanceError):
    """There is no record at this offset, or no row with this key."""


class SeveralRecords(ProvenanceError):
    """A key, or a part of one, that several rows have."""

"""What can go wrong with a timeline. The ledger has every record whatever happens here."""

from __future__ import annotations

from floodmark.errors import FloodmarkError, LostRace, Unreadable


class TimelineError(FloodmarkError):
    """Something about a timeline is not as it must be."""


# What users ask for


class BadSettings(TimelineError):
    """Settings that no timeline can have."""

    setting: str
    given: object


class NoTimeline(TimelineError):
    """The dataset keeps no timeline."""

    name: str


class BadRange(TimelineError):
    """A start or an end that is no time, or a range that ends before it starts; a label that names no partition."""

    start: object
    end: object


class UnknownPartition(TimelineError):
    """A partition that the timeline does not have."""

    partition: str
    near: tuple[str, ...]


# What lies in the store


class UnreadablePiece(TimelineError, Unreadable):
    """A file that a timeline points at is gone, or is not what it was."""

    file: str


class BadManifest(TimelineError, Unreadable):
    """A manifest that is gone, torn, damaged or of another format."""

    key: str


class RootUnknown(TimelineError):
    """A change of the timeline may or may not have happened."""

    key: str


class PurgedMeanwhile(TimelineError, LostRace):
    """A change that would bring back records which were purged while it was made."""

    purged_before: int

"""What can go wrong with bytes at rest."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class StorageError(FloodmarkError):
    """A store could not do what was asked."""


class ObjectNotFound(StorageError):
    """There is no object under this key."""

    key: str
    url: str


class SwapUnknown(StorageError):
    """A compare-and-swap may or may not have happened."""

    key: str
    url: str


class BadKey(StorageError):
    """A key that would leave the store, or that no store could hold."""

    key: str


class BadStoreUrl(StorageError):
    """A place that no store can be opened from."""

    url: str


class NoHashRule(StorageError):
    """A type that the logical hash has no rule for, so that no slice can hold it."""

    data_type: str

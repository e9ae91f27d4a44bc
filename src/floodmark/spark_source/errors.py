"""What can go wrong between a dataset and a Spark job. Spark shows these inside of errors of its own."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class SourceError(FloodmarkError):
    """Something that a Spark job asks of a dataset cannot be."""


class BadOption(SourceError):
    """An option that is missing, unknown, or does not go with the others."""

    option: str


class BadColumns(SourceError):
    """Columns that the dataset does not have, or not so."""


class OperationsHidden(SourceError):
    """Records of a keyed dataset without the column that says what each of them does."""

    name: str


# Streams


class StreamLost(SourceError):
    """A stream's position says nothing about the dataset as it is now."""

    name: str


class UnknownQuery(SourceError):
    """Which streaming query a batch belongs to cannot be found out."""

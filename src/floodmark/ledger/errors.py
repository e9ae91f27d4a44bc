"""What can go wrong with datasets. Every class here means: nothing was made visible."""

from __future__ import annotations

from floodmark.errors import FloodmarkError, LostRace


class LedgerError(FloodmarkError):
    """Something about a dataset is not as it must be."""


# Names


class BadName(LedgerError):
    """A dataset name that is not one plain path segment."""

    name: str


class UnknownDataset(LedgerError):
    """There is no dataset of this name."""

    name: str


class DatasetExists(LedgerError):
    """A dataset of this name is there already."""

    name: str


# Data that is refused


class BadData(LedgerError):
    """The data given does not fit the dataset."""


class MissingColumns(BadData):
    """The data lacks columns that the dataset has."""

    columns: list[str]


class UnknownColumns(BadData):
    """The data has columns that the dataset does not have."""

    columns: list[str]


class DuplicateColumns(BadData):
    """The data has two columns of one name."""

    columns: list[str]


class TypeMismatch(BadData):
    """A column's type or a value in it does not fit the dataset."""

    column: str


class UnsupportedType(BadData):
    """A type that a dataset cannot hold."""

    column: str


class ReservedColumn(BadData):
    """A column name that belongs to the system columns."""

    column: str


class ReservedSource(BadData):
    """A source name that Floodmark itself uses."""


class BadEventTime(BadData):
    """The event time column is missing, of the wrong type, or null somewhere."""

    column: str


class BadPrimaryKey(BadData):
    """A key, or a merge strategy, that the data or the dataset does not allow."""


class NullKey(BadPrimaryKey):
    """A row without a value in a column of its key."""

    column: str


class DuplicateKeys(BadPrimaryKey):
    """Several rows of one batch have one key, where only one may."""

    keys: list[dict[str, object]]


class BadOperation(BadPrimaryKey):
    """An operation column that is missing, out of range, or contradicts what the dataset holds."""


class UnfitResult(BadData):
    """A transform's result whose columns do not go on with those of its output."""

    column: str


class NothingToWrite(BadData):
    """The data has no rows, so there is nothing to commit."""


class UnreadableFile(BadData):
    """A file cannot be read as what it should be."""

    path: str


class NoFiles(BadData):
    """A path or glob that matches no data file."""

    path: str


class UnsupportedData(BadData):
    """Something that is neither a frame nor a path."""


# Commits


class CommitConflict(LedgerError, LostRace):
    """The commit did not happen: others kept committing first."""


class CommitUnknown(LedgerError):
    """The commit may or may not have happened; the chain will tell."""


class WatermarkBack(LedgerError):
    """A watermark that lies before the present one."""


class ReadOnlyDataset(LedgerError):
    """A dataset that takes no outside data."""


# Reading


class NoSchema(LedgerError):
    """A dataset that has no columns yet."""


class BadAsOf(LedgerError):
    """A point in a dataset's past that does not exist."""


class Purged(LedgerError):
    """Records that a purge has removed."""

    purged_before: int


class UnreadableSlice(LedgerError):
    """A file of the dataset is missing or damaged."""


class BadQuery(LedgerError):
    """A query or filter that does not parse or names unknown columns."""


# Derived files


class BadIndex(LedgerError):
    """A file of the key index is missing or damaged; the index can always be made again from the records."""

    file: str


def bad_index(file: str, problem: str) -> BadIndex:
    return BadIndex(
        f"the file {file!r} of the key index cannot be used: {problem}",
        hint="nothing is lost: the index is made again from the records",
        file=file,
    )

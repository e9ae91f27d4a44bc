"""What can go wrong with computed columns. Every class here means: nothing half written can be seen."""

from __future__ import annotations

from floodmark.errors import BadFunctionResult, FloodmarkError, LostRace, Unreadable


class ComputeError(FloodmarkError):
    """Something about a computed column or its function is not as it must be."""


class CheckpointCoverageError(ComputeError, Unreadable):
    """Rows that should be in checkpoints are not: a gap that nobody may fill with nulls."""

    column: str


class BadCheckpoint(ComputeError):
    """A checkpoint is torn, damaged or another key's; its range has to be computed again."""

    key: str
    problem: str


class UnknownFunction(ComputeError):
    """The function of a column is not known in this process."""

    column: str


# Columns and their files


class UnknownColumn(ComputeError):
    """There is no computed column of this name."""

    column: str


class BadCatalog(ComputeError):
    """The catalog of a dataset's computed columns is damaged or from a newer release."""

    key: str


class BadColumn(ComputeError):
    """The manifest of a computed column is missing, damaged or another column's."""

    column: str
    key: str


class UnreadableColumn(ComputeError):
    """A file with values of a computed column is missing, damaged or another column's."""

    column: str
    key: str
    start: int
    end: int


class BadRowErrors(ComputeError):
    """A file with the errors of skipped rows is missing or damaged."""

    key: str


class ColumnExists(ComputeError):
    """The dataset has a column of this name already."""

    column: str


class BadColumnName(ComputeError, ValueError):
    """A name that no computed column can have."""

    column: str


class UnknownInput(ComputeError):
    """A function takes a column that the dataset does not have."""

    column: str
    input: str


class InputNotComputed(ComputeError):
    """A function takes a computed column that has no values yet for some of the records."""

    column: str
    input: str
    rows: int


class CyclicColumns(ComputeError):
    """A column would be computed from itself."""

    column: str
    input: str


class ColumnInUse(ComputeError):
    """A column cannot go while others are computed from it."""

    column: str
    dependents: list[str]


class ColumnTypeChange(ComputeError):
    """A function that returns another type than the column has."""

    column: str


class BadFragmentRows(ComputeError):
    """A number of rows that fragments cannot have, or not any more."""

    fragment_rows: int


class ColumnChanged(ComputeError):
    """A column was dropped or altered while values were computed for it."""

    column: str


class ManifestMoved(ComputeError, LostRace):
    """Others changed a column, or what it is computed from, first; planning again is all it takes."""

    column: str


# Functions and their results


class BadFunction(ComputeError, TypeError):
    """A function cannot be a column's: its parameters, its result's type or its options are not usable."""

    function: str


class BadCheckpointSize(ComputeError, ValueError):
    """A checkpoint's bounds are below one, or the smallest is above the largest."""

    minimum: int
    maximum: int | None


class NoVersion(ComputeError):
    """A function's version cannot be told from its code and the values it uses."""

    function: str


class NoSource(NoVersion):
    """The source text of a function, or of something it calls, is not at hand."""


class NoCanonicalForm(NoVersion):
    """A function uses a value whose content cannot be written down the same way in every process."""

    value_type: str
    path: str


class UnpicklableFunction(ComputeError):
    """A function holds something that cannot be sent to another process."""

    function: str
    reason: str


class FunctionFailed(ComputeError):
    """A column's function raised, and nothing in on_error says to go on."""

    column: str
    offsets: tuple[int, ...]
    start: int
    end: int
    error_type: str
    error_message: str
    traceback: str
    attempts: int
    called: int


class BadResult(ComputeError, BadFunctionResult):
    """A column's function gave values of the wrong number or type, or nulls where none may be."""

    column: str
    start: int
    end: int
    offsets: tuple[int, ...]

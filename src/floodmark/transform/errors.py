"""What can go wrong with transforms."""

from __future__ import annotations

from floodmark.errors import BadFunctionResult, FloodmarkError, Unreadable


class TransformError(FloodmarkError):
    """A step could not be declared, planned or run."""


# Steps and their outputs


class BadStep(TransformError):
    """A step is declared in a way that cannot work."""


class OutputTaken(TransformError):
    """A dataset that a step is to write belongs to somebody else: data is written to it, or another step's results."""


class KeysChanged(TransformError):
    """A step's transform keys are not those that its output was made with."""


class NewVersion(TransformError):
    """Part of the keys was asked for, but the function is new, so that everything has to be computed once."""


# Declaring


class BadSpec(TransformError):
    """An input or output that is declared in a way that cannot work."""


class BadKeys(TransformError):
    """Transform keys that the inputs and outputs of a step do not allow."""


class BadFilter(TransformError):
    """A filter or an order that the transform keys do not allow."""


# Planning


class InputMoved(TransformError, Unreadable):
    """What a step had pinned of an input was replaced while it was read: nothing was committed, plan again."""

    input: str


# Functions and what they return


class BadFunction(TransformError):
    """A function that a step cannot call, or that cannot be sent to a worker."""

    function: str


class BadResult(TransformError, BadFunctionResult):
    """What a function returned is not what any call of it may return: no frame, or not the output's columns."""

    function: str
    output: str | None


class UndecidedColumn(BadResult):
    """A column in which a function returned nothing but nulls, so that nobody knows its type."""

    column: str


class WorkersKeepDying(TransformError):
    """Workers died over so many keys that it is not the keys: the function, or the machine."""

    function: str


class KeyFailed(TransformError):
    """The function failed for one key of a step that stops at the first failure."""

    function: str
    key: dict[str, object]
    error_type: str
    error_message: str
    traceback: str


class UnfitRows(TransformError):
    """Rows that a function returned cannot be rows of the output; keeps failing with the keys they came from."""

    output: str


class UnfitValues(UnfitRows):
    """Values that are not of their column's type."""

    column: str | None


class NullOutputKey(UnfitRows):
    """Rows without a value in a column of the output's key."""

    column: str


class DuplicateOutputKeys(UnfitRows):
    """Several rows with one output key."""

    keys: list[dict[str, object]]


class KeysOutsideChunk(UnfitRows):
    """Rows with transform keys that the function was not given."""

    keys: list[dict[str, object]]


# What a step remembers


class BadMeta(TransformError):
    """A file of a step's meta is gone or damaged: which keys are done is not known any more."""

    file: str
    dataset: str


# Steps that bring rows in, or work on whole datasets


class FunctionFailed(TransformError):
    """The function of a step that works on everything at once raised an error: nothing of this run was written."""

    step: str


class NothingCame(TransformError):
    """A full refresh came to no rows at all, which would have deleted everything: nothing was written."""

    step: str


class DifferingFrames(TransformError):
    """Frames for one output that have different columns, or types that have nothing in common."""

    output: str


class BadSource(TransformError):
    """An external table that is declared in a way that cannot work, or that is not there."""


class SourceFailed(TransformError):
    """A database could not be read: nothing of this run was written."""


class MissedByPurge(TransformError):
    """Records of an input were purged before a step had read them."""

    input: str
    position: int
    purged_before: int

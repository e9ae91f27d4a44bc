"""The errors that callers catch, grouped by topic. Errors inside one package are beside the code that raises them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, Self


class FloodmarkError(Exception):
    """An error with what happened, where, and what to do about it.

    ``message`` is a sentence, ``hint`` is the next action, and every keyword becomes an attribute, so that callers
    do not have to parse text. Errors can be pickled, because they cross process boundaries in Spark.
    """

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    @classmethod
    def _of(cls, message: str, hint: str, facts: dict[str, Any]) -> Self:
        error = cls.__new__(cls)
        FloodmarkError.__init__(error, message, hint=hint, **facts)
        return error


def _rebuild(cls: type[FloodmarkError], message: str, hint: str, facts: dict[str, Any]) -> FloodmarkError:
    return cls._of(message, hint, facts)


def close_matches(name: str, known: Iterable[str]) -> list[str]:
    """The known name that a misspelled one probably means, if any: ID for id, fare for faer."""
    names = list(known)
    same = [one for one in names if one.lower() == name.lower()]
    if same:
        return same[:1]
    by_lower = {one.lower(): one for one in reversed(names)}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, 1)]


class LostRace(FloodmarkError):
    """Another writer changed the state first and nothing was committed: plan again from the current state."""


class Unreadable(FloodmarkError):
    """Part of a snapshot cannot be read: another writer replaced it, or it is damaged."""


@dataclass(frozen=True)
class CodeLocation:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


# The metadata chain


class ChainError(FloodmarkError):
    """A dataset's metadata is invalid."""


class BadId(ChainError):
    """Text or bytes that are not a supported multihash, or not a dataset id."""


class CorruptBlock(ChainError):
    """Bytes that are not a metadata block."""

    expected: object
    actual: object


class UnsupportedBlockVersion(ChainError):
    """A block in a format version that this release does not support."""

    version: int


class HasSequenceNumber(Protocol):
    """An object with a sequence number, such as a block."""

    @property
    def sequence_number(self) -> int: ...


class Rule(Enum):
    """A rule that a block can break: the rule's number, 1 to 8, and how a block breaks it."""

    SEED_MISSING = 1, "the first block of a chain is not a Seed"
    SEED_REPEATED = 1, "a Seed occurs after the first block"
    SEQUENCE_BROKEN = 1, "a block's sequence number does not follow its predecessor's"
    PREV_BLOCK_MISMATCH = 1, "a block does not name the hash of the block before it"
    SYSTEM_TIME_WENT_BACK = 2, "a block's system time is before its predecessor's"
    WATERMARK_WENT_BACK = 2, "a watermark is earlier than the previous one"
    WATERMARK_LOST = 2, "a data block does not carry the watermark that was set before"
    PREV_OFFSET_MISMATCH = 3, "a data block does not continue from the chain's last offset"
    OFFSET_GAP = 3, "new data does not start right after the chain's last offset"
    INTERVAL_REVERSED = 3, "new data ends before it starts"
    NO_OP_EVENT = 4, "a data block changes nothing"
    DATA_BEFORE_SCHEMA = 5, "data comes before the chain's first SetDataSchema"
    PREV_CHECKPOINT_MISMATCH = 5, "a data block does not continue from the chain's last checkpoint"
    SOURCE_STATE_LOST = 5, "an AddData block does not carry the source state that was set before"
    WRONG_DATASET_KIND = 6, "an event that this kind of dataset cannot have"
    TRANSFORM_MISSING = 6, "ExecuteTransform comes before any SetTransform"
    INPUTS_MISMATCH = 6, "ExecuteTransform does not list the transform's inputs in their order"
    INPUT_POSITION_MISMATCH = 6, "an input does not continue from where the last transaction left it"
    INPUT_NOT_ADVANCED = 6, "an input's new position equals its previous one, or goes back"
    INPUT_OFFSET_WITHOUT_BLOCK = 6, "an input has a new offset but no new block"
    TRANSFORM_WITHOUT_INPUTS = 7, "SetTransform names no input"
    DUPLICATE_INPUT = 7, "SetTransform names the same input or alias twice"
    UNRESOLVED_INPUT = 7, "an input of SetTransform is not a dataset id"
    UNALIASED_INPUT = 7, "an input of SetTransform has no alias"
    QUERY_ALIAS_MISPLACED = 7, "a query step other than the last has no alias, or the last one has"
    FIELD_REMOVED = 8, "a field of the old schema is missing"
    FIELD_TYPE_CHANGED = 8, "a field has another type than before"
    FIELD_OPTIONALITY_CHANGED = 8, "a field changed from optional to required, or from required to optional"
    NEW_FIELD_REQUIRED = 8, "a new field is not optional, but older records do not have it"
    DUPLICATE_FIELD = 8, "two fields of a schema have the same name"
    SCHEMA_UNCHANGED = 8, "SetDataSchema repeats the schema that the dataset already has"
    SCHEMA_MISSING = 8, "SetDataSchema has no schema that can be read, or the old form after the new one"

    def __init__(self, number: int, broken_by: str) -> None:
        self.number = number
        self.broken_by = broken_by


class RuleBroken(ChainError):
    """A block breaks a rule that every chain must satisfy."""

    rule: Rule
    sequence_number: int
    hash: object
    field: str

    @classmethod
    def at(cls, block: HasSequenceNumber, rule: Rule, message: str, *, hint: str = "", **facts: Any) -> Self:
        """The error for a block that breaks a rule."""
        facts["sequence_number"] = block.sequence_number
        return cls(f"Block {block.sequence_number}: {message}", hint=hint, rule=rule, **facts)


# Stores


class StorageError(FloodmarkError):
    """A storage operation failed."""

    key: str


class ObjectNotFound(StorageError):
    """There is no object under this key."""

    key: str
    url: str


class SwapUnknown(StorageError):
    """A compare-and-swap may or may not have happened."""

    key: str
    url: str


class BadStoreUrl(StorageError):
    """An address that no store can be opened from."""

    url: str


# Spark, worker processes, tasks


class EngineError(FloodmarkError):
    """Tasks could not be run."""

    function: str
    python: str


class JavaNotFound(EngineError):
    """Spark needs Java 17 or newer, and none was found."""

    found: tuple[str, ...]


class TaskFailed(EngineError):
    """A task failed in every attempt."""

    task: str
    attempts: int
    error_type: str
    trace: str


class Cancelled(EngineError):
    """The work was cancelled before it was finished."""

    done: int
    total: int


# Datasets


class LedgerError(FloodmarkError):
    """An operation on a dataset failed or is not allowed."""


class BadName(LedgerError):
    """A dataset name that is not a single plain path segment."""

    name: str
    column: str


class UnknownDataset(LedgerError):
    """There is no dataset with this name."""

    name: str


class DatasetExists(LedgerError):
    """A dataset with this name already exists."""

    name: str


class DatasetInUse(LedgerError):
    """Other datasets are computed from this one, so it was not dropped."""

    dataset: str
    readers: list[str]


class BadData(LedgerError):
    """The given data does not fit the dataset."""


class MissingColumns(BadData):
    """The data lacks columns that the dataset has."""

    columns: list[str]


class UnknownColumns(BadData):
    """The data has columns that the dataset does not have."""

    columns: list[str]


class BadColumnName(BadData):
    """A column name that occurs twice, is empty, or is reserved for a system column."""

    column: str
    columns: list[str]


class TypeMismatch(BadData):
    """A column's type or a value in it does not fit the dataset."""

    column: str


class UnsupportedType(BadData):
    """A column type that a dataset cannot have."""

    column: str
    data_type: str


class BadEventTime(BadData):
    """The event time column is missing, has the wrong type, or has nulls."""

    column: str


class BadPrimaryKey(BadData):
    """A key or merge strategy that does not fit the data or the dataset."""

    column: str


class DuplicateKeys(BadPrimaryKey):
    """Several rows of one batch have the same key, where only one may."""

    keys: list[dict[str, object]]


class NothingToWrite(BadData):
    """The data has no rows, so there is nothing to commit."""


class UnreadableFile(BadData):
    """A file cannot be read in its expected format."""

    path: str


class CommitConflict(LedgerError, LostRace):
    """The commit did not happen, because other writers kept committing first."""


class CommitUnknown(LedgerError):
    """The commit may or may not have happened; the metadata chain shows which."""

    key: str


class ReadOnlyDataset(LedgerError):
    """A write to a dataset that accepts no outside data."""


class NoSchema(LedgerError):
    """The dataset has no columns yet."""


class RecordsPurged(LedgerError):
    """The requested records were removed by a purge."""

    purged_before: int
    input: str
    position: int


class BadPosition(LedgerError):
    """A position, time or block that is not in this dataset: beyond the end, of another dataset or older copy."""

    dataset_id: str
    last_offset: int | None
    since: str


class UnreadableSlice(LedgerError):
    """A file of the dataset is missing or damaged."""


class PurgedWhileRead(UnreadableSlice, RecordsPurged):
    """A purge removed records while they were read. Another read shows what is left."""


DAMAGED_HINT = "a file of the dataset is missing or damaged: call verify() to find out which"


class BadQuery(LedgerError):
    """A query or filter that does not parse or uses unknown columns."""


class BadIndex(LedgerError):
    """A file of the key index is missing or damaged. The index can be rebuilt from the records."""

    file: str


def bad_index(file: str, problem: str) -> BadIndex:
    return BadIndex(
        f"the file {file!r} of the key index cannot be used: {problem}",
        hint="no data is lost: the index is rebuilt from the records",
        file=file,
    )


# Everything derived: functions, columns, steps, views


class DerivationError(FloodmarkError):
    """A step, computed column or view could not be declared, planned or run."""

    column: str | None
    input: str
    rows: int
    dependents: list[str]


class BadFunction(DerivationError, TypeError):
    """A function that cannot be used: bad parameters, result type or options, or it cannot be pickled."""

    function: str
    reason: str
    column: str


class NoVersion(DerivationError):
    """A function's version cannot be computed from its code and the values it uses."""

    function: str
    value_type: str
    path: str


class BadResult(DerivationError):
    """A function returned an invalid result."""

    function: str
    column: str
    output: str | None
    start: int
    end: int
    offsets: tuple[int, ...]


class UndecidedColumn(BadResult):
    """A column in which a function returned only nulls, so its type is unknown."""

    column: str


class RunFailed(DerivationError):
    """A run failed: a function raised errors that it must not, or a step of a pipeline failed.

    `report` has what the run of a pipeline did, or the run of a step in which too many keys failed. It is None if the
    first failure ended the run. With `check=False`, `run` returns the report instead.
    """

    report: Any = None


class FunctionFailed(RunFailed):
    """A column's function raised an error that on_error does not handle."""

    column: str
    offsets: tuple[int, ...]
    start: int
    end: int
    error_type: str
    error_message: str
    traceback: str
    attempts: int
    called: int


class KeyFailed(RunFailed):
    """The function failed for one key of a step that stops at the first failure."""

    function: str
    key: dict[str, object]
    error_type: str
    error_message: str
    traceback: str


class StepFailed(RunFailed):
    """The function of a step that processes all data at once raised an error; this run wrote nothing."""

    step: str


class UnfitRows(DerivationError):
    """Returned rows that do not fit the output. It counts as a failure of the keys they came from."""

    output: str
    column: str | None
    keys: list[dict[str, object]]


class InputMoved(DerivationError, Unreadable):
    """An input snapshot was replaced while a step read it; nothing was committed: plan again."""

    input: str


class BadMeta(DerivationError):
    """A file of a step's meta is missing or damaged, so it is unknown which keys are done."""

    file: str
    dataset: str


# Computed columns


class UnknownColumn(DerivationError):
    """There is no computed column with this name."""

    column: str
    input: str


class ColumnExists(DerivationError):
    """The dataset already has a column with this name."""

    column: str


class UnreadableColumn(DerivationError):
    """A file of computed columns (catalog, manifest, values, row errors) is missing, damaged or not the right one."""

    column: str
    key: str
    start: int
    end: int


class BadCheckpoint(DerivationError):
    """A checkpoint is incomplete, damaged or has another key; its range must be computed again."""

    key: str
    problem: str


class CheckpointCoverageError(DerivationError, Unreadable):
    """Rows are missing from checkpoints; filling the gap with nulls would be wrong."""

    column: str


# Steps and sources


class BadStep(DerivationError):
    """An invalid step declaration."""


class OutputTaken(DerivationError):
    """A step's output dataset has outside data, another step's results, or rows of other transform keys."""


class NothingCame(DerivationError):
    """A full refresh returned no rows, which would delete everything; nothing was written."""

    step: str


class BadSource(DerivationError):
    """An invalid or missing external table."""


class SourceFailed(DerivationError):
    """A database could not be read; this run wrote nothing."""


# Views


class ViewError(DerivationError):
    """A view could not be declared or refreshed."""

    view: str


class BadView(ViewError):
    """An invalid view definition."""

    setting: str
    value: str


class ViewChanged(ViewError):
    """A new definition changes an existing view's key or a column's type.

    Such a view is replaced by a new one, unless it has computed columns, which a replacement would lose.
    """


class NotAView(ViewError):
    """The dataset is not a view."""


class SourceGone(ViewError):
    """An input dataset of a view no longer exists."""

    source: str


class QueryFailed(ViewError):
    """Spark failed to run a view's query."""


def never_refreshed(view: str) -> ViewError:
    return ViewError(
        f"view {view!r} was never refreshed and has no data to read yet",
        hint=f"refresh it first: lake.view({view!r}).refresh(), or `floodmark refresh {view}`",
        view=view,
    )


# Timelines


class TimelineError(FloodmarkError):
    """An operation on a timeline failed."""


class NoTimeline(TimelineError):
    """The dataset has no timeline."""

    name: str


class BadRange(TimelineError):
    """An invalid time, a range that ends before it starts, or an unknown partition label."""

    start: object
    end: object
    partition: str
    near: tuple[str, ...]


class UnreadablePiece(TimelineError, Unreadable):
    """A file of a timeline is missing or has changed."""

    file: str


class BadManifest(TimelineError, Unreadable):
    """A manifest that is missing, incomplete, damaged or in another format."""

    key: str


# Pipelines


class PipelineError(FloodmarkError):
    """A pipeline could not be declared, found, loaded or run."""


class UnknownStep(PipelineError):
    """The pipeline has no step with this name."""

    name: str


class NoPipeline(PipelineError):
    """No pipeline file was found."""

    path: str


class BadPipelineFile(PipelineError):
    """A pipeline file, or the floodmark.toml that names it, cannot be used."""

    path: str
    line: int | None


class UnreadableToml(BadPipelineFile):
    """A floodmark.toml file that is not valid TOML."""


@dataclass(frozen=True)
class DeclarationProblem:
    """A problem in one declaration: what, where, and what to do about it."""

    message: str
    hint: str
    place: CodeLocation | None = None

    def __str__(self) -> str:
        return self.message if self.place is None else f"{self.place}: {self.message}"


class BadPipeline(PipelineError):
    """Declarations that contradict each other or the lake. Raised before anything runs."""

    problems: tuple[DeclarationProblem, ...]
    path: str | None
    line: int | None

    @classmethod
    def of(cls, problems: Sequence[DeclarationProblem]) -> BadPipeline:
        """One error for all problems, with the file and line of each."""
        first = problems[0]
        place = {"path": None, "line": None} if first.place is None else _facts(first.place)
        if len(problems) == 1:
            return cls(str(first), hint=first.hint, problems=tuple(problems), **place)
        listed = "\n".join(f"  {problem}\n    {problem.hint}".rstrip() for problem in problems)
        hint = "nothing was run: fix these problems, then run it again"
        return cls(f"{len(problems)} problems:\n{listed}", hint=hint, problems=tuple(problems), **place)


def _facts(place: CodeLocation) -> dict[str, str | int]:
    return {"path": place.file, "line": place.line}


class Busy(PipelineError):
    """Another process is running the pipelines of this lake."""

    pid: int | None
    host: str | None
    since: str | None


# Provenance, Spark jobs, maintenance


class BackupError(FloodmarkError):
    """A backup or a restore was not done."""


class BadBackup(BackupError):
    """A backup is incomplete or damaged, or a lake cannot be backed up as it is."""

    key: str
    url: str
    dataset_id: str


class NewerData(BackupError):
    """It would replace newer data."""

    datasets: Sequence[str]
    dataset_id: str


class UnknownRecord(FloodmarkError):
    """There is no record at this offset, or no row with this key."""


class BadOption(FloodmarkError, ValueError):
    """An option that is missing, unknown, or in conflict with another option."""

    option: str
    minimum: int
    maximum: int | None
    fragment_rows: int
    setting: str
    given: object
    name: str


class StreamLost(FloodmarkError):
    """A stream's position does not belong to the current dataset."""

    name: str

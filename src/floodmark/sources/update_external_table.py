"""`UpdateExternalTable`: a dataset that follows a database table, polled for changes since the last poll."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.chain.events import AddData, SourceState
from floodmark.chain.walk import walk_back
from floodmark.derive.run import Derivation, run_derivation, take_dataset_turn
from floodmark.errors import BadSource, BadStep, CommitConflict
from floodmark.ledger.commit import Commit, to_datetime
from floodmark.ledger.snapshot import Snapshot
from floodmark.sources import polling
from floodmark.sources.external_table import ExternalTable, SourceColumn
from floodmark.sources.ingest import (
    OutputOvertaken,
    OutputWrite,
    RootOutput,
    Spool,
    WriteMode,
    create_root_output,
    find_output,
)
from floodmark.sources.polling import Cursor, CursorValue, Overlap, SourceTable, check_overlap, connect, reflect_table
from floodmark.storage.scratch import staging_area
from floodmark.transforms.specs import InputSpec, OutputSpec, as_output
from floodmark.transforms.step import (
    RunReport,
    Step,
    StepStatus,
    check_count,
    no_rows_error,
    refresh_report,
    refresh_status,
)

_STATE = "floodmark.dev/cursor"
_START = ""
"""The state of a source that the next poll reads from its start."""
_TRIES = 5
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class PollPlan:
    """What a poll would read now: `rows` rows from `start` on (inclusive); all rows if `start` is None."""

    step: str
    source: str
    column: str
    cursor: CursorValue | None
    start: CursorValue | None
    rows: int


class UpdateExternalTable(Step):
    """Keeps a dataset up to date with a table or view in a database, by a column that grows with every change.

    `source` is an ExternalTable(url, table) or the text "URL#table"; `cursor` is the column. A poll reads the rows from
    the greatest cursor value of earlier polls on (inclusive), and rows with a null cursor. Unchanged rows are not
    written again. The cursor is committed with the rows. With `overlap`, a poll reads this much further back, for rows
    that are committed late with an earlier time; the default is ten minutes if the cursor is a time.

    Only `run(lake, full=True)` finds rows that were deleted from the table, or that changed without a new cursor value.
    `key` identifies a row, by default the table's primary key. A full run that finds no rows is refused as a mistake,
    unless `allow_empty` is set. Rows are fetched `batch_rows` at a time.
    """

    def __init__(
        self,
        output: Any,
        source: ExternalTable | str,
        cursor: str = "updated_at",
        *,
        key: Sequence[str] | str | None = None,
        overlap: Overlap | None = None,
        batch_rows: int = _BATCH_ROWS,
        labels: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        name: str | None = None,
        allow_empty: bool = False,
    ) -> None:
        self.output: OutputSpec = _with_key(as_output(output), key)
        super().__init__(name if name is not None else f"update_{self.output.name}", (), [self.output.name], labels)
        self.source = ExternalTable.parse(source)
        self.cursor = cursor
        self.overlap = overlap
        if not isinstance(cursor, str) or not cursor:
            raise BadStep(
                f"cursor={cursor!r} of step {self.name!r} is not a column name",
                hint="name a column: cursor='updated_at'",
            )
        if overlap is not None and (not isinstance(overlap, Overlap) or isinstance(overlap, bool)):
            raise BadStep(
                f"overlap={overlap!r} of step {self.name!r} is neither a timedelta nor a number",
                hint="give the distance to read back: overlap=timedelta(minutes=10)",
            )
        if overlap is not None and abs(overlap) != overlap:
            raise BadStep(f"overlap={overlap!r} of step {self.name!r} is negative", hint="give a positive overlap")
        self.batch_rows = check_count(batch_rows, "batch_rows", self.name)
        self.allow_empty = allow_empty

    @property
    def shares_outputs(self) -> bool:
        return True  # one dataset may be filled from tables of several databases

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (self.output,)

    # Running

    def run(self, lake: Any, *, full: bool = False) -> RunReport:
        """Read and commit changes. With `full`, read the whole table, and retract rows that it no longer has."""
        started = time.monotonic()
        run_id = self._in(lake).runtime.random_bytes(16).hex()
        try:
            rows, commit = run_derivation(_Poll(self, lake, full), tries=_TRIES)
        except OutputOvertaken as error:
            raise CommitConflict(
                f"step {self.name!r} lost {_TRIES} races against other writers of {self.output.name!r}; "
                "nothing was written",
                hint="run it again, and let only one process at a time poll",
            ) from error
        commits = [] if commit is None else [commit]
        return refresh_report(self.name, run_id, rows, 1, commits, time.monotonic() - started)

    def _output(self, lake: Any, shape: SourceTable) -> RootOutput:
        output = find_output(lake, self.output, self.name)
        if output.key:
            return output
        if not shape.primary_key:
            raise BadSource(
                f"{self.source.source} has no primary key",
                hint="name the columns that identify a row: UpdateExternalTable(…, key=['id'])",
            )
        return RootOutput(output.spec, shape.primary_key, None)

    def _new_state(self, snapshot: Snapshot, before: str | None, reached: Cursor | None) -> SourceState | None:
        """The state to commit; None if the chain already has it."""
        value = _START if reached is None else reached.to_text()
        if value == before and _is_newest(snapshot, self.source.source):
            return None
        if reached is None and before is None:
            return None
        return SourceState(source_name=self.source.source, kind=_STATE, value=value)

    # Inspecting

    def plan(self, lake: Any) -> PollPlan:
        """The rows that the next run would read. Writes nothing."""
        from sqlalchemy import func, select

        with connect(self.source) as connection:
            shape = reflect_table(connection, self.source, self.cursor)
            check_overlap(self.overlap, shape.cursor.type, self.cursor)
            output = self._output(self._in(lake), shape)
            reached = None if output.snapshot is None else _cursor(_state(output.snapshot, self.source.source), shape)
            start = None if reached is None else reached.start(self.overlap)
            query = shape.query((), start, output.key).order_by(None).subquery()
            rows = int(connection.execute(select(func.count()).select_from(query)).scalar_one())
        value = None if reached is None else reached.value
        return PollPlan(self.name, self.source.source, self.cursor, value, start, rows)

    def status(self, lake: Any) -> StepStatus:
        """The number of rows of the output. It does not query the database; `plan` does."""
        return refresh_status(self.name, self.output_names, self._in(lake))

    def reset(self, lake: Any) -> None:
        """Forget how far the table was read, so that the next run reads all of it. The output does not change."""
        output = find_output(self._in(lake), self.output, self.name)
        if output.snapshot is None or _state(output.snapshot, self.source.source) is None:
            return
        note = SourceState(source_name=self.source.source, kind=_STATE, value=_START)
        with staging_area(lake.store) as folder:
            OutputWrite(output, Spool(folder, output.name), "upsert", note).commit(lake)


@dataclass(frozen=True)
class _PollState:
    """The table's current definition, and the dataset that follows it."""

    shape: SourceTable
    columns: Sequence[SourceColumn]
    output: RootOutput

    @property
    def snapshot(self) -> Snapshot:
        assert self.output.snapshot is not None
        return self.output.snapshot


@dataclass
class _Poll(Derivation[_PollState, tuple[int, Commit | None]]):
    """One poll. Its report is the number of rows that were read, and the commit if they changed anything."""

    step: UpdateExternalTable
    lake: Any
    full: bool

    def take_snapshot(self) -> _PollState:
        step = self.step
        with connect(step.source) as connection:
            shape = reflect_table(connection, step.source, step.cursor)
        check_overlap(step.overlap, shape.cursor.type, step.cursor)
        output = step._output(self.lake, shape)
        return _PollState(shape, shape.chosen(output.key, output.columns), output)

    def prepare(self, state: _PollState) -> bool:
        if state.output.snapshot is not None:
            return False
        create_root_output(
            self.lake, state.output, state.output.columns or pa.schema([(c.name, c.type) for c in state.columns])
        )
        return True

    def turn(self, state: _PollState) -> AbstractContextManager[None]:
        other = f"another run of {self.step.name}"
        return take_dataset_turn(state.snapshot.objects, other, self.lake.runtime.progress())

    def moved(self, state: _PollState) -> bool:
        return state.snapshot.has_moved

    def attempt(self, state: _PollState) -> tuple[int, Commit | None]:
        step, lake, output, shape = self.step, self.lake, state.output, state.shape
        with staging_area(lake.store) as folder, closing(Spool(folder, output.name)) as spool:
            before = _state(state.snapshot, step.source.source)
            reached = _cursor(before, shape)
            start = None if self.full or reached is None else reached.start(step.overlap)
            # The time before the query: rows written while it runs may be dated later and be missing from its result.
            now = to_datetime(lake.runtime.clock())
            with connect(step.source) as connection:
                query = shape.query(state.columns, start, output.key)
                newest = polling.read_query(connection, shape, state.columns, query, step.batch_rows, spool, now)
            if self.full and not spool.rows and not step.allow_empty and lake[output.name].count():
                raise no_rows_error(step.name, output.name, f"{step.source.source} has no rows")
            reaching = newest if self.full or reached is None else _greater(reached, newest)
            note = step._new_state(state.snapshot, before, reaching)
            way: WriteMode = "snapshot" if self.full else "upsert"
            # The merge expects the head for which the rows were read; a commit in between is a lost race.
            return spool.rows, OutputWrite(output, spool, way, note, state.snapshot.head).commit(lake)


def _with_key(spec: OutputSpec, key: Sequence[str] | str | None) -> OutputSpec:
    if key is None:
        return spec
    given = (key,) if isinstance(key, str) else tuple(key)
    if spec.key is not None and tuple(spec.key) != given:
        raise BadStep(
            f"the output {spec.name!r} has the key {list(spec.key)}, not {list(given)}", hint="give only one of the two"
        )
    return OutputSpec(spec.dataset, given, spec.schema, spec.event_time, spec.vocab)


def _state(snapshot: Snapshot, source: str) -> str | None:
    """The newest state of a source on the chain. Other sources may have committed after it."""
    if _is_newest(snapshot, source):
        assert snapshot.state.source_state is not None
        return snapshot.state.source_state.value
    if snapshot.state.source_state is None:
        return None
    for _, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        event = block.event
        if isinstance(event, AddData) and (state := event.new_source_state) is not None and state.source_name == source:
            return state.value
    return None


def _is_newest(snapshot: Snapshot, source: str) -> bool:
    state = snapshot.state.source_state
    return state is not None and state.source_name == source


def _cursor(state: str | None, shape: SourceTable) -> Cursor | None:
    return None if state is None else Cursor.from_text(state, shape.cursor.name, shape.cursor.type)


def _greater(reached: Cursor, newest: Cursor | None) -> Cursor:
    """The greater of two cursors. Texts are ordered by the database, so the newest one is used."""
    if newest is None:
        return reached
    before: Any = reached.value
    after: Any = newest.value
    if isinstance(before, str | bytes):
        return newest
    return newest if after > before else reached

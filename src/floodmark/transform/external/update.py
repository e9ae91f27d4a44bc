"""UpdateExternalTable: a table that lives in a database, polled for what changed since the last poll."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.chain.events import AddData, SourceState
from floodmark.chain.walk import walk_back
from floodmark.derive.run import Derivation, run
from floodmark.derive.turns import take_dataset_turn
from floodmark.ledger.commit import Commit, to_datetime
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.scratch import staging_area
from floodmark.transform.errors import BadSource, BadStep
from floodmark.transform.external import polling
from floodmark.transform.external.cursor import Cursor, Overlap, Value, check_overlap
from floodmark.transform.external.polling import SourceShape, connected, look
from floodmark.transform.external.table import ExternalTable as ExternalTable
from floodmark.transform.external.types import SourceColumn
from floodmark.transform.refresh.generate import nothing_came, report, status
from floodmark.transform.refresh.root_output import Overtaken, Refresh, RootOutput, Way, find_output, make_output
from floodmark.transform.refresh.spool import Spool
from floodmark.transform.report import RunReport, StepStatus
from floodmark.transform.specs import InputSpec, OutputSpec, as_output
from floodmark.transform.step import Step, checked_count

_STATE = "floodmark.dev/cursor"
_NOWHERE = ""
"""The state of a source that is to be read from its start."""
_TRIES = 5
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class PollPlan:
    """What a poll would read: `rows` rows as of now, from `start` on, that value included; all of them without one."""

    step: str
    source: str
    column: str
    cursor: Value | None
    start: Value | None
    rows: int


class UpdateExternalTable(Step):
    """Keeps a dataset up to date with a table or view in a database, by a column that grows with every change.

    `source` is an ExternalTable(url, table) or the text "URL#table", `cursor` the column. A poll reads the rows from
    the greatest value that was read on, that value included, and rows without a value; rows that are there already are
    not written again. How far it has come is committed with the rows. `overlap` makes it read so much of the past
    again, for rows that are committed late with an earlier time: ten minutes where the cursor is a time, unless given.

    Rows that were deleted from the table, or changed without the cursor's knowing, only `run(lake, full=True)` finds.
    `key` identifies a row, by default the table's primary key. A full run that finds no rows at all is taken for an
    accident, unless `allow_empty`. Rows are fetched `batch_rows` at a time.
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
            raise BadStep(f"cursor={cursor!r} of step {self.name!r} is no column", hint="name one: cursor='updated_at'")
        if overlap is not None and (not isinstance(overlap, Overlap) or isinstance(overlap, bool)):
            raise BadStep(
                f"overlap={overlap!r} of step {self.name!r} is no length of time and no number",
                hint="say how far to go back: overlap=timedelta(minutes=10)",
            )
        if overlap is not None and abs(overlap) != overlap:
            raise BadStep(
                f"overlap={overlap!r} of step {self.name!r} lies in the future", hint="say how far to go back"
            )
        self.batch_rows = checked_count(batch_rows, "batch_rows", self.name)
        self.allow_empty = allow_empty

    @property
    def shares_outputs(self) -> bool:
        return True  # one dataset may be filled from tables of several databases

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (self.output,)

    # What it does

    def run(self, lake: Any, *, full: bool = False) -> RunReport:
        """Read what changed and commit it; with `full` read the whole table, and retract rows that are gone from it."""
        started = time.monotonic()
        run_id = self._in(lake).runtime.random_bytes(16).hex()
        try:
            rows, commit = run(_Poll(self, lake, full), tries=_TRIES)
        except Overtaken as error:
            raise CommitConflict(
                f"step {self.name!r} was overtaken {_TRIES} times by others who write to {self.output.name!r}",
                hint="nothing was written; run it again, and let one process at a time poll",
            ) from error
        commits = [] if commit is None else [commit]
        return report(self.name, run_id, rows, 1, commits, time.monotonic() - started)

    def _output(self, lake: Any, shape: SourceShape) -> RootOutput:
        found = find_output(lake, self.output, self.name)
        if found.key:
            return found
        if not shape.primary_key:
            raise BadSource(
                f"{self.source.source} has no primary key",
                hint="say which columns identify a row: UpdateExternalTable(…, key=['id'])",
            )
        return RootOutput(found.spec, shape.primary_key, None)

    def _new_state(self, snapshot: Snapshot, before: str | None, reached: Cursor | None) -> SourceState | None:
        """What the chain is to say of how far we have come; None when it says so already."""
        value = _NOWHERE if reached is None else reached.to_text()
        if value == before and _is_newest(snapshot, self.source.source):
            return None
        if reached is None and before is None:
            return None
        return SourceState(source_name=self.source.source, kind=_STATE, value=value)

    # Looking at it

    def plan(self, lake: Any) -> PollPlan:
        """What the next run would read. Writes nothing."""
        from sqlalchemy import func, select

        with connected(self.source) as connection:
            shape = look(connection, self.source, self.cursor)
            check_overlap(self.overlap, shape.cursor.type, self.cursor)
            output = self._output(self._in(lake), shape)
            reached = None if output.snapshot is None else _cursor(_state(output.snapshot, self.source.source), shape)
            start = None if reached is None else reached.start(self.overlap)
            query = shape.query((), start, output.key).order_by(None).subquery()
            rows = int(connection.execute(select(func.count()).select_from(query)).scalar_one())
        value = None if reached is None else reached.value
        return PollPlan(self.name, self.source.source, self.cursor, value, start, rows)

    def status(self, lake: Any) -> StepStatus:
        """How many rows the output has; what is new in the table, `plan` asks the database."""
        return status(self.name, self.output_names, self._in(lake))

    def reset(self, lake: Any) -> None:
        """Forget how far the table was read: the next run reads all of it. The output stays as it is."""
        output = find_output(self._in(lake), self.output, self.name)
        if output.snapshot is None or _state(output.snapshot, self.source.source) is None:
            return
        note = SourceState(source_name=self.source.source, kind=_STATE, value=_NOWHERE)
        with staging_area(lake.store) as folder:
            Refresh(output, Spool(folder, output.name), "upsert", note).commit(lake)


@dataclass(frozen=True)
class _Source:
    """The table as it is now, and the dataset that follows it."""

    shape: SourceShape
    columns: Sequence[SourceColumn]
    output: RootOutput

    @property
    def snapshot(self) -> Snapshot:
        assert self.output.snapshot is not None
        return self.output.snapshot


@dataclass
class _Poll(Derivation[_Source, tuple[int, Commit | None]]):
    """One poll: the number of rows that were read, and the commit if they changed anything."""

    step: UpdateExternalTable
    lake: Any
    full: bool

    def pin(self) -> _Source:
        step = self.step
        with connected(step.source) as connection:
            shape = look(connection, step.source, step.cursor)
        check_overlap(step.overlap, shape.cursor.type, step.cursor)
        output = step._output(self.lake, shape)
        return _Source(shape, shape.chosen(output.key, output.columns), output)

    def prepare(self, state: _Source) -> bool:
        if state.output.snapshot is not None:
            return False
        make_output(
            self.lake, state.output, state.output.columns or pa.schema([(c.name, c.type) for c in state.columns])
        )
        return True

    def turn(self, state: _Source) -> AbstractContextManager[None]:
        other = f"another run of {self.step.name}"
        return take_dataset_turn(state.snapshot.objects, other, self.lake.runtime.progress())

    def moved(self, state: _Source) -> bool:
        return state.snapshot.has_moved

    def attempt(self, state: _Source) -> tuple[int, Commit | None]:
        step, lake, output, shape = self.step, self.lake, state.output, state.shape
        with staging_area(lake.store) as folder, closing(Spool(folder, output.name)) as spool:
            before = _state(state.snapshot, step.source.source)
            reached = _cursor(before, shape)
            start = None if self.full or reached is None else reached.start(step.overlap)
            # As of before the query: what is written while it runs may be dated later and not be in it.
            now = to_datetime(lake.runtime.clock())
            with connected(step.source) as connection:
                query = shape.query(state.columns, start, output.key)
                newest = polling.read(connection, shape, state.columns, query, step.batch_rows, spool, now)
            if self.full and not spool.rows and not step.allow_empty and lake[output.name].count():
                raise nothing_came(step.name, output.name, f"{step.source.source} has no rows")
            reaching = newest if self.full or reached is None else _greater(reached, newest)
            note = step._new_state(state.snapshot, before, reaching)
            way: Way = "snapshot" if self.full else "upsert"
            # Its head is the one that was read for: another commit in between is a lost race.
            return spool.rows, Refresh(output, spool, way, note, state.snapshot.head).commit(lake)


def _with_key(spec: OutputSpec, key: Sequence[str] | str | None) -> OutputSpec:
    if key is None:
        return spec
    given = (key,) if isinstance(key, str) else tuple(key)
    if spec.key is not None and tuple(spec.key) != given:
        raise BadStep(f"the output {spec.name!r} has the key {list(spec.key)}, not {list(given)}", hint="give one")
    return OutputSpec(spec.dataset, given, spec.schema, spec.event_time)


def _state(snapshot: Snapshot, source: str) -> str | None:
    """How far a source was read, as the chain has it. Others may have committed after it, with states of their own."""
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


def _cursor(state: str | None, shape: SourceShape) -> Cursor | None:
    return None if state is None else Cursor.from_text(state, shape.cursor.name, shape.cursor.type)


def _greater(reached: Cursor, newest: Cursor | None) -> Cursor:
    """The further of two cursors; a poll that starts at one cannot come out before it, whatever the order."""
    if newest is None:
        return reached
    before: Any = reached.value
    after: Any = newest.value
    if isinstance(before, str | bytes):
        return newest
    return newest if after > before else reached

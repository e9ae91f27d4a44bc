"""`DatatableTransform`: a step that calls a function with whole datasets when one of them has new records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from floodmark.chain.events import MetadataEvent
from floodmark.derive.commit import (
    CommitMoves,
    KeyResults,
    QueryResult,
    commit_results,
    commit_whole_result,
    complete_columns,
    describe_column_changes,
    evolve_layout,
)
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.lost_records import report_lost_records
from floodmark.derive.positions import blocks_at, find_chain_moves, minimum_watermark
from floodmark.derive.run import Derivation, run_derivation, take_dataset_turn
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import BadResult, BadStep, DatasetExists, FloodmarkError
from floodmark.functions.frames import from_table, to_table
from floodmark.functions.step_function import StepFunction
from floodmark.ledger.append import WriteResult
from floodmark.ledger.commit import Commit
from floodmark.ledger.data_input import Incoming, SparkData, TableData
from floodmark.ledger.scan import Scan
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.spark_read import spark_frame
from floodmark.ledger.staging import incoming_schema
from floodmark.ledger.strategy import strategy_of
from floodmark.transforms.outputs import explain_row_errors, same_transform
from floodmark.transforms.specs import InputSpec, OutputSpec, as_input, as_list, as_output
from floodmark.transforms.step import (
    InputStatus,
    LastRun,
    RunReport,
    Step,
    StepStatus,
    check_kwargs,
    default_name,
    function_error,
)
from floodmark.transforms.whole_inputs import (
    RESET,
    DatatableNote,
    WholeStepSnapshot,
    resolve_output_key,
    snapshot_whole_step,
)

_MS = 10**6

R = TypeVar("R")


@dataclass(frozen=True)
class DatatablePlan:
    """What a run would do: call the function, or nothing.

    `unchanged` counts keys whose new records differ only in columns that the function does not read.
    """

    step: str
    why: str | None  # why the function would be called
    inputs: tuple[InputStatus, ...]
    unchanged: int = 0

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return self.why is None


class DatatableTransform(Step):
    """Calls a function with all current rows of its inputs, whenever one of them has new records.

    An input that declares `columns=` counts only if one of these columns changed, or a row came or went.

    The function takes one frame per input and returns one per output: pandas, Arrow, Polars or a Spark DataFrame
    (`pyspark.sql.DataFrame`), by its annotations. Use Spark for data that does not fit into memory. The returned frame
    replaces all rows of the output; only rows that changed are written. The key of an output has the columns that the
    keys of all inputs share; OutputSpec(…, key=) overrides it. If the function changes, the next run calls it again;
    with `version`, only a new version counts as a change.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *,
        labels: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self.inputs: tuple[InputSpec, ...] = tuple(as_input(one) for one in as_list(inputs))
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in as_list(outputs))
        called = name if name is not None else default_name(func)
        super().__init__(called, [one.name for one in self.inputs], [one.name for one in self.outputs], labels)
        if not self.inputs:
            raise BadStep(
                f"step {called!r} has no input",
                hint="name the datasets to read: inputs=['sales']; or use BatchGenerate, which needs none",
            )
        for spec in self.inputs:
            if spec.keys is not None or spec.required:
                raise BadStep(
                    f"step {called!r} reads whole datasets: keys= and required= of input {spec.name!r} have no effect",
                    hint="leave them out, or use BatchTransform",
                )
        sizes = {"inputs": len(self.inputs), "outputs": len(self.outputs)}
        self.function = StepFunction(func, check_kwargs(kwargs, called), called, version, **sizes)

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (*self.inputs, *self.outputs)

    def run(self, lake: Any) -> RunReport:
        """Call the function if an input has new records or the function changed, and commit the changed rows."""
        return run_derivation(_Run(self, self._in(lake)))

    def reset(self, lake: Any) -> None:
        """Make the next run call the function even if no input has new records. The outputs stay until then."""
        run_derivation(_Reset(self, self._in(lake)))

    def plan(self, lake: Any) -> DatatablePlan:
        """What `run` would do, and why. Does not call the function and writes nothing."""
        step_snapshot = snapshot_whole_step(self, self._in(lake))
        unread = step_snapshot.count_unread(TaskRunner(lake.runtime.session))
        return DatatablePlan(
            self.name, None if unread is not None else step_snapshot.why, _inputs(step_snapshot), unread or 0
        )

    def status(self, lake: Any) -> StepStatus:
        """How far the step is behind its inputs, and its last run. Reads no data."""
        step_snapshot = snapshot_whole_step(self, self._in(lake))
        note = step_snapshot.notes[0]
        last = None
        if note is not None:
            last = LastRun(note.run, datetime.fromtimestamp(note.process_ts / 1000, UTC), note.rows, 0, note.seconds)
        rows = 0 if note is None else note.rows
        stale = step_snapshot.stale if note is not None else None
        return StepStatus(self.name, _inputs(step_snapshot), rows, 0, 0, 0, self.function.version, stale, last)

    def offsets(self, lake: Any) -> pa.Table:
        """How far each input was read for the first output, and the commit time of that record."""
        from floodmark.transforms.plan import offsets_table

        step_snapshot = snapshot_whole_step(self, self._in(lake))
        return offsets_table(self.name, step_snapshot.inputs, step_snapshot.positions(0))


@dataclass
class _WholeDerivation(Derivation[WholeStepSnapshot, R]):
    """The common part of a run and a reset."""

    step: DatatableTransform
    lake: Any

    def take_snapshot(self) -> WholeStepSnapshot:
        return snapshot_whole_step(self.step, self.lake)

    def turn(self, state: WholeStepSnapshot) -> AbstractContextManager[None]:
        first = next(output.snapshot for output in state.outputs if output.snapshot is not None)
        return take_dataset_turn(first.objects, f"another run of {self.step.name}", self.lake.runtime.progress())

    def moved(self, state: WholeStepSnapshot) -> bool:
        primary = state.outputs[0].snapshot  # committed last, so it does not move by this run's own commits
        return primary is not None and primary.has_moved

    def is_stale(self, state: WholeStepSnapshot) -> bool:
        return any(output.snapshot is not None and output.snapshot.has_moved for output in state.outputs)

    def inputs_moved(self, state: WholeStepSnapshot) -> bool:
        return any(given.snapshot.has_moved for given in state.inputs)


@dataclass
class _Reset(_WholeDerivation[bool]):
    def idle(self, state: WholeStepSnapshot) -> bool | None:
        return True if all(note is None or note.version == RESET for note in state.notes) else None

    def attempt(self, state: WholeStepSnapshot) -> bool:
        for output, note in zip(state.outputs, state.notes, strict=True):
            if note is not None and note.version != RESET:
                _, snapshot = output.existing
                forgotten = replace(note, version=RESET)
                moved = CommitMoves(checkpoint=forgotten.checkpoint, put=partial(forgotten.put, snapshot.objects))
                _derive(commit_results, output.name, self.lake, snapshot, KeyResults((), ()), moved)
        return True


@dataclass
class _Run(_WholeDerivation[RunReport]):
    began: float = field(default_factory=time.monotonic)

    def idle(self, state: WholeStepSnapshot) -> RunReport | None:
        return _report(state, "", 0, [], self.began) if state.why is None else None

    def prepare(self, state: WholeStepSnapshot) -> bool:
        return _create_missing(state, self.lake)

    def attempt(self, state: WholeStepSnapshot) -> RunReport:
        unread = state.count_unread(TaskRunner(self.lake.runtime.session))
        if unread is not None:
            return self._passed(state, unread)
        return _Call(state, self.lake, self.began).go()

    def _passed(self, state: WholeStepSnapshot, unchanged: int) -> RunReport:
        """Move the positions over records that change nothing that the function reads."""
        heads = {given.dataset_id: given.last_offset for given in state.inputs}
        commits = []
        for number in range(len(state.outputs) - 1, -1, -1):
            output, note = state.outputs[number], state.notes[number]
            assert note is not None
            moved = replace(note, positions=heads, blocks=blocks_at(heads, state.inputs))
            nothing = KeyResults((), ())
            _, snapshot = output.existing
            moves = _moves(state, snapshot, moved)
            commits.append(_derive(commit_results, output.name, self.lake, snapshot, nothing, moves).commit)
        return replace(_report(state, "", 0, commits, self.began), called=0, unchanged=unchanged)


@dataclass
class _Call:
    """One call of the function, and the commits of its results."""

    step_snapshot: WholeStepSnapshot
    lake: Any
    began: float
    column_changes: list[str] = field(default_factory=list)

    def go(self) -> RunReport:
        runtime = self.lake.runtime
        run_id = runtime.random_bytes(16).hex()
        now = runtime.clock() // _MS
        lost = report_lost_records(
            self.step_snapshot.step.name, self.step_snapshot.lost, "everything is computed again"
        )
        results = self._call()
        rows = [_rows(result) for result in results]
        commits = []
        heads = {given.dataset_id: given.last_offset for given in self.step_snapshot.inputs}
        # The first output is committed last: after a crash before, the others are ahead of it, never behind.
        for number in range(len(results) - 1, -1, -1):
            seconds = round(time.monotonic() - self.began, 3)
            facts = (self.step_snapshot.step.name, self.step_snapshot.version, run_id, now, rows[number], seconds)
            note = DatatableNote(*facts, heads, blocks_at(heads, self.step_snapshot.inputs))
            with explain_row_errors(self.step_snapshot.outputs[number].name):
                commits.append(self._commit(number, results[number], note))
        report = _report(self.step_snapshot, run_id, sum(rows), commits, self.began, self.column_changes)
        return replace(report, restored=lost)

    def _call(self) -> list[QueryResult]:
        step = self.step_snapshot.step
        function = step.function
        frames = [
            self._frame(given, spec, kind)
            for given, spec, kind in zip(self.step_snapshot.inputs, step.inputs, function.kinds, strict=True)
        ]
        try:
            returned = function.callable()(*frames, **function.kwargs)
            several = list(returned) if isinstance(returned, tuple | list) else [returned]
            if len(several) != len(step.outputs):
                raise BadResult(
                    f"the function of step {step.name!r} returned {len(several)} frames, not {len(step.outputs)}",
                    hint="return one frame per output, in the order of outputs=; a frame may have no rows",
                    function=step.name,
                    output=None,
                )
            return [_incoming(one, step.name, spec.name) for one, spec in zip(several, step.outputs, strict=True)]
        except FloodmarkError:
            raise
        except Exception as error:
            raise function_error(step.name, error, "") from error

    def _frame(self, given: InputSnapshot, spec: InputSpec, kind: Any) -> Any:
        assert given.layout is not None
        columns = tuple(given.layout.shown.names if spec.columns is None else spec.columns)
        scan = Scan(given.snapshot.objects, given.layout, given.current_rows(), columns)
        if kind == "spark":
            return spark_frame(scan, self.lake.runtime.session.get())
        with given.raise_if_input_moved():
            return from_table(scan.to_table(), kind)

    def _commit(self, number: int, result: QueryResult, note: DatatableNote) -> Commit:
        output = self.step_snapshot.outputs[number]
        _, snapshot = output.existing
        definitions: list[MetadataEvent] = []
        if not same_transform(snapshot.state.transform, self.step_snapshot.transform):
            definitions.append(self.step_snapshot.transform)
        is_empty = isinstance(result, TableData) and not result.table.num_rows
        if snapshot.layout is not None and not is_empty:
            layout, evolution = evolve_layout(
                output.name, snapshot.layout, incoming_schema(result), strategy_of(snapshot.state).key
            )
            definitions += evolution
            self.column_changes += describe_column_changes(output.name, snapshot.layout, incoming_schema(result).names)
            result = complete_columns(result, layout)
        moved = _moves(self.step_snapshot, snapshot, note, tuple(definitions))
        if is_empty and snapshot.layout is None:  # a frame without rows often has no types, and needs none
            written = _derive(commit_results, output.name, self.lake, snapshot, KeyResults((), ()), moved)
        else:
            if is_empty and snapshot.layout is not None:
                nullable = [f.with_nullable(True) for f in snapshot.layout.data]
                result = TableData(pa.schema(nullable).empty_table())
            written = _derive(commit_whole_result, output.name, self.lake, snapshot, result, moved)
        return written.commit


def _moves(
    step_snapshot: WholeStepSnapshot,
    snapshot: Snapshot,
    note: DatatableNote,
    definitions: tuple[MetadataEvent, ...] = (),
) -> CommitMoves:
    return CommitMoves(
        inputs=find_chain_moves(snapshot.state.inputs, note.positions, step_snapshot.inputs),
        definitions=definitions,
        checkpoint=note.checkpoint,
        put=partial(note.put, snapshot.objects),
        watermark=minimum_watermark([given.watermark for given in step_snapshot.inputs], snapshot.state.watermark),
    )


def _derive(
    commit: Callable[..., WriteResult],
    name: str,
    lake: Any,
    snapshot: Snapshot,
    result: Incoming | KeyResults,
    moved: CommitMoves,
) -> WriteResult:
    progress = lake.runtime.progress()
    progress.start(f"writing {name}", None)
    try:
        return commit(name, lake.runtime, snapshot, result, moved, progress, {})
    finally:
        progress.finish()


def _create_missing(step_snapshot: WholeStepSnapshot, lake: Any) -> bool:
    """Create the missing outputs; whether any was missing."""
    keys = [resolve_output_key(step_snapshot.step, output, step_snapshot.inputs) for output in step_snapshot.outputs]
    missing = [
        (output, key) for output, key in zip(step_snapshot.outputs, keys, strict=True) if output.snapshot is None
    ]
    for output, key in missing:
        spec = output.spec
        with suppress(DatasetExists):  # another run of the step created it first
            lake.create_derived(
                output.name,
                key=key,
                event_time=spec.event_time,
                schema=spec.schema,
                transform=step_snapshot.transform,
                vocab=spec.vocab,
            )
    return bool(missing)


def _incoming(frame: Any, step: str, output: str) -> QueryResult:
    if type(frame).__module__.partition(".")[0] == "pyspark" and hasattr(frame, "schema"):
        return SparkData(frame)
    return TableData(to_table(frame, step, output).table)


def _rows(result: Incoming) -> int:
    """The number of rows of a result; 0 for a Spark frame, because counting would compute it twice."""
    return result.table.num_rows if isinstance(result, TableData) else 0


def _inputs(step_snapshot: WholeStepSnapshot) -> tuple[InputStatus, ...]:
    from floodmark.transforms.plan import input_status

    return tuple(input_status(given, step_snapshot.positions(0)) for given in step_snapshot.inputs)


def _report(
    step_snapshot: WholeStepSnapshot,
    run: str,
    rows: int,
    commits: Sequence[Commit],
    began: float,
    column_changes: Sequence[str] = (),
) -> RunReport:
    positions = {given.name: given.last_offset for given in step_snapshot.inputs} if commits else {}
    return RunReport(
        step=step_snapshot.step.name,
        run=run,
        keys=rows,
        called=1 if commits else 0,
        commits=len(commits),
        new=sum(commit.new for commit in commits),
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        positions=positions,
        seconds=time.monotonic() - began,
        column_changes=tuple(column_changes),
    )

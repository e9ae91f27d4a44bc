"""DatatableTransform: a function of whole datasets, called when one of them has moved."""

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
from floodmark.derive.positions import blocks_at, chain_moves, least_watermark
from floodmark.derive.run import Derivation, run
from floodmark.derive.turns import take_dataset_turn
from floodmark.errors import FloodmarkError
from floodmark.ledger.commit import Commit
from floodmark.ledger.errors import DatasetExists
from floodmark.ledger.incoming import Frame, Incoming, SparkFrame
from floodmark.ledger.merge.derive import Moves, Results, derive, derive_snapshot, evolved_layout
from floodmark.ledger.scan import Scan
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.spark_read import spark_frame
from floodmark.ledger.stage import incoming_schema
from floodmark.ledger.write import Written
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.errors import BadResult, BadStep
from floodmark.transform.functions.frames import from_table, to_table
from floodmark.transform.functions.function import StepFunction
from floodmark.transform.output import same_transform
from floodmark.transform.refresh.explained import explained_for
from floodmark.transform.refresh.generate import function_failed
from floodmark.transform.refresh.whole import RESET, Note, WholeStep, output_key, pin_whole
from floodmark.transform.report import InputStatus, LastRun, RunReport, StepStatus
from floodmark.transform.specs import InputSpec, OutputSpec, as_input, as_output, listed
from floodmark.transform.step import Step, checked_kwargs, name_of

_MS = 10**6

R = TypeVar("R")


@dataclass(frozen=True)
class DatatablePlan:
    """What a run would do: call the function, and why, or nothing."""

    step: str
    why: str | None
    inputs: tuple[InputStatus, ...]

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return self.why is None


class DatatableTransform(Step):
    """Calls a function with all current rows of its inputs, whenever one of them has new records.

    The function takes one frame per input and returns one per output; its annotations say which: pandas, Arrow, Polars
    or a Spark DataFrame (`pyspark.sql.DataFrame`), which is the one for data that does not fit into memory. What it
    returns is all that the output holds from then on; only what changed is written. The output's key is what the keys
    of the inputs share, unless OutputSpec(…, key=) says otherwise. A changed function is called again; `version` says
    when it counts as changed.
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
        self.inputs: tuple[InputSpec, ...] = tuple(as_input(one) for one in listed(inputs))
        self.outputs: tuple[OutputSpec, ...] = tuple(as_output(one) for one in listed(outputs))
        called = name if name is not None else name_of(func)
        super().__init__(called, [one.name for one in self.inputs], [one.name for one in self.outputs], labels)
        if not self.inputs:
            raise BadStep(f"step {called!r} has no input", hint="name what it reads, or use BatchGenerate")
        for spec in self.inputs:
            if spec.keys is not None or spec.required:
                raise BadStep(
                    f"step {called!r} works on whole datasets: keys= and required= of input {spec.name!r} mean nothing",
                    hint="leave them out, or use BatchTransform",
                )
        sizes = {"inputs": len(self.inputs), "outputs": len(self.outputs)}
        self.function = StepFunction(func, checked_kwargs(kwargs, called), called, version, **sizes)

    @property
    def _specs(self) -> Sequence[InputSpec | OutputSpec]:
        return (*self.inputs, *self.outputs)

    def run(self, lake: Any) -> RunReport:
        """Call the function if an input has moved or the function is a new one, and commit what changed."""
        return run(_Run(self, self._in(lake)))

    def reset(self, lake: Any) -> None:
        """Have the function called by the next run whatever has moved; the outputs stay as they are until then."""
        run(_Reset(self, self._in(lake)))

    def plan(self, lake: Any) -> DatatablePlan:
        """What `run` would do and why. Calls nothing and writes nothing."""
        pinned = pin_whole(self, self._in(lake))
        pinned.check_positions()
        return DatatablePlan(self.name, pinned.why, _inputs(pinned))

    def status(self, lake: Any) -> StepStatus:
        """Where the step stands."""
        pinned = pin_whole(self, self._in(lake))
        note = pinned.notes[0]
        last = None
        if note is not None:
            last = LastRun(note.run, datetime.fromtimestamp(note.process_ts / 1000, UTC), note.rows, 0, note.seconds)
        rows = 0 if note is None else note.rows
        stale = pinned.stale if note is not None else None
        return StepStatus(self.name, _inputs(pinned), rows, 0, 0, 0, self.function.version, stale, last)

    def offsets(self, lake: Any) -> pa.Table:
        """How far each input was read when the output was made, and when that record was committed."""
        from floodmark.transform.status import offsets_table

        pinned = pin_whole(self, self._in(lake))
        return offsets_table(self.name, pinned.inputs, pinned.positions(0))


@dataclass
class _OnWholeDatasets(Derivation[WholeStep, R]):
    """What a run and a reset share: the step as of now, its turn, and whether it has moved."""

    step: DatatableTransform
    lake: Any

    def pin(self) -> WholeStep:
        return pin_whole(self.step, self.lake)

    def turn(self, state: WholeStep) -> AbstractContextManager[None]:
        there = next(output.snapshot for output in state.outputs if output.snapshot is not None)
        return take_dataset_turn(there.objects, f"another run of {self.step.name}", self.lake.runtime.progress())

    def moved(self, state: WholeStep) -> bool:
        primary = state.outputs[0].snapshot  # committed last: this run's commits to the others do not count
        return primary is not None and primary.has_moved

    def is_stale(self, state: WholeStep) -> bool:
        return any(output.snapshot is not None and output.snapshot.has_moved for output in state.outputs)

    def inputs_moved(self, state: WholeStep) -> bool:
        return any(given.snapshot.has_moved for given in state.inputs)


@dataclass
class _Reset(_OnWholeDatasets[bool]):
    def idle(self, state: WholeStep) -> bool | None:
        return True if all(note is None or note.version == RESET for note in state.notes) else None

    def attempt(self, state: WholeStep) -> bool:
        for output, note in zip(state.outputs, state.notes, strict=True):
            if note is not None and note.version != RESET:
                _, snapshot = output.present
                forgotten = replace(note, version=RESET)
                moved = Moves(checkpoint=forgotten.checkpoint, put=partial(forgotten.put, snapshot.objects))
                _derive(derive, output.name, self.lake, snapshot, Results((), ()), moved)
        return True


@dataclass
class _Run(_OnWholeDatasets[RunReport]):
    began: float = field(default_factory=time.monotonic)

    def pin(self) -> WholeStep:
        pinned = super().pin()
        pinned.check_positions()
        return pinned

    def idle(self, state: WholeStep) -> RunReport | None:
        return _report(state, "", 0, [], self.began) if state.why is None else None

    def prepare(self, state: WholeStep) -> bool:
        return _create_missing(state, self.lake)

    def attempt(self, state: WholeStep) -> RunReport:
        return _Call(state, self.lake, self.began).go()


@dataclass
class _Call:
    """One call of the function, and the commits of its results."""

    pinned: WholeStep
    lake: Any
    began: float

    def go(self) -> RunReport:
        runtime = self.lake.runtime
        run_id = runtime.random_bytes(16).hex()
        now = runtime.clock() // _MS
        results = self._call()
        rows = [_rows(result) for result in results]
        commits = []
        heads = {given.dataset_id: given.head for given in self.pinned.inputs}
        # The first output is the last to say that it is done: a crash before leaves the others ahead, never behind.
        for number in range(len(results) - 1, -1, -1):
            seconds = round(time.monotonic() - self.began, 3)
            told = (self.pinned.step.name, self.pinned.version, run_id, now, rows[number], seconds)
            note = Note(*told, heads, blocks_at(heads, self.pinned.inputs))
            with explained_for(self.pinned.outputs[number].name):
                commits.append(self._commit(number, results[number], note))
        return _report(self.pinned, run_id, sum(rows), commits, self.began)

    def _call(self) -> list[Incoming]:
        step = self.pinned.step
        function = step.function
        frames = [
            self._frame(given, spec, kind)
            for given, spec, kind in zip(self.pinned.inputs, step.inputs, function.kinds, strict=True)
        ]
        try:
            returned = function.callable()(*frames, **function.kwargs)
            several = list(returned) if isinstance(returned, tuple | list) else [returned]
            if len(several) != len(step.outputs):
                raise BadResult(
                    f"the function of step {step.name!r} returned {len(several)} frames, not {len(step.outputs)}",
                    hint="return one frame per output, in their order; one without rows if there are none",
                    function=step.name,
                    output=None,
                )
            return [_incoming(one, step.name, spec.name) for one, spec in zip(several, step.outputs, strict=True)]
        except FloodmarkError:
            raise
        except Exception as error:
            raise function_failed(step.name, error, "") from error

    def _frame(self, given: PinnedInput, spec: InputSpec, kind: Any) -> Any:
        assert given.layout is not None
        columns = tuple(given.layout.shown.names if spec.columns is None else spec.columns)
        scan = Scan(given.snapshot.objects, given.layout, given.current_rows(), columns)
        if kind == "spark":
            return spark_frame(scan, self.lake.runtime.session.get())
        with given.steady():
            return from_table(scan.to_table(), kind)

    def _commit(self, number: int, result: Incoming, note: Note) -> Commit:
        output = self.pinned.outputs[number]
        _, snapshot = output.present
        definitions: list[MetadataEvent] = []
        if not same_transform(snapshot.state.transform, self.pinned.transform):
            definitions.append(self.pinned.transform)
        is_empty = isinstance(result, Frame) and not result.table.num_rows
        if snapshot.layout is not None and not is_empty:
            definitions += evolved_layout(output.name, snapshot.layout, incoming_schema(result))[1]
        moved = Moves(
            inputs=chain_moves(snapshot.state.inputs, note.positions, self.pinned.inputs),
            definitions=tuple(definitions),
            checkpoint=note.checkpoint,
            put=partial(note.put, snapshot.objects),
            watermark=least_watermark([given.watermark for given in self.pinned.inputs], snapshot.state.watermark),
        )
        if is_empty and snapshot.layout is None:  # a frame without rows often has no types, and none are needed
            written = _derive(derive, output.name, self.lake, snapshot, Results((), ()), moved)
        else:
            if is_empty and snapshot.layout is not None:
                nullable = [f.with_nullable(True) for f in snapshot.layout.data]
                result = Frame(pa.schema(nullable).empty_table())
            written = _derive(derive_snapshot, output.name, self.lake, snapshot, result, moved)
        return written.commit


def _derive(
    commit: Callable[..., Written], name: str, lake: Any, snapshot: Snapshot, result: Incoming | Results, moved: Moves
) -> Written:
    progress = lake.runtime.progress()
    progress.start(f"writing {name}", None)
    try:
        return commit(name, lake.runtime, snapshot, result, moved, progress, {})
    finally:
        progress.finish()


def _create_missing(pinned: WholeStep, lake: Any) -> bool:
    """Create the outputs that do not exist; whether there were any."""
    keys = [output_key(pinned.step, output, pinned.inputs) for output in pinned.outputs]
    missing = [(output, key) for output, key in zip(pinned.outputs, keys, strict=True) if output.snapshot is None]
    for output, key in missing:
        spec = output.spec
        with suppress(DatasetExists):  # another run of the step was quicker
            lake.create_derived(
                output.name, key=key, event_time=spec.event_time, schema=spec.schema, transform=pinned.transform
            )
    return bool(missing)


def _incoming(frame: Any, step: str, output: str) -> Incoming:
    if type(frame).__module__.partition(".")[0] == "pyspark" and hasattr(frame, "schema"):
        return SparkFrame(frame)
    return Frame(to_table(frame, step, output).table)


def _rows(result: Incoming) -> int:
    """How many rows a result has; those of a Spark frame are not counted, as that would compute it twice."""
    return result.table.num_rows if isinstance(result, Frame) else 0


def _inputs(pinned: WholeStep) -> tuple[InputStatus, ...]:
    from floodmark.transform.status import input_status

    return tuple(input_status(given, pinned.positions(0)) for given in pinned.inputs)


def _report(pinned: WholeStep, run: str, rows: int, commits: Sequence[Commit], began: float) -> RunReport:
    positions = {given.name: given.head for given in pinned.inputs} if commits else {}
    return RunReport(
        step=pinned.step.name,
        run=run,
        keys=rows,
        called=1 if commits else 0,
        commits=len(commits),
        new=sum(commit.new for commit in commits),
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        positions=positions,
        seconds=time.monotonic() - began,
    )

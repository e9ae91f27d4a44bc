"""A transaction of a step computed again: its keys, their rows as the run had read them, and the step's function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from floodmark.engine import Session
from floodmark.engine.rounds import Runner
from floodmark.functions.on_error import OnError
from floodmark.ledger.conform import cast_columns
from floodmark.ledger.errors import LedgerError
from floodmark.ledger.keys import hashing
from floodmark.ledger.layout import Layout
from floodmark.ledger.scan import Scan
from floodmark.ledger.spark_read import spark_frame
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.comparing import Compared, compare
from floodmark.provenance.inputs import missing_of, shape_of
from floodmark.provenance.opened import Datasets, Opened, Transaction
from floodmark.provenance.origin import Link, Origin
from floodmark.provenance.replayed import NotReplayable
from floodmark.storage.scratch import staging_area
from floodmark.transform.batch_transform import BatchTransform
from floodmark.transform.changed.alive import Keys, live_parts
from floodmark.transform.changed.cross import product
from floodmark.transform.changed.filters import canonical, parse_filters
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import InputShape, Shape
from floodmark.transform.changed.universe import with_required
from floodmark.transform.functions.call import call_chunk
from floodmark.transform.functions.frames import from_table, to_table
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.made import Declared, unpacked
from floodmark.transform.meta.failed import failed_column
from floodmark.transform.refresh.datatable import DatatableTransform
from floodmark.transform.rows.chunks import read_chunks
from floodmark.transform.rows.gather import key_units
from floodmark.transform.rows.room import Room
from floodmark.transform.step import Step
from floodmark.transform.views.reading.found import Limits, find_rows

_ANY = Limits(1 << 62)


@dataclass(frozen=True)
class StepReplay:
    """Computes transactions of steps again, with the steps of a pipeline."""

    datasets: Datasets
    steps: Sequence[Step]
    session: Session

    def replay(self, output: Opened, transaction: Transaction, origin: Origin) -> tuple[int, Compared]:
        """How many keys, and how they compare; `NotReplayable` when that cannot be told."""
        if origin.doubts:
            raise NotReplayable(origin.doubts[0])
        layout = output.layout_at(transaction.sequence_number)
        if layout is None:
            raise NotReplayable("its columns of that time are not on its chain")
        if origin.kind == "datatable":
            return _Whole(self, output, transaction, origin, layout).replay()
        return KeysReplay(self, output, transaction, origin, layout).replay()

    def step_of(self, output: Opened, origin: Origin) -> Step:
        """The step with the code that made a transaction."""
        named = [step for step in self.steps if output.name in step.output_names]
        kinds = DatatableTransform if origin.kind == "datatable" else BatchTransform
        for step in named:
            if isinstance(step, kinds) and step.function.version == origin.version:
                return step
        if named:
            raise NotReplayable(f"its code is gone: step {named[0].name!r} is another version by now")
        raise NotReplayable(f"its code is not there: no step of the pipeline writes {output.name!r}")

    def input(self, link: Link) -> Opened:
        """An input, if it still has all that it had."""
        given = self.datasets.of_id(link.dataset_id, link.alias)
        if given is None:
            raise NotReplayable(f"its input {link.alias or link.dataset_id} was dropped")
        if (missing := missing_of(given, link)) is not None:
            raise NotReplayable(f"input {given.name!r}: {missing}")
        return given


def layout_then(given: Opened, link: Link) -> Layout:
    """The columns that an input had when it was read."""
    if link.block is not None:
        return given.layout_at(given.sequence_number_of(link.block)) or given.layout
    before = given.transaction_at(link.position).sequence_number if link.position >= 0 else 0
    then = given.layout_at(before)
    if then != given.layout:
        raise NotReplayable(f"input {given.name!r} has other columns by now, and since when was not noted")
    return given.layout


def stored_rows(output: Opened, transaction: Transaction, keys: pa.Table, layout: Layout) -> pa.Table:
    """The rows of an output that had these values right after a transaction."""
    pinned = output.as_of(transaction.end - 1)
    by = tuple((name, name) for name in keys.column_names)
    return find_rows(pinned, shape_of(pinned, by, keys.schema), 0, keys, layout.data.names, _ANY).rows


def rows_then(output: Opened, transaction: Transaction, layout: Layout) -> pa.Table:
    """All rows of an output right after a transaction."""
    pinned = output.as_of(transaction.end - 1)
    return Scan(output.snapshot.objects, output.layout, pinned.current_rows(), tuple(layout.data.names)).to_table()


def all_keys(shape: Shape, pinned: Sequence[PinnedInput], runner: Runner) -> Keys:
    """All keys that inputs have results for, the failed ones included."""
    if shape.kind == "cross":
        return product(shape, [live_parts(given, shape, n, runner) for n, given in enumerate(pinned)])
    full = [live_parts(given, shape, n, runner) for n, given in enumerate(pinned) if shape.inputs[n].is_full]
    return with_required(shape, pinned, Keys.joined(full, shape.keys), runner)


def keys_of(output: Opened, transaction: Transaction, names: Sequence[str]) -> pa.Table:
    """The values that the records of a transaction have in these columns, each once."""
    records = output.records(np.arange(transaction.start, transaction.end)).select(list(names))
    return records.take(pa.array(hashing.hash_rows(records, names).first_of_each()))


@dataclass(frozen=True)
class KeysReplay:
    """One transaction of a BatchTransform."""

    replaying: StepReplay
    output: Opened
    transaction: Transaction
    origin: Origin
    layout: Layout | None  # None while nothing was ever written

    def replay(self) -> tuple[int, Compared]:
        assert self.layout is not None
        step, declared, inputs = self.known()
        keys = keys_of(self.output, self.transaction, declared.keys)
        number = step.output_names.index(self.output.name)
        again = self._computed(step, declared, self.kept(step, declared, self._succeeded(keys)), inputs, number)
        stored = stored_rows(self.output, self.transaction, keys, self.layout)
        return keys.num_rows, compare(stored, again.cast(stored.schema), strategy_of(self.output.snapshot.state).key)

    def compare_now(self, keys: pa.Table, called: pa.Table) -> Compared:
        """How the rows that keys have by now compare with those they should have; only some are called."""
        step, declared, inputs = self.known()
        again = self._computed(step, declared, called, inputs, step.output_names.index(self.output.name))
        key = strategy_of(self.output.snapshot.state).key
        if self.layout is None:  # nothing was ever written
            return compare(again.slice(0, 0), again, key)
        stored = stored_rows(self.output, self.transaction, keys, self.layout)
        return compare(stored, again.cast(stored.schema), key)

    def known(self) -> tuple[BatchTransform, Declared, list[Opened]]:
        """The code, what was declared of it, and the inputs."""
        step = self.replaying.step_of(self.output, self.origin)
        assert isinstance(step, BatchTransform)
        declared = Declared.named(self.output.snapshot.objects, self.origin.noted_version or "")
        if declared is None:
            raise NotReplayable("which columns are its transform keys was not noted")
        return step, declared, [self.replaying.input(link) for link in self.origin.links]

    def _succeeded(self, keys: pa.Table) -> pa.Table:
        """Without the keys that failed then: their rows were taken back, whatever the function would make of them."""
        failed = unpacked(self.origin.failed)
        return keys.filter(pa.array(~hashing.hash_rows(keys, keys.column_names).among(failed)))

    def kept(self, step: BatchTransform, declared: Declared, keys: pa.Table) -> pa.Table:
        """Without the keys that the step's own filters leave out: there are no results of them."""
        now = None if step.filters is None else canonical(step.filters)
        if now != declared.filters:
            raise NotReplayable(f"step {step.name!r} is declared with other filters by now")
        wanted = parse_filters(step.filters, keys.schema)
        return keys if wanted is None else keys.filter(wanted)

    def _computed(
        self, step: BatchTransform, declared: Declared, keys: pa.Table, inputs: Sequence[Opened], number: int
    ) -> pa.Table:
        shape = self.shape(declared, keys.schema, inputs)
        pinned = [given.as_of(link.position) for given, link in zip(inputs, self.origin.links, strict=True)]
        outputs = self._outputs(step, shape.keys, number)
        tables = [] if self.layout is None else [_optional(self.layout).empty_table()]
        objects = self.output.snapshot.objects
        with ExitStack() as held:
            room = Room(held.enter_context(staging_area(objects.store)), objects)
            held.callback(room.clear)
            for unit in key_units(keys, shape, pinned, Runner(self.replaying.session), room):
                for chunk in read_chunks(unit, shape, [given.for_tasks for given in pinned], step.chunk_size):
                    if not len(chunk):
                        continue
                    # Whoever retries or skips in a run would hide what this is to find.
                    called = call_chunk(step.function, chunk, outputs, OnError(), np.zeros(len(chunk), np.int64), 0)
                    if called.failed.num_rows:
                        said = failed_column(called.failed, "message")[0].as_py()
                        raise FailedAgain(f"the function fails for {called.failed.num_rows} of its keys now: {said}")
                    tables.append(_fitting(called.rows[number], self.layout))
        return pa.concat_tables(tables, promote_options="permissive") if tables else keys.slice(0, 0)

    def shape(self, declared: Declared, keys: pa.Schema, inputs: Sequence[Opened]) -> Shape:
        plain = pa.schema([pa.field(f.name, f.type) for f in keys])
        found = []
        for said, given, link in zip(declared.inputs, inputs, self.origin.links, strict=True):
            layout = layout_then(given, link)
            keys_of_input = {
                name: said["keys"][name] for name in declared.keys if name in said["keys"]
            }  # in that order
            own = keys_of_input.values()
            wanted = [*layout.shown.names, *own] if said["columns"] is None else [*own, *said["columns"]]
            columns = pa.schema([pa.field(name, layout.data.field(name).type) for name in dict.fromkeys(wanted)])
            is_full = len(keys_of_input) == len(plain)
            # Without its key: the index finds rows of the present head, and these are of the past.
            found.append(InputShape(given.name, given.id, keys_of_input, (), (), columns, said["required"], is_full))
        return Shape(plain, tuple(found), "cross" if declared.way == "cross" else "keyed")

    def _outputs(self, step: BatchTransform, keys: pa.Schema, number: int) -> tuple[OutputShape, ...]:
        """What results are made to fit; of other outputs than this one no more than their key is known."""
        found = []
        for n, spec in enumerate(step.outputs):
            key = tuple(keys.names) if spec.key is None else tuple(spec.key)
            shape = OutputShape(spec.name, (*keys.names, *(k for k in key if k not in keys.names)), keys, None)
            if n == number and self.layout is not None:
                own = strategy_of(self.output.snapshot.state).key
                vocab, time = self.layout.vocab, self.layout.event_time
                shape = replace(shape, key=own, layout=self.layout, event_time=time, vocab=vocab)
            found.append(shape)
        return tuple(found)


def _optional(layout: Layout) -> pa.Schema:
    return pa.schema([f.with_nullable(True) for f in layout.data])


def _fitting(rows: pa.Table, layout: Layout | None) -> pa.Table:
    return rows if layout is None else rows.select(layout.data.names).cast(_optional(layout))


class FailedAgain(Exception):
    """The function that once succeeded raises now."""


@dataclass(frozen=True)
class _Whole:
    """One transaction of a DatatableTransform: all rows of its inputs, and all of its output."""

    replaying: StepReplay
    output: Opened
    transaction: Transaction
    origin: Origin
    layout: Layout

    def replay(self) -> tuple[int, Compared]:
        step = self.replaying.step_of(self.output, self.origin)
        assert isinstance(step, DatatableTransform)
        function = step.function
        frames = [
            self._frame(self.replaying.input(link), link, spec.columns, kind)
            for link, spec, kind in zip(self.origin.links, step.inputs, function.kinds, strict=True)
        ]
        try:
            returned = function.callable()(*frames, **function.kwargs)
        except Exception as error:
            raise FailedAgain(f"the function fails now: {error!r}") from error
        several = list(returned) if isinstance(returned, tuple | list) else [returned]
        one = several[step.output_names.index(self.output.name)]
        table = one.toArrow() if hasattr(one, "toArrow") else to_table(one, step.name, self.output.name).table
        rows = rows_then(self.output, self.transaction, self.layout)
        again = fitted(table, self.layout, f"what step {step.name!r} returns now").cast(rows.schema)
        return rows.num_rows, compare(rows, again, strategy_of(self.output.snapshot.state).key)

    def _frame(self, given: Opened, link: Link, columns: Sequence[str] | None, kind: str) -> object:
        pinned: PinnedInput = given.as_of(link.position)
        names = tuple(layout_then(given, link).shown.names if columns is None else columns)
        scan = Scan(pinned.snapshot.objects, given.layout, pinned.current_rows(), names)
        if kind == "spark":
            return spark_frame(scan, self.replaying.session.get())
        return from_table(scan.to_table(), kind)  # type: ignore[arg-type]


def fitted(table: pa.Table, layout: Layout, where: str) -> pa.Table:
    """Rows in the columns and types of a dataset; `FailedAgain` when they do not fit it any more."""
    try:
        return cast_columns(table, layout, where).select(layout.data.names)
    except LedgerError as error:
        raise FailedAgain(error.message) from error

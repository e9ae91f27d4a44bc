"""Replays transactions of steps: finds their keys, reads the input rows of that time, and calls the step's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape, common_type
from floodmark.derive.row_search import SearchLimits, find_rows
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.session import Session
from floodmark.errors import LedgerError
from floodmark.functions.frames import from_table, to_table
from floodmark.functions.on_error import OnError
from floodmark.functions.step_call import call_chunk
from floodmark.functions.step_function import StepFunction
from floodmark.functions.step_result import OutputShape
from floodmark.functions.stored_code import define_stored_function
from floodmark.ledger.casting import cast_columns
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import Layout
from floodmark.ledger.spark_read import spark_frame
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.comparison import CodeNotAvailable, Comparison, NotReplayable, compare
from floodmark.provenance.origin import InputLink, Origin, explain_missing, lookup_shape
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets, Transaction
from floodmark.rows import row_hash
from floodmark.storage.scratch import staging_area
from floodmark.transforms.batch_transform import BatchTransform
from floodmark.transforms.chunk_reader import read_chunks
from floodmark.transforms.commit import StepDeclaration, unpack_hashes
from floodmark.transforms.datatable_transform import DatatableTransform
from floodmark.transforms.failed_keys import failed_column
from floodmark.transforms.run_scope import canonical_filters, parse_filters
from floodmark.transforms.step import Step
from floodmark.transforms.work_planner import plan_key_units
from floodmark.transforms.work_units import ScratchDir

_ANY = SearchLimits(1 << 62)


@dataclass(frozen=True)
class StepReplay:
    """Replays transactions with the steps of a pipeline."""

    datasets: OpenedDatasets
    steps: Sequence[Step]
    session: Session
    run_stored_code: bool = False

    def replay(self, output: OpenedDataset, transaction: Transaction, origin: Origin) -> tuple[int, Comparison]:
        """The number of keys and their comparison; `NotReplayable` when something needed is missing."""
        if origin.doubts:
            raise NotReplayable(origin.doubts[0])
        layout = output.layout_at(transaction.sequence_number)
        if layout is None:
            raise NotReplayable("its schema of that time is not on its chain")
        if origin.kind == "datatable":
            return _DatatableReplay(self, output, transaction, origin, layout).replay()
        return KeysReplay(self, output, transaction, origin, layout).replay()

    def step_of(self, output: OpenedDataset, origin: Origin) -> Step:
        """The step with the code that made a transaction."""
        named = [step for step in self.steps if output.name in step.output_names]
        kinds = DatatableTransform if origin.kind == "datatable" else BatchTransform
        for step in named:
            if isinstance(step, kinds) and step.function.version == origin.version:
                return step
        for step in named if self.run_stored_code else ():
            if isinstance(step, kinds) and (old := _with_stored_code(step, origin)) is not None:
                return old
        if named:
            raise CodeNotAvailable(f"step {named[0].name!r} has another version now")
        raise CodeNotAvailable(f"no step of the pipeline writes {output.name!r}")

    def input(self, link: InputLink) -> OpenedDataset:
        """An input that still has all records that it had."""
        given = self.datasets.of_id(link.dataset_id, link.alias)
        if given is None:
            raise NotReplayable(f"its input {link.alias or link.dataset_id} was dropped")
        if (missing := explain_missing(given, link)) is not None:
            raise NotReplayable(f"input {given.name!r}: {missing}")
        return given


def _with_stored_code(step: BatchTransform | DatatableTransform, origin: Origin) -> Step | None:
    """The step with the function that the chain stores, if it has the version of the transaction."""
    of_step, old, inputs = step.function, copy(step), len(origin.links)

    def is_same(function: Callable[..., Any]) -> bool:
        for kwargs in ({}, of_step.kwargs):
            old.function = StepFunction(function, kwargs, of_step.name, inputs=inputs, outputs=of_step.outputs)
            if old.function.version == origin.version:
                return True
        return False

    return None if define_stored_function(origin.code, is_same) is None else old


def find_input_layout(given: OpenedDataset, link: InputLink) -> Layout:
    """The columns that an input had when it was read."""
    if link.block is not None:
        return given.layout_at(given.sequence_number_of(link.block)) or given.layout
    before = given.transaction_at(link.position).sequence_number if link.position >= 0 else 0
    then = given.layout_at(before)
    if then != given.layout:
        raise NotReplayable(f"the columns of input {given.name!r} changed, and when they changed was not recorded")
    return given.layout


def read_rows_after(output: OpenedDataset, transaction: Transaction, keys: pa.Table, layout: Layout) -> pa.Table:
    """The rows of an output that had these values right after a transaction."""
    output_snapshot = output.as_of(transaction.end - 1)
    by = tuple((name, name) for name in keys.column_names)
    return find_rows(
        output_snapshot, lookup_shape(output_snapshot, by, keys.schema), 0, keys, layout.data.names, _ANY
    ).rows


def read_all_rows_after(output: OpenedDataset, transaction: Transaction, layout: Layout) -> pa.Table:
    """All rows of an output right after a transaction."""
    output_snapshot = output.as_of(transaction.end - 1)
    return Scan(
        output.snapshot.objects, output.layout, output_snapshot.current_rows(), tuple(layout.data.names)
    ).to_table()


def read_transaction_keys(output: OpenedDataset, transaction: Transaction, names: Sequence[str]) -> pa.Table:
    """The distinct values of a transaction's records in these columns."""
    records = output.records(np.arange(transaction.start, transaction.end)).select(list(names))
    return records.take(pa.array(row_hash.hash_rows(records, names).first_positions()))


@dataclass(frozen=True)
class KeysReplay:
    """One transaction of a BatchTransform."""

    replaying: StepReplay
    output: OpenedDataset
    transaction: Transaction
    origin: Origin
    layout: Layout | None  # None if nothing was ever written

    def replay(self) -> tuple[int, Comparison]:
        assert self.layout is not None
        step, declared, inputs = self.known()
        keys = read_transaction_keys(self.output, self.transaction, declared.keys)
        number = step.output_names.index(self.output.name)
        again = self._computed(step, declared, self.kept(step, declared, self._succeeded(keys)), inputs, number)
        stored = read_rows_after(self.output, self.transaction, keys, self.layout)
        return keys.num_rows, compare(stored, again.cast(stored.schema), strategy_of(self.output.snapshot.state).key)

    def compare_now(self, keys: pa.Table, called: pa.Table) -> Comparison:
        """Compare the current rows of keys with the rows that they should have. Only `called` keys have rows."""
        step, declared, inputs = self.known()
        again = self._computed(step, declared, called, inputs, step.output_names.index(self.output.name))
        key = strategy_of(self.output.snapshot.state).key
        if self.layout is None:  # nothing was ever written
            return compare(again.slice(0, 0), again, key)
        stored = read_rows_after(self.output, self.transaction, keys, self.layout)
        return compare(stored, again.cast(stored.schema), key)

    def known(self) -> tuple[BatchTransform, StepDeclaration, list[OpenedDataset]]:
        """The step, its declaration of that time, and the inputs."""
        step = self.replaying.step_of(self.output, self.origin)
        assert isinstance(step, BatchTransform)
        declared = StepDeclaration.named(self.output.snapshot.objects, self.origin.noted_version or "")
        if declared is None:
            raise NotReplayable("its transform keys were not recorded")
        return step, declared, [self.replaying.input(link) for link in self.origin.links]

    def _succeeded(self, keys: pa.Table) -> pa.Table:
        """The keys that did not fail in that run. Rows of failed keys were taken back."""
        failed = unpack_hashes(self.origin.failed)
        return keys.filter(pa.array(~row_hash.hash_rows(keys, keys.column_names).among(failed)))

    def kept(self, step: BatchTransform, declared: StepDeclaration, keys: pa.Table) -> pa.Table:
        """The keys that the step's filters keep. Other keys have no results."""
        now = None if step.filters is None else canonical_filters(step.filters)
        if now != declared.filters:
            raise NotReplayable(f"step {step.name!r} has other filters now")
        wanted = parse_filters(step.filters, keys.schema)
        return keys if wanted is None else keys.filter(wanted)

    def _computed(
        self,
        step: BatchTransform,
        declared: StepDeclaration,
        keys: pa.Table,
        inputs: Sequence[OpenedDataset],
        number: int,
    ) -> pa.Table:
        shape = self.shape(declared, keys.schema, inputs)
        input_snapshots = [given.as_of(link.position) for given, link in zip(inputs, self.origin.links, strict=True)]
        outputs = self._outputs(step, declared, shape.keys, number)
        tables = [] if self.layout is None else [_nullable_schema(self.layout).empty_table()]
        objects = self.output.snapshot.objects
        size = 1 if any(output.adds_keys for output in outputs) else step.chunk_size
        with ExitStack() as held:
            room = ScratchDir(held.enter_context(staging_area(objects.store)), objects)
            held.callback(room.clear)
            for unit in plan_key_units(keys, shape, input_snapshots, TaskRunner(self.replaying.session), room):
                for chunk in read_chunks(unit, shape, [given.task_input for given in input_snapshots], size):
                    if not len(chunk):
                        continue
                    # No retries and no skipped rows here: they would hide failures.
                    called = call_chunk(step.function, chunk, outputs, OnError(), np.zeros(len(chunk), np.int64), 0)
                    if called.failed.num_rows:
                        message = failed_column(called.failed, "message")[0].as_py()
                        raise FailedAgain(f"the function now fails for {called.failed.num_rows} of its keys: {message}")
                    tables.append(_select_columns(called.rows[number], self.layout))
        return pa.concat_tables(tables, promote_options="permissive") if tables else keys.slice(0, 0)

    def shape(self, declared: StepDeclaration, keys: pa.Schema, inputs: Sequence[OpenedDataset]) -> KeyShape:
        plain = pa.schema([pa.field(f.name, f.type) for f in keys])
        found = []
        types: dict[str, list[tuple[str, pa.DataType]]] = {}
        for one, given, link in zip(declared.inputs, inputs, self.origin.links, strict=True):
            layout = find_input_layout(given, link)
            names = dict.fromkeys([*declared.keys, *one["keys"]])  # the order of the transform keys counts
            own = {name: one["keys"][name] for name in names if name in one["keys"]}
            joins, through = dict(one["joins"]), tuple(one["through"])
            for name, column in ({**own, **joins}).items():
                types.setdefault(name, []).append((given.name, layout.data.field(column).type))
            chosen, needed = one["columns"], [*own.values(), *joins.values()]
            read = [*layout.shown.names, *needed] if chosen is None else [*needed, *chosen]
            columns = pa.schema([pa.field(name, layout.data.field(name).type) for name in dict.fromkeys(read)])
            is_full = len(own) == len(plain) and not through
            # Without its key: the index only has rows of the current head, and these are older.
            mine = InputShape(given.name, given.id, own, (), (), columns, one["required"], is_full)
            found.append(replace(mine, side=one["side"], joins=joins, through=through))
        joined = [pa.field(name, common_type(name, known)) for name, known in types.items() if name not in plain.names]
        return KeyShape(plain, tuple(found), "cross" if declared.way == "cross" else "keyed", pa.schema(joined))

    def _outputs(
        self, step: BatchTransform, declared: StepDeclaration, keys: pa.Schema, number: int
    ) -> tuple[OutputShape, ...]:
        """The shapes that results must fit. Of the other outputs of the step, only the key is known."""
        found = []
        for n, spec in enumerate(step.outputs):
            key = tuple(keys.names) if spec.key is None else tuple(spec.key)
            shape = OutputShape(spec.name, (*keys.names, *(k for k in key if k not in keys.names)), keys, None)
            shape = replace(shape, adds_keys=spec.key is not None and not set(key) & set(keys.names))
            if n == number and self.layout is not None:
                own = strategy_of(self.output.snapshot.state).key
                vocab, time = self.layout.vocab, self.layout.event_time
                absent = frozenset(declared.absent.get(spec.name, ())) & frozenset(self.layout.data.names)
                shape = replace(shape, key=own, layout=self.layout, event_time=time, vocab=vocab, absent=absent)
            found.append(shape)
        return tuple(found)


def _nullable_schema(layout: Layout) -> pa.Schema:
    return pa.schema([f.with_nullable(True) for f in layout.data])


def _select_columns(rows: pa.Table, layout: Layout | None) -> pa.Table:
    return rows if layout is None else rows.select(layout.data.names).cast(_nullable_schema(layout))


class FailedAgain(Exception):
    """The function succeeded in the original run, and fails now."""


@dataclass(frozen=True)
class _DatatableReplay:
    """One transaction of a DatatableTransform: all rows of its inputs and of its output."""

    replaying: StepReplay
    output: OpenedDataset
    transaction: Transaction
    origin: Origin
    layout: Layout

    def replay(self) -> tuple[int, Comparison]:
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
            raise FailedAgain(f"the function now fails: {error!r}") from error
        several = list(returned) if isinstance(returned, tuple | list) else [returned]
        one = several[step.output_names.index(self.output.name)]
        table = one.toArrow() if hasattr(one, "toArrow") else to_table(one, step.name, self.output.name).table
        for field in self.layout.data:  # columns that the function does not return are null
            if field.name not in table.column_names:
                table = table.append_column(field.with_nullable(True), pa.nulls(table.num_rows, field.type))
        rows = read_all_rows_after(self.output, self.transaction, self.layout)
        again = fit_rows(table, self.layout, f"the current result of step {step.name!r}").cast(rows.schema)
        return rows.num_rows, compare(rows, again, strategy_of(self.output.snapshot.state).key)

    def _frame(self, given: OpenedDataset, link: InputLink, columns: Sequence[str] | None, kind: str) -> object:
        input_snapshot: InputSnapshot = given.as_of(link.position)
        names = tuple(find_input_layout(given, link).shown.names if columns is None else columns)
        scan = Scan(input_snapshot.snapshot.objects, given.layout, input_snapshot.current_rows(), names)
        if kind == "spark":
            return spark_frame(scan, self.replaying.session.get())
        return from_table(scan.to_table(), kind)  # type: ignore[arg-type]


def fit_rows(table: pa.Table, layout: Layout, where: str) -> pa.Table:
    """Rows in the columns and types of a dataset; `FailedAgain` when they no longer fit."""
    try:
        return cast_columns(table, layout, where).select(layout.data.names)
    except LedgerError as error:
        raise FailedAgain(error.message) from error

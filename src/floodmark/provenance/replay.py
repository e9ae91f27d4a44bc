"""Replay: computes derived data again from its old inputs and compares it with the stored data. Start reading here.

Each transaction of a derived dataset is replayed with the code and the columns that were in force: its keys should get
the same rows. A transaction that can no longer be replayed is reported as such, never as correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.chain.events import DatasetKind
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import ColumnDefinition, ColumnObjects
from floodmark.columns.columns import read_errors, resolve_udf
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.derive.inputs import LakeLike
from floodmark.errors import BadMeta, DerivationError, FloodmarkError, InputMoved, LedgerError, StorageError
from floodmark.functions.column_call import ColumnCaller
from floodmark.functions.udf import Udf
from floodmark.ledger.side_columns import append_columns
from floodmark.provenance.comparison import (
    MAX_DIFFERENCES,
    CodeNotAvailable,
    Comparison,
    MetaContradiction,
    NotReplayable,
    Outcome,
    ReplayReport,
    compare,
)
from floodmark.provenance.origin import Origin, origin_of
from floodmark.provenance.replay_meta import replay_claims
from floodmark.provenance.replay_steps import FailedAgain, StepReplay
from floodmark.provenance.replay_views import ViewReplay, compute_except_failed, define_stored_udf, skip_sleep
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets, Transaction
from floodmark.provenance.tree import Maker
from floodmark.provenance.why import block_of, maker_of
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64
from floodmark.transforms.step import Step

_CANNOT = (NotReplayable, InputMoved, BadMeta, LedgerError, StorageError, OSError)
"""Errors that make a replay impossible. They do not mean that the data differs."""

_ReplayPart = tuple[Transaction, Callable[[], tuple[int, Comparison]]]
"""A commit, and the function that replays and compares its part."""


def replay(
    lake: LakeLike,
    names: Sequence[str],
    steps: Sequence[Step],
    udfs: Sequence[Udf] = (),
    *,
    run_stored_code: bool = False,
) -> Iterator[ReplayReport]:
    """Replay the derived ones of these datasets, oldest transactions first, then the computed columns.

    `steps` are the steps of the pipeline. A transaction is replayed by the step that has the code that made it. `udfs`
    are functions of views and columns that are not defined or imported elsewhere. `run_stored_code` runs the source
    text that the lake stores where no other code has the recorded version: give it only for a lake that you trust.
    """
    datasets = OpenedDatasets(lake)
    by_steps = StepReplay(datasets, steps, lake.runtime.session, run_stored_code)
    replaying = _Replaying(by_steps, ViewReplay(by_steps, udfs), udfs)
    for name in names:
        yield from replaying.dataset(datasets.named(name))


@dataclass(frozen=True)
class _Replaying:
    steps: StepReplay
    views: ViewReplay
    udfs: Sequence[Udf]

    def dataset(self, given: OpenedDataset) -> Iterator[ReplayReport]:
        if given.snapshot.state.dataset_kind is DatasetKind.ROOT:
            for transaction in given.transactions():  # what users wrote since may differ from all results
                if not transaction.is_write:
                    yield self._transaction(given, transaction)
        else:
            found = []
            for transaction in given.transactions():
                found.append(self._transaction(given, transaction))
                yield found[-1]
            # Report what cannot be replayed only once: the transactions of these rows already have it.
            is_reported = any(one.outcome in ("not replayable", "code not available") for one in found)
            yield from (one for one in self._other_problems(given) if one.outcome == "differs" or not is_reported)
        if given.snapshot.layout is not None and given.dataset.catalog.columns:
            column_snapshot = take_column_snapshot(given)
            for column in column_snapshot.catalog.columns:
                batches = replay_column(given, column_snapshot, column, self.udfs, self.steps.run_stored_code)
                yield self._column(given, column, batches)

    def _transaction(self, output: OpenedDataset, transaction: Transaction) -> ReplayReport:
        block = block_of(transaction)
        try:
            origin = origin_of(output, transaction)
            maker = maker_of(origin)
        except (FloodmarkError, OSError) as error:
            return ReplayReport(output.name, "not replayable", Maker("unknown"), block, why=str(error))
        try:
            erased = output.snapshot.erased
            low, high = np.searchsorted(erased, [transaction.start, transaction.end])
            if low < high:
                raise NotReplayable("some of its records were erased")
            if origin.kind == "unknown":
                raise NotReplayable("what made it was not recorded")
            way = self.views.replay if origin.kind == "view" else self.steps.replay
            keys, compared = way(output, transaction, origin)
        except _CANNOT as error:
            return ReplayReport(output.name, _outcome_of(error), maker, block, why=_message(error))
        except (FailedAgain, DerivationError) as error:
            return ReplayReport(output.name, "differs", maker, block, why=_message(error))
        outcome: Outcome = "differs" if compared.differing else "same"
        return ReplayReport(output.name, outcome, maker, block, keys=keys, compared=compared)

    def _other_problems(self, output: OpenedDataset) -> Iterator[ReplayReport]:
        """Problems outside the keys of the transactions: rows that were never written, and rows never taken back."""
        newest = output.newest
        if newest is None:
            return  # no run has committed yet
        maker = Maker("unknown")
        try:
            origin = origin_of(output, newest)
            maker = maker_of(origin)
            for transaction, compare in self._parts(output, newest, origin):
                one = self._replay_part(output, transaction, maker, compare)
                if one.outcome != "same":
                    yield one
        except _CANNOT as error:
            yield _missing_rows_unchecked(output, newest, maker, error)
        except MetaContradiction as error:
            yield ReplayReport(output.name, "differs", maker, block_of(newest), why=str(error))

    def _parts(self, output: OpenedDataset, newest: Transaction, origin: Origin) -> Iterator[_ReplayPart]:
        if origin.kind == "view":
            yield newest, lambda: self.views.replay_others(output, newest, origin)
        elif origin.kind == "datatable":
            if newest.block not in {one.block for one in output.transactions()}:  # those were compared as a whole
                yield newest, lambda: self.steps.replay(output, newest, origin)
        elif origin.kind == "step":
            for part in replay_claims(self.steps, output, origin):
                yield part.replay.transaction, part.compared
        else:
            raise NotReplayable("what made it was not recorded")

    def _replay_part(
        self,
        output: OpenedDataset,
        transaction: Transaction,
        maker: Maker,
        compare: Callable[[], tuple[int, Comparison]],
    ) -> ReplayReport:
        try:
            keys, compared = compare()
        except _CANNOT as error:
            return _missing_rows_unchecked(output, transaction, maker, error)
        except (FailedAgain, DerivationError) as error:
            return ReplayReport(output.name, "differs", maker, block_of(transaction), why=_message(error))
        outcome: Outcome = "differs" if compared.differing else "same"
        return ReplayReport(output.name, outcome, maker, block_of(transaction), keys=keys, compared=compared)

    def _column(self, given: OpenedDataset, column: ColumnDefinition, batches: Iterator[Comparison]) -> ReplayReport:
        maker = Maker("column", column.function.name, column.function.version)
        rows, differing = 0, 0
        first: Comparison | None = None
        try:
            for compared in batches:
                rows += compared.rows
                differing += compared.differing
                first = compared if compared.differing and first is None else first
        except (NotReplayable, LedgerError, StorageError, OSError) as error:
            return ReplayReport(given.name, _outcome_of(error), maker, None, column.name, why=_message(error))
        except (FailedAgain, DerivationError) as error:
            return ReplayReport(given.name, "differs", maker, None, column.name, why=_message(error))
        if first is None:
            return ReplayReport(given.name, "same", maker, None, column.name, rows)
        shown = Comparison(first.stored, first.replayed, rows, differing, first.differences[:MAX_DIFFERENCES])
        return ReplayReport(given.name, "differs", maker, None, column.name, rows, compared=shown)


def _missing_rows_unchecked(
    output: OpenedDataset, transaction: Transaction, maker: Maker, error: Exception
) -> ReplayReport:
    why = f"missing rows cannot be searched for: {_message(error)}"
    return ReplayReport(output.name, _outcome_of(error), maker, block_of(transaction), why=why)


def _outcome_of(error: Exception) -> Outcome:
    return error.outcome if isinstance(error, NotReplayable) else "not replayable"


def _message(error: Exception) -> str:
    return error.message if isinstance(error, FloodmarkError) else str(error)


# Computed columns

BATCH_ROWS = 1 << 16
"""How many rows are computed again at a time."""


def take_column_snapshot(given: OpenedDataset) -> ColumnSnapshot:
    """The snapshot of the current rows of a dataset and its computed columns."""
    now = given.as_of(given.snapshot.next_offset - 1)
    objects = ColumnObjects(given.snapshot.objects)
    rows, bounds = now.current_rows(), (now.purged_before, now.end)
    known = (catalogs.load(objects), given.snapshot)
    return ColumnSnapshot(given.name, given.id, objects, given.layout, rows, now.dead, *bounds, *known, now.endings)


def replay_column(
    given: OpenedDataset,
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    udfs: Sequence[Udf],
    run_stored_code: bool,
) -> Iterator[Comparison]:
    """Replay a computed column and compare its values, in batches of rows."""
    chosen = [udf for udf in udfs if (udf.name, udf.version) == (column.function.name, column.function.version)]
    try:
        udf = resolve_udf(column, chosen[0] if chosen else None)
    except DerivationError as error:
        stored = define_stored_udf(column.function, column.field) if run_stored_code else None
        if stored is None:
            raise CodeNotAvailable(error.message) from error
        udf = stored
    caller = ColumnCaller(udf, column.field, column.inputs, sleep=skip_sleep)
    failed = read_errors(column_snapshot, column.name).column("offset").to_numpy()
    for offsets in _computed(column_snapshot, column):
        yield _compared(given, column_snapshot, column, caller, offsets, failed)


def _computed(column_snapshot: ColumnSnapshot, column: ColumnDefinition) -> Iterator[I64]:
    """The offsets of live rows that the column's current function computed, in batches."""
    for window in column_snapshot.windows(column, None):
        done = column_snapshot.computed(column, window.number) & window.live
        offsets = row_sets.to_array(done).astype(np.int64) + window.base
        for at in range(0, len(offsets), BATCH_ROWS):
            yield offsets[at : at + BATCH_ROWS]


def _compared(
    given: OpenedDataset,
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    caller: ColumnCaller,
    offsets: I64,
    failed: I64,
) -> Comparison:
    names = list(dict.fromkeys(column.inputs))
    beside = column_snapshot.beside
    assert beside is not None
    own = [name for name in names if name not in beside.schema.names]
    others = [name for name in names if name in beside.schema.names]
    rows = given.records(offsets).select(own) if own else pa.table({})
    if others:
        values = beside.open(others).take(offsets)
        rows = append_columns(rows, values, pa.schema([beside.schema.field(name) for name in others]))
    try:
        again = compute_except_failed(caller, rows.select(names), offsets, failed)
    except DerivationError as error:
        raise FailedAgain(error.message) from error
    [stored] = beside.open([column.name]).take(offsets)
    offset = given.layout.vocab.offset
    schema = pa.schema([pa.field(offset, pa.int64()), pa.field(column.name, column.type)])
    there = pa.table([pa.array(offsets), stored], schema=schema)
    return compare(there, pa.table([pa.array(offsets), again], schema=schema), [offset])

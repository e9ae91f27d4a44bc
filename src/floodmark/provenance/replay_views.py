"""Replays refreshes of views: runs the query of that time over the rows that its sources had then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import ColumnObjects, FunctionRef
from floodmark.columns.lost_values import find_valid_ends
from floodmark.columns.snapshot import ColumnValues
from floodmark.derive import notes
from floodmark.derive.commit import complete_columns
from floodmark.errors import BadMeta, DerivationError, QueryFailed
from floodmark.functions.column_call import ColumnCaller
from floodmark.functions.stored_code import define_stored_function
from floodmark.functions.udf import Udf, udf
from floodmark.ledger.data_input import SparkData, TableData
from floodmark.ledger.schema import Layout
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.comparison import CodeNotAvailable, Comparison, NotReplayable, compare
from floodmark.provenance.origin import InputLink, Origin, find_matching_rows, view_at
from floodmark.provenance.replay_steps import (
    FailedAgain,
    StepReplay,
    fit_rows,
    read_all_rows_after,
    read_rows_after,
    read_transaction_keys,
)
from floodmark.provenance.transactions import OpenedDataset, Transaction
from floodmark.storage.arrays import I64
from floodmark.views.analysis import OFFSET_COLUMN, InputUse
from floodmark.views.changed_rows import LocalRows, SparkRows, read_all_rows, read_rows_at
from floodmark.views.definition import UdfColumn, resolve_udf
from floodmark.views.delta_cache import run_whole
from floodmark.views.evaluator import Evaluator, IsolatedSession, convert_refresh_errors, empty_result
from floodmark.views.functions import Failures, load_failures
from floodmark.views.snapshot import ViewNote
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.stored_definition import StoredView

_TIME_FUNCTIONS = ("current_date", "current_timestamp", "localtimestamp", "now()")
"""Names of the current time in Spark's plans. Spark treats it as a constant."""


@dataclass(frozen=True)
class ViewReplay:
    """Replays refreshes of views."""

    replaying: StepReplay
    udfs: Sequence[Udf]

    def replay(self, output: OpenedDataset, transaction: Transaction, origin: Origin) -> tuple[int, Comparison]:
        """The number of keys and their comparison; `NotReplayable` when something needed is missing."""
        view, layout = _known(output, transaction, origin)
        keys = (
            None
            if view.analysis.kind in ("whole", "changes")
            else read_transaction_keys(output, transaction, view.analysis.t)
        )
        return self._replayed(output, transaction, origin, view, layout, keys)

    def replay_others(self, output: OpenedDataset, newest: Transaction, origin: Origin) -> tuple[int, Comparison]:
        """The same for all rows of the sources. This also finds rows never written, and rows never taken back."""
        view, layout = _known(output, newest, origin)
        return self._replayed(output, newest, origin, view, layout, None)

    def _replayed(
        self,
        output: OpenedDataset,
        transaction: Transaction,
        origin: Origin,
        view: StoredView,
        layout: Layout,
        keys: pa.Table | None,
    ) -> tuple[int, Comparison]:
        sources = tuple(self._source(output, transaction, view, link) for link in origin.links)
        session = IsolatedSession(self.replaying.session, view.analysis.settings)
        failed = _failed(output, transaction)
        try:
            rows = self._rows(view, sources, origin, keys, session)
            answer = self._answer(output, view, sources, rows, session, failed)
        except QueryFailed as error:
            raise FailedAgain(error.message) from error
        if keys is None:
            stored = read_all_rows_after(output, transaction, layout)
        else:
            stored = read_rows_after(output, transaction, keys, layout)
        whole = complete_columns(TableData(answer), layout)
        assert isinstance(whole, TableData)
        again = fit_rows(whole.table, layout, f"the current result of view {output.name!r}").cast(stored.schema)
        compared = compare(stored, again, strategy_of(output.snapshot.state).key)
        if compared.differing and _is_volatile(output.name, view, session):
            raise NotReplayable("its query is not deterministic: it uses the current time or random values")
        if compared.differing and failed is None:
            raise NotReplayable("the list of rows for which its functions failed then is lost")
        return stored.num_rows if keys is None else keys.num_rows, compared

    def _source(
        self, output: OpenedDataset, transaction: Transaction, view: StoredView, link: InputLink
    ) -> ViewInputSnapshot:
        given = self.replaying.input(link)
        use: InputUse = next(use for use in view.analysis.sources if use.dataset_id == link.dataset_id)
        input_snapshot = given.as_of(link.position)
        if not use.computed:
            return ViewInputSnapshot(use, input_snapshot)
        objects = ColumnObjects(given.snapshot.objects)
        catalog = catalogs.load(objects)
        then = _note(output, transaction).generations.get(link.dataset_id, {})
        for name in use.computed:
            column = catalog.find(name)
            if column is None or then.get(name) != f"{column.origin}.{column.generation}":
                raise NotReplayable(f"the computed column {name!r} of {given.name!r} has other values now")
        used = tuple(catalog.column(name) for name in use.computed)
        values = ColumnValues(objects, catalog.fragment_rows, used, find_valid_ends(used, input_snapshot))
        return ViewInputSnapshot(use, input_snapshot, values, then, catalog)

    def _rows(
        self,
        view: StoredView,
        sources: Sequence[ViewInputSnapshot],
        origin: Origin,
        keys: pa.Table | None,
        session: IsolatedSession,
    ) -> dict[str, LocalRows | SparkRows]:
        if keys is None:
            return {source.alias: read_all_rows(source, view.analysis, session) for source in sources}
        found: dict[str, LocalRows | SparkRows] = {}
        for source, link in zip(sources, origin.links, strict=True):
            given = self.replaying.input(link)
            offsets = find_matching_rows(given, link, keys).offsets
            found[source.alias] = LocalRows(read_rows_at(source, view.analysis, offsets))
        return found

    def _answer(
        self,
        output: OpenedDataset,
        view: StoredView,
        sources: Sequence[ViewInputSnapshot],
        rows: Mapping[str, LocalRows | SparkRows],
        session: IsolatedSession,
        failed: Failures | None,
    ) -> pa.Table:
        columns = view.definition.udfs
        if view.analysis.kind == "changes" and session.has_plans:
            evaluator = Evaluator(output.name, view.analysis, frozenset(), session)
            with convert_refresh_errors(output.name):
                frame, _, _ = run_whole(view.analysis, sources, session)
                table: pa.Table = evaluator.complete(frame).toArrow()
            return table
        evaluator = Evaluator(output.name, view.analysis, frozenset(c.name for c in columns), session)
        is_empty = all(isinstance(some, LocalRows) and not some.table.num_rows for some in rows.values())
        if is_empty and view.analysis.kind not in ("whole", "changes"):
            answer: TableData | SparkData = empty_result(evaluator.columns, view.analysis.stored)
        else:
            answer = evaluator.evaluate(rows)
        table = answer.table if isinstance(answer, TableData) else answer.frame.toArrow()
        for column in columns:
            table = table.append_column(column.name, self._values(output, view, column, sources[0], table, failed))
        return table

    def _values(
        self,
        output: OpenedDataset,
        view: StoredView,
        column: UdfColumn,
        source: ViewInputSnapshot,
        answer: pa.Table,
        failed: Failures | None,
    ) -> pa.Array:
        """The function's values for the rows of the source, computed without checkpoints."""
        try:
            function = resolve_udf(output.name, column, self.udfs)
        except DerivationError as error:
            run_stored_code = self.replaying.run_stored_code
            stored = define_stored_udf(column.function, column.field) if run_stored_code else None
            if stored is None:
                raise CodeNotAvailable(error.message) from error
            function = stored
        offsets = answer.column(OFFSET_COLUMN).to_numpy()
        wanted, inverse = np.unique(offsets, return_inverse=True)
        use = replace(source.use, columns=tuple(dict.fromkeys(column.inputs)))
        table = read_rows_at(replace(source, use=use), replace(view.analysis, inject={}), wanted)
        caller = ColumnCaller(function, column.field, column.inputs, sleep=skip_sleep)
        none: I64 = np.empty(0, np.int64)
        try:
            values = compute_except_failed(
                caller, table, wanted, none if failed is None else failed.offsets_of(column.name)
            )
        except DerivationError as error:
            raise FailedAgain(error.message) from error
        return values.take(pa.array(inverse))


def define_stored_udf(function: FunctionRef, field: pa.Field) -> Udf | None:
    """The function of a column as its lake stores it, if the text alone gives the recorded version."""
    found: list[Udf] = []

    def is_same(defined: Callable[..., Any]) -> bool:
        found.append(udf(returns=field, name=function.name)(defined))
        return (found[-1].kind, found[-1].version) == (function.kind, function.version)

    return None if define_stored_function(function.source, is_same) is None else found[-1]


def _known(output: OpenedDataset, transaction: Transaction, origin: Origin) -> tuple[StoredView, Layout]:
    """The definition and the schema of that time."""
    if origin.doubts:
        raise NotReplayable(origin.doubts[0])
    view, layout = view_at(output, transaction), output.layout_at(transaction.sequence_number)
    if view is None or layout is None:
        raise NotReplayable("the view's definition of that time is not on its chain")
    return view, layout


def compute_except_failed(caller: ColumnCaller, rows: pa.Table, offsets: I64, failed: I64) -> pa.Array:
    """The function's values, null for the rows for which it failed then. It is not called for these."""
    called = ~np.isin(offsets, failed)
    some = rows.filter(pa.array(called))
    [batch] = some.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], some.schema)]
    values = caller.compute(batch, offsets[called]).values
    return values if called.all() else values.take(pa.array(np.cumsum(called) - 1, mask=~called))


def skip_sleep(_: float) -> None:
    """A `sleep` that does not wait: replays repeat failed calls at once."""


def _note(output: OpenedDataset, transaction: Transaction) -> ViewNote:
    """The note of a refresh."""
    checkpoint, objects = transaction.event.new_checkpoint, output.snapshot.objects
    assert checkpoint is not None
    note = notes.load_note(objects, checkpoint.physical_hash).read_as(ViewNote)
    assert note is not None  # the transaction of a view
    return note


def _failed(output: OpenedDataset, transaction: Transaction) -> Failures | None:
    """The rows for which the view's functions had failed by then; None when a newer list has replaced it."""
    try:
        return load_failures(output.name, _note(output, transaction).errors, output.snapshot.objects)
    except BadMeta:
        return None


def _is_volatile(name: str, view: StoredView, session: IsolatedSession) -> bool:
    """Whether the query may give another answer each time it runs. Its tables must exist in the session."""
    plan = session.query(name, view.analysis)._jdf.queryExecution().analyzed()
    text = str(plan.toString()).lower()
    return not plan.deterministic() or any(name in text for name in _TIME_FUNCTIONS)

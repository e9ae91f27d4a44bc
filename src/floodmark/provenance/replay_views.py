"""A refresh of a view computed again: the query of that time, over the rows of its sources as they were then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from floodmark.compute.errors import ComputeError
from floodmark.compute.functions.call import Caller
from floodmark.compute.functions.udf import Udf
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.read import ColumnValues
from floodmark.derive import notes
from floodmark.ledger.incoming import Frame, SparkFrame
from floodmark.ledger.layout import Layout
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.comparing import Compared, compare
from floodmark.provenance.inputs import rows_of
from floodmark.provenance.opened import Opened, Transaction
from floodmark.provenance.origin import Link, Origin, view_at
from floodmark.provenance.replay_steps import FailedAgain, StepReplay, fitted, keys_of, rows_then, stored_rows
from floodmark.provenance.replayed import NotReplayable
from floodmark.storage.arrays import I64
from floodmark.transform.errors import BadMeta
from floodmark.transform.views.analysed.analysis import OFFSET, SourceUse
from floodmark.transform.views.defined.definition import UdfColumn
from floodmark.transform.views.defined.functions import function_of
from floodmark.transform.views.defined.stored import Stored
from floodmark.transform.views.errors import QueryFailed
from floodmark.transform.views.evaluate import Evaluator, IsolatedSession, empty_answer
from floodmark.transform.views.failures import Failures, load
from floodmark.transform.views.note import Note
from floodmark.transform.views.publish import completed
from floodmark.transform.views.reading.rows import Large, Small, rows_at, whole_of
from floodmark.transform.views.reading.sources import PinnedSource

_EACH_TIME = ("current_date", "current_timestamp", "localtimestamp", "now()")
"""What Spark's plans call the present time, which it counts among the constants."""


@dataclass(frozen=True)
class ViewReplay:
    """Computes refreshes of views again."""

    replaying: StepReplay
    udfs: Sequence[Udf]

    def replay(self, output: Opened, transaction: Transaction, origin: Origin) -> tuple[int, Compared]:
        """How many keys, and how they compare; `NotReplayable` when that cannot be told."""
        view, layout = _known(output, transaction, origin)
        keys = None if view.analysis.kind == "whole" else keys_of(output, transaction, view.analysis.t)
        return self._replayed(output, transaction, origin, view, layout, keys)

    def replay_others(self, output: Opened, newest: Transaction, origin: Origin) -> tuple[int, Compared]:
        """The same for all rows of the sources: those that were never written, and such as should have gone, too."""
        view, layout = _known(output, newest, origin)
        return self._replayed(output, newest, origin, view, layout, None)

    def _replayed(
        self,
        output: Opened,
        transaction: Transaction,
        origin: Origin,
        view: Stored,
        layout: Layout,
        keys: pa.Table | None,
    ) -> tuple[int, Compared]:
        sources = tuple(self._source(output, transaction, view, link) for link in origin.links)
        session = IsolatedSession(self.replaying.session, view.analysis.settings)
        failed = _failed(output, transaction)
        try:
            rows = self._rows(view, sources, origin, keys, session)
            answer = self._answer(output, view, sources, rows, session, failed)
        except QueryFailed as error:
            raise FailedAgain(error.message) from error
        if keys is None:
            stored = rows_then(output, transaction, layout)
        else:
            stored = stored_rows(output, transaction, keys, layout)
        whole = completed(Frame(answer), layout)
        assert isinstance(whole, Frame)
        again = fitted(whole.table, layout, f"what view {output.name!r} gives now").cast(stored.schema)
        compared = compare(stored, again, strategy_of(output.snapshot.state).key)
        if compared.differing and _is_volatile(view, session):
            raise NotReplayable("its query has another answer each time: it asks for the time, or for chance")
        if compared.differing and failed is None:
            raise NotReplayable("the list of the rows that its functions failed for then is gone")
        return stored.num_rows if keys is None else keys.num_rows, compared

    def _source(self, output: Opened, transaction: Transaction, view: Stored, link: Link) -> PinnedSource:
        given = self.replaying.input(link)
        use: SourceUse = next(use for use in view.analysis.sources if use.dataset_id == link.dataset_id)
        pinned = given.as_of(link.position)
        if not use.computed:
            return PinnedSource(use, pinned)
        objects = ColumnObjects(given.snapshot.objects)
        catalog = catalogs.load(objects)
        then = _note(output, transaction).generations.get(link.dataset_id, {})
        for name in use.computed:
            column = catalog.find(name)
            if column is None or then.get(name) != f"{column.origin}.{column.generation}":
                raise NotReplayable(f"the computed column {name!r} of {given.name!r} has other values by now")
        used = tuple(catalog.column(name) for name in use.computed)
        return PinnedSource(use, pinned, ColumnValues(objects, catalog.fragment_rows, used), then, catalog)

    def _rows(
        self,
        view: Stored,
        sources: Sequence[PinnedSource],
        origin: Origin,
        keys: pa.Table | None,
        session: IsolatedSession,
    ) -> dict[str, Small | Large]:
        if keys is None:
            return {source.alias: whole_of(source, view.analysis, session) for source in sources}
        found: dict[str, Small | Large] = {}
        for source, link in zip(sources, origin.links, strict=True):
            given = self.replaying.input(link)
            offsets = rows_of(given, link, keys).offsets
            found[source.alias] = Small(rows_at(source, view.analysis, offsets))
        return found

    def _answer(
        self,
        output: Opened,
        view: Stored,
        sources: Sequence[PinnedSource],
        rows: Mapping[str, Small | Large],
        session: IsolatedSession,
        failed: Failures | None,
    ) -> pa.Table:
        columns = view.definition.udfs
        evaluator = Evaluator(output.name, view.analysis, frozenset(c.name for c in columns), session)
        is_empty = all(isinstance(some, Small) and not some.table.num_rows for some in rows.values())
        if is_empty and view.analysis.kind != "whole":
            answer: Frame | SparkFrame = empty_answer(evaluator.columns, view.analysis.stored)
        else:
            answer = evaluator.evaluate(rows)
        table = answer.table if isinstance(answer, Frame) else answer.frame.toArrow()
        for column in columns:
            table = table.append_column(column.name, self._values(output, view, column, sources[0], table, failed))
        return table

    def _values(
        self,
        output: Opened,
        view: Stored,
        column: UdfColumn,
        source: PinnedSource,
        answer: pa.Table,
        failed: Failures | None,
    ) -> pa.Array:
        """The function's values, of the rows of the source: called, and not taken from any checkpoint."""
        try:
            udf = function_of(output.name, column, self.udfs)
        except ComputeError as error:
            raise NotReplayable(f"the code of column {column.name!r} is gone: {error.message}") from error
        offsets = answer.column(OFFSET).to_numpy()
        wanted, place = np.unique(offsets, return_inverse=True)
        use = replace(source.use, columns=tuple(dict.fromkeys(column.inputs)))
        table = rows_at(replace(source, use=use), replace(view.analysis, inject={}), wanted)
        caller = Caller(udf, column.field, column.inputs, sleep=without_pauses)
        none: I64 = np.empty(0, np.int64)
        try:
            values = values_but(caller, table, wanted, none if failed is None else failed.offsets_of(column.name))
        except ComputeError as error:
            raise FailedAgain(error.message) from error
        return values.take(pa.array(place))


def _known(output: Opened, transaction: Transaction, origin: Origin) -> tuple[Stored, Layout]:
    """The definition and the columns of that time."""
    if origin.doubts:
        raise NotReplayable(origin.doubts[0])
    view, layout = view_at(output, transaction), output.layout_at(transaction.sequence_number)
    if view is None or layout is None:
        raise NotReplayable("its definition of that time is not on its chain")
    return view, layout


def values_but(caller: Caller, rows: pa.Table, offsets: I64, failed: I64) -> pa.Array:
    """The function's values, and none for the rows that it failed for then, whatever it would make of them now."""
    called = ~np.isin(offsets, failed)
    some = rows.filter(pa.array(called))
    [batch] = some.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], some.schema)]
    values = caller.compute(batch, offsets[called]).values
    return values if called.all() else values.take(pa.array(np.cumsum(called) - 1, mask=~called))


def without_pauses(_: float) -> None:
    """Nobody waits between two calls of a function that failed."""


def _note(output: Opened, transaction: Transaction) -> Note:
    """What the refresh noted."""
    checkpoint, objects = transaction.event.new_checkpoint, output.snapshot.objects
    assert checkpoint is not None
    note = notes.read(objects, checkpoint.physical_hash).read_as(Note)
    assert note is not None  # the transaction of a view
    return note


def _failed(output: Opened, transaction: Transaction) -> Failures | None:
    """The rows that the view's functions had failed for by then; None when nobody can tell: newer lists replace it."""
    try:
        return load(output.name, _note(output, transaction).errors, output.snapshot.objects)
    except BadMeta:
        return None


def _is_volatile(view: Stored, session: IsolatedSession) -> bool:
    """Whether the query may have another answer each time it is asked; its tables are there."""
    plan = session.get().sql(view.analysis.query)._jdf.queryExecution().analyzed()
    said = str(plan.toString()).lower()
    return not plan.deterministic() or any(name in said for name in _EACH_TIME)

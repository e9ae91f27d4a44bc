"""Runs the plans of a query's changes: reads the tables, lets Spark evaluate stages and terms, returns weighted rows.

Tables are read by the engine's own readers: changes and rows of some keys come from memory, large tables are read by
Spark. If a refresh would read about as much as the whole query, it is computed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.derive.key_shape import cast_with_mask
from floodmark.derive.row_search import SearchLimitExceeded, SearchLimits
from floodmark.ledger.data_input import SparkData, TableData
from floodmark.ledger.spark_read import table_frame
from floodmark.rows import row_hash
from floodmark.views.analysis import COPY_COLUMN, Analysis
from floodmark.views.catalyst import WEIGHT, Catalyst, frame_of
from floodmark.views.changed_rows import LOCAL_WHOLE_ROWS, LocalRows, SparkRows, read_all_rows
from floodmark.views.evaluator import MEMORY_ROWS, IsolatedSession
from floodmark.views.explanation import RefreshWork, TableRead
from floodmark.views.operator_state import ORDER, FirstRows, GroupTotals, State
from floodmark.views.plan_terms import BuiltPlan, DeltaPlan, OperatorState, Read, Rows, Stage, StateStage, Term
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.spark_sql import register_table, with_row_hash
from floodmark.views.state_plan import OrderPlan
from floodmark.views.table_changes import SplitRows, TableChanges, WholeInstead, cancel_equal, repeat_rows

MAX_CHANGES = 1 << 20
"""The most changed rows of the result, or keys of a stage, that are kept in memory. With more, all is computed."""

MAX_GROUPS = 1 << 19
"""The most groups of an aggregate whose totals are kept."""

MAX_FOUND_ROWS = 1 << 20
"""The most rows of a table that are found by keys and handed to Spark; more are read by Spark as a whole table."""

MAX_READ_FRACTION = 0.7
"""If Spark must read more than this part of the rows that the whole query reads, the whole query is computed."""


class TooManyGroups(Exception):
    """The totals of an operator cannot be kept, because it has too many groups; the text is the name of its state."""


@dataclass
class DeltaRun:
    """One refresh: the plans of a query over the tables of this moment.

    `load` reads a state as the last refresh left it; `states` are those that were computed or changed in this run.
    """

    analysis: Analysis
    catalyst: Catalyst
    plan: DeltaPlan
    session: IsolatedSession
    tables: Mapping[str, TableChanges]  # by name in the query
    load: Callable[[str], pa.Table]
    states: dict[str, State] = field(default_factory=dict)
    _before: dict[str, State] = field(default_factory=dict)  # states as they were
    _given: dict[str, LocalRows | SparkRows] = field(default_factory=dict)  # by read
    _found: dict[tuple[object, ...], SplitRows] = field(default_factory=dict)
    _registered: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        analysis: Analysis,
        built: BuiltPlan,
        session: IsolatedSession,
        sources: Iterable[ViewInputSnapshot],
        positions: Mapping[str, int],
        load: Callable[[str], pa.Table],
    ) -> DeltaRun:
        """A run over these inputs, whose records up to the positions (by dataset id) are in the view."""
        tables = {}
        for source in sources:
            use = replace(source.use, columns=built.plan.columns.get(source.alias, ()))
            tables[source.alias] = TableChanges(replace(source, use=use), positions[source.dataset_id])
        return cls(analysis, built.catalyst, built.plan, session, tables, load)

    def whole(self) -> Any:
        """The whole result, as a frame. `TooManyGroups` if totals cannot be kept."""
        for state in self.plan.states:
            self.states[state.name] = self._compute(state)
        self._prepare([self.plan.whole])
        return frame_of(self.session.get(), self.plan.whole.plan)

    def changes(self) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]:
        """The rows of the result that were added and those that are gone, and the weight of each."""
        for stage in self.plan.stages:
            if isinstance(stage, StateStage):
                self._change_state(stage)
            else:
                self._run_stage(stage)
        terms = self._active(self.plan.changes)
        self._check_cost(terms)
        if not terms:
            names = [name for name in self.analysis.stored.names if name != COPY_COLUMN]
            empty = pa.schema([self.analysis.stored.field(name) for name in names]).empty_table()
            return empty, np.empty(0, np.int64)
        plan = self.catalyst.union([term.plan for term in terms])
        rows = self._collect(terms, plan, "rows of the result", self._with_hash)
        weights = rows.column(WEIGHT).to_numpy().astype(np.int64)
        return rows.drop_columns([WEIGHT]), weights

    def _compute(self, state: OperatorState) -> State:
        """A state from rows as they are now."""
        self._prepare([state.whole])
        frame = frame_of(self.session.get(), state.whole.plan)
        if isinstance(state.plan, OrderPlan):
            rows = frame.toArrow()
            return FirstRows(rows.slice(0, state.plan.kept), rows.num_rows <= state.plan.kept)
        totals = frame.limit(MAX_GROUPS + 1).toArrow() if state.plan.by else frame.toArrow()
        if totals.num_rows > MAX_GROUPS:
            raise TooManyGroups(state.name)
        return GroupTotals.of(totals)

    def _state_before(self, state: OperatorState) -> State:
        """A state as the last refresh left it."""
        if state.name not in self._before:
            kind = FirstRows if isinstance(state.plan, OrderPlan) else GroupTotals
            self._before[state.name] = kind.from_table(self.load(state.name))
        return self._before[state.name]

    def _change_state(self, stage: StateStage) -> None:
        """Change a state by the changes of the operator's input."""
        state, terms = stage.state, self._active(stage.terms)
        added = removed = pa.table({})
        if terms:
            self._check_cost(terms)
            union = self.catalyst.union([term.plan for term in terms])
            if isinstance(state.plan, OrderPlan):
                added, removed = self._change_order(state, state.plan, terms, union)
            else:
                changes = self._collect(terms, state.plan.changes(union), "groups")
                before = self._state_before(state)
                assert isinstance(before, GroupTotals)
                changed = before.add(changes)
                self.states[state.name] = changed.totals
                added, removed = changed.now, changed.before
        self._given[state.added.name] = LocalRows(added)
        self._given[state.removed.name] = LocalRows(removed)

    def _change_order(
        self, state: OperatorState, plan: OrderPlan, terms: Sequence[Term], union: Any
    ) -> tuple[pa.Table, pa.Table]:
        rows = self._collect(terms, plan.changed(union), "rows of an order")
        before = self._state_before(state)
        assert isinstance(before, FirstRows)
        weights = rows.column(WEIGHT).to_numpy().astype(np.int64)
        distinct, totals = before.candidates(rows.drop_columns([WEIGHT]), weights)
        numbered = distinct.append_column(ORDER, pa.array(np.arange(distinct.num_rows)))
        name = f"floodmark_candidates_{state.name}"
        register_table(name, table_frame(numbered, self.session.get()).coalesce(1))
        ordered = frame_of(self.session.get(), plan.ordered(self.catalyst.relation(name))).toArrow()
        at = ordered.column(ORDER).to_numpy()
        after = before.updated(distinct.take(pa.array(at)), totals[at], plan.needed, plan.kept)
        self.states[state.name] = after
        shown = pa.concat_tables([_shown(plan, after), _shown(plan, before)])
        signs = np.repeat([1, -1], [_shown(plan, after).num_rows, _shown(plan, before).num_rows])
        changed, signs = repeat_rows(*cancel_equal(shown, signs))
        return changed.filter(pa.array(signs > 0)), changed.filter(pa.array(signs < 0))

    def _run_stage(self, stage: Stage) -> None:
        terms = self._active(stage.terms)
        if not terms:
            return
        self._check_cost(terms)
        plan = self.catalyst.distinct(self.catalyst.union([term.plan for term in terms]))
        self._given[stage.keys.name] = LocalRows(self._collect(terms, plan, "keys"))

    def _with_hash(self, frame: Any) -> Any:
        """The rows with the hash that identifies them, if the view has one."""
        columns = [name for name in frame.columns if name != WEIGHT]
        return with_row_hash(frame, columns) if self.analysis.identity else frame

    def _collect(
        self, terms: Sequence[Rows], plan: Any, what: str, complete: Callable[[Any], Any] = lambda frame: frame
    ) -> pa.Table:
        self._prepare(terms)
        frame = complete(frame_of(self.session.get(), plan))
        rows: pa.Table = frame.limit(MAX_CHANGES + 1).toArrow() if self._is_large(terms) else frame.toArrow()
        if rows.num_rows > MAX_CHANGES:
            raise WholeInstead(f"more than {MAX_CHANGES:,} {what} changed")
        return rows

    def _active(self, terms: Sequence[Term]) -> list[Term]:
        """The terms that may have rows."""
        return [term for term in terms if self._has_rows(term.seed)]

    def _has_rows(self, seed: Read) -> bool:
        if seed.kind == "keys":
            keys = self._given.get(seed.name)
            return isinstance(keys, LocalRows) and keys.table.num_rows > 0
        assert seed.table is not None
        table = self.tables[seed.table]
        return not table.is_unchanged and len(table.weighed[1]) > 0

    # Reads

    def _prepare(self, terms: Iterable[Rows]) -> None:
        """Give Spark the tables that these plans read."""
        reads = list(dict.fromkeys(read for term in terms for read in term.reads))
        given = {read.name: self._rows_of(read) for read in reads}
        if any(isinstance(rows, SparkRows) for rows in given.values()):
            self.session.use_many_tasks()
        else:
            self.session.use_few_tasks()
        spark = self.session.get()
        for name, rows in given.items():
            if name in self._registered:
                continue
            self._registered.add(name)
            frame = rows.frame if isinstance(rows, SparkRows) else table_frame(rows.table, spark).coalesce(1)
            register_table(name, frame)

    def _is_large(self, terms: Iterable[Rows]) -> bool:
        return any(isinstance(self._rows_of(read), SparkRows) for term in terms for read in term.reads)

    def _rows_of(self, read: Read) -> LocalRows | SparkRows:
        if read.name not in self._given:
            self._given[read.name] = self._read(read)
        return self._given[read.name]

    def _read(self, read: Read) -> LocalRows | SparkRows:
        if read.state is not None:
            return self._read_state(read)
        assert read.table is not None  # the keys of a stage are known once it has run
        table = self.tables[read.table]
        if read.kind == "changes":
            rows, weights = repeat_rows(*table.weighed)
            return LocalRows(rows.append_column(WEIGHT, pa.array(weights.astype(np.int32))))
        if read.among is not None:
            found = self._among(read, table)
            if found is not None:
                return LocalRows(found.now if read.kind == "now" or table.is_unchanged else found.before)
        if read.kind == "before" and not table.is_unchanged:
            return read_all_rows(table.source_before, self.analysis, self.session)
        return self._all(read, table)

    def _read_state(self, read: Read) -> LocalRows:
        """The rows of a state, or those that the values of another read need."""
        [state] = [state for state in self.plan.states if state.name == read.state]
        known = self.states.get(state.name) if read.kind == "now" else None
        known = self._state_before(state) if known is None else known
        rows = _shown(state.plan, known) if isinstance(state.plan, OrderPlan) else known.table
        if read.among is None:
            return LocalRows(rows)
        given = self._rows_of(read.among.read)
        if isinstance(given, SparkRows):
            return LocalRows(rows)
        names = list(read.columns)
        values = given.table.select(list(read.among.columns)).rename_columns(names)
        fields = [rows.schema.field(name) for name in names]
        cast, fits = cast_with_mask(values.columns, fields)
        typed = pa.table(cast, schema=pa.schema(fields)).filter(pa.array(fits))
        is_needed = row_hash.hash_rows(rows, names).among(row_hash.hash_rows(typed, names))
        return LocalRows(rows.filter(pa.array(is_needed)))

    def _all(self, read: Read, table: TableChanges) -> LocalRows | SparkRows:
        """All rows of a table as they are, read once."""
        name = f"all {read.table}"
        if name not in self._given:
            self._given[name] = read_all_rows(table.source, self.analysis, self.session)
        return self._given[name]

    def _among(self, read: Read, table: TableChanges) -> SplitRows | None:
        """The rows that the values of another read need; None if these are not in memory, or need too many rows."""
        assert read.among is not None
        given = self._rows_of(read.among.read)
        if isinstance(given, SparkRows):
            return None
        known = (read.table, read.columns, read.among)
        if known not in self._found:
            values = given.table.select(list(read.among.columns)).rename_columns(list(read.columns))
            if values.num_rows > MEMORY_ROWS:
                return None
            try:
                self._found[known] = table.rows_among(values, SearchLimits(MAX_FOUND_ROWS))
            except SearchLimitExceeded:
                return None
        return self._found[known]

    @property
    def work(self) -> RefreshWork:
        """What it read, and the number of keys that each operator had."""
        reads: dict[TableRead, None] = {}
        for read in self.plan.reads:
            if read.table is None or read.name not in self._given:
                continue
            is_by_key = (read.table, read.columns, read.among) in self._found
            given = self._given[read.name]
            rows = given.table.num_rows if isinstance(given, LocalRows) else self._size(read.table)
            reads[TableRead(read.table, read.kind, rows, read.columns if is_by_key else None)] = None
        changed = {}
        for stage in self.plan.stages:
            results = [self._given.get(read.name) for read in stage.changed]
            counts = [one.table.num_rows for one in results if isinstance(one, LocalRows)]
            if counts:
                changed[stage.operator] = max(counts)
        return RefreshWork(reads=tuple(reads), keys=changed)

    # Cost

    def _check_cost(self, terms: Sequence[Rows]) -> None:
        """Refuse to read about as many rows by Spark as the whole query does."""
        whole = sum(self._size(name) for name in self.plan.tables)
        reads = dict.fromkeys(read for term in terms for read in term.reads)
        full = [read for read in reads if read.table is not None and read.kind != "changes" and self._is_full(read)]
        rows = sum(self._size(str(read.table)) for read in full)
        if rows > max(MAX_READ_FRACTION * whole, LOCAL_WHOLE_ROWS):
            names = ", ".join(sorted({repr(str(read.table)) for read in full}))
            raise WholeInstead(f"carrying the changes would read {names} as a whole")

    def _is_full(self, read: Read) -> bool:
        return read.among is None

    def _size(self, table: str) -> int:
        return self.tables[table].source.given.live_rows


def _shown(plan: OrderPlan, state: State) -> pa.Table:
    """The rows of an order that a limit shows."""
    return state.table.slice(plan.skipped, plan.shown)


def as_data(frame: Any) -> TableData | SparkData:
    """A result: in memory if it is small."""
    rows = frame.limit(MEMORY_ROWS + 1).toArrow()
    return TableData(rows) if rows.num_rows <= MEMORY_ROWS else SparkData(frame)

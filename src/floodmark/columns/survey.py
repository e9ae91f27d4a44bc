"""Reads the state of a column (files, checkpoints, errors) and plans a backfill from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import row_errors
from floodmark.columns.carried_values import CarriedRowFinder
from floodmark.columns.catalog import ColumnDefinition, ColumnObjects, hash_inputs
from floodmark.columns.checkpoints import CheckpointFinder
from floodmark.columns.column_file import has_valid_footer, read_values
from floodmark.columns.manifest import ColumnManifest, ColumnSegment, Fragment
from floodmark.columns.plan import FragmentPlan, FragmentWindow, MissingRows, StoredResults, plan_fragment
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.derive.checkpoint_key import CheckpointPrefix, hash_text
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import UnreadableColumn
from floodmark.ledger.scan import Where
from floodmark.storage import row_sets

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MissingRange:
    """Rows to compute between two offsets, and the reason."""

    start: int
    end: int
    rows: int
    why: str


@dataclass(frozen=True)
class BackfillPlan:
    """What a backfill would do: how many rows are done, stored in checkpoints, or missing, and why they are missing.

    `carried` rows take over the value of the record that they replaced, since their inputs are the same. `rows` counts
    all live rows, `wanted` those that `where` keeps and whose inputs are computed. `waiting` rows cannot be computed
    yet, because they need a value of another computed column that is not computed yet.
    """

    column: str
    rows: int
    wanted: int
    done: int
    reused: int
    missing: int
    waiting: int
    fragments: tuple[FragmentPlan, ...]
    carried: int = 0

    @cached_property
    def ranges(self) -> list[MissingRange]:
        """The missing rows as ranges of offsets, in order."""
        found = [r for plan in self.fragments for r in _ranges(plan)]
        return sorted(found, key=lambda r: (r.start, r.why))

    @property
    def nothing_to_do(self) -> bool:
        """Whether a backfill would neither compute nor commit anything."""
        return all(plan.is_done for plan in self.fragments)


def _ranges(plan: FragmentPlan) -> Iterator[MissingRange]:
    base = plan.window.base
    for missing in plan.missing:
        for start, end in row_sets.ranges(missing.rows):
            yield MissingRange(start + base, end + base, end - start, missing.why)


def column_prefix(column_snapshot: ColumnSnapshot, column: ColumnDefinition, where: Where) -> CheckpointPrefix:
    """The checkpoint key prefix of a backfill of this column."""
    return CheckpointPrefix(
        udf=column.function.name,
        version=column.function.version,
        column=column.name,
        where=hash_text(None if where is None else str(where)),
        uri=hash_text(column_snapshot.dataset_id),
        srcfiles=hash_inputs(column_snapshot.catalog, column_snapshot.dataset_id, column),
    )


def plan_backfill(
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    finder: CheckpointFinder | None,
    where: Where = None,
    retried: bool = False,
    runner: TaskRunner | None = None,
) -> BackfillPlan:
    """Plan a backfill. With `retried`, rows that were skipped before are computed again.

    `finder` finds checkpoints; a `RepairingFinder` also deletes damaged ones. Without a finder, no checkpoints and file
    footers are read, and only `nothing_to_do` of the plan is meaningful. A `runner` of a cluster compares the
    records there.
    """
    base = column_snapshot.manifest(column).with_identity(column_snapshot.identity(column))
    prefix = column_prefix(column_snapshot, column, where)
    there = _StoredFiles(column_snapshot.objects, max((s.end for f in base.fragments for s in f.segments), default=0))
    fragments, rows, waiting = [], 0, 0
    for window in column_snapshot.windows(column, where):
        rows += len(window.live)
        waiting += len(window.asked) - len(window.wanted)
        fragments.append(_fragment(column_snapshot, column, prefix, window, base, there, finder, retried))
    if finder is not None:
        fragments = list(_carrying(column_snapshot, column, prefix, fragments, there, finder, retried, runner))
    return BackfillPlan(
        column=column.name,
        rows=rows,
        wanted=sum(len(f.window.wanted) for f in fragments),
        done=sum(len(f.done) for f in fragments),
        reused=sum(len(f.reused) for f in fragments),
        carried=sum(len(f.carried) for f in fragments),
        missing=sum(len(f.to_compute) for f in fragments),
        waiting=waiting,
        fragments=tuple(fragments),
    )


class _StoredFiles:
    """The files of values in the store, read by one listing. `seen` is the offset up to which the column has files."""

    def __init__(self, objects: ColumnObjects, seen: int) -> None:
        self._objects = objects
        self.seen = seen

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {info.key: info.size for info in self._objects.files()}

    def has(self, segment: ColumnSegment) -> bool:
        """Whether the file exists and has its size. Its bytes are checked by verify and when it is read."""
        return self._sizes.get(segment.key(self._objects)) == segment.size

    def has_whole(self, segment: ColumnSegment) -> bool:
        """The same, and also checks its footer."""
        return self.has(segment) and has_valid_footer(self._objects, segment)


def _fragment(
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    prefix: CheckpointPrefix,
    window: FragmentWindow,
    base: ColumnManifest,
    there: _StoredFiles,
    finder: CheckpointFinder | None,
    retried: bool,
) -> FragmentPlan:
    stored = base.fragment(window.number)
    before, lost = _readable(stored, window, there.has)
    if finder is not None and not before.done >= window.wanted:
        before, lost = _readable(stored, window, there.has_whole)  # files to replace must be readable
    again = _skipped(column_snapshot, column, before, window) if retried else BitMap()
    done = before.done - again
    if finder is None or done >= window.wanted:
        return plan_fragment(window, before, lost, done, (), (), ())
    listed = _listed(column, prefix, before, there, finder)
    ranges, data = list(listed.ranges), list(listed.data)
    if again:  # their stored results are errors
        ranges = [replace(r, rows=r.rows - again) for r in ranges]
        data = [replace(d, done=d.done - again) for d in data]
    reasons = list(_reasons(before, window, there, lost, again))
    return replace(plan_fragment(window, before, lost, done, reasons, ranges, data), again=again, listed=listed)


def _listed(
    column: ColumnDefinition,
    prefix: CheckpointPrefix,
    committed: Fragment,
    there: _StoredFiles,
    finder: CheckpointFinder,
) -> StoredResults:
    """All results of a fragment that are stored."""
    ranges = finder.ranges(prefix, committed.number, column.field.remove_metadata())
    data = [d for d in finder.data(prefix, committed.number) if there.has_whole(ColumnSegment.from_json(d.segment))]
    return StoredResults(committed, tuple(data), tuple(ranges))


def _carrying(
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    prefix: CheckpointPrefix,
    plans: Sequence[FragmentPlan],
    there: _StoredFiles,
    finder: CheckpointFinder,
    retried: bool,
    runner: TaskRunner | None,
) -> Iterator[FragmentPlan]:
    """The plans in which rows take over values, where they can. Values that failed are not taken over to be retried."""
    if not any(plan.before.done or plan.listed is None or plan.listed.uncommitted for plan in plans):
        yield from plans  # nothing is stored
        return
    by_number = {plan.number: plan for plan in plans}
    all_results: dict[int, StoredResults] = {}

    def results(number: int) -> StoredResults:
        if number not in all_results:
            plan = by_number[number]
            all_results[number] = plan.listed or _listed(column, prefix, plan.before, there, finder)
        return all_results[number]

    def committed(number: int) -> BitMap:
        before = by_number[number].before
        try:
            errors = row_errors.load(column_snapshot.objects, before.errors)
        except UnreadableColumn:
            return BitMap()  # a row without a value may have failed
        return before.done - rows_of(errors, number) if retried else before.done

    def uncommitted(number: int) -> BitMap:
        found = results(number)
        rows = found.uncommitted - found.committed.done
        return rows - BitMap.union(BitMap(), BitMap(), *failed(found)) if retried else rows

    def failed(found: StoredResults) -> Iterator[BitMap]:
        yield from (r.failed for r in found.ranges)
        yield from (rows_of(data.errors, found.number) for data in found.data if data.errors is not None)

    def rows_of(errors: pa.Table, number: int) -> BitMap:
        return row_sets.from_array(errors.column("offset").to_numpy() - number * rows_each)

    rows_each = column_snapshot.catalog.fragment_rows
    search = CarriedRowFinder(column_snapshot, column.inputs, rows_each, (committed, uncommitted), runner)
    for plan in plans:
        carried = search.find(plan.number, plan.to_compute - plan.again)
        if not len(carried):
            yield plan
            continue
        numbers = np.unique(carried.sources // rows_each).tolist()
        yield plan.carrying(carried, [all_results.get(n) or StoredResults(by_number[n].before) for n in numbers])


def _readable(
    before: Fragment, window: FragmentWindow, is_there: Callable[[ColumnSegment], bool]
) -> tuple[Fragment, Fragment]:
    """The fragment without its missing and damaged files, and a fragment of these files and their rows."""
    whole = tuple(s for s in before.segments if is_there(s))
    if len(whole) == len(before.segments):
        return before, Fragment(window.number)
    gone = [s for s in before.segments if s not in whole]
    rows = BitMap.union(*[row_sets.span(s.start - window.base, s.end - window.base) for s in gone], BitMap())
    sets = {name: getattr(before, name) for name in ("done", "kept", "hidden", "carried")}
    left = replace(before, segments=whole, **{name: found - rows for name, found in sets.items()})
    return left, replace(before, segments=tuple(gone), **{name: found & rows for name, found in sets.items()})


def _skipped(
    column_snapshot: ColumnSnapshot, column: ColumnDefinition, before: Fragment, window: FragmentWindow
) -> BitMap:
    if before.errors is None:
        return BitMap()
    try:
        offsets = row_errors.load(column_snapshot.objects, before.errors).column("offset").to_numpy()
    except UnreadableColumn as error:
        _log.warning("%s; every row without a value is tried again", error.message)
        return _nulls(column_snapshot, column, before, window) & window.wanted
    return row_sets.from_array(offsets - window.base) & window.wanted


def _nulls(
    column_snapshot: ColumnSnapshot, column: ColumnDefinition, before: Fragment, window: FragmentWindow
) -> BitMap:
    """The computed rows without a value. They include the skipped rows."""
    found = BitMap()
    for segment in before.segments:
        values = read_values(column_snapshot.objects, segment, column.field, segment.start, segment.end)
        nulls = np.flatnonzero(values.is_null().to_numpy())
        found |= row_sets.from_array(nulls + segment.start - window.base)
    return found & before.done


def _reasons(
    before: Fragment, window: FragmentWindow, there: _StoredFiles, lost: Fragment, again: BitMap
) -> Iterator[MissingRows]:
    yield MissingRows(lost.done | lost.kept, "the file with their values is lost or damaged")
    yield MissingRows(again, "they failed before and are computed again")
    yield MissingRows(before.hidden, "a computed column they depend on has changed")
    yield MissingRows(before.kept, "the function has changed")
    if there.seen:
        fresh = row_sets.span(max(there.seen, window.start) - window.base, max(window.end, there.seen) - window.base)
        yield MissingRows(fresh, "the records are new")

"""Values of a function for some records of a dataset, stored in checkpoints only. Views use them.

The checkpoints have the same format and keys as those of computed columns, but are in the folder of the view. Nothing
is installed. A record takes over the value of the record that it replaced if its inputs are the same. Only other rows
that no checkpoint covers are computed, in the same rounds of tasks. So a killed run loses only
what it had not stored, and a later call, for any records and any filter, computes only what is missing.

A checkpoint covers a range of offsets and names the rows of it that it has, so records that are far apart share one.
Each run that computes something adds about one checkpoint per fragment. When there are many, they are merged.

Fragments always have the same number of rows here, also if the dataset's own columns use another number: a size that
is chosen later must not change the keys.

Garbage collection keeps the checkpoints of computations in use (`garbage.UsedCheckpoints`), except those of dead and
purged records. A view names its computations with `used_checkpoints`. All other checkpoints are removed when they are a
week old, like those of dropped columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns.carried_values import CarriedRowFinder, CarryTask, carry_values
from floodmark.columns.catalog import FRAGMENT_ROWS, Catalog, ColumnDefinition, ColumnObjects, FunctionRef
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR, OffsetValues
from floodmark.columns.checkpoint_store import CheckpointGroup, CheckpointInfo, CheckpointStore
from floodmark.columns.checkpoint_values import CheckpointedFragment, FunctionValues, MergedValues, split_by_fragment
from floodmark.columns.checkpoints import RangeCheckpoint, RepairingFinder, free_range_key
from floodmark.columns.garbage import UsedCheckpoints
from floodmark.columns.manifest import Fragment
from floodmark.columns.plan import BackfillOptions, FragmentPlan, FragmentWindow, StoredResults, plan_fragment
from floodmark.columns.rounds import compute_missing
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.columns.value_sources import lost_rows_error
from floodmark.columns.work import ColumnJob, RangeResult
from floodmark.derive.checkpoint_key import RANGE, CheckpointKey, CheckpointPrefix, hash_text, parse_key
from floodmark.derive.run import take_turn
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import DerivationError, UnknownColumn
from floodmark.functions.udf import Udf
from floodmark.ledger.scan import live_mask
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

_TRIES = 20
"""How often rows are computed again when their stored values turn out lost or damaged."""

_FEW_FRAGMENTS = 8
"""Up to this many fragments, checkpoints are listed fragment by fragment; for more, all at once."""

_NO_FIELD = 0  # field ids of columns start at 1

# Compute


def compute_function_values(
    source: ColumnSnapshot,
    column: pa.Field,
    udf: Udf,
    inputs: Sequence[str],
    offsets: I64,
    kept_in: ColumnObjects,
    options: BackfillOptions,
    runner: TaskRunner,
    progress: Progress,
    fragment_rows: int = FRAGMENT_ROWS,
) -> FunctionValues:
    """The values of a column for the current records of `source` at these ascending offsets.

    `kept_in` is the folder of the checkpoints, most often that of a view. The options `where` and
    `commit_granularity` have no effect: the offsets select the rows, and nothing is committed.
    """
    _check(source, column, inputs, offsets)
    options.checkpoint_sizes(udf, 1)  # refused before anything is done
    prefix = function_prefix(source.catalog, source.dataset_id, column, udf.name, udf.version, inputs, fragment_rows)
    work = ColumnJob(
        objects=kept_in,
        records=source.objects.dataset,
        fragment_rows=fragment_rows,
        layout=source.layout,
        beside=source.beside,
        column=column.remove_metadata(),
        field_id=_NO_FIELD,
        inputs=tuple(inputs),
        prefix=prefix,
        run=options.run,
        sources=prefix.srcfiles,
        udf=udf,
        newest=source.read,
    )
    wanted = {
        number: row_sets.from_array(part - number * fragment_rows)
        for number, part in split_by_fragment(offsets, fragment_rows)
    }
    finding = _ValueRequest(source, work, options, runner, progress, wanted)
    finding.look(wanted)
    if options.retry_errors:
        finding.retry_failed()
    if finding.incomplete:
        other = f"another process that computes {column.name}"
        with take_turn(
            kept_in.store, f"{kept_in.folder}/turns/{CheckpointGroup.of(prefix.text).name}", other, progress
        ):
            finding.look(finding.incomplete)
            finding.carry_over()
            finding.complete()
    return finding.result()


def used_checkpoints(
    source: ColumnSnapshot, prefix: CheckpointPrefix, fragment_rows: int = FRAGMENT_ROWS
) -> UsedCheckpoints:
    """A column that is still computed from a source: garbage collection keeps its checkpoints."""
    return UsedCheckpoints(prefix, fragment_rows, source.dead, source.start)


def function_prefix(
    catalog: Catalog,
    dataset_id: str,
    column: pa.Field,
    function: str,
    version: str,
    inputs: Sequence[str],
    fragment_rows: int = FRAGMENT_ROWS,
) -> CheckpointPrefix:
    """The checkpoint key prefix for the values of a function of this name and version; `catalog` is the source's."""
    as_column = ColumnDefinition(
        column.name, _NO_FIELD, column.type, True, tuple(inputs), FunctionRef(function, version, "")
    )
    return CheckpointPrefix(
        udf=function,
        version=version,
        column=column.name,
        where=hash_text(None),
        uri=hash_text(dataset_id),
        srcfiles=catalogs.hash_inputs(replace(catalog, fragment_rows=fragment_rows), dataset_id, as_column),
    )


def _check(source: ColumnSnapshot, column: pa.Field, inputs: Sequence[str], offsets: I64) -> None:
    known = [*source.layout.read_schema.names, *[c.name for c in source.catalog.columns]]
    for name in inputs:
        if name not in known:
            raise UnknownColumn(
                f"column {column.name!r} is computed from {name!r}, which {source.name!r} does not have",
                hint=f"use some of its columns: {', '.join(known)}",
                column=column.name,
                input=name,
            )
    if not len(offsets):
        return
    if (np.diff(offsets) <= 0).any():
        raise ValueError("offsets must be ascending and unique")
    kept = live_mask(offsets, source.dead)
    if offsets[0] < source.start or offsets[-1] >= source.end or (kept is not None and not kept.all()):
        raise ValueError(f"not all of the offsets are current records of {source.name!r}")
    for name in inputs:
        if (made := source.catalog.find(name)) is not None:
            _check_computed(source, column, made, offsets)


def _check_computed(source: ColumnSnapshot, column: pa.Field, made: ColumnDefinition, offsets: I64) -> None:
    """Refuse an input whose values are not all computed: the missing ones would read as null."""
    rows = source.catalog.fragment_rows
    lacking = sum(
        len(row_sets.from_array(part - number * rows) - source.computed(made, number))
        for number, part in split_by_fragment(offsets, rows)
    )
    if lacking:
        raise DerivationError(
            f"column {column.name!r} needs {made.name!r} of {source.name!r}, which is not computed for {lacking} of "
            f"{len(offsets)} records",
            hint=f"run backfill({made.name!r}) first",
            column=column.name,
            input=made.name,
            rows=lacking,
        )


@dataclass
class _ValueRequest:
    """Finds the checkpoints of the wanted rows, and computes the rows that have none."""

    source: ColumnSnapshot
    work: ColumnJob
    options: BackfillOptions
    runner: TaskRunner
    progress: Progress
    wanted: dict[int, BitMap]
    plans: dict[int, FragmentPlan] = field(default_factory=dict)
    again: dict[int, BitMap] = field(default_factory=dict)  # rows that failed before: their stored results do not count
    applied: list[RangeResult] = field(default_factory=list)
    carried: int = 0

    @cached_property
    def _checkpoints(self) -> CheckpointStore:
        return self.source.checkpoints_in(self.work.objects)

    @property
    def incomplete(self) -> list[int]:
        """The fragments that have rows to compute."""
        return [number for number, plan in self.plans.items() if plan.missing]

    def look(self, numbers: Iterable[int]) -> None:
        """Find the checkpoints of some fragments. Damaged ones are deleted."""
        finder = RepairingFinder(self._checkpoints)
        chosen = list(numbers)
        for number, infos in self._listed(chosen):
            wanted = self.wanted[number]
            ages = {info.key: info.modified for info in infos}
            within = (wanted.min(), wanted.max() + 1)
            ranges = finder.among(ages, self.work.column, within)
            ranges.sort(key=lambda found: (ages[found.key], found.key))
            self.plans[number] = self._plan(number, ranges)

    def _listed(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[CheckpointInfo]]]:
        store, prefix = self.work.checkpoints, self.work.prefix.text
        if len(numbers) <= _FEW_FRAGMENTS:
            yield from ((number, store.fragment_infos(prefix, number)) for number in numbers)
            return
        found: dict[int, list[CheckpointInfo]] = {number: [] for number in numbers}
        for number, info in store.computation_infos(prefix):
            if number in found:
                found[number].append(info)
        yield from found.items()

    def _plan(self, number: int, ranges: Sequence[RangeCheckpoint]) -> FragmentPlan:
        wanted, base = self.wanted[number], number * self.work.fragment_rows
        bounds = (base + wanted.min(), base + wanted.max() + 1)
        window = FragmentWindow(number, *bounds, base, full=False, live=wanted, asked=wanted, wanted=wanted)
        nothing, again = Fragment(number), self.again.get(number, BitMap())
        counted = [replace(found, rows=found.rows - again) for found in ranges] if again else ranges
        plan = plan_fragment(window, nothing, nothing, BitMap(), (), counted, ())
        return replace(plan, ranges=tuple(ranges), targets=(), again=again)  # no file is written

    def retry_failed(self) -> None:
        """Count rows that failed and never got a value as missing."""
        for number, plan in self.plans.items():
            failed = BitMap.union(*[found.failed for found in plan.ranges], BitMap(), BitMap())
            good = BitMap.union(*[found.rows - found.failed for found in plan.ranges], BitMap(), BitMap())
            if again := (failed - good) & self.wanted[number]:
                self.again[number] = again
                self.plans[number] = self._plan(number, plan.ranges)

    def carry_over(self) -> None:
        """Store the values that records take over from the records that they replaced, because the inputs are equal."""
        if not len(self.source.dead) or not self._range_keys:
            return
        known = (self.source, self.work.inputs, self.work.fragment_rows)
        search = CarriedRowFinder(*known, [self._may_have], self.runner)
        found = {n: search.find(n, self.plans[n].to_compute - self.plans[n].again) for n in self.incomplete}
        sources = np.unique(np.concatenate([NO_OFFSETS, *[rows.sources for rows in found.values()]]))
        stored = {n: self._stored(n, part) for n, part in split_by_fragment(sources, self.work.fragment_rows)}
        tasks = [
            CarryTask(n, rows, tuple(stored[i] for i in np.unique(rows.sources // self.work.fragment_rows).tolist()))
            for n, rows in found.items()
            if len(rows)
        ]
        self.carried += sum(map(len, self.runner.run_light(tasks, partial(carry_values, self.work))))
        for task in tasks:
            merge_small_checkpoints(self._checkpoints, self.work.prefix, task.fragment, self.work.column)
        self.look([task.fragment for task in tasks])

    def _may_have(self, number: int) -> BitMap:
        """The rows of a fragment that may be in checkpoints, by their keys."""
        spans = [row_sets.span(key.start, key.end) for key in self._range_keys.get(number, {}).values()]
        return BitMap.union(BitMap(), BitMap(), *spans)

    @cached_property
    def _range_keys(self) -> dict[int, dict[str, CheckpointKey]]:
        """The keys of all range checkpoints when this is first asked, by fragment."""
        found: dict[int, dict[str, CheckpointKey]] = {}
        for number, info in self.work.checkpoints.computation_infos(self.work.prefix.text):
            if (key := parse_key(info.key)) is not None and key.kind == RANGE:
                found.setdefault(number, {})[info.key] = key
        return found

    def _stored(self, number: int, offsets: I64) -> StoredResults:
        """The checkpoints that have results of some records of a fragment, without errors if they are to be retried."""
        at = offsets - number * self.work.fragment_rows
        keys = [
            text
            for text, key in self._range_keys[number].items()
            if np.searchsorted(at, key.start) < np.searchsorted(at, key.end)
        ]
        ranges = RepairingFinder(self._checkpoints).among(keys, self.work.column)
        if self.options.retry_errors:
            ranges = [replace(found, rows=found.rows - found.failed) for found in ranges]
        return StoredResults(Fragment(number), (), tuple(ranges))

    def complete(self) -> None:
        """Compute what is missing, and check that it was stored."""
        for _ in range(_TRIES):
            missing = [self.plans[number] for number in self.incomplete]
            if not missing:
                return
            rows = sum(len(plan.to_compute) for plan in missing)
            self.progress.start(f"computing {self.work.column.name} from {self.source.name}", rows)
            try:
                self.applied += compute_missing(
                    self.work, self.source, missing, self.options, self.runner, self.progress
                )
            finally:
                self.progress.finish()
            self.again = {}
            for plan in missing:
                merge_small_checkpoints(self._checkpoints, self.work.prefix, plan.number, self.work.column)
            self.look([plan.number for plan in missing])
        number = self.incomplete[0]
        raise lost_rows_error(self.work.column, self.plans[number].to_compute, number * self.work.fragment_rows)

    def result(self) -> FunctionValues:
        computed, failed = sum(a.computed for a in self.applied), sum(a.failed for a in self.applied)
        wanted = sum(len(rows) for rows in self.wanted.values())
        return FunctionValues(
            column=self.work.column,
            checkpoints=self.work.checkpoints,
            fragment_rows=self.work.fragment_rows,
            fragments={
                number: CheckpointedFragment(self.wanted[number], plan.ranges) for number, plan in self.plans.items()
            },
            computed=computed,
            failed=failed,
            reused=max(0, wanted - computed - failed - self.carried),
            carried=self.carried,
            called=sum(a.called for a in self.applied),
        )


# Merge small checkpoints

MERGE_COUNT = 64
"""When a fragment has this many checkpoints of about the same size, they are merged into one."""

SIZE_CLASSES = (32 << 10, 1 << 20)
"""Upper bounds in bytes of small and of medium checkpoints. Larger checkpoints are never merged."""


def merge_small_checkpoints(store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, column: pa.Field) -> None:
    """Merge the range checkpoints of a fragment until there are few of each size. Damaged ones are deleted.

    No other code may read checkpoints meanwhile by keys that it listed before.
    """
    infos = store.fragment_infos(prefix.text, fragment)
    while some := select_to_merge(infos):
        merged = _merge(store, prefix, fragment, column, some)
        if merged is None:
            return
        gone = {info.key for info in some}
        infos = [*[info for info in infos if info.key not in gone], merged]


def select_to_merge(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """The checkpoints to merge next: neighbours of about the same size. Empty when there are few of each size. Pure."""
    parsed = [(info, found) for info in infos if (found := parse_key(info.key)) is not None and found.kind == RANGE]
    low = 0
    for high in SIZE_CLASSES:
        alike = [(info, found) for info, found in parsed if low <= info.size < high]
        if len(alike) >= MERGE_COUNT:
            return [info for info, _ in sorted(alike, key=_start)[:MERGE_COUNT]]
        low = high
    return []


def _start(pair: tuple[CheckpointInfo, CheckpointKey]) -> tuple[int, int]:
    return pair[1].start, pair[1].end


def _merge(
    store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, column: pa.Field, infos: Sequence[CheckpointInfo]
) -> CheckpointInfo | None:
    """Merge these checkpoints into one and delete them. None, and no change, when they cannot be merged."""
    ages = {info.key: info.modified for info in infos}
    found = RepairingFinder(store).among(ages, column)
    found.sort(key=lambda checkpoint: (ages[checkpoint.key], checkpoint.key))
    rows = BitMap.union(*[checkpoint.rows for checkpoint in found], BitMap(), BitMap())
    if len(found) < len(infos) or not rows:
        return None  # some are damaged, or have another type
    key = free_range_key(store, prefix, fragment, min(c.start for c in found), max(c.end for c in found))
    sources = [replace(OffsetValues.of(store.get(c.key), 0), made=ages[c.key]) for c in found]
    at = row_sets.to_array(rows)
    piece = MergedValues(at, column.type, sources)
    schema = pa.schema([(ROWADDR, pa.int64()), (column.name, column.type), (ERROR, ERROR_TYPE)])
    batch = pa.RecordBatch.from_arrays([pa.array(at), piece.values, piece.details], schema=schema)
    if not store.keep(key, batch):
        return None  # another process merged them
    for checkpoint in found:
        store.delete(checkpoint.key)
    return store.info(key)

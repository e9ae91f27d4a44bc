"""Values of a function for some records of a dataset, kept in checkpoints and nowhere else: what views are made from.

The same checkpoints as those of computed columns, under the same keys, but in the folder of the view that asks; nothing
is installed. Wanted minus covered is computed, by the same rounds of tasks: so a killed run loses what no checkpoint
has yet, and whoever asks again, for these records or others, with or without another filter, pays for what is missing
alone. Records that lie far apart share checkpoints: one covers a range, and its batch says which rows of it it has. So
there is about one for each fragment and each time that something was missing there, and when these have become many,
they are merged.

Fragments always have the same number of rows here, whatever those of the dataset's own columns have: a size that is
chosen later must not change the keys.

Collecting garbage: checkpoints of computations that are in use (`gc.Used`) stay, but for those of dead and purged
records; whoever collects the garbage of a view has to say which those are (`used`). All others go when they are a week
old, like those of columns that were dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.found import Mending, RangeCheckpoint
from floodmark.compute.checkpoints.keys import Prefix, hash_text
from floodmark.compute.checkpoints.paths import Group
from floodmark.compute.checkpoints.store import CheckpointInfo
from floodmark.compute.errors import InputNotComputed, UnknownInput
from floodmark.compute.functions.udf import Udf
from floodmark.compute.kept_values import KeptFragment, Values, by_fragment
from floodmark.compute.merging import merge_crowded
from floodmark.compute.options import Options
from floodmark.compute.pinned import Pinned
from floodmark.compute.plan import FragmentPlan, Window, plan_fragment
from floodmark.compute.rounds import compute
from floodmark.compute.sources import lost_rows
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import FRAGMENT_ROWS, Catalog, Column, FunctionRef
from floodmark.compute.stored.gc import Used
from floodmark.compute.stored.manifest import Fragment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.work import Applied, Work
from floodmark.derive.turns import take_turn
from floodmark.engine import Progress
from floodmark.engine.rounds import Runner
from floodmark.ledger.scan import alive
from floodmark.storage.arrays import I64

_TRIES = 20
"""How often is computed what was stored and proves lost or damaged when it is looked for."""

_FEW_FRAGMENTS = 8
"""The checkpoints of so few fragments are listed one by one, those of more all at once."""

_NO_FIELD = 0  # no column has this field id


def values(
    source: Pinned,
    column: pa.Field,
    udf: Udf,
    inputs: Sequence[str],
    offsets: I64,
    kept_in: ColumnObjects,
    options: Options,
    runner: Runner,
    progress: Progress,
    fragment_rows: int = FRAGMENT_ROWS,
) -> Values:
    """The values of a column for the current records of `source` at these offsets, which ascend.

    `kept_in` is where its checkpoints are, most often those of a view. Of the options, `where` and
    `commit_granularity` mean nothing here: the offsets say what is wanted, and nothing is committed.
    """
    _check(source, column, inputs, offsets)
    options.checkpoint_sizes(udf, 1)  # refused before anything is done
    prefix = prefix_of(source.catalog, source.dataset_id, column, udf.name, udf.version, inputs, fragment_rows)
    work = Work(
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
    )
    wanted = {
        number: addresses.from_array(part - number * fragment_rows)
        for number, part in by_fragment(offsets, fragment_rows)
    }
    finding = _Finding(source, work, options, runner, progress, wanted)
    finding.look(wanted)
    if options.retry_errors:
        finding.look_again_at_failed()
    if finding.lacking:
        other = f"somebody else who computes {column.name}"
        with take_turn(kept_in.store, f"{kept_in.folder}/turns/{Group.of(prefix.text).name}", other, progress):
            finding.look(finding.lacking)
            finding.complete()
    return finding.result()


def used(source: Pinned, prefix: Prefix, fragment_rows: int = FRAGMENT_ROWS) -> Used:
    """What the collector of a view's garbage has to know of a column that is still computed from a source."""
    return Used(prefix, fragment_rows, source.dead, source.start)


def prefix_of(
    catalog: Catalog,
    dataset_id: str,
    column: pa.Field,
    function: str,
    version: str,
    inputs: Sequence[str],
    fragment_rows: int = FRAGMENT_ROWS,
) -> Prefix:
    """Under which keys the values of a function of this name and version are kept; `catalog` is the source's."""
    as_column = Column(column.name, _NO_FIELD, column.type, True, tuple(inputs), FunctionRef(function, version, ""))
    return Prefix(
        udf=function,
        version=version,
        column=column.name,
        where=hash_text(None),
        uri=hash_text(dataset_id),
        srcfiles=catalogs.srcfiles(replace(catalog, fragment_rows=fragment_rows), dataset_id, as_column),
    )


def _check(source: Pinned, column: pa.Field, inputs: Sequence[str], offsets: I64) -> None:
    known = [*source.layout.read_schema.names, *[c.name for c in source.catalog.columns]]
    for name in inputs:
        if name not in known:
            raise UnknownInput(
                f"column {column.name!r} is computed from {name!r}, which {source.name!r} does not have",
                hint=f"it has {', '.join(known)}",
                column=column.name,
                input=name,
            )
    if not len(offsets):
        return
    if (np.diff(offsets) <= 0).any():
        raise ValueError("offsets must ascend, each once")
    kept = alive(offsets, source.dead)
    if offsets[0] < source.start or offsets[-1] >= source.end or (kept is not None and not kept.all()):
        raise ValueError(f"not all of the offsets are current records of {source.name!r}")
    for name in inputs:
        if (made := source.catalog.find(name)) is not None:
            _check_computed(source, column, made, offsets)


def _check_computed(source: Pinned, column: pa.Field, made: Column, offsets: I64) -> None:
    """Refuse to take for a value what was not computed yet, and reads as null."""
    rows = source.catalog.fragment_rows
    lacking = sum(
        len(addresses.from_array(part - number * rows) - source.computed(made, number))
        for number, part in by_fragment(offsets, rows)
    )
    if lacking:
        raise InputNotComputed(
            f"column {column.name!r} needs {made.name!r} of {source.name!r}, which is not computed for {lacking} of "
            f"{len(offsets)} records",
            hint=f"backfill({made.name!r}) computes it",
            column=column.name,
            input=made.name,
            rows=lacking,
        )


@dataclass
class _Finding:
    """What is there of the wanted rows, and what is done about the rest."""

    source: Pinned
    work: Work
    options: Options
    runner: Runner
    progress: Progress
    wanted: dict[int, BitMap]
    plans: dict[int, FragmentPlan] = field(default_factory=dict)
    again: dict[int, BitMap] = field(default_factory=dict)  # rows that failed before: what is stored does not count
    applied: list[Applied] = field(default_factory=list)

    @property
    def lacking(self) -> list[int]:
        """The fragments of which something has to be computed."""
        return [number for number, plan in self.plans.items() if plan.missing]

    def look(self, numbers: Iterable[int]) -> None:
        """Find the checkpoints of some fragments; bad ones are deleted."""
        finder = Mending(self.work.objects.checkpoints)
        chosen = list(numbers)
        for number, infos in self._listed(chosen):
            wanted = self.wanted[number]
            ages = {info.key: info.modified for info in infos}
            within = (wanted.min(), wanted.max() + 1)
            ranges = finder.among(ages, self.work.column, within)
            ranges.sort(key=lambda found: (ages[found.key], found.key))
            self.plans[number] = self._plan(number, ranges)

    def _listed(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[CheckpointInfo]]]:
        store, prefix = self.work.objects.checkpoints, self.work.prefix.text
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
        window = Window(number, *bounds, base, full=False, live=wanted, asked=wanted, wanted=wanted)
        nothing, again = Fragment(number), self.again.get(number, BitMap())
        counted = [replace(found, rows=found.rows - again) for found in ranges] if again else ranges
        plan = plan_fragment(window, nothing, nothing, BitMap(), (), counted, ())
        return replace(plan, ranges=tuple(ranges), targets=(), again=again)  # no file is written

    def look_again_at_failed(self) -> None:
        """Count rows that failed, and have no value since, as missing."""
        for number, plan in self.plans.items():
            failed = BitMap.union(*[found.failed for found in plan.ranges], BitMap(), BitMap())
            good = BitMap.union(*[found.rows - found.failed for found in plan.ranges], BitMap(), BitMap())
            if again := (failed - good) & self.wanted[number]:
                self.again[number] = again
                self.plans[number] = self._plan(number, plan.ranges)

    def complete(self) -> None:
        """Compute what is missing, and look whether it is there."""
        for _ in range(_TRIES):
            missing = [self.plans[number] for number in self.lacking]
            if not missing:
                return
            rows = sum(len(plan.to_compute) for plan in missing)
            self.progress.start(f"computing {self.work.column.name} from {self.source.name}", rows)
            try:
                self.applied += compute(self.work, self.source, missing, self.options, self.runner, self.progress)
            finally:
                self.progress.finish()
            self.again = {}
            for plan in missing:
                merge_crowded(self.work.objects.checkpoints, self.work.prefix, plan.number, self.work.column)
            self.look([plan.number for plan in missing])
        number = self.lacking[0]
        raise lost_rows(self.work.column, self.plans[number].to_compute, number * self.work.fragment_rows)

    def result(self) -> Values:
        computed, failed = sum(a.computed for a in self.applied), sum(a.failed for a in self.applied)
        wanted = sum(len(rows) for rows in self.wanted.values())
        return Values(
            column=self.work.column,
            checkpoints=self.work.objects.checkpoints,
            fragment_rows=self.work.fragment_rows,
            fragments={number: KeptFragment(self.wanted[number], plan.ranges) for number, plan in self.plans.items()},
            computed=computed,
            failed=failed,
            reused=max(0, wanted - computed - failed),
            called=sum(a.called for a in self.applied),
        )

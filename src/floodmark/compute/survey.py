"""Looks at what there is of a column (files, checkpoints, errors) and makes the plan of a backfill from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.found import Looking
from floodmark.compute.checkpoints.keys import Prefix, hash_text
from floodmark.compute.errors import BadRowErrors
from floodmark.compute.pinned import Pinned
from floodmark.compute.plan import FragmentPlan, Missing, Window, plan_fragment
from floodmark.compute.stored import row_errors
from floodmark.compute.stored.catalog import Column, srcfiles
from floodmark.compute.stored.column_file import looks_whole, read_values
from floodmark.compute.stored.manifest import Fragment, Manifest, Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.scan import Where

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MissingRange:
    """Records that have to be computed: so many rows between two offsets, and why."""

    start: int
    end: int
    rows: int
    why: str


@dataclass(frozen=True)
class BackfillPlan:
    """What a backfill would do: rows that are done, that lie in checkpoints, that are missing, and why they are.

    `rows` are all current ones, `wanted` those that `where` keeps and whose inputs are there. `waiting` rows cannot be
    computed yet, because a computed column they are made from is not there.
    """

    column: str
    rows: int
    wanted: int
    done: int
    reused: int
    missing: int
    waiting: int
    fragments: tuple[FragmentPlan, ...]

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
        for start, end in addresses.ranges(missing.rows):
            yield MissingRange(start + base, end + base, end - start, missing.why)


def prefix_of(pinned: Pinned, column: Column, where: Where) -> Prefix:
    """Under which keys a backfill of this column stores its checkpoints."""
    return Prefix(
        udf=column.function.name,
        version=column.function.version,
        column=column.name,
        where=hash_text(None if where is None else str(where)),
        uri=hash_text(pinned.dataset_id),
        srcfiles=srcfiles(pinned.catalog, pinned.dataset_id, column),
    )


def survey(
    pinned: Pinned, column: Column, finder: Looking | None, where: Where = None, retried: bool = False
) -> BackfillPlan:
    """The plan of a backfill; with `retried`, rows that were skipped before are tried again.

    `finder` looks for checkpoints; one that is `Mending` also removes those that are damaged. Without a finder the plan
    says only whether there is anything to do: checkpoints and footers of files are not read.
    """
    pinned.check_position(column)
    base = pinned.manifest(column).under(pinned.identity(column))
    prefix = prefix_of(pinned, column, where)
    there = _Files(pinned.objects, max((s.end for f in base.fragments for s in f.segments), default=0))
    fragments, rows, waiting = [], 0, 0
    for window in pinned.windows(column, where):
        rows += len(window.live)
        waiting += len(window.asked) - len(window.wanted)
        fragments.append(_fragment(pinned, column, prefix, window, base, there, finder, retried))
    return BackfillPlan(
        column=column.name,
        rows=rows,
        wanted=sum(len(f.window.wanted) for f in fragments),
        done=sum(len(f.done) for f in fragments),
        reused=sum(len(f.reused) for f in fragments),
        missing=sum(len(f.to_compute) for f in fragments),
        waiting=waiting,
        fragments=tuple(fragments),
    )


class _Files:
    """Which files of values there are, by one listing, and the offset up to which the column had any."""

    def __init__(self, objects: ColumnObjects, seen: int) -> None:
        self._objects = objects
        self.seen = seen

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {info.key: info.size for info in self._objects.files()}

    def has(self, segment: Segment) -> bool:
        """Whether it is there and has its size; whether it has its bytes, verify says, and who reads it."""
        return self._sizes.get(segment.key(self._objects)) == segment.size

    def has_whole(self, segment: Segment) -> bool:
        """The same, with a look at its footer."""
        return self.has(segment) and looks_whole(self._objects, segment)


def _fragment(
    pinned: Pinned,
    column: Column,
    prefix: Prefix,
    window: Window,
    base: Manifest,
    there: _Files,
    finder: Looking | None,
    retried: bool,
) -> FragmentPlan:
    stored = base.fragment(window.number)
    before, lost = _readable(stored, window, there.has)
    if finder is not None and not before.done >= window.wanted:
        before, lost = _readable(stored, window, there.has_whole)  # what is written again is read first
    again = _skipped(pinned, column, before, window) if retried else BitMap()
    done = before.done - again
    if finder is None or done >= window.wanted:
        return plan_fragment(window, before, lost, done, (), (), ())
    ranges = finder.ranges(prefix, window.number, column.field.remove_metadata())
    data = [d for d in finder.data(prefix, window.number) if there.has_whole(Segment.from_json(d.segment))]
    if again:  # what was stored for these rows is that they failed
        ranges = [replace(r, rows=r.rows - again) for r in ranges]
        data = [replace(d, done=d.done - again) for d in data]
    reasons = list(_reasons(before, window, there, lost, again))
    return replace(plan_fragment(window, before, lost, done, reasons, ranges, data), again=again)


def _readable(before: Fragment, window: Window, is_there: Callable[[Segment], bool]) -> tuple[Fragment, Fragment]:
    """The fragment without the files that are gone or damaged, and the rows that were in those."""
    whole = tuple(s for s in before.segments if is_there(s))
    if len(whole) == len(before.segments):
        return before, Fragment(window.number)
    gone = [s for s in before.segments if s not in whole]
    rows = BitMap.union(*[addresses.span(s.start - window.base, s.end - window.base) for s in gone], BitMap())
    sets = {name: getattr(before, name) for name in ("done", "kept", "hidden")}
    left = replace(before, segments=whole, **{name: found - rows for name, found in sets.items()})
    return left, replace(before, segments=tuple(gone), **{name: found & rows for name, found in sets.items()})


def _skipped(pinned: Pinned, column: Column, before: Fragment, window: Window) -> BitMap:
    if before.errors is None:
        return BitMap()
    try:
        offsets = row_errors.load(pinned.objects, before.errors).column("offset").to_numpy()
    except BadRowErrors as error:
        _log.warning("%s; every row without a value is tried again", error.message)
        return _nulls(pinned, column, before, window) & window.wanted
    return addresses.from_array(offsets - window.base) & window.wanted


def _nulls(pinned: Pinned, column: Column, before: Fragment, window: Window) -> BitMap:
    """The rows that were computed and have no value: those that were skipped are among them."""
    found = BitMap()
    for segment in before.segments:
        values = read_values(pinned.objects, segment, column.field, segment.start, segment.end)
        nulls = np.flatnonzero(values.is_null().to_numpy())
        found |= addresses.from_array(nulls + segment.start - window.base)
    return found & before.done


def _reasons(before: Fragment, window: Window, there: _Files, lost: Fragment, again: BitMap) -> Iterator[Missing]:
    yield Missing(lost.done | lost.kept, "the file with their values is lost or damaged")
    yield Missing(again, "they failed before and are tried again")
    yield Missing(before.hidden, "a computed column they are made from has changed")
    yield Missing(before.kept, "the function has changed")
    if there.seen:
        fresh = addresses.span(max(there.seen, window.start) - window.base, max(window.end, there.seen) - window.base)
        yield Missing(fresh, "the records are new")

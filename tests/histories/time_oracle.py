"""The timeline the naive way: all records replayed one by one, what is current sorted by (event time, offset)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from floodmark.dataset import Dataset

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ADD, NEW = 0, 3  # the operations that make a row current; the others take one away

Moment = str | date | datetime


def micros(moment: Any) -> int:
    """A time as microseconds since the epoch; what names no zone is UTC, a date is its first moment."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // MICROSECOND


def expected(dataset: Dataset, start: Moment | None = None, end: Moment | None = None) -> pa.Table:
    """The current rows of [start, end) in the timeline's order: the offset, then the data columns."""
    return within(in_order(dataset, all_records(dataset)), dataset, start, end)


def in_order(dataset: Dataset, records: pa.Table) -> pa.Table:
    """Those of all records that are current, in the timeline's order: the offset, then the data columns."""
    times = _times(records, dataset)
    offsets = records["offset"].to_pylist()
    wanted = sorted(alive(dataset, records), key=lambda row: (times[row], offsets[row]))
    assert dataset.schema is not None
    return records.take(pa.array(wanted, pa.int64())).select(["offset", *dataset.schema.names])


def within(table: pa.Table, dataset: Dataset, start: Moment | None, end: Moment | None) -> pa.Table:
    """The rows of a table with event times in [start, end), looked at one by one."""
    if start is None and end is None:
        return table
    first = None if start is None else micros(start)
    last = None if end is None else micros(end)
    wanted = [(first is None or at >= first) and (last is None or at < last) for at in _times(table, dataset)]
    return table.filter(pa.array(wanted, pa.bool_()))


def _times(table: pa.Table, dataset: Dataset) -> list[int]:
    return [micros(at) for at in table[dataset.event_time].to_pylist()]


def all_records(dataset: Dataset) -> pa.Table:
    """Every record that is not purged, in offset order, with its system columns."""
    purged = dataset.snapshot().purged_before
    return dataset.changes_arrow(since=purged - 1 if purged else None)


def alive(dataset: Dataset, records: pa.Table) -> list[int]:
    """The positions of the records that are current: without a key all of them."""
    key = dataset.strategy.key
    if not key:
        return list(range(records.num_rows))
    current: dict[tuple[Any, ...], int] = {}
    columns = [records[name].to_pylist() for name in ("op", *key)]
    for position, (op, *values) in enumerate(zip(*columns, strict=True)):
        current.pop(tuple(values), None)
        if op in (ADD, NEW):
            current[tuple(values)] = position
    return sorted(current.values())


def found(dataset: Dataset, start: Moment | None = None, end: Moment | None = None) -> pa.Table:
    """The same as `timeline_batches` gives it."""
    assert dataset.schema is not None
    with dataset.timeline_batches(start, end, columns=["offset", *dataset.schema.names]) as reader:
        return reader.read_all()


def difference(seen: pa.Table, right: pa.Table) -> str | None:
    """What tells two tables apart: columns, types, or the first row; None when nothing does."""
    if seen.schema.names != right.schema.names or seen.schema.types != right.schema.types:
        return f"columns {seen.schema.to_string()}\ninstead of {right.schema.to_string()}"
    if seen.combine_chunks().equals(right.combine_chunks()):
        return None
    return _first_difference(seen.to_pylist(), right.to_pylist())


def _first_difference(seen: Sequence[Any], right: Sequence[Any]) -> str | None:
    if len(set(map(_offset, seen))) < len(seen):
        twice = sorted(o for o in map(_offset, seen) if [*map(_offset, seen)].count(o) > 1)
        return f"rows that are there twice: offsets {twice[:10]}"
    missing = {*map(_offset, right)} - {*map(_offset, seen)}
    extra = {*map(_offset, seen)} - {*map(_offset, right)}
    if missing or extra:
        return (
            f"{len(seen)} rows instead of {len(right)}; missing {sorted(missing)[:10]}, too many {sorted(extra)[:10]}"
        )
    for number, (one, other) in enumerate(zip(seen, right, strict=True)):
        if repr(one) != repr(other):  # a NaN is like another
            return f"row {number} is {one} instead of {other}"
    return None


def _offset(row: Any) -> Any:
    return row["offset"] if "offset" in row else tuple(row.values())


def assert_right(dataset: Dataset, *ranges: tuple[Moment | None, Moment | None]) -> None:
    """The whole timeline, and each of the ranges, is what the records say, row for row, with types."""
    whole = expected(dataset)
    for start, end in ((None, None), *ranges):
        problem = difference(found(dataset, start, end), within(whole, dataset, start, end))
        assert problem is None, f"timeline({start}, {end}): {problem}"

"""The order of records inside a commit: what other implementations of the standard expect."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from ledger.worlds import START
from rows.twins import Twin

TIMES = {"id": pa.int64(), "at": pa.timestamp("us", "UTC")}


def records(dataset, *names: str):
    return [tuple(row[name] for name in names) for row in dataset.changes_arrow().to_pylist()]


@pytest.mark.parametrize("event_time", [None, "at"])
def test_upserts_are_ordered_by_key_then_operation(lake, event_time):
    twin = Twin(lake, TIMES, "upsert", ["id"], event_time=event_time)
    twin.write([{"id": i, "at": START - timedelta(hours=i)} for i in (3, -1, 2)])
    twin.store_chunk([{"id": i, "at": START} for i in (2, 5, 3)], processed=[{"id": -1}])
    assert records(twin.dataset, "op", "id") == [
        *[(0, -1), (0, 2), (0, 3)],
        *[(1, -1), (2, 2), (3, 2), (2, 3), (3, 3), (0, 5)],
    ]
    twin.check_all()
    assert twin.dataset.verify().ok


def test_keys_of_several_columns_are_ordered_as_they_are_declared(lake):
    schema = {"a": pa.int64(), "b": pa.string()}
    twin = Twin(lake, schema, "snapshot", ["b", "a"])
    twin.write([{"a": a, "b": b} for a in (2, 10, 1) for b in ("b", "a", "B", "é")])
    assert records(twin.dataset, "b", "a") == [(b, a) for b in ("B", "a", "b", "é") for a in (1, 2, 10)]


def test_changelog_is_ordered_by_key_then_arrival(lake):
    twin = Twin(lake, {"id": pa.int64(), "x": pa.string()}, "changelog", ["id"])
    twin.write([{"op": op, "id": i, "x": "a"} for op, i in [(0, 2), (0, 1), (1, 2), (0, 2), (1, 1)]])
    assert records(twin.dataset, "op", "id") == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 2)]


def test_ledger_is_ordered_by_event_time(lake):
    twin = Twin(lake, TIMES, "ledger", ["id"], event_time="at")
    twin.write([{"id": i, "at": START + timedelta(hours=hour)} for i, hour in ((1, 3), (2, 1), (3, 2), (4, 1))])
    assert records(twin.dataset, "id") == [(2,), (4,), (3,), (1,)]
    twin.check_all()

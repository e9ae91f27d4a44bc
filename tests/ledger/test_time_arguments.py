"""A time without a zone is another moment in New York than in Tokyo. Arguments need a zone; columns are as declared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import BadPosition, BadQuery, BadRange, TypeMismatch
from floodmark.storage.memory import MemoryStore
from ledger.worlds import untouched

NOON = datetime(2026, 11, 15, 12)
CLOCK = int(NOON.replace(tzinfo=UTC).timestamp() * 1e9)


def dataset(zone: str | None, key: str | None = "at") -> fm.Dataset:
    """Rows every hour from eight to noon, in a column with a zone or without one."""
    lake = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=lambda: CLOCK))
    made = lake.create("d", key=key, event_time="at", partition_by="day")
    hours = [datetime(2026, 11, 15, hour, tzinfo=UTC if zone else None) for hour in range(8, 12)]
    for hour in hours:
        made.write(pa.table({"at": pa.array([hour], pa.timestamp("us", zone)), "n": [hour.hour]}))
    return made


def read_range(d: fm.Dataset, start: Any, end: Any) -> list[int]:
    return list(d.timeline_batches(start, end, columns=["n"]).read_all()["n"].to_pylist())


ARGUMENTS: dict[str, tuple[Callable[[fm.Dataset, Any], Any], type[Exception]]] = {
    "as_of": (lambda d, time: d.to_arrow(as_of=time), BadPosition),
    "as_of of an iterator": (lambda d, time: d.to_batches(as_of=time).read_all(), BadPosition),
    "purge": (lambda d, time: d.purge(before=time), BadPosition),
    "watermark": (lambda d, time: d.advance_watermark(time), BadPosition),
    "start": (lambda d, time: d.timeline_batches(time).read_all(), BadRange),
    "end": (lambda d, time: d.timeline_batches(None, time).read_all(), BadRange),
    "pieces": (lambda d, time: d.timeline_pieces(time), BadRange),
}


@pytest.mark.parametrize("given", [NOON, NOON.isoformat(), pd.Timestamp(NOON)], ids=["datetime", "text", "pandas"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_time_without_a_zone_is_refused_with_what_it_may_mean(argument: str, given: Any) -> None:
    use, error = ARGUMENTS[argument]
    d = dataset("UTC")
    with untouched(d), pytest.raises(error, match="2026-11-15T12:00:00 has no time zone") as refused:
        use(d, given)
    assert "2026-11-15T12:00:00Z for UTC" in refused.value.hint
    assert "astimezone()" in refused.value.hint
    use(d, f"{NOON.isoformat()}Z")
    use(d, NOON.replace(tzinfo=UTC) + timedelta(minutes=1))


def test_as_of_takes_a_day_in_the_forms_that_others_take() -> None:
    d = dataset("UTC")
    for day, rows in ((date(2026, 11, 15), 0), (date(2026, 11, 16), 4)):
        assert d.to_arrow(as_of=day).num_rows == d.to_arrow(as_of=day.isoformat()).num_rows == rows


def test_now_without_a_zone_is_refused() -> None:
    d = fm.Lake(MemoryStore()).create("d", key="id")
    rows = pa.table({"id": [1]})
    with pytest.raises(BadPosition, match="has no time zone"):
        d.store_chunk(rows, now=NOON)
    assert d.store_chunk(rows, now=NOON.astimezone()).now == NOON.astimezone()


def test_keys_and_filters_are_as_the_column_is_declared() -> None:
    d, plain = dataset("UTC"), dataset(None)
    nine = datetime(2026, 11, 15, 9)
    assert plain.get([nine]).num_rows == d.get([nine.replace(tzinfo=UTC)]).num_rows == 1
    for use in (d.get, d.delete, d.history):
        with untouched(d), pytest.raises(TypeMismatch, match="time"):
            use([nine])
    with pytest.raises(TypeMismatch, match="time"):
        plain.get([nine.replace(tzinfo=UTC)])
    with untouched(d), pytest.raises(TypeMismatch, match="time"):
        d.store_chunk(d.to_arrow().slice(0, 0), processed_idx=[{"at": nine}])
    assert plain.to_batches(where=pc.field("at") > nine).read_all().num_rows == 2
    assert d.to_batches(where=pc.field("at") > nine.replace(tzinfo=UTC)).read_all().num_rows == 2
    with pytest.raises(BadQuery, match="timestamp with timezone") as refused:
        d.to_batches(where=pc.field("at") > nine).read_all()
    assert "tzinfo=UTC" in refused.value.hint


def test_times_for_an_event_time_without_a_zone_have_none() -> None:
    d = dataset(None)
    assert read_range(d, "2026-11-15T09:00", datetime(2026, 11, 15, 11)) == [9, 10]
    d.advance_watermark(NOON)
    assert d.watermark == NOON.replace(tzinfo=UTC)
    assert dataset(None, key=None).purge(before=datetime(2026, 11, 15, 10)).records == 2
    with pytest.raises(BadPosition, match="has no time zone"):
        d.to_arrow(as_of=NOON)  # is compared with the time of the commit, not with the column


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_date_is_a_day_in_utc_as_in_partitions(zone: str | None) -> None:
    d = dataset(zone)
    assert read_range(d, date(2026, 11, 15), "2026-11-16") == [8, 9, 10, 11]
    assert read_range(d, None, date(2026, 11, 15)) == []
    assert d.purge(before="2026-11-15").records == 0


def test_local_time_is_given_with_its_offset() -> None:
    d = dataset("UTC")
    assert read_range(d, "2026-11-15T04:00-05:00", "2026-11-15T20:00+09:00") == [9, 10]

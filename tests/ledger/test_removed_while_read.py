"""Records that are purged, erased or dropped while they are read: the error says so, and nothing is called damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import PurgedWhileRead, RecordsPurged, UnreadableSlice
from floodmark.ledger.scan import Scan
from floodmark.storage.memory import MemoryStore


@pytest.fixture(params=["folder", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake" if request.param == "folder" else MemoryStore())
    dataset = lake.create("k", key="id")
    for number in range(3):
        dataset.write(pa.table({"id": [number, 9], "v": [number, number]}))
    return lake


READS: dict[str, Callable[[Scan], Any]] = {
    "table": Scan.to_table,
    "stream": lambda scan: scan.to_reader(None).read_all(),
    "filter": lambda scan: scan.to_reader(pc.field("id") >= 0).read_all(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_purge_is_named(read: Any, lake: fm.Lake) -> None:
    scan = lake["k"].scan()
    purged = lake["k"].purge(before=4).before
    with pytest.raises(PurgedWhileRead, match="were purged while they were read") as caught:
        read(scan)
    assert "read again" in caught.value.hint
    assert caught.value.purged_before == purged > 0
    assert isinstance(caught.value, RecordsPurged)
    assert read(lake["k"].scan()).num_rows >= 4


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_erasure_is_named(read: Any, lake: fm.Lake) -> None:
    scan = lake["k"].scan()
    lake.erase("k", [9])
    with pytest.raises(UnreadableSlice, match="were erased while they were read") as caught:
        read(scan)
    assert "read again" in caught.value.hint


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_drop_is_named(read: Any, lake: fm.Lake) -> None:
    scan = lake["k"].scan()
    lake.drop("k")
    with pytest.raises(UnreadableSlice, match="was dropped"):
        read(scan)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_file_that_is_missing_without_reason_is_damage(read: Any, lake: fm.Lake) -> None:
    scan = lake["k"].scan()
    lake.store.delete(scan.selection.files[0].key)
    with pytest.raises(UnreadableSlice, match="cannot be read") as caught:
        read(scan)
    assert "verify" in caught.value.hint
    assert not isinstance(caught.value, PurgedWhileRead)

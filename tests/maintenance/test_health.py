"""What is wrong with a lake is found without reading data, and what is only behind is no more than a warning."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.engine.session import Runtime
from floodmark.lake import Lake
from floodmark.ledger import names
from floodmark.maintenance.checks import Finding
from floodmark.maintenance.doctor import check_lake
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create("people", key="id").write(pa.table({"id": [1, 2]}))
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    lake.create("ticks", event_time="at", partition_by="day").write(pa.table({"at": times}))
    lake.create("empty")
    return lake


def path(lake: Lake, name: str, inside: str = "") -> Path:
    return Path(lake.store.url) / lake[name].snapshot().objects.folder / inside


def troubles(lake: Lake) -> list[Finding]:
    """What is not in order; the disk is not a matter of these tests."""
    return [one for one in check_lake(lake) if one.state != "ok" and one.what not in ("disk space", "inodes")]


def test_a_lake_in_order_has_no_troubles_and_nothing_is_left_in_it(lake: Lake):
    before = {p for p in Path(lake.store.url).rglob("*") if p.is_file() and "index" not in p.parts}
    assert troubles(lake) == []
    after = {p for p in Path(lake.store.url).rglob("*") if p.is_file() and "index" not in p.parts}
    assert after == before


def test_a_store_in_memory_is_looked_at_like_a_bucket():
    lake = Lake(MemoryStore())
    lake.create("one").write(pa.table({"n": [1]}))
    found = list(check_lake(lake))
    assert [one for one in found if one.state != "ok"] == []
    assert {"conditional puts", "dataset one"} <= {one.what for one in found}


def test_a_damaged_name_is_bad(lake: Lake):
    (Path(lake.store.url) / "names/people").write_bytes(b"{")
    found = {(one.what, one.state) for one in troubles(lake)}
    assert ("names", "bad") in found


def test_a_head_that_is_no_hash_is_bad(lake: Lake):
    path(lake, "people", "refs/head").write_bytes(b"no hash")
    found = {(one.what, one.state) for one in troubles(lake)}
    assert ("dataset people", "bad") in found
    assert ("dataset ticks", "bad") not in found


def test_a_block_that_is_gone_is_bad(lake: Lake):
    for block in path(lake, "people", "blocks").iterdir():
        block.unlink()
    assert ("dataset people", "bad") in {(one.what, one.state) for one in troubles(lake)}


def test_a_dataset_that_cannot_be_read_is_bad_and_nothing_else_is(lake: Lake):
    head = path(lake, "people", f"blocks/{lake['people'].head.text}")
    head.write_bytes(b"nothing of ours")
    (found,) = troubles(lake)
    assert (found.what, found.state) == ("dataset people", "bad")


@pytest.mark.parametrize(
    ("damage", "said"), [(Path.unlink, "is missing"), (lambda p: p.write_bytes(b""), "has the wrong size")]
)
def test_a_slice_that_is_gone_or_cut_short_is_bad(lake: Lake, damage: Callable[[Path], object], said: str):
    [slice_path] = path(lake, "people", "data").iterdir()
    damage(slice_path)
    [found] = troubles(lake)
    assert (found.what, found.state) == ("dataset people", "bad")
    assert said in found.detail
    assert slice_path.name in found.detail


def test_a_slice_that_was_purged_is_not_missed(lake: Lake):
    lake["people"].write(pa.table({"id": [3]}))
    lake["people"].purge(2)
    assert troubles(lake) == []


def test_a_name_without_its_dataset_is_bad(lake: Lake):
    shutil.rmtree(path(lake, "people"))
    (found,) = troubles(lake)
    assert (found.what, found.state) == ("dataset people", "bad")
    assert "its head is missing" in found.detail


def test_a_key_index_that_is_gone_is_a_warning(lake: Lake):
    shutil.rmtree(path(lake, "people", "info/keys"))
    (found,) = troubles(lake)
    assert (found.what, found.state) == ("dataset people", "warn")
    assert "key index" in found.detail


def test_a_slice_index_that_lags_is_a_warning_once(lake: Lake):
    segments = path(lake, "people", "info/index")
    before = {one.name: one.read_bytes() for one in segments.iterdir()}
    lake["people"].write(pa.table({"id": [3]}))
    for one in segments.iterdir():
        if one.name not in before:
            one.unlink()
    for name, data in before.items():
        (segments / name).write_bytes(data)
    fresh = Lake(lake.store.url)
    (found,) = troubles(fresh)
    assert "slice index" in found.detail
    assert troubles(fresh) == []


def test_a_timeline_that_is_behind_or_damaged_is_a_warning(lake: Lake):
    root = path(lake, "ticks", "info/timeline/root")
    content = root.read_bytes()
    root.write_bytes(b"torn")
    assert ["is damaged" in one.detail for one in troubles(lake)] == [True]
    root.write_bytes(content)
    lake["ticks"].write(pa.table({"at": pa.array([3, 4, 5], pa.timestamp("us", "UTC"))}))
    root.write_bytes(content)
    (found,) = troubles(lake)
    assert (found.state, "3 records behind" in found.detail) == ("warn", True)


def test_leftovers_of_killed_writers_are_a_warning(lake: Lake):
    left = lake.store.staging() / "part"
    left.write_bytes(b"12")
    assert troubles(lake) == []
    os.utime(left, (time.time() - 2 * 86_400,) * 2)
    (found,) = troubles(lake)
    assert (found.what, found.state, found.remedy) == ("staging", "warn", "floodmark gc")


def test_a_dataset_with_records_and_no_name_is_shown_with_its_id(lake: Lake):
    people = lake["people"]
    names.swap(lake.store, names.require_entry(lake.store, "people"), None)
    (found,) = troubles(lake)
    assert "2 records and no name" in found.detail
    assert f"floodmark gc {people.id}" in found.remedy
    (Path(lake.store.url) / "names/people").write_text(json.dumps({"name": "people", "id": str(people.id)}))
    assert troubles(lake) == []


def test_a_dataset_that_is_being_made_is_no_trouble(lake: Lake):
    names.swap(lake.store, names.require_entry(lake.store, "empty"), None)
    assert troubles(lake) == []


def test_lost_names_are_said(lake: Lake):
    for one in (Path(lake.store.url) / "names").iterdir():
        one.unlink()
    (found,) = troubles(lake)
    assert (found.what, found.state) == ("unnamed datasets", "warn")


def test_blocks_from_the_future_are_bad(tmp_path: Path):
    ahead = Runtime(clock=lambda: time.time_ns() + 86_400 * 10**9)
    Lake(LocalStore(tmp_path / "lake"), runtime=ahead).create("one").write(pa.table({"n": [1]}))
    (found,) = troubles(Lake(tmp_path / "lake"))
    assert (found.what, found.state) == ("newest block", "bad")

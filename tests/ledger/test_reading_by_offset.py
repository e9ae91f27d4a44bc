"""changes, as_of and count agree with a plain list of the records, wherever the slices begin and end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.chain.events import AddData
from floodmark.chain.ids import Multihash
from floodmark.errors import BadPosition, NoSchema
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import START, Clock, blocks, numbers
from profiles import examples


def values(table):
    return table.column("n").to_pylist()


@pytest.fixture(scope="module")
def dataset():
    """Offsets 0–2, 3, 4–7 in three slices, written a minute apart."""
    clock = Clock()
    made = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock)).create("d")
    for start, end in ((0, 3), (3, 4), (4, 8)):
        made.write(numbers(start, end))
        clock.tick(60)
    return made


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, range(8)),
        (-1, None, range(8)),
        (-100, None, range(8)),
        (0, None, range(1, 8)),
        (1, None, range(2, 8)),
        (2, None, range(3, 8)),
        (3, None, range(4, 8)),
        (6, None, [7]),
        (7, None, []),
        (None, 0, [0]),
        (None, 2, range(3)),
        (None, 3, range(4)),
        (None, 7, range(8)),
        (None, 1000, range(8)),
        (None, -1, []),
        (None, -5, []),
        (2, 3, [3]),
        (2, 2, []),
        (3, 2, []),
        (5, 1, []),
        (1, 5, range(2, 6)),
    ],
)
def test_changes_are_the_records_after_since_up_to_and_with_until(dataset, since, until, expected):
    table = dataset.changes_arrow(since=since, until=until)
    assert table.column("offset").to_pylist() == values(table) == list(expected)
    assert table.column_names == ["offset", "op", "system_time", "n"]
    assert table.schema == dataset.changes_arrow().schema


@pytest.mark.parametrize("since", [8, 1000])
def test_changes_since_an_offset_beyond_the_end_are_refused_with_the_id_of_the_dataset(dataset, since):
    with pytest.raises(BadPosition, match=f"since={since}, but 'd' .* ends at offset 7") as refused:
        dataset.changes_arrow(since=since, until=2000)
    assert (refused.value.dataset_id, refused.value.last_offset) == (str(dataset.id), 7)
    assert str(dataset.id) in str(refused.value)
    assert "Dataset.position()" in refused.value.hint


@pytest.mark.parametrize(
    ("as_of", "count"),
    [
        (-1, 0),
        (0, 1),
        (2, 3),
        (3, 4),
        (7, 8),
        ("2", 3),
        (START - timedelta(seconds=1), 0),
        (START, 3),
        (START + timedelta(seconds=59), 3),
        (START + timedelta(seconds=60), 4),
        ("2026-03-01T00:01:00Z", 4),
        ("2026-03-01T02:01:00+02:00", 4),
        ("2026-02-28", 0),
        ("2026-03-02", 8),
        (datetime(2100, 1, 1, tzinfo=UTC), 8),
        (datetime(2026, 3, 1, 0, 0, 30, tzinfo=UTC), 3),
        (None, 8),
    ],
)
def test_as_of_reads_the_past(dataset, as_of, count):
    assert values(dataset.to_arrow(as_of=as_of)) == list(range(count))
    assert len(dataset.to_pandas(as_of=as_of)) == count
    assert values(dataset.to_batches(as_of=as_of).read_all()) == list(range(count))


def test_as_of_a_block_is_the_dataset_right_after_it(dataset):
    expected = 0
    for block_hash, block in blocks(dataset):
        if isinstance(block.event, AddData):
            expected = block.event.new_data.offset_interval.end + 1
        for spelling in (block_hash, block_hash.text):
            assert values(dataset.to_arrow(as_of=spelling)) == list(range(expected))


@pytest.mark.parametrize(
    "as_of",
    [8, 100, -2, True, 1.5, "yesterday", "", Multihash.sha3_256(b"of no block"), Multihash.sha3_256(b"x").text, "99"],
)
def test_point_that_does_not_exist_is_refused(dataset, as_of):
    with pytest.raises(BadPosition) as refused:
        dataset.to_arrow(as_of=as_of)
    assert refused.value.hint


@pytest.mark.parametrize(("since", "until", "files"), [(2, 3, 1), (2, None, 2), (None, 2, 1), (1, 3, 2), (7, None, 0)])
def test_only_slices_with_wanted_records_are_opened(dataset, since, until, files):
    store = CountingStore(dataset.snapshot().objects.store)
    opened = fm.Lake(store)["d"]
    opened.changes_arrow(since=since, until=until)
    assert len({key for key in store.keys_read if "/data/" in key}) == files


def test_dataset_without_records_reads_as_empty(memory_lake):
    dataset = memory_lake.create("empty", schema={"n": "int64"})
    assert dataset.count() == 0
    assert values(dataset.to_arrow()) == values(dataset.changes_arrow()) == values(dataset.to_arrow(as_of=-1)) == []
    with pytest.raises(BadPosition, match="'empty' has no point 0"):
        dataset.to_arrow(as_of=0)


def test_dataset_without_columns_says_what_to_do(memory_lake):
    dataset = memory_lake.create("new")
    for read in (dataset.to_arrow, dataset.changes_arrow, dataset.to_batches, lambda: dataset.purge(before=3)):
        with pytest.raises(NoSchema, match="'new'") as refused:
            read()
        assert "write data" in refused.value.hint


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 5), max_size=8), data=st.data())
@settings(max_examples=examples(13))
def test_every_way_to_read_agrees_with_a_list_of_the_records(sizes, data):
    clock = Clock()
    dataset = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock)).create("d", schema={"n": "int64"})
    records = []
    past = [(dataset.head, clock.tick(0), 0)]
    for size in sizes:
        moment = clock.tick(1)
        if size:
            assert dataset.write(numbers(len(records), len(records) + size)).end == len(records) + size
            records += range(len(records), len(records) + size)
        else:
            dataset.advance_watermark(moment + timedelta(days=365))
        past.append((dataset.head, moment, len(records)))
    assert dataset.count() == len(records)
    assert values(dataset.to_arrow()) == records
    for _ in range(5):
        since = data.draw(st.none() | st.integers(-3, len(records) - 1), label="since")
        until = data.draw(st.none() | st.integers(-3, len(records) + 3), label="until")
        expected = [n for n in records if (since is None or n > since) and (until is None or n <= until)]
        assert values(dataset.changes_arrow(since=since, until=until)) == expected
    block, moment, count = data.draw(st.sampled_from(past), label="past")
    assert values(dataset.to_arrow(as_of=block)) == values(dataset.to_arrow(as_of=moment)) == records[:count]
    offset = data.draw(st.integers(-1, len(records) - 1), label="offset")
    assert values(dataset.to_arrow(as_of=offset)) == records[: offset + 1]


def test_past_is_named_by_the_short_hash_that_the_log_shows(lake):
    dataset = lake.create("d")
    first = dataset.write(pa.table({"n": [1, 2]}))
    dataset.write(pa.table({"n": [3]}))
    seed = list(dataset.log())[-1]
    assert dataset.to_arrow(as_of=first.block.short).column("n").to_pylist() == [1, 2]
    assert dataset.to_arrow(as_of=seed.hash.short).num_rows == 0


def test_state_that_ended_where_the_purge_ended_is_purged_too(lake):
    dataset = lake.create("d")
    dataset.write(pa.table({"n": [1, 2]}))
    dataset.write(pa.table({"n": [3]}))
    dataset.purge(before=2)
    with pytest.raises(fm.RecordsPurged):
        dataset.to_arrow(as_of=1)
    assert dataset.to_arrow(as_of=2).column("n").to_pylist() == [3]

"""The slice index says what the chain says, in few segments, and mends itself whatever happens to its files."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.chain.events import ROUTINE_KINDS, AddData, kind
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.ledger import slice_index, slice_segment
from floodmark.ledger.slice_index import FAN_OUT, rebuild
from floodmark.ledger.slice_segment import BadSegment, decode, encode, span
from floodmark.maintenance.garbage_sources import StrayGarbage
from floodmark.storage import sweep
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import START, Clock, blocks, keys, numbers
from limits import set_limit
from profiles import examples


def opened(store):
    """The dataset as a new process would open it."""
    return fm.Lake(store, runtime=fm.Runtime(clock=Clock()))["d"]


def world(store=None):
    return fm.Lake(store or MemoryStore(), runtime=fm.Runtime(clock=Clock())).create("d", schema={"n": "int64"})


def reopened(dataset):
    return opened(dataset.snapshot().objects.store)


def commit(dataset, step):
    """The step-th commit: mostly nothing but the watermark, now and then data, rarely a column."""
    if step % 5 == 2:
        dataset.write(
            numbers(0, step % 7 + 1).append_column("c", pa.nulls(step % 7 + 1, pa.int64()))
            if "c" in dataset.schema.names
            else numbers(0, step % 7 + 1),
            source="s",
            state=str(step),
        )
    elif step == 23:
        dataset.evolve({"c": "int64"})
    else:
        dataset.advance_watermark(START + timedelta(days=step + 1))


def naive(dataset):
    """What the index should say, by walking every block."""
    slices, others, newest, states = [], [], {}, {}
    for block_hash, block in blocks(dataset):
        event = block.event
        newest[kind(event)] = block_hash
        if kind(event) not in ROUTINE_KINDS:
            others.append(block_hash)
        if isinstance(event, AddData):
            if event.new_data is not None:
                interval = event.new_data.offset_interval
                slices.append((interval.start, interval.end + 1, event.new_data.physical_hash.digest))
            if event.new_source_state is not None:
                states.setdefault(event.new_source_state, block_hash)
    return slices, others[::-1], newest, states


def indexed(dataset, states):
    snapshot = dataset.snapshot()
    rows = snapshot.all_slices.to_pylist()
    return (
        [(r["start"], r["end"], r["physical"]) for r in rows],
        [ref.hash for ref in snapshot.non_routine()],
        {event: ref.hash for event, ref in snapshot.index.newest.skips.newest.items()},
        {state: snapshot.find_state(state)[0] for state in states},
    )


def assert_right(dataset):
    expected = naive(dataset)
    assert indexed(dataset, expected[3]) == expected


@pytest.mark.slow
def test_index_says_what_the_chain_says_at_every_step():
    dataset = world()
    for step in range(80):
        commit(dataset, step)
        assert_right(dataset)
    assert_right(reopened(dataset))


def test_the_block_of_a_record_is_the_one_that_brought_it():
    dataset = world()
    for step in range(60):
        commit(dataset, step)
    dataset.purge(5)
    held = {
        offset: block_hash.digest.hex()
        for block_hash, block in blocks(dataset)
        if isinstance(block.event, AddData) and block.event.new_data is not None
        for offset in range(block.event.new_data.offset_interval.start, block.event.new_data.offset_interval.end + 1)
    }
    snapshot = reopened(dataset).snapshot()

    assert {offset: snapshot.block_of(offset) for offset in range(snapshot.next_offset)} == held
    assert (snapshot.block_of(-1), snapshot.block_of(snapshot.next_offset)) == (None, None)


def test_the_block_of_the_last_record_is_known_without_reading():
    dataset = world()
    dataset.write(numbers(0, 3))
    for step in range(20):
        dataset.advance_watermark(START + timedelta(days=step + 1))
    store = CountingStore(dataset.snapshot().objects.store)
    snapshot = opened(store).snapshot()
    before = store.counts

    assert snapshot.block_of(2) is not None
    assert store.counts == before


def test_chain_of_n_blocks_has_few_segments():
    dataset = world()
    for step in range(300):
        dataset.advance_watermark(START + timedelta(days=step + 1))
        n = len(keys(dataset, "info/index"))
        assert n == len(list(dataset.snapshot().index.segments()))
        assert n <= (FAN_OUT - 1) * (1 + math.log(step + 10, FAN_OUT))
    assert_right(reopened(dataset))


@pytest.mark.slow
def test_segments_of_many_sizes_stay_few(monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 8)
    dataset = world()
    for step in range(30):
        dataset.write(numbers(0, [1, 30, 1, 9][step % 4]))
    assert len(keys(dataset, "info/index")) <= 2 * FAN_OUT
    assert_right(reopened(dataset))


def test_every_block_is_rewritten_only_a_few_times(monkeypatch):
    store = CountingStore(MemoryStore())
    dataset = world(store)
    written = []
    real = slice_segment.encode
    monkeypatch.setattr(slice_index, "encode", lambda segment: written.append(segment.blocks) or real(segment))
    for step in range(256):
        dataset.advance_watermark(START + timedelta(days=step + 1))
    assert sum(written) <= 256 * (2 + math.log(256, FAN_OUT))


def test_index_that_lags_is_caught_up(monkeypatch):
    dataset = world()
    for step in range(10):
        commit(dataset, step)
    store = dataset.snapshot().objects.store
    monkeypatch.setattr(store, "put_derived", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    for step in range(10, 30):
        commit(dataset, step)
    assert_right(dataset)
    assert_right(reopened(dataset))
    monkeypatch.undo()
    assert_right(reopened(dataset))
    before = CountingStore(store)
    fm.Lake(before)["d"].snapshot()
    assert before.counts.reads <= 5  # the name and at most four more: it was kept this time
    assert before.counts.lists == 0


def test_index_that_is_gone_is_built_again():
    dataset = world()
    for step in range(40):
        commit(dataset, step)
    store = dataset.snapshot().objects.store
    for key in keys(dataset, "info/index"):
        store.delete(key)
    assert_right(reopened(dataset))
    assert len(keys(dataset, "info/index")) == 1


def test_rebuild_takes_nothing_but_the_chain():
    dataset = world()
    for step in range(40):
        commit(dataset, step)
    objects = dataset.snapshot().objects
    for key in keys(dataset, "info/index"):
        objects.store.put_derived(key, b"garbage")
    rebuild(objects, dataset.head)
    assert_right(reopened(dataset))
    assert len(keys(dataset, "info/index")) == 1


@pytest.fixture(scope="module")
def grown():
    dataset = world()
    for step in range(70):
        commit(dataset, step)
    return dataset, naive(dataset)


HARM = {
    "delete": lambda data, at: None,
    "truncate": lambda data, at: data[: at % len(data)],
    "flip": lambda data, at: (
        data[: at % len(data)] + bytes([data[at % len(data)] ^ (1 + at % 255)]) + data[at % len(data) + 1 :]
    ),
    "empty": lambda data, at: b"",
    "garbage": lambda data, at: b"FMIX1\n" + bytes(at % 100),
}


@pytest.mark.slow
@given(
    harm=st.lists(
        st.tuples(st.integers(0), st.sampled_from(sorted(HARM)), st.integers(0, 10**6)), min_size=1, max_size=6
    )
)
@settings(max_examples=examples(6))
def test_harm_to_segments_is_repaired(grown, harm):
    dataset, expected = grown
    objects = dataset.snapshot().objects
    store = MemoryStore()
    for info in objects.store.list(""):
        store.put_derived(info.key, objects.store.get(info.key))
    segments = [info.key for info in store.list(f"{objects.folder}/info/index")]
    for which, how, at in harm:
        key = segments[which % len(segments)]
        if store.stat(key) is None or not (data := store.get(key)):
            continue
        harmed = HARM[how](data, at)
        store.delete(key) if harmed is None else store.put_derived(key, harmed)
    harmed_dataset = opened(store)
    assert indexed(harmed_dataset, expected[3]) == expected
    assert harmed_dataset.verify().ok
    for step in range(70, 75):
        commit(harmed_dataset, step)
    assert_right(harmed_dataset)
    assert_right(reopened(harmed_dataset))


def test_harm_to_an_older_segment_is_found_by_whoever_needs_it(grown):
    """Opening reads only the newest segment: listing, verifying, purging and repeated writes must mend the others."""
    dataset, _ = grown
    objects = dataset.snapshot().objects
    oldest = [segment.name for segment in dataset.snapshot().index.segments()][-1]
    for need in (
        lambda d: d.to_arrow(),
        lambda d: d.verify(),
        lambda d: d.purge(before=8),
        lambda d: d.write(numbers(0, 1), source="s", state="2"),
        lambda d: list(d.snapshot().non_routine()),
    ):
        store = MemoryStore()
        for info in objects.store.list(""):
            store.put_derived(info.key, objects.store.get(info.key))
        store.put_derived(objects.index_key(oldest), b"damaged")
        harmed = opened(store)
        need(harmed)
        assert_right(harmed)


def test_segment_under_another_one_s_name_is_not_believed():
    dataset = world()
    for step in range(3):
        commit(dataset, step)
    objects = dataset.snapshot().objects
    newest, older, *_ = dataset.snapshot().index.segments()
    objects.store.put_derived(objects.index_key(newest.name), encode(older))
    assert_right(reopened(dataset))


def test_definitions_are_found_without_walking_the_chain(grown):
    dataset, _ = grown
    store = CountingStore(dataset.snapshot().objects.store)
    snapshot = opened(store).snapshot()
    before = store.counts
    assert set(snapshot.index.newest.definitions) >= {"Seed", "AddPushSource", "SetDataSchema"}
    refs = list(snapshot.non_routine())
    assert len(refs) == 4  # Seed, AddPushSource, SetDataSchema and the one that evolved it
    read = store.keys_read[-(store.counts - before).reads :]
    assert not any("/blocks/" in key for key in read)


def test_every_flip_of_a_segment_s_bytes_is_noticed():
    dataset = world()
    commit(dataset, 2)
    data = encode(dataset.snapshot().index.newest)
    assert decode(data).name == dataset.snapshot().index.newest.name
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
        with pytest.raises(BadSegment):
            decode(flipped)
    for end in range(0, len(data), 7):
        with pytest.raises(BadSegment):
            decode(data[:end])


@pytest.mark.parametrize("kept", [1, 99], ids=["a shorter span", "a longer span"])
def test_segment_of_another_span_under_the_same_name_is_not_believed(kept):
    store = MemoryStore()
    dataset = fm.Lake(store).create("d")
    for i in range(FAN_OUT + 4):
        dataset.write(numbers(i, i + 1))
    objects, newest = dataset.snapshot().objects, dataset.snapshot().index.newest
    tried = 0
    for older in newest.older:
        # Another writer caught up from another base: the same last block, other blocks before it.
        at = decode(store.get(objects.index_key(older.name))).skips.at
        upto = list(walk_back(objects.get_block, at.hash))[::-1]
        cut = max(0, len(upto) - kept)
        base = span(None, upto[:cut]) if cut else None
        if len(upto) - cut == older.blocks:
            continue
        tried += 1
        before = store.get(objects.index_key(older.name))
        store.put_derived(objects.index_key(older.name), encode(span(base, upto[cut:])))
        assert fm.Lake(store)["d"].to_arrow().column("n").to_pylist() == list(range(FAN_OUT + 4))
        store.put_derived(objects.index_key(older.name), before)
        store.put_derived(objects.index_key(newest.name), encode(newest))
    assert tried


@pytest.mark.parametrize("keyed", [False, True])
def test_only_the_chain_decides_what_is_purged(keyed):
    """A segment with a right checksum and a wrong `purged_before` once hid 20 of 30 rows, and gc removed two slices."""
    lake = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=Clock()))
    dataset = lake.create("d", key="n" if keyed else None)
    for first in (0, 10, 20, 30):
        dataset.write(pa.table({"n": range(first, first + 10)}))
    dataset.purge(10)
    objects, right = dataset.snapshot().objects, dataset.to_arrow().sort_by("n")
    data = [info.key for info in objects.store.list(objects.data_prefix)]
    newest = dataset.snapshot().index.newest
    for purged in (0, 5, 30, 40):
        wrong = replace(newest, totals=replace(newest.totals, purged_before=purged))
        objects.store.put_derived(objects.index_key(newest.name), encode(wrong))
        assert reopened(dataset).to_arrow().sort_by("n") == right
        objects.store.put_derived(objects.index_key(newest.name), encode(wrong))
        assert not sweep.find(StrayGarbage(objects), time.time() + 3600).objects
        assert [info.key for info in objects.store.list(objects.data_prefix)] == data
    assert reopened(dataset).verify().ok


def test_purge_keeps_a_slice_that_only_the_index_calls_purged():
    dataset = world()
    for first in (0, 10, 20, 30):
        dataset.write(pa.table({"n": range(first, first + 10)}))
    objects = dataset.snapshot().objects
    newest = rebuild(objects, dataset.head).newest
    swapped = newest.slices.set_column(
        6, newest.slices.schema.field(6), newest.slices.column("physical").take(pa.array([3, 1, 2, 0]))
    )
    objects.store.put_derived(objects.index_key(newest.name), encode(replace(newest, slices=swapped)))
    reopened(dataset).purge(10)
    names = {info.key for info in objects.store.list(objects.data_prefix)}
    assert {objects.data_key(Multihash(SHA3_256, one)) for one in newest.slices.column("physical").to_pylist()} <= names

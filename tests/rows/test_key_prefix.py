"""All current rows of a declared prefix of the key are one range of the index, whatever else is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.ledger.objects import DatasetObjects
from floodmark.rows.key_entries import NO_ROW, IndexRecords, write_delta
from floodmark.rows.key_index import KeyIndex, empty_index
from floodmark.rows.key_index_files import KeyIndexFiles, KeyIndexShape
from floodmark.storage.memory import MemoryStore
from limits import set_limit
from profiles import examples
from rows.entry_worlds import Hash, hash_values, hashes, pairs, spread
from rows.ledgers import ADD, NEW, OLD, RETRACT, Naive

BLOCK = b"\x07" * 32
PREFIXES: list[Hash] = [(0, 0), (0, 9), (9, 0), (2**64 - 1, 2**64 - 1)]
Key = tuple[Hash, Hash]

keys: st.SearchStrategy[Key] = st.tuples(st.sampled_from(PREFIXES), hash_values)
batches = st.lists(st.tuples(st.sampled_from([ADD, ADD, NEW, OLD, RETRACT]), keys), min_size=1, max_size=20)


def staging(index: KeyIndex) -> Path:
    return index.files.objects.store.staging()


def new_index() -> KeyIndex:
    objects = DatasetObjects(MemoryStore(), "datasets/x")
    return empty_index(KeyIndexFiles(objects, {}), KeyIndexShape(("area", "id"), ("area",)), 0)


def extended(index: KeyIndex, number: int, records: list[tuple[int, Key]], naive: Naive) -> KeyIndex:
    start = naive.end
    old = [naive.add(op, key, None) for op, key in records]
    batch = IndexRecords(
        start,
        hashes([key for _, (_, key) in records]),
        hashes([(0, start + i) for i in range(len(records))]),
        np.array([op for op, _ in records], np.int32),
        np.array([offset if offset < start else NO_ROW for offset in old], np.int64),
        hashes([prefix for _, (prefix, _) in records]),
    )
    return index.extended((number, BLOCK), naive.end, [write_delta(staging(index), batch)])


def with_small_tiers(patched: pytest.MonkeyPatch) -> None:
    set_limit(patched, "tiers.fan_out", 2)
    set_limit(patched, "tiers.smallest_tier", 4)
    set_limit(patched, "tiers.chunk", 6)
    set_limit(patched, "run.page_rows", 2)


@settings(max_examples=examples(20))
@given(st.lists(batches, min_size=1, max_size=6))
def test_prefix_gives_all_its_current_rows_and_no_others(history):
    with pytest.MonkeyPatch.context() as patched:
        with_small_tiers(patched)
        index, naive = new_index(), Naive()
        for number, records in enumerate(history):
            index = extended(index, number, records, naive)
        asked = [*PREFIXES[::-1], (4, 4), PREFIXES[0]]
        which, entries = index.find_prefix(hashes(asked))
        found = list(zip(which.tolist(), pairs(entries.key), entries.offset.tolist(), strict=True))
        assert pairs(entries.lookup) == [asked[at] for at in which.tolist()]
        assert pairs(entries.row) == [(0, offset) for offset in entries.offset.tolist()]
        known = sorted(naive.seen)
        one_by_one = index.find(hashes([key for _, key in known]), hashes([prefix for prefix, _ in known]))
        ranged = index.live_between(9, 2**64 - 1)
    assert found == sorted(
        (at, key, offset)
        for at, prefix in enumerate(asked)
        for (of, key), (offset, _) in naive.live.items()
        if of == prefix
    )
    assert one_by_one.offset.tolist() == [naive.live.get(key, (NO_ROW, None))[0] for key in known]
    expected = sorted(key for key in naive.live if 9 <= key[0][0] < 2**64 - 1)
    assert list(zip(pairs(ranged.lookup), pairs(ranged.key), strict=True)) == expected


def test_same_key_hash_under_two_prefixes_is_two_keys():
    index, naive = new_index(), Naive()
    index = extended(index, 0, [(ADD, ((1, 1), (5, 5))), (ADD, ((2, 2), (5, 5)))], naive)
    assert index.find(hashes([(5, 5)] * 3), hashes([(1, 1), (2, 2), (3, 3)])).offset.tolist() == [0, 1, NO_ROW]


def test_group_that_fills_many_pages_and_chunks_is_given_whole(monkeypatch):
    set_limit(monkeypatch, "tiers.chunk", 700)
    set_limit(monkeypatch, "tiers.fan_out", 2)
    index, naive = new_index(), Naive()
    members = pairs(spread(2000))
    large, small = (7, 7), (8, 8)
    for number in range(2):
        records = [(ADD, (large, key)) for key in members[number::2]] + [(ADD, (small, (number, 0)))]
        index = extended(index, number, records, naive)
    assert len(index.manifest.segments) == 1
    assert len(index.manifest.segments[0].runs) > 2
    which, entries = index.find_prefix(hashes([small, large]))
    assert np.bincount(which).tolist() == [2, 2000]
    assert pairs(entries.key)[2:] == sorted(members)


def test_range_of_a_prefix_touches_only_the_pages_it_is_in():
    index, naive = new_index(), Naive()
    prefixes = pairs(spread(1000))
    records = [(ADD, (prefix, key)) for prefix in prefixes for key in ((1, 1), (2, 2), (3, 3))]
    index = extended(index, 0, records, naive)
    which, _ = index.find_prefix(hashes(prefixes[:1]))
    assert which.tolist() == [0, 0, 0]
    assert index.probes.pages <= 2 * 7


def test_without_a_declared_prefix_the_key_itself_is_one():
    objects = DatasetObjects(MemoryStore(), "datasets/x")
    index = empty_index(KeyIndexFiles(objects, {}), KeyIndexShape(("id",), ("id",)), 0)
    batch = IndexRecords(0, hashes([(1, 1), (2, 2)]), spread(2), np.zeros(2, np.int32), np.full(2, NO_ROW))
    index = index.extended((0, BLOCK), 2, [write_delta(staging(index), batch)])
    which, entries = index.find_prefix(hashes([(2, 2), (3, 3), (1, 1)]))
    assert (which.tolist(), entries.offset.tolist(), entries.lookup) == ([0, 2], [1, 0], None)


def test_no_prefixes_and_no_records_give_nothing():
    which, entries = new_index().find_prefix(spread(2))
    assert (len(which), len(entries)) == (0, 0)
    assert entries.lookup is not None

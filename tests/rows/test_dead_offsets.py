"""Which records are not current, now and as of any offset: as a walk over all records says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import BadIndex
from floodmark.rows import key_entries as dead_offsets
from floodmark.rows.key_entries import (
    IndexRecords,
    Kills,
    bitmap_of,
    kills_of,
    offsets_of,
    open_kills,
    order_columns,
    write_kills,
)
from floodmark.storage.arrays import is_group_start, stable_order
from limits import set_limit
from rows.entry_worlds import hashes, spread
from rows.ledgers import ADD, NEW, OLD, RETRACT, Naive

KEYS = [(7, 7), (7, 9), (0, 0), (2**64 - 1, 1)]
one_record = st.tuples(st.sampled_from([ADD, RETRACT, OLD, NEW]), st.sampled_from(KEYS))


def kills(records: list[tuple[int, tuple[int, int]]], naive: Naive) -> Kills:
    """What the records end on top of those that the naive index has, which gets them too."""
    start = naive.end
    old = [naive.add(op, key, None) for op, key in records]
    key = hashes([key for _, key in records])
    batch = IndexRecords(
        start,
        key,
        spread(len(records)),
        np.array([op for op, _ in records], np.int32),
        np.array([offset if offset < start else -1 for offset in old], np.int64),
    )
    columns = order_columns(batch.key, None)
    order = stable_order(columns)
    return kills_of(batch, order, is_group_start([c[order] for c in columns]))


def as_list(found: Kills) -> list[tuple[int, int]]:
    return list(zip(found.offset.tolist(), found.killed_by.tolist(), strict=True))


@given(st.lists(st.lists(one_record, min_size=1, max_size=12), min_size=1, max_size=4))
def test_batches_end_what_a_walk_over_the_records_says(batches):
    naive = Naive()
    found = [kills(batch, naive) for batch in batches]
    assert sorted(kill for k in found for kill in as_list(k)) == sorted(naive.kills)
    for end in range(naive.end + 1):
        assert sorted(np.concatenate([k.before(end) for k in found]).tolist()) == naive.dead(end)


def test_correction_ends_the_old_row_and_the_record_that_repeats_it():
    naive = Naive()
    kills([(ADD, KEYS[0])], naive)
    assert as_list(kills([(OLD, KEYS[0]), (NEW, KEYS[0])], naive)) == [(0, 1), (1, 1)]


def test_retraction_of_an_unknown_key_ends_only_itself():
    assert as_list(kills([(RETRACT, KEYS[0])], Naive())) == [(0, 0)]


def test_two_rows_of_one_key_in_one_batch_end_each_other_in_order():
    assert as_list(kills([(ADD, KEYS[0]), (ADD, KEYS[1]), (ADD, KEYS[0])], Naive())) == [(0, 2)]


@given(st.dictionaries(st.integers(0, 2000), st.integers(0, 4), min_size=1, max_size=200), st.integers(1, 50))
def test_merged_kills_are_sorted_and_complete_whatever_the_bound(part_of, limit):
    offsets = [np.array(sorted(o for o, part in part_of.items() if part == number), np.int64) for number in range(5)]
    with pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "dead.sample", 4)
        chunks = list(dead_offsets.merge_kills([Kills(o, o + 5) for o in offsets], limit))
    assert [kill for chunk in chunks for kill in as_list(chunk)] == [(offset, offset + 5) for offset in sorted(part_of)]
    assert all(len(chunk) <= limit + 4 * 6 for chunk in chunks)


def test_bitmap_holds_offsets_beyond_32_bits():
    offsets = np.array([0, 1, 2**32, 2**40 + 3], np.int64)
    assert offsets_of(bitmap_of(Kills(offsets, offsets))).tolist() == offsets.tolist()


def test_every_damaged_byte_of_kills_is_found(tmp_path):
    given_kills = Kills(np.array([3, 8], np.int64), np.array([9, 9], np.int64))
    file = write_kills(tmp_path, 0, 10, given_kills)
    whole = (tmp_path / file.name).read_bytes()
    opened = open_kills(file, memoryview(whole))
    assert as_list(opened.kills()) == [(3, 9), (8, 9)]
    assert offsets_of(opened.bitmap()).tolist() == [3, 8]
    believed = []
    for at in range(len(whole)):
        harmed = bytearray(whole)
        harmed[at] ^= 1
        try:
            open_kills(file, memoryview(bytes(harmed))).check()
            believed.append(at)
        except BadIndex:
            pass
    assert all(whole[at] in b" \0" for at in believed)  # what fills up to a multiple of eight
    assert len(believed) < 24
    for length in range(0, len(whole), 7):
        with pytest.raises(BadIndex):
            open_kills(file, memoryview(whole[:length])).check()

"""Looking up few keys and looking up many give the same answer as a set does."""

from __future__ import annotations

import numpy as np
import pytest

from floodmark.ledger.keys.records import Hashes
from floodmark.transform.meta.entries import Entries, distinct
from floodmark.transform.meta.entry_file import PAGE_ROWS, OpenEntries, write_entries
from limits import set_limit


def some_hashes(count, bits, seed):
    """Hashes with few different high halves when `bits` is small."""
    numbers = np.random.default_rng(seed)
    high = numbers.integers(0, 1 << bits, count, dtype=np.uint64) << np.uint64(64 - bits)
    return Hashes(high, numbers.integers(0, 5, count, dtype=np.uint64))


def pairs(hashes):
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


@pytest.mark.parametrize("bits", [3, 9, 60])
@pytest.mark.parametrize("count", [1, 128, 129, 3000])
def test_few_and_many_are_found_alike(tmp_path, bits, count):
    there = distinct(some_hashes(count, bits, 1))
    numbers = np.arange(len(there))
    file = write_entries(tmp_path, Entries(there, numbers, (numbers % 3).astype(np.uint32)), "salt")
    opened = OpenEntries.of(file, memoryview((tmp_path / file.name).read_bytes()))
    asked = Hashes.joined([some_hashes(500, bits, 2), there.take(slice(None, None, -1))])
    known = {pair: row for row, pair in enumerate(pairs(there))}
    few = -(-len(there) // PAGE_ROWS)  # more hashes than there are pages are looked up in another way
    parts = [asked, *(asked.take(slice(at, at + few)) for at in range(0, len(asked), few))]
    for asked in parts[:50]:
        rows, seen = opened.find(asked)
        assert seen.tolist() == [pair in known for pair in pairs(asked)]
        assert rows[seen].tolist() == [known[pair] for pair in pairs(asked) if pair in known]
        assert np.broadcast_to(opened.process_ts(rows[seen]), seen.sum()).tolist() == rows[seen].tolist()
        assert np.broadcast_to(opened.run(rows[seen]), seen.sum()).tolist() == (rows[seen] % 3).tolist()


@pytest.mark.parametrize("bits", [1, 7, 64 - 1])
@pytest.mark.parametrize("many", [1, 1 << 16])
def test_hashes_come_out_sorted_and_each_once(monkeypatch, bits, many):
    set_limit(monkeypatch, "entries.many", many)
    given = some_hashes(2000, bits, 3)
    assert pairs(distinct(given)) == sorted(set(pairs(given)))
    assert pairs(distinct(distinct(given))) == sorted(set(pairs(given)))

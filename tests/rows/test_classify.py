"""What the rows of a batch become, against a loop over plain dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.rows import classify
from floodmark.rows.classify import KeyStates, MergeConflict
from floodmark.rows.key_entries import NO_ROW
from floodmark.storage.arrays import Hashes
from profiles import examples

KEYS = st.integers(0, 6)
VALUES = st.integers(0, 2)
BATCHES = st.lists(st.tuples(KEYS, VALUES), max_size=12)
STATES = st.dictionaries(KEYS, st.tuples(st.integers(0, 99), VALUES))  # key → (offset, value) of its current row


def hashes(values):
    numbers = np.array(list(values), dtype=np.uint64)
    # One half in common now and then: both halves must count.
    return Hashes(numbers // np.uint64(2), numbers)


def known(batch, state):
    there = [state.get(key, (NO_ROW, 0)) for key, *_ in batch]
    offsets = np.array([offset for offset, _ in there], dtype=np.int64)
    return KeyStates(offsets, hashes(value for _, value in there), offsets != NO_ROW)


def records(changes, batch):
    """(op, key, value or the old offset that is repeated), as a set: classification decides no order between keys."""
    found = []
    for op, source, old, key in zip(changes.op, changes.source, changes.old, changes.key.low, strict=True):
        value = ("old", int(old)) if source == NO_ROW else ("new", batch[source][1])
        found.append((int(op), int(key), value))
    return found


def naive_upsert(batch, state):
    last = {}
    for key, value, *op in batch:
        last[key] = (value, op[0] if op else 0)
    expected, counts = [], {"new": 0, "changed": 0, "retracted": 0, "unchanged": 0, "unknown": 0}
    for key, (value, op) in last.items():
        offset, before = state.get(key, (None, None))
        if op == 1 and offset is None:
            counts["unknown"] += 1
        elif op == 1:
            counts["retracted"] += 1
            expected.append((1, key, ("old", offset)))
        elif offset is None:
            counts["new"] += 1
            expected.append((0, key, ("new", value)))
        elif before == value:
            counts["unchanged"] += 1
        else:
            counts["changed"] += 1
            expected += [(2, key, ("old", offset)), (3, key, ("new", value))]
    return expected, counts


@given(BATCHES, STATES)
def test_an_upsert_is_the_last_row_of_each_key_against_what_is_there(batch, state):
    key, row = hashes(k for k, _ in batch), hashes(v for _, v in batch)
    changes = classify.upsert(key, row, None, known(batch, state))
    expected, counts = naive_upsert(batch, state)
    assert sorted(records(changes, batch)) == sorted(expected)
    assert {name: getattr(changes.tally, name) for name in counts} == counts
    assert changes.tally.duplicates == len(batch) - len({k for k, _ in batch})


@given(st.lists(st.tuples(KEYS, VALUES, st.sampled_from([0, 1, 3])), max_size=12), STATES)
def test_an_upsert_takes_retractions_among_its_rows(batch, state):
    key, row = hashes(k for k, _, _ in batch), hashes(v for _, v, _ in batch)
    ops = np.array([op for _, _, op in batch], dtype=np.int32)
    changes = classify.upsert(key, row, ops, known(batch, state))
    expected, counts = naive_upsert(batch, state)
    assert sorted(records(changes, batch)) == sorted(expected)
    assert {name: getattr(changes.tally, name) for name in counts} == counts


@given(BATCHES, STATES)
def test_corrections_stand_together_old_before_new(batch, state):
    key, row = hashes(k for k, _ in batch), hashes(v for _, v in batch)
    changes = classify.upsert(key, row, None, known(batch, state))
    for i in np.flatnonzero(changes.op == 2):
        assert changes.op[i + 1] == 3
        assert changes.key.low[i] == changes.key.low[i + 1]


@given(BATCHES, STATES)
def test_a_ledger_keeps_what_it_has_never_seen_and_refuses_one_key_twice(batch, state):
    key, row = hashes(k for k, _ in batch), hashes(v for _, v in batch)
    if len({k for k, _ in batch}) < len(batch):
        with pytest.raises(MergeConflict) as refused:
            classify.ledger(key, row, known(batch, state))
        twice = {batch[i][0] for i in refused.value.rows}
        assert twice == {k for k, _ in batch if [b[0] for b in batch].count(k) > 1}
        return
    changes = classify.ledger(key, row, known(batch, state))
    assert records(changes, batch) == [(0, k, ("new", v)) for k, v in batch if k not in state]
    assert changes.tally.unchanged == sum(k in state for k, _ in batch)


CHANGELOGS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3)), max_size=8)


def naive_changelog(batch, state):
    """None when the batch fits, else True."""
    by_key = {}
    for key, value, op in batch:
        by_key.setdefault(key, []).append((value, op))
    for key, rows in by_key.items():
        current = state[key][1] if key in state else None
        open_change = False
        for value, op in rows:
            if open_change != (op == 3):
                return True
            if op in (1, 2) and current != value:
                return True
            if op == 0 and current is not None:
                return True
            current, open_change = (value if op in (0, 3) else None), op == 2
        if open_change:
            return True
    return None


@settings(max_examples=examples(75))
@given(CHANGELOGS, STATES)
def test_a_changelog_passes_what_continues_the_present_rows_and_refuses_the_rest(batch, state):
    key, row = hashes(k for k, _, _ in batch), hashes(v for _, v, _ in batch)
    ops = np.array([op for _, _, op in batch], dtype=np.int32)
    if naive_changelog(batch, state):
        with pytest.raises(MergeConflict):
            classify.changelog(key, row, ops, known(batch, state))
        return
    changes = classify.changelog(key, row, ops, known(batch, state))
    for wanted in {k for k, _, _ in batch}:
        mine = [(op, v[1]) for op, k, v in records(changes, batch) if k == wanted]
        assert mine == [(op, v) for k, v, op in batch if k == wanted]


@given(BATCHES, STATES)
def test_a_snapshot_retracts_what_it_lacks(batch, state):
    batch = list({k: (k, v) for k, v in batch}.values())
    key, row = hashes(k for k, _ in batch), hashes(v for _, v in batch)
    gone = [k for k in state if k not in {b[0] for b in batch}]
    missing = known([(k, 0) for k in gone], state)
    changes = classify.snapshot(key, row, known(batch, state), missing, hashes(gone), None)
    expected, _ = naive_upsert(batch, state)
    assert sorted(records(changes, batch)) == sorted(expected + [(1, k, ("old", state[k][0])) for k in gone])
    assert changes.tally.retracted == len(gone)

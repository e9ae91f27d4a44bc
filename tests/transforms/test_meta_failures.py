"""Failed keys stay until they are processed without failing, and come back when they are due."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark.errors import BadStep, DerivationError, OutputTaken
from floodmark.functions.failures import empty_failed_keys, failed_keys_schema
from floodmark.transforms.failed_keys import failed_column, failed_keys
from floodmark.transforms.meta import TransformMeta
from transforms.meta_worlds import KEYS, committed, failures, hashes, objects_in_memory, run


def commit(meta, number, done, failing):
    draft = meta.after(run(number, number), [hashes(done)], failing, {"a": number}, "v")
    return committed(draft, meta.objects)


def keys_of(table):
    return sorted(failed_keys(table)["type"].to_pylist())


def empty():
    return TransformMeta.load(objects_in_memory(), None)


def test_failed_key_stays_failed_while_other_keys_are_processed():
    meta = commit(empty(), 1, {1, 2, 3}, failures({2, 3}))
    meta = commit(meta, 2, {1, 4}, empty_failed_keys(KEYS))
    assert keys_of(meta.failed()) == [2, 3]


def test_key_that_succeeds_or_vanishes_is_failed_no_longer():
    meta = commit(empty(), 1, {1, 2}, failures({1, 2}))
    meta = commit(meta, 2, {2}, empty_failed_keys(KEYS))
    assert keys_of(meta.failed()) == [1]
    meta = commit(meta, 3, {1}, empty_failed_keys(KEYS))
    assert meta.failed().num_rows == 0
    assert meta.manifest.failed is None


def test_key_that_fails_again_keeps_since_when_it_does():
    meta = commit(empty(), 1, {1}, failures({1}, now=10))
    meta = commit(meta, 2, {1, 2}, failures({1, 2}, now=20, attempts=2))
    since = failed_column(meta.failed(), "since").cast("int64").to_pylist()
    assert dict(zip(failed_keys(meta.failed())["type"].to_pylist(), since, strict=True)) == {1: 10, 2: 20}
    assert failed_column(meta.failed(), "attempts").to_pylist() == [2, 2]


def test_key_that_fails_twice_in_a_commit_is_one_failed_key():
    twice = pa.concat_tables([failures({1}, attempts=1), failures({1}, attempts=2)])
    meta = commit(empty(), 1, {1}, twice)
    assert failed_column(meta.failed(), "attempts").to_pylist() == [2]


def test_failed_key_counts_as_processed_even_when_it_is_not_named_as_such():
    meta = commit(empty(), 1, set(), failures({5}, state="skipped"))
    assert meta.find(hashes({5})).seen.all()
    assert meta.to_table()["is_success"].to_pylist() == [False]


def test_only_keys_to_be_retried_come_back_and_only_when_they_are_due():
    meta = commit(empty(), 1, {1}, failures({1}, due=100))
    meta = commit(meta, 2, {2}, failures({2}, state="skipped"))
    meta = commit(meta, 3, {3}, failures({3}, state="exhausted"))
    assert [keys_of(meta.due(now)) for now in (99, 100, 101)] == [[], [1], [1]]
    meta = commit(meta, 4, {4}, failures({4}))
    assert keys_of(meta.due(0)) == [4]
    file = meta.manifest.failed
    assert (file.rows, file.retry, file.skipped, file.exhausted, file.next_due) == (4, 2, 1, 1, 0)


def test_file_of_failed_keys_is_not_written_again_when_nothing_about_it_changed():
    meta = commit(empty(), 1, {1}, failures({1}))
    later = commit(meta, 2, {2}, empty_failed_keys(KEYS))
    assert later.manifest.failed == meta.manifest.failed


def test_other_keys_or_another_version_need_a_fresh_start():
    meta = commit(empty(), 1, {1}, failures({1}))
    with pytest.raises(OutputTaken):
        commit(meta, 2, {2}, empty_failed_keys(pa.schema([("type", pa.string())])))
    with pytest.raises(BadStep):
        meta.after(run(2), [], empty_failed_keys(KEYS), {}, "v2")
    fresh = committed(meta.fresh(run(2), [hashes({2})], empty_failed_keys(KEYS), {}, "v2"), meta.objects)
    assert (fresh.keys, fresh.version, fresh.failed().num_rows) == (1, "v2", 0)


def test_table_without_the_columns_of_failures_is_refused():
    with pytest.raises(DerivationError, match="failed keys"):
        commit(empty(), 1, {1}, failed_keys_schema(KEYS).empty_table().drop_columns(["due"]))

"""Garbage is what no column needs and no running backfill can want: unused and old, both."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.checkpoint_worlds import range_batch
from columns.column_worlds import (
    DATASET,
    RECORDS,
    ROWS,
    add,
    column,
    definition,
    fill,
    keys,
    manifest,
    objects_at,
    segment,
    values_of,
    with_errors,
)
from floodmark.columns import catalog as catalogs
from floodmark.columns import definition as define
from floodmark.columns import legacy_checkpoints
from floodmark.columns.checkpoint_store import path_of_checkpoint
from floodmark.columns.checkpoints import encode_data_checkpoint
from floodmark.columns.garbage import column_usage, find_garbage, remove_garbage
from floodmark.columns.purge import drop_purged
from floodmark.columns.verify import find_column_problems
from floodmark.derive.checkpoint_key import CheckpointPrefix, data_key, hash_text, range_key
from floodmark.errors import UnreadableColumn
from floodmark.storage import sweep
from rows.harm import replace as put
from storage.garbage_sources import StaticSource

HOUR = 3600 * 10**9
NOBODY = np.empty(0, np.int64)


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    made = objects_at(request.param, tmp_path)
    add(made, "a")
    return made


def prefix(objects, name, where=None):
    owner, catalog = column(objects, name), catalogs.load(objects)
    sources = catalogs.hash_inputs(catalog, DATASET, owner)
    function = owner.function
    return CheckpointPrefix(function.name, function.version, name, hash_text(where), hash_text(DATASET), sources)


def checkpoint(objects, name, start, end, number=0, where=None):
    key = range_key(prefix(objects, name, where).text, number, start, end)
    objects.checkpoints.put(key, range_batch(range(start, end)))
    return key


def staged(objects, name, start, values, done):
    """A file that is finished and not committed, and the checkpoint that names it."""
    made = segment(objects, column(objects, name), start, values)
    key = data_key(prefix(objects, name).text, start // ROWS, start % ROWS, start % ROWS + len(values))
    batch = encode_data_checkpoint(
        file=made.key(objects),
        sources="[]",
        field_ids=[1],
        segment=made.to_json(),
        done=BitMap(done),
        errors=None,
    )
    objects.checkpoints.put(key, batch)
    return key, made.key(objects)


def later(objects):
    """Wait until new objects get a later time of modification; a moment in between, in nanoseconds."""
    newest = max(info.modified for info in objects.store.list(""))
    while (now := modified_now(objects.store)) < newest + 0.001:
        time.sleep(0.001)
    return int((newest + now) / 2 * 1e9)


def modified_now(store):
    """The time of modification that an object gets now."""
    store.put_if_absent("probe", b"")
    probe = store.stat("probe")
    store.delete("probe")
    return probe.modified


def old_garbage(objects, dead=NOBODY):
    """What can go when everything that is there now has grown old."""
    return find_garbage(objects, DATASET, dead, time.time_ns() + 2 * HOUR, HOUR)


# Files


def test_nothing_in_use_is_garbage(objects):
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0] * ROWS)
    fill(objects, "a", ROWS, [2.0])
    fill(objects, "b", 0, [1.0])
    with_errors(objects, "b", [0])
    with_errors(objects, "b", [0])  # the same rows, another time: the first file of errors is replaced
    remove_garbage(old_garbage(objects))
    assert old_garbage(objects).keys == []
    assert find_column_problems(objects) == []
    assert len(values_of(objects, "a")) == ROWS + 1


def test_what_older_manifests_name_is_garbage_once_it_is_old(objects):
    fill(objects, "a", 0, [1.0])
    with_errors(objects, "a", [0])
    replaced = manifest(objects, "a").keys(objects) | {objects.manifest_key(column(objects, "a").manifest)}
    with_errors(objects, "a", [0, 1])
    fill(objects, "a", 0, [2.0, 3.0], changed=[0])
    assert find_garbage(objects, DATASET, NOBODY, time.time_ns(), HOUR).keys == []
    found = old_garbage(objects)
    assert replaced <= set(found.keys)
    assert found.bytes == sum(f.size for f in found.files)
    assert remove_garbage(found) == found
    assert not replaced & {info.key for info in objects.store.list("")}
    assert find_column_problems(objects) == []


def test_looking_for_garbage_removes_nothing(objects):
    fill(objects, "a", 0, [1.0])
    fill(objects, "a", 0, [2.0], changed=[0])
    before = {info.key for info in objects.store.list("")}
    assert old_garbage(objects).keys
    assert {info.key for info in objects.store.list("")} == before


def test_a_file_that_was_put_again_meanwhile_stays(objects):
    made = segment(objects, column(objects, "a"), 0, [1.0])
    found = old_garbage(objects)
    assert [f.key for f in found.files] == [made.key(objects)]
    later(objects)
    fill(objects, "a", 4, [1.0])  # any change of the catalog
    found = replace(found, swept=replace(found.swept, root=catalogs.load(objects)))
    segment(objects, column(objects, "a"), 0, [1.0])
    assert remove_garbage(found).keys == []
    assert made.key(objects) in keys(objects, "files")


def test_nothing_is_removed_for_a_catalog_that_is_no_longer_the_present_one(objects):
    segment(objects, column(objects, "a"), 0, [1.0])
    checkpoint(objects, "a", 0, 4)
    define.alter(objects, definition("a", version="v2"), RECORDS)
    found = old_garbage(objects)
    assert len(found.checkpoints) == len(found.files) == 1
    define.alter(objects, definition("a", version="v1"), RECORDS)
    assert remove_garbage(found).keys == []
    assert len(objects.checkpoints.list_keys()) == 1


def test_a_damaged_manifest_stops_the_collection(objects):
    fill(objects, "a", 0, [1.0])
    put(objects.store, objects.manifest_key(column(objects, "a").manifest), b"nonsense")
    with pytest.raises(UnreadableColumn):
        old_garbage(objects)


# Checkpoints


def test_checkpoints_of_rows_that_are_not_committed_stay(objects):
    fill(objects, "a", 0, [1.0, 2.0])
    committed = checkpoint(objects, "a", 0, 2)
    half = checkpoint(objects, "a", 1, 3)
    filtered = checkpoint(objects, "a", 4, 6, where="x > 1")
    later = checkpoint(objects, "a", 0, 2, number=1)
    assert old_garbage(objects).keys == [committed]
    remove_garbage(old_garbage(objects))
    assert objects.checkpoints.list_keys() == sorted([half, filtered, later])


def test_rows_that_died_need_no_checkpoint(objects):
    fill(objects, "a", 0, [1.0, 2.0])
    half = checkpoint(objects, "a", 1, 3)
    assert old_garbage(objects, np.array([ROWS + 2])).checkpoints == ()
    assert [c.key for c in old_garbage(objects, np.array([2])).checkpoints] == [half]


def test_sparse_checkpoints_count_by_the_rows_they_hold(objects):
    fill(objects, "a", 0, [1.0, 2.0])
    key = range_key(prefix(objects, "a").text, 0, 0, ROWS)
    objects.checkpoints.put(key, range_batch([0, 1]))
    assert [c.key for c in old_garbage(objects).checkpoints] == [key]


def test_checkpoints_of_other_versions_and_dropped_columns_go(objects):
    add(objects, "b", ["a"])
    old = [checkpoint(objects, "a", 0, 4), checkpoint(objects, "b", 0, 4)]
    assert old_garbage(objects).keys == []
    define.alter(objects, definition("a", version="v2"), RECORDS)
    define.drop(objects, "b")
    new = checkpoint(objects, "a", 0, 4)
    assert sorted(old_garbage(objects).keys) == sorted(old)
    remove_garbage(old_garbage(objects))
    assert objects.checkpoints.list_keys() == [new]


def test_after_a_version_change_committed_rows_of_the_old_one_count_as_open(objects):
    fill(objects, "a", 0, [1.0, 2.0])
    define.alter(objects, definition("a", version="v2"), RECORDS)
    checkpoint(objects, "a", 0, 2)
    assert old_garbage(objects).checkpoints == ()


def test_checkpoints_of_an_older_generation_of_the_inputs_go(objects):
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0])
    stale = checkpoint(objects, "b", 0, 1)
    fill(objects, "a", 0, [2.0], changed=[0])
    assert [c.key for c in old_garbage(objects).checkpoints] == [stale]


def test_a_file_that_is_finished_but_not_committed_stays_with_its_checkpoint(objects):
    key, file = staged(objects, "a", 0, [1.0, 2.0], done=[0, 1])
    assert old_garbage(objects).keys == []
    define.drop(objects, "a")
    assert set(old_garbage(objects).keys) == {key, file}


def test_once_it_is_committed_its_checkpoint_stays_as_long_as_the_file(objects):
    """So that a column which is dropped and added again has its values back."""
    key, file = staged(objects, "a", 0, [1.0, 2.0], done=[0, 1])
    fill(objects, "a", 0, [1.0, 2.0])
    assert file in manifest(objects, "a").keys(objects)
    assert old_garbage(objects).keys == []
    fill(objects, "a", 0, [3.0, 4.0], changed=[0, 1])
    assert {key, file} <= set(old_garbage(objects).keys)


# What was in use until lately


def grown_old(objects):
    """The garbage when all objects of now are old, and those that are stored later are young."""
    moment = later(objects)
    return lambda: find_garbage(objects, DATASET, NOBODY, moment + HOUR, HOUR)


def replace_by_values(objects):
    fill(objects, "a", 0, [3.0, 4.0], changed=[0, 1])


def replace_by_purge(objects):
    drop_purged(objects, 1)


def replace_by_drop(objects):
    define.drop(objects, "b")


@pytest.mark.parametrize("change", [replace_by_values, replace_by_purge, replace_by_drop])
def test_grace_counts_from_when_a_thing_was_last_in_use(objects, change):
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0, 2.0])
    fill(objects, "b", 0, [1.0, 2.0])
    with_errors(objects, "b", [1])
    note, _ = staged(objects, "b", 0, [1.0, 2.0], done=[0, 1])
    remove_garbage(old_garbage(objects))
    before = {info.key for info in objects.store.list("")}
    garbage = grown_old(objects)
    change(objects)
    left = {info.key for info in objects.store.list("")}
    assert garbage().keys == []
    replaced = {key for key in before & left if "/checkpoints/" not in key} - in_use(objects)
    assert replaced
    assert replaced <= set(old_garbage(objects).keys)
    remove_garbage(old_garbage(objects))
    assert old_garbage(objects).keys == []
    assert {i.key for i in objects.store.list(objects.folder) if "/checkpoints/" not in i.key} == in_use(objects)
    assert (note in objects.checkpoints.list_keys()) == (change is replace_by_values)


def in_use(objects):
    columns = catalogs.load(objects).columns
    found = {objects.manifest_key(c.manifest) for c in columns if c.manifest is not None}
    return {objects.catalog_key} | found.union(*[manifest(objects, c.name).keys(objects) for c in columns])


def test_a_replaced_manifest_that_is_damaged_stops_nothing(objects):
    fill(objects, "a", 0, [1.0])
    old = objects.manifest_key(column(objects, "a").manifest)
    fill(objects, "a", 0, [2.0], changed=[0])
    put(objects.store, old, b"nonsense")
    assert find_garbage(objects, DATASET, NOBODY, time.time_ns(), HOUR).keys == []
    assert old in old_garbage(objects).keys


# What is left of a purge that ended halfway


def test_values_of_purged_records_go_whatever_their_age(objects):
    fill(objects, "a", 0, [1.0, 2.0, 3.0])
    fill(objects, "a", ROWS, [4.0])
    drop_purged(objects, 2)
    stay = checkpoint(objects, "a", 2, 4)
    gone = {checkpoint(objects, "a", 1, 3), segment(objects, column(objects, "a"), 1, [2.0]).key(objects)}
    found = find_garbage(objects, DATASET, NOBODY, time.time_ns(), HOUR)
    assert set(found.keys) == gone
    assert remove_garbage(found).keys == found.keys
    assert objects.checkpoints.list_keys() == [stay]
    assert find_column_problems(objects) == []


def test_a_purge_that_columns_have_not_heard_of_is_finished(objects):
    fill(objects, "a", 0, [1.0, 2.0, 3.0])
    checkpoint(objects, "a", 0, 1)
    found = find_garbage(objects, DATASET, NOBODY, time.time_ns(), HOUR, purged_before=2)
    assert len(found.checkpoints) == 1
    assert values_of(objects, "a") == {0: 1.0, 1: 2.0, 2: 3.0}
    remove_garbage(found)
    assert values_of(objects, "a") == {2: 3.0}
    assert catalogs.load(objects).purged_before == 2
    assert find_column_problems(objects, 2) == []


def test_damaged_checkpoints_go(objects):
    key = checkpoint(objects, "a", 0, 4)
    place = path_of_checkpoint(key)
    stored = f"{objects.checkpoints.folder}/batches/{place.group.name}/{place.leaf}"
    put(objects.store, stored, objects.store.get(stored)[:-3])
    assert old_garbage(objects).keys == [key]


def test_checkpoints_of_older_formats_stay_until_they_are_adopted(objects):
    now = prefix(objects, "a")
    ranges = range_key(legacy_checkpoints.range_prefix(now), 0, 0, 4)
    task, fragment = legacy_checkpoints.task_key(now, 0, 0, 4), legacy_checkpoints.fragment_key(now, DATASET, 0)
    for key in (ranges, task):
        objects.checkpoints.put(key, range_batch(range(4)))
    made = segment(objects, column(objects, "a"), 0, [1.0])
    files = {"file": made.key(objects), "sources": "", "field_ids": [1], "segment": "{}", "done": BitMap()}
    objects.checkpoints.put(fragment, encode_data_checkpoint(**files, errors=None))
    assert old_garbage(objects).keys == []
    fill(objects, "a", 0, [1.0] * 4)
    assert [c.key for c in old_garbage(objects).checkpoints] == [ranges]


def test_what_others_put_among_the_checkpoints_goes(objects):
    checkpoint(objects, "a", 0, 4)
    stray = f"{objects.checkpoints.folder}/batches/stray/file"
    objects.store.put_derived(stray, b"?")
    assert old_garbage(objects).keys == [stray]


# The rule


names = st.sampled_from("abcdefgh")
ages = st.floats(0, 10)


@given(
    st.dictionaries(names, ages),
    st.dictionaries(names, ages),
    st.sets(names),
    st.sets(names),
    st.dictionaries(names, names),
)
def test_garbage_is_what_is_neither_young_nor_used(files, checkpoints, named, needed, staged):
    checkpoints = {key.upper(): modified for key, modified in checkpoints.items()}
    staged = {key.upper(): file for key, file in staged.items() if key.upper() in checkpoints}
    wanted = {key: partial(bool, key.lower() in needed) for key in checkpoints}
    usage = column_usage(named=named, released={}, needed=wanted, staged=staged, purged=set())
    found = sweep.find(StaticSource({**checkpoints, **files}, usage), 5.0)
    gone = set(found.keys)
    for key, modified in checkpoints.items():
        assert (key in gone) == (modified < 5 and key.lower() not in needed and staged.get(key) not in named)
    for key, modified in files.items():
        held = any(staged.get(c) == key for c in set(checkpoints) - gone)
        assert (key in gone) == (modified < 5 and key not in named and not held)

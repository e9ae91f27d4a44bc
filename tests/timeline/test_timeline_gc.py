"""Garbage of a timeline is what no root has named for a week; whoever reads an older root is not disturbed."""

from __future__ import annotations

import logging
import os
import time

import pytest

from floodmark.storage.sweep import GRACE_NANOS, remove
from floodmark.timeline import root as roots
from floodmark.timeline.garbage import find
from floodmark.timeline.manifest import last_name
from timeline.laid_worlds import Laid

HOUR = 3600 * 10**9


@pytest.fixture
def laid(tmp_path):
    return Laid(tmp_path)


def later(nanos=GRACE_NANOS + HOUR):
    return time.time_ns() + nanos


def merged_over_merged(laid):
    """A file that was named and one that is; the old root too."""
    old = laid.merged(laid.slice(0))
    first = laid.lay(laid.day(0, old), slices=1)
    new = laid.merged(laid.slice(0), laid.slice(1))
    second = laid.lay(laid.day(0, new), slices=2)
    return old[0].file, new[0].file, first, second


def test_what_was_replaced_goes_after_the_grace_period_and_not_before(laid):
    old, new, first, second = merged_over_merged(laid)
    assert find(laid.objects, later(GRACE_NANOS - HOUR)).keys == []
    garbage = find(laid.objects, later())
    note = laid.objects.replaced_key
    manifest = laid.objects.manifest_key(first.manifests[0].digest)
    assert {laid.objects.key(old), manifest} <= set(garbage.keys)
    assert set(garbage.keys) <= {laid.objects.key(old), manifest, note(last_name(old)), note(last_name(manifest))}
    assert garbage.bytes > 0
    assert remove(garbage).keys == garbage.keys
    assert laid.files() == {new}
    assert laid.shown() == [offset for pair in zip(range(10), range(10, 20), strict=True) for offset in pair]
    assert roots.load(laid.objects) == second


def test_an_old_reader_can_go_on_until_the_grace_period_ends(laid):
    _, _, first, _ = merged_over_merged(laid)
    remove(find(laid.objects, later(GRACE_NANOS - HOUR)))
    partitions = roots.partitions(laid.objects, roots.decode(first.stored))
    assert [p.rows for p in partitions] == [10]
    assert laid.objects.store.stat(laid.objects.key(partitions[0].settled[0].file)) is not None


def test_the_grace_period_begins_when_a_file_is_replaced_not_when_it_was_made(laid):
    old, _, _, _ = merged_over_merged(laid)
    age(laid, laid.objects.key(old))
    assert laid.objects.key(old) not in find(laid.objects, time.time_ns()).keys
    age(laid, laid.objects.replaced_key(last_name(old)))
    assert laid.objects.key(old) in find(laid.objects, time.time_ns()).keys


def age(laid, key):
    """Make an object look a year old."""
    path = laid.objects.store.local_path(key)
    os.utime(path, (time.time() - 365 * 86_400,) * 2)


def test_files_of_a_crashed_update_go_and_those_of_a_running_one_stay(laid):
    stray = laid.merged(laid.slice(0))[0].file
    assert find(laid.objects, time.time_ns()).keys == []
    assert find(laid.objects, later()).keys == [laid.objects.key(stray)]


def test_named_files_stay_however_old_they_are(laid):
    laid.lay(laid.day(0, laid.merged(laid.slice(0))), slices=1)
    assert find(laid.objects, later(100 * GRACE_NANOS)).keys == []


def test_a_file_that_another_manifest_still_names_stays(laid):
    shared = laid.merged(laid.slice(0), laid.slice(2), most=10)
    laid.lay(laid.day(0, shared[:1]), laid.day(1, shared[1:]), slices=3)
    laid.lay(laid.day(0, [laid.slice(0)]), laid.day(1, shared[1:]), slices=3)
    assert laid.objects.key(shared[0].file) not in find(laid.objects, later()).keys


def test_unnamed_copies_of_purged_records_go_at_once(laid):
    stray = laid.merged(laid.slice(0), laid.slice(1))[0].file
    other = laid.merged(laid.slice(1))[0].file
    assert find(laid.objects, time.time_ns(), purged_before=10).keys == [laid.objects.key(stray)]
    assert laid.files() == {stray, other}


def test_nothing_goes_once_the_root_has_changed(laid):
    merged_over_merged(laid)
    garbage = find(laid.objects, later())
    laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=2)
    assert remove(garbage).keys == []


def test_a_file_that_was_put_again_stays(laid):
    old, _, _, _ = merged_over_merged(laid)
    age(laid, laid.objects.key(old))
    garbage = find(laid.objects, later())
    laid.merged(laid.slice(0))
    assert laid.objects.key(old) not in remove(garbage).keys
    assert old in laid.files()


@pytest.mark.parametrize("what", ["root", "manifest"])
def test_nothing_goes_while_nobody_knows_what_is_named(laid, what, caplog):
    _, _, _, second = merged_over_merged(laid)
    key = laid.objects.root_key if what == "root" else laid.objects.manifest_key(second.manifests[0].digest)
    laid.objects.store.local_path(key).write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING):
        assert find(laid.objects, later()).keys == []
    assert "no garbage of the timeline is collected" in caplog.text


def test_notes_go_when_what_they_tell_of_is_gone(laid):
    merged_over_merged(laid)
    remove(find(laid.objects, later()))
    remove(find(laid.objects, later()))
    assert list(laid.objects.replaced()) == []


def test_a_file_that_was_put_again_is_young_however_old_its_note_is(laid):
    old, _, _, _ = merged_over_merged(laid)
    age(laid, laid.objects.replaced_key(last_name(old)))
    assert laid.objects.key(old) not in find(laid.objects, time.time_ns()).keys


def test_notes_stay_with_what_stays_and_while_they_are_young(laid):
    shared = laid.merged(laid.slice(0), laid.slice(2), most=10)
    laid.lay(laid.day(0, shared[:1]), laid.day(1, shared[1:]), slices=3)
    laid.lay(laid.day(0, [laid.slice(0)]), laid.day(1, [laid.slice(2)]), slices=3)
    laid.lay(laid.day(0, shared[:1]), laid.day(1, shared[1:]), slices=3)
    note = laid.objects.replaced_key(last_name(shared[0].file))
    assert note not in find(laid.objects, later()).keys
    other = laid.objects.replaced_key("gone")
    laid.objects.store.put_derived(other, b"")
    assert other not in find(laid.objects, time.time_ns()).keys
    assert other in find(laid.objects, later()).keys

"""After a purge the timeline shows no purged record, and no file of its own holds a copy of one."""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from floodmark.errors import LostRace, StorageError
from floodmark.timeline import root as roots
from floodmark.timeline import update as purging
from floodmark.timeline.writer import WriterState
from timeline.laid_worlds import SETTINGS, Laid


@pytest.fixture
def laid(tmp_path):
    return Laid(tmp_path)


def stored_offsets(laid):
    """The offsets of all rows in the timeline's own files, named or not, straight from the files."""
    paths = [laid.objects.store.local_path(laid.objects.key(file)) for file in laid.files()]
    return {offset for path in paths for offset in pq.read_table(path, columns=["offset"])["offset"].to_pylist()}


def check(laid, before):
    """Nothing is left of purged records, and everything of the others is."""
    assert not {offset for offset in stored_offsets(laid) if offset < before}
    assert sorted(laid.shown()) == list(range(before, roots.load(laid.objects).applied))
    assert laid.problems() == []
    assert all(p.settled for p in roots.partitions(laid.objects, roots.load(laid.objects)))


def purge(laid, before):
    laid.purge(before)
    laid.drop_purged()
    check(laid, before)


def both_days(laid, *day):
    laid.lay(*day, laid.day(1, [laid.slice(2)], [laid.slice(3)]))


@pytest.mark.parametrize("before", [10, 20, 30, 40])
def test_pieces_of_purged_slices_go(laid, before):
    both_days(laid, laid.day(0, [laid.slice(0)], [laid.slice(1)]))
    purge(laid, before)
    assert laid.files() == set()


@pytest.mark.parametrize("before", [10, 20, 30, 40])
def test_merged_files_are_rewritten_without_purged_rows(laid, before):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    purge(laid, before)


def test_a_file_is_rewritten_even_if_no_piece_shows_its_purged_rows(laid):
    merged = laid.merged(laid.slice(0), laid.slice(1))[0]
    shown = [laid.cut(merged, i, i + 1) for i in range(1, 20, 2)]
    assert {p.offset_min for p in shown} == set(range(10, 20))
    laid.lay(laid.day(0, shown, [laid.slice(0)]), slices=2)
    assert sorted(laid.shown()) == list(range(20))
    purge(laid, 10)


def test_files_that_hold_no_purged_rows_are_left_alone(laid):
    day = laid.day(1, laid.merged(laid.slice(2), laid.slice(3)))
    laid.lay(laid.day(0, [laid.slice(0)], laid.merged(laid.slice(1))), day)
    files = laid.files()
    purge(laid, 10)
    assert laid.files() == files
    assert roots.partitions(laid.objects, roots.load(laid.objects))[1] == day


def test_waiting_rows_settle_when_nothing_settled_is_left(laid):
    both_days(laid, laid.day(0, [laid.slice(0)], [laid.slice(1)]))
    purge(laid, 10)
    [first, _] = roots.partitions(laid.objects, roots.load(laid.objects))
    assert (sum(p.rows for p in first.settled), first.waiting) == (10, ())


def test_waiting_runs_are_rewritten_too(laid):
    run = laid.merged(laid.cut(laid.slice(0), 5, 10), laid.slice(1))
    both_days(laid, laid.day(0, [laid.cut(laid.slice(0), 0, 5)], run))
    purge(laid, 10)


def test_pieces_that_stay_keep_their_place_among_those_that_are_rewritten(laid):
    early, late = laid.merged(laid.slice(0), laid.slice(1), most=10)
    [stays] = laid.merged(laid.cut(laid.slice(1), 2, 4))
    settled = [laid.cut(early, 0, 4), stays, laid.cut(early, 8, 10), late]
    laid.lay(laid.day(0, settled, [laid.cut(laid.slice(0), 2, 4)]), slices=2)
    assert sorted(laid.shown()) == list(range(20))
    purge(laid, 10)
    [day] = roots.partitions(laid.objects, roots.load(laid.objects))
    assert day.settled[1] == stays
    assert len(day.settled) == 3  # what came after it was two pieces and is one file


def test_a_file_of_two_days_is_rewritten_for_each(laid):
    shared = laid.merged(laid.slice(0), laid.slice(2), most=10)
    assert len({p.file for p in shared}) == 1
    laid.lay(laid.day(0, shared[:1], [laid.slice(1)]), laid.day(1, shared[1:], [laid.slice(3)]))
    purge(laid, 10)


def test_copies_that_only_old_roots_name_go_at_once(laid):
    laid.lay(laid.day(0, laid.merged(laid.slice(0))), slices=1)
    laid.lay(laid.day(0, laid.merged(laid.slice(0), laid.slice(1))), slices=2)
    assert len(laid.files()) == 2
    purge(laid, 10)
    assert len(laid.files()) == 1


def test_a_second_purge_of_the_same_changes_nothing(laid):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    purge(laid, 10)
    before = roots.load(laid.objects)
    laid.drop_purged()
    assert roots.load(laid.objects).stored == before.stored


def test_an_update_that_began_before_the_purge_cannot_bring_records_back(laid):
    laid.lay(laid.day(1, [laid.slice(2)], [laid.slice(3)]))
    merged = laid.merged(laid.slice(0), laid.slice(1))
    laid.purge(10)
    laid.drop_purged()
    with pytest.raises(LostRace):
        laid.lay(laid.day(0, merged))


def test_the_first_update_cannot_either(laid):
    merged = laid.merged(laid.slice(0), laid.slice(1))
    laid.purge(10)
    laid.drop_purged()
    with pytest.raises(LostRace):
        laid.lay(laid.day(0, merged), slices=2)


@pytest.mark.parametrize("what", ["root", "manifest", "file"])
def test_a_damaged_timeline_is_emptied_rather_than_left_with_purged_records(laid, what, caplog):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    root = roots.load(laid.objects)
    [file] = laid.files()
    objects = laid.objects
    key = {
        "root": objects.root_key,
        "manifest": objects.manifest_key(root.manifests[0].digest),
        "file": objects.key(file),
    }
    path = objects.store.local_path(key[what])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    laid.purge(10)
    with caplog.at_level(logging.WARNING):
        laid.drop_purged()
    assert "rebuild" in caplog.text
    assert laid.files() == set()
    assert roots.load(objects).applied == 0
    assert laid.problems() == []


def test_a_store_that_fails_fails_no_purge_and_the_next_one_does_the_rest(laid, caplog, monkeypatch):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    laid.purge(10)

    def refuse(*_):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(type(laid.objects.store), "compare_and_swap", refuse)
        laid.drop_purged()
    assert "purge again to remove them" in caplog.text
    assert any(offset < 10 for offset in stored_offsets(laid))
    laid.drop_purged()
    check(laid, 10)


def test_what_was_written_is_counted(laid):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    written = roots.load(laid.objects).bytes_written
    purge(laid, 10)
    after = roots.load(laid.objects)
    [size] = [info.size for info in laid.objects.files()]
    assert roots.partitions(laid.objects, after)[0].bytes_written == size
    assert (after.last.kind, after.last.merged_rows, after.last.partitions) == ("purge", 10, 1)
    assert after.last.bytes_written > size
    assert after.bytes_written == written + after.last.bytes_written


def test_pieces_of_any_size_are_rewritten(laid, monkeypatch):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    laid.purge(10)
    monkeypatch.setattr(WriterState, "most", 1)
    laid.drop_purged()
    check(laid, 10)


def test_a_timeline_of_other_settings_is_emptied(laid):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))
    laid.purge(10)
    laid.drop_purged(replace(SETTINGS, row_group_size=1))
    assert laid.files() == set()
    assert roots.load(laid.objects).applied == 0


def test_a_purge_stands_when_a_fault_keeps_the_timeline_from_following(laid, caplog, monkeypatch):
    both_days(laid, laid.day(0, laid.merged(laid.slice(0), laid.slice(1))))

    def stumble(*_):
        raise IndexError("index 51 is out of bounds")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(purging, "files_with_purged", stumble)
        assert laid.dataset.purge(10).before == 10
    [record] = caplog.records
    assert record.exc_info is not None
    assert "purge again to remove them" in record.getMessage()

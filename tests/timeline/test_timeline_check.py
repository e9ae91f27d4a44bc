"""Verify finds whatever is wrong with a timeline, says where, and finds nothing where nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.ledger.selection import NO_OFFSETS
from floodmark.timeline import root as roots
from floodmark.timeline.piece_files import GroupRows, PieceFiles, make_pieces, write_groups
from floodmark.timeline.pieces import PieceOrigin, TimePoint, time_points_of
from floodmark.timeline.verify import LedgerRecords, problems
from timeline.laid_worlds import DAY, SETTINGS, Laid


@pytest.fixture
def laid(tmp_path):
    return Laid(tmp_path)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def whole(laid):
    """A timeline in which everything is as it must be: merged, cut, referenced, waiting."""
    merged = laid.merged(laid.slice(0), laid.slice(1))[0]
    cut = [laid.cut(merged, 0, 7), laid.cut(merged, 7, 20)]
    return laid.day(0, cut), laid.day(1, [laid.slice(2)], [laid.slice(3)])


def test_nothing_is_wrong_without_a_timeline(laid):
    assert laid.problems() == []


def test_nothing_is_wrong_with_a_whole_timeline(laid):
    laid.lay(*whole(laid))
    assert laid.problems() == []


def test_a_timeline_that_is_behind_is_not_wrong(laid):
    laid.lay(laid.day(0, [laid.slice(0)]), slices=1)
    assert laid.problems() == []


def test_dead_records_may_be_left_out_or_not(laid):
    one, two = laid.cut(laid.slice(0), 0, 3), laid.cut(laid.slice(0), 5, 10)
    laid.lay(laid.day(0, [one, two]), slices=1)
    assert laid.problems(dead=[3, 4, 7]) == []


@pytest.mark.parametrize("dead", [[], [3]])
def test_missing_records_are_found(laid, dead):
    one, two = laid.cut(laid.slice(0), 0, 3), laid.cut(laid.slice(0), 5, 10)
    laid.lay(laid.day(0, [one, two]), slices=1)
    [problem] = laid.problems(dead)
    assert f"{2 - len(dead)} records are not in the timeline, the first at offset {3 + len(dead)}" in problem


def test_records_that_are_there_twice_are_found(laid):
    laid.lay(laid.day(0, [laid.slice(0)], [laid.cut(laid.slice(0), 4, 6)]), slices=1)
    [problem] = laid.problems()
    assert "twice, for example offset 4" in problem


def test_pieces_that_overlap_are_found(laid):
    laid.lay(laid.day(0, [laid.slice(0), laid.slice(1)]), slices=2)
    [problem] = laid.problems()
    assert "overlap" in problem
    laid.lay(laid.day(0, [laid.cut(laid.slice(0), 0, 1)], [laid.cut(laid.slice(0), 1, 10), laid.slice(1)]), slices=2)
    [problem] = laid.problems()
    assert "overlap" in problem


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first": TimePoint(0, 0)}, "they range from"),
        ({"last": TimePoint(2**60, 9)}, "they range from"),
        ({"offset_min": 1}, "offsets are 0–9, not 1–9"),
        ({"offset_max": 8}, "offsets are 0–9, not 0–8"),
        ({"row_group": 3}, "cannot be read"),
        ({"group_rows": 11}, "cannot be read"),
    ],
)
def test_a_piece_that_says_something_wrong_of_its_rows_is_found(laid, wrong, message):
    laid.lay(laid.day(0, [replace(laid.slice(0), **wrong)]), slices=1)
    [problem] = laid.problems()
    assert message in problem
    assert "2026-11-01" in problem


def test_rows_of_another_partition_are_found(laid):
    laid.lay(replace(laid.day(0, [laid.slice(0)]), start=laid.day(1, []).start), slices=1)
    [problem] = laid.problems()
    assert "belong to another partition" in problem


def test_rows_that_are_not_applied_yet_are_found(laid):
    laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=1)
    [problem] = laid.problems()
    assert "offset 19 is not applied yet" in problem


def test_a_partition_where_nothing_settled_is_found(laid):
    laid.lay(laid.day(0, [], [laid.slice(0)]), slices=1)
    [problem] = laid.problems()
    assert "no settled piece" in problem


def test_a_damaged_file_is_found(laid):
    root = laid.lay(*whole(laid))
    file = roots.partitions(laid.objects, root)[0].settled[0].file
    flip(laid.objects.store.local_path(laid.objects.key(file)))
    assert any("was changed or damaged" in p for p in laid.problems())


def test_a_file_that_is_gone_is_found(laid):
    root = laid.lay(*whole(laid))
    laid.objects.store.delete(laid.objects.key(roots.partitions(laid.objects, root)[0].settled[0].file))
    assert any("the timeline's file cannot be read" in p for p in laid.problems())


@pytest.mark.parametrize("harm", ["flip", "delete"])
def test_a_damaged_manifest_is_found(laid, harm):
    root = laid.lay(*whole(laid))
    key = laid.objects.manifest_key(root.manifests[0].digest)
    if harm == "flip":
        flip(laid.objects.store.local_path(key))
    else:
        laid.objects.store.delete(key)
    [problem] = laid.problems()
    assert root.manifests[0].digest in problem


def test_a_damaged_root_is_found(laid):
    laid.lay(*whole(laid))
    flip(laid.objects.store.local_path(laid.objects.root_key))
    [problem] = laid.problems()
    assert "root is damaged" in problem


def test_a_root_of_another_chain_is_found(laid, tmp_path_factory):
    laid.lay(*whole(laid))
    other = Laid(tmp_path_factory.mktemp("other"), of="other")
    other.objects.store.put_if_absent(other.objects.root_key, roots.load(laid.objects).stored)
    [problem] = other.problems()
    assert "another chain" in problem


def test_a_root_that_says_something_wrong_of_a_manifest_is_found(laid):
    root = laid.lay(*whole(laid))
    wrong = replace(root, manifests=(replace(root.manifests[0], until=root.manifests[0].until - DAY),))
    laid.objects.store.compare_and_swap(laid.objects.root_key, root.stored, roots.encode(wrong))
    [problem] = laid.problems()
    assert "does not match its entry in the root" in problem


def test_copies_of_purged_records_are_found_named_or_not(laid):
    laid.lay(*whole(laid))
    laid.purge(10)
    assert [p for p in laid.problems() if "purge(10) or fold() to remove it" in p]
    laid.drop_purged()
    assert laid.problems() == []
    stray = laid.merged(laid.slice(1))[0].file
    laid.purge(20)
    laid.drop_purged()
    assert stray not in laid.files()
    assert laid.problems() == []


def test_rows_that_are_out_of_order_are_found(laid):
    layout = laid.snapshot.layout
    table = PieceFiles(laid.objects, layout).read(laid.slice(0), layout.slice_schema.names).take([0, 2, 1])
    made = write_groups(laid.objects, layout, iter([table]))
    stretch = GroupRows(0, 0, 3)
    [piece] = make_pieces(made.name, made.groups, [stretch], *time_points_of(table, layout), PieceOrigin.SORTED, 1)
    laid.lay(laid.day(0, [piece], [laid.cut(laid.slice(0), 3, 10)]), slices=1)
    [problem] = laid.problems()
    assert "not in order" in problem


def test_a_partition_that_comes_twice_is_found(laid):
    root = laid.lay(*whole(laid))
    twice = replace(root, manifests=root.manifests * 2)
    laid.objects.store.compare_and_swap(laid.objects.root_key, root.stored, roots.encode(twice))
    assert any("is duplicate or out of order" in p for p in laid.problems())


def test_what_was_replaced_while_it_was_checked_is_not_wrong(laid):
    laid.lay(laid.day(0, [laid.cut(laid.slice(0), 0, 5)]), slices=1)

    def look():
        if len(looks) == 1:
            laid.lay(*whole(laid))
        looks.append(laid.snapshot)
        return LedgerRecords(looks[-1], NO_OFFSETS)

    looks = [laid.snapshot]
    assert problems(laid.objects, SETTINGS, look) == []
    assert len(looks) == 3

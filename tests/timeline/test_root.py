"""The root is one state of the whole timeline: it changes at once or not at all, and only when it is still the same."""

from __future__ import annotations

import logging

import pytest

from floodmark.errors import BadManifest, CommitUnknown, LostRace
from floodmark.storage.memory import MemoryStore
from floodmark.timeline import root as roots
from floodmark.timeline.bundles import BUNDLE_PIECES
from floodmark.timeline.commit import publish
from floodmark.timeline.manifest import last_name
from floodmark.timeline.root import Root
from limits import set_limit
from timeline.root_worlds import DAY, Swaps, change, objects_with, own_name, partition, piece, published


def names(infos):
    return {last_name(info.key) for info in infos}


def test_without_a_root_nothing_is_applied():
    root = roots.load(objects_with())
    assert (root.applied, root.manifests, root.is_damaged) == (0, (), False)


def test_what_was_published_is_what_is_loaded():
    objects = objects_with()
    after = published(objects, partition(1, 2), partition(2, waiting=[piece(2 * DAY, 3, own_name(1))]))
    found = roots.load(objects)
    assert found == after
    assert (found.version, found.applied, found.partitions, found.pieces, found.rows) == (1, 10, 2, 4, 33)
    assert roots.partitions(objects, found) == roots.partitions(objects, after)


def test_a_change_replaces_adds_and_removes_partitions():
    objects = objects_with()
    published(objects, partition(1), partition(2), partition(3))
    root = published(objects, partition(2, 5), partition(4), removed=[3 * DAY])
    assert roots.partitions(objects, roots.load(objects)) == [partition(1), partition(2, 5), partition(4)]
    assert (root.version, root.applied, root.next_run) == (2, 20, 2)


def test_somebody_else_was_first():
    objects = objects_with()
    before = published(objects, partition(1))
    published(objects, partition(2))
    assert publish(objects, before, change(before, partition(3))) is None
    assert [p.start for p in roots.partitions(objects, roots.load(objects))] == [DAY, 2 * DAY]


def test_two_first_roots_cannot_both_be():
    objects = objects_with()
    empty = roots.load(objects)
    assert publish(objects, empty, change(empty, partition(1))) is not None
    assert publish(objects, empty, change(empty, partition(2))) is None


def test_one_can_publish_on_without_loading_again():
    objects = objects_with()
    root = published(objects, partition(1))
    for day in range(2, 5):
        root = publish(objects, root, change(root, partition(day)))
    assert roots.load(objects) == root
    for info in list(objects.manifests()):
        objects.store.delete(info.key)
    assert len(roots.partitions(objects, root)) == 4  # it knows what it wrote


def test_a_root_remembers_no_manifest_that_it_does_not_name():
    objects = objects_with()
    first = published(objects, partition(1))
    second = publish(objects, first, change(first, partition(2)))
    assert [second.bundles.get(m.digest) is None for m in (*first.manifests, *second.manifests)] == [True, False]


def test_a_root_remembers_manifests_up_to_so_many_pieces(monkeypatch):
    set_limit(monkeypatch, "root.known_pieces", BUNDLE_PIECES)
    objects = objects_with()
    heavy = [partition(day, BUNDLE_PIECES) for day in (1, 2, 3)]
    published(objects, *heavy)
    root = roots.load(objects)
    assert roots.partitions(objects, root) == roots.partitions(objects, root) == heavy
    assert [root.bundles.get(m.digest) is None for m in root.manifests] == [True, True, False]


def test_manifests_are_durable_before_the_root_names_them():
    store = Swaps(MemoryStore())
    published(objects_with(store), partition(1))
    done = [name for name, _ in store.calls if name in ("put_if_absent", "compare_and_swap")]
    assert done == ["put_if_absent", "compare_and_swap"]


def test_notes_are_there_before_the_root_lets_go():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    published(objects, partition(1, file=own_name(1)))
    store.calls.clear()
    published(objects, partition(1, file=own_name(2)))
    done = [name for name, _ in store.calls if name in ("put_derived", "compare_and_swap")]
    assert done == ["put_derived", "put_derived", "compare_and_swap"]


def test_replaced_manifests_and_own_files_have_notes_and_others_have_none():
    objects = objects_with()
    first = published(objects, partition(1, file=own_name(1)), partition(2, file=own_name(2)), partition(3))
    assert names(objects.replaced()) == set()
    published(objects, partition(1, file=own_name(3)), partition(3, 2, file="data/other"))
    assert names(objects.replaced()) == {last_name(own_name(1)), first.manifests[0].digest}


def test_old_readers_keep_their_partitions():
    objects = objects_with()
    published(objects, partition(1), partition(2))
    old = roots.load(objects)
    published(objects, partition(1, 7), removed=[2 * DAY])
    assert roots.partitions(objects, old) == [partition(1), partition(2)]


def test_all_bytes_are_counted():
    objects = objects_with()
    after = published(objects, partition(1))
    after = published(objects, partition(2))
    manifests = sum(info.size for info in objects.manifests())
    root_bytes = len(objects.store.get(objects.root_key))
    assert after.bytes_in == 400
    assert after.last.bytes_written == pytest.approx(100 + after.manifests[0].size + root_bytes, abs=4)
    assert after.bytes_written == pytest.approx(200 + manifests + 2 * root_bytes, abs=30)
    assert after.last.amplification == after.last.bytes_written / 200


def test_a_range_reads_only_manifests_that_can_match():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    published(objects, *(partition(day, 400) for day in range(5)))
    root = roots.load(objects)
    assert len(root.manifests) == 5
    store.calls.clear()
    found = roots.partitions(objects, root, 2 * DAY + 1, 3 * DAY)
    assert [p.start for p in found] == [2 * DAY]
    assert len(store.calls) == 1


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        (None, None, [1, 2, 4]),
        (None, DAY, []),
        (None, DAY + 1, [1]),
        (DAY + 9, None, [1, 2, 4]),
        (DAY + 10, None, [2, 4]),
        (3 * DAY, 4 * DAY, []),
        (4 * DAY + 10, None, []),
    ],
)
def test_ranges_are_half_open(start, end, days):
    objects = objects_with()
    root = published(objects, partition(1), partition(2), partition(4))
    assert [p.start // DAY for p in roots.partitions(objects, root, start, end)] == days


def test_partitions_are_found_by_their_starts_and_only_their_manifests_are_read():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    published(objects, *(partition(day, 400) for day in range(5)))
    root = roots.load(objects)
    store.calls.clear()
    found = roots.partitions_at(objects, root, [3 * DAY, 9 * DAY, 3 * DAY, -DAY])
    assert found == {3 * DAY: partition(3, 400)}
    assert len(store.calls) == 1
    assert roots.partitions_at(objects, root, []) == {}


@pytest.mark.slow
def test_the_cost_of_a_commit_does_not_grow_with_the_number_of_partitions():
    costs = []
    for days in (10, 200):
        store = Swaps(MemoryStore())
        objects = objects_with(store)
        published(objects, *(partition(day, 100) for day in range(days)))
        store.calls.clear()
        after = published(objects, partition(5, 101))
        costs.append((len(store.calls), after.last.bytes_written))
    assert costs[0][0] == costs[1][0]
    assert costs[1][1] < costs[0][1] + 200 / 5 * 200  # the root names more manifests, and that is all


def test_a_damaged_root_counts_as_none_and_the_next_change_replaces_it(caplog):
    objects = objects_with()
    published(objects, partition(1))
    data = objects.store.get(objects.root_key)
    objects.store.compare_and_swap(objects.root_key, data, data[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        root = roots.load(objects)
    assert (root.applied, root.manifests, root.is_damaged) == (0, (), True)
    assert "damaged" in caplog.text
    after = publish(objects, root, change(root, partition(2)))
    assert roots.load(objects) == after
    assert not after.is_damaged


def test_a_root_of_no_use_is_replaced_and_what_it_named_has_notes():
    objects = objects_with()
    old = published(objects, partition(1, file=own_name(1)), partition(2, file=own_name(2)))
    empty = old.emptied()
    assert (empty.applied, empty.manifests) == (0, ())
    after = publish(objects, empty, change(empty, partition(1, file=own_name(2))))
    assert roots.partitions(objects, after) == [partition(1, file=own_name(2))]
    assert after.version == old.version + 1
    assert names(objects.replaced()) == {last_name(own_name(1)), old.manifests[0].digest}


def test_a_manifest_that_is_gone_or_damaged_is_told_by_its_key():
    objects = objects_with()
    published(objects, partition(1))
    key = objects.manifest_key(roots.load(objects).manifests[0].digest)
    objects.store.put_derived(key, b"nonsense")
    with pytest.raises(BadManifest, match="damaged") as raised:
        roots.partitions(objects, roots.load(objects))
    assert raised.value.key == key
    assert "fold()" in raised.value.hint  # an update need not look at it, a fold does
    objects.store.delete(key)
    with pytest.raises(BadManifest, match="gone") as raised:
        roots.partitions(objects, roots.load(objects))
    assert "fold()" in raised.value.hint


def test_a_damaged_manifest_of_the_same_name_is_mended_by_who_publishes_it():
    objects = objects_with()
    root = published(objects, partition(1))
    objects.store.put_derived(objects.manifest_key(root.manifests[0].digest), b"nonsense")
    again = publish(objects, root.emptied(), change(root, partition(1)))
    assert roots.partitions(objects, Root(manifests=again.manifests)) == [partition(1)]


def test_records_that_were_purged_meanwhile_do_not_come_back():
    objects = objects_with()
    before = published(objects, partition(1))
    purged = publish(objects, before, change(before, removed=[DAY], purged_before=10))
    with pytest.raises(LostRace):
        publish(objects, purged, change(purged, partition(2)))
    assert roots.load(objects) == purged
    later = partition(2, 0, waiting=[piece(2 * DAY, offset=10)])
    assert publish(objects, purged, change(purged, later)).purged_before == 10


def test_a_swap_whose_answer_was_lost_has_happened():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    store.lost = 1
    after = published(objects, partition(1))
    swaps = [name for name, _ in store.calls if name == "compare_and_swap"]
    assert len(swaps) == 2  # seen is not yet durable
    assert roots.load(objects) == after


def test_a_swap_that_was_never_done_is_done_again():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    store.undone = 2
    after = published(objects, partition(1))
    assert roots.load(objects) == after


def test_a_lost_answer_and_a_newer_root_mean_to_start_again():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    before = published(objects, partition(1))
    store.undone = 1
    store.before = lambda: published(objects_with(store._inner), partition(2))
    assert publish(objects, before, change(before, partition(3))) is None


def test_a_swap_that_cannot_be_settled_says_so():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    before = roots.load(objects)
    store.lost, store.failing_gets = 1, 50
    with pytest.raises(CommitUnknown, match="may or may not") as raised:
        publish(objects, before, change(before, partition(1)))
    assert raised.value.key == objects.root_key
    assert "update_timeline" in raised.value.hint


def test_trouble_while_settling_is_tried_again():
    store = Swaps(MemoryStore())
    objects = objects_with(store)
    before = roots.load(objects)
    store.lost, store.failing_gets = 1, 2
    assert publish(objects, before, change(before, partition(1))) is not None

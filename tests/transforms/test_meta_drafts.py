"""A draft changes nothing until it is put, and takes nothing away that somebody may still read."""

from __future__ import annotations

import pickle

import pytest

from floodmark.chain.ids import Multihash
from floodmark.errors import DerivationError
from floodmark.functions.failures import empty_failed_keys
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from floodmark.storage.tiers import KEEP_RETIRED_COMMITS, Tiers
from floodmark.transforms.meta import TransformMeta
from transforms.meta_worlds import INPUTS, KEYS, committed, failures, hashes, objects_in_memory, run

SMALL = Tiers(2, 2, 1000)


def commits(objects, count, tiers=SMALL):
    meta = TransformMeta.load(objects, None, tiers)
    for number in range(count):
        draft = meta.after(run(number, number), [hashes({number % 5})], empty_failed_keys(KEYS), {"a": number}, "v")
        meta = committed(draft, objects)
        yield meta, draft


def stored(objects):
    return {info.key for info in objects.store.list("features")}


def test_draft_that_is_not_put_leaves_nothing(tmp_path):
    objects = DatasetObjects(LocalStore(tmp_path / "lake"), "features")
    draft = TransformMeta.load(objects, None).after(run(1), [hashes({1})], failures({1}), {}, "v")
    assert list(objects.store.staging().iterdir()) != []
    del draft
    assert list(objects.store.staging().iterdir()) == []
    assert stored(objects) == set()


def test_putting_twice_is_putting_once():
    objects = objects_in_memory()
    draft = TransformMeta.load(objects, None).after(run(1), [hashes({1})], failures({1}), {}, "v")
    draft.put(objects)
    before = stored(objects)
    draft.put(objects)
    assert stored(objects) == before
    assert len(before) == 3
    assert draft.meta.find(hashes({1})).seen.all()


def test_draft_that_was_closed_cannot_be_put():
    objects = objects_in_memory()
    draft = TransformMeta.load(objects, None).after(run(1), [hashes({1})], empty_failed_keys(KEYS), {}, "v")
    draft.close()
    with pytest.raises(DerivationError, match="closed"):
        draft.put(objects)
    assert stored(objects) == set()


@pytest.mark.slow
def test_replaced_files_go_some_commits_later_and_never_while_an_older_meta_of_these_may_be_read():
    objects, history = objects_in_memory(), []
    for meta, draft in commits(objects, 3 * KEEP_RETIRED_COMMITS):
        draft.discard_superseded(objects)
        history.append(meta)
        for older in history[-KEEP_RETIRED_COMMITS:]:
            assert TransformMeta.load(objects, older.checkpoint).find(hashes({0})).seen.all()
    assert len(stored(objects)) < 4 * KEEP_RETIRED_COMMITS
    needed = {objects.checkpoint_key(Multihash.parse(name)) for name in history[-1].manifest.names}
    assert needed <= stored(objects)


def test_file_that_is_still_needed_never_goes_however_old_it_is():
    objects = objects_in_memory()
    meta = TransformMeta.load(objects, None, Tiers(2, 2, 1000))
    meta = committed(meta.after(run(1, 1), [hashes(range(400))], failures({7}), {"a": 1}, "v"), objects)
    old = {meta.manifest.failed.name, meta.manifest.segments[-1][0].name}
    for number in range(2, KEEP_RETIRED_COMMITS + 6):
        draft = meta.after(run(number, number), [hashes({3})], empty_failed_keys(KEYS), {"a": number}, "v")
        meta = committed(draft, objects)
        draft.discard_superseded(objects)
    assert old <= meta.manifest.names
    assert {objects.checkpoint_key(Multihash.parse(name)) for name in old} <= stored(objects)


def test_same_keys_processed_again_make_a_file_of_their_own():
    # Otherwise a file that is deleted late could be one that a later commit has put again.
    names = [meta.manifest.names for meta, _ in commits(objects_in_memory(), 11, Tiers())]
    assert len(set.union(*names)) >= 11


def test_commits_of_one_run_share_its_number_and_add_up():
    objects = objects_in_memory()
    meta, one = TransformMeta.load(objects, None), run(1, 9)
    meta = committed(meta.after(one, [hashes({1, 2})], failures({2}), {"a": 4}, "v", seconds=1.5), objects)
    assert meta.is_ahead(["a"])
    meta = committed(meta.after(one, [hashes({3})], empty_failed_keys(KEYS), {"a": 9}, "v", seconds=4.0), objects)
    assert not meta.is_ahead(["a"])
    assert list(meta.manifest.runs.values()) == [one]
    last = meta.manifest.last_run
    assert (last.id, last.keys, last.failed, last.seconds) == ("run-1", 3, 1, 4.0)


def test_positions_move_without_any_key():
    objects = objects_in_memory()
    meta = committed(
        TransformMeta.load(objects, None).after(run(1, 9), [], empty_failed_keys(KEYS), {"a": 9}, "v"), objects
    )
    assert (dict(meta.positions), meta.keys, meta.manifest.runs) == ({"a": 9}, 0, {})
    assert not meta.is_ahead(INPUTS)


def test_meta_with_nothing_to_look_up_reads_one_small_file():
    store = CountingStore(MemoryStore())
    objects = DatasetObjects(store, "features")
    draft = TransformMeta.load(objects, None).after(run(1, 3), [hashes({1})], failures({1}, due=50), {"a": 3}, "v")
    draft.put(objects)
    store.keys_read.clear()
    meta = TransformMeta.load(objects, draft.checkpoint.physical_hash)
    assert not meta.is_ahead(INPUTS)
    assert meta.due(49).num_rows == 0
    assert store.keys_read == [objects.checkpoint_key(draft.checkpoint.physical_hash)]


@pytest.mark.parametrize("seen_before", ["opened", "never opened"])
def test_meta_travels_to_tasks(tmp_path, seen_before):
    objects = DatasetObjects(LocalStore(tmp_path / "lake"), "features")
    *_, (meta, _) = commits(objects, 5)
    if seen_before == "opened":
        meta.find(hashes({1}))
    sent = pickle.dumps(meta)
    assert len(sent) < 10_000
    asked = hashes(range(6))
    there = pickle.loads(sent).find(asked, ["a"])
    assert there.seen.tolist() == [True] * 5 + [False]
    assert there.process_ts.tolist() == [0, 1000, 2000, 3000, 4000, 0]
    assert there.last_offsets.tolist() == meta.find(asked, ["a"]).last_offsets.tolist()


def test_note_of_another_output_is_no_meta():
    objects = objects_in_memory()
    note = b'{"kind": "floodmark.follows", "primary": "x", "step": "y"}'
    objects.store.put_if_absent(objects.checkpoint_key(Multihash.sha3_256(note)), note)
    assert TransformMeta.load(objects, Multihash.sha3_256(note)).version is None

"""The key index answers as a dictionary of all records does, however its segments were cut, merged and kept."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import BadIndex, StorageError
from floodmark.ledger.objects import DatasetObjects
from floodmark.rows import key_index
from floodmark.rows.key_entries import NO_ROW, IndexDelta, IndexRecords, store_delta, write_delta
from floodmark.rows.key_index import KeyIndex, empty_index, open_index
from floodmark.rows.key_index_files import KeyIndexFiles, KeyIndexShape, decode_index
from floodmark.storage import run_lookup, sorted_runs
from floodmark.storage.arrays import Hashes
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from floodmark.storage.store import Store
from limits import set_limit
from profiles import examples
from rows.entry_worlds import TOP, Hash, hash_values, hashes, pairs, spread
from rows.ledgers import ADD, NEW, OLD, RETRACT, Naive

BLOCK = b"\x07" * 32
ops = st.sampled_from([ADD, ADD, NEW, OLD, RETRACT])
batches = st.lists(st.tuples(ops, hash_values), min_size=1, max_size=20)


def staging(index: KeyIndex) -> Path:
    store = index.files.objects.store
    return store.elsewhere if isinstance(store, NoStaging) else store.staging()


def new_index(store: Store | None = None) -> KeyIndex:
    objects = DatasetObjects(store or MemoryStore(), "datasets/x")
    return empty_index(KeyIndexFiles(objects, {}), KeyIndexShape(("id",), ("id",)), 0)


def additions(index: KeyIndex, records: Sequence[tuple[int, Hash]], naive: Naive, cut: int) -> list[IndexDelta]:
    """The additions of a commit of these records, which become those of two ranges of hashes."""
    made = []
    for part in ([r for r in records if r[1][0] < cut], [r for r in records if r[1][0] >= cut]):
        start = naive.end
        old = [naive.add(op, key, (start, key)) for op, key in part]
        batch = IndexRecords(
            start,
            hashes([key for _, key in part]),
            hashes([(start, key[1]) for _, key in part]),
            np.array([op for op, _ in part], np.int32),
            np.array([o if o < start else NO_ROW for o in old], np.int64),
        )
        made.append(write_delta(staging(index), batch))
    return made


def wrong(index: KeyIndex, naive: Naive) -> str | None:
    """How the index differs from the naive one, None when it does not."""
    asked = [*sorted(naive.seen), (5, 5), (TOP, 5)]
    found = index.find(hashes(asked))
    expected = [naive.live.get(key, (NO_ROW, None))[0] for key in asked]
    if found.offset.tolist() != expected or found.seen[-2:].any():
        return f"find: {found.offset.tolist()}, not {expected}"
    rows = [(naive.live[key][1][0], key[1]) if key in naive.live else (0, 0) for key in asked]
    if pairs(found.row) != rows:
        return f"find: rows {pairs(found.row)}, not {rows}"
    for low, high in ((0, 2**64), (0, 1), (1, 2**63), (2**63, TOP), (TOP, 2**64)):
        entries = index.live_between(low, high)
        keys = sorted(key for key in naive.live if low <= key[0] < high)
        if pairs(entries.key) != keys or entries.offset.tolist() != [naive.live[key][0] for key in keys]:
            return f"live_between({low}, {high}): {pairs(entries.key)}"
    if any(index.dead(end).tolist() != naive.dead(end) for end in range(naive.end + 1)):
        return "dead"
    third = naive.end // 3
    for end in (third, naive.end):
        for ranges in ([], [(0, naive.end)], [(third, 2 * third)], [(0, third), (2 * third, naive.end)]):
            inside = [offset for offset in naive.dead(end) if any(low <= offset < high for low, high in ranges)]
            if index.dead_within(ranges, end).tolist() != inside:
                return f"dead_within({ranges}, {end})"
    if index.dead().tolist() != naive.dead(naive.end) or index.dead_count != len(naive.kills):
        return "dead now"
    return None if index.live_count == len(naive.live) else f"live_count: {index.live_count}"


@pytest.fixture
def small_tiers(monkeypatch):
    with_small_tiers(monkeypatch)


def with_small_tiers(patched: pytest.MonkeyPatch) -> None:
    """Merge early, in chunks of a few entries, with pages of two."""
    set_limit(patched, "tiers.fan_out", 2)
    set_limit(patched, "tiers.smallest_tier", 4)
    set_limit(patched, "tiers.chunk", 6)
    set_limit(patched, "run.page_rows", 2)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(batches, min_size=1, max_size=8), st.sampled_from([2, 3]), st.sampled_from([4, 1000]))
def test_index_answers_as_a_dictionary_after_every_commit(history, fan_out, smallest):
    with pytest.MonkeyPatch.context() as patched:
        with_small_tiers(patched)
        set_limit(patched, "tiers.fan_out", fan_out)
        set_limit(patched, "tiers.smallest_tier", smallest)
        index, naive = new_index(), Naive()
        for number, records in enumerate(history):
            made = additions(index, records, naive, cut=2**63)
            index = index.extended((number, BLOCK), naive.end, made)
            assert wrong(index, naive) is None
        store = index.files.objects.store
        kept = decode_index(index.manifest.name, store.get(index.files.objects.key_manifest_key(index.manifest.name)))
        assert kept == index.manifest
        assert wrong(open_index(KeyIndexFiles(index.files.objects, {}), kept), naive) is None


@pytest.mark.slow
def test_many_hashes_over_many_pages_and_merges(small_tiers, tmp_path, monkeypatch):
    set_limit(monkeypatch, "tiers.chunk", 300)
    set_limit(monkeypatch, "run.page_rows", 16)
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    keys = pairs(spread(600))
    random = np.random.default_rng(3)
    for number in range(12):
        chosen = random.choice(len(keys), 80)
        records = [(int(op), keys[at]) for op, at in zip(random.integers(0, 4, 80), chosen, strict=True)]
        index = index.extended((number, BLOCK), naive.end + 80, additions(index, records, naive, cut=2**62))
    assert wrong(index, naive) is None
    assert max(len(segment.runs) for segment in index.manifest.segments) > 1


def test_index_without_records_knows_nothing():
    index = new_index()
    found = index.find(spread(3))
    assert (found.offset.tolist(), found.seen.any()) == ([NO_ROW] * 3, False)
    assert len(index.find(spread(0)).offset) == len(index.live_between()) == len(index.dead()) == 0
    assert (index.end, index.live_count, index.dead_count) == (0, 0, 0)


def test_key_that_is_asked_for_twice_is_answered_twice():
    index, naive = new_index(), Naive()
    index = index.extended((0, BLOCK), 2, additions(index, [(ADD, (1, 1)), (ADD, (2, 2))], naive, cut=0))
    assert index.find(hashes([(2, 2), (1, 1), (2, 2)])).offset.tolist() == [1, 0, 1]


# Tiers


def test_retracted_key_is_forgotten_only_when_nothing_older_is_left(small_tiers, monkeypatch):
    set_limit(monkeypatch, "tiers.smallest_tier", 4)
    index, naive = new_index(), Naive()
    first = [(ADD, (number, 0)) for number in range(20)]
    index = index.extended((0, BLOCK), 20, additions(index, first, naive, cut=0))
    for number in (3, 4):  # merged with each other, above the first
        index = index.extended((number, BLOCK), naive.end + 1, additions(index, [(RETRACT, (number, 0))], naive, cut=0))
    assert [segment.entries for segment in index.manifest.segments] == [2, 20]
    assert wrong(index, naive) is None
    assert index.find(hashes([(3, 0)])).seen.all()
    rest = [(RETRACT, (number, 0)) for number in range(5, 20)]
    index = index.extended((9, BLOCK), naive.end + 15, additions(index, rest, naive, cut=0))
    assert [segment.entries for segment in index.manifest.segments] == [3]
    assert wrong(index, naive) is None
    assert not index.find(hashes([(3, 0)])).seen.any()


def test_merge_takes_about_a_chunk_at_a_time(monkeypatch, tmp_path):
    set_limit(monkeypatch, "tiers.chunk", 1000)
    set_limit(monkeypatch, "tiers.fan_out", 2)
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    sizes: list[int] = []
    real = run_lookup.newest

    def counted(parts, order):
        sizes.append(sum(map(run_lookup.entry_count, parts)))
        return real(parts, order)

    monkeypatch.setattr(run_lookup, "newest", counted)
    for number in range(2):
        records = [(ADD, key) for key in pairs(spread(2500, seed=number))]
        index = index.extended((number, BLOCK), naive.end + 2500, additions(index, records, naive, cut=2**63))
    assert sum(sizes) == 5000
    assert max(sizes) <= 1000 + 2 * 2 * sorted_runs.PAGE_ROWS
    assert len(index.manifest.segments) == 1
    assert pairs(index.live_between().key) == sorted(naive.live)


# Commits that are not what they should be


@pytest.mark.parametrize(
    ("end", "chosen"),
    [(4, [0]), (4, [1]), (3, [0, 1]), (4, [0, 0]), (4, [])],
    ids=["second missing", "first missing", "end before the last", "one twice", "none"],
)
def test_additions_with_a_gap_are_never_believed(end, chosen, caplog):
    index, naive = new_index(), Naive()
    made = additions(index, [(ADD, (1, 1)), (ADD, (2, 2)), (ADD, (TOP, 1)), (ADD, (TOP, 2))], naive, cut=5)
    broken = index.extended((0, BLOCK), end, [made[i] for i in chosen])
    with pytest.raises(BadIndex):
        broken.find(spread(1))
    with pytest.raises(BadIndex):
        broken.dead()
    assert "could not be extended" in caplog.text
    assert list(index.files.objects.key_manifests()) == []


def test_additions_of_overlapping_hashes_are_never_believed(caplog):
    index, naive = new_index(), Naive()
    made = additions(index, [(ADD, (1, 1)), (ADD, (9, 1))], naive, cut=0)[1:]
    made += additions(index, [(ADD, (5, 5))], naive, cut=0)[1:]
    with pytest.raises(BadIndex, match="overlap"):
        index.extended((0, BLOCK), 3, made).find(spread(1))


def test_lookup_hashes_are_asked_for_exactly_when_a_prefix_is_declared():
    index = new_index()
    with pytest.raises(ValueError, match="prefix"):
        index.find(spread(1), spread(1))


# Files


def commit(index: KeyIndex, naive: Naive, number: int, *keys: int) -> KeyIndex:
    made = additions(index, [(ADD, (key, 0)) for key in keys], naive, cut=0)
    return index.extended((number, BLOCK), naive.end, made)


def test_small_commit_writes_few_files_and_nothing_else(tmp_path):
    store = CountingStore(LocalStore(tmp_path))
    index, naive = new_index(store), Naive()
    index = commit(index, naive, 0, 1, 2, 3)
    before = store.counts
    index = commit(index, naive, 1, 2)
    asked = store.counts - before
    assert (asked.puts, asked.reads, asked.lists, asked.deletes) == (3, 0, 0, 0)  # run, kills, manifest
    assert list(store.staging().iterdir()) == []


def test_additions_are_moved_not_copied(tmp_path):
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    made = additions(index, [(ADD, (1, 1))], naive, cut=0)
    inode = (made[1].folder / made[1].run.name).stat().st_ino
    index = index.extended((0, BLOCK), 1, made)
    objects = index.files.objects
    assert objects.store.local_path(objects.key_file_key(made[1].run.name)).stat().st_ino == inode


def test_addition_can_be_put_into_the_store_where_it_was_made(tmp_path):
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    made = [store_delta(index.files.objects, p) for p in additions(index, [(ADD, (1, 1)), (OLD, (2, 2))], naive, cut=0)]
    assert {addition.folder for addition in made} == {None}
    assert list(index.files.objects.store.staging().iterdir()) == []
    assert wrong(index.extended((0, BLOCK), 2, made), naive) is None


def test_replaced_files_stay_for_some_commits_and_then_go(small_tiers, monkeypatch):
    set_limit(monkeypatch, "shelf.history", 3)
    set_limit(monkeypatch, "tiers.chunk", 1000)
    index, naive = new_index(), Naive()
    objects = index.files.objects
    for number in range(40):
        older = index
        index = commit(index, naive, number, number % 7)
        if number:
            readers = open_index(KeyIndexFiles(objects, {}), older.manifest)
            readers.check()
        there = {info.key.rsplit("/", 1)[-1] for info in objects.key_files()}
        assert index.manifest.names <= there
        assert there <= index.manifest.names | {name for _, name in index.manifest.retired}
        assert len(list(objects.key_manifests())) <= 4
    assert wrong(index, naive) is None
    assert len(there) < 40


def test_mapped_index_goes_on_when_its_files_are_removed(tmp_path):
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    index = commit(index, naive, 0, *range(50))
    index.live_between()
    for info in list(index.files.objects.key_files()):
        index.files.objects.store.delete(info.key)
    assert wrong(index, naive) is None
    with pytest.raises(BadIndex, match="missing"):
        open_index(KeyIndexFiles(index.files.objects, {}), index.manifest).find(hashes([(25, 0)]))


def test_pickled_index_answers_the_same(tmp_path):
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    index = commit(index, naive, 0, *range(50))
    index = commit(index, naive, 1, *range(0, 50, 7))
    assert wrong(index, naive) is None  # and has opened its files
    data = pickle.dumps(index)
    assert len(data) < 10_000
    assert wrong(pickle.loads(data), naive) is None


class Full(LocalStore):
    """A store that takes no derived files."""

    def put_derived_file(self, key, path):
        raise StorageError("no space left", key=key)

    def put_derived(self, key, data):
        raise StorageError("no space left", key=key)


class NoStaging(Full):
    """A store that takes nothing at all; tasks write their additions elsewhere."""

    elsewhere: Path

    def staging(self):
        raise StorageError("read-only")


@pytest.mark.parametrize("kind", [Full, NoStaging])
def test_index_in_a_store_that_takes_no_files_still_answers(kind, tmp_path, caplog, small_tiers):
    store = kind(tmp_path / "lake")
    store.elsewhere = tmp_path / "elsewhere"
    store.elsewhere.mkdir()
    index, naive = new_index(store), Naive()
    for number in range(5):
        index = commit(index, naive, number, number, 2 * number)
        assert wrong(index, naive) is None
    assert wrong(pickle.loads(pickle.dumps(index)), naive) is None
    assert caplog.text.count("was not stored") == 1
    assert list((tmp_path / "lake").rglob("*")) in ([], [tmp_path / "lake" / ".staging"])
    assert list(store.elsewhere.iterdir()) == []
    assert list(index.files.objects.key_files()) == []


class NoManifests(MemoryStore):
    refuses = True

    def put_derived(self, key, data):
        if self.refuses and "/manifests/" in key:
            raise OSError(28, "No space left on device")
        super().put_derived(key, data)


def test_manifest_that_cannot_be_written_is_only_a_warning(caplog):
    store = NoManifests()
    store.refuses = False
    index, naive = new_index(store), Naive()
    index = commit(index, naive, 0, 1)
    store.refuses = True
    index = commit(index, naive, 1, 2)
    assert "will be rebuilt later" in caplog.text
    store.refuses = False
    index = commit(index, naive, 2, 3)
    assert wrong(open_index(KeyIndexFiles(index.files.objects, {}), index.manifest), naive) is None


def test_merge_that_finds_no_room_waits_and_leaves_nothing_behind(tmp_path, monkeypatch, caplog, small_tiers):
    index, naive = new_index(LocalStore(tmp_path)), Naive()
    index = commit(index, naive, 0, 1, 2)

    def full(folder: Path, *_: object) -> None:
        (folder / "half").write_bytes(b"half a run")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(key_index, "write_run", full)
        index = commit(index, naive, 1, 2, 3)
    assert "could not be merged" in caplog.text
    assert list(index.files.objects.store.staging().iterdir()) == []
    assert len(index.manifest.segments) == 2
    assert wrong(open_index(KeyIndexFiles(index.files.objects, {}), index.manifest), naive) is None
    index = commit(index, naive, 2, 4)
    assert len(index.manifest.segments) == 1
    assert wrong(index, naive) is None


def test_files_of_a_remote_store_are_copied_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_limit(monkeypatch, "files.small_bytes", 100)
    store = CountingStore(MemoryStore())
    index, naive = new_index(store), Naive()
    index = commit(index, naive, 0, *range(50))
    for _ in range(2):
        assert wrong(open_index(KeyIndexFiles(index.files.objects, {}), index.manifest), naive) is None
    copies = sorted(path.name for path in (tmp_path / "floodmark" / "keys").iterdir())
    assert copies == [index.manifest.segments[0].runs[0].name]
    assert len([key for key in store.keys_read if key.endswith(".run")]) == 1


def test_damaged_copy_of_a_remote_file_is_fetched_again(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_limit(monkeypatch, "files.small_bytes", 100)
    index, naive = new_index(), Naive()
    index = commit(index, naive, 0, *range(50))
    again = open_index(KeyIndexFiles(index.files.objects, {}), index.manifest)
    again.check()
    copy = tmp_path / "floodmark" / "keys" / index.manifest.segments[0].runs[0].name
    copy.write_bytes(bytes(copy.stat().st_size))
    harmed = open_index(KeyIndexFiles(index.files.objects, {}), index.manifest)
    harmed.check()
    assert wrong(harmed, naive) is None


def test_what_lost_races_left_is_swept_up_when_it_is_old(monkeypatch):
    set_limit(monkeypatch, "shelf.sweep_every", 2)
    index, naive = new_index(), Naive()
    objects = index.files.objects
    for key in (objects.key_file_key("left"), objects.key_manifest_key("0-left")):
        objects.store.put_derived(key, b"x")
    for number in range(2):
        index = commit(index, naive, number, number)
    assert [info.key for info in objects.key_files() if info.key.endswith("left")]
    set_limit(monkeypatch, "shelf.orphaned_after", -1.0)
    for number in range(2, 4):
        index = commit(index, naive, number, number)
    assert not [info.key for info in objects.key_files() if info.key.endswith("left")]
    assert "0-left" not in [info.key.rsplit("/", 1)[-1] for info in objects.key_manifests()]
    assert wrong(open_index(KeyIndexFiles(objects, {}), index.manifest), naive) is None


def test_find_probes_grow_with_the_logarithm_of_the_keys():
    probes = {}
    for size in (2_000, 200_000):
        index = new_index()
        keys = spread(size)
        batch = IndexRecords(0, keys, keys, np.zeros(size, np.int32), np.full(size, NO_ROW))
        index = index.with_deltas(size, [write_delta(staging(index), batch)])
        some: Hashes = keys.take(np.arange(0, size, size // 500))
        assert (index.find(some).offset >= 0).all()
        probes[size] = index.probes.values
    assert probes[200_000] - probes[2_000] <= 500 * 8

"""The key index is caught up when it lags and made again when it is gone or damaged; its answers are always right."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import BadIndex, UnreadableSlice
from floodmark.ledger import snapshot as snapshots
from floodmark.rows import key_index_files, key_index_loader
from floodmark.rows.key_entries import IndexRecords, write_delta
from floodmark.rows.key_index import open_index
from floodmark.rows.key_index_files import KeyIndexFiles, manifest_name
from floodmark.rows.key_index_loader import index_problems
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import Hashes
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from limits import set_limit
from profiles import examples
from rows.ledgers import ADD, COLUMNS, NEW, OLD, RETRACT, Ledger, Row, newest_block, table, wrong

rows = st.tuples(
    st.sampled_from([ADD, ADD, RETRACT, OLD, NEW]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)
)
slices = st.lists(rows, min_size=1, max_size=12)


def some_rows(seed: int, count: int = 8) -> list[Row]:
    dice = random.Random(seed)
    return [(dice.choice([ADD, RETRACT, OLD, NEW]), dice.randrange(3), dice.randrange(6), seed) for _ in range(count)]


@pytest.fixture
def ledger():
    return Ledger(CountingStore(MemoryStore()))


def key_objects(ledger: Ledger) -> dict[str, bytes]:
    """Everything that the key index has in the store."""
    objects = ledger.objects
    infos = [*objects.key_files(), *objects.key_manifests()]
    return {info.key: ledger.store.get(info.key) for info in infos}


# Catching up


def test_index_that_was_never_made_is_made_from_the_records(ledger):
    ledger.commit(some_rows(1), some_rows(2))
    snapshot, _ = ledger.commit(some_rows(3))
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None
    before = ledger.store.counts
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None
    data = [key for key in ledger.store.keys_read[before.reads :] if "/data/" in key]
    assert data == []


def test_index_of_the_newest_block_is_one_read(ledger):
    snapshot, _ = ledger.commit(some_rows(1))
    key_index_loader.load(snapshot, {})
    before = ledger.store.counts
    key_index_loader.load(snapshot, {})
    assert (ledger.store.counts - before).reads == 1
    assert (ledger.store.counts - before).lists == 0


def test_index_that_lags_reads_only_the_slices_it_lacks(ledger):
    snapshot, _ = ledger.commit(some_rows(1), some_rows(2), some_rows(3))
    key_index_loader.load(snapshot, {})
    snapshot, _ = ledger.commit(some_rows(4))
    before = ledger.store.counts
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None
    assert len([key for key in ledger.store.keys_read[before.reads :] if "/data/" in key]) == 1


def test_block_without_data_leaves_the_index_as_it_is(ledger):
    snapshot, _ = ledger.commit(some_rows(1))
    key_index_loader.load(snapshot, {})
    ledger.dataset.advance_watermark("2030-01-01")
    before = ledger.store.counts
    assert wrong(key_index_loader.load(ledger.snapshot(), {}), ledger) is None
    assert (ledger.store.counts - before).puts == 0


def test_index_that_was_just_made_is_found_in_the_cache(ledger):
    snapshot, records = ledger.commit(some_rows(1))
    cache: key_index_files.RunCache = {}
    first = key_index_loader.load(snapshot, cache)
    assert key_index_loader.load(snapshot, cache) is first
    snapshot, records = ledger.commit(some_rows(2))
    made = ledger.extended(first, snapshot, records)
    assert key_index_loader.load(snapshot, cache) is made
    assert wrong(made, ledger) is None


def test_dataset_without_records_has_an_empty_index(ledger):
    assert key_index_loader.load(ledger.snapshot(), {}).end == 0
    assert key_index_loader.rebuild(ledger.snapshot(), {}).end == 0
    assert key_objects(ledger) == {}


def test_append_dataset_has_no_key_index(ledger):
    with pytest.raises(ValueError, match="append"):
        key_index_loader.load(ledger.lake.create("plain").snapshot(), {})


@pytest.mark.parametrize("lookup", [None, ["area"]], ids=["key", "prefix"])
def test_records_are_read_in_groups_that_cut_slices_and_join_them(lookup, monkeypatch):
    set_limit(monkeypatch, "catch_up.group_rows", 7)
    set_limit(monkeypatch, "catch_up.batch_rows", 3)
    ledger = Ledger(MemoryStore(), lookup=lookup)
    snapshot, _ = ledger.commit(*(some_rows(n, n + 1) for n in range(12)))
    groups = list(key_index_loader.hash_records_since(snapshot, key_index_loader.load(snapshot, {}).manifest.shape, 0))
    assert max(map(len, groups)) <= 7 + 3
    assert len(groups) > 5
    assert wrong(key_index_loader.rebuild(snapshot, {}), ledger) is None


def test_columns_that_were_added_later_change_no_old_row(ledger):
    ledger.commit(some_rows(1))
    ledger.dataset.evolve({"note": "string"})
    snapshot, _ = ledger.commit(some_rows(2))
    assert snapshot.layout.data.names == [*COLUMNS, "note"]
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None


def test_slice_that_cannot_be_read_is_named(ledger):
    snapshot, _ = ledger.commit(some_rows(1))
    [key] = [info.key for info in ledger.store.list(f"{ledger.objects.folder}/data")]
    ledger.store.delete(key)
    with pytest.raises(UnreadableSlice, match="records 0 to 7"):
        key_index_loader.load(snapshot, {})


# Other readers and writers


def test_reader_of_an_old_head_leaves_the_index_of_a_newer_one_alone(ledger):
    old, _ = ledger.commit(some_rows(1))
    now_old = Ledger(ledger.store)
    for row in ledger.rows:
        now_old.note(row)
    new, _ = ledger.commit(some_rows(2))
    key_index_loader.load(new, {})
    for mend in (key_index_loader.load, key_index_loader.repair, key_index_loader.rebuild):
        assert wrong(mend(old, {}), now_old) is None
        before = ledger.store.counts
        assert wrong(key_index_loader.load(new, {}), ledger) is None
        assert [key for key in ledger.store.keys_read[before.reads :] if "/data/" in key] == []


def test_writers_that_catch_up_from_different_bases_do_not_disturb_each_other(ledger):
    heads = [ledger.commit(some_rows(n))[0] for n in range(4)]
    first = key_index_loader.load(heads[0], {})
    files = key_objects(ledger)
    ends = []
    for base in (heads[0], heads[1], heads[2]):
        for key in key_objects(ledger).keys() - files.keys():
            ledger.store.delete(key)
        key_index_loader.load(base, {})
        ends.append((key_index_loader.load(heads[3], {}), key_objects(ledger)))
    for _, there in ends:  # as if all of them had run at once: one name is one content
        for key, data in there.items():
            if "/files/" in key:
                assert all(other.get(key, data) == data for _, other in ends)
            ledger.store.put_derived(key, data)
    for found, _ in ends:
        assert wrong(found, ledger) is None
        assert wrong(open_index(KeyIndexFiles(ledger.objects, {}), found.manifest), ledger) is None
    assert first.end == 8


@pytest.mark.slow
def test_index_made_by_a_writer_is_the_one_made_from_the_records(ledger):
    cache: key_index_files.RunCache = {}
    current = key_index_loader.load(ledger.snapshot(), cache)
    for number in range(20):
        snapshot, records = ledger.commit(some_rows(number))
        current = ledger.extended(current, snapshot, records)
    assert wrong(current, ledger) is None
    assert list(index_problems(ledger.snapshot())) == []
    assert wrong(key_index_loader.rebuild(ledger.snapshot(), {}), ledger) is None


def test_rebuilding_removes_what_was_there(ledger):
    current = key_index_loader.load(ledger.snapshot(), {})
    for number in range(20):
        snapshot, records = ledger.commit(some_rows(number))
        current = ledger.extended(current, snapshot, records)
    ledger.store.put_derived(ledger.objects.key_file_key("left-by-somebody"), b"x")
    made = key_index_loader.rebuild(snapshot, {})
    objects = ledger.objects
    wanted = {objects.key_file_key(name) for name in made.manifest.names}
    assert set(key_objects(ledger)) == wanted | {objects.key_manifest_key(made.manifest.name)}


# Purged records


def test_index_made_after_a_purge_begins_where_the_records_do(ledger):
    for number in range(4):
        snapshot, _ = ledger.commit(some_rows(number))
    whole = key_index_loader.load(snapshot, {})
    ledger.dataset.purge(before=16)
    for mend in (key_index_loader.load, key_index_loader.rebuild):
        there = mend(ledger.snapshot(), {})
        entries = there.live_between()
        known = sorted(offset for offset, _ in ledger.naive.live.values() if offset >= 16)
        carried = len(ledger.naive.live) - len(known)
        assert carried > 0
        assert sorted(entries.offset.tolist()) == [*known, *range(32, 32 + carried)]
        assert [o for o in there.dead().tolist() if o >= 16] == [o for o in ledger.naive.dead(32) if o >= 16]
        assert there.end == 32 + carried
        assert list(index_problems(ledger.snapshot())) == []
    assert whole.manifest.start == 0
    assert key_index_loader.load(ledger.snapshot(), {}).manifest.start == 16


def test_index_that_ends_before_the_purge_is_not_caught_up_but_made_again(ledger):
    snapshot, _ = ledger.commit(some_rows(1))
    key_index_loader.load(snapshot, {})
    for number in range(2, 5):
        ledger.commit(some_rows(number))
    store, prefix = ledger.store, f"{ledger.objects.folder}/info/keys"
    old = {info.key: store.get(info.key) for info in list(store.list(prefix))}
    ledger.dataset.purge(before=16)
    for info in list(store.list(prefix)):
        store.delete(info.key)
    for key, data in old.items():
        store.put_derived(key, data)
    found = key_index_loader.load(ledger.snapshot(), {})
    assert (found.manifest.start, found.end) == (16, ledger.dataset.last_offset + 1)
    assert list(index_problems(ledger.snapshot())) == []


def test_purge_of_everything_leaves_an_index_that_takes_more(ledger):
    ledger.commit([(ADD, 5, n, 5) for n in range(4)] + [(RETRACT, 5, n, 5) for n in range(4)])
    ledger.dataset.purge(before=8)
    found = key_index_loader.rebuild(ledger.snapshot(), {})
    assert (found.end, found.live_count) == (8, 0)
    snapshot, _ = ledger.commit([(ADD, 5, 5, 5)])
    assert key_index_loader.load(snapshot, {}).find(*ledger.keys([(5, 5)])).offset.tolist() == [8]


# Damage


def flip(data: bytes, at: float) -> bytes:
    position = int(at * len(data))
    return data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :]


def zeros_from(data: bytes, at: float) -> bytes:
    return data[: int(at * len(data))].ljust(len(data), b"\0")


HARMS = {
    "flip": flip,
    "cut": lambda data, at: data[: int(at * len(data))],
    "zeros": zeros_from,
    "garbage": lambda data, at: b"garbage",
    "gone": lambda data, at: None,
}

commits = st.tuples(st.just("commit"), slices, st.booleans())
harms = st.tuples(st.just("harm"), st.sampled_from(sorted(HARMS)), st.integers(0, 99), st.floats(0, 0.999))
swaps = st.tuples(st.just("swap"), st.integers(0, 99), st.integers(0, 99))
returns = st.tuples(st.just("return"), st.integers(0, 99))


@pytest.mark.slow
@settings(max_examples=examples(13))
@given(
    st.lists(st.one_of(commits, commits, harms, swaps, returns), min_size=2, max_size=14),
    st.sampled_from([None, ["area"]]),
)
def test_whatever_becomes_of_the_files_the_answers_are_right(steps, lookup):
    """Commits that keep the index or not, and between them files that are damaged, lost, swapped or come back."""
    with pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "tiers.fan_out", 2)
        set_limit(patched, "tiers.smallest_tier", 8)
        set_limit(patched, "tiers.chunk", 10)
        set_limit(patched, "run.page_rows", 4)
        ledger = Ledger(MemoryStore(), lookup=lookup)
        past: dict[str, bytes] = {}
        for step in steps:
            harm_or_commit(ledger, step, past)
            past.update(key_objects(ledger))
            if ledger.naive.end:
                assert key_index_loader.with_repair(ledger.snapshot(), {}, lambda found: wrong(found, ledger)) is None
        harm_or_commit(ledger, ("commit", [(ADD, 0, 0, 9)], True), past)
        snapshot = ledger.snapshot()
        assert key_index_loader.with_repair(snapshot, {}, lambda found: wrong(found, ledger)) is None
        assert wrong(key_index_loader.rebuild(snapshot, {}), ledger) is None
        assert list(index_problems(snapshot)) == []


def harm_or_commit(ledger: Ledger, step: Sequence[object], past: dict[str, bytes]) -> None:
    there = key_objects(ledger)
    keys = sorted(there)
    match step:
        case "commit", list(records), is_kept:
            before = ledger.snapshot()
            snapshot, batches = ledger.commit(records)
            if is_kept:
                # Not mended first: as a writer that looked nothing up, or only in pages that are whole.
                try:
                    ledger.extended(key_index_loader.load(before, {}), snapshot, batches)
                except BadIndex:
                    ledger.extended(key_index_loader.repair(before, {}), snapshot, batches)
        case "harm", str(how), int(which), float(at) if keys:
            key = keys[which % len(keys)]
            harmed = HARMS[how](there[key], at)
            ledger.store.delete(key) if harmed is None else ledger.store.put_derived(key, harmed)
        case "swap", int(one), int(other) if keys:
            first, second = keys[one % len(keys)], keys[other % len(keys)]
            ledger.store.put_derived(first, there[second])
            ledger.store.put_derived(second, there[first])
        case "return", int(which) if past:
            key = sorted(past)[which % len(past)]
            ledger.store.put_derived(key, past[key])


@pytest.mark.parametrize("suffix", [".run", ".dead"])
@pytest.mark.parametrize("how", sorted(HARMS))
def test_damage_is_met_and_mended(ledger, suffix, how):
    for number in range(3):
        snapshot, _ = ledger.commit(some_rows(number))
        key_index_loader.load(snapshot, {})
    key = next(key for key in key_objects(ledger) if key.endswith(suffix))
    data = key_objects(ledger)[key]
    harmed = HARMS[how](data, 0.3)
    ledger.store.delete(key) if harmed is None else ledger.store.put_derived(key, harmed)
    with pytest.raises(BadIndex):
        key_index_loader.load(snapshot, {}).check()
    assert [problem.kind for problem in index_problems(snapshot)] == ["keys"]
    assert key_index_loader.with_repair(snapshot, {}, lambda found: wrong(found, ledger)) is None


def test_repair_begins_from_the_newest_index_that_is_whole(ledger):
    cache: key_index_files.RunCache = {}
    for number in range(5):
        snapshot, _ = ledger.commit(some_rows(number))
        key_index_loader.load(snapshot, cache)
    newest = key_index_loader.load(snapshot, {}).manifest.segments[0]
    ledger.store.delete(ledger.objects.key_file_key(newest.runs[0].name))
    before = ledger.store.counts
    assert wrong(key_index_loader.repair(snapshot, {}), ledger) is None
    assert len([key for key in ledger.store.keys_read[before.reads :] if "/data/" in key]) == 1


def test_damage_that_a_merge_meets_is_mended_by_the_next_who_asks(ledger, monkeypatch, caplog):
    snapshot, _ = ledger.commit(some_rows(1))
    key_index_loader.load(snapshot, {})
    key = next(key for key in key_objects(ledger) if key.endswith(".run"))
    ledger.store.put_derived(key, zeros_from(ledger.store.get(key), 0.2))
    set_limit(monkeypatch, "tiers.fan_out", 2)
    cache: key_index_files.RunCache = {}
    snapshot, records = ledger.commit(some_rows(2))
    broken = ledger.extended(key_index_loader.load(ledger_before(ledger, snapshot), cache), snapshot, records)
    assert "could not be extended" in caplog.text
    assert list(ledger.objects.key_manifests()) == []
    with pytest.raises(BadIndex):
        broken.dead()
    assert key_index_loader.with_repair(snapshot, cache, lambda found: wrong(found, ledger)) is None
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None


def test_damage_that_catching_up_meets_sends_it_further_back(ledger, monkeypatch, caplog):
    for number in range(2):
        snapshot, _ = ledger.commit(some_rows(number))
        key_index_loader.load(snapshot, {})
    key = max(info.key for info in ledger.objects.key_files() if info.key.endswith(".dead"))
    ledger.store.put_derived(key, flip(ledger.store.get(key), 0.95))
    snapshot, _ = ledger.commit(some_rows(2))
    set_limit(monkeypatch, "tiers.fan_out", 3)  # so that it merges, which reads what no lookup reads
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None
    assert "trying an older key index" in caplog.text


def ledger_before(ledger: Ledger, snapshot: snapshots.Snapshot) -> snapshots.Snapshot:
    """The snapshot one block before."""
    previous = snapshot.head_block.prev_block_hash
    assert previous is not None
    return snapshots.load_snapshot(ledger.objects, previous, {})


def test_index_of_other_columns_or_hashes_is_not_used(ledger, monkeypatch):
    snapshot, _ = ledger.commit(some_rows(1))
    key_index_loader.load(snapshot, {})
    name = manifest_name(newest_block(snapshot))
    key = ledger.objects.key_manifest_key(name)
    ledger.store.put_derived(key, ledger.store.get(key).replace(b'"hashing":1', b'"hashing":2'))
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None  # its checksum is wrong
    other = Ledger(MemoryStore(), lookup=["area"])
    monkeypatch.setattr(key_index_loader, "strategy_of", lambda state: other.strategy)
    found = key_index_loader.load(snapshot, {})
    assert found.manifest.shape.lookup == ("area",)


# What verify says


def test_verify_finds_nothing_wrong_with_a_right_index(ledger):
    ledger.commit(some_rows(1))
    key_index_loader.load(ledger.snapshot(), {})
    assert ledger.dataset.verify().ok


def falsified(records: IndexRecords, how: str) -> IndexRecords:
    if how == "row":
        return IndexRecords(records.start, records.key, records.key, records.op, records.old)
    if how == "key":
        return IndexRecords(records.start, records.row, records.row, records.op, records.old)
    if how == "op":
        return IndexRecords(records.start, records.key, records.row, np.zeros_like(records.op), records.old)
    return IndexRecords(records.start, records.key, records.row, records.op, np.full_like(records.old, -1))


@pytest.mark.parametrize(
    ("how", "said"),
    [("row", "hashes are wrong"), ("key", "entries"), ("op", "entries: has"), ("old", "dead offsets: lacks 0")],
)
def test_verify_finds_an_index_that_says_something_else_than_the_records(ledger, how, said):
    cache: key_index_files.RunCache = {}
    snapshot, records = ledger.commit([(ADD, 0, 1, 1), (ADD, 0, 2, 1)])
    current = ledger.extended(key_index_loader.load(ledger_before(ledger, snapshot), cache), snapshot, records)
    snapshot, [records] = ledger.commit([(OLD, 0, 1, 1), (NEW, 0, 1, 2), (RETRACT, 0, 2, 1), (ADD, 1, 1, 1)])
    addition = write_delta(ledger.store.staging(), falsified(records, how))
    current.extended(newest_block(snapshot), snapshot.next_offset, [addition])
    [problem] = ledger.dataset.verify().problems
    assert problem.kind == "keys"
    assert problem.object.endswith("info/keys/files/")
    assert said in problem.message
    assert "info/keys" in problem.message
    key_index_loader.rebuild(ledger.snapshot(), {})
    assert ledger.dataset.verify().ok


def test_local_index_survives_another_process_that_replaces_its_files(tmp_path):
    ledger = Ledger(LocalStore(tmp_path))
    cache: key_index_files.RunCache = {}
    snapshot, _ = ledger.commit(some_rows(1, 40))
    mine = key_index_loader.load(snapshot, cache)
    mine.live_between()
    key_index_loader.rebuild(snapshot, {})  # the same content, so the same names, in new files
    assert wrong(mine, ledger) is None
    assert wrong(key_index_loader.load(snapshot, {}), ledger) is None


def test_row_hashes_are_those_of_all_columns(ledger):
    snapshot, _ = ledger.commit([(ADD, 1, 2, 3)])
    [found] = [key_index_loader.load(snapshot, {}).find(*ledger.keys([(1, 2)])).row]
    assert isinstance(found, Hashes)
    assert found.same(hash_rows(table([(ADD, 1, 2, 3)]), COLUMNS)).all()

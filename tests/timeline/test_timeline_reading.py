"""Reading a timeline: settled pieces, what lies over them and the tail come out in one order, whatever the layout."""

from __future__ import annotations

import logging
import threading
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.errors import BadQuery, BadRange, NoTimeline, RecordsPurged, UnreadablePiece
from floodmark.storage.memory import CountingStore
from floodmark.timeline import piece_files, read
from floodmark.timeline import root as roots
from floodmark.timeline.commit import RootChange, publish
from floodmark.timeline.intake import take_next_slices
from floodmark.timeline.pieces import Partition, WaitingRun
from floodmark.timeline.root import LastUpdate
from limits import set_limit
from profiles import sample
from timeline.oracle import all_records, assert_right, expected
from timeline.timeline_worlds import BEGIN, DAY, HOUR, World, moment, template_folder, world
from waiting import PATIENCE


def take_in(dataset: Dataset) -> None:
    """Take in what is new and merge nothing: what comes first into a partition settles, all that follows waits."""
    timeline = dataset.parts.timeline.snapshot()
    snapshot, settings, objects = timeline.snapshot, timeline.settings, timeline.objects
    root = timeline.root
    layout = snapshot.require_layout("ticks")
    taken = take_next_slices(
        "ticks",
        snapshot,
        layout,
        settings,
        root.applied,
        lambda ranges: dataset.parts.rows.dead_within(snapshot, ranges),
        dataset.parts.ledger.runtime,
        root.version + 1,
    )
    assert taken is not None
    there = {p.start: p for p in roots.partitions(objects, root)}
    run = root.next_run
    changed = []
    for start, stretches in taken.partitions.items():
        old = there.get(start, Partition(start))
        settled = old.settled or stretches[0]
        rest = stretches if old.settled else stretches[1:]
        waiting = (*old.waiting, *(WaitingRun(run + i, 0, pieces) for i, pieces in enumerate(rest)))
        run += len(rest)
        changed.append(Partition(start, settled, waiting))
    change = RootChange(taken.end, taken.block, settings.digest, tuple(changed), LastUpdate(), run)
    assert publish(objects, root, change) is not None


def laid_over(folder: Path, kind: str = "append") -> World:
    """Three days of settled pieces, rows that wait over them, and a tail; with a key, some of them dead."""
    return _laid_over(kind).copied(folder)


@cache
def _laid_over(kind: str) -> World:
    made = world(template_folder(), kind=kind, mode="lazy")
    for number in range(9):
        low = BEGIN + number % 3 * DAY
        narrow = number >= 6
        times = made.times(low, low + (HOUR if narrow else DAY), 40 if narrow else 130)
        ids = None if kind != "upsert" or number < 3 else made.chance.sample(range(390), len(times))
        made.write(made.table(times, ids))
        if number in (2, 5, 7):
            take_in(made.dataset)
    return made


RANGES = [
    (None, None),
    (moment(BEGIN + 5 * HOUR), moment(BEGIN + DAY + HOUR)),
    (moment(BEGIN + DAY), moment(BEGIN + 2 * DAY)),
    (moment(BEGIN + 2 * DAY + 1), None),
    (None, moment(BEGIN + 30 * 60_000_000)),
    (moment(BEGIN - DAY), moment(BEGIN)),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "upsert", "ledger"])
def test_settled_waiting_and_tail_come_out_in_one_order(kind, tmp_path):
    made = laid_over(tmp_path, kind)
    pieces = made.dataset.timeline_pieces()
    assert all(p.settled and p.waiting for p in pieces.partitions)
    assert made.dataset.timeline_stats().behind > 0
    assert_right(made.dataset, *RANGES)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0, 5])
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_order_does_not_depend_on_how_much_is_merged_at_once(kind, apart, tmp_path, monkeypatch):
    made = laid_over(tmp_path, kind)
    set_limit(monkeypatch, "interleave.apart", apart)
    set_limit(monkeypatch, "timeline.most_rows", 20)
    set_limit(monkeypatch, "lying.kept_bytes", 4000)
    set_limit(monkeypatch, "read.unit_rows", 30)
    assert_right(made.dataset, *RANGES)


def test_records_that_died_after_they_were_taken_in_are_left_out(tmp_path):
    made = laid_over(tmp_path, "upsert")
    take_in(made.dataset)
    made.dataset.delete([{"id": i} for i in range(0, 390, 3)])
    made.write(made.table([BEGIN + 7 * HOUR] * 20, range(1, 61, 3)))
    assert_right(made.dataset, *RANGES)


def test_the_dead_among_rows_that_nothing_lies_over_are_left_out(tmp_path):
    made = world(tmp_path, kind="upsert", mode="lazy")
    made.write(made.table([BEGIN + i * HOUR // 10 for i in range(200)]))
    take_in(made.dataset)
    made.dataset.delete([{"id": i} for i in range(0, 200, 3)])
    assert not any(p.waiting for p in made.dataset.timeline_pieces().partitions)
    assert made.dataset.timeline_batches().read_all().num_rows == 133
    assert_right(made.dataset, *RANGES)


def test_purged_records_are_left_out_though_the_timeline_still_has_copies(tmp_path, monkeypatch):
    made = world(tmp_path, kind="upsert", mode="lazy")
    for day in range(3):
        made.write(made.table(made.times(BEGIN + day * DAY, BEGIN + (day + 1) * DAY, 100)))
    made.dataset.delete([{"id": i} for i in range(0, 200, 7)])
    take_in(made.dataset)
    monkeypatch.setattr("floodmark.timeline.update.drop_purged", lambda *_: None)  # as if it had been cut short
    made.dataset.purge(200)
    purged = made.dataset.snapshot().purged_before
    assert any(p.offset_min < purged for part in made.dataset.timeline_pieces().partitions for p in part.pieces)
    assert_right(made.dataset, *RANGES)


def test_pieces_that_are_purged_as_a_whole_are_not_looked_for(tmp_path, monkeypatch, caplog):
    made = world(tmp_path, mode="lazy")
    for day in range(3):
        made.write(made.table([BEGIN + day * DAY + i * HOUR // 10 for i in range(100)]))
    take_in(made.dataset)
    monkeypatch.setattr("floodmark.timeline.update.drop_purged", lambda *_: None)  # as if it had been cut short
    made.dataset.purge(200)
    assert_right(made.dataset, *RANGES)
    assert "damaged" not in caplog.text


def test_a_new_column_is_null_in_older_pieces(tmp_path):
    made = laid_over(tmp_path)
    made.dataset.evolve({"more": "string"})
    made.columns = ("more",)
    made.write(made.table(made.times(BEGIN, BEGIN + DAY, 50)))
    take_in(made.dataset)
    made.write(made.table(made.times(BEGIN, BEGIN + DAY, 50)))
    assert_right(made.dataset, *RANGES)


def test_purged_records_are_not_read(tmp_path):
    made = laid_over(tmp_path)
    made.dataset.purge(300)
    assert expected(made.dataset).num_rows < 660
    assert_right(made.dataset, *RANGES)


# Columns


def test_columns_can_be_chosen_and_system_columns_among_them(tmp_path):
    dataset = laid_over(tmp_path, "upsert").dataset
    right = expected(dataset)
    for columns in (["v"], ["s", "offset"], ["at", "id"], ["id", "v", "s", "at", "offset"]):
        assert dataset.timeline_batches(columns=columns).read_all().to_pylist() == right.select(columns).to_pylist()
    system = dataset.timeline_batches(columns=["op", "offset", "system_time"]).read_all()
    records = all_records(dataset).to_pylist()
    assert system.to_pylist() == [
        {name: records[offset][name] for name in system.column_names} for offset in right["offset"].to_pylist()
    ]
    assert dataset.timeline_batches().schema.names == ["id", "at", "v", "s"]


def test_without_columns_rows_are_counted(tmp_path):
    dataset = laid_over(tmp_path, "upsert").dataset
    assert dataset.timeline_batches(columns=[]).read_all().num_rows == dataset.count()


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(BadQuery, match="no column 'w'"):
        laid_over(tmp_path).dataset.timeline_batches(columns=["w"])


def test_computed_columns_stand_beside_their_rows(tmp_path):
    @fm.udf(returns=pa.int64(), version="1")
    def half(id):  # noqa: A002  as the column is called
        return id // 2

    dataset = laid_over(tmp_path, "upsert").dataset
    dataset.add_column("half", half)
    dataset.backfill("half")
    dataset.write(pa.table({"id": [9999], "at": pa.array([moment(BEGIN)]), "v": [0.0], "s": [""]}))
    table = dataset.timeline_batches().read_all()
    assert table.column_names == ["id", "at", "v", "s", "half"]
    assert table["id"].to_pylist() == expected(dataset)["id"].to_pylist()
    assert table["half"].to_pylist() == [None if i == 9999 else i // 2 for i in table["id"].to_pylist()]
    assert dataset.timeline_batches(columns=["half"]).read_all()["half"].equals(table["half"])


# Only what is needed


def test_a_range_reads_only_the_pieces_that_can_match(tmp_path, monkeypatch):
    made = world(tmp_path, mode="lazy", unit="hour")
    made.write(made.table([BEGIN + i * 60_000_000 for i in range(24 * 60)]))
    take_in(made.dataset)
    store = CountingStore(made.store)
    monkeypatch.setattr(store, "local_path", lambda _: None)  # as in a bucket: whatever is read is asked of the store
    dataset = fm.Lake(store)["ticks"]
    read_before = store.counts.bytes_read
    assert dataset.timeline_batches().read_all().num_rows == 24 * 60
    whole = store.counts.bytes_read - read_before
    seen = []
    decode = piece_files.PieceFiles.read
    monkeypatch.setattr(
        piece_files.PieceFiles, "read", lambda self, p, columns: seen.append(p) or decode(self, p, columns)
    )
    hour = moment(BEGIN + 3 * HOUR), moment(BEGIN + 4 * HOUR)
    read_before = store.counts.bytes_read
    assert dataset.timeline_batches(*hour).read_all().num_rows == 60
    assert store.counts.bytes_read - read_before < whole
    assert sum(p.rows for p in seen) == 60


def test_disjoint_pieces_without_dead_read_no_column_but_those_asked_for(tmp_path, monkeypatch):
    made = world(tmp_path, mode="lazy")
    made.write(made.table([BEGIN + i * 60_000_000 for i in range(500)]))
    take_in(made.dataset)
    asked = []
    decode = piece_files.PieceFiles.read
    monkeypatch.setattr(piece_files.PieceFiles, "read", lambda self, p, c: asked.append(tuple(c)) or decode(self, p, c))
    assert made.dataset.timeline_batches(columns=["v"]).read_all().num_rows == 500
    assert set(asked) == {("v",)}


# Damage


def damage(path: Path, at: float = 0.3) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    path.chmod(0o644)
    path.write_bytes(data)


def own_files(made: World) -> list[Path]:
    return sorted((made.folder / made.dataset.parts.ledger.objects.folder / "info/timeline/files").iterdir())


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("at", [0.1, 0.5, 0.95])
def test_a_damaged_file_of_the_timeline_is_made_up_for_by_the_ledger(at, tmp_path, caplog, monkeypatch):
    set_limit(monkeypatch, "read.unit_rows", 50)  # so that rows were handed out before it is found
    made = laid_over(tmp_path, "upsert")
    for path in sample(own_files(made), 2):
        right = path.read_bytes()
        damage(path, at)
        with caplog.at_level(logging.WARNING):
            assert_right(made.dataset)
        assert "read from the ledger" in caplog.text
        caplog.clear()
        path.write_bytes(right)


@pytest.mark.slow
def test_a_file_of_the_timeline_that_is_gone_is_made_up_for_by_the_ledger(tmp_path, caplog):
    made = laid_over(tmp_path, "upsert")
    own_files(made)[2].unlink()
    assert_right(made.dataset, *RANGES)
    assert "read from the ledger" in caplog.text


def test_a_manifest_that_is_gone_is_made_up_for_by_the_ledger(tmp_path, caplog):
    made = laid_over(tmp_path)
    for path in (made.folder / made.dataset.parts.ledger.objects.folder / "info/timeline/manifests").iterdir():
        path.unlink()
    assert_right(made.dataset)
    assert "read from the ledger" in caplog.text


def test_a_damaged_slice_of_the_ledger_is_said_to_be(tmp_path):
    made = laid_over(tmp_path)
    for path in (made.folder / made.dataset.parts.ledger.objects.folder / "data").iterdir():
        damage(path, 0.999)
    with pytest.raises(UnreadablePiece, match="data/"):
        made.dataset.timeline_batches().read_all()


def test_a_purge_while_rows_are_read_is_said_to_be_one(tmp_path, monkeypatch):
    set_limit(monkeypatch, "read.unit_rows", 1)
    made = laid_over(tmp_path, "upsert")
    with made.dataset.timeline_batches() as reader:
        reader.read_next_batch()
        fm.Lake(made.folder)["ticks"].purge(700)
        with pytest.raises(RecordsPurged, match="while they were read"):
            reader.read_all()


# Readers and writers


def test_a_reader_keeps_its_snapshot_while_others_write(tmp_path, monkeypatch):
    set_limit(monkeypatch, "read.unit_rows", 1)
    made = laid_over(tmp_path, "upsert")
    wanted = expected(made.dataset)["offset"].to_pylist()
    with made.dataset.timeline_batches(columns=["offset"]) as reader:
        first = reader.read_next_batch()
        made.write(made.table([BEGIN + i * HOUR for i in range(60)], range(60)))
        take_in(made.dataset)
        rest = reader.read_all()
    assert [*first.column(0).to_pylist(), *rest.column(0).to_pylist()] == wanted
    assert_right(made.dataset)


def test_a_reader_that_is_left_in_the_middle_leaves_no_thread(tmp_path, monkeypatch):
    set_limit(monkeypatch, "read.unit_rows", 1)
    made = laid_over(tmp_path)
    before = set(threading.enumerate())
    reader = made.dataset.timeline_batches()
    reader.read_next_batch()
    reader.close()
    del reader
    for thread in set(threading.enumerate()) - before:  # nobody waits for them, so they may be about to end
        thread.join(PATIENCE)
        assert not thread.is_alive()


# What is refused


def test_a_dataset_without_a_timeline_says_how_to_have_one(tmp_path):
    plain = fm.Lake(tmp_path).create("plain", event_time="at")
    for ask in (plain.timeline_batches, plain.timeline_stats, plain.timeline_root, plain.timeline_pieces):
        with pytest.raises(NoTimeline, match="has no timeline") as caught:
            ask()
        assert "partition_by" in caught.value.hint


def test_a_range_that_is_none_is_refused(tmp_path):
    with pytest.raises(BadRange, match="ends before it starts"):
        laid_over(tmp_path).dataset.timeline_batches("2026-11-02", "2026-11-01")


# Batches


def test_small_pieces_are_handed_out_together(tmp_path):
    made = world(tmp_path, mode="lazy", unit="hour")
    made.write(made.table([BEGIN + i * HOUR // 2 for i in range(300)]))
    take_in(made.dataset)
    assert len(made.dataset.timeline_pieces().partitions) == 150
    assert [batch.num_rows for batch in made.dataset.timeline_batches()] == [300]
    assert_right(made.dataset)


def test_batches_are_no_larger_than_they_need_to_be_and_large_ones_are_not_copied():
    large = pa.table({"n": pa.array(range(read.READ_BATCH_ROWS))})
    small = pa.table({"n": pa.array(range(read.READ_BATCH_ROWS // 4))})
    heavy = pa.table({"n": pa.array(range(3)), "t": pa.array(["x" * (read.BATCH_BYTES // 2)] * 3)})
    found = list(read._batches(pa.concat_tables([small, small, large, *[small] * 6])))
    assert [b.num_rows for b in found] == [2 * small.num_rows, large.num_rows, 4 * small.num_rows, 2 * small.num_rows]
    address = large["n"].chunk(0).buffers()[1].address
    assert found[1].column(0).buffers()[1].address == address
    assert [b.num_rows for b in read._batches(pa.concat_tables([heavy, heavy]))] == [3, 3]
    assert list(read._batches(small.slice(0, 0))) == []

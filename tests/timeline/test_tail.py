"""The tail: what the timeline has not taken in is read from the ledger, in order, and no more of it than needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.storage.memory import CountingStore
from floodmark.timeline import interleave
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.piece_files import PieceFiles, tail
from floodmark.timeline.sections import Range
from ledger.other_writers import replace_slice
from limits import set_limit
from profiles import IN_FULL
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, HOUR, TIMES, moment, world


def filled(folder, rounds=6, **shape):
    """A lazy dataset that was written to a few times."""
    made = world(folder, mode="lazy", **shape)
    for number in range(rounds):
        low = made.shape.begin + number % 3 * made.shape.partition
        made.write(made.table(made.times(low, low + made.shape.partition, 70)))
    return made


KINDS = ["append", "upsert", "ledger"]
EACH_TIME = [(time, KINDS[number % 3]) for number, time in enumerate(TIMES)]
"""Each type of an event time with one kind of dataset; all pairs under `soak`."""


@pytest.mark.soak
@pytest.mark.parametrize(("time", "kind"), list(product(TIMES, KINDS)) if IN_FULL else EACH_TIME)
def test_records_that_are_in_no_piece_are_read_in_order(time, kind, tmp_path):
    made = filled(tmp_path, time=time, kind=kind)
    assert made.dataset.timeline_root().applied == 0
    assert_right(made.dataset, (moment(BEGIN + DAY), moment(BEGIN + DAY + HOUR)), (None, moment(BEGIN + 2 * DAY)))


def test_corrected_and_retracted_rows_are_left_out(tmp_path):
    made = filled(tmp_path, kind="upsert")
    made.write(made.table([BEGIN + HOUR * i for i in range(50)], ids=range(0, 100, 2)))
    made.dataset.delete([{"id": i} for i in range(1, 60, 2)])
    assert_right(made.dataset)


@pytest.fixture
def reads(monkeypatch):
    """The pieces that are read, in order."""
    found = []
    read = PieceFiles._readable
    monkeypatch.setattr(
        PieceFiles, "_readable", lambda self, piece, *more: found.append(piece) or read(self, piece, *more)
    )
    return found


def test_a_large_tail_in_no_order_is_decoded_twice_at_most(tmp_path, monkeypatch, reads):
    made = filled(tmp_path, kind="upsert")
    set_limit(monkeypatch, "timeline.most_rows", 16)
    set_limit(monkeypatch, "lying.kept_bytes", 3000)
    spans = made.dataset.parts.timeline.reading(None, None, None).spans
    assert len(spans) > 20
    assert any(sum(piece in span.over for span in spans) > 3 for piece in {p for s in spans for p in s.over})
    reads.clear()
    assert_right(made.dataset)
    assert max(reads.count(piece) for piece in set(reads)) <= 2  # once for its places, once for its rows
    assert not [path for path in made.store.staging().rglob("*") if path.is_file()]


def test_where_no_file_can_be_written_a_large_tail_is_read_all_the_same(tmp_path, monkeypatch, reads, caplog):
    made = filled(tmp_path, kind="upsert")
    set_limit(monkeypatch, "timeline.most_rows", 16)
    set_limit(monkeypatch, "lying.kept_bytes", 3000)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(interleave, "spill", full)
    assert_right(made.dataset)
    assert caplog.text.count("No space left on device") == 1
    assert max(reads.count(piece) for piece in set(reads)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_span_is_bounded_however_skewed_the_times_are(kind, tmp_path, monkeypatch):
    made = world(tmp_path, mode="lazy", kind=kind)
    busy = BEGIN + 5 * HOUR
    for _ in range(3):  # nine of ten rows have one time
        times = made.times(BEGIN, BEGIN + 3 * DAY, 400)
        made.write(made.table([busy if i % 10 else time for i, time in enumerate(times)]))
    set_limit(monkeypatch, "timeline.most_rows", 50)
    reading = made.dataset.parts.timeline.reading(None, None, None)
    rows = [replace(reading, spans=(span,)).to_reader().read_all().num_rows for span in reading.spans]
    assert sum(rows) == 1200
    assert max(rows) <= 100
    assert_right(made.dataset)


def test_when_only_some_pieces_are_looked_at_all_rows_are_still_in_one_span_each(tmp_path, monkeypatch):
    made = filled(tmp_path, kind="upsert")
    set_limit(monkeypatch, "timeline.most_rows", 16)
    set_limit(monkeypatch, "spans.looked_at_rows", 100)
    assert_right(made.dataset)


def pieces(dataset, since=0):
    snapshot = dataset.snapshot()
    return tail(snapshot, snapshot.layout, since, NO_OFFSETS, Range())


@pytest.mark.parametrize("time", TIMES)
def test_bounds_of_a_row_group_hold_all_of_its_rows(time, tmp_path):
    for begin in (BEGIN, -BEGIN):
        dataset = filled(tmp_path / str(begin), rounds=3, time=time, kind="upsert", begin=begin).dataset
        snapshot = dataset.snapshot()
        files = PieceFiles(TimelineObjects(snapshot.objects), snapshot.layout)
        found = pieces(dataset)
        assert sum(p.rows for p in found) == snapshot.next_offset
        for piece in found:
            times, offsets = files.places(piece)
            assert (int(times.min()), int(times.max())) == (piece.first.time, piece.last.time)
            assert (int(offsets.min()), int(offsets.max())) == (piece.offset_min, piece.offset_max)
            assert (piece.first.offset, piece.last.offset) == (piece.offset_min, piece.offset_max)


def test_bounds_are_looked_up_where_a_file_has_no_statistics(tmp_path):
    made = filled(tmp_path, rounds=1)
    objects, before = made.dataset.snapshot().objects, pieces(made.dataset)
    [path] = (tmp_path / objects.folder / "data").iterdir()
    other = tmp_path / "other"
    pq.write_table(pq.read_table(path), other, write_statistics=False, row_group_size=before[0].rows)
    replace_slice(objects, other)
    assert [(p.first, p.last) for p in pieces(fm.Lake(made.store)["ticks"])] == [(p.first, p.last) for p in before]


def test_slices_outside_of_a_range_are_not_opened(tmp_path, monkeypatch):
    made = filled(tmp_path)
    store = CountingStore(made.store)
    monkeypatch.setattr(store, "local_path", lambda _: None)  # as in a bucket: whatever is read is asked of the store
    dataset = fm.Lake(store)["ticks"]
    day = moment(BEGIN + DAY), moment(BEGIN + 2 * DAY)
    assert dataset.timeline_batches(*day).read_all().num_rows == 140
    assert len({key for key in store.keys_read if "/data/" in key}) == 2  # of six slices
    assert_right(dataset, day)


def test_only_records_from_an_offset_on_are_in_the_tail(tmp_path):
    dataset = filled(tmp_path).dataset
    assert sum(p.rows for p in pieces(dataset, since=140)) == dataset.snapshot().next_offset - 140
    assert min(p.offset_min for p in pieces(dataset, since=140)) == 140


def test_purged_records_are_not_in_the_tail(tmp_path):
    dataset = filled(tmp_path).dataset
    dataset.purge(140)
    assert min(p.offset_min for p in pieces(dataset)) == 140
    assert_right(dataset)


def test_an_empty_dataset_has_an_empty_timeline(tmp_path):
    made = world(tmp_path, mode="lazy")
    made.lake.create("empty", event_time="at", partition_by="day", schema={"at": pa.timestamp("us")})
    empty = made.lake["empty"]
    assert empty.timeline_batches().read_all().num_rows == 0
    assert empty.timeline_batches().schema == pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)])
    assert empty.timeline_stats().partitions == ()

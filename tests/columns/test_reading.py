"""Computed columns read like any other: by offset, null where nothing was computed or what was is hidden."""

from __future__ import annotations

from datetime import time
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from columns.column_worlds import ROWS, add, column, definition, objects_at, values_of
from columns.reading_worlds import damage, fill_half, put, shown
from floodmark.columns import catalog as catalogs
from floodmark.columns import column_file
from floodmark.columns import definition as define
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.snapshot import make_column_values
from floodmark.errors import BadColumnName, UnreadableColumn
from floodmark.storage.memory import MemoryStore
from limits import set_limit
from profiles import examples
from rows.current_worlds import lived_in, people

END = 5 * ROWS
OFFSETS = st.sets(st.integers(0, END - 1)).map(sorted)


@st.composite
def columns(draw):
    """Segments inside of fragments, some values of which are null."""
    pieces = {}
    for number in range(END // ROWS):
        bounds = sorted(draw(st.sets(st.integers(0, ROWS), max_size=4)))
        for a, b in pairwise(bounds):
            if draw(st.booleans()):
                first = number * ROWS + a
                pieces[first] = [None if draw(st.integers(0, 5)) == 0 else float(first + i) for i in range(b - a)]
    return pieces


def small_row_groups(patch: pytest.MonkeyPatch) -> None:
    set_limit(patch, "column_file.row_group_rows", 3)


@settings(max_examples=examples(20))
@given(columns(), st.sets(st.integers(0, END - 1)), st.lists(OFFSETS, min_size=1, max_size=4))
def test_values_at_any_offsets_are_what_the_files_say(tmp_path_factory, pieces, hidden, asked):
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch)
        objects = objects_at("memory", tmp_path_factory.getbasetemp())
        add(objects, "v")
        put(objects, "v", pieces, hidden)
        found = {o: v for o, v in values_of(objects, "v").items() if o not in hidden}
        beside = make_column_values(objects.dataset, catalogs.load(objects))
        reading = beside.open(["v"])
        for offsets in asked:
            expected = [found.get(o) for o in offsets]
            assert beside.open(["v"]).take(np.array(offsets, np.int64))[0].to_pylist() == expected
        # One reader goes on from batch to batch.
        for offsets in np.array_split(np.array(asked[0], np.int64), 3):
            assert reading.take(offsets)[0].to_pylist() == [found.get(int(o)) for o in offsets]
        for span in (range(END), range(3, 17), range(9, 9), range(END - 2, END + 9)):
            assert beside.open(["v"]).take(span)[0].to_pylist() == [found.get(o) for o in span]


def test_row_group_is_decoded_once_by_a_reader_that_goes_forward(tmp_path, monkeypatch):
    small_row_groups(monkeypatch)
    objects = objects_at("folder", tmp_path)
    add(objects, "v")
    put(objects, "v", {0: [float(i) for i in range(8)], 8: [float(i) for i in range(8, 16)]}, set())
    decoded = []
    real = column_file.SegmentFile.read
    monkeypatch.setattr(
        column_file.SegmentFile, "read", lambda file, start, end: decoded.append((start, end)) or real(file, start, end)
    )
    reading = make_column_values(objects.dataset, catalogs.load(objects)).open(["v"])
    got = [v for at in range(0, 16, 2) for v in reading.take(range(at, at + 2))[0].to_pylist()]
    assert got == [float(i) for i in range(16)]
    assert decoded == [(0, 3), (3, 6), (6, 8), (8, 11), (11, 14), (14, 16)]
    decoded.clear()
    make_column_values(objects.dataset, catalogs.load(objects)).open(["v"]).take(np.array([5, 12]))
    assert decoded == [(3, 6), (11, 14)]


def test_row_group_that_arrow_reads_in_chunks_is_not_joined(tmp_path, monkeypatch):
    """Text of more than 2 GB does not fit into one array."""
    objects = objects_at("folder", tmp_path)
    add(objects, "v")
    put(objects, "v", {0: [float(i) for i in range(8)]}, {6})
    real = column_file.SegmentFile.read

    def in_chunks(file, start, end):
        values = real(file, start, end)
        return pa.chunked_array([values.slice(a, b - a).chunk(0) for a, b in ((0, 3), (3, 4), (4, 8))] + [[]], "double")

    monkeypatch.setattr(column_file.SegmentFile, "read", in_chunks)
    reading = make_column_values(objects.dataset, catalogs.load(objects)).open(["v"])
    taken = [reading.take(np.array(offsets))[0] for offsets in ([1, 2, 3], [4, 6], [7])]
    assert [v for part in taken for v in part.to_pylist()] == [1.0, 2.0, 3.0, 4.0, None, 7.0]
    [whole] = make_column_values(objects.dataset, catalogs.load(objects)).open(["v"]).take(range(6))
    assert [len(chunk) for chunk in whole.chunks] == [3, 1, 2]


def test_dataset_without_computed_columns_has_nothing_beside_it(tmp_path):
    objects = objects_at("folder", tmp_path)
    assert make_column_values(objects.dataset, catalogs.load(objects)) is None


def test_column_that_was_never_computed_is_null(tmp_path):
    objects = objects_at("folder", tmp_path)
    add(objects, "v")
    beside = make_column_values(objects.dataset, catalogs.load(objects))
    assert beside.schema == pa.schema([pa.field("v", pa.float64())])
    assert beside.open(["v"]).take(range(3))[0] == pa.chunked_array([pa.nulls(3, pa.float64())])


TYPES = [
    (pa.string(), ["a", None, "ü"]),
    (pa.bool_(), [True, None, False]),
    (pa.time64("us"), [time(1, 2, 3), None, time(0)]),
    (pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal("-3.00")]),
    (pa.list_(pa.int32()), [[1, 2], None, []]),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
    (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": "a"}, None, {"x": None, "y": None}]),
    (pa.binary(), [b"\0", None, b""]),
]


@pytest.mark.parametrize(("data_type", "values"), TYPES, ids=[str(t) for t, _ in TYPES])
def test_values_of_every_type_have_gaps(tmp_path, data_type, values):
    objects = objects_at("folder", tmp_path)
    define.add(objects, definition("v", data_type=data_type), ("pixels",), ROWS)
    put(objects, "v", {2: values}, {4})
    beside = make_column_values(objects.dataset, catalogs.load(objects))
    [taken] = beside.open(["v"]).take(np.array([0, 2, 3, 4, 9]))
    assert taken.type == data_type
    assert taken.to_pylist() == [None, values[0], None, None, None]
    assert beside.open(["v"]).take(range(1, 4))[0].to_pylist() == [None, values[0], None]


@pytest.fixture(params=["folder", "memory"])
def dataset(request, tmp_path):
    """Rows of which many are dead, with a column that is computed for the older records and hidden for some."""
    place = tmp_path / "lake" if request.param == "folder" else MemoryStore()
    made = fm.Lake(place, runtime=fm.Runtime(fold_at=None)).create("p", key=["id"], merge="upsert")
    lived_in(made, seed=5, writes=5)
    fill_half(made)
    return made


@pytest.mark.slow
def test_every_way_to_read_shows_computed_columns(dataset):
    rows = shown(dataset)
    assert {type(r["w"]) for r in rows} == {float, type(None)}
    for _ in range(2):
        assert dataset.to_arrow().to_pylist() == rows
        assert dataset.to_batches().read_all().to_pylist() == rows
        assert dataset.to_arrow(columns=["w"]).column("w").to_pylist() == [r["w"] for r in rows]
        assert dataset.to_arrow(as_of=50).to_pylist() == shown(dataset, 51)
        large = [r for r in rows if r["w"] is not None and r["w"] > 20 and r["id"] < 30]
        assert large
        assert dataset.to_batches(where="w > 20 and id < 30").read_all().to_pylist() == large
        both = (pc.field("w") > 20) & (pc.field("id") < 30)
        assert dataset.to_batches(where=both).read_all().to_pylist() == large
        ids = [r["id"] for r in rows][:7]
        assert dataset.get(ids).to_pylist() == rows[:7]
        dataset.fold()


def test_sql_shows_computed_columns(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    dataset = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=5, writes=5)
    fill_half(dataset)
    rows = shown(dataset)
    assert lake.sql("select * from p").to_pylist() == rows
    there = [r["w"] for r in rows if r["w"] is not None]
    query = "select sum(w) s, count(w) n, count(*) c from p join (select id, max(w) m from p group by id) using (id)"
    assert lake.sql(query).to_pylist() == [{"s": sum(there), "n": len(there), "c": len(rows)}]


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 60, -20])
def test_damaged_file_says_which_records_and_what_to_do(dataset, at):
    rows = shown(dataset)
    key = damage(dataset, at)
    reads = [
        dataset.to_arrow,
        lambda: dataset.to_batches().read_all(),
        lambda: dataset.to_batches(where="w > 3").read_all(),
        lambda: dataset.to_batches(where=pc.field("w") > 3).read_all(),
    ]
    for reading in reads:
        with pytest.raises(UnreadableColumn, match="offsets 8–15") as told:
            reading()
        assert (told.value.column, told.value.key, told.value.start, told.value.end) == ("w", key, 8, 16)
        assert "backfill" in told.value.hint
    assert dataset.to_arrow(columns=["id", "v"]).num_rows == len(rows)
    assert dataset.to_arrow(as_of=5).to_pylist() == [
        {"id": o, "v": f"first{o}", "w": None if o % 5 == 0 else float(o)} for o in range(6)
    ]


def test_sql_says_the_same_of_a_damaged_file(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(40), "a"))
    fill_half(dataset)
    damage(dataset)
    with pytest.raises(UnreadableColumn, match="offsets 8–15"):
        lake.sql("select sum(w) from p")
    assert lake.sql("select count(v) c from p").to_pylist() == [{"c": 40}]


def test_missing_manifest_is_told_when_the_column_is_asked_for(dataset):
    objects = ColumnObjects(dataset.snapshot().objects)
    objects.store.delete(objects.manifest_key(column(objects, "w").manifest))
    for reading in (dataset.to_arrow, lambda: dataset.to_batches(where="w > 1").read_all()):
        with pytest.raises(UnreadableColumn, match="is missing"):
            reading()
    assert dataset.to_arrow(columns=["id"]).num_rows


def test_data_column_that_took_the_name_is_refused(dataset):
    dataset.parts.ledger.evolve({"W": "int64"})  # as another release of Floodmark might
    with pytest.raises(BadColumnName, match="'w'"):
        dataset.to_arrow()
    assert dataset.changes_arrow().num_rows

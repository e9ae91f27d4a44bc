"""Values of any width: what is in memory, in an array or in a row group at once goes by bytes, not only by rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.columns.tasks import World, world

import floodmark as fm
from floodmark.columns import assemble as differing
from floodmark.columns import task as applying
from floodmark.columns import value_sources
from floodmark.columns.assemble import AssembleTask, assemble, store_segment
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR, OffsetValues
from floodmark.columns.column_file import SegmentFile, open_segment, read_values, write_segment
from floodmark.columns.plan import TargetFile
from floodmark.derive.checkpoint_key import range_key
from floodmark.engine.rounds import rows_that_fit
from floodmark.errors import CheckpointCoverageError
from limits import set_limit
from profiles import examples

ROWS = 60


@fm.udf(returns="string", version="1")
def text(n: pa.Array) -> pa.Array:
    return n.cast(pa.string())


def field() -> pa.Field:
    return pa.field("y", pa.string(), metadata={b"PARQUET:field_id": b"1"})


def group_rows(found: World, segment: Any) -> list[int]:
    with found.work.objects.store.open(segment.key(found.work.objects)) as file:
        metadata = pq.read_metadata(file)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def values_of(found: World, segment: Any) -> list[str | None]:
    answer: list[str | None] = read_values(
        found.work.objects, segment, found.column_snapshot.catalog.column("y").field, segment.start, segment.end
    ).to_pylist()
    return answer


# What a call is handed


class Reading:
    """Inputs of these widths, in batches of some rows; it counts what was asked of it."""

    def __init__(self, widths: list[int], batch_rows: int) -> None:
        self.values = [bytes([n % 256]) * width for n, width in enumerate(widths)]
        self.batch_rows = batch_rows
        self.pulled = 0

    def rows(self, wanted: set[int]) -> applying._RowStream:
        work: Any = SimpleNamespace(inputs=("x",), offset_name="offset", read=lambda *_: self.batches())
        task: Any = SimpleNamespace(base=0, share=SimpleNamespace(end=len(self.values)), selection=None)
        return applying._RowStream(work, task, BitMap(wanted))

    def batches(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(self.values), self.batch_rows):
            part = self.values[first : first + self.batch_rows]
            self.pulled += sum(map(len, part))
            offsets = np.arange(first, first + len(part))
            yield pa.record_batch({"x": pa.array(part, pa.binary()), "offset": pa.array(offsets)})


def test_no_more_is_read_than_a_call_may_be_handed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "apply.call_bytes", 10000)
    reading = Reading([1000] * 200, 4)
    batch, _ = reading.rows(set(range(200))).take(200)
    assert 5 <= batch.num_rows < 10
    assert reading.pulled <= 12_000


@settings(max_examples=examples(33))
@given(
    st.lists(st.sampled_from([0, 3, 90, 700]), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 50),
    st.sets(st.integers(0, 39), min_size=1),
)
def test_calls_get_all_rows_in_order_and_few_bytes_at_a_time(
    widths: list[int], batch_rows: int, asked: int, chosen: set[int]
) -> None:
    wanted = sorted(row for row in chosen if row < len(widths))
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "apply.call_bytes", 500)
        reading = Reading(widths, batch_rows)
        rows = reading.rows(set(wanted))
        taken: list[tuple[int, bytes]] = []
        while len(taken) < len(wanted):
            batch, at = rows.take(asked)
            assert 1 <= batch.num_rows <= asked
            assert batch.num_rows == 1 or batch.nbytes <= 500
            taken += zip(at.tolist(), batch.column("x").to_pylist(), strict=True)
    assert taken == [(row, reading.values[row]) for row in wanted]


# What a file is made of


def put_checkpoints(found: World, rows_each: int, width: int) -> list[str]:
    """Checkpoints of all rows; the values that they hold."""
    values = [f"{n:03}".ljust(width, "x") for n in range(ROWS)]
    for first in range(0, ROWS, rows_each):
        at = list(range(first, min(first + rows_each, ROWS)))
        batch = pa.RecordBatch.from_pydict(
            {ROWADDR: at, "y": [values[row] for row in at], ERROR: [None] * len(at)},
            schema=pa.schema([(ROWADDR, pa.int64()), ("y", pa.string()), (ERROR, ERROR_TYPE)]),
        )
        found.dataset.checkpoints.put(range_key(found.work.prefix.text, 0, first, at[-1] + 1), batch)
    return values


def task(rows: int = ROWS) -> AssembleTask:
    every = BitMap(range(rows))
    return AssembleTask(0, TargetFile(0, rows, ()), every, BitMap(), every, BitMap())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "sources.piece_bytes", 1000)
    set_limit(monkeypatch, "column_file.group_bytes", 1000)


@pytest.mark.usefixtures("small")
def test_wide_values_are_put_together_and_stored_in_small_pieces(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, text, ROWS)
    expected = put_checkpoints(found, 5, 100)
    joined = []
    real = pa.concat_arrays
    monkeypatch.setattr(
        pa, "concat_arrays", lambda arrays: joined.append(sum(a.nbytes for a in arrays)) or real(arrays)
    )
    made = assemble(found.work, task())
    assert values_of(found, made.written.segment) == expected
    assert max(group_rows(found, made.written.segment)) <= 9
    assert max(joined) <= 1000


@pytest.mark.usefixtures("small")
def test_few_checkpoints_are_in_memory_at_a_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(tmp_path, text, ROWS)
    expected = put_checkpoints(found, 5, 100)  # twelve, two of which make a piece
    held: set[str] = set()
    most = []
    read, release = value_sources.CheckpointReader._load_batch, value_sources.CheckpointReader.release

    def counted(checkpoint: value_sources.CheckpointReader) -> OffsetValues:
        held.add(checkpoint.found.key)
        most.append(len(held))
        return read(checkpoint)

    def let_go(checkpoint: value_sources.CheckpointReader) -> None:
        held.discard(checkpoint.found.key)
        release(checkpoint)

    monkeypatch.setattr(value_sources.CheckpointReader, "_load_batch", counted)
    monkeypatch.setattr(value_sources.CheckpointReader, "release", let_go)
    assert values_of(found, assemble(found.work, task()).written.segment) == expected
    assert len(most) == 12  # each is read once
    assert max(most) <= 4


@pytest.mark.usefixtures("small")
def test_value_wider_than_a_piece_is_one_of_its_own(tmp_path: Any) -> None:
    found = world(tmp_path, text, ROWS)
    expected = put_checkpoints(found, 7, 3000)
    made = assemble(found.work, task())
    assert values_of(found, made.written.segment) == expected
    assert group_rows(found, made.written.segment) == [1] * ROWS


@pytest.mark.usefixtures("small")
def test_task_that_writes_its_file_itself_writes_small_row_groups(tmp_path: Any) -> None:
    found = world(tmp_path, text, ROWS)
    values = [str(n) * 50 for n in range(ROWS)]
    written = store_segment(found.work, 0, 0, ROWS, OffsetValues(np.arange(ROWS), pa.array(values)))
    assert values_of(found, written.segment) == values
    assert len(group_rows(found, written.segment)) > 3


def test_old_file_is_decoded_a_row_group_at_a_time_and_each_once(
    tmp_path: Any, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, text, ROWS)
    expected = put_checkpoints(found, ROWS, 100)
    old = assemble(found.work, task()).written.segment
    for key in found.dataset.checkpoints.list_keys():
        found.dataset.checkpoints.delete(key)
    changed = dict.fromkeys(range(0, ROWS, 3), "new" * 200)
    batch = pa.RecordBatch.from_pydict(
        {ROWADDR: list(changed), "y": list(changed.values()), ERROR: [None] * len(changed)},
        schema=pa.schema([(ROWADDR, pa.int64()), ("y", pa.string()), (ERROR, ERROR_TYPE)]),
    )
    found.dataset.checkpoints.put(range_key(found.work.prefix.text, 0, 0, ROWS), batch)
    decoded = []
    real = SegmentFile.read
    monkeypatch.setattr(SegmentFile, "read", lambda file, *span: decoded.append(span) or real(file, *span))
    every = BitMap(range(ROWS))
    again = AssembleTask(0, TargetFile(0, ROWS, (old,)), BitMap(changed), BitMap(), every, every)
    made = assemble(found.work, again)
    ends = np.cumsum(group_rows(found, old)).tolist()
    assert decoded == list(zip([0, *ends], ends, strict=False))
    assert values_of(found, made.written.segment) == [changed.get(n, expected[n]) for n in range(ROWS)]
    assert made.changed == BitMap(changed)


def test_checkpoint_that_goes_away_while_its_rows_are_due_leads_to_a_new_plan(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, text, ROWS)
    put_checkpoints(found, 30, 10)
    gone = range_key(found.work.prefix.text, 0, 30, 60)
    read = value_sources.CheckpointReader._load_batch

    def collected(checkpoint: value_sources.CheckpointReader) -> OffsetValues:
        checkpoint.store.delete(gone)
        return read(checkpoint)

    monkeypatch.setattr(value_sources.CheckpointReader, "_load_batch", collected)
    with pytest.raises(CheckpointCoverageError, match="between records 30 and 59"):
        assemble(found.work, task())


# What readers take


@settings(max_examples=examples(13))
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 7), st.data())
def test_row_groups_of_any_size_are_read_alike(
    tmp_path_factory: pytest.TempPathFactory, widths: list[int], group_rows: int, data: st.DataObject
) -> None:
    found = world(tmp_path_factory.getbasetemp() / "any", text, 1)
    values = [chr(97 + n % 26) * width for n, width in enumerate(widths)]
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "column_file.group_bytes", 100)
        set_limit(patch, "column_file.row_group_rows", group_rows)
        segment = write_segment(found.work.objects, field(), 10, [pa.array(values)])
    opened = open_segment(found.work.objects, segment, field())
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))
    assert opened.read(10 + start, 10 + end).to_pylist() == values[start:end]
    bounds = [opened.group_at(10 + row) for row in range(len(values))]
    assert all(low <= 10 + row < high for row, (low, high) in enumerate(bounds))
    for low, high in set(bounds):
        assert high - low <= group_rows
        assert high - low == 1 or pa.array(values[low - 10 : high - 10]).nbytes <= 100


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 400))
def test_as_many_rows_fit_as_have_so_many_bytes(widths: list[int], size: int) -> None:
    values = pa.array([b"x" * width for width in widths], pa.binary())
    counts = [n for n in range(1, len(widths) + 1) if values.slice(0, n).nbytes <= size]
    assert rows_that_fit(values, size) == (max(counts, default=1) if widths else 0)


# Which values are the same

NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001], np.int64).view(np.float64)[0]
STRUCT = pa.struct([("x", pa.list_(pa.float32())), ("y", pa.string())])
PAIRS = [
    (pa.float64(), [0.0, None, 1.0, NAN, None], [-0.0, 0.0, 1.0, OTHER_NAN, None], [0, 1]),
    (pa.float32(), [0.0, None, 1.0, NAN, None], [-0.0, 0.0, 1.0, OTHER_NAN, None], [0, 1]),
    (pa.list_(pa.float64()), [[0.0], [], None, [1.0, 0.0], [None]], [[-0.0], [], None, [1.0, 0.0], [0.0]], [0, 4]),
    (pa.list_(pa.float32(), 1), [[0.0], [1.0], None], [[-0.0], [1.0], None], [0]),
    (STRUCT, [{"x": [0.0], "y": "a"}, None, {"x": None}], [{"x": [-0.0], "y": "a"}, None, {"x": None}], [0]),
    (pa.list_(pa.struct([("x", pa.float64())])), [[{"x": 0.0}], [None]], [[{"x": -0.0}], [None]], [0]),
    (pa.string(), ["a", None], ["a", ""], [1]),
    (pa.int64(), [1, 2, None], [1, 3, None], [1]),
]


@pytest.mark.parametrize(("kind", "before", "after", "expected"), PAIRS, ids=[str(p[0]) for p in PAIRS])
def test_values_differ_that_a_function_can_tell_apart(
    kind: pa.DataType, before: list[Any], after: list[Any], expected: list[int]
) -> None:
    one, two = pa.array(before, kind), pa.array(after, kind)
    assert np.flatnonzero(differing.diff_values(one, two)).tolist() == expected
    sliced = pa.concat_arrays([two, one]).slice(len(two))
    assert np.flatnonzero(differing.diff_values(sliced, two)).tolist() == expected
    assert not differing.diff_values(one, sliced).any()


def test_column_made_from_a_zero_follows_its_sign(tmp_path: Any) -> None:
    @fm.udf(returns="float64", version="1", name="zero")
    def plus(n: int) -> float:
        return 0.0

    @fm.udf(returns="float64", version="2", name="zero")
    def minus(n: int) -> float:
        return -0.0

    @fm.udf(returns="string", version="1")
    def said(zero: float) -> str:
        return str(zero)

    dataset = fm.Lake(tmp_path).create("d")
    dataset.write(pa.table({"n": pa.array(range(4), pa.int64())}))
    dataset.add_column("zero", plus, fragment_rows=8)
    dataset.add_column("said", said)
    for name, function in (("zero", plus), ("said", said)):
        dataset.backfill(name, udf=function)
    dataset.alter_column("zero", minus)
    dataset.backfill("zero", udf=minus)
    dataset.backfill("said", udf=said)
    assert dataset.to_arrow()["said"].to_pylist() == ["-0.0"] * 4

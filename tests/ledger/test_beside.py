"""Columns beside the records are read like any other: by offset, whatever is dead, folded, filtered or left out."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from floodmark.dataset import Dataset, DatasetParts
from floodmark.errors import BadColumnName, BadQuery, LedgerError
from floodmark.ledger import side_columns as besides
from floodmark.ledger import spark_read
from floodmark.ledger.duckdb_table import raise_failure
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.scan import filter_columns
from floodmark.ledger.selection import DataFile, Selection
from floodmark.ledger.side_columns import OffsetBatch, is_dense, with_side_columns
from floodmark.ledger.sql import _narrowed, _parsed, query_duckdb
from floodmark.storage.memory import MemoryStore
from floodmark.storage.parquet import ROW_GROUP_ROWS
from ledger.worlds import Clock, numbers
from limits import set_limit
from rows.current_worlds import lived_in, people, replayed
from waiting import PATIENCE

TEN = pa.field("ten", pa.int64())
SAID = pa.field("said", pa.string())


def ten(offset: int) -> int | None:
    return None if offset % 7 == 3 else offset * 10


def said(offset: int) -> str:
    return f"at {offset}"


@dataclass(frozen=True)
class InMemory:
    """Ten times each offset but some, and what it is called: columns that lie in no file."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([TEN, SAID]))
    opened: list[str] = field(default_factory=list)

    def open(self, names: Sequence[str]) -> Taking:
        self.opened.extend(names)
        return Taking(tuple(names))


@dataclass(frozen=True)
class Taking:
    names: tuple[str, ...]

    def take(self, offsets):
        plain = [int(o) for o in offsets]
        made = {"ten": pa.array(map(ten, plain), pa.int64()), "said": pa.array(map(said, plain), pa.string())}
        # One in two chunks, as columns from files often are.
        return [
            pa.chunked_array([made[n].slice(0, 2), made[n].slice(2)]) if n == "ten" else made[n] for n in self.names
        ]


class Damaged(LedgerError):
    pass


class Broken(InMemory):
    """Columns that cannot be read."""

    def open(self, names):
        return self

    def take(self, offsets):
        raise Damaged("records 3 to 5 of 'ten' are damaged", hint="backfill it")


class Wide(Dataset):
    """A dataset with other columns beside its records than computed ones."""

    def __init__(self, ledger: Ledger) -> None:  # not super().__init__, which refuses declarations
        self.beside: besides.SideColumnSet = InMemory()
        self.parts = DatasetParts.of(ledger, lambda _: self.beside)


def wide(dataset: Dataset) -> Wide:
    return Wide(Ledger(dataset.name, dataset.snapshot().objects, fm.Runtime(clock=Clock())))


class Lake(dict):
    """Datasets by name, as SQL wants them."""

    def __iter__(self):
        return iter(self.values())


def sql(dataset: Wide, query: str) -> list[dict]:
    return query_duckdb(Lake({dataset.name: dataset}), query).to_pylist()


def expected(dataset: Wide, end: int | None = None) -> list[dict]:
    """Every current row with its columns, one by one from the records."""
    current = sorted(replayed(dataset, end).values(), key=lambda r: r["offset"])
    return [r | {"ten": ten(r["offset"]), "said": said(r["offset"])} for r in current]


def only(rows: list[dict], *names: str) -> list[dict]:
    return [{n: r[n] for n in names} for r in rows]


DATA = ("id", "v", "ten", "said")


@pytest.fixture(scope="module", params=["folder", "memory, folded", "folded and lived in"])
def records(request, tmp_path_factory):
    place = MemoryStore() if request.param.startswith("memory") else tmp_path_factory.mktemp("lake")
    lake = fm.Lake(place, runtime=fm.Runtime(clock=Clock(), fold_at=None))
    made = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=5, writes=10)
    if "folded" in request.param:
        made.fold()
    if request.param == "folded and lived in":
        made.delete([1, 3, 5, 7, 9, 11])
        made.write(people([2, 4, 100], "later"))
    return made


@pytest.fixture
def dataset(records):
    return wide(records)


@pytest.fixture
def plain(tmp_path, clock):
    """Records of which none is dead, in several slices."""
    made = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=clock)).create("n")
    for start in range(0, 12, 4):
        made.write(numbers(start, start + 4))
    return wide(made)


@pytest.mark.slow
def test_every_way_to_read_shows_them_after_the_data(dataset):
    rows = only(expected(dataset), *DATA)
    assert dataset.to_arrow().to_pylist() == rows
    assert dataset.to_arrow().column_names == list(DATA)
    assert dataset.to_batches().read_all().to_pylist() == rows
    assert dataset.to_pandas()["said"].to_list() == [r["said"] for r in rows]
    assert dataset.scan().scanner().to_table().select(DATA).to_pylist() == rows
    assert dataset.scan().to_table().column_names == ["offset", "op", "system_time", *DATA]
    assert sql(dataset, "select * from p") == rows


@pytest.mark.parametrize(
    "columns",
    [["ten"], ["said", "id", "ten"], ["offset", "ten"], ["ten", "op", "v", "offset"], ["id"], []],
    ids=lambda c: "-".join(c) or "none",
)
def test_columns_can_be_chosen_in_any_order(dataset, columns):
    rows = only(expected(dataset), *columns)
    table = dataset.to_arrow(columns=columns)
    assert (table.column_names, table.num_rows) == (columns, len(rows))
    if columns:
        assert table.to_pylist() == dataset.to_batches(columns).read_all().to_pylist() == rows
        assert dataset.to_arrow(columns=columns, as_of=30).to_pylist() == only(expected(dataset, 31), *columns)


def test_column_that_is_not_needed_is_not_opened(dataset):
    for read in (
        lambda: dataset.to_arrow(columns=["id", "v"]),
        lambda: dataset.to_batches(["id"], "v is not null").read_all(),
        lambda: dataset.to_batches(["id"], pc.field("v").is_valid()).read_all(),
        lambda: sql(dataset, "select count(*), max(id) from p where v > ''"),
    ):
        read()
        assert dataset.beside.opened == []
    dataset.to_batches(["id"], "ten > 3").read_all()
    assert set(dataset.beside.opened) == {"ten"}


WHERES = {
    "records": ("id < 20", pc.field("id") < 20, lambda r: r["id"] < 20),
    "beside": ("ten > 300", pc.field("ten") > 300, lambda r: r["ten"] is not None and r["ten"] > 300),
    "nothing there": ("ten is null", pc.field("ten").is_null(), lambda r: r["ten"] is None),
    "both": (
        "ten > 300 and id < 20",
        (pc.field("ten") > 300) & (pc.field("id") < 20),
        lambda r: r["ten"] is not None and r["ten"] > 300 and r["id"] < 20,
    ),
    "either": (
        "said = 'at 40' or v like 'w1-%'",
        (pc.field("said") == "at 40") | pc.starts_with(pc.field("v"), "w1-"),
        lambda r: r["said"] == "at 40" or r["v"].startswith("w1-"),
    ),
    "offset": (
        '"offset" > 20 and ten > 0',
        (pc.field("offset") > 20) & (pc.field("ten") > 0),
        lambda r: r["offset"] > 20 and r["ten"],
    ),
    "none left": ("ten < 0", pc.field("ten") < 0, lambda r: False),
    "all": ("true", pc.scalar(True), lambda r: True),
}


SHOWN = [DATA, ("id",), ("said",), ("offset", "v"), ("said",)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "columns"), list(zip(WHERES, cycle(SHOWN), strict=False)), ids=list(WHERES))
def test_filters_look_at_both_kinds_of_columns(dataset, name, columns):
    text, expression, keeps = WHERES[name]
    rows = only([r for r in expected(dataset) if keeps(r)], *columns)
    assert dataset.to_batches(list(columns), text).read_all().to_pylist() == rows
    assert dataset.to_batches(list(columns), expression).read_all().to_pylist() == rows


def test_filter_by_the_number_of_a_column_means_that_column(dataset):
    names = dataset.scan().full_schema.names
    rows = [r for r in expected(dataset) if (r["ten"] or 0) > 300]
    found = dataset.to_batches(["id", "ten"], pc.field(names.index("ten")) > 300).read_all()
    assert found.to_pylist() == only(rows, "id", "ten")
    both = (pc.field("ten") > 300) & (pc.field(0) < 60)  # the offset
    found = dataset.to_batches(["id", "ten"], both).read_all()
    assert found.to_pylist() == only([r for r in rows if r["offset"] < 60], "id", "ten")


def test_number_of_a_column_beside_a_name_means_that_column_too(plain):
    both = (pc.field("ten") < 60) & (pc.field(1) == 0)  # the operation
    assert plain.to_batches(["ten"], both).read_all().column("ten").to_pylist() == [0, 10, 20, 40, 50]


def test_wrong_filters_and_columns_are_refused_at_once(dataset):
    for where in ("nowhere = 1", "ten = 'x'", pc.field("nowhere") == 1, pc.field("ten") == "x"):
        with pytest.raises(BadQuery):
            dataset.to_batches(where=where)
    with pytest.raises(BadQuery, match="said"):
        dataset.to_arrow(columns=["tenn"])


def test_sql_joins_a_dataset_with_itself(dataset):
    rows = expected(dataset)
    query = "select a.id, b.said from p a join p b on a.ten = b.ten + 10 where b.id > 3 order by a.id"
    by_ten = {r["ten"]: r for r in rows if r["ten"] is not None}
    pairs = [(r, by_ten.get(r["ten"] - 10)) for r in rows if r["ten"] is not None]
    answer = [{"id": a["id"], "said": b["said"]} for a, b in pairs if b is not None and b["id"] > 3]
    assert answer
    assert sql(dataset, query) == sorted(answer, key=lambda r: r["id"])
    largest = max(r["ten"] for r in rows if r["ten"] is not None)
    assert sql(dataset, "select max(ten) m, count(*) c, count(ten) n from p") == [
        {"m": largest, "c": len(rows), "n": len(by_ten)}
    ]
    assert sql(dataset, "select id from p where ten = (select max(ten) from p)") == only([by_ten[largest]], "id")
    assert len(sql(dataset, "select said from p limit 2")) == 2


def test_rows_found_by_key_have_them_too(dataset):
    rows = {r["id"]: r for r in expected(dataset)}
    wanted = sorted(rows)[::3]
    found = dataset.get(wanted)
    assert found.to_pylist() == sorted(only([rows[i] for i in wanted], *DATA), key=lambda r: int(r["said"][3:]))
    assert dataset.get([-1]).to_pylist() == []
    assert dataset.get([-1]).column_names == list(DATA)


def test_records_and_history_are_the_ledger_s_alone(dataset):
    assert "ten" not in dataset.changes_arrow().column_names
    assert "ten" not in dataset.history([2]).column_names
    assert "ten" not in dataset.schema.names


def test_dataset_without_rows_has_the_columns(lake):
    dataset = wide(lake.create("p", schema={"id": "int64"}))
    for table in (dataset.to_arrow(), dataset.to_batches().read_all(), dataset.to_batches(where="ten > 1").read_all()):
        assert table.schema == pa.schema([pa.field("id", pa.int64()), TEN, SAID])
        assert table.num_rows == 0
    assert sql(dataset, "select sum(ten) s, count(*) c from p") == [{"s": None, "c": 0}]


@pytest.mark.parametrize("as_of", [None, 2, 3, 4, 9])
def test_records_without_gaps_need_no_offsets_to_be_read(plain, as_of, monkeypatch):
    set_limit(monkeypatch, "beside.batch_rows", 3)
    end = 12 if as_of is None else as_of + 1
    rows = [{"n": o, "ten": ten(o), "said": said(o)} for o in range(end)]
    assert plain.to_arrow(as_of=as_of).to_pylist() == rows
    for columns in (["ten"], ["said", "n"]):
        assert plain.to_arrow(columns=columns, as_of=as_of).to_pylist() == only(rows, *columns)
        assert plain.to_batches(columns, as_of=as_of).read_all().to_pylist() == only(rows, *columns)


def test_purged_records_shift_nothing(plain):
    plain.purge(before=5)
    assert plain.to_arrow().to_pylist() == [{"n": o, "ten": ten(o), "said": said(o)} for o in range(4, 12)]
    assert plain.to_arrow(columns=["ten"]).to_pylist() == [{"ten": ten(o)} for o in range(4, 12)]


def test_name_of_a_data_column_is_refused(plain):
    plain.beside = InMemory(pa.schema([pa.field("N", pa.int64())]))
    for read in (plain.to_arrow, plain.to_batches, plain.scan, plain.read):
        with pytest.raises(BadColumnName, match="'N'"):
            read()


def test_error_of_a_side_column_is_raised_unchanged(dataset):
    dataset.beside = Broken()
    for read in (
        lambda: dataset.to_arrow(),
        lambda: dataset.to_batches().read_all(),
        lambda: dataset.to_batches(where="ten > 3").read_all(),
        lambda: dataset.to_batches(where=pc.field("ten") > 3).read_all(),
        lambda: sql(dataset, "select sum(ten) from p"),
        lambda: dataset.get([2]),
    ):
        with pytest.raises(Damaged, match="records 3 to 5") as raised:
            read()
        assert raised.value.hint == "backfill it"
    assert dataset.to_arrow(columns=["id"]).num_rows


def test_stream_that_is_not_read_to_its_end_leaves_nothing_running(plain):
    before = ours_running()
    for where in (None, "ten >= 0", pc.field("ten") >= 0):
        stream = plain.to_batches(where=where)
        assert stream.read_next_batch().num_rows
        stream.close()
        del stream
    for thread in ours_running() - before:  # nobody waits for them, so they may be about to end
        thread.join(PATIENCE)
        assert not thread.is_alive()


def ours_running():
    """The threads that Python started; DuckDB's and Arrow's own stay."""
    return {t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}


HELD = """
import sys
sys.path.insert(0, {tests!r})
import floodmark as fm
from ledger.test_beside import Broken, Damaged, sql, wide
dataset = wide(fm.Lake({lake!r})["n"])
sql(dataset, "select sum(ten) from n")
held = [dataset.to_batches(), dataset.to_batches(where="ten > 1"), dataset.to_batches(where="n > 1")]
begun = dataset.to_batches(where="ten > 1").read_next_batch()
dataset.beside = Broken()
errors = []
for read in (lambda: sql(dataset, "select sum(ten) from n"), lambda: dataset.to_batches(where="ten > 1").read_all()):
    try:
        read()
    except Damaged as error:
        errors.append(error)
assert len(errors) == 2
"""


@pytest.mark.process
def test_process_that_ends_with_open_streams_says_nothing(plain):
    tests = str(Path(__file__).parents[1])
    lake = plain.snapshot().objects.store.url
    ended = subprocess.run(
        [sys.executable, "-c", HELD.format(tests=tests, lake=lake)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_next_batch_is_read_ahead_and_no_more():
    """What memory holds does not grow with the number of batches."""
    given_out = []

    def located():
        for i in range(6):
            given_out.append(i)
            yield OffsetBatch(range(i, i + 1), pa.record_batch({"n": [i]}))

    for i, table in enumerate(with_side_columns(located(), Taking(("said",)), pa.schema([SAID]))):
        assert table.to_pylist() == [{"n": i, "said": said(i)}]
        assert len(given_out) <= i + 2


@given(
    cuts=st.lists(st.integers(0, 30), min_size=1, unique=True).map(sorted),
    lost=st.integers(0, 2),
    dead=st.lists(st.integers(0, 30), max_size=2, unique=True).map(sorted),
    bounds=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    skipped=st.integers(0, 9),
)
def test_counting_gives_the_offsets_only_where_nothing_is_missing(cuts, lost, dead, bounds, skipped):
    spans = [s for i, s in enumerate(pairwise(cuts)) if i != skipped]
    gone = set(dead[:lost])
    files = tuple(DataFile("f", a, b, b - a - len(gone & set(range(a, b))), 1) for a, b in spans)
    selection = Selection(*bounds, files, np.array(dead, np.int64))
    held = [o for a, b in spans for o in range(a, b) if o not in gone]
    shown = [o for o in held if bounds[0] <= o < bounds[1] and o not in dead]
    if is_dense(selection) and files:
        assert shown == list(range(*bounds))


def test_dense_selections_are_known_as_such():
    files = (DataFile("a", 0, 4, 4, 1), DataFile("b", 4, 9, 5, 1))
    assert is_dense(Selection(0, 9, files))
    assert is_dense(Selection(2, 7, files))
    assert not is_dense(replace(Selection(0, 9, files), dead=np.array([3])))
    without_lifeless = (files[0], DataFile("c", 6, 9, 3, 1))
    assert not is_dense(Selection(0, 9, without_lifeless, np.array([4, 5])))


def test_slice_whose_records_are_all_dead_shifts_nothing(lake):
    dataset = wide(lake.create("p", key=["id"], merge="upsert"))
    dataset.write(people([0, 1], "a"))
    dataset.write(people([2, 3], "b"))
    dataset.delete([2, 3])
    dataset.write(people([4], "c"))
    rows = only(expected(dataset), *DATA)
    assert [r["id"] for r in rows] == [0, 1, 4]
    assert dataset.to_arrow().to_pylist() == dataset.to_batches().read_all().to_pylist() == rows


@pytest.mark.parametrize("where", ["n % 3 = 1", pc.field("n").isin([1, 4, 7, 10])], ids=["sql", "arrow"])
def test_filter_on_records_without_gaps_leaves_gaps(plain, where):
    found = plain.to_batches(["ten", "said"], where).read_all().to_pylist()
    assert found == [{"ten": ten(o), "said": said(o)} for o in (1, 4, 7, 10)]


def test_file_that_left_records_out_is_not_cut(monkeypatch):
    """Five of its dead are gone and five are there: a part with the second five would seem to have none."""
    set_limit(monkeypatch, "spark_read.least_bytes", 1)
    set_limit(monkeypatch, "spark_read.row_group_rows", 5)
    selection = Selection(0, 20, (DataFile("f", 0, 20, 15, 100),), np.array([*range(5), *range(10, 15)], np.int64))
    assert spark_read._parts(selection) == [selection]
    whole = Selection(0, 20, (DataFile("f", 0, 20, 20, 100),))
    assert len(spark_read._parts(whole)) == 4


def test_kept_error_holds_on_to_nothing(plain):
    plain.beside = Broken()
    table = plain.scan().filtered()
    with pytest.raises(Damaged):
        table.scanner(["ten"]).to_reader().read_all()
    [kept] = table._failures
    assert kept.__traceback__ is None
    with pytest.raises(Damaged, match="records 3 to 5"):
        raise_failure(table, ValueError())
    raise_failure(table, ValueError())  # once


@given(st.integers(0, 5 << 20), st.integers(0, 5 << 20), st.integers(1, 9))
def test_stretches_of_a_column_are_the_whole_of_it(start, rows, most):
    stretches = list(besides._cut(range(start, start + rows), most))
    assert [o for s in stretches for o in (s.start, s.stop)][:1] == ([start] if rows else [])
    assert all(a.stop == b.start for a, b in pairwise(stretches))
    assert sum(map(len, stretches)) == rows
    assert len(stretches) <= most + 1
    assert all(stretches)


SCHEMA = pa.schema([("a", pa.int64()), ("ab", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("z", pa.string())])


@pytest.mark.parametrize(
    ("where", "needed"),
    [
        (pc.field("ab") > 1, {"ab"}),
        (pc.field("s", "x") > 1, {"s"}),
        (pc.field(3) == "q", {"z"}),
        (pc.field("z") == "FieldPath(", {"z"}),
        (pc.field("a").isin([1, 2]) | (pc.field("z") == "a"), {"a", "z"}),
        (pc.scalar(True), set()),
    ],
    ids=["name", "inside a struct", "number", "text that looks like one", "several", "none"],
)
def test_columns_of_a_filter_are_all_found(where, needed):
    assert needed <= set(filter_columns(where, SCHEMA))
    table = pa.table([[1], [2], [{"x": 3}], ["q"]], schema=SCHEMA)
    assert table.select(filter_columns(where, SCHEMA)).filter(where).num_rows == table.filter(where).num_rows


def test_scan_with_columns_beside_it_travels_to_tasks(plain):
    scan = plain.scan()
    arrived = pickle.loads(pickle.dumps(scan))
    assert pa.Table.from_batches(arrived.batches()).equals(scan.to_table().combine_chunks())


@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_tasks_together_read_what_the_scan_reads(dataset, monkeypatch, most):
    set_limit(monkeypatch, "spark_read.least_bytes", 1)
    set_limit(monkeypatch, "spark_read.task_bytes", most)
    set_limit(monkeypatch, "spark_read.row_group_rows", 5)
    for as_of in (None, 33, 60):
        scan = dataset.scan(as_of=as_of)
        parts = [replace(scan, selection=s) for s in spark_read._parts(scan.selection)]
        files = scan.selection.files
        if most == 1 and not any(f.absent for f in files):
            assert len(parts) > len(files)
        read = [row for part in parts for batch in part.batches() for row in batch.to_pylist()]
        assert read == scan.to_table().to_pylist()


def test_large_file_is_cut_where_its_row_groups_end(tmp_path, clock, monkeypatch):
    """A part of whole row groups is read without looking at an offset."""
    made = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=clock)).create("n")
    rows = 2 * ROW_GROUP_ROWS + 10
    made.write(numbers(0, rows))
    set_limit(monkeypatch, "spark_read.least_bytes", 1)
    set_limit(monkeypatch, "spark_read.task_bytes", made.scan().selection.files[0].size // 3 + 1)
    scan = replace(wide(made).scan(), columns=("n",))
    parts = [replace(scan, selection=s) for s in spark_read._parts(scan.selection)]
    assert [(p.selection.start, p.selection.end) for p in parts] == [
        (0, ROW_GROUP_ROWS),
        (ROW_GROUP_ROWS, 2 * ROW_GROUP_ROWS),
        (2 * ROW_GROUP_ROWS, rows),
    ]
    assert [part._bounded()[1] for part in parts] == [None, None, None]
    assert [n for p in parts for b in p.batches() for n in b.column("n").to_pylist()] == list(range(rows))
    inside = replace(scan, selection=scan.selection.of(scan.selection.files, 5, ROW_GROUP_ROWS))
    assert inside._bounded()[1] is not None
    assert [n for b in inside.batches() for n in b.column("n").to_pylist()] == list(range(5, ROW_GROUP_ROWS))


MEANT = [
    ("select id from p", []),
    ("select count(*), count() from p group by id having max(id) > 1", []),
    ("select TEN from p", ["ten"]),
    ("select id from p where said like 'at%' order by ten", ["ten", "said"]),
    ("select id from p join q using (said)", ["said"]),
    ("select * from p", ["ten", "said"]),
    ("from p", ["ten", "said"]),
    ("table p", ["ten", "said"]),
    ("select p.* from p", ["ten", "said"]),
    ("select id from p natural join q", ["ten", "said"]),
    ("select id from q where exists (select * from p)", ["ten", "said"]),
    ("pivot p on id using sum(v)", ["ten", "said"]),
    ("select id from p |> where id > 1", ["ten", "said"]),
]


@pytest.mark.parametrize(("query", "meant"), MEANT, ids=[q for q, _ in MEANT])
def test_query_means_the_columns_that_it_names_or_all(memory_lake, query, meant):
    dataset = wide(memory_lake.create("p", schema={"id": "int64", "v": "string"}))
    scan = _narrowed(dataset.scan(), query, _parsed(query))
    assert scan.columns == ("id", "v", *meant)

"""Files are written by path, glob or folder; what is wrong with one is said with its name."""

from __future__ import annotations

import bz2
import gzip
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from floodmark.errors import (
    BadData,
    BadEventTime,
    MissingColumns,
    NothingToWrite,
    TypeMismatch,
    UnknownColumns,
    UnreadableFile,
)
from ledger.worlds import untouched

ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": "c"}]
CSV = "n,s\n1,a\n2,\n3,c\n"
JSON = '{"n": 1, "s": "a"}\n{"n": 2, "s": null}\n{"n": 3, "s": "c"}\n'


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def dataset(lake):
    return lake.create("d")


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
    return path


FILES = {
    "a.parquet": lambda p: parquet(p, ROWS),
    "a.PQ": lambda p: parquet(p, ROWS),
    "a.csv": lambda p: p.write_text(CSV),
    "a.tsv": lambda p: p.write_text(CSV.replace(",", "\t")),
    "a.csv.gz": lambda p: p.write_bytes(gzip.compress(CSV.encode())),
    "a.csv.bz2": lambda p: p.write_bytes(bz2.compress(CSV.encode())),
    "a.json": lambda p: p.write_text(JSON),
    "a.ndjson": lambda p: p.write_text(JSON),
    "a.jsonl.gz": lambda p: p.write_bytes(gzip.compress(JSON.encode())),
}


def test_files_of_a_folder_that_are_not_read_are_named(dataset, inbox, caplog):
    (inbox / "a.csv").write_text(CSV)
    for name in ("b.txt", "part-1", "_SUCCESS", ".c.csv.crc"):
        (inbox / name).write_text(CSV)
    dataset.write(inbox)
    assert dataset.count() == 3
    assert caplog.messages == [f"{inbox}: not read, because the names show no format: b.txt, part-1"]


def test_folders_that_give_one_column_two_values_are_refused(dataset, inbox):
    parquet(inbox / "n=1/n=2" / "a.parquet", [{"m": 1}])
    with pytest.raises(UnreadableFile, match=r"two folders of .* are called n="):
        dataset.write(inbox)


@pytest.mark.parametrize("name", FILES)
def test_file_is_written(dataset, inbox, name):
    FILES[name](inbox / name)
    dataset.write(inbox / name)
    assert dataset.to_arrow().to_pylist() == ROWS
    assert dataset.verify().ok


@pytest.mark.parametrize(("read", "content"), [("csv", CSV), ("json", JSON)])
def test_format_can_be_said_when_the_name_does_not_tell(dataset, inbox, read, content):
    (inbox / "export.dat").write_text(content)
    with untouched(dataset), pytest.raises(BadData, match=r"export\.dat") as refused:
        dataset.write(inbox / "export.dat")
    assert "read=" in refused.value.hint
    dataset.write(str(inbox / "export.dat"), read=read)
    assert dataset.to_arrow().to_pylist() == ROWS


def test_files_are_taken_in_the_order_of_their_names(dataset, inbox):
    for number in (2, 10, 1):
        parquet(inbox / f"part-{number:02}.parquet", [{"n": number}])
    assert dataset.write(str(inbox / "*.parquet")).rows == 3
    assert dataset.to_arrow().column("n").to_pylist() == [1, 2, 10]


def test_folder_is_searched_to_its_depth_without_hidden_files(dataset, inbox):
    parquet(inbox / "2025" / "a.parquet", [{"n": 1}])
    parquet(inbox / "2026" / "deep" / "b.parquet", [{"n": 2}])
    for hidden in ("_temporary/c.parquet", ".hidden/d.parquet", "_SUCCESS.parquet"):
        (inbox / hidden).parent.mkdir(exist_ok=True)
        (inbox / hidden).write_bytes(b"not parquet")
    (inbox / "notes.txt").write_text("hello")
    dataset.write(inbox)
    assert dataset.to_arrow().column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize("where", ["", "*/*.{}", "**/*.{}", "dt=2026-01-0*/*"])
@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_values_in_folder_names_are_columns(dataset, inbox, where, suffix):
    for day in (1, 2):
        path = parquet(inbox / f"dt=2026-01-0{day}" / f"a.{suffix}", [{"n": day}])
        if suffix != "parquet":
            path.write_text(f"n\n{day}\n" if suffix == "csv" else f'{{"n": {day}}}\n')
    dataset.write(inbox / where.format(suffix))
    assert dataset.to_arrow().to_pylist() == [{"n": day, "dt": date(2026, 1, day)} for day in (1, 2)]
    dataset.write(inbox / "dt=2026-01-01" / f"a.{suffix}")  # one file of them
    assert dataset.to_arrow().to_pylist()[2] == {"n": 1, "dt": date(2026, 1, 1)}


def test_values_in_folder_names_may_be_null_escaped_and_in_several_folders(dataset, inbox):
    for folder in ("country=__HIVE_DEFAULT_PARTITION__/month=01", "country=C%C3%B4te/month=02"):
        parquet(inbox / folder / "a.parquet", [{"n": 1}])
    dataset.write(inbox)
    assert sorted(dataset.to_arrow().to_pylist(), key=str) == [
        {"n": 1, "country": "Côte", "month": "02"},
        {"n": 1, "country": None, "month": "01"},
    ]


def test_column_that_the_file_has_too_is_that_of_the_file(dataset, inbox):
    parquet(inbox / "dt=2026-01-01" / "a.parquet", [{"dt": "first", "n": 1}])
    dataset.write(inbox)
    assert dataset.to_arrow().to_pylist() == [{"dt": "first", "n": 1}]


def test_value_in_a_folder_name_that_does_not_fit_is_refused(lake, inbox):
    dataset = lake.create("d", schema={"n": "int64", "hour": "int64"})
    parquet(inbox / "hour=late" / "a.parquet", [{"n": 1}])
    with untouched(dataset), pytest.raises(UnreadableFile, match=r"hour=late.*'late' of column 'hour'.*int64"):
        dataset.write(inbox)


def test_column_in_folder_names_that_the_dataset_lacks_is_refused(lake, inbox):
    dataset = lake.create("d", schema={"n": "int64"})
    parquet(inbox / "hour=1" / "a.parquet", [{"n": 1}])
    with untouched(dataset), pytest.raises(UnknownColumns, match="'hour'"):
        dataset.write(inbox)


def test_list_of_paths_keeps_its_order(dataset, inbox):
    paths = [parquet(inbox / f"{name}.parquet", [{"n": ord(name)}]) for name in "ba"]
    dataset.write(paths)
    assert dataset.to_arrow().column("n").to_pylist() == [98, 97]


def test_file_that_is_given_twice_is_refused(dataset, inbox):
    path = parquet(inbox / "a.parquet", [{"n": 1}])
    with untouched(dataset), pytest.raises(BadData, match=r"a\.parquet is given twice"):
        dataset.write([path, str(inbox / "*.parquet")])


def test_files_with_their_columns_in_another_order_and_of_other_widths_are_one_write(dataset, inbox):
    parquet(inbox / "a.parquet", pa.table({"n": [1], "s": ["a"]}))
    parquet(inbox / "b.parquet", pa.table({"s": ["b"], "n": [2]}))
    parquet(inbox / "c.parquet", pa.table({"s": ["c"], "n": pa.array([3], pa.int8())}))
    head = dataset.head
    commit = dataset.write(inbox)
    assert dataset.head != head
    assert commit.rows == 3
    assert dataset.to_arrow().to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": "c"}]


def test_csv_files_with_their_columns_in_another_order_are_one_write(dataset, inbox):
    (inbox / "a.csv").write_text("n,s\n1,a\n")
    (inbox / "b.csv").write_text("s,n\nb,2\n")
    dataset.write(inbox)
    assert dataset.to_arrow().to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]


def test_json_field_that_is_absent_is_null(dataset, inbox):
    (inbox / "a.json").write_text('{"n": 1, "s": "a"}\n{"n": 2}\n')
    dataset.write(inbox)
    assert dataset.to_arrow().column("s").to_pylist() == ["a", None]


def test_int96_times_are_instants_in_utc(dataset, inbox):
    noon = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    for unit in ("ns", "us"):
        table = pa.table({"t": pa.array([noon, None], pa.timestamp(unit, "UTC")), "n": [1, 2]})
        pq.write_table(table, inbox / f"{unit}.parquet", use_deprecated_int96_timestamps=True)
    # What Spark and others write has no Arrow schema beside it, so nothing but the INT96 itself speaks of the type.
    pq.write_table(table, inbox / "bare.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    dataset.write(inbox)
    assert dataset.schema.field("t").type == pa.timestamp("us", "UTC")
    assert dataset.to_arrow().column("t").to_pylist() == [noon, None] * 3


def test_parquet_files_whose_times_are_nanoseconds_are_kept_to_the_microsecond(dataset, inbox):
    parquet(inbox / "a.parquet", pa.table({"t": pa.array([1_000], pa.timestamp("ns"))}))
    dataset.write(inbox)
    assert dataset.to_arrow().column("t").cast(pa.int64()).to_pylist() == [1]


def test_csv_values_take_the_types_that_the_dataset_has(lake, inbox):
    dataset = lake.create("d", schema={"code": "string", "n": "float64", "day": "date32"})
    (inbox / "a.csv").write_text("n,code,day\n1,007,2026-03-01\n")
    dataset.write(inbox)
    assert dataset.to_arrow().to_pylist() == [{"code": "007", "n": 1.0, "day": datetime(2026, 3, 1).date()}]


BROKEN = {
    "broken.parquet": b"PAR1 this is no parquet",
    "torn.parquet": None,
    "empty.parquet": b"",
    "broken.csv": b"n,s\n1,a\n2,b,c\n",
    "binary.csv": b"n,s\n1,\xff\xfe\n",
    "broken.json": b'{"n": 1, "s"',
    "broken.csv.gz": b"not gzip",
    "empty.csv": b"",
    "empty.json": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_file_is_named_and_nothing_is_written(lake, inbox, name):
    content = BROKEN[name]
    if content is None:
        content = parquet(inbox / name, pa.table({"n": range(1000), "s": ["x"] * 1000})).read_bytes()[:-100]
    (inbox / f"0{name[name.index('.') :]}").write_bytes(b"")  # a good one before it
    good = inbox / f"0{name[name.index('.') :]}"
    FILES["a" + good.name[1:]](good)
    (inbox / name).write_bytes(content)
    for dataset in (lake.create("fresh"), lake.create("typed", schema={"n": "int64", "s": "string"})):
        with untouched(dataset), pytest.raises(UnreadableFile, match=name) as refused:
            dataset.write(inbox)
        assert refused.value.path == str(inbox / name)


def test_damage_in_the_pages_of_a_file_is_found_and_named(dataset, inbox):
    path = inbox / "damaged.parquet"
    pq.write_table(pa.table({"n": range(10_000)}), path)
    data = bytearray(path.read_bytes())
    data[4:100] = b"\xff" * 96
    path.write_bytes(data)
    with untouched(dataset), pytest.raises(UnreadableFile, match=r"damaged\.parquet"):
        dataset.write(path)


def test_csv_value_that_is_not_of_the_column_s_type_is_named_with_file_and_column(lake, inbox):
    dataset = lake.create("d", schema={"n": "int64", "s": "string"})
    (inbox / "a.csv").write_text("n,s\n1,a\nmany,b\n")
    with untouched(dataset), pytest.raises(UnreadableFile, match=r"a\.csv, line 3: the value 'many' of column 'n'"):
        dataset.write(inbox)


def test_csv_into_a_column_of_lists_is_refused(lake, inbox):
    dataset = lake.create("d", schema={"n": pa.list_(pa.int64())})
    (inbox / "a.csv").write_text("n\n1\n")
    with untouched(dataset), pytest.raises(UnreadableFile, match=r"a\.csv.*list"):
        dataset.write(inbox)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", "n\n1\n", MissingColumns),
        ("a.csv", "n,s,extra\n1,a,2\n", UnknownColumns),
        ("a.json", '{"n": 1, "s": "a", "extra": 2}\n', UnknownColumns),
        ("a.parquet", [{"n": 1}], MissingColumns),
        ("a.parquet", [{"n": 1, "s": "a", "extra": 1}], UnknownColumns),
        ("a.parquet", [{"n": "one", "s": "a"}], TypeMismatch),
        ("a.parquet", [{"n": 1.5, "s": "a"}], TypeMismatch),
    ],
)
def test_file_that_does_not_fit_the_dataset_is_named(lake, inbox, name, content, error):
    dataset = lake.create("d", schema={"n": "int64", "s": "string"})
    if isinstance(content, str):
        (inbox / name).write_text(content)
    else:
        parquet(inbox / name, content)
    with untouched(dataset), pytest.raises(error, match=str(inbox / name)):
        dataset.write(inbox)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "t\n2026-01-01\n\n"),
        ("a.csv", "n,t\n1,2026-01-01\n2,\n"),
        ("a.json", '{"t": "2026-01-01"}\n{"t": null}\n'),
    ],
)
def test_null_event_time_in_a_file_is_refused_by_the_file_s_name(lake, inbox, name, content):
    dataset = lake.create("d", event_time="t")
    (inbox / name).write_text(content)
    if content.endswith("\n\n"):  # an empty line is no row
        assert dataset.write(inbox).rows == 1
        return
    with untouched(dataset), pytest.raises(BadEventTime, match=str(inbox / name)):
        dataset.write(inbox)


def test_files_of_several_formats_are_refused(dataset, inbox):
    for name in ("a.csv", "a.json"):
        FILES[name](inbox / name)
    with untouched(dataset), pytest.raises(BadData, match=r"a\.csv.*a\.json"):
        dataset.write(inbox)


@pytest.mark.parametrize("where", ["nothing-here", "*.parquet", "", "notes.txt/"])
def test_path_that_matches_no_file_is_refused(dataset, inbox, where):
    (inbox / "empty").mkdir()
    with untouched(dataset), pytest.raises(UnreadableFile) as refused:
        dataset.write(f"{inbox}/{where}")
    assert refused.value.path == f"{inbox}/{where}"


@pytest.mark.parametrize("where", ["s3://bucket/*.csv", Path("s3://bucket/a.csv"), "file:///tmp/a.csv"])
def test_address_is_refused_as_one(dataset, where):
    with untouched(dataset), pytest.raises(UnreadableFile, match="is an address") as refused:
        dataset.write(where)
    assert "Spark" in refused.value.hint


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("event_time", [None, "n"])
def test_file_without_rows_is_nothing_to_write(lake, inbox, name, event_time):
    dataset = lake.create("d", event_time=event_time)
    if name == "a.csv":
        (inbox / name).write_text("n,s\n")
    else:
        parquet(inbox / name, pa.table({"n": pa.array([], pa.date32())}))
    with untouched(dataset), pytest.raises(NothingToWrite):
        dataset.write(inbox)


def test_header_without_rows_before_a_full_file_does_no_harm(dataset, inbox):
    (inbox / "a.csv").write_text("n,s\n")
    (inbox / "b.csv").write_text(CSV)
    dataset.write(inbox)
    assert dataset.to_arrow().to_pylist() == ROWS


def test_relative_paths_are_seen_from_where_the_caller_stands(dataset, inbox, monkeypatch):
    parquet(inbox / "a.parquet", ROWS)
    monkeypatch.chdir(inbox)
    dataset.write("a.parquet")
    dataset.write("*.parquet")
    assert dataset.count() == 6

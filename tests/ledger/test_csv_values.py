"""Values of CSV and JSON files arrive as they are written: a type is given only to columns that keep every value."""

from __future__ import annotations

import csv
import json
import math
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import MissingColumns, UnknownColumns, UnreadableFile
from floodmark.ledger import text_files
from floodmark.storage.memory import MemoryStore
from ledger.worlds import untouched
from profiles import examples


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


def written(dataset: fm.Dataset, path: Path, *values: str, column: str = "v") -> list[Any]:
    path.write_text(f"n,{column}\n" + "".join(f"{n},{value}\n" for n, value in enumerate(values)))
    dataset.write(path)
    return dataset.to_arrow().column(column).to_pylist()


def test_integers_beyond_64_bit_stay_apart(lake, tmp_path):
    dataset = lake.create("d", key="id")
    (tmp_path / "a.csv").write_text("id,v\n12345678901234567890,1\n12345678901234567891,2\n")
    dataset.write(tmp_path / "a.csv")
    ids = dataset.to_arrow().column("id")
    assert ids.to_pylist() == [12345678901234567890, 12345678901234567891]
    assert ids.type == pa.decimal128(38, 0)
    assert dataset.get([12345678901234567891]).column("v").to_pylist() == [2]


def test_leading_zeros_are_text(lake, tmp_path):
    assert written(lake.create("codes", key="v"), tmp_path / "a.csv", "007", "7") == ["007", "7"]
    assert written(lake.create("zips"), tmp_path / "a.csv", "01234") == ["01234"]


TYPES = [
    (["1", "-2", "0"], pa.int64(), [1, -2, 0]),
    (["9.90", "10"], pa.float64(), [9.9, 10.0]),
    (["1.5", "nan", "-inf"], pa.float64(), [1.5, math.nan, -math.inf]),
    ([" 5", "6 "], pa.int64(), [5, 6]),
    (["12345678901234567.25"], pa.decimal128(38, 2), [Decimal("12345678901234567.25")]),
    (["9007199254740993", "0.5"], pa.decimal128(38, 1), [9007199254740993, Decimal("0.5")]),
    (["+4712345"], pa.string(), None),
    (["00.5"], pa.string(), None),
    (["0x1F"], pa.string(), None),
    (["1e400"], pa.string(), None),
    (["1" * 39], pa.string(), None),
    (["nan", "inf"], pa.string(), None),
    (["1", "true"], pa.string(), None),
    (["true", "False"], pa.bool_(), [True, False]),
    (["2026-01-05"], pa.date32(), [date(2026, 1, 5)]),
    (["0000-01-05"], pa.string(), None),
    (["2026-01-05", "2026-01-05 10:00"], pa.timestamp("us"), [datetime(2026, 1, 5), datetime(2026, 1, 5, 10)]),
    (["2026-01-05T12:00:00+02:00"], pa.timestamp("us", "UTC"), [datetime(2026, 1, 5, 10, tzinfo=UTC)]),
    (["2026-01-05T12:00:00.1234567"], pa.string(), None),
    (["08:30", "08:30:15.5"], pa.time64("us"), [time(8, 30), time(8, 30, 15, 500_000)]),
]


@pytest.mark.parametrize(("values", "data_type", "expected"), TYPES, ids=lambda value: str(value)[:40])
def test_column_has_a_type_only_if_every_value_keeps_its_value(lake, tmp_path, values, data_type, expected):
    dataset = lake.create("d")
    found = written(dataset, tmp_path / "a.csv", *values)
    assert dataset.schema.field("v").type == data_type
    assert str(found) == str(values if expected is None else [*map(_as(data_type), expected)])


def _as(data_type: pa.DataType):
    return lambda value: pa.array([value], data_type)[0].as_py()


def test_key_is_never_a_float(lake, tmp_path):
    dataset = lake.create("d", key="v")
    assert written(dataset, tmp_path / "a.csv", "1.5", "2.25", "1.50") == [Decimal("1.5"), Decimal("2.25")]
    assert dataset.schema.field("v").type == pa.decimal128(38, 2)
    assert written(lake.create("e", key="v"), tmp_path / "b.csv", "1e5", "2") == ["1e5", "2"]


def test_types_fit_the_values_of_all_files_and_all_blocks(lake, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_BLOCK", 64)
    values = [*map(str, range(100)), "0.5", *map(str, range(100)), "9007199254740993"]
    written(lake.create("d"), tmp_path / "b.csv", "x")
    (tmp_path / "b.csv").unlink()
    assert written(lake.create("one"), tmp_path / "a.csv", *values) == [*map(Decimal, values)]
    (tmp_path / "b.csv").write_text("n,v\n1,late\n")
    both = lake.create("both")
    both.write(str(tmp_path / "*.csv"))
    assert both.to_arrow().column("v").to_pylist() == [*values, "late"]


@pytest.mark.parametrize(
    ("first", "later", "data_type"),
    [
        ("1", "007", "int64"),
        ("1", "12345678901234567890", "int64"),
        ("1", "1.0", "int64"),
        ("1.5", "12345678901234567890", "double"),
        ("1.5", "0.1234567890123456789", "double"),
        ("1.5", "n/a", "double"),
        ("12345678901234567890", "0.5", r"decimal128\(38, 0\)"),
        ("2026-01-05", "2026-01-05 10:00", "date32"),
        ("2026-01-05 10:00", "2026-01-05 10:00:00.1234567", "timestamp"),
        ("08:30", "8:30", "time64"),
        ("true", "yes", "bool"),
    ],
)
def test_later_value_that_does_not_fit_is_refused_with_file_and_line(lake, tmp_path, first, later, data_type):
    dataset = lake.create("d")
    written(dataset, tmp_path / "a.csv", first)
    (tmp_path / "b.csv").write_text(f'n,v\n1,{first}\n\n"2",{first}\n3,{later}\n4,{later}\n')
    with (
        untouched(dataset),
        pytest.raises(UnreadableFile, match=rf"b\.csv, line 5: .*column 'v'.*{data_type}") as error,
    ):
        dataset.write(tmp_path / "b.csv")
    assert repr(later) in error.value.message
    assert "'string'" in error.value.hint


def test_line_is_counted_over_values_with_line_ends(lake, tmp_path):
    dataset = lake.create("d", schema={"s": "string", "v": "int64"})
    (tmp_path / "a.csv").write_text('s,v\n"one\ntwo",1\n"three",x\n')
    with pytest.raises(UnreadableFile, match=r"a\.csv, line 4"):
        dataset.write(tmp_path / "a.csv")


def test_declared_types_are_kept(lake, tmp_path):
    dataset = lake.create("d", schema={"n": "int8", "f": "float32", "u": "uint64", "b": "binary", "yes": "bool"})
    (tmp_path / "a.csv").write_text(f"n,f,u,b,yes\n1,0.1,{2**64 - 1},xyz,1\n")
    dataset.write(tmp_path / "a.csv")
    [row] = dataset.to_arrow().to_pylist()
    assert (row["n"], row["u"], row["b"], row["yes"]) == (1, 2**64 - 1, b"xyz", True)
    assert row["f"] == pytest.approx(0.1)
    (tmp_path / "b.csv").write_text("n,f,u,b,yes\n1,0.123456789,1,xyz,1\n")
    with pytest.raises(UnreadableFile, match=r"line 2: the value '0\.123456789' of column 'f'"):
        dataset.write(tmp_path / "b.csv")


def test_numbers_of_json_keep_their_value(lake, tmp_path):
    big, path = 12345678901234567890, tmp_path / "a.json"
    path.write_text(f'{{"id": {big}, "v": 1.5}}\n{{"id": {big + 1}, "v": 0.5}}\n')
    dataset = lake.create("d", key="id")
    dataset.write(path)
    assert dataset.to_arrow().to_pylist() == [{"id": big, "v": 1.5}, {"id": big + 1, "v": 0.5}]
    path.write_text(f'{{"id": 1, "v": 1.5}}\n{{"id": 2, "v": {big}}}\n')
    with untouched(dataset), pytest.raises(UnreadableFile, match=r"a\.json, line 2: .*column 'v'.*double"):
        dataset.write(path)
    path.write_text('{"id": 1.5}\n')
    floats = lake.create("floats", key="id")
    floats.write(path)
    assert floats.schema.field("id").type == pa.decimal128(38, 1)


numbers = st.one_of(
    st.integers(-(10**40), 10**40),
    st.integers(-100, 100),
    st.floats(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.floats(width=32),
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)
codes = st.text(st.sampled_from("0123456789.eE+-x "), max_size=20)
moments = st.one_of(st.dates(), st.datetimes(), st.times(), st.datetimes(timezones=st.just(UTC)))
columns = st.one_of(
    *(st.lists(kind, min_size=1, max_size=6) for kind in (numbers, texts, codes, moments, st.booleans())),
    st.lists(st.one_of(numbers, texts, codes, moments, st.booleans()), min_size=1, max_size=6),
)


def put(path: Path, values: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["v"], *([value] for value in values)])


@settings(max_examples=examples(600))
@given(columns, columns)
def test_every_value_that_is_written_to_csv_is_read_as_that_value(first, later):
    first, later = [str(value) for value in first], [str(value) for value in later]
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        dataset, path = fm.Lake(MemoryStore()).create("d"), Path(folder) / "a.csv"
        put(path, first)
        dataset.write(path)
        put(path, later)
        with suppress(UnreadableFile):  # another type
            dataset.write(path)
        found = dataset.to_arrow().column("v").to_pylist()
    assert len(found) in (len(first), len(first) + len(later))
    for text, value in zip([*first, *later], found, strict=False):
        assert is_same(text, value), (text, value)


def is_same(text: str, value: Any) -> bool:
    """Whether a value is what the text says, by the rules of Python and not of the product."""
    match value:
        case str():
            return text == value
        case bool():
            return text.strip().lower() in (str(value).lower(), str(int(value)))
        case float() if not math.isfinite(value):
            return float(text) == value or math.isnan(float(text)) == math.isnan(value)
        case float():
            return _decimal(text) == Decimal(repr(value)) and not _has_leading_zero(text)
        case int() | Decimal():
            return _decimal(text) == value and not _has_leading_zero(text)
        case datetime():
            moment = datetime.fromisoformat(text.strip())
            return moment == value and (moment.tzinfo is None) == (value.tzinfo is None)
        case date() | time():
            return type(value).fromisoformat(text.strip()) == value
    raise AssertionError(value)


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.strip(" \t"))
    except InvalidOperation:
        return None


def _has_leading_zero(text: str) -> bool:
    digits = text.strip(" \t").removeprefix("-")
    return digits.startswith("+") or (digits[:1] == "0" and digits[1:2] not in ("", ".", "e", "E"))


def test_json_of_python_is_read_as_the_same_numbers(lake, tmp_path):
    values = [0.1, 1e22, 5e-324, 1.7976931348623157e308, -0.0, 0.30000000000000004]
    (tmp_path / "a.json").write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
    dataset = lake.create("d")
    dataset.write(tmp_path / "a.json")
    assert dataset.to_arrow().column("v").to_pylist() == values


@pytest.mark.parametrize(
    "text", ['n,v\n1,a\n2,"b\n3,c\n4,d\n', 'v\n1\n"2\n', 'n,v\n1,"a'], ids=["middle", "line", "end"]
)
def test_quote_that_is_not_closed_is_refused(lake: fm.Lake, tmp_path: Path, text: str):
    (tmp_path / "a.csv").write_text(text)
    made = lake.create("t")
    with pytest.raises(UnreadableFile, match="a quote is not closed"):
        made.write(tmp_path / "a.csv")
    assert made.schema is None


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\n\n"], ids=repr)
def test_end_of_a_file_changes_no_value(lake: fm.Lake, tmp_path: Path, end: str):
    (tmp_path / "a.csv").write_bytes(f'n,v\r\n1,"x\n"\r\n"2",{end}'.encode())
    made = lake.create("t")
    made.write(tmp_path / "a.csv")
    assert made.to_arrow().to_pydict() == {"n": [1, 2], "v": ["x\n", None]}


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("2026-11-19", pa.date32()),
        ("2026-11-19T08:00:00", pa.timestamp("us")),
        ("2026-11-19T08:00:00Z", pa.timestamp("us", "UTC")),
        ("2026-11-19T08:00:00+09:00", pa.timestamp("us", "UTC")),
    ],
)
def test_times_of_json_keep_their_zone(lake: fm.Lake, tmp_path: Path, text: str, data_type: pa.DataType):
    (tmp_path / "a.json").write_text(json.dumps({"at": text}) + "\n")
    made = lake.create("t")
    made.write(tmp_path / "a.json")
    assert made.schema == pa.schema([("at", data_type)])
    [value] = made.to_arrow().column("at").to_pylist()
    assert value == (date.fromisoformat(text) if data_type == pa.date32() else datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("date32", 1),
        ("time64[us]", 1),
        ("timestamp[us]", "2026-11-19T08:00:00Z"),
        ("timestamp[us, tz=UTC]", "2026-11-19T08:00:00"),
    ],
)
def test_json_value_that_is_no_such_time_is_refused(lake: fm.Lake, tmp_path: Path, data_type: str, value: Any):
    (tmp_path / "a.json").write_text("\n" + json.dumps({"at": None}) + "\n" + json.dumps({"at": value}) + "\n")
    types = {"time64[us]": pa.time64("us"), "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC")}
    made = lake.create("t", schema={"at": types.get(data_type, data_type)})
    with pytest.raises(UnreadableFile, match=r"line 3|changed from string to number"):
        made.write(tmp_path / "a.json")
    assert made.count() == 0


@pytest.mark.parametrize("schema", [None, {"v": "string"}])
def test_json_column_of_numbers_and_text_is_refused_with_what_helps(lake: fm.Lake, tmp_path: Path, schema: Any):
    (tmp_path / "a.json").write_text('{"v": "01"}\n{"v": 7}\n')
    made = lake.create("t", schema=schema)
    with pytest.raises(UnreadableFile, match="changed from string to number") as refused:
        made.write(tmp_path / "a.json")
    assert "all in quotes" in refused.value.hint
    (tmp_path / "a.json").write_text('{"v": "01"}\n{"v": "7"}\n')
    made.write(tmp_path / "a.json")
    assert made.to_arrow()["v"].to_pylist() == ["01", "7"]


def test_files_of_a_new_dataset_with_other_columns_are_refused_with_what_helps(lake: fm.Lake, tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n,more\n2,x\n")
    with pytest.raises(UnknownColumns, match="'more'") as refused:
        lake.create("t").write(tmp_path)
    assert refused.value.hint == "drop it, or create the dataset with schema=, which has the columns of all files"
    made = lake.create("u", schema="n bigint, more string")
    with pytest.raises(MissingColumns, match=r"a\.csv lacks columns of the dataset: 'more'"):
        made.write(tmp_path)
    made.write(tmp_path / "b.csv")


def test_empty_text_is_no_path(lake: fm.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.csv").write_text("n\n1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableFile, match="no path"):
        lake.create("t").write("")


def test_code_in_json_is_no_decimal(lake: fm.Lake, tmp_path: Path):
    (tmp_path / "a.json").write_text('{"id": 7.5}\n{"id": "007"}\n')
    with pytest.raises(UnreadableFile, match="line 2: the value '007'"):
        lake.create("t", schema={"id": pa.decimal128(9, 1)}).write(tmp_path / "a.json")

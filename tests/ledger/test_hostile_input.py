"""Input that looks harmless and would lose or change data if it were taken as it comes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floodmark.errors import (
    BadData,
    BadPosition,
    DatasetExists,
    TypeMismatch,
    UnknownColumns,
    UnreadableFile,
    UnreadableSlice,
    UnsupportedType,
)
from ledger.worlds import numbers


@pytest.fixture
def dataset(lake):
    made = lake.create("d")
    made.write(numbers(0, 3))
    return made


def test_no_time_at_all_purges_nothing(dataset):
    with pytest.raises(BadPosition):
        dataset.purge(pd.NaT)
    with pytest.raises(BadPosition):
        dataset.to_arrow(as_of=pd.NaT)
    with pytest.raises(BadPosition):
        dataset.advance_watermark(pd.NaT)
    assert dataset.count() == 3


@pytest.mark.parametrize("offset", [1.5, float("nan"), True, "1"])
def test_what_is_no_offset_is_not_taken_for_one(dataset, offset):
    with pytest.raises(TypeError, match="not an offset"):
        dataset.changes_arrow(since=offset)
    with pytest.raises(TypeError, match="not an offset"):
        dataset.changes_arrow(until=offset)


def test_offset_of_numpy_is_an_offset(dataset):
    assert dataset.changes_arrow(since=np.int64(1)).num_rows == 1


def test_purge_before_a_huge_offset_takes_everything(dataset):
    assert dataset.purge(10**30).before == 3


def test_text_that_is_not_utf8_is_refused(lake, tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}\n')
    (tmp_path / "latin.csv").write_bytes(b"a\n\xe9\n")
    made = lake.create("t")
    with pytest.raises(TypeMismatch, match="'a'"):
        made.write(tmp_path / "latin.json")
    with pytest.raises(UnreadableFile, match="'a' is not UTF-8"):
        made.write(tmp_path / "latin.csv")
    assert made.schema is None


def test_python_objects_of_polars_are_refused(lake):
    frame = pl.DataFrame({"o": pl.Series(["x", {"y": 1}], dtype=pl.Object)})
    with pytest.raises(BadData, match="'o'"):
        lake.create("t").write(frame)


def test_named_index_of_pandas_is_data(lake):
    made = lake.create("t")
    made.write(pd.DataFrame({"v": [1, 2]}, index=pd.Index(["a", "b"], name="key")))
    assert made.to_arrow().to_pydict() == {"key": ["a", "b"], "v": [1, 2]}


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_value_that_arrow_cannot_hold_is_refused(lake, value):
    with pytest.raises(BadData):
        lake.create("t").write(pd.DataFrame({"v": [value]}))


@pytest.mark.parametrize(
    "data_type",
    [pa.list_(pa.int32(), 0), pa.binary(0), pa.decimal128(5, -2), pa.struct([("", pa.int8())])],
    ids=str,
)
def test_type_that_cannot_be_read_back_is_refused(lake, data_type):
    with pytest.raises(UnsupportedType, match="'x'"):
        lake.create("t", schema={"x": data_type})


def test_words_for_nothing_are_words_in_csv(lake, tmp_path):
    (tmp_path / "a.csv").write_text('country\nNA\nnull\n""\n"NA"\n')
    made = lake.create("t")
    made.write(tmp_path / "a.csv")
    assert made.to_arrow().column("country").to_pylist() == ["NA", "null", "", "NA"]


def test_whole_seconds_leave_room_for_finer_times(lake, tmp_path):
    (tmp_path / "a.csv").write_text("at\n2026-01-01T00:00:00Z\n")
    (tmp_path / "b.csv").write_text("at\n2026-01-01T00:00:00.123456Z\n")
    made = lake.create("t", event_time="at")
    made.write(tmp_path / "a.csv")
    made.write(tmp_path / "b.csv")
    assert made.schema.field("at").type == pa.timestamp("us", "UTC")


def test_field_that_the_dataset_lacks_is_named_in_json(lake, tmp_path):
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    (tmp_path / "b.json").write_text('{"n": 1, "extra": 2}\n')
    made = lake.create("t")
    made.write(tmp_path / "a.json")
    with pytest.raises(UnknownColumns, match="'extra'"):
        made.write(tmp_path / "b.json")


def test_existing_dataset_with_another_event_time_is_not_opened(lake):
    lake.create("t", event_time="at")
    with pytest.raises(DatasetExists, match="'at'"):
        lake.create("t", event_time="other", exist_ok=True)
    assert lake.create("t", event_time="at", exist_ok=True).event_time == "at"


def test_damaged_slice_is_said_to_be_damaged(dataset):
    [digest] = dataset.snapshot().slices.column("physical").to_pylist()
    [info] = [i for i in dataset.snapshot().objects.store.list("datasets") if digest.hex() in i.key]
    path = dataset.snapshot().objects.store.local_path(info.key)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnreadableSlice, match="records 0 to 2"):
        dataset.to_arrow()


def test_stray_file_among_the_names_hides_no_dataset(lake, dataset):
    lake.store.put_derived("names/readme.txt", b"hello")
    assert [d.name for d in lake.datasets()] == ["d"]
    assert "d" in lake
    lake.drop("d")
    assert list(lake.store.list("datasets")) == []

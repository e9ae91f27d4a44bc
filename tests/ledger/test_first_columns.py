"""What the first write decides: decimals, columns without values, declared schemas, and frames without rows."""

from __future__ import annotations

import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types

import floodmark as fm
from floodmark.errors import BadData, MissingColumns, NothingToWrite, UnknownColumns, UnsupportedType
from floodmark.storage.memory import MemoryStore
from ledger.worlds import untouched


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


# Decimals


@pytest.mark.parametrize("key", [None, "id"])
def test_decimals_of_python_leave_room_for_the_next_ones(lake: fm.Lake, key: str | None) -> None:
    """The first price, 9.99, once made the column decimal(3, 2)."""
    shop = lake.create("shop", key=key)
    prices = ["9.99", "10", "1234567.125", None]
    for i, price in enumerate(prices):
        shop.write(pd.DataFrame({"id": [i], "price": [None if price is None else Decimal(price)]}))
    assert shop.schema is not None
    assert shop.schema.field("price").type == pa.decimal128(38, 18)
    assert shop.to_arrow()["price"].to_pylist() == [None if price is None else Decimal(price) for price in prices]


def test_declared_decimals_stay_as_declared(lake: fm.Lake) -> None:
    arrow = lake.create("arrow")
    arrow.write(pa.table({"price": pa.array([Decimal("9.99")], pa.decimal128(10, 2))}))
    declared = lake.create("declared", schema={"price": "decimal(10,2)"})
    for dataset in (arrow, declared):
        dataset.write(pd.DataFrame({"price": [Decimal("12.5"), None]}))
        assert dataset.to_arrow().schema.field("price").type == pa.decimal128(10, 2)
        with untouched(dataset), pytest.raises(BadData, match="price"):
            dataset.write(pd.DataFrame({"price": [Decimal("0.001")]}))


@pytest.mark.parametrize("value", ["123456789012345678901234567890", "1E-30"])
def test_decimals_that_do_not_fit_the_common_type_keep_their_value(lake: fm.Lake, value: str) -> None:
    dataset = lake.create("d")
    dataset.write(pd.DataFrame({"n": [Decimal(value)]}))
    assert dataset.to_arrow()["n"].to_pylist() == [Decimal(value)]


@pytest.mark.parametrize("nested", [False, True])
def test_decimal_that_is_too_large_for_its_column_is_refused(lake: fm.Lake, nested: bool) -> None:
    """Arrow casts it to another number without an error."""
    target, source = pa.decimal128(38, 18), pa.decimal128(30, 0)
    dataset = lake.create("d", schema={"n": pa.list_(target) if nested else target})
    large: Any = Decimal("123456789012345678901234567890")
    rows = [[large]] if nested else [large]
    with untouched(dataset), pytest.raises(BadData, match="n"):
        dataset.write(pa.table({"n": pa.array(rows, pa.list_(source) if nested else source)}))
    small: Any = [[Decimal(7)]] if nested else [Decimal(7)]
    dataset.write(pa.table({"n": pa.array(small, pa.list_(source) if nested else source)}))
    assert dataset.to_arrow()["n"].to_pylist() == small


# Columns without values


@pytest.mark.parametrize("key", [None, "id"])
def test_column_without_values_is_left_out_until_it_has_some(
    lake: fm.Lake, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = lake.create("d", key=key)
    with caplog.at_level(logging.WARNING):
        dataset.write(pd.DataFrame({"id": [1], "note": [None]}))
    assert "'d' gets no column 'note': it has no values" in caplog.text
    dataset.write(pd.DataFrame({"id": [2], "note": [None]}))
    assert dataset.to_arrow().to_pylist() == [{"id": 1}, {"id": 2}]
    noted = pd.DataFrame({"id": [3], "note": ["late"]})
    with untouched(dataset), pytest.raises(UnknownColumns, match="note") as refused:
        dataset.write(noted)
    assert ".evolve({'note': …})" in refused.value.hint
    dataset.evolve({"note": "string"})
    dataset.write(noted)
    assert dataset.to_arrow()["note"].to_pylist() == [None, None, "late"]


def test_key_without_values_and_frame_of_only_such_columns_are_refused(lake: fm.Lake) -> None:
    for dataset in (lake.create("keyed", key="id"), lake.create("plain")):
        with untouched(dataset), pytest.raises(UnsupportedType, match="'id' has type null"):
            dataset.write(pa.table({"id": pa.nulls(1)}))


# Schemas

FORMS: dict[str, Any] = {
    "types by column": {"id": "int32", "v": "string"},
    "Spark's names by column": {"id": "int", "v": "string"},
    "text": "id int, v string",
    "text with more": "`id` INT NOT NULL COMMENT 'the id', v: varchar(10)",
    "arrow": pa.schema([("id", pa.int32()), ("v", pa.string())]),
    "struct": spark_types.StructType().add("id", "integer").add("v", "string"),
    "Spark's types by column": {"id": spark_types.IntegerType(), "v": spark_types.StringType()},
}


@pytest.mark.parametrize("form", FORMS)
def test_schema_may_be_given_in_the_forms_that_spark_users_know(lake: fm.Lake, form: str) -> None:
    dataset = lake.create("d", schema=FORMS[form])
    assert dataset.schema is not None
    assert list(zip(dataset.schema.names, dataset.schema.types, strict=True)) == [
        ("id", pa.int32()),
        ("v", pa.string()),
    ]
    other = lake.create("other", schema="n long")
    assert other.evolve(FORMS[form]).names == ["n", "id", "v"]
    assert fm.OutputSpec("out", schema=FORMS[form])
    assert fm.DatasetSpec("spec", schema=FORMS[form])


def test_text_may_have_every_type_of_a_dataset(lake: fm.Lake) -> None:
    text = (
        "a boolean, b tinyint, c short, d bigint, e float, f double, g decimal(12, 3), h binary, i date, j timestamp, "
        "k timestamp_ntz, l array<int>, m struct<x: int, y: array<string>>, n decimal, `o p` string"
    )
    schema = lake.create("d", schema=text).schema
    assert schema is not None
    spark = spark_types.StructType().add("a", "boolean").add("b", "byte").add("c", "short").add("d", "long")
    assert schema.field("g").type == pa.decimal128(12, 3)
    assert schema.field("j").type == pa.timestamp("us", "UTC")
    assert schema.field("k").type == pa.timestamp("us")
    assert schema.field("l").type.value_type == pa.int32()
    assert schema.field("m").type.field("y").type.value_type == pa.string()
    assert schema.names[-1] == "o p"
    assert lake.create("s", schema=spark).schema.types == schema.types[:4]  # type: ignore[union-attr]


def test_text_may_have_the_names_of_arrow(lake: fm.Lake) -> None:
    schema = lake.create("d", schema="a int64, b timestamp[us], c array<float64>, d float").schema
    assert schema is not None
    assert schema.types == [pa.int64(), pa.timestamp("us"), pa.list_(pa.float64()), pa.float32()]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id integr", "column 'id': 'integr' is not a type"),
        ("id", "is not a schema at 'the end'"),
        ("id int,", "is not a schema"),
        ("id int v string", "is not a schema at 'v string'"),
        ("id array<int", "is not a schema"),
        ("id decimal(99)", "is not a schema"),
        ("", "is not a schema"),
        ("id = int", "is not a schema"),
        (7, "7 is not a schema"),
        (["id"], "is not a schema"),
        ({"id": "integr"}, "column 'id': 'integr' is not a type"),
        ({"id": 7}, "column 'id': 7 is not a type"),
    ],
)
def test_other_schemas_are_refused_with_the_forms(lake: fm.Lake, schema: Any, message: str) -> None:
    with pytest.raises(BadData, match=message) as refused:
        lake.create("d", schema=schema)
    assert "int" in refused.value.hint
    assert "d" not in lake
    with pytest.raises(fm.FloodmarkError, match="not a"):
        fm.OutputSpec("out", schema=schema)


# Frames without rows


@pytest.mark.parametrize(("key", "merge"), [(None, "append"), ("id", "upsert"), ("id", "ledger")])
def test_frame_without_rows_changes_nothing(lake: fm.Lake, key: str | None, merge: str) -> None:
    empty = pd.DataFrame({"id": [], "v": []})
    dataset = lake.create("d", key=key, merge=merge)
    with untouched(dataset), pytest.raises(NothingToWrite, match="no columns yet") as refused:
        dataset.write(empty)
    assert "write rows first" in refused.value.hint
    dataset.write(pd.DataFrame({"id": [1], "v": ["a"]}))
    with untouched(dataset):
        commit = dataset.write(empty)
        assert (commit.rows, commit.new, commit.block) == (0, 0, dataset.head)
    with untouched(dataset), pytest.raises(MissingColumns):
        dataset.write(pd.DataFrame())
    once = dataset.write(empty, source="day", state="1")
    assert (once.rows, once.state) == (0, "1")
    assert dataset.write(pd.DataFrame({"id": [2], "v": ["b"]}), source="day", state="1") == once
    assert dataset.count() == 1
    assert dataset.verify().ok


def test_files_without_rows_change_nothing(lake: fm.Lake, tmp_path: Path) -> None:
    dataset = lake.create("d", schema="id int, v string")
    (tmp_path / "none.csv").write_text("id,v\n")
    with untouched(dataset):
        assert dataset.write(tmp_path / "none.csv").rows == 0

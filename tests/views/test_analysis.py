"""What is kept of an analysed query: written and read again, and compared."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from floodmark.views.analysis import Analysis, InputSchema, InputUse, schemas_digest

USE = InputUse("t", "did:t", (("i", "id"),), ("id", "n"), ("n",))
ANALYSIS = Analysis(
    kind="rows",
    why=None,
    sources=(USE,),
    columns=pa.schema({"i": pa.int32(), "l": pa.list_(pa.field("element", pa.string())), "d": pa.decimal128(5, 2)}),
    t=("i", "floodmark_key_k"),
    key=("i", "floodmark_key_k"),
    hidden=pa.schema({"floodmark_key_k": pa.timestamp("us", "UTC")}),
    query="select 1",
    identity=False,
    inject={"t": (("floodmark_key_k", "k"),)},
    schemas="abc",
)
SOURCE = InputSchema("did:t", "t", pa.schema({"id": pa.int32(), "n": pa.int64()}), ("id",), ("n",))


def test_analysis_is_read_as_it_was_written() -> None:
    again = Analysis.from_json(json.loads(json.dumps(ANALYSIS.to_json())))
    assert again == ANALYSIS
    assert again.columns.field("l").type == ANALYSIS.columns.field("l").type
    assert again.stored.names == ["i", "l", "d", "floodmark_key_k"]


@pytest.mark.parametrize("damage", [{"kind": "odd"}, {"columns": "no"}, {"sources": [{}]}, {"key": None}])
def test_what_is_no_analysis_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Analysis.from_json({**ANALYSIS.to_json(), **damage})


def test_digest_of_sources_knows_neither_names_nor_their_order() -> None:
    other = replace(SOURCE, dataset_id="did:u", name="u")
    assert schemas_digest([SOURCE, other]) == schemas_digest([other, replace(SOURCE, name="renamed")])


@pytest.mark.parametrize(
    "change",
    [
        {"schema": pa.schema({"id": pa.int32(), "n": pa.int32()})},
        {"schema": pa.schema({"id": pa.int32(), "m": pa.int64()})},
        {"schema": pa.schema({"n": pa.int64(), "id": pa.int32()})},  # a star sees the order
        {"key": ("n",)},
        {"computed": ()},
        {"hidden": pa.schema({"floodmark_row": pa.int64()})},
        {"dataset_id": "did:other"},
        {"offset": "position"},
    ],
)
def test_digest_of_sources_sees_every_change(change: dict[str, object]) -> None:
    assert schemas_digest([replace(SOURCE, **change)]) != schemas_digest([SOURCE])  # type: ignore[arg-type]

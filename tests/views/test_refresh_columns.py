"""The columns of a view from one definition to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.errors import ViewChanged
from floodmark.view import View
from floodmark.views.analysis import Analysis, content_version, layout_of
from views.refresh_worlds import lake_without_spark, orders, view_of

INT, TEXT = pa.int64(), pa.string()


def made(folder: Path) -> tuple[View, Analysis]:
    """A view with the columns id and twice, without rows."""
    lake = lake_without_spark(folder)
    view = view_of(lake, orders(lake))
    view.refresh()
    return view, view.analysis


def test_every_column_may_be_null_the_key_too(tmp_path: Path) -> None:
    view, analysis = made(tmp_path)
    assert all(f.nullable for f in layout_of("doubled", analysis, view.snapshot()).data)
    assert all(f.nullable for f in view.to_arrow().schema)


def test_columns_come_in_the_order_of_the_new_query_then_hidden_then_retired(tmp_path: Path) -> None:
    view, analysis = made(tmp_path)
    wanted = replace(analysis, columns=pa.schema([("a", TEXT), ("id", INT)]), hidden=pa.schema([("floodmark_x", INT)]))
    layout = layout_of("doubled", wanted, view.snapshot())
    assert layout.data.names == ["a", "id", "floodmark_x", "twice"]
    assert layout.hidden == ("floodmark_x", "twice")
    assert layout.shown.names == ["a", "id"]


@pytest.mark.parametrize("kind", [TEXT, pa.float64(), pa.int32()])
def test_column_of_another_type_is_refused_even_where_values_might_fit(kind: pa.DataType, tmp_path: Path) -> None:
    view, analysis = made(tmp_path)
    wanted = replace(analysis, columns=pa.schema([("id", INT), ("twice", kind)]))
    with pytest.raises(ViewChanged, match=f"'twice' of view 'doubled' is int64, and its query now gives {kind}"):
        layout_of("doubled", wanted, view.snapshot())


def test_another_key_is_refused(tmp_path: Path) -> None:
    view, analysis = made(tmp_path)
    with pytest.raises(ViewChanged, match="is id, and its query now has the key twice"):
        layout_of("doubled", replace(analysis, key=("twice",)), view.snapshot())


def test_column_spelled_with_other_capitals_is_refused(tmp_path: Path) -> None:
    view, analysis = made(tmp_path)
    with pytest.raises(ViewChanged, match="a column 'twice', and its query now spells it 'TWICE'") as raised:
        layout_of("doubled", replace(analysis, columns=pa.schema([("id", INT), ("TWICE", INT)])), view.snapshot())
    assert raised.value.facts["what"] == "column 'twice' is spelled 'TWICE' now"


def test_version_is_another_one_when_rows_would_look_different(tmp_path: Path) -> None:
    _, analysis = made(tmp_path)
    same = content_version("v1", analysis)
    assert content_version("v1", replace(analysis, schemas="other", query="select 1")) == same
    assert content_version("v2", analysis) != same
    assert content_version("v1", replace(analysis, columns=pa.schema([("id", INT)]))) != same
    assert content_version("v1", replace(analysis, t=())) != same

"""What is said of a query that cannot be a view, or cannot be one any more: which view, which column, what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake, udf
from floodmark.engine.session import Runtime, Session
from floodmark.errors import (
    BadColumnName,
    BadQuery,
    FloodmarkError,
    ReadOnlyDataset,
    SourceGone,
    UnknownDataset,
    UnsupportedType,
)

pytestmark = pytest.mark.spark

ROW = pa.table({"id": [7], "v": ["x"]})


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> Lake:
    made = Lake(tmp_path, runtime=Runtime(session=session))
    made.create("a", key="id", schema={"id": "int64", "v": "string"})
    made.create("b", key="id", schema={"id": "int64", "w": "string"})
    return made


@pytest.mark.parametrize(
    ("sql", "error", "hint"),
    [
        ("select id, null as n from a", UnsupportedType, "cast(null as "),
        ("select id, map(1, 2) as m from a", UnsupportedType, ""),
        ("select id as op from a", BadColumnName, "rename it"),
        ("select id from aa", UnknownDataset, "'a'"),
        ("select id, v as ID from a", BadColumnName, "as other_name"),
        ("select id fro a", BadQuery, "quote a name"),
    ],
)
def test_what_is_said_against_a_query_names_the_view(
    lake: Lake, sql: str, error: type[FloodmarkError], hint: str
) -> None:
    with pytest.raises(error, match=r"^view 'v': ") as caught:
        lake.view("v", sql=sql)
    assert caught.value.facts["view"] == "v"
    assert hint in caught.value.hint


def test_source_that_is_not_there_is_said_of_the_view(lake: Lake) -> None:
    with pytest.raises(UnknownDataset, match=r"^view 'v': there is no dataset 'aa'"):
        lake.view("v", source="aa")


def test_text_that_is_no_expression_is_not_taken_for_a_query(lake: Lake) -> None:
    with pytest.raises(BadQuery, match="'id >' is not a SQL expression") as caught:
        lake.view("v", source="a", where="id >")
    assert "one expression" in caught.value.hint
    assert "tables" not in caught.value.hint


def test_column_that_makes_a_star_ambiguous_is_found_by_the_refresh(lake: Lake) -> None:
    view = lake.view("v", sql="select a.*, b.* except (id) from a join b on a.id = b.id")
    view.refresh()
    lake["b"].evolve({"V": "string"})
    with pytest.raises(BadColumnName, match=r"^view 'v': its result has two columns 'v' and 'V'") as caught:
        view.refresh()
    assert "'a' and 'b' have one each" in caught.value.message
    assert caught.value.facts["sources"] == ["a", "b"]


def test_source_that_was_dropped_is_replaced_by_declaring_again(lake: Lake) -> None:
    sql = "select id, v from a"
    view = lake.view("v", sql=sql)
    lake._drop_alone("a")
    with pytest.raises(SourceGone) as caught:
        view.refresh()
    assert "create 'a' and declare 'v' again" in caught.value.hint
    lake.create("a", key="id", schema={"id": "int64", "v": "string"}).write(ROW)
    with pytest.raises(SourceGone) as caught:
        view.refresh()
    assert "declare 'v' again to read the new dataset" in caught.value.hint
    again = lake.view("v", sql=sql)
    again.refresh()
    assert again.to_arrow()["id"].to_pylist() == [7]


def test_view_takes_no_data_and_says_that_it_is_refreshed(lake: Lake) -> None:
    view = lake.view("v", sql="select id, v from a")
    for hint, write in {
        "refresh the view": lambda: view.write(ROW),
        "the definition of the view": lambda: view.evolve({"more": "int64"}),
        "declare the view": lambda: view.purge(before=1),
    }.items():
        with pytest.raises(ReadOnlyDataset) as caught:
            write()
        assert hint in caught.value.hint


@udf(returns="int64")
def length(v: str) -> int:
    return len(v)


def test_a_column_of_a_function_in_where_is_for_a_view_on_this_one(lake: Lake) -> None:
    with pytest.raises(BadQuery) as caught:
        lake.view("v", source="a", select={"id": "id", "n": length}, where="n > 1")
    assert "a second view" in (caught.value.hint or "")
    assert "floodmark_" not in str(caught.value)
    assert "`id`" in str(caught.value)

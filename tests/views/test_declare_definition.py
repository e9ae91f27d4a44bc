"""A definition says what a view is, refuses what cannot be one before Spark is started, and has a version."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadFunction, BadView
from floodmark.views import spark_sql
from floodmark.views.definition import ViewDefinition, define, resolve_udf


@fm.udf(returns=pa.list_(pa.float32()), nullable=False)
def brightness(image: bytes) -> list[float]:
    return [len(image) / 2]


def plain(image: bytes) -> int:
    return len(image)


def full(**changed: Any) -> ViewDefinition:
    given = {"source": "images", "select": {"id": "id", "b": brightness}, "where": "id > 10"}
    return define("v", **{**given, **changed})


def test_a_definition_survives_json():
    for made in (full(), define("v", sql="select 1 from x"), define("v", source="x", where="a = 'é'")):
        again = ViewDefinition.from_json(json.loads(json.dumps(made.to_json())))
        assert again == made
        assert again.version == made.version


def test_what_a_function_returns_is_kept_in_full():
    [column] = ViewDefinition.from_json(full().to_json()).udfs
    assert column.field == pa.field("b", pa.list_(pa.float32()), nullable=False)
    assert (column.name, column.inputs, column.function.module) == ("b", ("image",), __name__)


def test_columns_of_functions_are_left_out_of_the_query_and_shown_to_people():
    made = full()
    assert made.query == "select id as `id` from `images` as `images` where (id > 10)"
    shown = "select id as `id`, `brightness`(`image`) as `b` from `images` as `images` where (id > 10)"
    assert made.shown_query == shown
    assert made.compose(["floodmark_offset"]).startswith("select id as `id`, `floodmark_offset` from")


def test_a_query_of_functions_alone_asks_for_the_offset():
    assert full(select={"b": brightness}, where=None).query == "select `floodmark_offset` from `images`"


def test_without_select_all_columns_are_meant():
    made = define("v", source="my-images")
    assert made.query == made.shown_query == "select * from `my-images`"
    assert made.compose(["k"]) == "select *, `k` from `my-images`"


def test_an_expression_may_end_in_a_comment():
    made = define("v", source="x", select={"a": "b -- the other", "c`d": "c"}, where="a > 1 -- large")
    assert made.query == "select b -- the other\n as `a`, c as `c``d` from `x` as `x` where (a > 1 -- large\n)"


def test_the_semicolon_at_the_end_is_no_part_of_a_query():
    assert define("v", sql=" select 1 from x ; -- done\n;\n").sql == "select 1 from x"


OTHERS: dict[str, Any] = {
    "another where": {"where": "id > 11"},
    "no where": {"where": None},
    "another source": {"source": "pictures"},
    "another expression": {"select": {"id": "id + 0", "b": brightness}},
    "another name": {"select": {"id": "id", "c": brightness}},
    "another order": {"select": {"b": brightness, "id": "id"}},
    "other inputs": {"select": {"id": "id", "b": (brightness, ["thumb"])}},
    "another version of the function": {
        "select": {"id": "id", "b": fm.udf(returns=pa.list_(pa.float32()), name="brightness", version="2")(plain)}
    },
    "another type": {
        "select": {
            "id": "id",
            "b": fm.udf(returns="int32", nullable=False, name="brightness", version=brightness.version)(plain),
        }
    },
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_definition_has_another_version(other):
    assert full().version == full().version
    assert full(**OTHERS[other]).version != full().version


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "the view has neither sql= nor source="),
    "both": ({"sql": "select 1", "source": "x"}, "not by both"),
    "sql and where": ({"sql": "select 1", "where": "x"}, "not by both"),
    "where alone": ({"where": "x"}, "the view has neither sql= nor source="),
    "sql of another type": ({"sql": 7}, "sql=7 is not text"),
    "empty sql": ({"sql": " ; -- nothing"}, "its query is empty"),
    "two statements": ({"sql": "select 1 from x; select 2 from x"}, "its query has several statements"),
    "a command": ({"sql": "drop table x"}, "its query begins with DROP"),
    "an insert": ({"sql": "/* select */ insert into x select 1"}, "its query begins with INSERT"),
    "no word at all": ({"sql": "'select'"}, "its query is not a query"),
    "source of another type": ({"source": 7}, "source=7 is not a dataset"),
    "empty source": ({"source": ""}, "source='' is not a dataset"),
    "select without names": ({"source": "x", "select": ["id"]}, "is not a mapping of column names"),
    "select of text": ({"source": "x", "select": "id"}, "is not a mapping of column names"),
    "empty select": ({"source": "x", "select": {}}, "names no column"),
    "a name of another type": ({"source": "x", "select": {7: "id"}}, "a column 7, which is not text"),
    "an empty name": ({"source": "x", "select": {"": "id"}}, "a column has no name"),
    "a system name": ({"source": "x", "select": {"OFFSET": "id"}}, "reserved for the system columns"),
    "a hidden name": ({"source": "x", "select": {"Floodmark_row": "id"}}, "reserved prefix"),
    "one name twice": ({"source": "x", "select": {"a": "id", "A": "id"}}, "have the same name"),
    "a value of another type": ({"source": "x", "select": {"a": 7}}, "column 'a' is 7"),
    "a bare function": ({"source": "x", "select": {"a": plain}}, "is a plain function"),
    "a bare function and inputs": ({"source": "x", "select": {"a": (plain, ["b"])}}, "is a plain function"),
    "inputs of another type": ({"source": "x", "select": {"a": (brightness, 7)}}, "the inputs of column 'a' are 7"),
    "three things": ({"source": "x", "select": {"a": (brightness, ["b"], 1)}}, "column 'a' is (<udf"),
    "an empty expression": ({"source": "x", "select": {"a": "  "}}, "column 'a' is empty"),
    "a statement as a column": ({"source": "x", "select": {"a": "b; drop table c"}}, "not a single SQL expression"),
    "where of another type": ({"source": "x", "where": 7}, "where is 7, which is not SQL text"),
    "where as a function": ({"source": "x", "where": plain}, "which is not SQL text"),
    "empty where": ({"source": "x", "where": ""}, "where is empty"),
    "where with more": ({"source": "x", "where": "a) group by (b"}, "not a single SQL expression"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_with_a_hint(case):
    given, complaint = BAD[case]
    with pytest.raises(BadView) as caught:
        define("daily", **given)
    assert caught.value.message.startswith("view 'daily': ")
    assert complaint in caught.value.message
    assert caught.value.hint
    assert caught.value.view == "daily"


@pytest.mark.parametrize(
    "sql",
    [
        "select ';' from x",
        'select ";" from x',
        "select `a;b` from x",
        "select 1 -- ; no\nfrom x",
        "select /* ; */ 1 from x",
        r"select '\';' from x",
        r"select r'\' as path, ';' from x",
        "select 'it''s; fine' from x",
        "with y as (select 1 from x) select * from y",
        "(select 1 from x) union all (select 2 from x)",
        "from x select a",
    ],
)
def test_semicolons_in_quotes_and_comments_end_nothing(sql):
    assert define("v", sql=sql + ";").sql == sql
    assert not spark_sql.has_several_statements(sql)
    assert spark_sql.has_several_statements(f"{sql}\n; select 2 from x")


def test_brackets_in_quotes_close_nothing():
    where = "a = ')' or b in (1, 2) -- :)"
    assert define("v", source="x", where=where).where == where


def test_a_function_that_nobody_else_keeps_is_found_again():
    made = define("v", source="x", select={"a": fm.udf(returns="int64", version="kept-7")(lambda a: a)})
    assert resolve_udf("v", made.udfs[0], ()).version == "kept-7"


def test_a_given_function_comes_first_and_an_unknown_one_is_named():
    mine = fm.udf(returns="int64", name="f", version="1")(plain)
    [column] = define("v", source="x", select={"a": mine}).udfs
    twin = fm.udf(returns="int64", name="f", version="1")(plain)
    assert resolve_udf("v", column, [twin]) is twin
    said = json.loads(json.dumps(define("v", source="x", select={"a": mine}).to_json()).replace('"1"', '"gone"'))
    [lost] = ViewDefinition.from_json(said).udfs
    with pytest.raises(BadFunction) as caught:
        resolve_udf("v", lost, [])
    assert "of column 'a' is not known here" in caught.value.message
    with pytest.raises(BadFunction) as caught:
        resolve_udf("v", lost, [mine])
    assert "the given one has version 1" in caught.value.message
    with pytest.raises(TypeError, match="is not a udf"):
        resolve_udf("v", lost, [plain])

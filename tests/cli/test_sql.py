"""`floodmark sql` answers through DuckDB, or Spark."""

from __future__ import annotations

import pytest


def test_answer_is_an_aligned_table(run, trips):
    answer = run("sql", "select pay, fare from trips order by id")
    assert answer.lines == ["pay   fare", "card   1.5", "null  null", "cash   3.0"]


def test_json_has_columns_with_types_and_rows(run, trips):
    found = run("sql", "select id, pay from trips where id < 3 order by id", "--json").json
    assert found["columns"] == [{"name": "id", "type": "int64"}, {"name": "pay", "type": "string"}]
    assert found["rows"] == [{"id": 1, "pay": "card"}, {"id": 2, "pay": None}]


def test_no_rows_says_so(run, trips):
    answer = run("sql", "select id from trips where id > 99")
    assert (answer.code, answer.lines, answer.err) == (0, ["id"], "no rows\n")
    assert run("sql", "select id from trips where id > 99", "--json").json["rows"] == []


def test_columns_that_share_a_name_are_both_kept(run, trips):
    assert run("sql", "select 1 a, 2 a, 3 a", "--json").json["rows"] == [{"a": 1, "a_2": 2, "a_3": 3}]


def test_unknown_table_is_a_did_you_mean(run, trips):
    answer = run("sql", "select * from tripz")
    assert answer.code == 1
    assert "did you mean 'trips'?" in answer.err


@pytest.mark.parametrize("query", ["selec 1", "select nope from trips", "select error('x')", ""])
def test_query_that_fails_is_refused(run, trips, query):
    answer = run("sql", query, "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "BadQuery"


def test_all_rows_go_into_a_pipe(run, trips):
    assert len(run("sql", "select * from range(1000)").lines) == 1001


def test_data_cannot_break_lines_or_send_commands_to_the_terminal(run, trips):
    answer = run("sql", "select 'a' || chr(10) || chr(27) || '[31m' || chr(8238) as text")
    assert answer.lines == ["text", "a\\n\\u001b[31m\\u202e"]


@pytest.mark.spark
def test_spark_answers_like_duckdb(run, trips, spark):
    command = ["sql", "select id, pay from trips order by id", "--json"]
    by_spark = run(*command, "--spark")
    assert (by_spark.code, by_spark.err) == (0, "")
    assert by_spark.json["rows"] == run(*command).json["rows"]

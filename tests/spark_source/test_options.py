"""Options say what is read; what makes no sense is refused by name."""

from __future__ import annotations

import pytest

from floodmark.spark_source.errors import BadOption
from floodmark.spark_source.options import Delivery, Interval, Options, Place, Rows, Stream


def options(**given: str) -> Options:
    return Options({"lake": "/lake", "path": "trips", **given})


def test_the_lake_is_that_of_the_option_or_else_of_register():
    assert options().place() == Place("/lake", "trips")
    assert Options({"path": "trips"}, lake="/usual").place() == Place("/usual", "trips")
    assert Options({"path": "trips", "lake": "/lake"}, lake="/usual").place() == Place("/lake", "trips")


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, Rows(None, None, False)),
        ({"system": "true"}, Rows(None, None, True)),
        ({"as_of": "7"}, Rows("7", None, False)),
        ({"changes": "true"}, Rows(None, Interval(), True)),
        ({"since": "3"}, Rows(None, Interval(3), True)),
        ({"since": "-1", "until": "9", "system": "false"}, Rows(None, Interval(-1, 9), False)),
    ],
)
def test_a_batch_reads_rows_or_changes(given: dict[str, str], rows: Rows):
    assert options(**given).rows() == rows


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Stream("earliest", None, False)),
        ({"startingOffset": "LATEST", "system": "TRUE"}, Stream("latest", None, True)),
        ({"STARTINGOFFSET": "12", "maxrecordspertrigger": "5"}, Stream(12, 5, False)),
    ],
)
def test_a_stream_has_a_start_and_a_limit(given: dict[str, str], wanted: Stream):
    assert options(**given).stream() == wanted


def test_a_delivery_has_a_source_and_a_state_or_neither():
    assert options().delivery() is None
    assert options(source="kafka", state="17").delivery() == Delivery("kafka", "17")
    with pytest.raises(BadOption, match="go together"):
        options(source="kafka").delivery()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"as_off": "1"}, "did you mean 'as_of'"),
        ({"startingOffset": "3"}, "no option for reading"),
        ({"as_of": "1", "since": "2"}, "as_of is about"),
        ({"since": "yesterday"}, "no whole number"),
        ({"since": "3", "changes": "false"}, "about changes"),
        ({"system": "maybe"}, "neither true nor false"),
    ],
)
def test_options_of_a_batch_that_make_no_sense_are_refused(given: dict[str, str], complaint: str):
    with pytest.raises(BadOption, match=complaint):
        options(**given).rows()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"as_of": "1"}, "no option for streaming"),
        ({"startingOffset": "-1"}, "is no offset"),
        ({"startingOffset": "first"}, "no whole number"),
        ({"maxRecordsPerTrigger": "0"}, "at least 1"),
    ],
)
def test_options_of_a_stream_that_make_no_sense_are_refused(given: dict[str, str], complaint: str):
    with pytest.raises(BadOption, match=complaint):
        options(**given).stream()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"path": "a"}, "no lake"),
        ({"path": "a", "lake": "b"}, "a relative path"),
        ({"lake": "/b"}, "no dataset"),
        ({"lake": "s3://b/c"}, "no dataset"),
        ({"lake": "/b", "paths": '["a","b"]'}, "one dataset"),
    ],
)
def test_one_lake_and_one_dataset_are_needed(given: dict[str, str], complaint: str):
    with pytest.raises(BadOption, match=complaint):
        Options(given).place()


def test_a_query_that_writes_may_have_a_name():
    given = {"lake": "/lake", "path": "a", "checkpointLocation": "/checkpoint", "queryName": "copy"}
    assert Options(given).checkpoint() == "/checkpoint"

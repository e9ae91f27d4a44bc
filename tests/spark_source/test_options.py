"""Options say what is read; what makes no sense is refused by name."""

from __future__ import annotations

import pytest

from floodmark.errors import BadOption
from floodmark.spark_source.options import (
    DatasetAddress,
    Delivery,
    RecordInterval,
    RowsOptions,
    SourceOptions,
    StreamOptions,
)


def options(**given: str) -> SourceOptions:
    return SourceOptions({"lake": "/lake", "path": "trips", **given})


def test_the_lake_is_that_of_the_option_or_else_of_register():
    assert options().place() == DatasetAddress("/lake", "trips")
    assert SourceOptions({"path": "trips"}, lake="/usual").place() == DatasetAddress("/usual", "trips")
    assert SourceOptions({"path": "trips", "lake": "/lake"}, lake="/usual").place() == DatasetAddress("/lake", "trips")


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, RowsOptions(None, None, False)),
        ({"system": "true"}, RowsOptions(None, None, True)),
        ({"as_of": "7"}, RowsOptions("7", None, False)),
        ({"changes": "true"}, RowsOptions(None, RecordInterval(), True)),
        ({"since": "3"}, RowsOptions(None, RecordInterval(3), True)),
        ({"since": "-1", "until": "9", "system": "false"}, RowsOptions(None, RecordInterval(-1, 9), False)),
    ],
)
def test_a_batch_reads_rows_or_changes(given: dict[str, str], rows: RowsOptions):
    assert options(**given).rows() == rows


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, StreamOptions("earliest", None, False)),
        ({"startingOffset": "LATEST", "system": "TRUE"}, StreamOptions("latest", None, True)),
        ({"STARTINGOFFSET": "12", "maxrecordspertrigger": "5"}, StreamOptions(12, 5, False)),
    ],
)
def test_a_stream_has_a_start_and_a_limit(given: dict[str, str], wanted: StreamOptions):
    assert options(**given).stream() == wanted


def test_a_delivery_has_a_source_and_a_state_or_neither():
    assert options().delivery() is None
    assert options(source="kafka", state="17").delivery() == Delivery("kafka", "17")
    with pytest.raises(BadOption, match="must be given together"):
        options(source="kafka").delivery()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"as_off": "1"}, "did you mean 'as_of'"),
        ({"startingOffset": "3"}, "not an option for reading"),
        ({"as_of": "1", "since": "2"}, "as_of reads the rows at one time"),
        ({"since": "yesterday"}, "not a whole number"),
        ({"since": "3", "changes": "false"}, "cannot be used with changes=false"),
        ({"system": "maybe"}, "neither true nor false"),
    ],
)
def test_options_of_a_batch_that_make_no_sense_are_refused(given: dict[str, str], complaint: str):
    with pytest.raises(BadOption, match=complaint):
        options(**given).rows()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"as_of": "1"}, "not an option for streaming"),
        ({"startingOffset": "-1"}, "is not an offset"),
        ({"startingOffset": "first"}, "not a whole number"),
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
        SourceOptions(given).place()


def test_a_query_that_writes_may_have_a_name():
    given = {"lake": "/lake", "path": "a", "checkpointLocation": "/checkpoint", "queryName": "copy"}
    assert SourceOptions(given).checkpoint() == "/checkpoint"

"""A view's query means what it meant in the session that declared it, whichever session refreshes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.engine.session import Runtime, Session
from floodmark.errors import BadView
from floodmark.view import View
from floodmark.views.evaluator import IsolatedSession
from floodmark.views.spark_sql import isolated_session, meaning_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {"id": "int64", "at": pa.timestamp("us", "UTC"), "word": "string", "list": pa.list_(pa.int32())}
SQL = (
    "select id, date(at) day, cast(word as int) n, size(list) size, timestamp'2020-01-01 00:00:00' fixed, "
    "* except (id) from log"
)
LAPTOP = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
SERVER = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.shuffle.partitions": "3",
}

Opened = Callable[[Mapping[str, str]], Lake]


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession) -> Opened:
    """One lake, with sessions of these settings."""

    def lake(settings: Mapping[str, str]) -> Lake:
        other = spark.newSession()
        for name, value in settings.items():
            other.conf.set(name, value)
        return Lake(tmp_path, runtime=Runtime(session=Session(other)))

    return lake


def record(number: int) -> dict[str, Any]:
    return {"id": number, "at": datetime(2020, 1, 1, 20, tzinfo=UTC), "word": "no number", "list": None}


def write(lake: Lake, *numbers: int) -> None:
    wanted = pa.schema({name: pa.type_for_alias(t) if isinstance(t, str) else t for name, t in SCHEMA.items()})
    lake["log"].write(pa.Table.from_pylist([record(number) for number in numbers], wanted))


def meant(view: View) -> set[tuple[Any, ...]]:
    names = ["day", "n", "size", "fixed"]
    return {tuple(row[name] for name in names) for row in view.to_arrow().select(names).to_pylist()}


IN_TOKYO = {(date(2020, 1, 2), None, -1, datetime(2019, 12, 31, 15, tzinfo=UTC))}


@pytest.mark.spark
def test_view_means_the_same_whichever_session_refreshes_it(opened: Opened) -> None:
    laptop, server = opened(LAPTOP), opened(SERVER)
    laptop.create("log", key="id", schema=SCHEMA)
    write(laptop, 1)
    laptop.view("days", sql=SQL).refresh()
    write(laptop, 2)
    there = server.view("days")
    assert there.refresh().new == 1
    assert meant(there) == IN_TOKYO
    assert there.count() == 2


@pytest.mark.spark
def test_query_that_is_analysed_again_keeps_its_settings(opened: Opened) -> None:
    laptop, server = opened(LAPTOP), opened(SERVER)
    laptop.create("log", key="id", schema=SCHEMA)
    declared = laptop.view("days", sql=SQL).analysis
    server["log"].evolve({"more": "int64"})
    server.view("days").refresh()
    again = server.view("days").analysis
    assert "more" in again.columns.names
    assert again.settings == declared.settings


@pytest.mark.spark
def test_only_another_definition_takes_other_settings(opened: Opened) -> None:
    laptop, server = opened(LAPTOP), opened(SERVER)
    laptop.create("log", key="id", schema=SCHEMA)
    first = laptop.view("days", sql=SQL).analysis.settings
    assert server.view("days", sql=SQL).analysis.settings == first
    server["log"].evolve({"more": "int64"})
    assert server.view("days", sql=SQL).analysis.settings == first
    zone = server.view("days", sql=SQL + " -- once more").analysis.settings["spark.sql.session.timeZone"]
    assert (first["spark.sql.session.timeZone"], zone) == ("Asia/Tokyo", "America/New_York")


@pytest.mark.spark
def test_settings_that_say_how_work_is_done_are_those_of_the_session_at_hand(opened: Opened) -> None:
    laptop, server = (opened(settings).runtime.session.get() for settings in (LAPTOP, SERVER))
    kept = meaning_settings(isolated_session(laptop))
    made = isolated_session(server, kept)
    assert meaning_settings(made) == kept
    assert made.conf.get("spark.sql.shuffle.partitions") == "3"
    assert "spark.sql.shuffle.partitions" not in kept


@pytest.mark.spark
def test_settings_of_the_whole_process_do_not_count_either(spark: SparkSession) -> None:
    kept = meaning_settings(isolated_session(spark))
    everywhere = spark.sparkContext._jsc.sc().conf()
    everywhere.set("spark.sql.legacy.sizeOfNull", "false")
    try:
        assert meaning_settings(isolated_session(spark, kept)) == kept
    finally:
        everywhere.remove("spark.sql.legacy.sizeOfNull")


@pytest.mark.spark
def test_query_is_not_filled_in_from_settings(spark: SparkSession) -> None:
    text = "${spark.sql.session.timeZone}"
    assert isolated_session(spark).sql(f"select '{text}' as said").collect()[0].said == text


class _Far(Session):
    """A session on a cluster."""

    is_local = False  # type: ignore[assignment]

    def get(self) -> Any:
        raise AssertionError("Spark was started")


def test_tasks_run_where_those_of_the_lake_do_and_nothing_is_started_to_find_out() -> None:
    assert IsolatedSession(_Far()).is_local is False


class _Remote:
    """A session of Spark Connect, as far as it matters here."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.conf = conf


def test_remote_session_with_other_settings_is_refused() -> None:
    remote: Any = _Remote({"spark.sql.session.timeZone": "UTC"})
    assert isolated_session(remote, {"spark.sql.session.timeZone": "UTC"}) is remote
    with pytest.raises(BadView, match="Asia/Tokyo, but this Spark Connect session has UTC"):
        isolated_session(remote, {"spark.sql.session.timeZone": "Asia/Tokyo"})

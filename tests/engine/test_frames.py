"""Making a frame in a session of ours leaves the active session as it was."""

from __future__ import annotations

import pytest

from floodmark.engine.session import make_empty_frame, make_frame

pytestmark = pytest.mark.spark


def test_session_that_was_active_still_is(spark):
    spark.createDataFrame([(1,)], "n int")  # makes it active
    other = spark.newSession()

    rows = make_frame(other, [(2,)], "n int").collect()

    assert [row.n for row in rows] == [2]
    assert spark.getActiveSession() is spark
    assert spark._jvm.org.apache.spark.sql.classic.SparkSession.active().equals(spark._jsparkSession)


def test_empty_frame_has_the_columns_and_leaves_the_active_session(spark):
    spark.createDataFrame([(1,)], "n int")  # makes it active
    other = spark.newSession()
    schema = spark.createDataFrame([], "n int, names array<string>, t timestamp_ntz").schema

    frame = make_empty_frame(other, schema)

    assert frame.schema == schema
    assert frame.collect() == []
    assert frame.sparkSession is other
    assert spark.getActiveSession() is spark

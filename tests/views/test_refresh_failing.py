"""What becomes of Spark's errors."""

from __future__ import annotations

import pytest
from pyspark.logger import PySparkLogger

from floodmark.errors import InputMoved, QueryFailed
from floodmark.views.evaluator import convert_refresh_errors, first_line


def spark_says(text: str) -> Exception:
    made = type("SparkRuntimeException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    error: Exception = made(text)
    return error


def test_sentence_is_what_people_can_read_of_it() -> None:
    said = "[CAST_INVALID_INPUT] The value 'AA' of the type \"STRING\" cannot be cast. SQLSTATE: 22018\nselect"
    assert first_line(said) == "The value 'AA' of the type \"STRING\" cannot be cast."
    assert first_line("org.apache.spark.SparkException: [FAILED_READ_FILE.X] Gone. SQLSTATE: KD001") == "Gone."
    assert first_line("no code\nand more") == "no code"


def test_query_that_fails_on_the_data_is_one_that_failed() -> None:
    with pytest.raises(QueryFailed, match=r"view 'v': Division by zero\."), convert_refresh_errors("v"):
        raise spark_says("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


def test_file_that_is_gone_is_a_source_that_moved() -> None:
    with pytest.raises(InputMoved, match="inputs of view 'v'"), convert_refresh_errors("v"):
        raise spark_says("[FAILED_READ_FILE.FILE_NOT_EXIST] File does not exist. SQLSTATE: KD001")


def test_errors_of_others_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), convert_refresh_errors("v"):
        raise ZeroDivisionError


def test_pyspark_does_not_write_pages_about_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    monkeypatch.setattr(log, "disabled", False)  # whoever sets logging up anew disables what there is
    with convert_refresh_errors("v"):
        assert log.disabled
    assert not log.disabled

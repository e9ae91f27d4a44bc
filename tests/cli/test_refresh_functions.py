"""Views with functions on the command line: imported as for backfill, errors kept by row, and records that wait."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake

pytestmark = pytest.mark.spark

STARS = """\
from pathlib import Path

import floodmark as fm


@fm.udf(returns="int64", on_error=[fm.Skip(ValueError)])
def stars(pixels: int) -> int:
    if pixels == 30 and not Path("mended").exists():
        raise ValueError("broken")
    return pixels // 10
"""


@pytest.fixture
def rated(run, images, modules, spark):
    """A view of ten images with a function that fails for one of them."""
    modules.write("rating", STARS)
    lake = Lake("lake")
    lake.view("rated", source="images", select={"id": "id", "stars": modules.load("rating").stars}, where="id < 5")
    modules.forget()
    return lake


def untimed(text):
    return text.rpartition(" (")[0]


def stars():
    return {row["id"]: row["stars"] for row in Lake("lake")["rated"].to_arrow().to_pylist()}


@pytest.mark.process
def test_function_is_imported_and_called_for_what_changed(run, rated, images, modules):
    answer = run("refresh", "rated")
    assert answer.code == 0
    assert untimed(answer.out) == (
        "rated: everything was computed, because it was never refreshed;"
        " functions called for 5 rows, 1 failed; rows: 5 new"
    )
    assert "rows that failed have null: `floodmark view rated --errors` shows why" in answer.err
    assert stars() == {0: 0, 1: 1, 2: 2, 3: None, 4: 4}
    images.write(pa.table({"id": [1, 7], "pixels": [99, 99]}))
    modules.forget()
    assert untimed(run("refresh", "rated").out).endswith("; functions called for 1 row; rows: 1 changed")


def test_rows_that_failed_are_shown_and_tried_again(run, rated, folder):
    run("refresh", "rated")
    (row,) = run("view", "rated", "--errors", "--json").json["errors"]
    assert (row["column"], row["offset"], row["type"], row["message"]) == ("stars", 3, "ValueError", "broken")
    assert "broken" in run("view", "rated", "--errors").out
    assert run("refresh", "rated").out == "rated: nothing to do\n"
    (folder / "mended").touch()
    assert "functions called for 1 row" in run("refresh", "rated", "--retry-errors").out
    assert stars()[3] == 3
    answer = run("view", "rated", "--errors")
    assert (answer.out, answer.err) == ("", "rated: no row failed\n")


def test_strict_refresh_in_which_rows_failed_exits_1_with_the_others_there(run, rated):
    assert run("refresh", "rated", "--strict").code == 1
    assert len(stars()) == 5


def test_changed_function_is_refused_with_what_to_do(run, rated, modules):
    modules.write("rating", STARS.replace("// 10", "// 5"))
    answer = run("refresh", "rated")
    assert (answer.code, answer.out) == (1, "")
    assert "the function rating.stars changed since column 'stars' was added" in answer.err
    assert "lake.view('rated', …) with rating.stars in it" in answer.err


def test_function_that_has_moved_can_be_named(run, rated, modules, folder):
    (folder / "rating.py").unlink()
    modules.write("elsewhere", STARS)
    assert (
        "the module 'rating', which has the function of column 'stars', cannot be found" in run("refresh", "rated").err
    )
    assert run("refresh", "rated", "--udf", "elsewhere:stars").code == 0
    assert len(stars()) == 5


def test_place_of_a_function_that_no_view_has_is_refused(run, rated):
    answer = run("refresh", "rated", "--udf", "rating:start")
    assert (answer.code, answer.out) == (2, "")
    assert "--udf rating:start is not a function of the views: their functions are stars." in answer.err


def test_records_that_wait_for_a_computed_column_are_counted(run, rated, images, modules):
    Lake("lake").view("light", source="images", select={"id": "id", "light": "brightness * 100"})
    assert run("view", "light").lines[-1] == "never refreshed; 10 records waiting for a computed column"
    modules.forget()
    run("backfill", "images", "brightness")
    run("refresh", "light")
    images.write(pa.table({"id": [10], "pixels": [50]}))
    assert run("refresh", "light").out == "light: nothing to do; 1 record waits for a computed column\n"
    lines = run("plan", "light").lines
    assert lines[0] == "light: nothing to do"
    assert lines[1].split() == ["source", "done", "up", "to", "head", "new", "records", "waiting"]
    assert lines[2].split() == ["images", "9", "9", "0", "1"]
    assert lines[3] == "waiting: records without a value yet in a computed column that the view reads"
    modules.forget()
    run("backfill", "images", "brightness")
    assert untimed(run("refresh", "light").out) == "light: 1 new record; rows: 1 new"

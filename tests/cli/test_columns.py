"""`floodmark columns` shows what computes each column, and how much of it is there."""

from __future__ import annotations

import io
import re
import sys

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.cli import main


def test_table_has_a_line_per_column(run, images):
    run("backfill", "images", "brightness")
    run("backfill", "images", "label", "--where", "id >= 6")
    head, brightness, label, *_ = run("columns", "images").lines
    assert head.split() == ["column", "type", "inputs", "function", "version", "rows", "done", "errors"]
    version = images.column("brightness").function.version
    assert brightness.split() == [
        *("brightness", "double", "pixels", "vision.brightness"),
        *(f"{version[:12]}…", "10", "100", "%", "0"),
    ]
    assert re.fullmatch(r"label +string +brightness +vision\.label +\w+… +10 +40\.0 % +1", label)


def test_bars_show_each_fragment(run, images, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run("backfill", "images", "brightness", "--where", "id < 6")
    assert run("columns", "images").lines[3:] == [
        "",
        f"brightness  {'█' * 21}│{'█' * 10}▒{'·' * 10}│{'·' * 21}",
        f"label       {'·' * 21}│{'·' * 21}│{'·' * 21}",
        "3 fragments: █ computed, ▒ partly computed, · not computed",
    ]


def test_older_values_are_shown_as_such(run, images, modules):
    run("backfill", "images", "brightness")
    modules.write("vision", modules.vision.replace("100)", "255)"))
    images.alter_column("brightness", modules.load("vision").brightness)
    run("backfill", "images", "brightness", "--where", "id < 4")
    lines = run("columns", "images").lines
    full, older, rest = lines[-3].removeprefix("brightness  ").split("│")
    assert (set(full), set(older), set(rest)) == ({"█"}, {"░"}, {"░"})
    assert lines[-1] == "3 fragments: █ computed, ░ an older value, · not computed"
    found = run("columns", "images", "--json").json["columns"][0]
    assert (found["rows"], found["done"], found["kept"]) == (10, 4, 6)


def test_json_has_all_numbers(run, images):
    run("backfill", "images", "brightness")
    run("backfill", "images", "label")
    images.delete([0])
    found = run("columns", "images", "--json").json
    assert found["dataset"] == "images"
    label = found["columns"][1]
    version = images.column("label").function.version
    assert label.pop("fragments") == [
        {"number": 0, "start": 0, "end": 4, "rows": 3, "done": 3, "kept": 0, "errors": 0, "carried": 0},
        {"number": 1, "start": 4, "end": 8, "rows": 4, "done": 4, "kept": 0, "errors": 0, "carried": 0},
        {"number": 2, "start": 8, "end": 11, "rows": 2, "done": 2, "kept": 0, "errors": 1, "carried": 0},
    ]
    assert label == {
        "name": "label",
        "type": "string",
        "nullable": True,
        "inputs": ["brightness"],
        "function": {
            "name": "label",
            "version": version,
            "kind": "scalar",
            "module": "vision",
            "qualname": "label",
        },
        "generation": 0,
        "rows": 9,
        "done": 9,
        "kept": 0,
        "errors": 1,
        "carried": 0,
    }


def test_errors_say_which_rows_failed_and_why(run, images):
    run("backfill", "images", "brightness")
    run("backfill", "images", "label")
    head, row = run("columns", "images", "--errors", "label").lines
    assert head.split() == ["offset", "type", "message", "attempts", "at"]
    assert row.split()[:4] == ["9", "ValueError", "overexposed", "1"]
    (error,) = run("columns", "images", "--errors", "label", "--json").json["errors"]
    assert (error["offset"], error["type"]) == (9, "ValueError")
    assert 'raise ValueError("overexposed")' in error["traceback"]


def test_column_without_errors_says_so(run, images):
    answer = run("columns", "images", "--errors", "brightness")
    assert (answer.code, answer.out) == (0, "")
    assert "no row failed" in answer.err
    assert run("columns", "images", "--errors", "brightness", "--json").json["errors"] == []


def test_mistyped_column_is_a_did_you_mean(run, images):
    answer = run("columns", "images", "--errors", "lable")
    assert answer.code == 1
    assert "did you mean 'label'?" in answer.err


def test_dataset_without_computed_columns_says_so(run, trips):
    answer = run("columns", trips)
    assert (answer.code, answer.out) == (0, "")
    assert "trips has no computed columns" in answer.err
    assert run("columns", trips, "--json").json == {"dataset": "trips", "columns": []}


def test_dataset_that_was_never_written_has_none(run, folder):
    Lake("lake").create("empty")
    assert "empty has no computed columns" in run("columns", "empty").err


def test_column_of_a_dataset_without_records_is_all_there(run, folder, modules):
    modules.write("vision", modules.vision)
    empty = Lake("lake").create("empty", schema=pa.schema([("pixels", pa.int64())]))
    empty.add_column("brightness", modules.load("vision").brightness)
    (_, row) = run("columns", "empty").lines
    assert row.endswith("0  100 %       0")


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_bars_are_no_wider_than_the_terminal(run, images, monkeypatch, width):
    images.write(pa.table({"id": list(range(100, 500)), "pixels": [1] * 400}))
    monkeypatch.setenv("COLUMNS", str(width))
    *lines, legend = run("columns", "images").lines
    shown = lines[lines.index("") + 1 :]
    assert all(len(line) <= width for line in shown)
    assert "·" in shown[-1]
    assert ("to a character" in legend) is (width < 110)


def test_output_without_block_characters_gets_plain_ones(images, run, monkeypatch):
    run("backfill", "images", "brightness", "--where", "id < 5")
    output = io.BytesIO()
    with monkeypatch.context() as patched, io.TextIOWrapper(output, "latin-1") as stream:
        patched.setattr(sys, "argv", ["floodmark", "columns", "images"])
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit):
            main()
        *_, bar, _, legend = output.getvalue().decode("latin-1").splitlines()
    assert re.fullmatch(r"brightness  #+\|#+\+?\.+\|\.+", bar)
    assert legend.startswith("3 fragments: # computed, ")


def test_schema_shows_computed_columns_beside_the_others(run, images):
    lines = run("schema", "images").lines
    assert [line.split()[0] for line in lines[1:]] == ["id", "pixels", "brightness", "label"]
    assert lines[3].endswith("computed from pixels")
    found = run("schema", "images", "--json").json
    assert [c["name"] for c in found["columns"]] == ["id", "pixels"]
    assert found["computed"][1] == {
        "name": "label",
        "type": "string",
        "nullable": True,
        "inputs": ["brightness"],
        "function": "label",
        "version": images.column("label").function.version,
    }


def test_sql_has_computed_columns_like_any_other(run, images):
    run("backfill", "images", "brightness")
    found = run("sql", "select sum(brightness) as total, count(label) as labels from images", "--json").json
    assert found["rows"] == [{"total": pytest.approx(4.55), "labels": 0}]


def test_values_that_were_carried_over_are_counted_everywhere(run, images):
    run("backfill", "images", "brightness")
    run("backfill", "images", "label")
    before = run("columns", "images").lines
    assert "carried over" not in before[0]
    images.evolve({"album": "string"})
    images.write(pa.table({"id": [1, 2], "pixels": [images.get([1])["pixels"][0].as_py(), 3], "album": ["a", "b"]}))
    plan = run("backfill", "images", "brightness", "--plan").lines
    assert plan[0] == "images.brightness: 1 missing, 1 carried over, 0 reusable, 8 done, of 10 rows"
    assert run("backfill", "images", "brightness", "--plan", "--json").json["carried"] == 1
    done = run("backfill", "images", "brightness").out
    assert done == "images.brightness: 1 row computed, 1 carried over (8 rows done before)\n"
    run("backfill", "images", "label")
    lines = run("columns", "images").lines
    assert lines[0].endswith("carried over")
    assert [line.split()[-1] for line in lines[1:3]] == ["1", "1"]
    assert [c["carried"] for c in run("columns", "images", "--json").json["columns"]] == [1, 1]

"""`floodmark backfill` computes what is missing of a column, finds its function again, and says what it did."""

from __future__ import annotations

import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.dataset import Dataset
from waiting import PATIENCE


def values(dataset, column):
    return dataset.to_arrow().sort_by("id")[column].to_pylist()


BRIGHTNESS = [0.1 * n for n in range(9)] + [0.95]


@pytest.mark.process
def test_backfill_computes_a_column_and_says_how_many_rows(run, images):
    answer = run("backfill", "images", "brightness")
    assert (answer.code, answer.out) == (0, "images.brightness: 10 rows computed (0 rows done before)\n")
    assert values(images, "brightness") == pytest.approx(BRIGHTNESS)


def test_second_backfill_has_nothing_to_do(run, images):
    run("backfill", "images", "brightness")
    assert run("backfill", "images", "brightness").out == (
        "images.brightness: nothing to compute (10 rows done before)\n"
    )


def test_only_what_was_added_or_changed_is_computed(run, images):
    run("backfill", "images", "brightness")
    images.write(pa.table({"id": [3, 10], "pixels": [70, 80]}))
    assert run("backfill", "images", "brightness").out == "images.brightness: 2 rows computed (9 rows done before)\n"
    assert values(images, "brightness") == pytest.approx([*BRIGHTNESS[:3], 0.7, *BRIGHTNESS[4:], 0.8])


def test_json_has_every_count(run, images):
    found = run("backfill", "images", "brightness", "--where", "id < 6", "--json").json
    assert found == {
        "dataset": "images",
        "where": "id < 6",
        "column": "brightness",
        "computed": 6,
        "failed": 0,
        "reused": 0,
        "done": 0,
        "waiting": 0,
        "called": 6,
        "checkpoints_reused": 0,
        "commits": 1,
        "carried": 0,
        "restored": [],
    }


def test_where_leaves_the_other_rows_alone(run, images):
    assert run("backfill", "images", "brightness", "--where", "id >= 8").out.startswith(
        "images.brightness: 2 rows computed"
    )
    assert values(images, "brightness") == pytest.approx([None] * 8 + BRIGHTNESS[8:])


def test_values_of_a_dropped_column_are_reused(run, images, modules):
    run("backfill", "images", "brightness")
    images.drop_column("label")
    images.drop_column("brightness")
    images.add_column("brightness", modules.load("vision").brightness)
    answer = run("backfill", "images", "brightness")
    assert answer.out.startswith("images.brightness: 0 rows computed, 10 reused from 3 checkpoints ")
    assert run("columns", "images", "--json").json["columns"][0]["done"] == 10


def test_rows_that_fail_are_counted_and_the_way_to_the_reasons_is_shown(run, images):
    run("backfill", "images", "brightness")
    answer = run("backfill", "images", "label")
    assert answer.out == "images.label: 9 rows computed, 1 failed (0 rows done before)\n"
    assert "`floodmark columns images --errors label`" in answer.err
    assert values(images, "label") == ["dark"] * 5 + ["light"] * 4 + [None]


MENDABLE = """\
from pathlib import Path

import floodmark as fm


@fm.udf(returns="int64", on_error=[fm.Skip(ValueError)])
def checked(pixels: int) -> int:
    if pixels > 70 and not Path("mended").exists():
        raise ValueError(pixels)
    return pixels
"""


def test_failed_rows_are_tried_again_only_when_asked(run, images, modules, folder):
    modules.write("mendable", MENDABLE)
    images.add_column("checked", modules.load("mendable").checked)
    assert run("backfill", "images", "checked").out.startswith("images.checked: 8 rows computed, 2 failed")
    (folder / "mended").touch()
    assert run("backfill", "images", "checked").out.startswith("images.checked: nothing to compute")
    assert run("backfill", "images", "checked", "--retry-errors").out.startswith("images.checked: 2 rows computed (")
    assert values(images, "checked")[8:] == [80, 95]


def test_rows_whose_inputs_are_missing_wait_and_the_next_step_is_named(run, images):
    run("backfill", "images", "brightness", "--where", "id < 3")
    answer = run("backfill", "images", "label")
    assert answer.out == "images.label: 3 rows computed (0 rows done before)\n"
    assert "7 rows cannot be computed yet" in answer.err
    assert "`floodmark backfill images brightness` first" in answer.err


def test_options_reach_the_library(run, images, monkeypatch):
    given = {}

    def backfill(self, name, where, **options):
        from floodmark import BackfillReport

        given.update(options, name=name, where=where)
        return BackfillReport(name)

    monkeypatch.setattr(Dataset, "backfill", backfill)
    sizes = ["--checkpoint-size", "9", "--min-checkpoint-size", "2", "--max-checkpoint-size", "8", "--task-size", "7"]
    run("backfill", "images", "brightness", *sizes, "--commit-granularity", "3", "--retry-errors")
    assert given.pop("udf").name == "brightness"
    assert given == {
        "name": "brightness",
        "where": None,
        "checkpoint_size": 9,
        "min_checkpoint_size": 2,
        "max_checkpoint_size": 8,
        "task_size": 7,
        "commit_granularity": 3,
        "retry_errors": True,
    }


# The plan


def test_plan_says_what_is_missing_and_why_and_computes_nothing(run, images, modules):
    run("backfill", "images", "brightness", "--where", "id < 6")
    images.write(pa.table({"id": [20], "pixels": [5]}))
    modules.write("vision", "raise SystemExit('a plan needs no function')")
    answer = run("backfill", "images", "brightness", "--plan")
    assert answer.lines == [
        "images.brightness: 5 missing, 0 reusable, 6 done, of 11 rows",
        "offsets  rows  why",
        "6–7         2  not computed yet",
        "8–10        3  the records are new",
    ]
    assert run("columns", "images", "--json").json["columns"][0]["done"] == 6


def test_plan_shows_what_only_the_border_of_a_fragment_parts_as_one_range(run, images):
    assert run("backfill", "images", "brightness", "--plan").lines[1:] == [
        "offsets  rows  why",
        "0–9        10  not computed yet",
    ]


def test_plan_of_what_is_done_has_no_ranges(run, images):
    run("backfill", "images", "brightness")
    assert run("backfill", "images", "brightness", "--plan").lines == [
        "images.brightness: 0 missing, 0 reusable, 10 done, of 10 rows"
    ]


def test_plan_with_where_counts_the_rows_that_it_keeps(run, images):
    run("backfill", "images", "brightness", "--where", "id < 2")
    answer = run("backfill", "images", "brightness", "--plan", "--where", "id < 6")
    assert answer.lines[0] == "images.brightness: 4 missing, 0 reusable, 2 done, of 6 rows that --where keeps"


def test_plan_after_a_drop_shows_what_can_be_reused(run, images, modules):
    run("backfill", "images", "brightness", "--where", "id < 4")
    images.drop_column("label")
    images.drop_column("brightness")
    images.add_column("brightness", modules.load("vision").brightness)
    answer = run("backfill", "images", "brightness", "--plan")
    assert answer.lines[0] == "images.brightness: 6 missing, 4 reusable, 0 done, of 10 rows"


def test_plan_shows_a_few_ranges_and_counts_the_rest(run, images):
    images.write(pa.table({"id": list(range(100, 130)), "pixels": [1] * 30}))
    answer = run("backfill", "images", "brightness", "--plan", "--where", "id % 2 = 0")
    assert len(answer.lines) == 1 + 1 + 10 + 1
    assert answer.lines[-1] == "… and 10 more ranges (10 rows)"
    found = run("backfill", "images", "brightness", "--plan", "--where", "id % 2 = 0", "--json").json
    assert [r["start"] for r in found["ranges"]] == list(range(0, 40, 2))


def test_plan_as_json_has_all_ranges_fragment_by_fragment(run, images):
    found = run("backfill", "images", "brightness", "--plan", "--json").json
    why = "not computed yet"
    assert found == {
        "dataset": "images",
        "column": "brightness",
        "where": None,
        "rows": 10,
        "wanted": 10,
        "done": 0,
        "reusable": 0,
        "carried": 0,
        "missing": 10,
        "waiting": 0,
        "ranges": [
            {"start": 0, "end": 4, "rows": 4, "why": why},
            {"start": 4, "end": 8, "rows": 4, "why": why},
            {"start": 8, "end": 10, "rows": 2, "why": why},
        ],
    }


def test_plan_names_the_column_that_rows_wait_for(run, images):
    answer = run("backfill", "images", "label", "--plan")
    assert answer.lines == ["images.label: 0 missing, 0 reusable, 0 done, 10 waiting, of 10 rows"]
    assert "`floodmark backfill images brightness` first" in answer.err


# The function


def test_function_is_imported_from_the_current_folder(run, images, modules):
    modules.forget()
    assert "vision" not in sys.modules
    assert run("backfill", "images", "brightness").code == 0
    assert "vision" in sys.modules


def test_function_that_has_moved_is_named(run, images, modules, folder):
    (folder / "vision.py").unlink()
    modules.write("features", modules.vision)
    answer = run("backfill", "images", "brightness")
    assert (answer.code, answer.out) == (1, "")
    assert "the module 'vision', which has the function of column 'brightness', cannot be found" in answer.err
    assert "--udf MODULE:NAME" in answer.err
    assert run("backfill", "images", "brightness", "--udf", "features:brightness").code == 0


def test_module_that_lies_in_the_lake_is_not_run(run, images, modules, folder, monkeypatch):
    (folder / "vision.py").rename(folder / "lake" / "vision.py")
    modules.forget()
    monkeypatch.syspath_prepend(folder / "lake")
    answer = run("backfill", "images", "brightness")
    assert (answer.code, answer.out) == (1, "")
    assert "the module 'vision' that the lake names for column 'brightness' is a file of the lake" in answer.err
    assert "vision" not in sys.modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module\n", "No module named 'no_such_module' ("),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("x = = 1\n", "SyntaxError: invalid syntax ("),
        ("raise SystemExit('bye')\n", "SystemExit: bye ("),
    ],
    ids=["lacks another", "raises", "syntax", "ends"],
)
def test_module_that_does_not_import_is_said_with_its_line(run, images, modules, folder, text, said):
    modules.write("vision", text)
    answer = run("backfill", "images", "brightness")
    assert (answer.code, answer.out) == (1, "")
    assert "the module 'vision', which has the function of column 'brightness', cannot be imported: " in answer.err
    assert f"{said}{folder / 'vision.py'}, line {text.count(chr(10))})" in answer.err


def test_what_a_module_prints_is_not_part_of_the_answer(run, images, modules):
    modules.write("vision", modules.vision + "\nprint('loading')\n")
    answer = run("backfill", "images", "brightness", "--json")
    assert answer.json["computed"] == 10
    assert "loading" in answer.err


def test_function_that_has_changed_is_refused_with_a_way_out(run, images, modules):
    modules.write("vision", modules.vision.replace("100)", "255)"))
    answer = run("backfill", "images", "brightness")
    assert (answer.code, answer.out) == (1, "")
    assert "the function vision.brightness changed since column 'brightness' was added" in answer.err
    assert "lake['images'].alter_column('brightness', vision.brightness)" in answer.err
    assert images.columns()[0].done == 0
    images.alter_column("brightness", modules.load("vision").brightness)
    assert run("backfill", "images", "brightness").code == 0


def test_function_that_is_gone_is_refused_with_those_that_are_there(run, images, modules):
    modules.write("vision", modules.vision.replace("def brightness", "def light"))
    answer = run("backfill", "images", "brightness")
    assert answer.code == 1
    assert "the module 'vision' no longer has the udf 'brightness'" in answer.err
    assert "its udfs are light, label" in answer.err


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("vision:label", "the function vision.label changed since column 'brightness' was added"),
        ("vision:pc", "vision:pc is not a udf"),
        ("vision:nothing", "the module 'vision' has no 'nothing'"),
        ("nowhere:brightness", "the module 'nowhere', which has the function of column 'brightness', cannot be found"),
    ],
)
def test_udf_that_cannot_be_used_is_refused(run, images, named, said):
    answer = run("backfill", "images", "brightness", "--udf", named, "--json")
    assert answer.code == 1
    assert said in answer.json["error"]["message"]
    assert answer.json["error"]["hint"]


@pytest.mark.parametrize("named", ["vision", "vision.py:brightness", "./vision:brightness", ":brightness", "vision:"])
def test_what_is_no_module_and_name_is_a_usage_error(run, images, named):
    assert run("backfill", "images", "brightness", "--udf", named).code == 2


def test_function_of_a_script_has_to_be_put_into_a_module(run, images, modules, folder):
    script = 'import floodmark as fm\n@fm.udf(returns="int64")\ndef twice(pixels: int) -> int:\n    return 2 * pixels\n'
    add = 'if __name__ == "__main__":\n    fm.Lake("lake")["images"].add_column("twice", twice)\n'
    modules.write("script", script + add)
    runpy.run_path("script.py", run_name="__main__")
    modules.forget()
    answer = run("backfill", "images", "twice")
    assert answer.code == 1
    assert "the function 'twice' of column 'twice' was defined in a script or a notebook" in answer.err
    assert "--udf MODULE:twice" in answer.err
    assert run("backfill", "images", "twice", "--udf", "script:twice").code == 0
    assert values(images, "twice")[:3] == [0, 20, 40]


# What is refused


def test_mistyped_column_is_a_did_you_mean(run, images):
    for plan in ([], ["--plan"]):
        answer = run("backfill", "images", "brightnes", *plan)
        assert (answer.code, answer.out) == (1, "")
        assert "did you mean 'brightness'?" in answer.err


def test_where_that_does_not_parse_is_refused(run, images):
    answer = run("backfill", "images", "brightness", "--where", "id <")
    assert (answer.code, answer.out) == (1, "")
    assert "'id <'" in answer.err
    assert images.columns()[0].done == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--min-checkpoint-size", "5", "--max-checkpoint-size", "3"], 1),
        (["--task-size", "0"], 2),
        (["--commit-granularity", "0"], 2),
        (["--checkpoint-size", "many"], 2),
    ],
)
def test_options_that_make_no_sense_are_refused(run, images, options, code):
    answer = run("backfill", "images", "brightness", *options)
    assert (answer.code, answer.out) == (code, "")
    assert images.columns()[0].done == 0


FAILING = """\
import floodmark as fm


@fm.udf(returns="int64")
def fragile(pixels: int) -> int:
    if pixels == 50:
        raise RuntimeError("no such light")
    return pixels
"""


def test_function_that_fails_is_said_with_its_row_and_its_traceback(run, images, modules):
    modules.write("failing", FAILING)
    images.add_column("fragile", modules.load("failing").fragile)
    answer = run("backfill", "images", "fragile")
    assert (answer.code, answer.out) == (1, "")
    assert "failed at offset 5: RuntimeError: no such light" in answer.err
    assert 'raise RuntimeError("no such light")' in answer.err
    answer = run("backfill", "images", "fragile", "--json")
    assert (answer.json["error"]["type"], answer.err) == ("FunctionFailed", "")


# Ctrl-C

STUCK = """\
import time
from pathlib import Path

import floodmark as fm


@fm.udf(returns="int64")
def stuck(pixels: int) -> int:
    while pixels >= 40 and not Path("go").exists():
        time.sleep(0.02)
    return pixels
"""
COMMAND = [
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from floodmark.cli import main; main()",
]
PROGRESS = r"computing stuck of images: \d+ of \d+ rows \(\d+ %\)(, [\d.,]+ rows/s)?(, [\dhmins ]+ left)?"


def _first_checkpoint(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(path.is_file() for path in folder.glob("lake/datasets/*/columns/checkpoints/batches/**/*")):
        assert time.monotonic() < deadline, "nothing was stored"
        time.sleep(0.05)


@pytest.mark.process
def test_ctrl_c_exits_130_and_the_same_command_goes_on(run, images, modules, folder):
    modules.write("patience", STUCK)
    images.add_column("stuck", modules.load("patience").stuck)
    command = ["backfill", "images", "stuck", "--task-size", "4"]
    with subprocess.Popen([*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _first_checkpoint(folder)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    said = "interrupted: results are stored; run the same command again to continue"
    # On a slow machine there are lines with the progress, too.
    rest = [line for line in err.splitlines() if not re.fullmatch(PROGRESS, line)]
    assert (out, rest) == ("", [f"error: {said}"])
    (folder / "go").touch()
    found = run("backfill", "images", "stuck", "--task-size", "4", "--json").json
    assert found["reused"] >= 4
    assert (found["computed"] + found["reused"], found["called"]) == (10, found["computed"])
    assert Lake("lake")["images"].columns()[-1].done == 10

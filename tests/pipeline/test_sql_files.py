"""A folder of .sql files is a pipeline of views: one per file, named after it, in the order of what they read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import floodmark as fm
from cli.conftest import invoke
from floodmark.engine.session import Runtime, Session
from floodmark.errors import BadPipelineFile, BadView
from floodmark.pipeline.project import load_pipeline

PIPELINE = "import floodmark as fm\n\npipeline = fm.Pipeline(fm.sql_views({files!r}))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "views").mkdir()
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / "views" / f"{name}.sql").write_text(text)


def load(folder: Path, *files: str) -> fm.Pipeline:
    """The pipeline of a file that declares the views."""
    given = files or ("views/*.sql",)
    (folder / "pipeline.py").write_text(PIPELINE.format(files=given[0] if len(given) == 1 else list(given)))
    return load_pipeline(folder)


def refusal(folder: Path, *files: str) -> BadPipelineFile:
    with pytest.raises(BadPipelineFile) as caught:
        load(folder, *files)
    return caught.value


def test_each_file_is_a_view_and_they_come_in_the_order_of_what_they_read(folder: Path):
    write(folder, a="select * from b where n > 1", b="select c, count(*) n from orders group by c;\n")
    pipeline = load(folder)
    assert list(pipeline.views) == ["b", "a"]
    assert pipeline.graph().needs == {"b": (), "a": ("b",)}
    assert pipeline.views["a"].place is not None
    assert pipeline.views["a"].place.file == str(folder / "views" / "a.sql")


def test_comments_at_the_top_are_options(folder: Path):
    write(
        folder,
        daily="-- Sales of each day.\n-- refresh: incremental\n-- description: sales: by day\n"
        "-- labels: team=sales, stage=gold\n\n-- note: no option\nselect day, sum(n) n from orders group by day",
    )
    spec = load(folder).views["daily"]
    assert (spec.refresh, spec.description) == ("incremental", "sales: by day")
    assert spec.labels == {"team": "sales", "stage": "gold"}
    assert spec.definition.refresh == "incremental"


def test_files_stand_beside_other_declarations_and_are_found_from_the_file_that_names_them(folder: Path):
    write(folder, daily="select * from orders")
    (folder / "more").mkdir()
    (folder / "more" / "late.sql").write_text("select * from daily")
    (folder / "pipeline.py").write_text(
        "import floodmark as fm\n\npipeline = fm.Pipeline([\n    fm.DatasetSpec('orders', key='id'),\n"
        "    *fm.sql_views(['more/late.sql', 'views/**/*.sql', 'views/daily.sql']),\n"
        "    fm.ViewSpec('all', sql='select * from late'),\n])\n"
    )
    pipeline = load_pipeline(folder)
    assert list(pipeline.views) == ["daily", "late", "all"]
    assert pipeline.graph().order == ("daily", "late", "all")


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("-- refersh: x\nselect 1", "views/v.sql, line 1: unknown option 'refersh'", "did you mean 'refresh'?"),
        ("-- x\n-- owner: me\nselect 1", "views/v.sql, line 2: unknown option 'owner'", "refresh, description, labels"),
        ("-- refresh: whole\nselect 1", "views/v.sql, line 1: refresh: 'whole' is not known", "incremental"),
        ("-- labels: a\nselect 1", "views/v.sql, line 1: labels: 'a' is not a list", "NAME=VALUE"),
        ("-- description:\nselect 1", "views/v.sql, line 1: description: it has no text", "same line"),
        (
            "-- refresh: incremental\n-- refresh: incremental\nselect 1",
            "views/v.sql, line 2: 'refresh' is given twice, first in line 1",
            "keep one",
        ),
        ("-- refresh: incremental\n", "views/v.sql: view 'v': its query is not a query", "begin it with select"),
        ("update orders set n = 1", "views/v.sql: view 'v': its query begins with UPDATE", "begin it with select"),
        ("select 1; select 2", "views/v.sql: view 'v': its query has several statements", "declare a view for each"),
    ],
)
def test_a_wrong_file_is_named(folder: Path, text: str, problem: str, hint: str):
    write(folder, v=text)
    error = refusal(folder)
    assert problem in error.message.replace(str(folder) + "/", "")
    assert hint in error.hint


def test_a_glob_without_files_two_files_of_one_name_and_a_circle_are_refused(folder: Path):
    assert "no file matches 'views/*.sql'" in refusal(folder).message
    write(folder, a="select * from b", b="select * from a")
    assert "cycle: " in refusal(folder).message
    assert "a.sql" in refusal(folder).message
    (folder / "more").mkdir()
    (folder / "more" / "a.sql").write_text("select 1")
    error = refusal(folder, "*/*.sql")
    assert "the view 'a' is also declared by" in error.message
    assert error.path.endswith("views/a.sql")
    (folder / "views" / "no good.sql").write_text("select 1")
    assert "no good.sql: 'no good' is not a valid dataset name" in refusal(folder, "views/no*.sql").message
    (folder / "views" / "b.sql").write_bytes(b"\xff")
    assert "b.sql is not UTF-8 text" in refusal(folder, "views/b.sql").message


@pytest.mark.spark
def test_a_folder_of_files_runs_and_a_query_that_cannot_be_maintained_is_refused_with_its_file(
    folder: Path, session: Session
):
    lake = fm.Lake(folder / "lake", runtime=Runtime(session=session))
    lake.create("orders", key="id").write(pd.DataFrame({"id": [1, 2, 3], "c": ["a", "a", "b"], "n": [1, 2, 3]}))
    write(
        folder,
        sums="-- refresh: incremental\n-- description: Sums by c.\nselect c, sum(n) n from orders group by c",
        large="-- refresh: incremental\nselect * from sums where n > 2",
    )
    pipeline = load(folder)
    report = pipeline.run(lake)
    assert [report[name].state for name in ("sums", "large")] == ["done", "done"]
    assert lake.view("large").to_pandas()["n"].tolist() == [3, 3]
    assert lake.view("sums").definition.description == "Sums by c."
    write(folder, some="-- refresh: incremental\nselect * from orders tablesample (50 percent)")
    with pytest.raises(fm.RunFailed) as caught:
        load(folder).run(lake)
    failed = caught.value.report["some"]
    assert "views/some.sql: view 'some': the query cannot be maintained in parts: it has TABLESAMPLE (Sample)" in str(
        failed.why
    )


@pytest.mark.spark
def test_a_file_means_the_same_on_the_command_line(folder: Path, session: Session):
    write(folder, v="-- refresh: incremental\nselect * from orders tablesample (50 percent)", w="-- x: y\nselect 1")
    lake = fm.Lake(folder / "lake")
    lake.create("orders", key="id").write(pd.DataFrame({"id": [1]}))
    answer = invoke("view", "v", "--file", str(folder / "views" / "v.sql"), "--lake", str(folder / "lake"))
    assert answer.code == 1
    assert "the query cannot be maintained in parts" in answer.err
    answer = invoke("view", "w", "--file", str(folder / "views" / "w.sql"), "--lake", str(folder / "lake"))
    assert "w.sql, line 1: unknown option 'x'" in answer.err
    with pytest.raises(BadView, match="cannot be maintained in parts"):
        lake.view("v", sql="select * from orders tablesample (50 percent)", refresh="incremental")

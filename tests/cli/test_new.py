"""`floodmark new` makes a project that runs at once."""

from __future__ import annotations

import re

import pytest

from floodmark import Lake


def test_new_project_runs_at_once_and_then_has_nothing_to_do(run, folder, steps, monkeypatch):
    answer = run("new", "my-project")
    assert answer.code == 0
    assert "cd my-project; floodmark run" in answer.err
    monkeypatch.chdir(folder / "my-project")
    first = run("run")
    assert first.code == 0, first.err
    assert [line.split(":")[0] for line in first.lines] == ["ingest_sales", "convert", "sales.size", "total"]
    totals = {row["shop"]: (row["euros"], row["sales"]) for row in Lake("lake")["totals"].to_arrow().to_pylist()}
    assert totals == {"Oslo": (28.73, 2), "Rome": (61.5, 2), "Boston": (124.2, 2)}
    assert all("nothing to do" in line for line in run("run").lines)


@pytest.mark.slow
def test_every_command_of_its_readme_works(run, folder, steps, monkeypatch):
    import shlex

    run("new", "shop")
    monkeypatch.chdir(folder / "shop")
    readme = (folder / "shop" / "README.md").read_text()
    assert readme.startswith("# shop\n")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^(floodmark .*)$", readme, re.MULTILINE)]
    assert len(commands) == 5
    for _, *arguments in commands:
        answer = run(*arguments)
        assert answer.code == 0, answer.err


def test_view_that_is_commented_out_is_a_declaration(run, folder, steps, monkeypatch):
    run("new", "shop")
    monkeypatch.chdir(folder / "shop")
    text = (folder / "shop" / "pipeline.py").read_text()
    before, _, view = text.partition("# @pipeline.view()")
    (folder / "shop" / "pipeline.py").write_text(before + "@pipeline.view()" + view.replace("\n# ", "\n"))
    assert "by_currency [View]" in run("graph").out


@pytest.mark.parametrize("taken", ["a file", "a folder with something in it"])
def test_what_is_there_is_not_touched(run, folder, taken):
    if taken == "a file":
        (folder / "shop").write_text("mine")
    else:
        (folder / "shop").mkdir()
        (folder / "shop" / "pipeline.py").write_text("mine")
    answer = run("new", "shop")
    assert answer.code == 1
    assert "already exists" in answer.err
    assert [path.name for path in folder.iterdir()] == ["shop"]


def test_empty_folder_is_taken(run, folder):
    (folder / "shop").mkdir()
    assert run("new", "shop", "--json").json["files"][0] == "floodmark.toml"

"""Which pipeline a verb works with, and what it says when there is none or it is broken."""

from __future__ import annotations

import pytest

from floodmark import Lake

VERBS = [
    ["run", "prices"],
    ["plan", "prices"],
    ["status"],
    ["errors", "prices"],
    ["offsets"],
    ["retry", "prices"],
    ["reset", "prices"],
]


@pytest.mark.parametrize("command", VERBS, ids=lambda c: c[0])
def test_without_a_pipeline_a_verb_says_what_to_write(run, folder, command):
    run("init")
    answer = run(*command)
    assert (answer.code, answer.out) == (1, "")
    assert f"no pipeline found for {folder}" in answer.err
    assert 'pipeline = "pipeline.py"' in answer.err
    assert "pipeline = Pipeline([BatchTransform(" in answer.err
    assert "--pipeline FILE" in answer.err


def test_what_it_says_to_write_works(run, folder, steps):
    lines = run("status").err.splitlines()
    first = next(i for i, line in enumerate(lines) if "from floodmark import" in line)
    (folder / "pipeline.py").write_text(
        "\n".join(line.strip() if "return" not in line else line for line in lines[first:])
    )
    (folder / "texts.csv").write_text("id,text\n1,abc\n2,\n")
    run("init")
    run("ingest", "texts", "texts.csv", "--key", "id")
    assert run("run", "lengths").code == 0
    assert Lake("lake")["lengths"].to_arrow().sort_by("id")["length"].to_pylist()[0] == 3


@pytest.mark.parametrize("command", [["run"], ["plan"], ["errors"], ["retry"], ["reset"], ["status"], ["offsets"]])
def test_mistyped_step_is_a_did_you_mean(run, orders, command):
    answer = run(*command, "pricse")
    assert (answer.code, answer.out) == (1, "")
    assert "did you mean 'prices'?" in answer.err


def test_option_names_another_pipeline_than_the_toml(run, orders, folder):
    (folder / "other.py").write_text(
        (folder / "pipeline.py").read_text().replace("def goods", "def wares").replace("(goods", "(wares")
    )
    found = run("status", "--pipeline", "other.py", "--json").json
    assert [one["step"] for one in found["steps"]] == ["wares", "prices", "total"]


def test_option_that_names_no_file_is_said(run, orders):
    answer = run("status", "--pipeline", "nowhere.py")
    assert answer.code == 1
    assert "nowhere.py does not exist" in answer.err


def test_toml_that_names_a_missing_file_is_said(run, orders, folder):
    (folder / "pipeline.py").unlink()
    answer = run("status")
    assert answer.code == 1
    assert f"the pipeline named by {folder / 'floodmark.toml'}" in answer.err


def test_pipeline_and_lake_of_the_toml_are_found_from_a_folder_below(run, orders, folder, monkeypatch):
    (folder / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(folder / "a" / "b")
    assert run("run", "goods").code == 0
    assert "goods" in Lake(folder / "lake")


def test_pipeline_works_on_a_lake_elsewhere(run, orders, folder):
    run("init", "--lake", "elsewhere")
    assert run("run", "goods", "--lake", "elsewhere").code == 0
    assert "goods" in Lake("elsewhere")
    assert "goods" not in Lake("lake")


def test_pipeline_beside_a_lake_elsewhere_is_not_run(run, orders, folder, tmp_path_factory, monkeypatch):
    """Who may write to a lake must not thereby choose what is run."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    answer = run("status", "--lake", str(folder / "lake"))
    assert answer.code == 1
    assert "no pipeline found" in answer.err


def test_without_a_lake_a_verb_says_how_to_make_one(run, orders):
    answer = run("run", "goods", "--lake", "nowhere")
    assert answer.code == 1
    assert "floodmark init --lake nowhere" in answer.err


def test_broken_pipeline_is_said_with_file_and_line(run, orders, folder):
    (folder / "pipeline.py").write_text("x = 1\n1 / 0\n")
    answer = run("run", "prices")
    assert answer.code == 1
    assert f"{folder / 'pipeline.py'}, line 2: ZeroDivisionError" in answer.err
    assert "Traceback" not in answer.err


def test_what_a_pipeline_prints_is_not_in_the_answer(run, orders, folder):
    pipeline = folder / "pipeline.py"
    pipeline.write_text("print('hello')\n" + pipeline.read_text())
    answer = run("status", "--json")
    assert len(answer.json["steps"]) == 3


def test_missing_input_is_named(run, orders):
    Lake("lake").drop("orders")
    answer = run("run", "prices")
    assert answer.code == 1
    assert "there is no dataset 'orders'" in answer.err

"""The pipeline file is found from anywhere in its project, run, and its mistakes are said with file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from floodmark.engine.task import pickle_by_value
from floodmark.errors import BadPipelineFile, NoPipeline
from floodmark.pipeline.project import find_file, load_pipeline

STEPS = """
from floodmark.pipeline.pipeline import Pipeline
from floodmark.transforms.step import Step

class Idle(Step):
    def run(self, lake):
        return self.name
"""


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path):
    """What a pipeline file imports goes again after the test."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        # Only those of the tests: a library that is imported twice has two of each class.
        if str(getattr(sys.modules[name], "__file__", None) or tmp_path).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "floodmark.toml").write_text('lake = "lake"\n')
    return tmp_path


def write(path: Path, text: str, names: str = "'one'") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{STEPS}{dedent(text)}\npipeline = Pipeline([Idle(name, [], [name]) for name in [{names}]])\n")
    return path


# Which file


def test_a_pipeline_file_beside_the_toml_is_found_from_a_subfolder(project: Path):
    path = write(project / "pipeline.py", "")
    (project / "deep" / "deeper").mkdir(parents=True)
    assert find_file(project / "deep" / "deeper").path == path
    assert load_pipeline(project / "deep" / "deeper").names == ["one"]
    assert load_pipeline(project / "floodmark.toml").names == ["one"]
    assert load_pipeline(path).names == ["one"]


def test_the_toml_names_the_file_relative_to_itself(project: Path, monkeypatch: pytest.MonkeyPatch):
    (project / "floodmark.toml").write_text('pipeline = "flows/main.py"\n')
    path = write(project / "flows" / "main.py", "")
    write(project / "pipeline.py", "", "'not me'")
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    assert find_file().path == path
    assert "floodmark.toml" in find_file().origin
    assert load_pipeline().names == ["one"]


def test_a_nearer_toml_that_only_names_a_lake_does_not_hide_the_projects(project: Path):
    (project / "floodmark.toml").write_text('pipeline = "pipeline.py"\n')
    write(project / "pipeline.py", "")
    (project / "sub").mkdir()
    (project / "sub" / "floodmark.toml").write_text('lake = "other"\n')
    assert load_pipeline(project / "sub").names == ["one"]


def test_without_a_toml_a_pipeline_file_in_the_folder_itself_will_do(tmp_path: Path):
    write(tmp_path / "pipeline.py", "")
    assert load_pipeline(tmp_path).names == ["one"]


def test_a_project_without_a_pipeline_is_told_how_to_make_one(project: Path):
    with pytest.raises(NoPipeline, match=r"pipeline = Pipeline\(\[…\]\)"):
        load_pipeline(project)


def test_a_named_file_that_is_not_there_is_said_to_be_named_by_whom(project: Path):
    (project / "floodmark.toml").write_text('pipeline = "flow.py"\n')
    with pytest.raises(NoPipeline, match=r"flow\.py does not exist .*named by .*floodmark\.toml"):
        load_pipeline(project)


@pytest.mark.parametrize(
    "toml", ["pipeline = 3", 'pipeline = "flow"', 'pipeline = ["a.py"]', "pipeline =", 'pipeline = ""']
)
def test_a_toml_that_names_no_python_file_is_refused(project: Path, toml: str):
    (project / "floodmark.toml").write_text(toml)
    with pytest.raises(BadPipelineFile, match=r"floodmark\.toml"):
        load_pipeline(project)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(NoPipeline, match="does not exist"):
        load_pipeline(tmp_path / "nowhere")


# Running it


def test_modules_beside_the_file_are_imported_by_name(project: Path):
    (project / "names.py").write_text("NAME = 'from beside'\n")
    write(project / "pipeline.py", "from names import NAME", "NAME.replace(' ', '_')")
    assert load_pipeline(project).names == ["from_beside"]


def test_a_file_in_a_package_imports_its_neighbours_relatively(project: Path):
    (project / "floodmark.toml").write_text('pipeline = "shop/flows/main.py"\n')
    write(project / "shop" / "flows" / "main.py", "from .names import NAME\nfrom shop import OTHER", "NAME, OTHER")
    (project / "shop" / "__init__.py").write_text("OTHER = 'other'\n")
    (project / "shop" / "flows" / "__init__.py").write_text("")
    (project / "shop" / "flows" / "names.py").write_text("NAME = 'near'\n")
    assert load_pipeline(project).names == ["near", "other"]


def test_a_relative_import_outside_a_package_is_told_how_to_import(project: Path):
    (project / "names.py").write_text("NAME = 'n'\n")
    write(project / "pipeline.py", "from .names import NAME")
    with pytest.raises(BadPipelineFile, match="in the folder of the pipeline file by name") as caught:
        load_pipeline(project)
    assert caught.value.line == 8


def test_a_file_that_changed_within_a_second_is_run_as_it_is_now(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("cc", "dd"):
        path = write(project / "pipeline.py", "", f"'{name}'")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load_pipeline(project).names == [name]


def test_the_file_is_run_anew_at_every_load_and_so_are_its_neighbours(project: Path):
    (project / "names.py").write_text("NAME = 'a'\n")
    write(project / "pipeline.py", "from names import NAME", "NAME")
    first = load_pipeline(project)
    (project / "names.py").write_text("NAME = 'bb'\n")
    assert load_pipeline(project).names == ["bb"]
    write(project / "pipeline.py", "", "'cc'")
    assert load_pipeline(project).names == ["cc"]
    assert first.names == ["a"]


def test_two_projects_in_one_process_do_not_mix_their_modules(tmp_path: Path):
    for name in ("a", "b"):
        write(tmp_path / name / "pipeline.py", "from names import NAME", "NAME")
        (tmp_path / name / "names.py").write_text(f"NAME = {name!r}\n")
    assert [load_pipeline(tmp_path / name).names for name in ("a", "b", "a")] == [["a"], ["b"], ["a"]]
    assert sum(str(tmp_path) in folder for folder in sys.path) == 1


def test_a_file_named_like_a_module_that_is_imported_already_is_itself(project: Path):
    (project / "floodmark.toml").write_text('pipeline = "json.py"\n')
    write(project / "json.py", "")
    assert load_pipeline(project).names == ["one"]
    assert sys.modules["json"].__file__ != str(project / "json.py")


def test_what_the_file_prints_goes_to_stderr(project: Path, capsys: pytest.CaptureFixture[str]):
    write(project / "pipeline.py", "print('loading')")
    load_pipeline(project)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "loading\n")


def test_what_stands_under_main_is_not_run(project: Path):
    write(project / "pipeline.py", "if __name__ == '__main__':\n    raise SystemExit('no')")
    assert load_pipeline(project).names == ["one"]


@pytest.mark.slow
def test_steps_defined_in_the_file_travel_to_processes_that_do_not_have_it(project: Path, tmp_path: Path):
    write(project / "pipeline.py", "")
    step = load_pipeline(project)["one"]
    with pickle_by_value() as pack:
        (tmp_path / "step.pickle").write_bytes(pack(step))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).run(None))"
    command = [sys.executable, "-c", program, str(tmp_path / "step.pickle")]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == "one\n"


# What is wrong with it


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("a = (1,\nb = 2\n", 8, "never closed"),
        ("\nraise ValueError('bad day')", 9, "ValueError: bad day"),
        ("\n\nimport no_such_module_here", 10, "no_such_module_here"),
        ("import sys\nsys.exit(3)", 9, "ends the program: SystemExit: 3"),
        ("1 / 0", 8, "ZeroDivisionError"),
        ("Pipeline([Idle('a', [], ['x']), Idle('a', [], ['y'])])", 8, "two steps of the pipeline are named 'a'"),
        ("Pipeline([print])", 8, "is not a step"),
    ],
)
def test_a_mistake_is_said_with_its_file_and_line(project: Path, text: str, line: int, complaint: str):
    path = write(project / "pipeline.py", text)
    with pytest.raises(BadPipelineFile, match=complaint) as caught:
        load_pipeline(project)
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert f"pipeline.py, line {line}" in str(caught.value)


def test_a_mistake_in_a_neighbour_is_said_to_be_there(project: Path):
    (project / "names.py").write_text("\n\nNAME = undefined\n")
    write(project / "pipeline.py", "from names import NAME")
    with pytest.raises(BadPipelineFile, match=r"names\.py, line 3: NameError"):
        load_pipeline(project)


def test_a_syntax_error_in_a_neighbour_is_said_to_be_there(project: Path):
    (project / "names.py").write_text("\nNAME = = 3\n")
    write(project / "pipeline.py", "from names import NAME")
    with pytest.raises(BadPipelineFile, match=r"names\.py, line 2: invalid syntax"):
        load_pipeline(project)


def test_a_mended_file_loads_after_a_broken_one(project: Path):
    (project / "pipeline.py").write_text("raise ValueError")
    with pytest.raises(BadPipelineFile):
        load_pipeline(project)
    write(project / "pipeline.py", "")
    assert load_pipeline(project).names == ["one"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "end the file with"),
        ("pipeline = []", "that is a list, not a Pipeline"),
        ("pipeline = None", "has no `pipeline`"),
        (f"{STEPS}\nflow = Pipeline([])", "has no `pipeline`, but `flow`"),
    ],
)
def test_a_file_without_a_pipeline_is_told_what_is_missing(project: Path, text: str, complaint: str):
    (project / "pipeline.py").write_text(text)
    with pytest.raises(BadPipelineFile, match=complaint):
        load_pipeline(project)


TWICE = """\
from floodmark import *
def copy(a): return a
pipeline = Pipeline([
    BatchTransform(copy, ["a"], ["b"]),
    {second},
])
"""


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ("BatchTransform(copy, ['a'], ['b'], name='again')", "both write 'b'"),
        ("BatchTransform(copy, ['a'], ['c'])", "two steps of the pipeline are named 'copy'"),
        ("ViewSpec('copy', sql='select 1')", "two steps of the pipeline are named 'copy'"),
    ],
)
def test_declarations_that_do_not_go_together_are_said_with_the_lines_of_both(project: Path, second, complaint):
    (project / "pipeline.py").write_text(TWICE.format(second=second))
    with pytest.raises(BadPipelineFile, match=complaint) as caught:
        load_pipeline(project)
    assert caught.value.line == 5
    assert "line 4)" in caught.value.message

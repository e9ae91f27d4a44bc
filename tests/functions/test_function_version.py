"""A step function's version changes with what it computes; not with its name, its place, or how it looks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from floodmark.functions.step_function import StepFunction
from functions.functions_in_files import project

PLAIN = "def f(df):\n    return df.assign(y=df.x * 2)\n"


class Versions:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(
        self, text: str, name: str = "f", module: str = "the_job", kwargs: dict[str, Any] | None = None, **others: str
    ) -> str:
        self.count += 1
        with project(self.folder / str(self.count), {module: text, **others}):
            function = getattr(importlib.import_module(module), name)
            return StepFunction(function, kwargs, inputs=1, outputs=1).version


@pytest.fixture
def version(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


SAME = {
    "another name": ("def g(df):\n    return df.assign(y=df.x * 2)\n", "g"),
    "comments and a docstring": ('def f(df):\n    "Doubles."\n    # x\n    return df.assign(y=df.x * 2)\n', "f"),
    "annotations": (
        "import pandas as pd\ndef f(df: pd.DataFrame) -> pd.DataFrame:\n    return df.assign(y=df.x * 2)\n",
        "f",
    ),
    "text annotations": ("def f(df: 'pd.DataFrame'):\n    return df.assign(y=df.x * 2)\n", "f"),
    "place in the file": ("A = 1\n\n\ndef other(): ...\n\n\ndef f(df):\n    return df.assign(y=df.x * 2)\n", "f"),
}


@pytest.mark.parametrize("change", SAME)
def test_version_stays(version: Versions, change: str):
    text, name = SAME[change]
    assert version(text, name) == version(PLAIN)


def test_version_stays_when_the_function_moves_to_another_module(version: Versions):
    assert version(PLAIN, module="jobs.of_mine", **{"jobs.__init__": ""}) == version(PLAIN)


RENAMED = {
    "recursive": "def {}(df, n=3):\n    return df if not n else {}(df, n - 1)\n",
    "lambda": "{} = lambda df: df.assign(y=1)\n",
    "class": "class {}:\n    K = 2\n    def __call__(self, df):\n        return df.assign(y={}.K)\n",
    "object": "class C{}:\n    def __call__(self, df):\n        return df\n\n{} = C{}()\n",
    "partial": "import functools\ndef inner_{}(n, df):\n    return df.head(n)\n{} = functools.partial(inner_{}, 3)\n",
    "decorated": (
        "import functools\ndef logged(g):\n    @functools.wraps(g)\n    def around(df):\n        return g(df)\n"
        "    return around\n\n@logged\ndef {}(df):\n    return df\n"
    ),
    "variable of the same name": "def {}(df):\n    f = df.dropna()\n    return f\n",
}


@pytest.mark.parametrize("kind", RENAMED)
def test_renaming_is_no_change(version: Versions, kind: str):
    text = RENAMED[kind]
    assert version(text.replace("{}", "f")) == version(text.replace("{}", "tidy"), "tidy")


def test_what_is_called_in_a_renamed_recursion_still_counts(version: Versions):
    text = "def {}(df, n=3):\n    return df if not n else {}(df, n - 1)\n"
    other = "def helper(df, n):\n    return df\n\ndef f(df, n=3):\n    return df if not n else helper(df, n - 1)\n"
    assert version(text.replace("{}", "f")) != version(other)


CHANGED = {
    "code": "def f(df):\n    return df.assign(y=df.x * 3)\n",
    "frames": "import pyarrow as pa\ndef f(df: pa.Table):\n    return df.assign(y=df.x * 2)\n",
    "a default": "def f(df, n=1):\n    return df.assign(y=df.x * 2)\n",
}


@pytest.mark.parametrize("change", CHANGED)
def test_version_changes(version: Versions, change: str):
    assert version(CHANGED[change]) != version(PLAIN)


def test_called_function_of_the_project_counts(version: Versions):
    text = "from tools import g\ndef f(df):\n    return g(df)\n"
    one, same, other = (
        "def g(df):\n    return df\n",
        "def g(df):\n    # x\n    return df\n",
        "def g(df):\n    return 1\n",
    )
    assert version(text, tools=one) == version(text, tools=same)
    assert version(text, tools=one) != version(text, tools=other)


def test_closure_values_and_globals_count(version: Versions):
    text = "def make(k):\n    def f(df):\n        return df * k\n    return f\n\nf = make({})\n"
    assert version(text.format(2)) == version(text.format("1 + 1"))
    assert version(text.format(2)) != version(text.format(3))
    with_global = "K = {}\ndef f(df):\n    return df * K\n"
    assert version(with_global.format(2)) != version(with_global.format(3))


def test_keyword_arguments_count_whatever_their_order(version: Versions):
    text = "def f(df, a=1, b=2):\n    return df\n"
    versions = {version(text, kwargs=k) for k in (None, {"a": 1}, {"a": 2}, {"a": "1"}, {"a": 1, "b": 3})}
    assert len(versions) == 5
    assert version(text, kwargs={"a": 1, "b": 3}) == version(text, kwargs={"b": 3, "a": 1})


def test_function_given_as_keyword_argument_counts_by_its_code(version: Versions):
    text = "def f(df, by=None):\n    return df\n"
    with_lambda = "def f(df, by=None):\n    return df\nKEY = lambda x: x + {}\n"

    def of(number: int) -> str:
        version.count += 1
        with project(version.folder / str(version.count), {"the_job": with_lambda.format(number)}):
            job = importlib.import_module("the_job")
            return StepFunction(job.f, {"by": job.KEY}, inputs=1, outputs=1).version

    assert of(1) == of(1) != of(2)
    assert version(text) not in (of(1), of(2))


def test_given_version_is_the_version():
    assert StepFunction(print, version="seven", inputs=1, outputs=1).version == "seven"


@pytest.mark.slow
def test_version_is_the_same_in_another_process(tmp_path: Path, version: Versions):
    text = "K = {'b', 'a', 'c'}\n" + PLAIN.replace("2", "len(K)")
    (tmp_path / "their_job.py").write_text(text)
    code = (
        "import their_job; from floodmark.functions.step_function import StepFunction as S;"
        "import sys; print(S(their_job.f, inputs=1, outputs=1).version);"
        "print([m for m in ('pandas', 'polars', 'pyspark') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[0] == version(text)
    assert ran.stdout.split("\n")[1] == "[]"  # a run that finds nothing to do must not pay for them

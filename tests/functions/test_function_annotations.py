"""Annotations whose imports are for type checkers only are resolved from the source, and never guessed."""

from __future__ import annotations

import functools
import linecache
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floodmark.errors import BadFunction, BadStep
from floodmark.functions.step_function import StepFunction
from floodmark.transforms.batch_transform import BatchTransform

if TYPE_CHECKING:
    import polars as bears
    from polars import DataFrame
    from pyarrow import Table as ArrowTable
    from pyspark.sql import DataFrame as SparkFrame


def kinds(function: Any, inputs: int = 1) -> list[str]:
    return list(StepFunction(function, version="1", inputs=inputs, outputs=1).kinds)


def bare(a: DataFrame):
    return a


def renamed(a: ArrowTable, b: bears.DataFrame, c: SparkFrame, d: Optional[bears.DataFrame]):  # noqa: UP045
    return a


def _seen(function):
    @functools.wraps(function)
    def seen(*args, **kwargs):
        return function(*args, **kwargs)

    return seen


@_seen
def decorated(a: DataFrame, factor: int = 1):
    return a


class Model:
    def __call__(self, a: ArrowTable):
        return a

    def method(self, a: bears.DataFrame):
        return a


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (bare, ["polars"]),
        (renamed, ["table", "polars", "spark", "polars"]),
        (decorated, ["polars"]),
        (functools.partial(decorated, factor=2), ["polars"]),
        (Model, ["table"]),
        (Model(), ["table"]),
        (Model().method, ["polars"]),
    ],
)
def test_names_imported_for_type_checkers_are_found_in_the_source(function, wanted: list[str]):
    assert kinds(function, len(wanted)) == wanted


def test_import_of_the_function_around_it_counts_before_that_of_the_file():
    def outer():
        if TYPE_CHECKING:
            from pandas import DataFrame  # noqa: F401

        def inner(a: DataFrame):
            return a

        return inner

    def beside():
        from pyarrow import Table as DataFrame

        return DataFrame

    assert beside() is pa.Table
    assert kinds(outer()) == ["pandas"]


def _defined(source: str) -> Any:
    """The function `f` of a file with this text."""
    name = f"<annotations {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"TYPE_CHECKING": False}
    exec(compile(source, name, "exec", dont_inherit=True), scope)  # noqa: S102
    return scope["f"]


FUTURE = "from __future__ import annotations\n"


@pytest.mark.parametrize(
    "source",
    [
        "def f(a: 'DataFrame'): return a",
        "def f(a: 'Table | None'): return a",
        "def f(a: 'somewhere.DataFrame'): return a",
        f"{FUTURE}if TYPE_CHECKING:\n  from .frames import DataFrame\ndef f(a: DataFrame): return a",
        f"{FUTURE}if TYPE_CHECKING:\n  from dask.dataframe import DataFrame\ndef f(a: DataFrame): return a",
        f"{FUTURE}if TYPE_CHECKING:\n  from polars import LazyFrame\ndef f(a: LazyFrame): return a",
        f"{FUTURE}if TYPE_CHECKING:\n  from polars import DataFrame\n  from pandas import DataFrame\n"
        "def f(a: DataFrame): return a",
        "class DataFrame: pass\ndef f(a: DataFrame): return a",
    ],
)
def test_frame_of_which_nobody_can_tell_whose_it_is_is_refused(source: str):
    with pytest.raises(BadFunction, match="parameter 'a' of 'f'") as caught:
        kinds(_defined(source))
    assert "pl.DataFrame" in caught.value.hint


def test_annotations_without_a_frame_in_them_still_mean_pandas():
    assert kinds(_defined("def f(a: 'Whatever', b: 'whose.Thing'): return a"), 2) == ["pandas", "pandas"]
    assert kinds(_defined("from typing import Any\ndef f(a: Any, b: object): return a"), 2) == ["pandas", "pandas"]


def test_text_inside_an_annotation_is_looked_at():
    def optional(a):
        return a

    optional.__annotations__ = {"a": Optional["pl.DataFrame"]}
    assert kinds(optional) == ["polars"]


def test_frame_with_a_parameter_is_that_frame():
    T = TypeVar("T")

    class Checked(pl.DataFrame, Generic[T]):
        pass

    def takes(a):
        return a

    takes.__annotations__ = {"a": Checked[int]}
    assert kinds(takes) == ["polars"]


def test_spark_frames_are_for_whole_datasets():
    def whole(a: SparkFrame):
        return a

    with pytest.raises(BadStep, match="DatatableTransform"):
        BatchTransform(whole, ["a"], ["b"])


def test_frames_of_pandas_are_what_they_were():
    def plain(a: pd.DataFrame, b: pd.DataFrame | None):
        return a

    assert kinds(plain, 2) == ["pandas", "pandas"]

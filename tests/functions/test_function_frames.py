"""Which frames a function gets is told by its annotations, and what cannot be called is refused when it is declared."""

from __future__ import annotations

import functools
import pickle
from typing import Annotated, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floodmark.engine.task import pickle_by_value
from floodmark.errors import BadFunction
from floodmark.functions.step_function import StepFunction

TABLE = pa.table({"id": [1, 2]})
KINDS = {"pandas": pd.DataFrame, "table": pa.Table, "batch": pa.RecordBatch, "polars": pl.DataFrame}


def plain(df):
    return df


def written(a: pd.DataFrame, b: pa.Table, c: pa.RecordBatch, d: pl.DataFrame):
    return a, b, c, d


def quoted(a: "pl.DataFrame | None", *rest: "pa.Table"):  # noqa: UP037
    return a


def noted(a: Annotated[pa.Table, "images"], b: Any, c: object):
    return a


def only_for_checkers(a: polars.DataFrame, b: pyarrow.Table):  # noqa: F821
    return a


class Own(pl.DataFrame):
    pass


def derived(a: Own):
    return a


class Model:
    def __call__(self, df: pa.Table, *, factor: int = 1):
        return df


def unresolved(a: pd.DataFrame, b: pa.Table):
    return a


unresolved.__annotations__ = {"a": pd.DataFrame, "b": pa.Table}  # as without `from __future__`


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (plain, ["pandas"]),
        (lambda a, b: a, ["pandas", "pandas"]),
        (written, ["pandas", "table", "batch", "polars"]),
        (quoted, ["polars", "table", "table"]),
        (noted, ["table", "pandas", "pandas"]),
        (only_for_checkers, ["polars", "table"]),
        (derived, ["polars"]),
        (unresolved, ["pandas", "table"]),
        (Model, ["table"]),
        (Model(), ["table"]),
        (functools.partial(written, TABLE), ["table", "batch", "polars"]),
    ],
)
def test_annotations_say_which_frames_a_function_gets(function, kinds: list[str]):
    assert list(StepFunction(function, version="1", inputs=len(kinds), outputs=1).kinds) == kinds


def test_frames_are_what_was_asked_for():
    seen = []

    def look(a: pd.DataFrame, b: pa.Table, c: pa.RecordBatch, d: pl.DataFrame):
        seen.extend([a, b, c, d])
        return a

    function = StepFunction(look, version="1", inputs=4, outputs=1)
    for table in (TABLE, TABLE.slice(0, 0), pa.concat_tables([TABLE, TABLE])):
        seen.clear()
        function([table] * 4)
        assert [type(frame) for frame in seen] == list(KINDS.values())
        assert [len(frame) for frame in seen] == [table.num_rows] * 4


@pytest.mark.parametrize(
    ("function", "inputs", "says"),
    [
        (3, 1, "is not a function"),
        (lambda: 1, 1, "cannot be called with 1 frame"),
        (lambda a: 1, 2, "cannot be called with 2 frames"),
        (lambda a, b: 1, 1, "missing a required argument: 'b'"),
        (lambda a, *, factor: 1, 1, "missing a required"),
    ],
)
def test_function_that_cannot_be_called_so_is_refused(function, inputs: int, says: str):
    with pytest.raises(BadFunction, match=says):
        StepFunction(function, inputs=inputs, outputs=1)


def test_other_things_that_cannot_work_are_refused():
    def generator(df):
        yield df

    async def later(df):
        return df

    def of_numbers(x: int):
        return x

    def of_columns(x: pd.Series):
        return x

    def lazy(x: pl.LazyFrame):
        return x

    class Needs:
        def __init__(self, path):
            self.path = path

        def __call__(self, df):
            return df

    class Empty:
        pass

    for function in (generator, later, of_numbers, of_columns, lazy, Needs, Empty):
        with pytest.raises(BadFunction):
            StepFunction(function, inputs=1, outputs=1)
    with pytest.raises(BadFunction, match="unexpected keyword argument 'wrong'"):
        StepFunction(plain, {"wrong": 1}, inputs=1, outputs=1)
    with pytest.raises(BadFunction, match="version"):
        StepFunction(plain, version=3, inputs=1, outputs=1)  # type: ignore[arg-type]


def test_keyword_arguments_come_with_every_call():
    def scale(df: pa.Table, factor: int, *, name: str = "y"):
        return df.append_column(name, pa.array([v * factor for v in df["id"].to_pylist()]))

    (made,) = StepFunction(scale, {"factor": 3, "name": "z"}, version="1", inputs=1, outputs=1)([TABLE])
    assert made.to_pylist() == [{"id": 1, "z": 3}, {"id": 2, "z": 6}]


def test_class_is_made_once_however_often_it_is_called():
    made = []

    class Counting:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, df):
            return df

    function = StepFunction(Counting, version="1", inputs=1, outputs=1)
    function([TABLE])
    function([TABLE])
    assert len(made) == 1


def test_changed_class_of_the_same_given_version_is_not_mistaken_for_the_old_one():
    def of(value: int) -> StepFunction:
        class Job:
            def __call__(self, df: pa.Table):
                return df.append_column("v", pa.array([value] * df.num_rows))

        return StepFunction(Job, version="1", inputs=1, outputs=1)

    assert [of(value)([TABLE])[0]["v"].to_pylist() for value in (1, 2)] == [[1, 1], [2, 2]]


def test_function_travels_with_its_version_and_source():
    factor = 4

    def scale(df: pa.Table):
        return df.append_column("y", pa.array([v * factor for v in df["id"].to_pylist()]))

    function = StepFunction(scale, name="my step", inputs=1, outputs=1)
    with pickle_by_value() as pack:
        there = pickle.loads(pack(function))
    assert (there.version, there.source, there.name) == (function.version, function.source, "my step")
    assert "v * factor" in there.source
    assert there([TABLE])[0].equals(function([TABLE])[0])


def test_function_that_cannot_travel_is_refused():
    import threading

    lock = threading.Lock()

    def locked(df):
        with lock:
            return df

    with pytest.raises(BadFunction, match="cannot be sent to a worker"):
        StepFunction(locked, version="1", inputs=1, outputs=1).check_shippable()

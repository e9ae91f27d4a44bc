"""What cannot work is refused when a step is declared, in words that name the step and the option."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadFunction, BadStep, FloodmarkError

WRONG = [
    ({"transform_keys": []}, "is empty"),
    ({"transform_keys": [1]}, "transform keys of step 'f'"),
    ({"transform_keys": 5}, "transform keys of step 'f'"),
    ({"transform_keys": {"id"}}, "transform keys of step 'f'"),
    ({"transform_keys": ""}, "transform keys of step 'f'"),
    ({"transform_keys": ["id", "id"]}, "'id' twice"),
    ({"order_by": 5}, "order_by of step 'f'"),
    ({"order_by": [None]}, "order_by of step 'f'"),
    ({"kwargs": [1]}, "kwargs="),
    ({"kwargs": "x"}, "kwargs="),
    ({"kwargs": {1: 2}}, "kwargs="),
    ({"chunk_size": 0}, "chunk_size=0"),
    ({"chunk_size": True}, "chunk_size=True"),
    ({"chunk_size": 2.0}, "chunk_size=2.0"),
    ({"use_offset_optimization": "no"}, "use_offset_optimization='no'"),
    ({"labels": {"stage": 1}}, "labels="),
    ({"labels": {"": "a"}}, "labels="),
    ({"labels": [("stage", "a"), ("stage", "b")]}, "labels="),
    ({"name": "a b"}, "'a b' cannot name a step"),
]


def f(df: pd.DataFrame) -> pd.DataFrame:
    return df


@pytest.mark.parametrize(("options", "says"), WRONG, ids=lambda value: str(value)[:40])
def test_option_that_cannot_work_is_refused(options: dict[str, Any], says: str):
    with pytest.raises((BadStep, BadStep), match=says):
        fm.BatchTransform(f, ["a"], ["b"], **options)


@pytest.mark.parametrize(
    "given",
    [None, 5, "", {"a"}, {"a": 1}, fm.BatchTransform(f, ["x"], ["y"]), pa.table({"a": [1]}), fm.OutputSpec("a")],
)
def test_what_is_no_dataset_is_no_input(given: object):
    with pytest.raises(BadStep, match="which is not a dataset"):
        fm.BatchTransform(f, [given], ["b"])


def test_input_spec_is_no_output():
    with pytest.raises(BadStep, match="which is not a dataset"):
        fm.BatchTransform(f, ["a"], [fm.InputSpec("b", columns=["x"])])


@pytest.mark.parametrize(
    "options",
    [
        {"key": []},
        {"key": 5},
        {"key": ["k", "k"]},
        {"key": [1]},
        {"schema": 5},
        {"schema": {"id": "nonsense"}},
        {"event_time": 5},
    ],
)
def test_output_that_cannot_be_made_is_refused(options: dict[str, Any]):
    with pytest.raises(BadStep, match="output 'o'"):
        fm.OutputSpec("o", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"keys": {"a": 1}},
        {"keys": {"a": ""}},
        {"columns": 5},
        {"columns": ["c", "c"]},
        {"columns": [""]},
        {"required": "no"},
    ],
)
def test_input_that_cannot_be_read_is_refused(options: dict[str, Any]):
    with pytest.raises(BadStep, match="input 'a'"):
        fm.InputSpec("a", **options)


def test_required_input_may_have_no_columns_but_its_keys():
    assert fm.Required(fm.InputSpec("a", columns=["x"]), columns=[]).columns == ()
    assert fm.Required(fm.InputSpec("a", columns=["x"])).columns == ("x",)


def test_step_is_named_after_the_function_inside_a_partial():
    def scaled(df: pd.DataFrame, factor: int) -> pd.DataFrame:
        return df

    part = functools.partial(functools.partial(scaled), factor=2)
    assert fm.BatchTransform(part, ["a"], ["b"]).name == "scaled"
    assert fm.DatatableTransform(part, ["a"], ["b"]).name == "scaled"


def test_one_input_and_output_may_stand_alone():
    step = fm.BatchTransform(f, "a", "b", transform_keys="id")
    assert (step.input_names, step.output_names, step.transform_keys) == (("a",), ("b",), ("id",))


async def later() -> None: ...


@pytest.mark.parametrize(
    ("function", "kwargs"), [(later, {}), (lambda needed: [], {}), (lambda: [], {"unknown": 1}), (3, {})]
)
def test_generator_that_cannot_be_called_is_refused(function: Any, kwargs: dict[str, Any]):
    with pytest.raises(BadFunction):
        fm.BatchGenerate(function, [fm.OutputSpec("o", key="id")], kwargs=kwargs, name="g")


@pytest.mark.parametrize(
    "options", [{"cursor": None}, {"cursor": 5}, {"overlap": "x"}, {"overlap": True}, {"batch_rows": True}]
)
def test_poll_that_cannot_work_is_refused(options: dict[str, Any]):
    with pytest.raises(BadStep, match=next(iter(options))):
        fm.UpdateExternalTable("o", "sqlite:///x.db#t", **options)


# Lakes


@pytest.fixture
def lakes(tmp_path) -> tuple[fm.Lake, fm.Lake]:
    made = fm.Lake(tmp_path / "one"), fm.Lake(tmp_path / "two")
    for number, lake in enumerate(made):
        lake.create("a", key="id").write(pa.table({"id": [number]}))
    return made


def _steps(given: Any) -> list[Any]:
    return [
        fm.BatchTransform(f, [given], ["b"]),
        fm.BatchTransform(f, ["x"], [given]),
        fm.DatatableTransform(f, [given], ["b"]),
        fm.BatchGenerate(lambda: pa.table({"id": [1]}), [given]),
        fm.UpdateExternalTable(given, "sqlite:///x.db#t"),
    ]


@pytest.mark.parametrize("number", range(5))
def test_dataset_of_another_lake_is_not_taken_for_its_namesake(number: int, lakes):
    one, two = lakes
    step = _steps(two["a"])[number]
    for ask in (step.run, step.status):
        with pytest.raises(BadStep, match="'a' that is not the one in"):
            ask(one)
    assert one["a"].to_arrow().to_pydict() == {"id": [0]}


def test_dataset_that_this_lake_does_not_have_is_not_made_in_it(lakes):
    one, two = lakes
    fm.BatchTransform(f, ["a"], ["b"]).run(two)
    with pytest.raises(BadStep, match="give the dataset's name, 'b'"):
        fm.BatchTransform(f, ["a"], [two["b"]]).run(one)
    assert "b" not in one


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("given", [None, "lake", 3])
def test_step_runs_in_a_lake_only(number: int, given: object):
    with pytest.raises(BadStep, match="needs a lake"):
        _steps("a")[number].run(given)


def test_every_question_is_asked_of_the_right_lake(lakes):
    one, two = lakes
    step = fm.BatchTransform(f, [two["a"]], ["b"])
    asked = [step.plan, step.changelist, step.status, step.errors, step.offsets, step.meta, step.reset, step.retry]
    for ask in (*asked, lambda lake: step.run_changelist(lake, {"a": [1]})):
        with pytest.raises(BadStep, match="not the one in"):
            ask(one)


# What is said of rows that do not fit


def _said(step: Any, lake: fm.Lake) -> FloodmarkError:
    with pytest.raises(FloodmarkError) as caught:
        step.run(lake)
    return caught.value


def _generate(table: pa.Table, key: str = "id") -> fm.BatchGenerate:
    return fm.BatchGenerate(lambda: table, [fm.OutputSpec("g", key=key)], name="g")


def test_errors_about_rows_say_which_output_and_what_to_declare(lakes):
    lake, _ = lakes
    twice = _said(_generate(pa.table({"id": [1, 1]})), lake)
    assert ("'g'" in twice.message, "OutputSpec('g', key=" in twice.hint, "merge=" in twice.hint) == (True, True, False)
    lake.drop("g")
    _generate(pa.table({"id": [1], "v": [1]})).run(lake)
    other = _said(_generate(pa.table({"id": [1], "v": ["x"]})), lake)
    assert ("'g'" in other.message, "OutputSpec('g', schema=…)" in other.hint) == (True, True)
    whole = fm.DatatableTransform(lambda df: pd.concat([df, df]), ["a"], ["w"], name="w", version="1")
    assert "OutputSpec('w', key=" in _said(whole, lake).hint


def test_rows_without_the_key_leave_no_dataset_with_that_key_behind(lakes):
    lake, _ = lakes
    assert "lack the key column 'id'" in _said(_generate(pa.table({"name": ["x"]})), lake).message
    assert "g" not in lake
    assert _generate(pa.table({"name": ["x"]}), key="name").run(lake).new == 1


@pytest.mark.process
def test_keyword_argument_that_cannot_travel_is_said_before_anything_is_called(lakes):
    lake, _ = lakes
    step = fm.BatchTransform(
        lambda df, lock: df, ["a"], ["b"], kwargs={"lock": threading.Lock()}, name="s", version="1"
    )
    with pytest.raises(BadFunction, match="cannot be sent to a worker"):
        step.run(lake)

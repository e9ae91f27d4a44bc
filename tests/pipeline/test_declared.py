"""Declarations say what should be, remember their line, and refuse what cannot be."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadStep, FloodmarkError


def same(orders: pa.Table) -> pa.Table:
    return orders


@fm.udf(returns="float64")
def double(price: float) -> float:
    return 2 * price


def test_declarations_remember_their_line():
    found = [
        fm.DatasetSpec("a"),
        fm.Source("a", files="*.csv"),
        fm.ColumnSpec("a", "double", double),
        fm.ViewSpec("v", sql="select 1 from a"),
        fm.BatchTransform(same, ["a"], ["b"]),
    ]
    (first, *_) = lines = [one.place.line for one in found]
    assert lines == list(range(first, first + 5))
    assert {Path(one.place.file).name for one in found} == {"test_declared.py"}


def test_two_declarations_of_the_same_are_equal_wherever_they_stand():
    one = fm.DatasetSpec("a", key="id")
    assert one == fm.DatasetSpec("a", key="id")
    assert one != fm.DatasetSpec("a", key="name")


def test_declared_datasets_are_inputs_and_outputs_of_steps():
    step = fm.BatchTransform(
        same, [fm.DatasetSpec("orders", key="id")], [fm.DatasetSpec("prices", key="id", event_time="at")]
    )
    assert step.input_names == ("orders",)
    (output,) = step.outputs
    assert (output.name, output.key, output.event_time) == ("prices", ("id",), "at")


def test_an_output_named_by_text_has_what_is_declared_of_it():
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")})
    pipeline = fm.Pipeline(
        [
            fm.BatchTransform(same, ["orders"], ["prices"]),
            fm.BatchTransform(same, ["orders"], [fm.OutputSpec("others", key="name")], name="other"),
            fm.DatasetSpec("prices", key="id", event_time="at", schema=schema),
            fm.DatasetSpec("others", key="id", event_time="at"),
        ]
    )
    (spec,) = pipeline["same"].outputs
    assert (spec.key, spec.event_time, spec.schema) == (("id",), "at", schema)
    assert [step.outputs[0].event_time for step in pipeline] == ["at", "at"]
    assert pipeline["other"].outputs[0].key == ("name",)  # what the step itself says comes first


def test_a_declaration_given_to_a_step_column_or_view_is_one_of_the_pipeline():
    a, b, c, d = (fm.DatasetSpec(name, key="id", merge="snapshot") for name in "abcd")
    pipeline = fm.Pipeline(
        [
            fm.BatchTransform(same, [fm.Required(a)], ["out"]),
            fm.BatchGenerate(list, [b]),
            fm.ColumnSpec(c, "double", double),
            fm.ViewSpec("v", source=d),
        ]
    )
    assert pipeline.datasets == {"a": a, "b": b, "c": c, "d": d}


@pytest.mark.parametrize(
    ("declare", "complaint"),
    [
        (lambda: fm.DatasetSpec("a/b"), "is not a valid dataset name"),
        (lambda: fm.DatasetSpec("a", merge="append", key="id"), "an append dataset has no key"),
        (lambda: fm.DatasetSpec("a", partition_by="day"), "needs event_time="),
        (lambda: fm.Source("a"), "is given nothing"),
        (lambda: fm.Source("a", files="*", frame=same), "is given files= and frame="),
        (lambda: fm.Source("a", frame=dict, format="csv"), "without files"),
        (lambda: fm.Source("a", files="*", name="no good"), "cannot name a step"),
        (lambda: fm.ColumnSpec("a", "c", same), "not a udf"),
        (lambda: fm.ColumnSpec("a", "c", double, inputs="price"), "are text"),
        (lambda: fm.ColumnSpec("a", "", double), "cannot name a column"),
        (lambda: fm.ViewSpec("v"), "neither sql= nor source="),
        (lambda: fm.ViewSpec("v", sql="select 1", source="a"), "not by both"),
        (lambda: fm.ViewSpec("no good", sql="select 1"), "is not a valid dataset name"),
        (lambda: fm.Pipeline([fm.DatasetSpec("a"), fm.DatasetSpec("a", key="id")]), "declared twice"),
        (lambda: fm.Pipeline([fm.ColumnSpec("a", "c", double), fm.ColumnSpec("a", "c", double)]), "two .* named 'a.c'"),
        (
            lambda: fm.Pipeline([fm.ViewSpec("same", sql="select 1 from b"), fm.BatchTransform(same, ["a"], ["b"])]),
            "two ",
        ),
    ],
)
def test_what_cannot_be_is_refused(declare, complaint):
    with pytest.raises(FloodmarkError, match=complaint):
        declare()


def test_a_pipeline_knows_its_nodes_and_what_they_read():
    orders = fm.DatasetSpec("orders", key="id")
    pipeline = fm.Pipeline(
        [
            fm.ViewSpec(
                "daily", sql="select count(*) n from prices join orders using (id)", labels={"stage": "report"}
            ),
            fm.ViewSpec("cheap", source=orders, where="price < 1"),
            fm.BatchTransform(same, [orders], ["prices"]),
            fm.Source(orders, files="*.csv", labels={"stage": "in"}),
            fm.ColumnSpec(orders, "double", double),
        ]
    )
    nodes = {node.name: node for node in pipeline.nodes}
    assert {name: (node.kind, node.reads, node.writes) for name, node in nodes.items()} == {
        "daily": ("view", ("prices", "orders"), ("daily",)),
        "cheap": ("view", ("orders",), ("cheap",)),
        "same": ("step", ("orders",), ("prices",)),
        "ingest_orders": ("source", (), ("orders",)),
        "orders.double": ("column", ("orders",), ("orders:double",)),
    }
    assert pipeline.graph().order == ("ingest_orders", "same", "orders.double", "daily", "cheap")
    assert [node.name for node in pipeline.labelled({"stage": "report"}).nodes] == ["daily"]
    assert list(pipeline.datasets) == ["orders"]


def test_steps_are_what_a_pipeline_iterates_over_and_finds():
    pipeline = fm.Pipeline([fm.Source("a", files="*"), fm.ViewSpec("v", sql="select 1 from a")])
    assert [step.name for step in pipeline] == pipeline.names == ["ingest_a"]
    assert "v" not in pipeline


# Decorators


def test_decorators_give_the_function_back_and_declare_it():
    pipeline = fm.Pipeline()
    decorators = {
        "transform": pipeline.transform(["orders"], ["prices"]),
        "table": pipeline.table(["prices"], [fm.OutputSpec("all", key="id")]),
        "source": pipeline.source("orders"),
        "column": pipeline.column("orders", returns="float64"),
        "view": pipeline.view(),
    }
    for name, decorate in decorators.items():
        function = {
            "column": lambda price: price,
            "view": lambda: "select 1 from orders",
            "source": lambda: None,
        }.get(name, lambda frame: frame)
        function.__name__ = f"my_{name}"
        assert decorate(function) is function
    assert [node.name for node in pipeline.nodes] == [
        "my_transform",
        "my_table",
        "ingest_orders",
        "orders.my_column",
        "my_view",
    ]


def test_a_view_function_that_gives_no_sql_is_refused():
    with pytest.raises(BadStep, match="not SQL"):
        fm.Pipeline().view()(lambda: 7)


def test_a_view_function_with_a_source_gives_its_columns():
    pipeline = fm.Pipeline()
    pipeline.view("v", source="orders")(lambda: {"cents": "price * 100"})
    assert dict(pipeline.views["v"].definition.select) == {"cents": "price * 100"}


FLOW = """
import pyarrow as pa
from floodmark import Pipeline
pipeline = Pipeline()
{decorator}
def tax(price: pa.Table) -> pa.Table:
    return price
"""


def test_a_decorator_is_no_part_of_a_functions_version(tmp_path):
    versions = set()
    for number, decorator in enumerate(
        ["@pipeline.transform(['a'], ['b'])", "@pipeline.transform(['a'], ['c'], chunk_size=7)", ""]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "flow.py").write_text(FLOW.format(decorator=decorator))
        names: dict = {"__name__": f"flow{number}"}
        exec(compile((folder / "flow.py").read_text(), str(folder / "flow.py"), "exec"), names)  # noqa: S102
        versions.add(fm.BatchTransform(names["tax"], ["a"], ["b"]).function.version)
    assert len(versions) == 1


def test_a_decorated_function_that_takes_one_frame_too_many_is_refused_when_declared():
    with pytest.raises(BadStep):
        fm.Pipeline().transform([], ["b"])(same)


@pytest.mark.parametrize("name", ["key", "lookup", "compare"])
def test_what_names_no_columns_is_refused_in_words(name):
    given = {"key": "id", "merge": "snapshot", name: 3}
    with pytest.raises(fm.FloodmarkError, match=f"^{name}=3 is neither a column name nor a list of column names"):
        fm.DatasetSpec("orders", **given)


@pytest.mark.parametrize("kind", [fm.Dataset, fm.View])
def test_what_a_lake_returns_is_refused_as_a_declaration_and_names_the_spec(kind: type):
    with pytest.raises(FloodmarkError, match="is not a declaration") as refused:
        kind("orders", key="id")
    assert f"{kind.__name__}Spec" in refused.value.hint


@pytest.mark.parametrize("files", ["s3://bucket/*.csv", ["data/*.csv", "gs://bucket/a.csv"], "https://host/a.csv"])
def test_files_at_an_address_are_refused_where_they_are_declared(files):
    with pytest.raises(BadStep, match="is an address, and files are read from folders of this machine") as refused:
        fm.Source("orders", files=files)
    assert "Spark" in refused.value.hint

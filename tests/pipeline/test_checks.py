"""What a lake says against a pipeline is one error with file and line, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.chain import wire
from floodmark.pipeline.checks import build_checked_graph
from limits import set_limit

ROWS = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC")), "price": [1.5]})


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("orders", key="id", event_time="at").write(ROWS)
    return lake


def same(orders: pa.Table) -> pa.Table:
    return orders


def problems(lake: fm.Lake, *declarations) -> fm.BadPipeline:
    with pytest.raises(fm.BadPipeline) as caught:
        build_checked_graph(fm.Pipeline(declarations), lake)
    return caught.value


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"key": "at"}, "exists with merge upsert by id, not merge upsert by at"),
        ({"key": "id", "merge": "snapshot"}, "not merge snapshot by id"),
        ({"merge": "append"}, "not merge append"),
        ({"event_time": "price"}, "exists with the event time 'at', not 'price'"),
        ({"event_time": "at", "partition_by": "day"}, "exists with no timeline"),
        (
            {"key": "id", "schema": {"price": "string"}},
            "column 'price' of 'orders' is declared as string, but is double",
        ),
    ],
)
def test_a_dataset_that_was_made_otherwise_is_refused_with_its_line(lake, options, complaint):
    error = problems(lake, fm.DatasetSpec("orders", **options))
    assert complaint in error.message
    assert error.message.startswith(f"{__file__}, line ")
    assert error.path == __file__
    assert isinstance(error.line, int)
    assert "floodmark drop orders" in error.hint


@pytest.mark.parametrize(
    "options", [{}, {"key": "id"}, {"key": "id", "event_time": "at"}, {"schema": {"id": "int32", "new": "string"}}]
)
def test_a_dataset_as_it_is_or_less_said_of_it_is_fine(lake, options):
    build_checked_graph(fm.Pipeline([fm.DatasetSpec("orders", **options)]), lake)


def test_a_key_that_was_taken_out_of_the_declaration_of_what_a_source_fills_is_refused_with_its_line(lake):
    lake.create("stock", key=["shop", "id"], merge="snapshot")
    declared = fm.DatasetSpec("orders", event_time="at"), fm.DatasetSpec("Stock")
    error = problems(lake, *(fm.Source(one, frame=lambda: ROWS) for one in declared))
    assert [one.message for one in error.problems] == [
        "dataset 'orders' exists with merge upsert by id, but is declared without a key",
        "dataset 'Stock' exists with merge snapshot by shop, id, but is declared without a key",
    ]
    assert "key='id'" in error.problems[0].hint
    assert "key=['shop', 'id'], merge='snapshot'" in error.problems[1].hint
    assert {one.place for one in error.problems} == {one.place for one in declared}


def test_a_source_that_is_given_just_a_name_writes_to_a_dataset_as_it_is(lake):
    pipeline = fm.Pipeline([fm.Source("orders", frame=lambda: ROWS.set_column(2, "price", pa.array([2.5])))])
    assert pipeline.run(lake)["ingest_orders"].state == "done"
    assert lake["orders"].to_arrow()["price"].to_pylist() == [2.5]


def test_an_output_with_another_key_than_it_has_is_refused(lake):
    fm.BatchTransform(same, ["orders"], ["prices"]).run(lake)
    for output in (fm.OutputSpec("prices", key=["id", "at"]), fm.DatasetSpec("prices", key=["id", "at"])):
        error = problems(lake, fm.BatchTransform(same, ["orders"], [output]))
        assert "id" in error.message
        assert f"{__file__}, line " in error.message
    declared = problems(lake, fm.DatasetSpec("prices", key="at"), fm.BatchTransform(same, ["orders"], ["prices"]))
    assert "dataset 'prices' exists with the key id, not at" in declared.message


def test_what_is_computed_has_no_merge_strategy_of_its_own(lake):
    error = problems(
        lake, fm.DatasetSpec("prices", key="id", merge="snapshot"), fm.BatchTransform(same, ["orders"], ["prices"])
    )
    assert "declared with merge=, but it is computed from others" in error.message


def test_all_that_is_wrong_is_said_at_once_and_nothing_runs(lake):
    calls = []
    pipeline = fm.Pipeline(
        [
            fm.DatasetSpec("orders", key="at", event_time="price"),
            fm.Source("more", frame=lambda: calls.append(1)),
        ]
    )
    with pytest.raises(fm.BadPipeline) as caught:
        pipeline.run(lake)
    assert len(caught.value.problems) == 2
    assert calls == []
    assert "more" not in lake
    assert not (lake.store.local_path("runs/lock")).exists()


def test_a_mistyped_input_is_a_did_you_mean(lake):
    error = problems(lake, fm.BatchTransform(same, ["ordres"], ["prices"]))
    assert "there is no dataset 'ordres', which step 'same' reads" in error.message
    assert "did you mean 'orders'?" in error.hint


@pytest.mark.slow
def test_what_was_computed_cannot_become_a_source(lake):
    fm.BatchTransform(same, ["orders"], ["prices"]).run(lake)
    error = problems(lake, fm.Source("prices", frame=lambda: ROWS))
    assert [one.message for one in error.problems] == [
        "'prices' is computed from others, but source 'ingest_prices' takes data from outside",
    ]
    assert {one.place.file for one in error.problems} == {__file__}


@pytest.mark.slow
def test_dataset_that_a_source_fills_cannot_become_a_view(lake):
    error = problems(lake, fm.ViewSpec("orders", sql="select 1 as id"))
    assert "'orders' has data from outside, but view 'orders' computes it" in [one.message for one in error.problems]


@pytest.mark.slow
def test_step_may_read_and_write_a_dataset_that_exists(lake):
    """Its run checks the rest."""
    pipeline = fm.Pipeline([fm.BatchTransform(same, ["orders"], ["orders"])])
    pipeline.run(lake)
    assert pipeline.run(lake).ok


@fm.udf(returns="float64")
def double(price: float) -> float:
    return 2 * price


@fm.udf(returns="string", name="double")
def told(price: float) -> str:
    return str(price)


@fm.udf(returns="float64")
def again(prise: float) -> float:
    return prise


@pytest.mark.parametrize(
    ("column", "complaint", "hint"),
    [
        (
            lambda: fm.ColumnSpec("orders", "double", told),
            "is declared as string, but exists as double",
            "drop_column",
        ),
        (
            lambda: fm.ColumnSpec("orders", "Price", double),
            "already has a stored column 'price'",
            "another name",
        ),
        (
            lambda: fm.ColumnSpec("orders", "again", again),
            "from 'prise', which 'orders' does not have",
            "mean 'price'?",
        ),
    ],
)
def test_a_column_that_its_dataset_cannot_have_is_refused_with_its_line(lake, column, complaint, hint):
    lake["orders"].add_column("double", double)
    error = problems(lake, column())
    assert complaint in error.message
    assert hint in error.hint
    assert error.path == __file__


def test_columns_of_declared_columns_and_those_of_a_dataset_without_records_are_fine(lake):
    lake.create("empty")
    twice = fm.udf(returns="float64")(lambda double: double)
    columns = [
        fm.ColumnSpec("orders", "twice", twice),
        fm.ColumnSpec("orders", "double", double),
        fm.ColumnSpec("empty", "x", again),
    ]
    build_checked_graph(fm.Pipeline(columns), lake)


def test_datasets_of_a_newer_release_are_named_with_their_line(lake, monkeypatch):
    fm.BatchTransform(same, ["orders"], ["prices"]).run(lake)
    set_limit(monkeypatch, "codec.cached_bytes", 0)
    monkeypatch.setattr(wire, "_TIMESTAMP_ALIGN", {1: 4})  # none of the versions of these blocks
    declared = fm.DatasetSpec("orders", key="id")
    error = problems(fm.Lake(lake.store), declared, fm.BatchTransform(same, [declared], ["prices"]))
    assert [one.message.partition(": ")[0] for one in error.problems] == [
        "dataset 'prices' cannot be read",
        "dataset 'orders' cannot be read",
    ]
    assert all("version" in one.message for one in error.problems)
    assert all("newer release" in one.hint for one in error.problems)
    assert error.problems[1].place == declared.place

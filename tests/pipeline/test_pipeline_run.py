"""A pipeline runs in a lake: sources, steps and columns, each only as far as its inputs moved."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import Busy, RunFailed, StepFailed, UnknownStep
from floodmark.pipeline.run_lock import hold_run_lock


@fm.udf(returns="float64")
def double(price: float) -> float:
    return 2 * price


@fm.udf(returns="float64")
def quadruple(double: float) -> float:
    return 2 * double


def cents(orders: pa.Table) -> pa.Table:
    return pa.table({"id": orders["id"], "cents": pc.multiply(orders["price"], 100)})


def count(cents: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "n": [cents.num_rows]})


def broken(orders: pa.Table) -> pa.Table:
    raise ValueError("no good")


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


class Shop:
    """A pipeline whose source gives what `orders` has at the moment."""

    def __init__(self, *more) -> None:
        self.orders = pa.table({"id": [1, 2], "price": [1.0, 2.0]})
        orders = fm.DatasetSpec("orders", key="id")
        self.pipeline = fm.Pipeline(
            [
                fm.DatatableTransform(count, ["cents"], [fm.DatasetSpec("totals", key="what")]),
                fm.ColumnSpec(orders, "quadruple", quadruple),
                fm.ColumnSpec(orders, "double", double),
                fm.BatchTransform(cents, [orders], ["cents"]),
                fm.Source(orders, frame=lambda: self.orders),
                *more,
            ]
        )


def states(ran: fm.PipelineReport) -> dict[str, str]:
    return {one.node.name: one.state for one in ran.outcomes}


def test_everything_is_brought_up_to_date_in_the_order_of_what_it_reads(lake):
    ran = Shop().pipeline.run(lake)
    assert ran.ok
    assert set(states(ran).values()) == {"done"}
    assert lake["totals"].to_arrow().to_pylist() == [{"what": "all", "n": 2}]
    rows = lake["orders"].to_arrow().sort_by("id").to_pylist()
    assert [(row["double"], row["quadruple"]) for row in rows] == [(2.0, 4.0), (4.0, 8.0)]


def test_second_run_has_nothing_to_do_and_moves_no_head(lake):
    shop = Shop()
    shop.pipeline.run(lake)
    heads = {dataset.name: dataset.head for dataset in lake}
    ran = shop.pipeline.run(lake)
    assert set(states(ran).values()) == {"nothing"}
    assert {dataset.name: dataset.head for dataset in lake} == heads


def test_only_what_moved_is_processed(lake):
    shop = Shop()
    shop.pipeline.run(lake)
    shop.orders = pa.table({"id": [2, 3], "price": [2.5, 3.0]})
    ran = shop.pipeline.run(lake)
    assert ran["cents"].done.report.keys == 2
    assert ran["orders.double"].rows == 2
    assert ran["count"].state == "done"


def test_named_steps_alone_run(lake):
    shop = Shop()
    ran = shop.pipeline.run(lake, ["cents", "ingest_orders"])
    assert list(states(ran)) == ["ingest_orders", "cents"]
    assert "totals" not in lake
    with pytest.raises(UnknownStep, match=r"did you mean 'orders\.double'"):
        shop.pipeline.run(lake, ["orders.doubl"])


def test_a_failing_step_stops_only_what_needs_it_and_is_tried_again(lake):
    shop = Shop(
        fm.DatatableTransform(broken, ["orders"], [fm.DatasetSpec("bad", key="id")]),
        fm.DatatableTransform(count, ["bad"], [fm.DatasetSpec("worse", key="what")], name="after"),
    )
    with pytest.raises(RunFailed, match=r"1 of \d+ steps failed; 1 skipped: broken: .*no good") as failed:
        shop.pipeline.run(lake)
    ran = failed.value.report
    assert isinstance(failed.value.__cause__, StepFailed)
    assert not ran.ok
    assert states(ran)["broken"] == "failed"
    assert "no good" in ran["broken"].why
    assert (ran["after"].state, ran["after"].why) == ("skipped", "broken failed")
    assert states(ran)["count"] == "done"
    assert shop.pipeline.run(lake, check=False)["broken"].state == "failed"


def test_keys_that_fail_are_counted_and_the_step_is_done(lake):
    shop = Shop(fm.BatchTransform(broken, ["orders"], ["bad"], max_failed=1))
    ran = shop.pipeline.run(lake)
    assert ran.ok
    assert (ran["broken"].state, ran["broken"].failed_records) == ("done", 2)


def test_a_step_in_which_all_keys_fail_has_failed_and_what_needs_it_waits(lake):
    shop = Shop(
        fm.BatchTransform(broken, ["orders"], ["bad"]),
        fm.DatatableTransform(count, ["bad"], [fm.DatasetSpec("worse", key="what")], name="after"),
    )
    with pytest.raises(RunFailed, match="broken: all 2 newly tried keys failed; first error: ValueError: no good"):
        shop.pipeline.run(lake)
    ran = shop.pipeline.run(lake, ["broken", "after"])  # only known failures are left
    assert (ran["broken"].state, ran["broken"].failed_records) == ("done", 2)


@pytest.mark.parametrize("kind", ["batch", "table", "column"])
def test_a_function_with_a_typo_fails_the_run_and_readers_keep_what_it_made_before(kind, lake):
    def declared(function):
        match kind:
            case "batch":
                return fm.BatchTransform(function, ["orders"], ["made"], name="made")
            case "table":
                return fm.DatatableTransform(function, ["orders"], ["made"], name="made")
            case _:
                return fm.ColumnSpec("orders", "made", fm.udf(returns="int64")(function))

    def right(orders: pa.Table) -> pa.Table:
        return orders.select(["id"])

    def typo(orders: pa.Table) -> pa.Table:
        return orders.select(["idd"])

    def right_value(price: float) -> int:
        return int(price)

    def typo_value(price: float) -> int:
        return idd  # noqa: F821

    def read():
        return lake.sql("select * from orders order by id" if kind == "column" else "select * from made order by id")

    functions = (right_value, typo_value) if kind == "column" else (right, typo)
    Shop(declared(functions[0])).pipeline.run(lake)
    before = read()
    with pytest.raises(RunFailed, match=r"made: .*idd") as failed:
        Shop(declared(functions[1])).pipeline.run(lake)
    if kind == "column":
        assert isinstance(failed.value.__cause__, RunFailed)
        report = failed.value.__cause__.report
        assert (report.column, report.computed, report.commits) == ("made", 0, 0)
    assert read().to_pylist() == before.to_pylist()
    Shop(declared(functions[0])).pipeline.run(lake)
    assert read().to_pylist() == before.to_pylist()


def test_steps_without_data_yet_wait(lake):
    shop = Shop()
    shop.orders = None
    ran = shop.pipeline.run(lake)
    assert ran.ok
    assert states(ran) == {
        "ingest_orders": "nothing",
        "orders.double": "waiting",
        "cents": "nothing",
        "count": "waiting",
        "orders.quadruple": "waiting",
    }
    assert ran["count"].why == "there is no 'cents' yet"
    assert lake["orders"].strategy.key == ("id",)  # declared, so it is made


def test_a_changed_function_computes_its_column_once_more(lake):
    shop = Shop()
    shop.pipeline.run(lake)

    @fm.udf(returns="float64", name="double")
    def triple(price: float) -> float:
        return 3 * price

    changed = fm.Pipeline([fm.ColumnSpec("orders", "double", triple), fm.ColumnSpec("orders", "quadruple", quadruple)])
    ran = changed.run(lake)
    assert [ran[name].rows for name in ("orders.double", "orders.quadruple")] == [2, 2]
    assert sorted(lake["orders"].to_arrow()["quadruple"].to_pylist()) == [6.0, 12.0]
    assert set(states(changed.run(lake)).values()) == {"nothing"}


def test_second_run_at_once_is_told_who_runs_and_does_nothing(lake):
    shop = Shop()
    with hold_run_lock(lake.store, lake.runtime.clock), pytest.raises(Busy):
        shop.pipeline.run(lake)
    assert "orders" not in lake
    assert shop.pipeline.run(lake).ok


def test_one_worker_does_the_same(lake):
    assert set(states(Shop().pipeline.run(lake, workers=1)).values()) == {"done"}


def test_steps_of_a_lake_on_a_bucket_run_too():
    from floodmark.storage.memory import MemoryStore

    lake = fm.Lake(MemoryStore())
    shop = Shop()
    assert shop.pipeline.run(lake, ["ingest_orders"]).ok
    assert lake["orders"].count() == 2


@pytest.mark.spark
def test_views_are_declared_and_refreshed_in_their_turn(lake, spark):
    view = fm.ViewSpec("top", sql="select id, cents from cents where cents > 150")
    on_column = fm.ViewSpec("twice", source="orders", select={"id": "id", "d": "double"})
    shop = Shop(view, on_column)
    ran = shop.pipeline.run(lake)
    assert ran.ok
    assert lake["top"].to_arrow().to_pylist() == [{"id": 2, "cents": 200.0}]
    assert sorted(lake["twice"].to_arrow()["d"].to_pylist()) == [2.0, 4.0]
    assert set(states(shop.pipeline.run(lake)).values()) == {"nothing"}
    shop.orders = pa.table({"id": [3], "price": [7.0]})
    ran = shop.pipeline.run(lake)
    assert (ran["top"].rows, ran["twice"].rows) == (1, 1)


def test_outcome_of_what_did_not_run_is_a_key_error_that_names_what_did(lake):
    ran = Shop().pipeline.run(lake, ["ingest_orders"])
    with pytest.raises(KeyError, match="'csv' did not run; the nodes that ran are ingest_orders"):
        ran["csv"]


@pytest.mark.spark
def test_a_view_whose_function_has_a_typo_stays_as_it_was(lake, spark):
    def right(price: float) -> float:
        return 2 * price

    def typo(price: float) -> float:
        return 2 * prise  # noqa: F821

    def declared(function):
        return fm.ViewSpec("made", source="orders", select={"id": "id", "twice": fm.udf(returns="float64")(function)})

    shop = Shop(declared(right))
    shop.pipeline.run(lake)
    before, positions = lake["made"].to_arrow().sort_by("id").to_pylist(), lake.view("made").positions
    broken = Shop(declared(typo))
    broken.orders = pa.table({"id": [1, 2, 3], "price": [1.0, 5.0, 3.0]})
    with pytest.raises(RunFailed, match=r"made: .*prise") as failed:
        broken.pipeline.run(lake)
    assert failed.value.report["made"].state == "failed"
    assert lake["made"].to_arrow().sort_by("id").to_pylist() == before
    assert lake.view("made").positions == positions
    assert lake["cents"].count() == 3
    shop.orders = broken.orders
    shop.pipeline.run(lake)
    assert lake["made"].to_arrow().sort_by("id")["twice"].to_pylist() == [2.0, 10.0, 6.0]

"""`floodmark status` shows sources, columns and views among the steps, and all datasets below them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake

FLOW = """\
import pyarrow as pa

from floodmark import DatasetSpec, Pipeline, Source, ViewSpec

orders = DatasetSpec("orders", key="id", event_time="at")
pipeline = Pipeline([Source(orders, files="data/*.csv"), ViewSpec("daily", sql="select count(*) as n from orders")])


@pipeline.column(orders, returns="float64")
def double(price: float) -> float:
    return 2 * price
"""


@pytest.fixture
def flow(run, folder: Path, steps) -> Path:
    (folder / "floodmark.toml").write_text('lake = "lake"\npipeline = "pipeline.py"\n')
    (folder / "pipeline.py").write_text(FLOW)
    (folder / "data").mkdir()
    (folder / "data" / "a.csv").write_text("id,price,at\n1,1.5,2026-01-01T00:00:00Z\n2,2.5,2026-01-02T00:00:00Z\n")
    run("init")
    return folder


def found(run) -> dict[str, dict]:
    return {one["step"]: one for one in run("status", "--json").json["steps"]}


def test_what_waits_for_its_dataset_says_so(run, flow):
    steps = found(run)
    assert steps["ingest_orders"]["state"] == "a source: 1 new file"
    assert "there is no dataset 'orders'" in steps["orders.double"]["waits"]
    assert "there is no dataset 'orders'" in steps["daily"]["waits"]


def test_a_column_is_behind_by_the_rows_it_lacks(run, flow):
    run("run", "ingest_orders")
    assert found(run)["orders.double"]["behind"] == 2
    run("run", "orders.double")
    column = found(run)["orders.double"]
    assert (column["behind"], column["state"], column["keys"]) == (0, "up to date", 2)
    Lake("lake")["orders"].write(
        pa.table({"id": [2, 3], "price": [1.0, 2.0], "at": pa.array([0, 1], pa.timestamp("us", "UTC"))})
    )
    assert found(run)["orders.double"]["behind"] == 2
    (flow / "pipeline.py").write_text(FLOW.replace("2 * price", "3 * price"))
    changed = found(run)["orders.double"]
    assert (changed["behind"], changed["stale"]) == (3, "its function changed")


def test_a_view_that_is_yet_to_be_made_is_behind_by_all_records(run, flow):
    run("run", "ingest_orders")
    daily = found(run)["daily"]
    assert (daily["kind"], daily["behind"], daily["last_run"]) == ("View", 2, None)


@pytest.mark.spark
def test_a_view_is_behind_by_the_records_it_has_not_seen(run, flow, spark):
    assert run("run").code == 0
    daily = found(run)["daily"]
    assert (daily["behind"], daily["keys"], daily["state"]) == (0, 1, "up to date")
    assert daily["last_run"]["seconds"] > 0
    (flow / "data" / "b.csv").write_text("id,price,at\n3,1.5,2026-01-03T00:00:00Z\n")
    run("run", "ingest_orders")
    assert found(run)["daily"]["behind"] == 1
    assert "1 new record" in run("run", "daily", "--dry-run").out or "new records" in run("plan", "daily").out
    (flow / "pipeline.py").write_text(FLOW.replace("count(*)", "count(id)"))
    assert found(run)["daily"]["stale"] == "its definition changed"


def test_datasets_come_with_offset_size_and_watermark(run, flow):
    run("run", "ingest_orders")
    answer = run("status")
    head = answer.lines.index("") + 1
    assert answer.lines[head].split() == [
        "dataset",
        "offset",
        "records",
        "size",
        "watermark",
        "last",
        "write",
        "last",
        "change",
    ]
    cells = answer.lines[head + 1].split()
    assert cells[:3] == ["orders", "1", "2"]
    assert cells[5:7] == ["2026-01-02", "00:00:00+00:00"]
    (listed,) = run("status", "--json").json["datasets"]
    assert (listed["name"], listed["last_offset"], listed["records"]) == ("orders", 1, 2)


def test_named_steps_come_alone(run, flow):
    run("run", "ingest_orders")
    assert "dataset " not in run("status", "ingest_orders").out
    assert "datasets" not in run("status", "ingest_orders", "--json").json


def test_a_damaged_dataset_is_named_and_the_others_are_shown(run, flow):
    run("run", "ingest_orders")
    lake = Lake("lake")
    lake.create("other", key="id").write(pa.table({"id": [1]}))
    objects = lake["other"].snapshot().objects
    lake.store.local_path(objects.block_key(lake["other"].head)).write_bytes(b"no block")
    answer = run("status")
    assert answer.code == 1
    assert "orders" in answer.out
    assert "error: other:" in answer.err


def test_status_needs_neither_spark_nor_a_read_of_data(run, flow, monkeypatch):
    run("run", "ingest_orders", "orders.double")
    for path in Path("lake").glob("datasets/*/data/*"):
        path.unlink()
    assert run("status").code == 0


def test_a_source_of_files_counts_those_that_it_has_not_looked_at(run, flow):
    run("run", "ingest_orders")
    source = found(run)["ingest_orders"]
    assert (source["new_files"], source["state"]) == (0, "a source")
    (flow / "data" / "b.csv").write_text("id,price,at\n3,1.5,2026-01-03T00:00:00Z\n")
    assert found(run)["ingest_orders"]["state"] == "a source: 1 new file"


FAILING = (
    FLOW.replace("Source, View", "Skip, Source, View")
    .replace('returns="float64")', 'returns="float64", on_error=[Skip(ZeroDivisionError)])')
    .replace("return 2 * price", "return 1 / (price - 1.5)")
)


def test_rows_that_a_column_failed_for_are_counted_and_its_last_run_is_told(run, flow):
    (flow / "pipeline.py").write_text(FAILING)
    run("run", "ingest_orders", "orders.double")
    column = found(run)["orders.double"]
    assert (column["behind"], column["keys"], column["skipped"]) == (0, 2, 1)
    assert column["last_run"]["started"] > "2026"
    row = next(line for line in run("status").lines if line.startswith("orders.double"))
    assert row.split()[1:4] == ["0", "2", "0"]
    assert "now" in row or "ago" in row


def test_steps_come_in_the_order_of_a_run(run, flow):
    assert list(found(run)) == ["ingest_orders", "orders.double", "daily"]


def test_reset_column_is_computed_again_by_the_next_run(run, flow):
    run("run", "ingest_orders", "orders.double")
    answer = run("reset", "orders.double", "--yes")
    assert answer.out.startswith("orders.double: reset; the next run computes everything again")
    assert found(run)["orders.double"]["behind"] == 2
    assert run("run", "orders.double").out.startswith("orders.double: 2 rows computed")


def test_copied_project_has_no_new_files(run, flow):
    run("run", "ingest_orders")
    path = flow / "data" / "a.csv"
    path.write_text(path.read_text())  # another time, the same content
    assert found(run)["ingest_orders"]["state"] == "a source"
    answer = run("run", "ingest_orders")
    assert answer.lines[0] == "ingest_orders: nothing to do"
    assert answer.lines[1] == "  1 file written again with the same content: data/a.csv"


def test_plan_of_files_names_them(run, flow):
    assert run("plan", "ingest_orders").lines == [
        "ingest_orders: 1 file to read into orders",
        "file        is",
        "data/a.csv  new",
    ]
    run("run", "ingest_orders")
    assert run("plan", "ingest_orders").lines == ["ingest_orders: nothing to do"]
    (flow / "data" / "a.csv").rename(flow / "data" / "b.csv")
    (flow / "data" / "c.csv").write_text("id,price,at\n3,1.5,2026-01-03T00:00:00Z\n")
    assert run("plan", "ingest_orders").lines[-2:] == [
        "data/c.csv  new",
        "  1 file renamed, with no new rows: data/a.csv → data/b.csv",
    ]
    plan = run("plan", "ingest_orders", "--json").json["plans"][0]
    assert (plan["kind"], plan["plan"]["files"]["new"]) == ("Source", ["data/c.csv"])


def test_source_is_named_as_it_is_declared(run, flow):
    assert "ingest_orders [Source] → orders" in run("graph").out
    answer = run("reset", "ingest_orders", "--yes")
    assert "step 'ingest_orders' is a Source, which has no state to reset" in answer.err
    assert "--full" in answer.err

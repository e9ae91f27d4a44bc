"""What is not declared any more stays in the lake, and runs and `status` mention it until it is dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.pipeline.project import load_pipeline

PIPELINE = """
import pyarrow as pa
import floodmark as fm

def same(orders: pa.Table) -> pa.Table:
    return orders

def both(orders: pa.Table):
    return orders, orders

orders = fm.DatasetSpec("orders", key="id")
pipeline = fm.Pipeline([
    fm.Source(orders, frame=lambda: pa.table({"id": [1, 2], "price": [1.0, 2.0]})),
    fm.BatchTransform(same, ["orders"], ["cents"], name="to_cents"),
    fm.DatatableTransform(both, ["orders"], ["one", "two"], name="split"),
    fm.ColumnSpec("orders", "size", fm.udf(returns="float64", name="size")(lambda price: price)),
])
"""


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def _project(folder: Path, without: str = "\n\n\n", text: str = PIPELINE, name: str = "pipeline.py") -> fm.Pipeline:
    """The pipeline without the lines that have a text."""
    folder.mkdir(exist_ok=True)
    lines = [line for line in text.splitlines() if without not in line]
    (folder / name).write_text("\n".join(lines))
    return load_pipeline(folder / name)


def _left(ran: fm.PipelineReport) -> list[tuple[str, str, str | None]]:
    return [(one.name, one.dataset, one.column) for one in ran.removed]


def test_step_that_was_removed_is_mentioned_until_its_output_is_dropped(lake: fm.Lake, tmp_path: Path) -> None:
    assert _project(tmp_path / "p").run(lake).removed == ()
    later = _project(tmp_path / "p", "to_cents")
    for _ in range(2):
        ran = later.run(lake)
        assert _left(ran) == [("to_cents", "cents", None)]
        assert [one.state for one in ran.outcomes] == ["nothing"] * 3
    assert str(ran.removed[0]) == (
        "to_cents (BatchTransform) is not in the pipeline any more: dataset 'cents' stays and is not updated; "
        "`floodmark drop cents` removes it"
    )
    assert later.removed(lake) == ran.removed
    lake.drop("cents")
    assert later.run(lake).removed == ()
    assert later.removed(lake) == ()


def test_removed_source_column_and_output_are_mentioned(lake: fm.Lake, tmp_path: Path) -> None:
    _project(tmp_path / "p").run(lake)
    assert _left(_project(tmp_path / "p", "Source").run(lake)) == [("ingest_orders", "orders", None)]
    assert _left(_project(tmp_path / "p", "ColumnSpec").run(lake)) == [("orders.size", "orders", "size")]
    shorter = PIPELINE.replace('["one", "two"]', '["one"]').replace("return orders, orders", "return orders")
    ran = _project(tmp_path / "p", text=shorter).run(lake)
    assert _left(ran) == [("split", "two", None)]
    lake["orders"].drop_column("size")
    assert _left(_project(tmp_path / "p", "ColumnSpec").run(lake)) == []


def test_declaration_that_comes_back_is_not_mentioned_any_more(lake: fm.Lake, tmp_path: Path) -> None:
    _project(tmp_path / "p").run(lake)
    assert _left(_project(tmp_path / "p", "to_cents").run(lake))
    assert _project(tmp_path / "p").run(lake).removed == ()


def test_renamed_step_or_dataset_is_not_removed(lake: fm.Lake, tmp_path: Path) -> None:
    _project(tmp_path / "p").run(lake)
    assert _project(tmp_path / "p", text=PIPELINE.replace("to_cents", "other")).run(lake).removed == ()
    lake.rename("cents", "coins")
    assert _project(tmp_path / "p", text=PIPELINE.replace('"cents"', '"coins"')).run(lake).removed == ()
    assert _left(_project(tmp_path / "p", "to_cents").run(lake)) == [("to_cents", "coins", None)]


def test_another_pipeline_of_the_lake_is_no_removed_part_of_this_one(lake: fm.Lake, tmp_path: Path) -> None:
    _project(tmp_path / "p").run(lake)
    other = _project(tmp_path / "p", "to_cents", name="other.py")
    assert other.run(lake).removed == ()
    moved = _project(tmp_path / "p", name="other.py")
    moved.run(lake)
    assert _project(tmp_path / "p", "to_cents").run(lake).removed == (), "another file declares it now"


def test_part_of_a_pipeline_and_a_part_of_a_run_remove_nothing(lake: fm.Lake, tmp_path: Path) -> None:
    whole = _project(tmp_path / "p")
    whole.run(lake)
    assert whole.labelled({"stage": "none"}).run(lake).removed == ()
    assert whole.run(lake, ["to_cents"]).removed == ()
    assert whole.run(lake).removed == ()


def test_idle_run_writes_no_record(lake: fm.Lake, tmp_path: Path) -> None:
    whole = _project(tmp_path / "p")
    whole.run(lake)
    [record] = lake.store.list("runs/pipelines")
    written = (Path(lake.store.url) / record.key).stat().st_mtime_ns
    whole.run(lake)
    assert (Path(lake.store.url) / record.key).stat().st_mtime_ns == written


def test_record_that_is_damaged_is_written_again(lake: fm.Lake, tmp_path: Path) -> None:
    whole = _project(tmp_path / "p")
    whole.run(lake)
    [record] = lake.store.list("runs/pipelines")
    (Path(lake.store.url) / record.key).write_text("nonsense")
    assert whole.run(lake).removed == ()
    assert _left(_project(tmp_path / "p", "to_cents").run(lake)) == [("to_cents", "cents", None)]


def test_orders_that_were_written_by_hand_are_not_mentioned(lake: fm.Lake, tmp_path: Path) -> None:
    lake.create("notes", key="id").write(pa.table({"id": [1]}))
    assert _project(tmp_path / "p").run(lake).removed == ()

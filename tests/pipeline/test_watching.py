"""Watching: sources are asked again and again, and only what reads a dataset that moved is run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.pipeline.graph import PipelineNode, build_graph
from floodmark.pipeline.nodes import DEFAULT_OPTIONS
from floodmark.pipeline.run import PipelineReport, SilentObserver, nodes_with_work, watch


def same(orders: pa.Table) -> pa.Table:
    return orders


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("others", key="id").write(pa.table({"id": [1]}))
    return lake


def test_what_reads_a_dataset_that_moved_is_due_and_what_depends_on_it():
    nodes = [
        PipelineNode("a", "step", ("x",), ("y",)),
        PipelineNode("b", "step", ("y",), ("z",)),
        PipelineNode("c", "step", ("w",), ("v",)),
    ]
    graph = build_graph(nodes)
    assert nodes_with_work(graph, {"x": b"1", "w": b"1"}, {"x": b"2", "w": b"1"}) == {"a", "b"}
    assert nodes_with_work(graph, {"x": b"1", "w": None}, {"x": b"1", "w": b"1"}) == {"c"}
    assert nodes_with_work(graph, {"x": b"1"}, {"x": b"1"}) == set()


def test_new_rows_are_processed_as_they_come_and_nothing_else_is_run(lake):
    frames = iter([pa.table({"id": [1]}), None, pa.table({"id": [2]}), None])
    pipeline = fm.Pipeline(
        [
            fm.Source(fm.DatasetSpec("orders", key="id"), frame=lambda: next(frames, None)),
            fm.BatchTransform(same, ["orders"], ["copies"], name="copy"),
            fm.BatchTransform(same, ["others"], ["idle"], name="idle"),
        ]
    )
    shown: list[dict[str, str]] = []

    def show(ran: PipelineReport) -> None:
        shown.append({one.node.name: one.state for one in ran.outcomes})

    sleeps = iter(range(3))
    lake = fm.Lake(lake.store, runtime=Runtime(sleep=lambda _: next(sleeps)))
    with pytest.raises((StopIteration, RuntimeError)):
        watch(
            pipeline,
            lake,
            (),
            show,
            every=60,
            seconds=None,
            options=DEFAULT_OPTIONS,
            workers=1,
            watcher=SilentObserver(),
        )
    assert shown == [
        {"ingest_orders": "done"},
        {"copy": "done", "idle": "done"},
        {"ingest_orders": "nothing"},
        {"ingest_orders": "done"},
        {"copy": "done"},
        {"ingest_orders": "nothing"},
    ]
    assert sorted(lake["copies"].to_arrow()["id"].to_pylist()) == [1, 2]


def test_what_failed_is_tried_again_though_nothing_moved(lake):
    times = []

    def flaky(others: pa.Table) -> pa.Table:
        times.append(1)
        if len(times) < 3:
            raise ValueError
        return others

    pipeline = fm.Pipeline([fm.DatatableTransform(flaky, ["others"], [fm.DatasetSpec("out", key="id")], version="1")])
    shown: list[str] = []

    def show(ran: PipelineReport) -> None:
        shown.extend(one.state for one in ran.outcomes)

    sleeps = iter(range(2))
    lake = fm.Lake(lake.store, runtime=Runtime(sleep=lambda _: next(sleeps)))
    with pytest.raises((StopIteration, RuntimeError)):
        watch(
            pipeline,
            lake,
            (),
            show,
            every=60,
            seconds=None,
            options=DEFAULT_OPTIONS,
            workers=1,
            watcher=SilentObserver(),
        )
    assert shown == ["failed", "failed", "done"]

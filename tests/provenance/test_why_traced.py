"""`why` of joined, windowed and other rows names the rows that they came from, not all rows of a join key."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime, Session
from floodmark.provenance.tree import Provenance
from profiles import sample
from views.test_delta_shapes import SHAPES, World
from views.view_oracle import Scratch, bag

pytestmark = pytest.mark.spark

OPEN = {"ranks", "exists or"}
"""Shapes whose rows alone do not give the row again: a rank counts others, and an EXISTS beside OR names no partner."""


def current(dataset: Dataset) -> pa.Table:
    """The current rows with their offsets."""
    return dataset.read(system=True).toArrow()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, session: Session) -> World:
    return World(fm.Lake(tmp_path_factory.mktemp("traced"), runtime=Runtime(session=session)), Random(5))


@pytest.mark.parametrize("shape", sample([name for name in SHAPES if name not in OPEN], 16))
def test_the_rows_that_a_row_came_from_give_it_again(world: World, session: Session, shape: str):
    view = world.lake.view(f"v{list(SHAPES).index(shape)}", sql=SHAPES[shape])
    view.refresh()
    rows = current(view).to_pylist()
    scratch = Scratch(session.get())
    for row in Random(1).sample(rows, min(2, len(rows))):
        found = world.lake.why(view.name, row["offset"], rows=100)
        assert found.is_complete
        tables = {}
        for given in found.inputs:
            assert given.by == {}
            dataset = world.lake[given.dataset]
            offsets = pa.array([one.record.offset for one in given.records], pa.int64())
            table = current(dataset)
            tables[given.dataset] = table.filter(pa.compute.is_in(table["offset"], offsets)).select(
                dataset.schema.names
            )
        again = bag(scratch.rows_of(tables, SHAPES[shape]))
        assert bag([{name: row[name] for name in view.schema.names}]) <= again


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake", runtime=Runtime(session=session))
    orders, clients = lake.create("orders", key="id"), lake.create("clients", key="c")
    orders.write(pa.table({"id": [1, 2, 3, 4], "c": ["a", "a", "b", "b"], "n": [10, 20, 30, 40]}))
    clients.write(pa.table({"c": ["a", "b"], "city": ["Rome", "Oslo"]}))
    return lake


def named(found: Provenance) -> dict[str, list[Any]]:
    return {given.dataset: [one.record.offset for one in given.records] for given in found.inputs}


JOINED = "select o.id, o.n, k.city from orders o join clients k on o.c = k.c"


@pytest.mark.parametrize("sql", [JOINED, JOINED.replace("o.id,", "o.id, o.c,")], ids=["by changes", "by join keys"])
def test_a_joined_row_comes_from_one_row_of_each_side_then_and_now(lake: fm.Lake, sql: str):
    view = lake.view("v", sql=sql)
    view.refresh()
    [row] = [one for one in current(view).to_pylist() if one["id"] == 2]
    assert named(lake.why("v", row["offset"])) == {"orders": [1], "clients": [0]}

    lake["clients"].write(pa.table({"c": ["a"], "city": ["Bari"]}))  # -C 2, +C 3
    lake["orders"].delete([1])  # -R 4
    view.refresh()
    changes = view.changes_arrow().to_pylist()
    now = {one["id"]: one["offset"] for one in current(view).to_pylist()}
    assert named(lake.why("v", now[2])) == {"orders": [1], "clients": [3]}
    assert named(lake.why("v", row["offset"])) == {"orders": [1], "clients": [0]}
    gone = next(one["offset"] for one in reversed(changes) if one["id"] == 1)
    found = lake.why("v", gone)
    assert (found.record.op, named(found)) == ("-R", {"orders": [], "clients": []})
    assert {given.dataset: [one.record.op for one in given.gone] for given in found.inputs} == {
        "orders": ["-R"],
        "clients": ["-C"],
    }
    assert "1 row of orders, as of record 4" in str(found) or found.inputs[0].position == 4


def test_a_ranked_row_comes_from_its_own_row_and_a_running_sum_from_those_of_its_frame(lake: fm.Lake):
    latest = lake.view("latest", sql="select c, n from (select *, row_number() over (partition by c order by n desc) r "
                       "from orders) where r = 1")  # fmt: skip
    running = lake.view("running", sql="select id, sum(n) over (partition by c order by id) s from orders")
    for view in (latest, running):
        view.refresh()
    by_c = {row["c"]: row["offset"] for row in current(latest).to_pylist()}
    assert named(lake.why("latest", by_c["a"])) == {"orders": [1]}
    by_id = {row["id"]: row["offset"] for row in current(running).to_pylist()}
    assert [named(lake.why("running", by_id[n]))["orders"] for n in (1, 2, 3, 4)] == [[0], [0, 1], [2], [2, 3]]


def test_a_view_on_such_a_view_goes_down_to_the_sources(lake: fm.Lake):
    lake.view("v", sql=JOINED).refresh()
    top = lake.view("top", sql="select city, sum(n) n from v group by city")
    top.refresh()
    found = lake.why("top", {"city": "Oslo"})
    assert {one.record.dataset for one in found.walk()} == {"top", "v", "orders", "clients"}
    assert found.is_complete
    assert found.offsets()["orders"] == {2, 3}

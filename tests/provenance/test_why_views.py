"""`why` of what views hold: the rows of their sources, as of the refresh that wrote the record."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from floodmark.provenance.tree import InputRows, Provenance

pytestmark = pytest.mark.spark


@fm.udf(returns="int64")
def tenfold(amount: int) -> int:
    return amount * 10


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, session: Session) -> fm.Lake:
    """Orders that change, are deleted and folded between two refreshes of views of all kinds."""
    folder: Path = tmp_path_factory.mktemp("views")
    lake = fm.Lake(folder, runtime=Runtime(session=session))
    orders = lake.create("orders", key="id")
    orders.write(pa.table({"id": [1, 2, 3, 4], "c": ["a", "b", "a", "b"], "amount": [10, 20, 30, 40]}))  # 0–3
    lake.create("events").write(pa.table({"c": ["a", "b"], "n": [1, 2]}))
    lake.create("clients", key="c").write(pa.table({"c": ["a", "b"], "city": ["Rome", "Oslo"]}))
    views = [
        lake.view("big", sql="select id, c, amount * 2 as twice from orders where amount > 15"),
        lake.view("keyless", sql="select c, n + 1 as n from events"),
        lake.view("sums", sql="select c, sum(amount) as s from orders group by c"),
        lake.view("cities", sql="select o.id, o.c, k.city from orders o left join clients k on o.c = k.c"),
        lake.view("total", sql="select count(*) as n from orders"),
        lake.view("part", sql="select id, ntile(2) over (order by id) as part from orders"),
        lake.view("called", source="orders", select={"id": "id", "c": "c", "tens": (tenfold, ["amount"])}),
    ]
    for view in views:
        view.refresh()
    on_top = lake.view("on_top", sql="select c, max(twice) as most from big group by c")
    on_top.refresh()
    orders.write(pa.table({"id": [3, 5], "c": ["b", "a"], "amount": [31, 50]}))  # 4 -C, 5 +C of 3; 6 +A of 5, or so
    orders.delete([4])
    lake["clients"].write(pa.table({"c": ["a"], "city": ["Bari"]}))
    lake["events"].write(pa.table({"c": ["a"], "n": [7]}))
    orders.fold()
    for view in [*views, on_top]:
        view.refresh()
    return lake


def _ids(given: InputRows) -> list[tuple[int, int]]:
    return sorted((one.record.values["id"], one.record.values["amount"]) for one in given.records)


def _first(lake: fm.Lake, view: str, **values: object) -> Provenance:
    """The first record that has these values."""
    for row in lake[view].changes_arrow().to_pylist():
        if all(row[name] == value for name, value in values.items()):
            return lake.why(view, row["offset"])
    raise AssertionError(f"{view} has no such record")


def test_a_row_of_a_row_wise_view_comes_from_one_row(lake: fm.Lake) -> None:
    before, after = _first(lake, "big", id=3, twice=60), lake.why("big", {"id": 3})

    assert _ids(before.inputs[0]) == [(3, 30)]
    assert _ids(after.inputs[0]) == [(3, 31)]
    assert (after.record.op, after.maker.kind, after.maker.way) == ("+C", "view", "rows")
    assert after.is_complete


def test_rows_of_a_dataset_without_a_key_are_told_by_their_offsets(lake: fm.Lake) -> None:
    found = _first(lake, "keyless", n=8)

    [given] = found.inputs
    assert (given.by, [one.record.offset for one in given.records]) == ({"offset": 2}, [2])


def test_a_group_comes_from_the_rows_that_it_had_then(lake: fm.Lake) -> None:
    assert _ids(_first(lake, "sums", c="a", s=40).inputs[0]) == [(1, 10), (3, 30)]
    assert _ids(lake.why("sums", {"c": "a"}).inputs[0]) == [(1, 10), (5, 50)]
    assert _ids(_first(lake, "sums", c="b", s=60).inputs[0]) == [(2, 20), (4, 40)]
    assert _ids(lake.why("sums", {"c": "b"}).inputs[0]) == [(2, 20), (3, 31)]


def test_a_joined_row_comes_from_one_row_of_each_side_not_from_all_rows_of_its_join_key(lake: fm.Lake) -> None:
    old, new = _first(lake, "cities", id=1, city="Rome"), _first(lake, "cities", id=1, city="Bari")

    orders, clients = old.inputs
    assert (orders.dataset, clients.dataset) == ("orders", "clients")
    assert _ids(orders) == [(1, 10)]
    assert [one.record.values["city"] for one in clients.records] == ["Rome"]
    assert _ids(new.inputs[0]) == [(1, 10)]
    assert [one.record.values["city"] for one in new.inputs[1].records] == ["Bari"]


def test_a_total_comes_from_all_rows(lake: fm.Lake) -> None:
    found = lake.why("total", 0)

    [given] = found.inputs
    assert (found.record.values, given.by, given.rows, len(given.records)) == ({"n": 4}, {}, 4, 4)


def test_a_view_that_is_refreshed_as_a_whole_comes_from_all_rows(lake: fm.Lake) -> None:
    found = lake.why("part", 0)

    [given] = found.inputs
    assert (given.by, given.rows, given.records) == (None, 4, ())


def test_a_view_on_a_view_goes_down_to_the_source(lake: fm.Lake) -> None:
    found = lake.why("on_top", {"c": "b"})

    assert found.record.values["most"] == 62
    assert {one.record.dataset for one in found.walk()} == {"on_top", "big", "orders"}
    assert [(one.maker.kind) for one in found.walk()].count("write") == len(found.inputs[0].records)


def test_a_column_of_a_function_goes_with_the_row(lake: fm.Lake) -> None:
    assert _ids(lake.why("called", {"id": 5}).inputs[0]) == [(5, 50)]


def test_forward_is_the_same_the_other_way_round(lake: fm.Lake) -> None:
    everything = {
        view: [
            (
                row["offset"],
                {(i.dataset, o.record.offset) for i in lake.why(view, row["offset"]).inputs for o in i.records},
            )
            for row in lake[view].changes_arrow().to_pylist()
        ]
        for view in ("big", "sums", "cities", "called")
    }
    for offset in range(lake["orders"].last_offset or 0):
        found = lake.why_forward("orders", offset)
        derived = {(one.record.dataset, one.record.offset) for one in found.derived}
        assert derived == {
            (view, at) for view, rows in everything.items() for at, made_of in rows if ("orders", offset) in made_of
        }
        assert [one.dataset for one in found.wholes] == ["part", "total"]

"""Replay of views and computed columns: the same queries and functions over the rows as they were then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from floodmark.ledger.data_input import SparkData, TableData
from floodmark.provenance import replay_views
from floodmark.provenance.comparison import ReplayReport
from floodmark.provenance.replay import replay
from floodmark.views import changed_rows
from floodmark.views.evaluator import Evaluator
from transforms.worlds import in_this_process
from views.view_worlds import CASES, function, make_view_world, some_rows, write
from waiting import PATIENCE

VIEWS = {
    "big": "select id, c, amount * 2 as twice from orders where amount > 15",
    "keyless": "select c, n + 1 as n from events",
    "sums": "select c, sum(amount) as s, max(amount) as m from orders group by c",
    "cities": "select o.id, o.c, k.city from orders o left join clients k on o.c = k.c",
    "total": "select count(*) as n from orders",
    "on_top": "select c, max(twice) as most from big group by c",
}


@fm.udf(returns="int64")
def tenfold(amount: int) -> int:
    return amount * 10


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> fm.Lake:
    lake = fm.Lake(tmp_path, runtime=Runtime(session=session))
    lake.create("orders", key="id")
    lake.create("events")
    lake.create("clients", key="c")
    _change(lake, [(1, "a", 10), (2, "b", 20), (3, "a", 30)], "Rome")
    return lake


def _change(lake: fm.Lake, orders: list[tuple[int, str, int]], city: str) -> None:
    ids, clients, amounts = zip(*orders, strict=True)
    lake["orders"].write(pa.table({"id": ids, "c": clients, "amount": amounts}))
    lake["events"].write(pa.table({"c": clients, "n": amounts}))
    lake["clients"].write(pa.table({"c": ["a"], "city": [city]}))


def _outcomes(lake: fm.Lake, *names: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in names}
    for one in replay(lake, names, []):
        found[one.dataset].append(one.outcome)
    return found


@pytest.mark.spark
def test_refreshes_of_every_kind_are_computed_again_alike(lake: fm.Lake) -> None:
    for name, sql in VIEWS.items():
        lake.view(name, sql=sql).refresh()
    lake.view("called", source="orders", select={"id": "id", "tens": (tenfold, ["amount"])}).refresh()
    _change(lake, [(3, "b", 31), (4, "a", 5)], "Bari")
    lake["orders"].delete([1])
    names = [*VIEWS, "called"]
    for name in names:
        lake.view(name).refresh()
    lake.view("sums", sql="select c, sum(amount) + 1 as s from orders group by c").refresh()
    lake["orders"].fold()

    found = _outcomes(lake, *names)

    assert found == {name: ["same"] * (3 if name == "sums" else 1 if name == "total" else 2) for name in names}


@pytest.mark.spark
@pytest.mark.parametrize("name", ["kept", "called_of_events", "unnamed", "fully_joined", "rekeyed"])
def test_every_refresh_of_a_history_is_computed_again_alike(name: str, tmp_path: Path, session: Session) -> None:
    """Rows, functions of rows, groups with a hidden column, full joins, and a view that is made anew."""
    chance = Random(name)
    world = make_view_world(tmp_path, session, name)
    case = CASES[name]
    for number in range(len(case.versions)):
        world.declare(name, number)
        for _ in range(2):
            for source in map(world.source, case.sources):
                write(source, some_rows(source, chance, 5))
                if key := source.strategy.key:
                    row = chance.choice(source.to_arrow().to_pylist())
                    source.delete([{column: row[column] for column in key}])
            world.refresh(name)
    udfs = [function(plan, world.calls) for version in case.versions for plan in version.plans]

    found = list(replay(world.lake, [name], [], udfs))

    assert {one.outcome for one in found} == {"same"}
    assert len(found) > 1
    last = world.lake[name].last_offset
    assert last is not None
    explained = [world.lake.why(name, offset, rows=100) for offset in range(last + 1)]
    assert all(one.is_complete and one.inputs for one in explained)


@pytest.mark.spark
def test_a_view_whose_rows_are_not_its_query_s_differs(lake: fm.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.view("sums", sql=VIEWS["sums"]).refresh()
    whole = changed_rows.read_rows_at

    def one_less(*given: object) -> pa.Table:
        table = whole(*given)  # type: ignore[arg-type]
        return table.slice(0, table.num_rows - 1)

    monkeypatch.setattr(replay_views, "read_rows_at", one_less)

    [found] = list(replay(lake, ["sums"], []))

    assert (found.outcome, found.compared and found.compared.differing) == ("differs", 1)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["big", "sums"])
def test_a_row_that_no_refresh_has_written_is_missing(name: str, lake: fm.Lake) -> None:
    lake.view(name, sql=VIEWS[name]).refresh()
    evaluate = Evaluator.evaluate

    def nothing(*given: object) -> TableData | SparkData:
        answer = evaluate(*given)  # type: ignore[arg-type]
        if isinstance(answer, TableData):
            return TableData(answer.table.slice(0, 0))
        return SparkData(answer.frame.limit(0))

    _change(lake, [(7, "z", 70)], "Rome")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Evaluator, "evaluate", nothing)
        lake.view(name).refresh()

    written, lost = replay(lake, [name], [])

    assert (written.outcome, lost.outcome) == ("same", "differs")
    assert lost.compared is not None
    [difference] = lost.compared.differences
    assert (difference.stored, (difference.replayed or {})["c"]) == (None, "z")


def _spoiled(rows: pa.Table, how: str) -> pa.Table:
    """Rows of a view without that of client a, or with another last column in it."""
    mine = pc.fill_null(pc.equal(rows["c"], "a"), False)
    if how == "lost":
        return rows.filter(pc.invert(mine))
    field = rows.schema.field(rows.num_columns - 1)
    other = pa.scalar(None if how == "nulled" else "Oslo" if pa.types.is_string(field.type) else 7, field.type)
    return rows.set_column(rows.num_columns - 1, field, pc.if_else(mine, other, rows.column(rows.num_columns - 1)))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["sums", "cities"])
@pytest.mark.parametrize("how", ["lost", "nulled", "other"])
def test_a_group_or_a_match_that_a_refresh_got_wrong_differs(name: str, how: str, lake: fm.Lake) -> None:
    evaluate = Evaluator.evaluate

    def spoiled(*given: object) -> TableData:
        answer = evaluate(*given)  # type: ignore[arg-type]
        return TableData(_spoiled(answer.table if isinstance(answer, TableData) else answer.frame.toArrow(), how))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Evaluator, "evaluate", spoiled)
        lake.view(name, sql=VIEWS[name]).refresh()

    wrong = [one for one in replay(lake, [name], []) if one.outcome != "same"]

    assert {one.outcome for one in wrong} == {"differs"}
    for one in wrong:
        assert one.compared is not None
        assert {(d.stored or d.replayed or {})["c"] for d in one.compared.differences} == {"a"}


POISON = [20]


@fm.udf(returns="int64", version="1", on_error=[fm.Skip(ValueError)])
def touchy(amount: int) -> int:
    if amount in POISON:
        raise ValueError("no such amount")
    return amount * 10


@pytest.mark.spark
def test_rows_that_a_function_of_a_view_failed_for_are_not_computed_again(lake: fm.Lake) -> None:
    lake.view("called", source="orders", select={"id": "id", "c": "c", "tens": (touchy, ["amount"])}).refresh()
    assert lake["called"].to_arrow()["tens"].null_count == 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "POISON", [])
        assert _outcomes(lake, "called") == {"called": ["same"]}


@pytest.mark.spark
def test_a_query_that_asks_for_chance_is_never_passed(lake: fm.Lake) -> None:
    lake.view("chance", sql="select id, rand() as r from orders").refresh()
    lake.view("today", sql="select id, current_timestamp() as t from orders").refresh()

    assert _outcomes(lake, "chance", "today") == {"chance": ["not replayable"], "today": ["not replayable"]}


@pytest.mark.spark
def test_a_view_over_a_computed_column_that_has_other_values_by_now_is_never_passed(lake: fm.Lake) -> None:
    orders = lake["orders"]
    orders.add_column("tens", tenfold, ["amount"])
    orders.backfill("tens")
    lake.view("tens_of", sql="select id, tens from orders").refresh()
    before = _outcomes(lake, "tens_of")

    @fm.udf(returns="int64")
    def hundredfold(amount: int) -> int:
        return amount * 100

    orders.alter_column("tens", hundredfold, ["amount"])
    orders.backfill("tens")

    assert before == {"tens_of": ["same"]}
    assert _outcomes(lake, "tens_of") == {"tens_of": ["not replayable"]}


def _column(lake: fm.Lake) -> ReplayReport:
    [found] = list(replay(lake, ["orders"], []))
    return found


def test_a_computed_column_is_computed_again(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path)
    orders = lake.create("orders", key="id")
    orders.write(pa.table({"id": [1, 2], "amount": [10, 20]}))
    orders.add_column("tens", tenfold, ["amount"])
    orders.backfill("tens")
    orders.write(pa.table({"id": [2, 3], "amount": [21, 30]}))  # not computed yet

    found = _column(lake)

    assert (found.outcome, found.column, found.keys, found.maker.name) == ("same", "tens", 1, "tenfold")


def test_rows_that_the_function_of_a_column_failed_for_are_not_computed_again(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path)
    orders = lake.create("orders", key="id")
    orders.write(pa.table({"id": [1, 2, 3], "amount": [10, 20, 30]}))
    poison = [20]

    @fm.udf(returns="int64", version="1", on_error=[fm.Skip(ValueError)])
    def tens(amount: int) -> int:
        if amount in poison:
            raise ValueError("no such amount")
        return amount * 10

    orders.add_column("t", tens, ["amount"])
    with in_this_process():
        orders.backfill("t", udf=tens)
    assert orders.to_arrow(columns=["t"])["t"].to_pylist() == [100, None, 300]
    poison.clear()

    [found] = list(replay(lake, ["orders"], [], [tens]))

    assert (found.outcome, found.keys) == ("same", 3)


def test_a_computed_column_with_other_values_differs(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path)
    orders = lake.create("orders", key="id")
    orders.write(pa.table({"id": [1, 2], "amount": [10, 20]}))
    factor = [10]

    @fm.udf(returns="int64", version="1")
    def times(amount: int) -> int:
        return amount * factor[0]

    orders.add_column("t", times, ["amount"])
    orders.backfill("t", udf=times)
    factor[0] = 11

    [found] = list(replay(lake, ["orders"], [], [times]))

    assert found.compared is not None
    assert (found.outcome, found.compared.differing) == ("differs", 2)
    assert found.compared.differences[0].stored == {"offset": 0, "t": 100}
    assert found.compared.differences[0].replayed == {"offset": 0, "t": 110}


OTHER_PROCESS = """
import sys
import floodmark as fm
import pyarrow as pa

@fm.udf(returns="int64")
def tens(amount: int) -> int:
    return amount * 10

lake = fm.Lake(sys.argv[1])
orders = lake.create("orders", key="id")
orders.write(pa.table({"id": [1, 2], "amount": [10, 20]}))
orders.add_column("tens", tens, ["amount"])
orders.backfill("tens")
"""


@pytest.mark.process
def test_stored_code_replays_a_column_whose_function_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OTHER_PROCESS)
    subprocess.run([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "lake")], check=True, timeout=PATIENCE)
    lake = fm.Lake(tmp_path / "lake")

    [without] = list(replay(lake, ["orders"], []))
    [with_it] = list(replay(lake, ["orders"], [], run_stored_code=True))

    assert (without.outcome, with_it.outcome, with_it.keys) == ("code not available", "same", 2)

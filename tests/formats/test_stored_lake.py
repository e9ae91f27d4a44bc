"""A lake that an earlier version wrote, with every kind of dataset and derived thing, is read and continued as before.

If a test here fails after a change of a format, the change lacks a reader for the format before.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from formats import kinds
from views.refresh_worlds import NoSession


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(kinds.LAKE) as archive:
        archive.extractall(tmp_path / "lake", filter="data")
    return tmp_path / "lake"


def test_every_dataset_column_view_and_timeline_answers_as_before(folder: Path):
    lake = fm.Lake(folder, runtime=Runtime(session=NoSession()))
    expected = json.loads(kinds.EXPECTED.read_text("utf-8"))
    found = json.loads(json.dumps(kinds.answers(lake)))
    assert {name: found[name] == expected[name] for name in expected} == dict.fromkeys(expected, True)
    assert set(found) == set(expected)


def test_every_chain_index_and_file_is_intact(folder: Path):
    lake = fm.Lake(folder, runtime=Runtime(session=NoSession()))
    problems = {dataset.name: dataset.verify().problems for dataset in lake}
    assert problems == dict.fromkeys(problems, ())
    assert all(dataset.find_garbage() is not None for dataset in lake)


def test_nothing_is_computed_again(folder: Path):
    lake = fm.Lake(folder, runtime=Runtime(session=NoSession()))
    assert {view.name: view.plan_refresh().nothing_to_do for view in lake.views()} == dict.fromkeys(
        [*kinds.VIEWS, "called"], True
    )
    assert all(view.explain().tree is not None for view in lake.views())
    assert kinds.STEPS[0].plan(lake).new == 0
    assert lake["orders"].plan_backfill("twice").missing == 0


@pytest.mark.spark
def test_it_goes_on_as_a_new_lake_would(folder: Path, session: Session):
    lake = fm.Lake(folder, runtime=Runtime(session=session))
    lake["orders"].write(pa.table({"id": [2, 90], "c": ["b", "a"], "n": [50, 60]}))
    lake["events"].write(pa.table({"n": [5], "f": [1.5]}))
    lake["sensors"].write(pa.table({"at": pa.array([3 * 3600 * 10**6], pa.timestamp("us", "UTC")), "n": [0]}))
    kinds.run(lake)
    rows = {row["id"]: row for row in lake["orders"].to_arrow().to_pylist()}
    assert {id_: row["twice"] for id_, row in rows.items()} == {id_: 2 * row["n"] for id_, row in rows.items()}
    for name, sql in kinds.VIEWS.items():
        frames = {table: lake[table].read() for table in ("orders", "clients", "by_record")}
        expected = session.get().sql(_with_tables(sql), **frames).toArrow().to_pylist()
        found = lake.view(name).to_arrow().to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), name
    assert {dataset.name: dataset.verify().problems for dataset in lake} == {dataset.name: () for dataset in lake}


def _with_tables(sql: str) -> str:
    """The query with its tables as parameters of `SparkSession.sql`."""
    for table in ("orders", "clients", "by_record"):
        sql = sql.replace(f"from {table}", f"from {{{table}}}").replace(f"join {table}", f"join {{{table}}}")
    return sql


def test_the_stored_lake_is_small():
    assert kinds.LAKE.stat().st_size + kinds.EXPECTED.stat().st_size < 300_000

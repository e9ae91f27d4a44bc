"""The queries of TPC-H as views: after random changes each has the rows that Spark computes from scratch."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from profiles import IN_FULL, SEED, sample
from views.view_oracle import assert_same

BENCH = Path(__file__).parent.parent.parent / "bench"
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))

import tpch  # noqa: E402

pytestmark = pytest.mark.spark

SCALE = 0.01
SHARE = 0.01
ROUNDS = 3 if IN_FULL else 1


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake that has the tables."""
    if not Path(sys.executable).with_name("tpchgen-cli").exists():
        pytest.skip("needs tpchgen-cli")
    folder = tmp_path_factory.mktemp("tpch")
    tpch.load(fm.Lake(folder / "lake"), tpch.generate(folder / "tables", SCALE))
    return folder / "lake"


@pytest.mark.soak
def test_views_have_the_rows_from_scratch_after_each_round_of_changes(loaded: Path, tmp_path: Path, session: Session):
    shutil.copytree(loaded, tmp_path / "lake")
    lake = fm.Lake(tmp_path / "lake", runtime=Runtime(session=session))
    views = {name: lake.view(name, sql=tpch.QUERIES[name]) for name in sample(tpch.QUERIES, 12)}
    for view in views.values():
        view.refresh()
    for seed in range(SEED, SEED + ROUNDS):
        tpch.change_orders(lake, seed, SHARE)
        tpch.change_references(lake, seed)
        for name, view in views.items():
            view.refresh()
            rows = lake.sql_spark(tpch.QUERIES[name]).toArrow().to_pylist()
            assert_same(view.to_arrow().to_pylist(), rows, f"{name}, seed {seed}")

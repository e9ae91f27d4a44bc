"""What a stopped run has stored in a bucket is used by the next run, and by one at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.storage.cloud import CloudStore
from ledger.s3_server import s3_bucket
from transforms.crashing import Crash
from transforms.oracle import assert_right
from transforms.racing import RacedBucket, crash_before, store_of
from transforms.worlds import MAP, MOVING_GROUPS, TWO_OUTPUTS, Calls, Case, World, in_this_process

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_bucket() as made:
        yield made


@pytest.mark.parametrize("case", [MAP, MOVING_GROUPS, TWO_OUTPUTS], ids=str)
def test_run_uses_the_stored_results_of_a_run_that_was_killed(case: Case, bucket: Any, tmp_path: Path) -> None:
    url, options = bucket
    lake = fm.Lake(RacedBucket(f"{url}/{case}", **options))
    case.create(lake)
    world = World(case, lake, Calls(tmp_path), {})
    columns = len(case.sources[0].columns)
    world.write("a", *[(n, n, n)[:columns] for n in range(1, 4)])

    crash_before(world, case.outputs[0].name, world.run)
    assert world.calls.keys()
    report = world.run()

    assert world.calls.keys() == []
    assert report.reused == report.keys > 0
    assert all(dataset.verify().ok for dataset in lake.datasets())


@pytest.mark.parametrize("case", [MAP, MOVING_GROUPS, TWO_OUTPUTS], ids=str)
def test_two_runs_at_once_both_end_and_the_output_is_right(case: Case, bucket: Any, tmp_path: Path) -> None:
    url, options = bucket
    lake = fm.Lake(RacedBucket(f"{url}/two-{case}", **options))
    case.create(lake)
    world = World(case, lake, Calls(tmp_path), {})
    columns = len(case.sources[0].columns)
    world.write("a", *[(n, n, n)[:columns] for n in range(1, 4)])
    other = World(case, fm.Lake(CloudStore(f"{url}/two-{case}", **options)), world.calls, {})

    with store_of(world).before_next_move(lambda: other.step().run(other.lake)):
        report = world.run()

    assert not report.problem
    assert_right(world)
    assert set(world.calls.count().values()) <= {1, 2}
    assert world.run().nothing
    assert all(dataset.verify().ok for dataset in lake.datasets())


def test_backfill_uses_the_checkpoints_of_one_that_was_killed(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = bucket
    lake = fm.Lake(CloudStore(f"{url}/column", **options))
    rows = lake.create("rows")
    rows.write(pa.table({"x": list(range(50))}))
    called: list[int] = []

    @fm.udf(returns="int64", version="1")
    def double(x: int) -> int:
        called.append(x)
        return x * 2

    def crash(*_: Any) -> bool:
        raise Crash

    rows.add_column("y", double, ["x"])
    with monkeypatch.context() as patch:
        patch.setattr(CloudStore, "compare_and_swap", crash)
        with pytest.raises(Crash):
            rows.backfill("y", udf=double)
    before = len(called)
    report = rows.backfill("y", udf=double)

    assert (len(called), report.reused) == (before, 50)
    assert rows.to_arrow(columns=["y"])["y"].to_pylist() == [2 * x for x in range(50)]

"""The same project with its lake in a bucket: nothing of it changes but the address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import floodmark as fm
from floodmark.cli.app import floodmark
from floodmark.engine.session import Session
from floodmark.errors import Busy
from floodmark.pipeline import project, run_lock
from floodmark.storage.cloud import CloudStore
from ledger.s3_server import s3_bucket
from market.world import NODES, Market, every_offset, found
from waiting import wait_until

SECOND = 10**9


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_bucket() as made:
        yield made


@pytest.fixture
def address(bucket: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """A lake of the test's own, and an environment in which commands find it."""
    url, options = bucket
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    return f"{url}/lake-{time.time_ns()}"


def opened(address: str, bucket: tuple[str, dict[str, str]], session: Session | None = None) -> fm.Lake:
    """The lake; options travel with the store to workers that were started before the environment was set."""
    runtime = fm.Runtime(checkpoint_seconds=0.5) if session is None else fm.Runtime(session=session)
    return fm.Lake(CloudStore(address, **bucket[1]), runtime=runtime)


@contextlib.contextmanager
def running(market: Market, *names: str) -> Iterator[subprocess.Popen[str]]:
    """`floodmark run` in the folder of the project; it ends with the block."""
    command = [sys.executable, "-m", "floodmark.cli", "run", *names]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=market.folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.spark
@pytest.mark.slow
def test_pipeline_runs_in_a_bucket_and_goes_on_with_what_moved(tmp_path: Path, address, bucket, session):
    market = Market.make(tmp_path / "market", address)
    market.first_days()
    lake = opened(address, bucket, session)
    pipeline = project.load_pipeline(market.folder)
    ran = pipeline.run(lake)
    assert {one.node.name: one.state for one in ran.outcomes} == dict.fromkeys(NODES, "done"), ran
    assert found(lake) == market.expected()
    assert every_offset(lake["priced"]) == list(range(600))
    assert {one.state for one in pipeline.run(lake).outcomes} == {"nothing"}

    market.order({5: ("nut", 70), 10_000: ("glue", 3), 10_001: ("bolt", 2)})  # glue has no price yet
    ran = pipeline.run(lake)
    assert {one.node.name: one.rows for one in ran.outcomes if one.state == "done"} == {
        "ingest_orders": 3,
        "price": 2,
        "priced.tax": 2,
        "totals": 2,
    }
    assert ran["ingest_goods"].state == "nothing"
    market.price({"glue": 90})  # late, and the order is priced without being touched
    ran = pipeline.run(lake)
    assert (ran["ingest_orders"].state, ran["price"].rows, ran["totals"].rows) == ("nothing", 1, 1)
    assert found(lake) == market.expected()
    assert all(dataset.verify().ok for dataset in lake)
    assert lake.store.get(run_lock.LOCK_KEY) == b"{}"


NO_VIEW = ("ingest_orders", "ingest_goods", "price", "priced.tax")
"""What needs no Spark."""


@pytest.mark.slow
@pytest.mark.process
def test_second_run_in_a_bucket_is_told_who_runs_and_the_lease_of_a_killed_one_runs_out(
    tmp_path: Path, address, bucket, monkeypatch
):
    market = Market.make(tmp_path / "market", address)
    market.first_days()
    market.close_gate()
    pipeline = project.load_pipeline(market.folder)
    lake = opened(address, bucket)
    with running(market, *NO_VIEW) as first:
        market.who_waits(first)
        with pytest.raises(Busy, match=f"process {first.pid} on ") as caught:
            pipeline.run(lake, NO_VIEW)
        assert (caught.value.pid, caught.value.host) == (first.pid, os.uname().nodename)
        monkeypatch.chdir(market.folder)
        second = CliRunner().invoke(floodmark, ["run", *NO_VIEW])
        assert (second.exit_code, second.stdout) == (1, "")
        assert second.stderr.startswith(f"error: another run is active in {address}: process {first.pid} on ")
        assert "Traceback" not in second.stderr
        done = lake["priced"].count()
        first.kill()
        first.wait()
    market.open_gate()
    lease = run_lock.LockHolder.parse(lake.store.get(run_lock.LOCK_KEY))
    assert lease is not None
    assert lease.until is not None
    with pytest.raises(Busy):  # until the lease ends it may still run
        pipeline.run(at(lake, lease.until - 1), NO_VIEW)
    ran = pipeline.run(at(lake, lease.until), NO_VIEW)
    assert ran.ok
    assert 0 < done < 600, "it was killed midway"
    assert ran["price"].rows == 600 - done
    assert found_priced(lake) == market.expected()["priced"]
    assert every_offset(lake["priced"]) == list(range(600))


def at(lake: fm.Lake, now: int) -> fm.Lake:
    """The lake with a clock that stands still."""
    return fm.Lake(lake.store, runtime=replace(lake.runtime, clock=lambda: now))


def found_priced(lake: fm.Lake) -> list[tuple]:
    table = lake["priced"].to_arrow(columns=["id", "item", "cents", "tax"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_two_who_take_a_lease_that_ran_out_at_once_do_not_both_get_it(address, bucket):
    store = CloudStore(address, **bucket[1])
    now = time.time_ns()
    assert store.compare_and_swap(
        run_lock.LOCK_KEY, None, run_lock.LockHolder("x", 1, "gone", "long ago", now - SECOND).to_bytes()
    )

    class Slow(CloudStore):
        """Somebody else is faster between our looking and our taking."""

        def get(self, key: str) -> bytes:
            data = super().get(key)
            if key == run_lock.LOCK_KEY and not looked:
                looked.append(key)
                others.enter_context(run_lock.hold_run_lock(store, lambda: now))
            return data

    looked: list[str] = []
    with contextlib.ExitStack() as others:
        ours = run_lock.hold_run_lock(Slow(address, **bucket[1]), lambda: now)
        with pytest.raises(Busy, match=f"process {os.getpid()} "), ours:
            raise AssertionError("both have it")
    with run_lock.hold_run_lock(store, lambda: now):
        pass


def test_lease_in_a_bucket_is_renewed_and_given_back(address, bucket):
    store = CloudStore(address, **bucket[1])
    with run_lock.hold_run_lock(store, time.time_ns, lease_seconds=0.3):
        first = store.get(run_lock.LOCK_KEY)
        wait_until(lambda: store.get(run_lock.LOCK_KEY) != first)
        renewed = run_lock.LockHolder.parse(store.get(run_lock.LOCK_KEY))
        before = run_lock.LockHolder.parse(first)
        assert renewed is not None
        assert before is not None
        assert (renewed.id, renewed.since) == (before.id, before.since)
        assert renewed.until > before.until
    assert store.get(run_lock.LOCK_KEY) == b"{}"


@pytest.mark.slow
def test_commands_that_look_at_a_lake_work_in_a_bucket(tmp_path: Path, address, bucket, monkeypatch):
    market = Market.make(tmp_path / "market", address)
    market.first_days()
    assert project.load_pipeline(market.folder).run(opened(address, bucket), NO_VIEW).ok
    monkeypatch.chdir(market.folder)

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(floodmark, arguments)
        assert result.exit_code == 0, (arguments, result.output)
        return result.stdout

    status = json.loads(said("status", "--json"))
    assert {one["name"]: one["last_offset"] for one in status["datasets"]} == {"goods": 4, "orders": 599, "priced": 599}
    assert "price [BatchTransform] → priced  up to date" in said("graph")
    why = said("why", "priced", "id=7", "item=washer")
    assert re.search(r"orders \d+ \+A  id=7 item=washer pieces=1\n.* written from data/orders-002.csv", why)
    assert re.search(r"goods \d+ \+A  item=washer cents=30\n.* written from data/goods-001.csv", why)
    assert json.loads(said("verify", "--replay", "--json", "orders", "goods", "priced"))["ok"]
    assert "ok    lake: " + address in said("doctor", "--no-spark")
    assert said("run", "--dry-run", *NO_VIEW).splitlines() == [f"{name}: nothing to do" for name in NO_VIEW]

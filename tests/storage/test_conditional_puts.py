"""A bucket that does not honour conditional puts is refused by the first write of a process, and nothing is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import floodmark as fm
from floodmark.cli.app import floodmark
from floodmark.errors import StorageError
from floodmark.storage import cloud
from floodmark.storage.cloud import CloudStore
from limits import set_limit
from small_s3 import BUCKET, CREDENTIALS, SmallS3, small_s3

NOT_HONOURED = "does not honour conditional puts"


@pytest.fixture
def careless() -> Iterator[SmallS3]:
    """A bucket that takes every put, whatever its condition."""
    with small_s3(honours_conditions=False) as server:
        yield server


@pytest.fixture
def fair() -> Iterator[SmallS3]:
    with small_s3() as server:
        yield server


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[SmallS3], str]:
    """Let commands find a server; the address of a lake in it."""

    def set_to(server: SmallS3) -> str:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS["secret_access_key"])
        monkeypatch.setenv("AWS_REGION", CREDENTIALS["region"])
        return f"s3://{BUCKET}/lake"

    return set_to


WRITES: dict[str, Callable[[CloudStore], Any]] = {
    "put": lambda store: store.put_if_absent("a", b"a"),
    "swap": lambda store: store.compare_and_swap("a", None, b"a"),
    "create": lambda store: fm.Lake(store).create("orders"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_first_write_refuses_the_bucket_and_leaves_nothing(write: Any, careless: SmallS3) -> None:
    for _ in range(2):
        with pytest.raises(StorageError, match=NOT_HONOURED) as refused:
            write(careless.store())
    assert "If-None-Match" in refused.value.hint
    assert careless.objects == {}


def test_write_of_a_file_refuses_the_bucket_and_keeps_the_file(careless: SmallS3) -> None:
    store = careless.store()
    path = store.staging() / "slice"
    path.write_bytes(b"rows")
    with pytest.raises(StorageError, match=NOT_HONOURED):
        store.put_file("a", path)
    assert path.exists()


def test_dataset_that_another_process_made_is_read_and_not_written(careless: SmallS3, monkeypatch: Any) -> None:
    monkeypatch.setattr(cloud, "_CHECKED_BUCKETS", {("s3", BUCKET, careless.address)})
    fm.Lake(careless.store()).create("orders").write(pa.table({"n": [1]}))
    monkeypatch.setattr(cloud, "_CHECKED_BUCKETS", set())
    dataset = fm.Lake(careless.store())["orders"]
    assert dataset.to_arrow()["n"].to_pylist() == [1]
    with pytest.raises(StorageError, match=NOT_HONOURED):
        dataset.write(pa.table({"n": [2]}))
    assert dataset.count() == 1


def test_bucket_is_checked_once_by_a_process_and_not_by_its_tasks(fair: SmallS3) -> None:
    fair.store("one").put_if_absent("a", b"a")
    assert list(fair.objects) == ["one/a"]
    fair.reset()
    fair.store("other").put_if_absent("a", b"a")
    assert fair.requests == [("PUT", "other/a")]
    cloud._CHECKED_BUCKETS.clear()
    cloud._CHECKED_BUCKETS.add(("s3", BUCKET, fair.address))
    sent = pickle.dumps(fair.store("sent"))
    cloud._CHECKED_BUCKETS.clear()
    fair.reset()
    pickle.loads(sent).put_if_absent("a", b"a")
    assert fair.requests == [("PUT", "sent/a")]


def test_reading_checks_nothing(fair: SmallS3) -> None:
    assert list(fair.store().list("")) == []
    assert {method for method, _ in fair.requests} == {"GET"}


def test_init_refuses_the_bucket(careless: SmallS3, environment: Any) -> None:
    answer = CliRunner().invoke(floodmark, ["init", "--lake", environment(careless)])
    assert answer.exit_code == 1
    assert NOT_HONOURED in answer.output
    assert careless.objects == {}


def test_init_tells_a_new_lake_in_a_bucket_from_one_that_is_there(fair: SmallS3, environment: Any) -> None:
    address = environment(fair)

    def said() -> str:
        answer = CliRunner().invoke(floodmark, ["init", "--lake", address])
        assert answer.exit_code == 0, answer.output
        return answer.output

    assert said() == f"created an empty lake at {address}\n"
    assert said() == f"{address} is already a lake\n"
    fair.objects.clear()
    fm.Lake(address).create("orders")
    assert said() == f"{address} is already a lake\n"


def test_create_that_is_always_refused_ends_with_an_error(fair: SmallS3, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "cloud.swap_attempts", 2)
    store = fair.store()
    store.put_if_absent("other", b"a")
    monkeypatch.setattr(SmallS3, "is_refused", lambda *_: True)
    with pytest.raises(StorageError, match="refused 2 times although it does not exist"):
        store.put_if_absent("a", b"a")

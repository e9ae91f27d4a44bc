"""Where a lake is: a full disk, a file system without links, fsync or locks, a bucket that lets two writers win."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from floodmark.errors import StorageError
from floodmark.maintenance.checks import check_conditional, check_disk, check_file_system
from floodmark.storage.cloud import CloudStore
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.memory import MemoryStore
from loopback_s3 import running_s3

GB = 10**9


def disk(free: int, size: int = 100 * GB, inodes: int = 10**7, free_inodes: int = 10**7) -> Callable[[Path], Any]:
    return lambda _: SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1, f_files=inodes, f_favail=free_inodes)


@pytest.mark.parametrize(
    ("free", "size", "state"),
    [
        (50 * GB, 100 * GB, "ok"),
        (4 * GB, 100 * GB, "warn"),
        (GB, 10 * GB, "warn"),
        (10**8 - 1, GB, "bad"),
        (0, 100 * GB, "bad"),
    ],
)
def test_room_on_the_disk(tmp_path: Path, free: int, size: int, state: str):
    space, _ = check_disk(tmp_path / "not" / "there", disk(free, size))
    assert space.state == state
    assert bool(space.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("free", "inodes", "state"), [(10**6, 10**7, "ok"), (10**5, 10**7, "warn"), (999, 10**5, "bad"), (0, 0, "ok")]
)
def test_room_for_files(tmp_path: Path, free: int, inodes: int, state: str):
    _, files = check_disk(tmp_path, disk(50 * GB, inodes=inodes, free_inodes=free))
    assert files.state == state


def test_this_file_system_does_all_that_a_commit_needs(tmp_path: Path):
    assert [finding.state for finding in check_file_system(tmp_path)] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


class Lacking(OsFileSystem):
    """A file system on which one call fails."""

    def __init__(self, call: str, number: int) -> None:
        def fail(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        object.__setattr__(self, call, fail)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("write_new", "write does"),
        ("fsync_file", "fsync does"),
        ("link", "link does"),
        ("rename", "rename does"),
        ("fsync_dir", "fsync of folders does"),
        ("flock", "flock does"),
    ],
)
def test_a_call_that_fails_is_named(tmp_path: Path, call: str, said: str):
    found = list(check_file_system(tmp_path, Lacking(call, errno.ENOTSUP), lambda _: True))
    (bad,) = [finding for finding in found if finding.state == "bad"]
    assert bad.detail.startswith(said)
    assert "another" in bad.remedy or "file system" in bad.remedy
    assert list(tmp_path.iterdir()) == []


def test_who_may_not_write_is_told_to_look_at_the_owner(tmp_path: Path):
    first, *_ = check_file_system(tmp_path, Lacking("write_new", errno.EACCES), lambda _: True)
    assert "owner and the permissions" in first.remedy


@pytest.mark.parametrize("call", ["write_new", "flock"])
def test_a_full_disk_is_no_reason_to_take_another_file_system(tmp_path: Path, call: str):
    found = check_file_system(tmp_path, Lacking(call, errno.ENOSPC), lambda _: True)
    [bad] = [finding for finding in found if finding.state == "bad"]
    assert bad.remedy.startswith("free disk space")


class Unlocked(OsFileSystem):
    """A file system whose locks are taken by everybody at once."""

    def flock(self, path: Path) -> AbstractContextManager[None]:
        return nullcontext()


def test_locks_that_keep_nobody_out_are_refused(tmp_path: Path):
    _, locks = check_file_system(tmp_path, Unlocked())
    assert locks.state == "bad"
    assert "two writers could both commit" in locks.detail


def test_in_a_store_that_decides_one_writer_wins():
    store = MemoryStore()
    assert check_conditional(store).state == "ok"
    assert list(store.list("")) == []


class Careless(MemoryStore):
    """A bucket that takes every put, whatever its condition."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        super().put_derived(key, data)
        return True


class Forgetful(MemoryStore):
    """One that moves whatever is there."""

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        super().put_derived(key, new)
        return True


class Refusing(MemoryStore):
    """One that knows no conditions."""

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        raise StorageError("Could not swap: not implemented.", hint="Does this bucket support conditional puts?")


@pytest.mark.parametrize("kind", [Careless, Forgetful, Refusing])
def test_a_bucket_without_conditional_puts_is_bad(kind: type[MemoryStore]):
    finding = check_conditional(kind())
    assert finding.state == "bad"
    assert "conditional puts" in finding.remedy


@pytest.mark.slow
def test_a_bucket_of_s3_lets_one_writer_win():
    with running_s3() as address:
        options = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
        boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        ).create_bucket(Bucket="doctor")
        store = CloudStore("s3://doctor/lake", endpoint=address, client_options={"allow_http": True}, **options)
        finding = check_conditional(store)
        assert finding.state == "ok", finding
        assert list(store.list("")) == []

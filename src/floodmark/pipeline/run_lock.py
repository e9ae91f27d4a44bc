"""The lock that allows one pipeline run per lake. A second run raises `Busy`, which names the first.

On a local disk it is a file lock, which a process loses when it dies. On a bucket it is a lease, which the run renews,
and which any process may take after it expires. The lock only saves work: heads move by compare-and-swap, so two
runs at once would do work twice but not damage data.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from floodmark.errors import Busy, StorageError
from floodmark.storage.facts import build, parse_json
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import Store, read_store_time

LOCK_KEY = "runs/lock"
LEASE_SECONDS = 60.0

Clock = Callable[[], int]
"""Nanoseconds since the epoch."""


@dataclass(frozen=True)
class LockHolder:
    """The process that has the lock, its machine, and the start; `until` is the end of a lease, None for a lock."""

    id: str
    pid: int
    host: str
    since: str
    until: int | None = None

    @classmethod
    def this(cls, clock: Clock) -> LockHolder:
        """This process, with the current time."""
        since = datetime.fromtimestamp(clock() // 10**9, UTC).isoformat()
        return cls(os.urandom(8).hex(), os.getpid(), socket.gethostname(), since)

    @classmethod
    def parse(cls, data: bytes) -> LockHolder | None:
        """Read the holder from a lock's content; None if the lock is free or unreadable."""
        try:
            return build(cls, parse_json(data))
        except ValueError:
            return None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@contextmanager
def hold_run_lock(store: Store, clock: Clock, lease_seconds: float = LEASE_SECONDS) -> Iterator[None]:
    """Hold the lake's lock during a run; `Busy` if another process has it."""
    path = store.local_path(LOCK_KEY)
    with _hold_file_lock(path, clock, store.url) if path is not None else _hold_lease(store, clock, lease_seconds):
        yield


@contextmanager
def _hold_file_lock(path: Path, clock: Clock, url: str) -> Iterator[None]:
    with ExitStack() as opening:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            opening.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy_error(LockHolder.parse(_content(descriptor)), url) from None
        except OSError as error:
            raise StorageError(
                f"pipelines cannot run in {url}: {path} cannot be opened and locked: {error.strerror}",
                hint="check the disk, the owner of the folder, and that this user may write there",
            ) from error
        opening.pop_all()
    try:
        with suppress(OSError):  # the lock is held anyway; on a full disk it does not name its holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, LockHolder.this(clock).to_bytes(), 0)
        yield
    finally:
        # The run is done: a failure here must not report it as failed. Closing ends the lock at the latest.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(descriptor)


def _content(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 4096, 0)
    except OSError:
        return b""


@contextmanager
def _hold_lease(store: Store, clock: Clock, seconds: float) -> Iterator[None]:
    current = Pointer(store, LOCK_KEY).read()
    holder = None if current is None else LockHolder.parse(current)
    if holder is not None and holder.until is not None and _is_held(store, holder.until, clock(), seconds):
        raise _busy_error(holder, store.url)
    lease = _Lease(store, clock, seconds, LockHolder.this(clock))
    if not lease.take(current) and not lease.is_ours():
        now = Pointer(store, LOCK_KEY).read()
        raise _busy_error(None if now is None else LockHolder.parse(now), store.url)
    with lease:
        yield


def _is_held(store: Store, until: int, now: int, seconds: float) -> bool:
    """Whether a lease is valid. If it ends later than any lease can, a clock is wrong: the times of the store count."""
    if until <= now or until - now <= seconds * 10**9:
        return until > now
    renewed = store.stat(LOCK_KEY)
    return renewed is not None and read_store_time(store) - renewed.modified < seconds


class _Lease:
    """A lease of this process. A thread renews it until it is released or another process has taken it."""

    def __init__(self, store: Store, clock: Clock, seconds: float, holder: LockHolder) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds
        self._holder = holder
        self._content = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="floodmark-lease", daemon=True)

    def take(self, current: bytes | None) -> bool:
        """Try to take the lease by replacing `current`; returns whether it succeeded."""
        until = self._clock() + int(self._seconds * 1e9)
        content = replace(self._holder, until=until).to_bytes()
        if not Pointer(self._store, LOCK_KEY).swap(current, content, lambda _: False):
            return False
        self._content = content
        return True

    def is_ours(self) -> bool:
        """Whether this process has the lease. A swap may succeed although its response is lost."""
        current = Pointer(self._store, LOCK_KEY).read()
        holder = None if current is None else LockHolder.parse(current)
        if current is None or holder is None or holder.id != self._holder.id:
            return False
        self._content = current
        return True

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        with suppress(StorageError):  # the lease expires by itself
            if self.is_ours():
                Pointer(self._store, LOCK_KEY).swap(self._content, b"{}", lambda _: True)

    def _renew(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                if not self.take(self._content) and not (self.is_ours() and self.take(self._content)):
                    return  # it expired and another process has it: compare-and-swap keeps commits safe
            except StorageError:
                continue  # there are two more tries before it expires


def _busy_error(holder: LockHolder | None, url: str) -> Busy:
    if holder is None:  # the holder has taken the lock but not written its name yet
        return Busy(
            f"another run is active in {url}", hint="try again when it is done", pid=None, host=None, since=None
        )
    who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    return Busy(
        f"another run is active in {url}: {who}",
        hint="wait for it, or stop it; its finished work is kept",
        pid=holder.pid,
        host=holder.host,
        since=holder.since,
    )

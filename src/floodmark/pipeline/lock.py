"""One run at a time in a lake: whoever comes second is told who is running.

On a local disk it is a lock that a process loses when it dies; on a bucket a lease that is renewed while the run lasts,
and that anybody may take once it has run out. Either is a courtesy: heads move by compare-and-swap alone, so two runs
at once would do work twice, and harm nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from floodmark.pipeline.errors import Busy
from floodmark.storage.errors import StorageError
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import Store

KEY = "runs/lock"
LEASE_SECONDS = 60.0

Clock = Callable[[], int]
"""Nanoseconds since the epoch."""


@dataclass(frozen=True)
class Holder:
    """Who runs: process, machine, and since when; `until` is when a lease ends, None for a lock."""

    id: str
    pid: int
    host: str
    since: str
    until: int | None = None

    @classmethod
    def this(cls, clock: Clock) -> Holder:
        """This process, as of now."""
        since = datetime.fromtimestamp(clock() // 10**9, UTC).isoformat()
        return cls(os.urandom(8).hex(), os.getpid(), socket.gethostname(), since)

    @classmethod
    def parse(cls, data: bytes) -> Holder | None:
        """What a lock says of who holds it; None when nobody does, or it cannot be read."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@contextmanager
def running(store: Store, clock: Clock, lease_seconds: float = LEASE_SECONDS) -> Iterator[None]:
    """Hold the lake for a run; `Busy` says who has it."""
    path = store.local_path(KEY)
    with _locked(path, clock, store.url) if path is not None else _leased(store, clock, lease_seconds):
        yield


@contextmanager
def _locked(path: Path, clock: Clock, url: str) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(
            f"nothing can be run in {url}: {path} cannot be opened for writing: {error.strerror}",
            hint="a run writes to its lake: check its disk, who owns the folder, and that this user may write there",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(Holder.parse(os.pread(descriptor, 4096, 0)), url) from None
        try:
            with suppress(OSError):  # the lock is held; on a full disk the next one is not told by whom
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, Holder.this(clock).to_bytes(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@contextmanager
def _leased(store: Store, clock: Clock, seconds: float) -> Iterator[None]:
    there = Pointer(store, KEY).read()
    holder = None if there is None else Holder.parse(there)
    if holder is not None and holder.until is not None and holder.until > clock():
        raise _busy(holder, store.url)
    lease = _Lease(store, clock, seconds, Holder.this(clock))
    if not lease.take(there) and not lease.is_ours():
        now = Pointer(store, KEY).read()
        raise _busy(None if now is None else Holder.parse(now), store.url)
    with lease:
        yield


class _Lease:
    """A lease that is ours: a thread renews it, until it is given back or somebody has taken it."""

    def __init__(self, store: Store, clock: Clock, seconds: float, holder: Holder) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds
        self._holder = holder
        self._said = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="floodmark-lease", daemon=True)

    def take(self, there: bytes | None) -> bool:
        """Whether it became ours, instead of what was there."""
        until = self._clock() + int(self._seconds * 1e9)
        said = replace(self._holder, until=until).to_bytes()
        if not Pointer(self._store, KEY).swap(there, said, lambda _: False):
            return False
        self._said = said
        return True

    def is_ours(self) -> bool:
        """Whether what is there is of us, though we were not told: the answer to a swap may be lost on its way."""
        there = Pointer(self._store, KEY).read()
        holder = None if there is None else Holder.parse(there)
        if there is None or holder is None or holder.id != self._holder.id:
            return False
        self._said = there
        return True

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        with suppress(StorageError):  # then it runs out by itself
            if self.is_ours():
                Pointer(self._store, KEY).swap(self._said, b"{}", lambda _: True)

    def _renew(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                if not self.take(self._said) and not (self.is_ours() and self.take(self._said)):
                    return  # it ran out, and somebody else has it: commits decide between the two
            except StorageError:
                continue  # there are two more times before it runs out


def _busy(holder: Holder | None, url: str) -> Busy:
    if holder is None:  # between its taking the lock and its saying so
        return Busy(
            f"somebody else is running in {url}", hint="try again when it is done", pid=None, host=None, since=None
        )
    who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    return Busy(
        f"{url} is being run by {who}",
        hint="wait for it, or stop it; what it has done stays done",
        pid=holder.pid,
        host=holder.host,
        since=holder.since,
    )

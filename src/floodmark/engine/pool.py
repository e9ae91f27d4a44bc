"""Worker processes of our own: started when needed, kept warm for the life of this process, ended with it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from typing import Generic, TypeVar

from floodmark.engine.errors import WorkersNotStarted
from floodmark.engine.surroundings import Orders, Surroundings
from floodmark.engine.task import Outcome, unpack

Work = TypeVar("Work")
_PATIENCE = 5.0


class Worker:
    """One worker process, seen from the driver."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.ready = False
        self._orders: Orders | None = None
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                # -P: the folder we are in is on its import path only if it is on ours
                [sys.executable, "-P", "-m", "floodmark.engine.worker", str(number), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=_stderr(),  # our own stdout is for results, not for what a function prints
                pass_fds=(number,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(Surroundings.here().path)},
                start_new_session=True,  # Ctrl-C is for the driver, which then ends its workers
            )

    @property
    def alive(self) -> bool:
        if self._process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        # Look, but leave it to be waited for: until then nobody else can have its number, and `kill` can use it.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def give(self, orders: Orders, task: bytes) -> None:
        """Send a task, and before the first one of a run what it is about; a worker that is dead fails later."""
        with contextlib.suppress(ConnectionError):
            if orders is not self._orders:
                self._orders = orders
                self.connection.send(orders)
            self.connection.send(task)

    def answer(self) -> bytes | None:
        """What it sends; None when it has died."""
        try:
            return self.connection.recv_bytes() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def kill(self) -> None:
        """End it and what it has started, whatever it does, and wait until it has ended."""
        if self._process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.connection.close()
        self._process.wait()

    def let_go(self) -> None:
        """Ask it to end."""
        self.connection.close()

    def wait_for_end(self) -> None:
        """Wait until it has ended by itself, but not for long."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def forget(self) -> None:
        """After a fork: it belongs to the parent."""
        self.connection.close()
        self._process.returncode = 0

    def how_it_ended(self) -> str:
        """A sentence about a worker that has died."""
        code = self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        return f"Process {self._process.pid} {how}."


class Pool:
    """The workers that wait for the next run."""

    def __init__(self) -> None:
        self._kept = 0
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()

    def take(self) -> Worker:
        """A worker that nobody else has: one that waits, else a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                self._drop(worker)
            worker = Worker()
            self._all.add(worker)
            return worker

    def put_back(self, worker: Worker, keep: int) -> None:
        """Have a worker wait for the next run, if fewer than ``keep`` do, or than any run before wanted."""
        with self._lock:
            self._kept = max(self._kept, keep)
            if len(self._idle) < self._kept:
                self._idle.append(worker)
            else:
                self._drop(worker)

    def drop(self, worker: Worker) -> None:
        """End a worker."""
        with self._lock:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._all.discard(worker)
        worker.kill()

    def end(self) -> None:
        """End all workers; those that only wait may tidy up first."""
        with self._lock:
            idle, busy = self._idle, self._all.difference(self._idle)
            self._idle, self._all = [], set()
        for worker in idle:
            worker.let_go()
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.wait_for_end()

    def forget(self) -> None:
        """In a process that was forked from ours: the workers are not its own."""
        for worker in self._all:
            worker.forget()
        self._clear()  # the lock, too: another thread may have held it


POOL = Pool()
atexit.register(POOL.end)
os.register_at_fork(after_in_child=POOL.forget)


@dataclass(frozen=True)
class Died:
    """A worker ended in the middle of a task."""

    reason: str


class Crew(Generic[Work]):
    """The workers of one run, and what each of them is doing."""

    def __init__(self, size: int, orders: Orders, pool: Pool = POOL) -> None:
        self._size = size
        self._orders = orders
        self._pool = pool
        self._free: list[Worker] = []
        self._starting: list[Worker] = []
        self._busy: dict[Worker, Work] = {}

    def free(self, wanted: int) -> bool:
        """Whether a worker is free to be given work; more are fetched while there is work for them."""
        while len(self._free) + len(self._starting) < wanted and self._members < self._size:
            worker = self._pool.take()
            (self._free if worker.ready else self._starting).append(worker)
        return bool(self._free)

    @property
    def _members(self) -> int:
        return len(self._free) + len(self._starting) + len(self._busy)

    def give(self, work: Work, payload: bytes) -> None:
        """Have a free worker do this."""
        worker = self._free.pop()
        self._busy[worker] = work  # before it is sent: an interrupt must not leave a worker that has half of it
        worker.give(self._orders, payload)

    def wait(self, timeout: float) -> list[tuple[Work, Outcome | Died]]:
        """What has been done; waits a moment for something."""
        ended: list[tuple[Work, Outcome | Died]] = []
        watched = {worker.connection: worker for worker in (*self._busy, *self._starting)}
        heard = [watched[connection] for connection in wait(list(watched), timeout)]  # type: ignore[index]
        # A process that a function has forked may hold the connection of a dead worker open.
        for worker in heard or [worker for worker in watched.values() if not worker.alive]:
            answer = worker.answer()
            if answer is None:
                self._pool.drop(worker)
            if worker in self._starting:
                self._has_started(worker, answer)
                continue
            work = self._busy.pop(worker)
            if answer is None:
                ended.append((work, Died(worker.how_it_ended())))
            else:
                self._free.append(worker)
                ended.append((work, unpack(answer)))
        return ended

    def dismiss(self) -> None:
        """The run is over: those that are still at work are ended, the others kept for the next run."""
        for worker in self._busy:
            self._pool.drop(worker)
        for worker in (*self._free, *self._starting):
            self._pool.put_back(worker, self._size)
        self._free, self._starting, self._busy = [], [], {}

    def _has_started(self, worker: Worker, answer: bytes | None) -> None:
        self._starting.remove(worker)
        if answer is None:
            raise WorkersNotStarted(
                f"A worker process could not start: {worker.how_it_ended()}",
                hint=f"What it wrote to stderr says why; it was started with {sys.executable}.",
                python=sys.executable,
            )
        worker.ready = True
        self._free.append(worker)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stderr() -> int:
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2

"""Worker processes: started when needed, reused by later runs of this process, and ended with it."""

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

from floodmark.engine.task import TaskOutcome, unpack_outcome
from floodmark.engine.worker_setup import RunOrders, WorkerEnvironment
from floodmark.errors import EngineError

Work = TypeVar("Work")
_END_TIMEOUT = 5.0


class Worker:
    """One worker process, in the driver."""

    def __init__(self) -> None:
        self.connection, worker_end = Pipe()
        self.ready = False
        self._orders: RunOrders | None = None
        with worker_end:
            number = worker_end.fileno()
            self._process = subprocess.Popen(
                # -P: the current folder is on its import path only if it is on ours
                [sys.executable, "-P", "-m", "floodmark.engine.worker", str(number), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=_stderr(),  # our stdout is for results, not for the output of functions
                pass_fds=(number,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(WorkerEnvironment.of_this_process().path)},
                start_new_session=True,  # Ctrl-C is for the driver, which then ends its workers
            )

    @property
    def alive(self) -> bool:
        if self._process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        # WNOWAIT keeps the ended process, so that no new process gets its id before `kill` uses it.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def give(self, orders: RunOrders, task: bytes) -> None:
        """Send a task, and before the first task of a run its orders. For a dead worker, `answer` reports it later."""
        with contextlib.suppress(ConnectionError):
            if orders is not self._orders:
                self._orders = orders
                self.connection.send(orders)
            self.connection.send(task)

    def answer(self) -> bytes | None:
        """The bytes that the worker sent; None if it has died."""
        try:
            return self.connection.recv_bytes() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def kill(self) -> None:
        """Kill the worker and the processes that it started, and wait for its end."""
        if self._process.returncode is None:  # else another process may have its id
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.connection.close()
        self._process.wait()

    def ask_to_end(self) -> None:
        """Ask the worker to end."""
        self.connection.close()

    def wait_for_end(self) -> None:
        """Wait a few seconds for the worker to end, then kill it."""
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def forget(self) -> None:
        """Release the worker in a forked process: it belongs to the parent."""
        self.connection.close()
        self._process.returncode = 0

    def end_text(self) -> str:
        """A sentence about how the worker ended."""
        code = self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        return f"Process {self._process.pid} {how}."


class Pool:
    """All workers of this process, and the idle ones, which wait for the next run."""

    def __init__(self) -> None:
        self._max_idle = 0
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()

    def take(self) -> Worker:
        """Take an idle worker, or start a new one."""
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
        """Keep a worker for the next run, if fewer are idle than ``keep`` or than an earlier run kept."""
        with self._lock:
            self._max_idle = max(self._max_idle, keep)
            if len(self._idle) < self._max_idle:
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
        """End all workers. Idle ones may clean up first."""
        with self._lock:
            idle, busy = self._idle, self._all.difference(self._idle)
            self._idle, self._all = [], set()
        for worker in idle:
            worker.ask_to_end()
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.wait_for_end()

    def forget(self) -> None:
        """Release all workers in a forked process: they belong to the parent."""
        for worker in self._all:
            worker.forget()
        self._clear()  # also the lock, which another thread may have locked during the fork


POOL = Pool()
atexit.register(POOL.end)
os.register_at_fork(after_in_child=POOL.forget)


@dataclass(frozen=True)
class WorkerDeath:
    """A worker ended during a task."""

    reason: str


class RunWorkers(Generic[Work]):
    """The workers of one run, and the work of each."""

    def __init__(self, size: int, orders: RunOrders, pool: Pool = POOL) -> None:
        self._size = size
        self._orders = orders
        self._pool = pool
        self._free: list[Worker] = []
        self._starting: list[Worker] = []
        self._busy: dict[Worker, Work] = {}

    def free(self, count: int) -> bool:
        """Whether a worker is free. Gets more workers while there is work for them."""
        while len(self._free) + len(self._starting) < count and self._members < self._size:
            worker = self._pool.take()
            (self._free if worker.ready else self._starting).append(worker)
        return bool(self._free)

    @property
    def _members(self) -> int:
        return len(self._free) + len(self._starting) + len(self._busy)

    def give(self, work: Work, payload: bytes) -> None:
        """Give work to a free worker."""
        worker = self._free.pop()
        self._busy[worker] = work  # before sending: after an interrupt, a worker with a partial message counts as busy
        worker.give(self._orders, payload)

    def wait(self, timeout: float) -> list[tuple[Work, TaskOutcome | WorkerDeath]]:
        """Finished work and its outcomes. Waits up to ``timeout`` seconds for some."""
        ended: list[tuple[Work, TaskOutcome | WorkerDeath]] = []
        watched = {worker.connection: worker for worker in (*self._busy, *self._starting)}
        answered = [watched[connection] for connection in wait(list(watched), timeout)]  # type: ignore[index]
        # A process that a function forked may keep the connection of a dead worker open.
        for worker in answered or [worker for worker in watched.values() if not worker.alive]:
            answer = worker.answer()
            if answer is None:
                self._pool.drop(worker)
            if worker in self._starting:
                self._record_start(worker, answer)
                continue
            work = self._busy.pop(worker)
            if answer is None:
                ended.append((work, WorkerDeath(worker.end_text())))
            else:
                self._free.append(worker)
                ended.append((work, unpack_outcome(answer)))
        return ended

    def end_run(self) -> None:
        """End the run: kill busy workers and keep the others for the next run."""
        for worker in self._busy:
            self._pool.drop(worker)
        for worker in (*self._free, *self._starting):
            self._pool.put_back(worker, self._size)
        self._free, self._starting, self._busy = [], [], {}

    def _record_start(self, worker: Worker, answer: bytes | None) -> None:
        self._starting.remove(worker)
        if answer is None:
            raise EngineError(
                f"Could not start a worker process: {worker.end_text()}",
                hint=f"Read its output on stderr for the reason. It was started with {sys.executable}.",
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

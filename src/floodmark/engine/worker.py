"""The program of a worker process: runs tasks for the driver that started it, one at a time, until the driver ends."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from floodmark.engine.task import run_packed
from floodmark.engine.worker_setup import RunOrders

_POLL_SECONDS = 1.0
_PATIENCE = 5.0
_OOM_SCORE = "500"


def main(descriptor: int, driver: int) -> None:
    """Run the tasks that arrive on this connection. The first message to the driver means that the worker is ready."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # output of a function is visible at once
    os.set_inheritable(descriptor, False)
    # If memory runs out, the system must kill a worker, not the driver or its JVM. The task is then halved.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    busy = threading.Event()
    threading.Thread(target=_end_with, args=(driver, descriptor, busy), daemon=True).start()
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        connection.send_bytes(b"ready")
        orders: RunOrders | None = None
        while True:
            message = connection.recv()
            if isinstance(message, RunOrders):
                message.surroundings.apply(orders.surroundings if orders else None)
                orders = message
                continue
            assert orders is not None
            busy.set()
            answer = run_packed(orders.function, message)
            busy.clear()  # before the answer: the driver may end as soon as it has it, and then this worker is idle
            connection.send_bytes(answer)


def _end_with(driver: int, descriptor: int, busy: threading.Event) -> None:
    """End this process after the driver: at once during a task, else after it had time to clean up."""
    poll = select.poll()
    poll.register(descriptor, 0)  # no events: poll always reports a closed connection
    # A process that the driver forked may keep the connection open. So also check for a new parent.
    while not poll.poll(_POLL_SECONDS * 1000) and os.getppid() == driver:
        pass
    until = time.monotonic() + _PATIENCE
    while not busy.is_set() and time.monotonic() < until:
        time.sleep(0.02)
    # This process leads its process group, so processes started by functions end, too.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

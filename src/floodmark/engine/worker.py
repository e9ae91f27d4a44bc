"""The program of a worker process: does tasks for the process that started it, one at a time, until that ends."""

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

from floodmark.engine.surroundings import Orders
from floodmark.engine.task import do

_LOOK = 1.0
_PATIENCE = 5.0
_RATHER_ME = "500"


def main(descriptor: int, driver: int) -> None:
    """Do what comes over this connection; the first message sent says that the worker is there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a function prints is seen when it prints it
    os.set_inheritable(descriptor, False)
    # Where memory runs out it is a worker that is killed, and its task halved, not the driver or its JVM.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_RATHER_ME)
    busy = threading.Event()
    threading.Thread(target=_end_with, args=(driver, descriptor, busy), daemon=True).start()
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        connection.send_bytes(b"ready")
        orders: Orders | None = None
        while True:
            message = connection.recv()
            if isinstance(message, Orders):
                message.surroundings.take_over(orders.surroundings if orders else None)
                orders = message
                continue
            assert orders is not None
            busy.set()
            answer = do(orders.function, message)
            busy.clear()  # first: the driver may end as soon as it has the answer, and we may tidy up then
            connection.send_bytes(answer)


def _end_with(driver: int, descriptor: int, busy: threading.Event) -> None:
    """End this process when the driver is gone: at once in the middle of a task, else when it has tidied up."""
    gone = select.poll()
    gone.register(descriptor, 0)  # only that the other end was closed, which is always told
    # A process that the driver forked may hold the other end open; then our parent has changed.
    while not gone.poll(_LOOK * 1000) and os.getppid() == driver:
        pass
    until = time.monotonic() + _PATIENCE
    while not busy.is_set() and time.monotonic() < until:
        time.sleep(0.02)
    # We lead a process group of our own: what a function has started ends, too.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

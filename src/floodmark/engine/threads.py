"""Threads that a generator has at work for it: whoever gives the generator up does not wait for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class Threads(ThreadPoolExecutor):
    """A pool for ``with`` inside of a generator; what was not begun is left when that ends early.

    A generator that is given up is often closed by the garbage collector, in whatever thread that happens to run and at
    any moment: to wait there for other threads can be to wait for oneself. Up to Python 3.12 it is when a thread is
    just being started, since joining another takes the lock that is held then.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given_up = kind is not None and issubclass(kind, GeneratorExit)
        self.shutdown(wait=not given_up, cancel_futures=kind is not None)

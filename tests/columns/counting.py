"""Functions that write down every row they are called with, and fail, wait or die on an order."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import floodmark as fm
from floodmark.engine.progress import SilentProgress
from histories.calls import CallLog
from waiting import wait_until

__all__ = ["OFFSET", "Calls", "Formula", "Plan"]

OFFSET = "offset"


class Calls(CallLog):
    """What the counting functions of one world have been called with, and what is to happen to them."""

    def offsets(self) -> list[int]:
        """The offset of every row handed to a function since the last `forget`, repeats included."""
        return [int(line) for line in self.lines()]

    def count(self) -> Counter[int]:
        return Counter(self.offsets())

    @property
    def repeated(self) -> bool:
        """Whether any row has been handed over twice."""
        return any(times > 1 for times in self.count().values())

    def raise_at(self, offset: int) -> None:
        """The row at this offset fails with an error that no rule handles, until `behave`."""
        self.order("raise", str(offset))

    def kill_at(self, offset: int) -> None:
        """The process that is called with this row dies of it, once."""
        self.order("kill", str(offset))

    def wait_at(self, offset: int) -> None:
        """The call with this row lasts until `go_on`."""
        self.order("wait", str(offset))

    def go_on(self) -> None:
        self.cancel("wait")

    def behave(self) -> None:
        self.cancel("raise", "kill", "wait")

    def mend(self) -> None:
        """Values that a function could not take are fine from now on."""
        self.order("mended")

    def unmend(self) -> None:
        self.cancel("mended")

    @property
    def mended(self) -> bool:
        return self.ordered("mended") is not None

    def await_rows(self, count: int) -> None:
        """Return when this many rows have been handed over."""
        wait_until(lambda: len(self.offsets()) >= count)

    # Used by the functions

    def note(self, offsets: Sequence[int]) -> None:
        """Write down a call before anything can go wrong with it, then obey the orders."""
        self.add("".join(f"{offset}\n" for offset in offsets))
        named = {str(offset) for offset in offsets}
        if self.ordered("kill") in named:
            self.cancel("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.ordered("wait") in named:
            wait_until(lambda: self.ordered("wait") is None)
        if self.ordered("raise") in named:
            raise RuntimeError(f"told to fail at {self.ordered('raise')}")


class Waiting(SilentProgress):
    """Progress that shows whether its run waits for another one."""

    def __init__(self) -> None:
        self.waits = False

    def start(self, label: str, total: int | None) -> None:
        self.waits = self.waits or label.startswith("waiting for ")


Formula = Callable[..., int | None]
"""Makes a value from the values of one row; ValueError where it cannot."""


@dataclass(frozen=True)
class Plan:
    """A function to be: name, version, the columns it takes and what it makes of them."""

    name: str
    version: str
    inputs: tuple[str, ...]
    formula: Formula

    def udf(self, calls: Calls, kind: str = "array", **options: Any) -> fm.Udf:
        """The function, which takes the offset too, so that what it was called with can be told."""
        make = {"array": _array, "scalar": _scalar, "batch": _batch}[kind](calls, self.formula, self.inputs)
        return fm.udf(returns="int64", name=self.name, version=self.version, inputs=[OFFSET, *self.inputs], **options)(
            make
        )


def _array(calls: Calls, formula: Formula, inputs: tuple[str, ...]) -> Callable[..., pa.Array]:
    def one(offset: pa.Array, first: pa.Array) -> pa.Array:
        calls.note(offset.to_pylist())
        return _values(calls, formula, [first])

    def two(offset: pa.Array, first: pa.Array, second: pa.Array) -> pa.Array:
        calls.note(offset.to_pylist())
        return _values(calls, formula, [first, second])

    return one if len(inputs) == 1 else two


def _scalar(calls: Calls, formula: Formula, inputs: tuple[str, ...]) -> Callable[..., int | None]:
    def one(offset: int, first: int | None) -> int | None:
        calls.note([offset])
        return _value(calls, formula, (first,))

    def two(offset: int, first: int | None, second: int | None) -> int | None:
        calls.note([offset])
        return _value(calls, formula, (first, second))

    return one if len(inputs) == 1 else two


def _batch(calls: Calls, formula: Formula, inputs: tuple[str, ...]) -> Callable[..., pa.Array]:
    def all_of(rows: pa.RecordBatch) -> pa.Array:
        calls.note(rows.column(OFFSET).to_pylist())
        return _values(calls, formula, [rows.column(name) for name in inputs])

    return all_of


def _values(calls: Calls, formula: Formula, columns: Iterable[pa.Array]) -> pa.Array:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([_value(calls, formula, row) for row in rows], pa.int64())


def _value(calls: Calls, formula: Formula, row: tuple[Any, ...]) -> int | None:
    try:
        return formula(*row)
    except ValueError:
        if not calls.mended:
            raise
        return None if row[0] is None else -row[0]

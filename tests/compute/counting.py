"""Functions that write down every row they are called with, and fail, wait or die when told to.

They run in worker processes, so what they saw is in a file, and what they are told is in files too.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm

OFFSET = "offset"
PATIENCE = 60.0


@dataclass(frozen=True)
class Calls:
    """What the counting functions of one world have been called with, and what is to happen to them."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    # Asked by the test

    def offsets(self) -> list[int]:
        """The offset of every row handed to a function since the last `forget`, repeats included."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def count(self) -> Counter[int]:
        return Counter(self.offsets())

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)

    # Told by the test

    def raise_at(self, offset: int) -> None:
        """The row at this offset fails with an error that nobody handles, until `behave`."""
        (self.folder / "raise").write_text(str(offset))

    def kill_at(self, offset: int) -> None:
        """The process that is called with this row dies of it, once."""
        (self.folder / "kill").write_text(str(offset))

    def wait_at(self, offset: int) -> None:
        """The call with this row lasts until `go_on`."""
        (self.folder / "wait").write_text(str(offset))

    def go_on(self) -> None:
        (self.folder / "wait").unlink(missing_ok=True)

    def behave(self) -> None:
        for order in ("raise", "kill", "wait"):
            (self.folder / order).unlink(missing_ok=True)

    def mend(self) -> None:
        """Values that a function could not take are fine from now on."""
        (self.folder / "mended").touch()

    def unmend(self) -> None:
        (self.folder / "mended").unlink(missing_ok=True)

    @property
    def mended(self) -> bool:
        return (self.folder / "mended").exists()

    def await_rows(self, count: int) -> None:
        """Return when so many rows have been handed over."""
        until(lambda: len(self.offsets()) >= count)

    # Used by the functions

    def note(self, offsets: Sequence[int]) -> None:
        """Write down a call before anything can go wrong with it, then do as told."""
        line = "".join(f"{offset}\n" for offset in offsets).encode()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if self._told("kill") in offsets:
            (self.folder / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._told("wait") in offsets:
            until(lambda: not (self.folder / "wait").exists())
        if self._told("raise") in offsets:
            raise RuntimeError(f"told to fail at {self._told('raise')}")

    def _told(self, order: str) -> int | None:
        path = self.folder / order
        try:
            return int(path.read_text())
        except (FileNotFoundError, ValueError):  # gone, or just being written
            return None


def until(true: Callable[[], bool]) -> None:
    """Wait for something, and give up when it does not come."""
    ends = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > ends:
            raise TimeoutError("it never happened")
        time.sleep(0.005)


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

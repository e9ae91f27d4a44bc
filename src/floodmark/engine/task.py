"""What happens where a task is done: it is unpacked, its function called, and what came of it packed."""

from __future__ import annotations

import functools
import gc
import hashlib
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.engine.shipping import cloudpickle

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "task long, outcome binary"
_KEPT = 4
_functions: dict[bytes, Callable[[Any], Any]] = {}


@dataclass(frozen=True)
class Returned:
    """The function returned this."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The function raised this; ``trace`` is how it looked where it happened."""

    error: BaseException
    trace: str


Outcome = Returned | Raised


class RemoteError(Exception):
    """Stands for an exception that could not be sent from the process in which it was raised."""


def call(function: Callable[[Any], Any], task: Any) -> Outcome:
    """Call a function and catch what it raises."""
    try:
        return Returned(function(task))
    except (Exception, SystemExit) as error:
        return Raised(error, traceback.format_exc())


@dataclass(frozen=True)
class Shipment:
    """A function and the tasks of one Spark job; the row number n of its frame stands for the n-th task."""

    function: bytes
    tasks: Sequence[bytes]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the tasks whose numbers come in; the body of ``mapInArrow``."""
        import pyarrow as pa

        _settle_in()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pa.array([do(self.function, self.tasks[number])], pa.binary())
                yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), outcome], ["task", "outcome"])


def do(function: bytes, task: bytes) -> bytes:
    """Unpack a function and a task, call the one with the other, and pack what came of it."""
    try:
        unpacked = _function(function)
        argument = pickle.loads(task)  # noqa: S301  our own bytes, sent by the driver
    except Exception as error:
        return pack(Raised(error, traceback.format_exc()))
    outcome = call(unpacked, argument)
    packed = pack(outcome)
    if isinstance(outcome, Raised):
        let_go(outcome.error)
    return packed


def let_go(error: BaseException | None) -> None:
    """Give up what an error's frames hold, perhaps all that a task has read: now, not when the collector comes by."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # frames hold those that called them, and so this one's caller, which has the error
        error = error.__cause__ or error.__context__


def pack(outcome: Outcome) -> bytes:
    """An outcome as bytes; one that cannot be pickled becomes a failure that says so."""
    try:
        packed = bytes(cloudpickle().dumps(outcome))
        if isinstance(outcome, Raised):
            pickle.loads(packed)  # noqa: S301  many exceptions can be pickled and not unpickled
    except Exception as problem:
        if isinstance(outcome, Raised):
            name = type(outcome.error).__qualname__
            substitute = Raised(RemoteError(f"{name}: {outcome.error}"), outcome.trace)
        else:
            kind = type(outcome.value).__qualname__
            error = RemoteError(f"the result, a {kind}, cannot be sent back: {problem}")
            substitute = Raised(error, traceback.format_exc())
        return bytes(cloudpickle().dumps(substitute))
    return packed


def unpack(outcome: bytes) -> Outcome:
    """What a task packed; a result that cannot be unpickled becomes a failure that says so."""
    try:
        unpacked = pickle.loads(outcome)  # noqa: S301  our own bytes, made by a task of this run
    except Exception as problem:
        return Raised(RemoteError(f"the result cannot be read: {problem}"), traceback.format_exc())
    assert isinstance(unpacked, Returned | Raised)
    return unpacked


@functools.cache
def _settle_in() -> None:
    """Once per worker process: keep the libraries out of the garbage collector's sight.

    Spark's worker collects garbage after every task, and walking through all of pandas and pyarrow took most of
    the time of a small task. What a user's function brings along comes later and is collected as ever.
    """
    import pandas  # noqa: F401  pyarrow imports it at the first array, after we have looked

    gc.collect()
    gc.freeze()
    _stay_quiet_when_the_task_is_cancelled()


def _stay_quiet_when_the_task_is_cancelled() -> None:
    # Spark closes the socket of a task that it cancels; its Python side then prints a trace of its own code to the
    # user's terminal, and ends. There is no switch for that.
    print_exc = traceback.print_exc

    def print_unless_socket_is_gone(*arguments: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        if isinstance(error, BrokenPipeError) and frames and frames[-1].filename.endswith("pyspark/daemon.py"):
            return
        print_exc(*arguments, **options)

    traceback.print_exc = print_unless_socket_is_gone


def _function(packed: bytes) -> Callable[[Any], Any]:
    # A worker process does many tasks of a run: a function that holds a model is unpacked once.
    name = hashlib.sha256(packed).digest()
    function = _functions.get(name)
    if function is None:
        function = pickle.loads(packed)  # noqa: S301  our own bytes, sent by the driver
        while len(_functions) >= _KEPT:
            del _functions[next(iter(_functions))]
        _functions[name] = function
    return function

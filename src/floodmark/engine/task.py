"""Packs functions, tasks and outcomes for other processes, and runs a task there."""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import pickle
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from floodmark.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa


SCHEMA = "task long, outcome binary"
_MAX_FUNCTIONS = 4
_functions: dict[bytes, Callable[[Any], Any]] = {}


@dataclass(frozen=True)
class TaskReturned:
    """The function returned a value."""

    value: Any


@dataclass(frozen=True)
class TaskRaised:
    """The function raised an error. ``trace`` is its traceback in the process of the task."""

    error: BaseException
    trace: str


TaskOutcome = TaskReturned | TaskRaised


class RemoteError(Exception):
    """Replaces an exception that cannot be sent to another process."""


def call(function: Callable[[Any], Any], task: Any) -> TaskOutcome:
    """Call a function and catch its errors."""
    try:
        return TaskReturned(function(task))
    except (Exception, SystemExit) as error:
        return TaskRaised(error, traceback.format_exc())


@dataclass(frozen=True)
class JobPayload:
    """A function and the tasks of one Spark job. Row n of its frame is the n-th task."""

    function: bytes
    tasks: Sequence[bytes]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks with the numbers in the batches; the body of ``mapInArrow``."""
        import pyarrow as pa

        _freeze_libraries()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pa.array([run_packed(self.function, self.tasks[number])], pa.binary())
                yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), outcome], ["task", "outcome"])


def run_packed(function: bytes, task: bytes) -> bytes:
    """Unpack a function and a task, call the function with the task, and pack the outcome."""
    try:
        unpacked = _unpack_function(function)
        argument = pickle.loads(task)  # noqa: S301  our own bytes, sent by the driver
    except Exception as error:
        return pack_outcome(TaskRaised(error, traceback.format_exc()))
    outcome = call(unpacked, argument)
    packed = pack_outcome(outcome)
    if isinstance(outcome, TaskRaised):
        clear_frames(outcome.error)
    return packed


def clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error, which may refer to all data of a task. This frees the memory at once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # frames refer to their callers, and one of these refers to the error
        error = error.__cause__ or error.__context__


def pack_outcome(outcome: TaskOutcome) -> bytes:
    """An outcome as bytes. If it cannot be pickled, the bytes are a failure with the reason."""
    try:
        packed = bytes(cloudpickle().dumps(outcome))
        if isinstance(outcome, TaskRaised):
            pickle.loads(packed)  # noqa: S301  many exceptions can be pickled and not unpickled
    except Exception as problem:
        if isinstance(outcome, TaskRaised):
            name = type(outcome.error).__qualname__
            substitute = TaskRaised(RemoteError(f"{name}: {outcome.error}"), outcome.trace)
        else:
            kind = type(outcome.value).__qualname__
            error = RemoteError(f"the result, a {kind}, cannot be sent back: {problem}")
            substitute = TaskRaised(error, traceback.format_exc())
        return bytes(cloudpickle().dumps(substitute))
    return packed


def unpack_outcome(outcome: bytes) -> TaskOutcome:
    """Unpack the outcome of a task. If it cannot be unpickled, it is a failure with the reason."""
    try:
        unpacked = pickle.loads(outcome)  # noqa: S301  our own bytes, made by a task of this run
    except Exception as problem:
        return TaskRaised(RemoteError(f"the result cannot be read: {problem}"), traceback.format_exc())
    assert isinstance(unpacked, TaskReturned | TaskRaised)
    return unpacked


@functools.cache
def _freeze_libraries() -> None:
    """Exclude the loaded libraries from garbage collection, once per worker process.

    Spark's worker collects garbage after every task. For small tasks, most of the time was spent on the objects of
    pandas and pyarrow. Objects of user functions are created later and are collected as usual.
    """
    import pandas  # noqa: F401  pyarrow would import it with the first array, after the freeze

    gc.collect()
    gc.freeze()
    _silence_cancelled_tasks()


def _silence_cancelled_tasks() -> None:
    # Spark closes the socket of a task that it cancels. Then its Python worker prints a traceback of Spark code to the
    # terminal and ends. Spark has no setting for that.
    print_exc = traceback.print_exc

    def print_unless_socket_is_gone(*arguments: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        if isinstance(error, BrokenPipeError) and frames and frames[-1].filename.endswith("pyspark/daemon.py"):
            return
        print_exc(*arguments, **options)

    traceback.print_exc = print_unless_socket_is_gone


def _unpack_function(packed: bytes) -> Callable[[Any], Any]:
    # A worker process runs many tasks of a run, and a function may contain a large model. So it is unpacked once.
    name = hashlib.sha256(packed).digest()
    function = _functions.get(name)
    if function is None:
        function = pickle.loads(packed)  # noqa: S301  our own bytes, sent by the driver
        while len(_functions) >= _MAX_FUNCTIONS:
            del _functions[next(iter(_functions))]
        _functions[name] = function
    return function


# Packing

_PICKLED_BY_NAME = frozenset({"floodmark", "pyspark", "py4j", "__main__", "__mp_main__"})
_registry = threading.RLock()  # cloudpickle has one table per process of modules to send by value


class NotShippable(EngineError):
    """A function or a task cannot be sent to another process, because it contains a lock, an open file, or the like."""


def cloudpickle() -> Any:
    """The cloudpickle in PySpark. It sends functions without a module, such as lambdas, by value."""
    from pyspark import cloudpickle as module

    return module


@contextmanager
def pickle_by_value() -> Iterator[Callable[[object], bytes]]:
    """Yields a function that pickles a value. Code from the user's own files is pickled by value."""
    with _registry:
        modules = _project_modules()
        _for_each(cloudpickle().register_pickle_by_value, modules)
        try:
            yield functools.partial(_pack, modules=modules)
        finally:
            _for_each(cloudpickle().unregister_pickle_by_value, modules)


def _pack(value: object, *, modules: list[ModuleType]) -> bytes:
    pickler = cloudpickle()
    try:
        return bytes(pickler.dumps(value))
    except Exception as error:
        # The module of the function may contain a lock or an open file. Workers may have the module: try by name.
        by_value = error
    _for_each(pickler.unregister_pickle_by_value, modules)
    try:
        return bytes(pickler.dumps(value))
    except Exception:
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        raise NotShippable(
            f"{name} cannot be sent to a worker process: {by_value}",
            hint="Open files, locks and connections inside the function, not around it.",
        ) from by_value
    finally:
        _for_each(pickler.register_pickle_by_value, modules)


def is_project_module(name: str, module: ModuleType) -> bool:
    """Whether a module is a file of the user, which workers may not have, and not an installed package."""
    file = vars(module).get("__file__")  # not getattr, which loads a lazy module
    return isinstance(file, str) and _is_project_file(name, file)


@functools.lru_cache(maxsize=1 << 14)  # called for every loaded module in each packing
def _is_project_file(name: str, file: str) -> bool:
    return name.partition(".")[0] not in _PICKLED_BY_NAME and file.endswith(".py") and not file.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    folders = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def _project_modules() -> list[ModuleType]:
    registered = cloudpickle().list_registry_pickle_by_value()
    return [
        module
        for name, module in sys.modules.copy().items()  # a copy, because other threads may import modules
        if isinstance(module, ModuleType)
        and vars(module).get("__name__") == name  # its functions have this name as their module
        and name not in registered
        and is_project_module(name, module)
    ]


def _for_each(act: Callable[[ModuleType], None], modules: list[ModuleType]) -> None:
    for module in modules:
        act(module)

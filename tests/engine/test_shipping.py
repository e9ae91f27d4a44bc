import functools
import gc
import json
import pickle
import subprocess
import sys
import threading
import types

import pytest

from floodmark.engine.task import (
    NotShippable,
    RemoteError,
    TaskRaised,
    TaskReturned,
    is_project_module,
    pack_outcome,
    pickle_by_value,
    unpack_outcome,
)

FACTOR = 3


def triple(n):
    return n * FACTOR


def elsewhere(packed: bytes) -> bytes:
    """Call the packed function with 14 in a process that knows nothing of the test files."""
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(14))"
    answer = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True)
    return answer.stdout.strip()


def test_function_of_a_users_file_works_where_that_file_is_not():
    with pickle_by_value() as to_bytes:
        assert elsewhere(to_bytes(functools.partial(lambda n, f: f(n), f=triple))) == b"42"


def test_installed_modules_and_floodmark_travel_by_name():
    import pyarrow

    import floodmark.engine.task as ours

    assert is_project_module(__name__, sys.modules[__name__])
    assert not is_project_module("json", json)
    assert not is_project_module("pyarrow", pyarrow)
    assert not is_project_module("floodmark.engine.task", ours)
    assert not is_project_module("made_up", types.ModuleType("made_up"))


def test_packing_leaves_cloudpickle_as_it_was():
    from pyspark import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    with pickle_by_value() as to_bytes, pytest.raises(NotShippable):
        to_bytes(threading.Lock())
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_packing_works_while_other_threads_import():
    added = []

    def import_another(phase: str, info: dict[str, int]) -> None:
        name = f"imported_meanwhile_{len(added)}"
        sys.modules[name] = types.ModuleType(name)
        added.append(name)

    threshold = gc.get_threshold()
    gc.callbacks.append(import_another)  # where a collection runs, another thread may run as well
    gc.set_threshold(1)
    try:
        with pickle_by_value() as packed:
            packed(functools.partial(print, 1))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(import_another)
        for name in added:
            del sys.modules[name]
    assert added


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def guarded(n):
        with lock:
            return n

    with pickle_by_value() as to_bytes, pytest.raises(NotShippable, match="guarded cannot be sent"):
        to_bytes(guarded)


def test_result_that_cannot_be_pickled_becomes_a_failure_that_says_so():
    outcome = unpack_outcome(pack_outcome(TaskReturned(threading.Lock())))
    assert isinstance(outcome, TaskRaised)
    assert "lock, cannot be sent back" in str(outcome.error)


class Awkward(Exception):
    def __init__(self, one, two):
        super().__init__("awkward")


def test_exception_that_cannot_be_unpickled_keeps_its_name_and_trace():
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Awkward(1, 2)))
    outcome = unpack_outcome(pack_outcome(TaskRaised(Awkward(1, 2), "the trace")))
    assert isinstance(outcome.error, RemoteError)
    assert str(outcome.error) == "Awkward: awkward"
    assert outcome.trace == "the trace"

"""A task that fails leaves nothing behind that waits for the garbage collector."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest

from floodmark.engine.task import TaskRaised, cloudpickle, run_packed, unpack_outcome


class Held:
    """Stands for all that a task has read."""


HELD: list[weakref.ref[Held]] = []


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    HELD.clear()
    gc.disable()
    yield
    gc.enable()


def deep(held: Held) -> None:
    kept = None
    try:
        raise KeyError(held)
    except KeyError as error:
        kept = error  # a frame that holds an error that holds the frame
    raise ValueError("wrong") from kept


def work(_: object) -> None:
    held = Held()
    HELD.append(weakref.ref(held))
    deep(held)


def test_what_a_failed_task_held_is_let_go_at_once():
    outcome = unpack_outcome(run_packed(cloudpickle().dumps(work), pickle.dumps(1)))
    assert isinstance(outcome, TaskRaised)
    assert "in deep" in outcome.trace
    assert [held() for held in HELD] == [None]

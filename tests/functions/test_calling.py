"""A function called with rows: good rows keep their values, failing ones are retried, skipped, or named."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FunctionFailed
from floodmark.functions.column_call import BatchValues, ColumnCaller
from floodmark.functions.on_error import Handler, Retry, Skip
from floodmark.functions.udf import Udf, udf
from limits import set_limit

START = 100


def batch(values: Iterable[Any]) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(list(values), pa.int64())})


def compute(
    function: Callable[..., Any],
    values: Iterable[Any],
    *on_error: Handler,
    slept: list[float] | None = None,
) -> BatchValues:
    made = udf(returns="int64", name="f", version="1", on_error=on_error)(function)
    pauses: list[float] = [] if slept is None else slept
    rows = batch(values)
    caller = ColumnCaller(made, pa.field("y", pa.int64()), ("x",), sleep=pauses.append)
    return caller.compute(rows, np.arange(START, START + rows.num_rows))


class Calls:
    """Functions of both kinds that add one, note every call, and raise at certain values for the first few times."""

    def __init__(self, failing: dict[int, tuple[type[BaseException], int]] | None = None) -> None:
        self.failing = failing or {}
        self.seen: list[list[int]] = []

    def _note(self, values: list[int]) -> None:
        self.seen.append(values)
        for value in values:
            error, times = self.failing.get(value, (ValueError, 0))
            if times:
                self.failing[value] = (error, times - 1)
                raise error(f"no {value}")

    def scalar(self, x):
        self._note([x])
        return x + 1

    def array(self, x: pa.Array) -> pa.Array:
        self._note(x.to_pylist())
        return pc.add(x, 1)

    def batch(self, rows: pa.RecordBatch) -> pa.Array:
        assert rows.schema.names == ["x"]
        return self.array(rows.column("x"))

    @property
    def rows(self) -> int:
        return sum(map(len, self.seen))


KINDS = ["scalar", "array", "batch"]
ALWAYS = 10**9


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_gets_its_value(kind: str):
    calls = Calls()
    computed = compute(getattr(calls, kind), range(5))
    assert computed.values.to_pylist() == [1, 2, 3, 4, 5]
    assert computed.errors == ()
    assert computed.called == calls.rows == 5
    assert len(calls.seen) == (5 if kind == "scalar" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_are_no_call(kind: str):
    calls = Calls()
    computed = compute(getattr(calls, kind), [])
    assert (computed.values.to_pylist(), computed.values.type, computed.called) == ([], pa.int64(), 0)
    assert calls.seen == []


def test_row_function_gets_python_values_and_none_for_null():
    seen: list[Any] = []
    compute(lambda x: seen.append(x), [1, None])
    assert seen == [1, None]
    assert type(seen[0]) is int


def test_columns_are_given_in_the_order_of_the_inputs_whatever_the_batch_has():
    rows = pa.record_batch({"b": [1, 2], "unused": [0, 0], "a": [10, 20]})
    field, offsets = pa.field("y", pa.int64()), np.array([3, 9])
    minus = udf(returns="int64", version="1")(lambda p, q: p - q)
    assert ColumnCaller(minus, field, ("a", "b")).compute(rows, offsets).values.to_pylist() == [9, 18]
    assert ColumnCaller(minus, field, ("b", "b")).compute(rows, offsets).values.to_pylist() == [0, 0]

    @udf(returns="int64", inputs=["a", "b"], version="1")
    def of_batch(rows: pa.RecordBatch) -> pa.Array:
        assert rows.schema.names == ["a", "b"]
        return rows.column(0)

    assert ColumnCaller(of_batch, field, ("a", "b")).compute(rows, offsets).values.to_pylist() == [10, 20]


@pytest.mark.parametrize("kind", KINDS)
def test_failing_rows_are_skipped_and_the_others_keep_their_values(kind: str):
    calls = Calls({3: (ValueError, ALWAYS), 4: (KeyError, ALWAYS)})
    computed = compute(getattr(calls, kind), range(8), Skip(ValueError), Skip(KeyError))
    assert computed.values.to_pylist() == [1, 2, 3, None, None, 6, 7, 8]
    assert [(e.at, e.offset, e.type, e.message, e.attempts) for e in computed.errors] == [
        (3, START + 3, "ValueError", "no 3", 1),
        (4, START + 4, "KeyError", "'no 4'", 1),
    ]
    assert computed.called == calls.rows
    trace = computed.errors[0].traceback
    assert "in _note" in trace
    assert "compute/call.py" not in trace


@pytest.mark.parametrize("kind", KINDS)
def test_error_that_passes_is_tried_again_with_growing_pauses(kind: str):
    calls = Calls({2: (TimeoutError, 2)})
    slept: list[float] = []
    computed = compute(getattr(calls, kind), range(4), Retry(TimeoutError, attempts=4, delay=0.5), slept=slept)
    assert computed.values.to_pylist() == [1, 2, 3, 4]
    assert computed.errors == ()
    assert slept == [0.5, 1.0]
    assert computed.called == calls.rows == (4 + 2 if kind == "scalar" else 3 * 4)


def test_retries_end_after_as_many_calls_as_the_rule_says():
    calls = Calls({2: (TimeoutError, ALWAYS)})
    computed = compute(calls.scalar, range(4), Retry(TimeoutError, attempts=3), Skip(TimeoutError))
    assert calls.seen.count([2]) == 3
    assert computed.errors[0].attempts == 3
    assert computed.called == calls.rows == 6


def test_halves_of_a_batch_are_not_retried_until_rows_stand_alone():
    calls = Calls({2: (TimeoutError, ALWAYS)})
    computed = compute(calls.array, range(8), Retry(TimeoutError, attempts=3), Skip(TimeoutError))
    whole = [list(range(8))] * 3
    assert calls.seen == [*whole, [0, 1, 2, 3], [0, 1], [2, 3], [2], [2], [2], [3], [4, 5, 6, 7]]
    assert computed.values.to_pylist() == [1, 2, None, 4, 5, 6, 7, 8]
    assert [error.attempts for error in computed.errors] == [3]
    assert computed.called == calls.rows


def test_first_retry_that_means_the_error_counts():
    calls = Calls({0: (TimeoutError, ALWAYS)})
    compute(calls.scalar, [0], Retry(TimeoutError, attempts=2), Retry(OSError, attempts=9), Skip(OSError))
    assert len(calls.seen) == 2


def test_different_errors_of_one_row_have_their_own_attempts():
    raised = iter([TimeoutError(), ConnectionError(), TimeoutError(), ConnectionError()])

    def f(x):
        raise next(raised)

    rules = (Retry(TimeoutError, attempts=3), Retry(ConnectionError, attempts=2), Skip(ConnectionError))
    computed = compute(f, [1], *rules)
    assert [(error.type, error.attempts) for error in computed.errors] == [("ConnectionError", 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_error_without_a_rule_names_the_first_failing_row(kind: str):
    calls = Calls({5: (ValueError, ALWAYS), 6: (ValueError, ALWAYS)})
    with pytest.raises(FunctionFailed, match=r"'f' of column 'y' failed at offset 105: ValueError: no 5") as caught:
        compute(getattr(calls, kind), range(1000), Retry(TimeoutError), Skip(KeyError))
    error = caught.value
    assert (error.column, error.offsets, error.start, error.end) == ("y", (105,), 100, 1100)
    assert (error.error_type, error.error_message, error.attempts) == ("ValueError", "no 5", 1)
    assert "in _note" in error.traceback
    assert error.called == calls.rows
    assert len(calls.seen) <= 22
    assert "Skip(ValueError)" in error.hint
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.facts) == (str(error), error.facts)


def test_rows_that_only_fail_together_have_values():
    def few(x: pa.Array) -> pa.Array:
        if len(x) > 2:
            raise ValueError("too many")
        return x

    assert compute(few, range(9)).values.to_pylist() == list(range(9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_must_end_the_task_is_never_swallowed(kind: str, error: Any):
    calls = Calls({1: (error, ALWAYS)})
    with pytest.raises(error):
        compute(getattr(calls, kind), range(4), Retry(Exception), Skip(Exception))
    assert len(calls.seen) == (2 if kind == "scalar" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_function_that_exits_fails_for_its_row(kind: str):
    calls = Calls({2: (SystemExit, ALWAYS)})
    with pytest.raises(FunctionFailed, match="failed at offset 102: SystemExit: no 2") as caught:
        compute(getattr(calls, kind), range(4), Retry(Exception), Skip(Exception))
    assert caught.value.offsets == (102,)
    assert "Raise an Exception" in caught.value.hint
    assert calls.seen.count([2]) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_must_end_the_task_is_not_swallowed_in_a_retry_either(error: Any):
    raised = iter([ValueError, error])

    def f(x):
        raise next(raised)

    with pytest.raises(error):
        compute(f, [1], Retry(ValueError), Skip(Exception))


def test_error_of_any_text_can_be_kept():
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    texts = [ValueError("\ud800 lone"), ValueError("x" * 100_000), Odd()]
    errors = compute(lambda at: (_ for _ in ()).throw(texts[at]), range(3), Skip(Exception)).errors
    pa.array([error.message for error in errors] + [error.traceback for error in errors], pa.string())
    assert errors[0].message == "\\ud800 lone"
    assert len(errors[1].message) < 5_000
    assert "cannot be shown" in errors[2].message
    assert errors[2].type.endswith("Odd")


def oracle(values: list[int], bad: set[int]) -> tuple[list[int | None], list[int]]:
    return [None if v in bad else v + 1 for v in values], [at for at, v in enumerate(values) if v in bad]


@given(st.lists(st.integers(0, 30), max_size=40), st.sets(st.integers(0, 30)), st.sampled_from(KINDS))
def test_any_failing_rows_are_found_and_no_others(values: list[int], bad: set[int], kind: str):
    calls = Calls(dict.fromkeys(bad, (ValueError, ALWAYS)))
    computed = compute(getattr(calls, kind), values, Skip(ValueError))
    expected, failed = oracle(values, bad)
    assert computed.values.to_pylist() == expected
    assert [error.at for error in computed.errors] == failed
    assert computed.called == calls.rows


def test_many_rows_are_python_values_only_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "call.python_rows", 4)
    calls = Calls({9: (ValueError, ALWAYS)})
    computed = compute(calls.scalar, range(10), Skip(ValueError))
    assert computed.values.to_pylist() == [*range(1, 10), None]
    assert [(error.at, error.offset) for error in computed.errors] == [(9, START + 9)]
    assert computed.called == 10


def stateful(cls: type, version: str) -> Udf:
    return udf(returns="int64", name="model", version=version)(cls)


def test_class_is_made_once_per_process_and_version():
    made: list[int] = []

    class Model:
        def __init__(self) -> None:
            made.append(1)
            self.calls = 0

        def __call__(self, x: pa.Array) -> pa.Array:
            self.calls += 1
            return pa.array([self.calls] * len(x))

    def run(version: str) -> list[int]:
        caller = ColumnCaller(stateful(Model, version), pa.field("y", pa.int64()), ("x",))
        return caller.compute(batch([0]), np.array([0])).values.to_pylist()

    assert [run("1"), run("1"), run("2"), run("2")] == [[1], [2], [1], [2]]
    assert len(made) == 2


def test_class_that_cannot_be_made_is_reported():
    class Model:
        def __init__(self) -> None:
            raise OSError("no weights")

        def __call__(self, x): ...

    caller = ColumnCaller(stateful(Model, "1"), pa.field("y", pa.int64()), ("x",))
    with pytest.raises(FunctionFailed, match="could not be started: OSError: no weights") as caught:
        caller.compute(batch([0]), np.array([7]))
    assert caught.value.offsets == ()
    assert (caught.value.start, caught.value.end, caught.value.called) == (7, 8, 0)


def test_values_that_python_has_no_form_for_are_reported():
    rows = pa.record_batch({"x": pa.array([0, 2**60], pa.timestamp("us"))})
    caller = ColumnCaller(udf(returns="int64", version="1")(lambda x: 1), pa.field("y", pa.int64()), ("x",))
    with pytest.raises(FunctionFailed, match="column 'x' has values that Python cannot represent") as caught:
        caller.compute(rows, np.array([7, 8]))
    assert "pa.Array" in caught.value.hint
    assert (caught.value.start, caught.value.end, caught.value.called) == (7, 9, 0)


def test_values_of_an_array_function_are_not_copied():
    rows = batch(range(1000))
    same = udf(returns="int64", version="1")(lambda x: x)

    @udf(returns="int64", version="1")
    def identity(x: pa.Array) -> pa.Array:
        return x

    assert same.kind == "scalar"
    values = ColumnCaller(identity, pa.field("y", pa.int64()), ("x",)).compute(rows, np.arange(1000)).values
    assert values.buffers()[1].address == rows.column(0).buffers()[1].address


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scalar", "array"])
@pytest.mark.parametrize("times", [1, 2, 9])
def test_rows_that_fail_leave_nothing_that_waits_for_the_collector(kind, times):
    class Held:
        """Stands for what a task has read."""

    calls, seen = Calls({2: (ValueError, times)}), []

    def task() -> list[int | None]:
        held = Held()
        seen.append(weakref.ref(held))
        rules = (Retry(ValueError, attempts=3), Skip(ValueError))
        values: list[int | None] = compute(getattr(calls, kind), [1, 2, 3], *rules).values.to_pylist()
        return values

    gc.collect()
    gc.disable()
    try:
        assert task() == [2, None if times == 9 else 3, 4]
        assert [held() for held in seen] == [None]
    finally:
        gc.enable()

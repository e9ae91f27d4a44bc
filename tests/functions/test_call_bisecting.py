"""A chunk that fails is halved until the failing keys stand alone; all others get their results."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark import Retry, Skip
from floodmark.errors import KeyFailed
from floodmark.rows.row_hash import hash_rows
from functions.calling import NOW, call, chunk_of, ids, output, pairs
from profiles import examples

X = {"id": pa.int64(), "x": pa.float64()}


class Fails:
    """Fails if any of these keys is given, with an error that names the first; remembers its calls."""

    def __init__(self, *bad: int, error: type[BaseException] = ValueError) -> None:
        self.bad = set(bad)
        self.error = error
        self.calls: list[list[int]] = []

    def __call__(self, df: pd.DataFrame) -> pd.DataFrame:
        self.calls.append(df["id"].tolist())
        for key in df["id"]:
            if key in self.bad:
                raise self.error(f"bad {key}")
        return df


@settings(max_examples=examples(20))
@given(
    data=st.data(),
    count=st.integers(1, 40),
    per_key=st.integers(1, 3),
    known=st.booleans(),
)
def test_each_bad_key_fails_alone_and_each_good_one_succeeds(data, count: int, per_key: int, known: bool):
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    chunk = chunk_of({"id": np.tile(np.arange(count), per_key), "n": np.repeat(np.arange(per_key), count)})
    columns = {"id": pa.int64(), "n": pa.int64()}
    function = Fails(*bad)
    called = call(function, chunk, output(columns if known else None, key=("id", "n")))
    wanted = {(k, n) for k in range(count) for n in range(per_key) if k not in bad}
    assert {(r["id"], r["n"]) for r in called.rows[0].to_pylist()} == wanted
    assert called.rows[0].num_rows == len(wanted)
    failed = called.failed.to_pylist()
    assert {(r["id"], r["message"]) for r in failed} == {(k, f"bad {k}") for k in bad}
    assert len(failed) == len(bad)
    assert called.calls == len(function.calls) <= max(1, 2 * count - 1)
    assert called.called == sum(len(set(keys)) for keys in function.calls)
    assert pairs(called.hashes[0]) == pairs(hash_rows(called.rows[0], ["id"])) or not wanted


def test_good_chunk_is_called_once():
    called = call(Fails(), ids(9), output(X))
    assert (called.calls, called.called, called.failed.num_rows) == (1, 9, 0)


def test_chunk_without_keys_is_not_called():
    function = Fails()
    called = call(function, ids(0), output(X))
    assert (called.calls, called.rows[0].num_rows, called.rows[0].column_names) == (0, 0, ["id", "x"])
    assert function.calls == []


def test_failure_is_kept_with_its_type_message_traceback_and_time():
    called = call(Fails(2), ids(4), output(X), before=[0, 0, 6, 0])
    (failure,) = called.failed.to_pylist()
    assert (failure["id"], failure["type"], failure["message"], failure["attempts"]) == (2, "ValueError", "bad 2", 7)
    assert failure["traceback"].startswith("Traceback")
    assert 'raise self.error(f"bad {key}")' in failure["traceback"]
    assert "functions/step_call.py" not in failure["traceback"]
    assert "functions/step_function.py" not in failure["traceback"]
    assert failure["last"].timestamp() * 1000 == NOW
    assert (failure["state"], failure["due"]) == ("retry", None)
    assert (failure["high"], failure["low"]) == pairs(ids(4).hashes)[2]


def test_key_named_like_a_fact_of_the_failure_is_kept_beside_it():
    keys = pa.schema([pa.field("type", pa.string())])

    def fail(df):
        raise ValueError("no")

    chunk = chunk_of({"type": ["a"]}, ["type"])
    called = call(fail, chunk, output({"type": pa.string()}, key=("type",), keys=keys))
    assert [called.failed.column(i).to_pylist() for i in (0, 3)] == [["a"], ["ValueError"]]


def test_null_key_fails_like_any_other():
    keys = pa.schema([pa.field("id", pa.int64())])

    def fail_on_null(df):
        if df["id"].isna().any():
            raise ValueError("null")
        return df

    chunk = chunk_of({"id": pa.array([1, None, 3])})
    called = call(fail_on_null, chunk, output({"id": pa.int64()}, keys=keys))
    assert called.failed.column("id").to_pylist() == [None]
    assert called.rows[0].column("id").to_pylist() == [1, 3]


def test_fail_fast_names_the_first_key_that_fails_and_calls_no_further():
    function = Fails(5, 11)
    with pytest.raises(KeyFailed, match=r"id=5: ValueError: bad 5") as caught:
        call(function, ids(16), output(X), on_error="fail_fast")
    assert caught.value.key == {"id": 5}
    assert 'raise self.error(f"bad {key}")' in caught.value.traceback
    assert function.calls[-1] == [5]
    assert len(function.calls) <= 2 * 5 + 1


def test_fail_fast_lets_errors_pass_that_a_handler_skips():
    called = call(Fails(3), ids(8), output(X), on_error=["fail_fast", Skip(ValueError)])
    assert called.failed.column("state").to_pylist() == ["skipped"]


def test_retry_within_the_run_calls_again_with_growing_pauses():
    class Recovers:
        def __init__(self) -> None:
            self.left = 2

        def __call__(self, df):
            if self.left:
                self.left -= 1
                raise TimeoutError
            return df

    pauses: list[float] = []
    called = call(Recovers(), ids(8), output(X), on_error=[Retry(TimeoutError, attempts=3, delay=0.5)], pauses=pauses)
    assert pauses == [0.5, 1.0]
    assert (called.calls, called.failed.num_rows, called.rows[0].num_rows) == (3, 0, 8)


def test_key_that_stands_alone_gets_all_calls_of_its_rule():
    function = Fails(1, error=TimeoutError)
    called = call(function, ids(2), output(X), on_error=[Retry(TimeoutError, attempts=3)])
    assert function.calls.count([1]) == 3
    assert called.failed.column("attempts").to_pylist() == [1]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, Odd])
def test_what_is_no_exception_fails_its_key_all_the_same(error: type[BaseException]):
    called = call(Fails(2, error=error), ids(4), output(X), on_error="retry")
    assert called.failed.column("id").to_pylist() == [2]
    assert called.failed.column("type").to_pylist()[0].endswith(error.__name__)
    assert len(called.rows[0]) == 3


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_must_end_the_task_is_not_swallowed(error: type[BaseException]):
    def end(df):
        raise error

    with pytest.raises(error):
        call(end, ids(4), output(X), on_error="skip")


def test_model_that_cannot_be_loaded_fails_the_task_and_no_key():
    loads = []

    class Model:
        def __init__(self) -> None:
            loads.append(1)
            raise OSError("no weights")

        def __call__(self, df):
            return df

    with pytest.raises(OSError, match="no weights"):
        call(Model, ids(64), output(X))
    assert len(loads) == 1


def test_function_that_changes_its_frame_does_not_change_what_the_next_call_gets():
    seen = []

    def spoil(df):
        seen.append(df["x"].tolist())
        df["x"] = -1.0
        df.loc[:, "id"] += 0
        if len(df) > 1:
            raise ValueError
        return df

    call(spoil, ids(2), output(X))
    assert seen == [[0.0, 1.5], [0.0], [1.5]]


def test_cross_join_is_cut_into_smaller_rectangles_until_the_bad_pair_stands_alone():
    from floodmark.transforms.chunks import Chunk, Side

    a, b = pa.table({"a": [0, 1, 2]}), pa.table({"b": [0, 1, 2, 3]})
    keys = pa.table({"a": np.repeat([0, 1, 2], 4), "b": np.tile([0, 1, 2, 3], 3)})
    sides = (
        Side(a, np.arange(3), np.arange(3), np.repeat(np.arange(3), 4)),
        Side(b, np.arange(4), np.arange(4), np.tile(np.arange(4), 3)),
    )
    chunk = Chunk(keys, hash_rows(keys, ["a", "b"]), sides, axes=(0, 1))

    def product(one, other):
        made = one.merge(other, how="cross")
        if ((made["a"] == 1) & (made["b"] == 2)).any():
            raise ValueError("1 and 2")
        return made

    called = call(product, chunk, output(None, key=("a", "b"), keys=keys.schema))
    assert called.failed.select(["a", "b"]).to_pylist() == [{"a": 1, "b": 2}]
    assert called.rows[0].num_rows == 11

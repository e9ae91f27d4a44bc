"""What a udf is: told from a function, its annotations and its options; refused at once when it cannot be one."""

from __future__ import annotations

import functools
import gc
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodmark.engine.task import pickle_by_value
from floodmark.errors import (
    BadFunction,
    BadOption,
    FloodmarkError,
    NoVersion,
)
from floodmark.functions.on_error import Retry, Skip
from floodmark.functions.udf import Udf, find_udf, udf

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@udf(returns="float64", max_checkpoint_size=100, on_error=[Retry(TimeoutError), Skip(ValueError)])
def brightness(pixels: pa.Array, gain: pa.Array) -> pa.Array:
    """Twice as bright."""
    return pc.multiply(pixels, gain)


class Scale:
    def __init__(self, by: float = 2.0) -> None:
        self.by = by

    def __call__(self, x: pa.Array) -> pa.Array:
        return pc.multiply(x, self.by)


def shipped(function: Udf) -> Udf:
    with pickle_by_value() as pack:
        copy: Udf = pickle.loads(pack(function))
    return copy


def test_udf_knows_what_its_function_takes_and_returns():
    assert brightness.name == brightness.qualname == "brightness"
    assert brightness.module == __name__
    assert brightness.inputs == ("pixels", "gain")
    assert brightness.kind == "array"
    assert brightness.type == pa.float64()
    assert brightness.nullable
    assert (brightness.min_checkpoint_size, brightness.max_checkpoint_size) == (1, 100)
    assert brightness.on_error == (Retry(TimeoutError), Skip(ValueError))
    assert brightness.source.startswith("@udf(returns=")
    assert brightness.source.rstrip().endswith("return pc.multiply(pixels, gain)")


def test_udf_says_what_it_is():
    assert repr(brightness) == "<udf brightness(pixels, gain) → double>"
    assert repr(udf(returns="string")(_batch)) == "<udf _batch(…) → string>"


def test_udf_can_be_called_like_its_function():
    assert brightness(pa.array([1, 2]), gain=pa.array([3, 4])).to_pylist() == [3, 8]


def _array(x: pa.Array): ...
def _union(x: pa.DoubleArray | None): ...
def _batch(rows: RecordBatch): ...
def _dotted(rows: pa.RecordBatch) -> pa.Array: ...
def _scalar(x: float, y): ...
def _foreign(x: np.Array): ...  # noqa: F821
def _rest(*columns: pa.Array): ...
def _options(x: pa.Array, y: pa.Array, factor: float = 2.0): ...


class _Model:
    def __call__(self, x: pa.Array): ...


@pytest.mark.parametrize(
    ("function", "kind", "inputs"),
    [
        (_array, "array", ("x",)),
        (_union, "array", ("x",)),
        (_batch, "batch", None),
        (_dotted, "batch", None),
        (_scalar, "scalar", ("x", "y")),
        (_foreign, "scalar", ("x",)),
        (_rest, "array", None),
        (_options, "array", ("x", "y")),
        (_Model, "array", ("x",)),
        (_Model(), "array", ("x",)),
        (_Model().__call__, "array", ("x",)),
        (lambda a, b: a, "scalar", ("a", "b")),
        (functools.partial(_scalar, 1.0), "scalar", ("y",)),
        (functools.partial(_options, factor=3.0), "array", ("x", "y")),
    ],
)
def test_kind_and_inputs_are_told_from_the_parameters(function: Any, kind: str, inputs: tuple[str, ...] | None):
    made = udf(returns="int64")(function)
    assert (made.kind, made.inputs) == (kind, inputs)


def test_annotations_that_are_classes_are_understood_too():
    def f(x): ...

    f.__annotations__["x"] = pa.Array
    assert udf(returns="int64")(f).kind == "array"
    f.__annotations__["x"] = pa.Array | None
    assert udf(returns="int64")(f).kind == "array"


@pytest.mark.parametrize(
    ("returns", "expected", "nullable"),
    [
        ("string", pa.string(), True),
        ("timestamp[ns]", pa.timestamp("us"), True),
        (pa.large_string(), pa.string(), True),
        (pa.list_(pa.float32()), pa.list_(pa.field("element", pa.float32())), True),
        (pa.field("x", pa.int64(), nullable=False), pa.int64(), False),
    ],
)
def test_type_is_the_one_under_which_a_dataset_keeps_it(returns: Any, expected: pa.DataType, nullable: bool):
    made = udf(returns=returns)(lambda x: x)
    assert (made.type, made.nullable) == (expected, nullable)


def _by_name(*, x): ...
async def _async(x): ...
def _generator(x):
    yield x


def _nothing(): ...
def _mixed(x: pa.Array, y: int): ...
def _two_batches(x: pa.RecordBatch, y: pa.RecordBatch): ...


class _Needy:
    def __init__(self, path): ...
    def __call__(self, x): ...


class _NotCallable: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (_scalar, {}, "has no return type"),
        (_scalar, {"returns": "flaot64"}, "'flaot64'.*is not the name of a type"),
        (_scalar, {"returns": float}, "an Arrow type or its name"),
        (_scalar, {"returns": pa.float16()}, "a dataset cannot hold"),
        (_scalar, {"returns": pa.list_(pa.struct([("a", pa.int8())]))}, "a dataset cannot hold"),
        (_by_name, {"returns": "int64"}, "is keyword-only"),
        (_async, {"returns": "int64"}, "is async or a generator"),
        (_generator, {"returns": "int64"}, "is async or a generator"),
        (_scalar, {"returns": "int64", "inputs": ["a", 1]}, "must be column names"),
        (_nothing, {"returns": "int64"}, "takes no column"),
        (_mixed, {"returns": "int64"}, "different kinds"),
        (_two_batches, {"returns": "int64"}, "different kinds"),
        (_Needy, {"returns": "int64"}, "without arguments: .*'path'"),
        (_NotCallable, {"returns": "int64"}, "has no __call__"),
        (17, {"returns": "int64"}, "not a function"),
        (_scalar, {"returns": "int64", "inputs": "ab"}, "a list of columns, not 'ab'"),
        (_scalar, {"returns": "int64", "inputs": ["a"]}, "takes 2 columns, not 1: a"),
        (_options, {"returns": "int64", "inputs": list("abcd")}, "takes 2 to 3 columns, not 4"),
        (_batch, {"returns": "int64", "inputs": []}, "takes no column"),
        (_batch, {"returns": "int64", "inputs": ["a", "a"]}, "a column twice"),
        (_scalar, {"returns": "int64", "version": 3}, "version .* must be a text, not 3"),
        (_scalar, {"returns": "int64", "version": ""}, "version .* must be a text, not ''"),
        (_scalar, {"returns": "int64", "on_error": [ValueError]}, "takes Retry"),
        (
            _scalar,
            {"returns": "int64", "on_error": [Skip(ValueError)], "nullable": False},
            "has nullable=False",
        ),
        (brightness, {"returns": "int64"}, "is a udf already"),
    ],
)
def test_function_that_cannot_be_a_columns_is_refused(function: Any, options: dict[str, Any], message: str):
    with pytest.raises(BadFunction, match=message) as caught:
        udf(**options)(function)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, FloodmarkError)


def test_udf_without_brackets_is_told_what_is_missing():
    with pytest.raises(BadFunction, match="'_scalar' has no return type"):
        udf(_scalar)


@pytest.mark.parametrize("sizes", [(0, None), (1, 0), (5, 4), (True, None), (1.5, None), (1, "9")])
def test_checkpoint_sizes_that_make_no_sense_are_refused(sizes: tuple[Any, Any]):
    with pytest.raises(BadOption, match="the udf 'f'"):
        udf(returns="int64", name="f", min_checkpoint_size=sizes[0], max_checkpoint_size=sizes[1])(lambda x: x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(),
        lambda: Skip(),
        lambda: Skip(KeyboardInterrupt),
        lambda: Retry(MemoryError),
        lambda: Skip(ValueError("x")),  # type: ignore[arg-type]
        lambda: Retry(ValueError, attempts=0),
        lambda: Retry(ValueError, delay=-1),
        lambda: Retry(ValueError, delay=float("nan")),
    ],
)
def test_handler_that_makes_no_sense_is_refused(make: Any):
    with pytest.raises(BadOption):
        make()


def test_inputs_given_with_the_column_win_over_those_of_the_function():
    assert brightness.inputs_from(None) == ("pixels", "gain")
    assert brightness.inputs_from(["a", "b"]) == ("a", "b")
    with pytest.raises(BadFunction, match="takes 2 columns, not 1"):
        brightness.inputs_from(["a"])
    with pytest.raises(BadFunction, match="does not name the columns it takes"):
        udf(returns="int64")(_batch).inputs_from(None)


def test_version_is_the_one_given_or_else_a_fingerprint():
    assert udf(returns="int64", version="v7")(_scalar).version == "v7"
    one, other = (udf(returns="int64", max_checkpoint_size=size)(_scalar) for size in (1, 2))
    assert one.version == other.version
    assert len(one.version) == 32


def test_function_called_in_another_way_has_another_version():
    def by_row(x): ...
    def by_array(x: pa.Array): ...

    by_array.__code__ = by_row.__code__
    one, other = udf(returns="int64")(by_row), udf(returns="int64")(by_array)
    assert (one.kind, other.kind) == ("scalar", "array")
    assert one.version != other.version


def test_version_stays_as_it_was_when_first_needed():
    seen: list[int] = []
    counting = udf(returns="int64")(lambda x: seen.append(x) or x)
    before = counting.version
    counting(3)
    assert seen == [3]
    assert counting.version == before


def test_given_version_stands_for_the_code_of_a_udf_that_another_one_calls():
    def made(version: str | None, added: int) -> str:
        inner = udf(returns="int64", version=version)(lambda x: x + added)
        return udf(returns="int64")(lambda x: inner(x)).version

    assert made("1", 1) == made("1", 2)
    assert made("1", 1) != made("2", 1)
    assert made(None, 1) != made(None, 2)


@pytest.mark.slow
def test_known_finds_a_udf_by_name_and_version_while_it_is_around():
    old, new = (udf(returns="int64", name="known_test", version=v)(_scalar) for v in ("1", "2"))
    assert find_udf("known_test", "1") is old
    assert find_udf("known_test", "2") is new
    assert find_udf("known_test", "3") is None
    assert find_udf("other", "1") is None
    again = udf(returns="int64", name="known_test", version="1")(_scalar)
    assert find_udf("known_test", "1") is again
    del again
    gc.collect()
    assert find_udf("known_test", "1") is old
    del new
    gc.collect()
    assert find_udf("known_test", "2") is None


def test_known_looks_at_udfs_of_that_name_only(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr("floodmark.functions.udf.compute_fingerprint", lambda _, name, kind: asked.append(name) or name)
    kept = [udf(returns="int64", name=name)(_scalar) for name in ("known_a", "known_b")]
    assert find_udf("known_a", "known_a") is kept[0]
    assert asked == ["known_a"]


def test_known_passes_over_a_udf_that_has_no_version():
    namespace: dict[str, Any] = {}
    exec("def f(x): return x", namespace)  # noqa: S102
    lost = udf(returns="int64", name="known_lost")(namespace["f"])
    with pytest.raises(NoVersion):
        _ = lost.version
    assert find_udf("known_lost", "1") is None


def test_udf_travels_with_its_version_and_source():
    for made in (brightness, udf(returns="int64")(lambda x: x + 1), udf(returns="float64")(Scale(3.0))):
        copy = shipped(made)
        assert "version" in vars(copy)
        assert (copy.version, copy.source, copy.kind, copy.inputs) == (
            made.version,
            made.source,
            made.kind,
            made.inputs,
        )
        assert copy.on_error == made.on_error
    assert copy(pa.array([2.0])).to_pylist() == [6.0]


@udf(returns="int64")
def factorial(n):
    return n * factorial(n - 1) if n else 1


def test_udf_that_calls_itself_travels_too():
    copy = shipped(factorial)
    assert copy.version == factorial.version
    assert copy(5) == 120


def test_function_that_cannot_be_sent_is_refused_with_the_reason():
    lock = threading.Lock()
    held = udf(returns="int64", name="held", version="1")(lambda x: lock and x)
    with pytest.raises(BadFunction, match=r"'held' cannot be sent to a worker: .*lock") as caught:
        held.check_shippable()
    assert "__init__" in caught.value.hint
    with pytest.raises(NoVersion):
        udf(returns="int64")(lambda x: lock and x).check_shippable()
    brightness.check_shippable()


@pytest.mark.process
def test_defining_a_udf_loads_no_spark():
    program = (
        "import sys, pyarrow as pa\n"
        "from floodmark.functions.column_call import ColumnCaller\n"
        "from floodmark.functions.udf import udf\n"
        "f = udf(returns='int64', version='1')(lambda x: x)\n"
        "caller = ColumnCaller(f, pa.field('y', pa.int64()), ('x',))\n"
        "assert caller.compute(pa.record_batch({'x': [1]}), [0]).called == 1\n"
        "print([m for m in ('pyspark', 'py4j') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"

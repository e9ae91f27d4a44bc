"""What cannot be right is refused or reported with the range and the first offending rows; nothing is half done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from columns.counting import OFFSET, Plan
from columns.worlds import FRAGMENT_ROWS, HUNDREDFOLD, TENFOLD, World
from floodmark.errors import (
    BadFunction,
    BadOption,
    BadQuery,
    BadResult,
    ColumnExists,
    DerivationError,
    FunctionFailed,
    TypeMismatch,
    UnknownColumn,
)


@contextmanager
def nothing_half_written(world: World) -> Iterator[None]:
    """Catalog, manifests, files, errors and what readers see are as before."""

    def state() -> Any:
        objects = world.objects
        stored = {info.key: objects.store.get(info.key) for info in objects.store.list(objects.folder)}
        kept = {key: data for key, data in stored.items() if "/checkpoints/" not in key and "/files/" not in key}
        return kept, world.dataset.to_arrow().to_pydict()

    before = state()
    yield
    assert state() == before
    assert world.dataset.verify().problems == ()


def array_udf(function: Callable[[pa.Array], Any], returns: Any = "int64", **options: Any) -> fm.Udf:
    def f(v: pa.Array) -> pa.Array:
        return function(v)

    return fm.udf(returns=returns, version="bad", **options)(f)


# What a function returns


def too_short(v: pa.Array) -> Any:
    return v.slice(1)


def too_long(v: pa.Array) -> Any:
    return pa.concat_arrays([v, v])


def of_texts(v: pa.Array) -> Any:
    return pa.array(["one" if i == 5 else str(i) for i in v.to_pylist()])


def with_a_fraction(v: pa.Array) -> Any:
    return pa.array([i + 0.5 if i in (6, 7) else float(i) for i in v.to_pylist()])


def nothing(v: pa.Array) -> Any:
    return None


def a_list(v: pa.Array) -> Any:
    return v.to_pylist()


def too_large(v: pa.Array) -> Any:
    return pa.array([2**40 if i == 4 else i for i in v.to_pylist()], pa.int64())


def with_a_null(v: pa.Array) -> Any:
    return pa.array([None if i in (2, 5) else i for i in v.to_pylist()], pa.int64())


RESULTS = {
    "wrong length, too short": (too_short, {}, ()),
    "wrong length, too long": (too_long, {}, ()),
    "wrong type, text": (of_texts, {}, (0,)),
    "wrong type, fractions": (with_a_fraction, {}, (6, 7)),
    "wrong type, nothing": (nothing, {}, ()),
    "wrong type, no array": (a_list, {}, ()),
    "wrong type, too large": (too_large, {"returns": "int32"}, (4,)),
    "null where none is allowed": (with_a_null, {"nullable": False}, (2,)),
}


@pytest.mark.parametrize("case", RESULTS)
def test_bad_result_is_reported_with_its_range_and_first_rows(case, world: World):
    function, options, offenders = RESULTS[case]
    world.write(range(FRAGMENT_ROWS))
    udf = array_udf(function, **options)
    world.dataset.add_column("a", udf, fragment_rows=FRAGMENT_ROWS)
    with nothing_half_written(world), pytest.raises(BadResult) as refused:
        world.dataset.backfill("a", udf=udf, checkpoint_size=4, min_checkpoint_size=4)
    error = refused.value
    assert error.column == "a"
    assert (error.start, error.end) == ((0, 4) if not offenders or offenders[0] < 4 else (4, 8))
    assert error.offsets[: len(offenders)] == offenders
    assert "'a'" in str(error)
    assert f"[{error.start}, {error.end})" in str(error)


def test_scalar_function_that_returns_a_wrong_type_is_reported_with_the_row(world: World):
    def f(v: int) -> Any:
        return "eleven" if v == 11 else v

    world.write(range(20))
    udf = fm.udf(returns="int64", version="1")(f)
    world.dataset.add_column("a", udf, fragment_rows=FRAGMENT_ROWS)
    with nothing_half_written(world), pytest.raises(BadResult, match="'eleven'") as refused:
        world.dataset.backfill("a", udf=udf)
    assert refused.value.offsets == (11,)


def test_column_that_was_fine_stays_as_it_was_when_its_new_function_returns_nonsense(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    new = array_udf(too_short)
    world.dataset.alter_column("a", new)
    with nothing_half_written(world), pytest.raises(BadResult):
        world.dataset.backfill("a", udf=new)
    world.alter(HUNDREDFOLD)
    world.backfill()
    assert world.values() == {i: i * 100 for i in range(20)}


def test_function_that_raises_is_reported_with_the_row_and_its_error(world: World):
    def f(v: int) -> int:
        return 1 // (v - 13)

    world.write(range(20))
    udf = fm.udf(returns="int64", version="1")(f)
    world.dataset.add_column("a", udf, fragment_rows=FRAGMENT_ROWS)
    with nothing_half_written(world), pytest.raises(FunctionFailed, match="ZeroDivisionError") as failed:
        world.dataset.backfill("a", udf=udf)
    error = failed.value
    assert error.offsets == (13,)
    assert error.start <= 13 < error.end
    assert error.error_type == "ZeroDivisionError"
    assert "1 // (v - 13)" in error.traceback
    assert "on_error" in error.hint


# What a column is made of


def test_unknown_input_is_refused_with_the_name_that_was_meant(world: World):
    def f(vv: pa.Array) -> pa.Array:
        return vv

    world.write(range(3))
    udf = fm.udf(returns="int64", version="1")(f)
    with nothing_half_written(world), pytest.raises(UnknownColumn, match="'vv'") as refused:
        world.dataset.add_column("a", udf)
    assert "'v'" in refused.value.hint
    with nothing_half_written(world), pytest.raises(UnknownColumn, match="'w'"):
        world.dataset.add_column("a", udf, ["w"])
    assert world.dataset.columns() == []


def test_altering_to_an_unknown_input_leaves_the_column_as_it_was(world: World):
    world.write(range(3))
    world.add()
    world.backfill()
    with nothing_half_written(world), pytest.raises(UnknownColumn):
        world.dataset.alter_column("a", HUNDREDFOLD.udf(world.calls), [OFFSET, "nothing"])
    assert world.backfill().called == 0


def test_column_cannot_be_computed_from_itself(world: World):
    world.write(range(3))
    world.add()
    world.add(Plan("b", "1", ("a",), lambda a: a), "b")
    with nothing_half_written(world), pytest.raises(DerivationError):
        world.dataset.alter_column("a", HUNDREDFOLD.udf(world.calls), [OFFSET, "b"])
    with nothing_half_written(world), pytest.raises(DerivationError):
        world.dataset.add_column("c", HUNDREDFOLD.udf(world.calls), [OFFSET, "c"])


def test_column_that_others_are_computed_from_cannot_be_dropped(world: World):
    world.write(range(3))
    world.add()
    world.add(Plan("b", "1", ("a",), lambda a: a), "b")
    with nothing_half_written(world), pytest.raises(DerivationError, match="'b'"):
        world.dataset.drop_column("a")


@pytest.mark.parametrize("name", ["id", "V", "a", "A", "offset", "op", "system_time"])
def test_name_that_exists_is_refused(name, world: World):
    world.write(range(3))
    world.add()
    with nothing_half_written(world), pytest.raises(ColumnExists, match=name.lower()):
        world.dataset.add_column(name, HUNDREDFOLD.udf(world.calls))


def test_base_column_with_the_name_of_a_computed_one_is_refused(world: World):
    world.write(range(3))
    world.add()
    with nothing_half_written(world), pytest.raises(ColumnExists):
        world.dataset.evolve({"A": "string"})


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 300, 'quo"te', "../../etc", "ü_range-0-5"])
def test_odd_name_is_refused_or_works(name, world: World):
    """A name may be anything that a column can be called; it never becomes a path."""
    world.write(range(3))
    udf = TENFOLD.udf(world.calls)
    try:
        with nothing_half_written(world):
            world.dataset.add_column(name, udf)
            raise AssertionError("added")
    except fm.FloodmarkError:
        return
    except AssertionError:
        world.dataset.backfill(name, udf=udf)
    assert world.dataset.to_arrow()[name].to_pylist() == [0, 10, 20]
    assert world.dataset.verify().problems == ()


def test_function_that_cannot_be_sent_to_a_worker_is_refused_when_it_is_added(world: World):
    lock = threading.Lock()

    def f(v: pa.Array) -> pa.Array:
        with lock:
            return v

    world.write(range(3))
    udf = fm.udf(returns="int64", version="1")(f)
    with nothing_half_written(world), pytest.raises(BadFunction, match="lock") as refused:
        world.dataset.add_column("a", udf)
    assert "inside the function" in refused.value.hint
    world.add()
    with nothing_half_written(world), pytest.raises(BadFunction):
        world.dataset.alter_column("a", udf)


def test_type_that_differs_from_the_columns_is_refused(world: World):
    world.write(range(3))
    world.add()
    with nothing_half_written(world), pytest.raises(TypeMismatch, match="string"):
        world.dataset.alter_column("a", array_udf(of_texts, "string"))


def test_what_is_no_function_is_refused(world: World):
    world.write(range(3))
    with nothing_half_written(world), pytest.raises(TypeError, match="udf"):
        world.dataset.add_column("a", len)  # type: ignore[arg-type]
    with pytest.raises(BadFunction, match="returns"):
        fm.udf()(len)


# Backfills


@pytest.mark.slow
@pytest.mark.parametrize("where", ["v >", "v = 'x' and", "nothing = 1", "1; drop table d", pc.field("nothing") > 1])
def test_filter_that_does_not_parse_is_refused(where, world: World):
    world.write(range(20))
    world.add()
    world.backfill(where="v < 3")
    world.calls.forget()
    with nothing_half_written(world), pytest.raises(BadQuery):
        world.backfill_only(where=where)
    with nothing_half_written(world), pytest.raises(BadQuery):
        world.dataset.plan_backfill("a", where=where)
    assert world.calls.offsets() == []


SIZES: list[dict[str, int]] = [
    {"min_checkpoint_size": 5, "max_checkpoint_size": 4},
    {"min_checkpoint_size": 5, "checkpoint_size": 4},
    {"min_checkpoint_size": 0},
    {"max_checkpoint_size": 0},
    {"checkpoint_size": -1},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_checkpoint_sizes_that_make_no_sense_are_refused(sizes, world: World):
    world.write(range(20))
    world.add()
    with nothing_half_written(world), pytest.raises(BadOption):
        world.backfill_only(**sizes)
    assert world.calls.offsets() == []


def test_smallest_checkpoint_above_the_largest_is_refused_with_the_function():
    with pytest.raises(BadOption, match="above"):
        TENFOLD.udf(None, min_checkpoint_size=5, max_checkpoint_size=4)  # type: ignore[arg-type]


def test_smallest_checkpoint_of_the_call_wins_over_the_functions_largest(world: World):
    world.write(range(20))
    world.add(max_checkpoint_size=4)
    assert world.backfill(min_checkpoint_size=5).computed == 20


@pytest.mark.parametrize("options", [{"task_size": 0}, {"task_size": -3}, {"commit_granularity": 0}], ids=str)
def test_other_sizes_that_make_no_sense_are_refused(options, world: World):
    world.write(range(20))
    world.add()
    with nothing_half_written(world), pytest.raises((fm.FloodmarkError, ValueError)):
        world.backfill_only(**options)
    assert world.calls.offsets() == []


@pytest.mark.parametrize("rows", [0, -1, 2**40])
def test_fragments_that_make_no_sense_are_refused(rows, world: World):
    world.write(range(3))
    with nothing_half_written(world), pytest.raises(BadOption):
        world.dataset.add_column("a", TENFOLD.udf(world.calls), fragment_rows=rows)


def test_fragments_of_a_second_size_are_refused(world: World):
    world.write(range(3))
    world.add()
    with nothing_half_written(world), pytest.raises(BadOption):
        world.dataset.add_column("b", TENFOLD.udf(world.calls), fragment_rows=FRAGMENT_ROWS + 1)


@pytest.mark.parametrize("call", ["backfill", "plan_backfill", "drop_column", "column_errors"])
def test_unknown_column_is_refused_with_the_name_that_was_meant(call, world: World):
    world.write(range(3))
    world.add(name="brightness")
    with nothing_half_written(world), pytest.raises(UnknownColumn) as refused:
        getattr(world.dataset, call)("brightnes")
    assert "'brightness'" in refused.value.hint


def test_function_of_another_version_is_refused(world: World):
    world.write(range(3))
    world.add()
    with nothing_half_written(world), pytest.raises(BadFunction, match="version"):
        world.dataset.backfill("a", udf=HUNDREDFOLD.udf(world.calls))
    assert world.calls.offsets() == []


def test_column_of_a_dataset_without_a_schema_is_refused(world: World):
    empty = world.lake.create("empty")
    with pytest.raises(fm.FloodmarkError):
        empty.add_column("a", TENFOLD.udf(world.calls))

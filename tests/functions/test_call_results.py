"""What a function returns is held against its output: what never can be right ends the run, the rest fails its keys."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import BadResult, BadStep
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import Hashes
from functions.calling import call, chunk_of, ids, output, pairs
from profiles import examples

X = {"id": pa.int64(), "x": pa.float64()}


def returning(frame):
    return lambda df: frame(df) if callable(frame) else frame


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned nothing for 'out', not a frame"),
        (3, "returned a value of type int for 'out', not a frame"),
        ({"id": [1]}, "returned a value of type dict"),
        (lambda df: df["x"], "returned a value of type pandas.core.series.Series"),
        (lambda df: pl.from_pandas(df)["x"], "returned a value of type polars.series.series.Series"),
        (lambda df: (df, df), "returned 2, not 1 frame"),
        ((), "returned 0, not 1 frame"),
        (lambda df: df.drop(columns="id"), "lacks the column 'id'"),
        (lambda df: df.drop(columns="x"), "lacks columns of the dataset: 'x'"),
        (lambda df: df.assign(y=1), "has columns the dataset lacks: 'y'"),
        (lambda df: df.head(0)[["id"]], "lacks columns of the dataset: 'x'"),
        (lambda df: df.rename(columns={"x": 7}), "has the column name 7"),
        (lambda df: pd.concat([df, df[["x"]]], axis=1), "two columns named 'x'"),
        (lambda df: pa.Table.from_arrays([pa.array([1])] * 3, ["id", "x", "x"]), "two columns named 'x'"),
        (lambda df: df.set_index(["id", "x"]), "rows but no columns"),
        (lambda df: df.assign(offset=1), "system columns"),
    ],
)
def test_result_that_never_can_be_right_is_refused_after_one_call(result, says: str):
    calls = []

    def function(df):
        calls.append(1)
        return returning(result)(df)

    with pytest.raises(BadResult, match=says):
        call(function, ids(8), output(X))
    assert len(calls) == 1


def test_key_column_that_is_the_index_gets_a_hint():
    with pytest.raises(BadResult, match=r"reset_index.*'id' is the index"):
        call(lambda df: df.set_index("id"), ids(3), output(X))
    with pytest.raises(BadResult, match=r"reset_index"):
        call(lambda df: df.groupby("id").agg({"x": "sum"}), ids(3), output(None))


def test_two_columns_of_one_name_are_refused_before_the_columns_are_decided():
    with pytest.raises(BadResult, match="two columns named 'x'"):
        call(lambda df: pd.concat([df, df[["x"]]], axis=1), ids(3), output(None))


def test_output_with_another_type_for_a_transform_key_is_refused():
    with pytest.raises(BadStep, match="'id' is int64, but the output 'out' has int32"):
        output({"id": pa.int32(), "x": pa.float64()})
    with pytest.raises(BadStep, match="no such column"):
        output({"x": pa.float64()})


def test_own_key_is_hashed_even_when_the_transform_keys_come_back_as_they_were():
    called = call(lambda df: df.assign(n=1), ids(3), output(None, key=("id", "n")))
    assert pairs(called.hashes[0]) == pairs(ids(3).hashes)
    assert pairs(called.key_hashes[0]) == pairs(hash_rows(called.rows[0], ["id", "n"])) != pairs(called.hashes[0])


def test_misspelt_column_gets_a_hint():
    with pytest.raises(BadResult, match=r"did you mean 'x'"):
        call(lambda df: df.rename(columns={"x": "xx"}), ids(3), output(X))


def test_row_index_and_order_of_columns_do_not_matter():
    def shuffled(df):
        return df.sample(frac=1, random_state=1)[["x", "id"]]

    called = call(shuffled, ids(10), output(X))
    assert called.rows[0].column_names == ["id", "x"]
    assert called.rows[0].sort_by("id").equals(ids(10).frames[0])
    assert pairs(called.hashes[0]) == pairs(hash_rows(called.rows[0], ["id"]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "empty",
    [
        lambda df: pd.DataFrame(),
        lambda df: df.head(0),
        lambda df: pd.DataFrame(columns=["x", "id"]),
        lambda df: pa.table({}),
        lambda df: pa.table({"id": pa.nulls(0), "x": pa.nulls(0)}),
        lambda df: pl.DataFrame(),
        lambda df: pl.DataFrame(schema=["id", "x"]),
    ],
)
def test_no_rows_need_no_types(empty, known: bool):
    called = call(empty, ids(3), output(X if known else None))
    assert (called.rows[0].num_rows, called.failed.num_rows, called.calls) == (0, 0, 1)
    assert called.rows[0].schema.field("id").type == pa.int64()
    assert len(called.hashes[0]) == len(called.key_hashes[0]) == 0


def failing(function, *outputs, count: int = 8):
    called = call(function, ids(count), *outputs)
    return called, {row["id"]: row for row in called.failed.to_pylist()}


def test_value_that_does_not_fit_fails_its_key_alone():
    def odd(df):
        return df.assign(x=[1.5 if key == 3 else float(key) for key in df["id"]])

    called, failed = failing(odd, output({"id": pa.int64(), "x": pa.int64()}))
    assert list(failed) == [3]
    assert "'x'" in failed[3]["message"]
    assert failed[3]["type"].endswith("UnfitRows")
    assert called.rows[0].column("x").to_pylist() == [0, 1, 2, 4, 5, 6, 7]


def test_mixed_python_objects_fail_the_key_they_belong_to():
    def mixed(df):
        return df.assign(x=["text" if key == 2 else float(key) for key in df["id"]])

    _, failed = failing(mixed, output(X))
    assert list(failed) == [2]
    assert "string" in failed[2]["message"]


def test_row_twice_fails_its_key_and_says_which():
    def twice(df):
        return pd.concat([df, df[df["id"] == 5]])

    called, failed = failing(twice, output(X))
    assert list(failed) == [5]
    assert "id=5" in failed[5]["message"]
    assert called.rows[0].num_rows == 7


def test_output_key_twice_within_a_transform_key_says_which():
    def several(df):
        made = df.loc[df.index.repeat(3)].assign(n=np.tile([0, 1, 2], len(df)))
        return made.assign(n=made["n"].where(made["id"] != 4, 1))

    columns = {"id": pa.int64(), "n": pa.int64(), "x": pa.float64()}
    called, failed = failing(several, output(columns, key=("id", "n")))
    assert list(failed) == [4]
    assert "id=4, n=1" in failed[4]["message"]
    assert called.rows[0].num_rows == 21
    assert pairs(called.key_hashes[0]) == pairs(hash_rows(called.rows[0], ["id", "n"]))
    assert pairs(called.hashes[0]) == pairs(hash_rows(called.rows[0], ["id"]))


def test_key_outside_the_chunk_fails_the_key_that_brought_it():
    def stray(df):
        return df.assign(id=df["id"].replace(6, 60))

    called, failed = failing(stray, output(X))
    assert list(failed) == [6]
    assert "id=60" in failed[6]["message"]
    assert called.rows[0].column("id").to_pylist() == [0, 1, 2, 3, 4, 5, 7]


def test_null_in_an_output_key_fails_its_key():
    def holes(df):
        return df.assign(n=[None if key == 1 else "a" for key in df["id"]])

    columns = {"id": pa.int64(), "n": pa.string(), "x": pa.float64()}
    _, failed = failing(holes, output(columns, key=("id", "n")))
    assert list(failed) == [1]
    assert "'n'" in failed[1]["message"]


def test_null_transform_key_is_a_key_like_any_other():
    chunk = chunk_of({"id": pa.array([1, None, 2]), "x": [0.5, 1.0, 1.5]})
    called = call(lambda df: df, chunk, output(X))
    assert called.rows[0].column("id").to_pylist() == [1, None, 2]
    assert called.failed.num_rows == 0
    with_stray = call(lambda df: df.assign(id=None), ids(2), output(X))
    assert with_stray.failed.num_rows == 2


def test_row_without_event_time_fails_its_key():
    columns = {"id": pa.int64(), "at": pa.timestamp("us")}

    def timed(df):
        return pd.DataFrame({"id": df["id"], "at": pd.to_datetime(df["id"].where(df["id"] != 2), unit="s")})

    _, failed = failing(timed, output(columns, event_time="at"))
    assert list(failed) == [2]
    with pytest.raises(BadResult, match="lacks the column 'at'"):
        call(lambda df: df, ids(2), output(None, event_time="at"))


def test_several_outputs_are_checked_each_and_succeed_together():
    def two(df):
        return df, df[["id"]].assign(y=["1" if k == 2 else 1 for k in df["id"]])

    y = output({"id": pa.int64(), "y": pa.int64()}, name="ys")
    called, failed = failing(two, output(X), y)
    assert list(failed) == [2]
    assert [rows.num_rows for rows in called.rows] == [7, 7]  # a key has all of its results or none
    with pytest.raises(BadResult, match="'ys' has columns the dataset lacks"):
        call(lambda df: [df, df.assign(y=1)], ids(2), output(X), y)


def test_transform_keys_take_their_types_whatever_the_frame_makes_of_them():
    keys = pa.schema([pa.field("id", pa.int32()), pa.field("k", pa.string())])
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "k": ["a", "b"]})
    for layout in (None, {"id": pa.int32(), "k": pa.string()}):
        called = call(
            lambda df: pl.from_pandas(df.astype({"id": "float64", "k": "category"})),
            chunk_of(table, ["id", "k"]),
            output(layout, key=("id", "k"), keys=keys),
        )
        assert called.rows[0].cast(table.schema).equals(table)
        assert pairs(called.hashes[0]) == pairs(hash_rows(table, ["id", "k"]))


def test_first_result_in_parts_of_different_types_is_put_together():
    def odd(df):
        if (df["id"] == 0).any() and len(df) > 1:
            raise ValueError
        return df.assign(note=[None if key == 0 else "a" for key in df["id"]])

    called = call(odd, ids(4), output(None))
    assert called.rows[0].sort_by("id").column("note").to_pylist() == [None, "a", "a", "a"]


def test_key_hashes_of_a_first_result_are_of_the_type_that_all_parts_have():
    def halves(df):
        if len(df) > 1:
            raise ValueError
        return df.assign(n=[1 if key == 0 else 1.5 for key in df["id"]])

    called = call(halves, ids(2), output(None, key=("id", "n")))
    assert called.rows[0].schema.field("n").type == pa.float64()
    assert pairs(called.key_hashes[0]) == pairs(hash_rows(called.rows[0], ["id", "n"]))


def test_struct_member_that_no_row_of_the_chunk_has_is_null():
    columns = {"id": pa.int64(), "s": pa.struct([("a", pa.int64()), ("b", pa.string())])}
    called = call(lambda df: pd.DataFrame({"id": df["id"], "s": [{"a": 1}, None]}), ids(2), output(columns))
    assert called.rows[0].column("s").to_pylist() == [{"a": 1, "b": None}, None]


@settings(max_examples=examples(20))
@given(
    st.lists(
        st.lists(st.tuples(st.booleans() | st.just(True), st.sampled_from([0, 1, None])), max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_exactly_the_keys_with_wrong_rows_fail(answers: list[list[tuple[bool, int | None]]], known: bool):
    def answer(df):
        # A row is of its own key or of one that nobody has, with a value for the rest of the output's key or without.
        rows = [(key if own else key + 1000, n) for key in df["id"] for own, n in answers[key]]
        return pd.DataFrame(rows, columns=["id", "n"]).sample(frac=1, random_state=len(df))

    columns = {"id": pa.int64(), "n": pa.int64()} if known else None
    called = call(answer, ids(len(answers)), output(columns, key=("id", "n")))
    good = {
        key
        for key, rows in enumerate(answers)
        if all(own and n is not None for own, n in rows) and len(set(rows)) == len(rows)
    }
    wanted = sorted((key, n) for key in good for _, n in answers[key])
    got = called.rows[0].to_pylist()
    assert sorted((row["id"], row["n"]) for row in got) == wanted
    assert sorted(called.failed.column("id").to_pylist()) == sorted(set(range(len(answers))) - good)
    if got:
        assert pairs(called.hashes[0]) == pairs(hash_rows(called.rows[0], ["id"]))
        assert pairs(called.key_hashes[0]) == pairs(hash_rows(called.rows[0], ["id", "n"]))


def test_hashes_are_found_like_a_dict_finds_them_even_when_first_halves_meet():
    random = np.random.default_rng(7)
    for _ in range(50):
        pool = Hashes(*random.integers(0, 4, (2, 16)).astype(np.uint64))
        among = pool.take(pool.first_positions())
        asked = Hashes(*random.integers(0, 5, (2, 12)).astype(np.uint64))
        places = {pair: i for i, pair in enumerate(pairs(among))}
        assert asked.positions_in(among).tolist() == [places.get(pair, -1) for pair in pairs(asked)]
        assert asked.repeated().tolist() == [i for i, p in enumerate(pairs(asked)) if p in pairs(asked)[:i]]
    assert asked.positions_in(Hashes.joined([])).tolist() == [-1] * 12

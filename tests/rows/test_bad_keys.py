"""Bad input to keyed datasets: refused before anything is written, by an error that names the key or the column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark.errors import (
    BadColumnName,
    BadData,
    BadPrimaryKey,
    DatasetExists,
    DuplicateKeys,
    MissingColumns,
    TypeMismatch,
)
from ledger.worlds import untouched
from rows.twins import Twin

SCHEMA = {"id": pa.int64(), "x": pa.string()}
KEYED = ["ledger", "snapshot", "changelog", "upsert"]


def twin_of(lake, kind, rows=(1, 2)):
    made = Twin(lake, SCHEMA, kind, ["id"])
    made.write([{"id": i, "x": "x", **({"op": 0} if kind == "changelog" else {})} for i in rows])
    return made


def with_op(kind: str, table: pa.Table, op: int = 0) -> pa.Table:
    return table.append_column("op", pa.array([op] * len(table), pa.int32())) if kind == "changelog" else table


# Duplicates


@pytest.mark.parametrize("kind", ["ledger", "snapshot"])
def test_duplicates_are_refused_with_their_keys(lake, kind):
    twin = twin_of(lake, kind)
    rows = pa.table({"id": [5, 6, 5, 7, 6], "x": list("abcde")})
    with untouched(twin.dataset), pytest.raises(DuplicateKeys, match="5") as caught:
        twin.dataset.write(rows)
    assert sorted(key["id"] for key in caught.value.keys) == [5, 6]
    assert caught.value.hint
    twin.check_all()


@pytest.mark.parametrize("kind", ["ledger", "snapshot"])
def test_duplicates_are_refused_even_if_they_are_the_same_row(lake, kind):
    twin = twin_of(lake, kind)
    with untouched(twin.dataset), pytest.raises(DuplicateKeys):
        twin.dataset.write(pa.table({"id": [1, 1], "x": ["x", "x"]}))


def test_duplicates_of_a_ledger_are_refused_even_if_the_key_was_seen(lake):
    twin = twin_of(lake, "ledger")
    with untouched(twin.dataset), pytest.raises(DuplicateKeys):
        twin.dataset.write(pa.table({"id": [1, 1, 3], "x": ["x", "y", "z"]}))


@pytest.mark.parametrize("kind", ["ledger", "snapshot"])
def test_duplicates_in_a_first_write_leave_the_dataset_as_it_was(lake, kind):
    dataset = lake.create("d", key=["id"], merge=kind)
    with untouched(dataset), pytest.raises(DuplicateKeys):
        dataset.write(pa.table({"id": [1, 1]}))
    assert dataset.schema is None


def test_many_duplicates_make_no_endless_message(lake):
    twin = twin_of(lake, "snapshot")
    with pytest.raises(DuplicateKeys) as caught:
        twin.dataset.write(pa.table({"id": [*range(1000)] * 2, "x": ["x"] * 2000}))
    assert len(caught.value.message) < 1000


def test_last_row_of_a_key_wins_in_an_upsert_and_the_commit_says_so(lake):
    twin = twin_of(lake, "upsert")
    commit = twin.write([{"id": 1, "x": "b"}, {"id": 3, "x": "c"}, {"id": 1, "x": "d"}, {"id": 3, "x": None}])
    assert (commit.duplicates, commit.changed, commit.new, commit.rows) == (2, 1, 1, 3)
    assert twin.dataset.to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "x": "d"},
        {"id": 2, "x": "x"},
        {"id": 3, "x": None},
    ]
    twin.check_all()


def test_last_row_wins_even_if_it_is_what_is_there(lake):
    twin = twin_of(lake, "upsert")
    commit = twin.write([{"id": 1, "x": "b"}, {"id": 1, "x": "x"}])
    assert (commit.duplicates, commit.unchanged, commit.rows) == (1, 1, 0)


def test_last_row_wins_across_files(lake, tmp_path):
    """Files are read in the order of their names."""
    for number, x in enumerate("abc"):
        (tmp_path / f"{number}.csv").write_text(f"id,x\n1,{x}\n{number},{x}\n")
    twin = twin_of(lake, "upsert", rows=(9,))
    commit = twin.dataset.write(tmp_path / "*.csv")
    assert commit.duplicates == 3
    assert twin.dataset.get([0, 1, 2]).sort_by("id").to_pylist() == [
        {"id": 0, "x": "a"},
        {"id": 1, "x": "c"},
        {"id": 2, "x": "c"},
    ]


def test_last_row_wins_across_batches_of_a_stream(lake):
    twin = twin_of(lake, "upsert")
    batches = [pa.record_batch({"id": [1, i], "x": [f"{i}", f"{i}"]}) for i in range(5, 9)]
    commit = twin.dataset.write(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
    assert commit.duplicates == 3
    assert twin.dataset.get([1])["x"].to_pylist() == ["8"]


# Nulls and types of key columns


@pytest.mark.parametrize("kind", KEYED)
def test_null_in_a_key_is_refused(lake, kind):
    twin = twin_of(lake, kind)
    rows = with_op(kind, pa.table({"id": [7, None], "x": ["a", "b"]}))
    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match="id") as caught:
        twin.dataset.write(rows)
    assert caught.value.column == "id"
    twin.check_all()


@pytest.mark.parametrize("kind", KEYED)
def test_null_in_a_part_of_a_key_is_refused_with_the_part(lake, kind):
    dataset = lake.create("d", key=["g", "id"], merge=kind)
    rows = with_op(kind, pa.table({"g": ["a", "b"], "id": pa.array([1, None], pa.int64())}))
    with untouched(dataset), pytest.raises(BadPrimaryKey, match="id") as caught:
        dataset.write(rows)
    assert caught.value.column == "id"


def test_nan_beside_integer_keys_is_a_null_key(lake):
    twin = twin_of(lake, "upsert")
    import pandas as pd

    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match="id"):
        twin.dataset.write(pd.DataFrame({"id": [3, None], "x": ["a", "b"]}))


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize(
    "ids", [pa.array(["3", "4"]), pa.array([3.5, 4.0]), pa.array([True, False]), pa.array([b"3", b"4"])]
)
def test_key_column_that_changes_type_is_refused(lake, kind, ids):
    twin = twin_of(lake, kind)
    with untouched(twin.dataset), pytest.raises(TypeMismatch, match="id") as caught:
        twin.dataset.write(with_op(kind, pa.table({"id": ids, "x": ["a", "b"]})))
    assert caught.value.column == "id"
    twin.check_all()


@pytest.mark.parametrize("kind", KEYED)
def test_key_column_that_is_missing_is_refused(lake, kind):
    twin = twin_of(lake, kind)
    with untouched(twin.dataset), pytest.raises(MissingColumns, match="id"):
        twin.dataset.write(with_op(kind, pa.table({"x": ["a"]})))
    first = lake.create("e", key=["id"], merge=kind)
    with untouched(first), pytest.raises(BadData, match="id"):
        first.write(with_op(kind, pa.table({"x": ["a"]})))


# Declaring


@pytest.mark.parametrize(
    "declared",
    [
        {"merge": "upsert"},
        {"merge": "append", "key": ["id"]},
        {"merge": "replace", "key": ["id"]},
        {"key": ["id", "id"]},
        {"key": ["id"], "compare": ["x"], "merge": "upsert"},
        {"key": ["g", "id"], "lookup": ["id"]},
        {"lookup": ["id"]},
        {"key": ["nowhere"], "schema": SCHEMA},
        {"key": ["id"], "merge": "snapshot", "compare": ["nowhere"], "schema": SCHEMA},
        {"key": ["op"]},
        {"key": ["offset"]},
        {"key": [""]},
    ],
    ids=repr,
)
def test_key_that_makes_no_sense_is_refused_when_it_is_declared(lake, declared):
    with pytest.raises(BadData) as caught:
        lake.create("d", **declared)
    assert caught.value.hint
    assert lake.datasets() == []


def test_key_given_as_text_is_one_column(lake):
    dataset = lake.create("d", key="id")
    assert dataset.write(pa.table({"id": [1, 1]})).duplicates == 1


def test_dataset_that_exists_with_another_key_is_not_opened_as_if_it_were_this_one(lake):
    lake.create("d", key=["id"], merge="upsert")
    assert lake.create("d", key=["id"], merge="upsert", exist_ok=True).name == "d"
    assert lake.create("d", exist_ok=True).name == "d"
    for declared in ({"key": ["x"]}, {"key": ["id"], "merge": "ledger"}):
        with pytest.raises(DatasetExists):
            lake.create("d", exist_ok=True, **declared)


# Operations


@pytest.mark.parametrize("op", [-1, 4, 255])
def test_operation_outside_of_0_to_3_is_refused(lake, op):
    twin = twin_of(lake, "changelog")
    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match=str(op)):
        twin.dataset.write(pa.table({"id": [5, 6], "x": ["a", "b"], "op": [0, op]}))
    twin.check_all()


@pytest.mark.parametrize("ops", [pa.array([0, None], pa.int32()), pa.array(["+A", "-R"]), pa.array([0.5, 1.0])])
def test_operation_that_is_no_number_is_refused(lake, ops):
    twin = twin_of(lake, "changelog")
    with untouched(twin.dataset), pytest.raises((BadPrimaryKey, TypeMismatch), match="op"):
        twin.dataset.write(pa.table({"id": [5, 6], "x": ["a", "b"], "op": ops}))


@pytest.mark.parametrize("of", [pa.int8(), pa.uint8(), pa.int64()])
def test_operation_may_have_any_type_of_integer(lake, of):
    twin = twin_of(lake, "changelog")
    commit = twin.dataset.write(pa.table({"id": [1, 5], "x": ["x", "b"], "op": pa.array([1, 0], of)}))
    assert (commit.retracted, commit.new) == (1, 1)


def test_changelog_without_operations_is_refused(lake):
    twin = twin_of(lake, "changelog")
    with untouched(twin.dataset), pytest.raises((BadPrimaryKey, MissingColumns), match="op"):
        twin.dataset.write(pa.table({"id": [5], "x": ["a"]}))


@pytest.mark.parametrize(
    ("kind", "method"),
    [*((kind, "write") for kind in ("append", "ledger", "snapshot", "upsert")), ("upsert", "store_chunk")],
)
def test_column_op_is_reserved_unless_the_dataset_is_a_changelog(lake, kind, method):
    """Orders with a column `op` of 1, 2 and 0 once became one row of three."""
    orders = pa.table({"id": [1, 2, 3], "op": [1, 2, 0], "px": [10, 20, 30]})
    first = lake.create("first", key=None if kind == "append" else ["id"], merge=kind)
    later = lake.create("later", key=None if kind == "append" else ["id"], merge=kind)
    later.write(orders.drop_columns(["op"]))
    for dataset in (first, later):
        with untouched(dataset), pytest.raises(BadColumnName, match="'op'"):
            getattr(dataset, method)(orders)


def test_column_op_of_an_upsert_is_data_if_the_system_column_has_another_name(lake):
    orders = pa.table({"id": [1, 2, 3], "op": [1, 2, 0], "px": [10, 20, 30]})
    dataset = lake.create("orders", key="id", vocab={"op": "_op"})
    assert dataset.write(orders).new == 3
    assert dataset.store_chunk(orders, processed_idx=orders.select(["id"])).unchanged == 3
    assert dataset.to_arrow().to_pylist() == orders.to_pylist()
    assert dataset.delete([2]).retracted == 1
    assert dataset.to_arrow()["op"].to_pylist() == [1, 0]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(1, 9, "x")], id="a retraction of an unknown key"),
        pytest.param([(1, 1, "y")], id="a retraction of another row"),
        pytest.param([(1, 1, None)], id="a retraction of a null"),
        pytest.param([(2, 1, "y"), (3, 1, "z")], id="a correction of another row"),
        pytest.param([(2, 9, "x"), (3, 9, "y")], id="a correction of an unknown key"),
        pytest.param([(2, 1, "x")], id="half a correction"),
        pytest.param([(2, 1, "x"), (1, 1, "x")], id="half a correction, then a retraction"),
        pytest.param([(2, 1, "x"), (0, 1, "y")], id="half a correction, then an addition"),
        pytest.param([(3, 1, "y")], id="the other half of a correction"),
        pytest.param([(3, 9, "y")], id="the other half of a correction of an unknown key"),
        pytest.param([(0, 1, "y")], id="an addition of a key that is there"),
        pytest.param([(0, 9, "y"), (0, 9, "y")], id="two additions"),
        pytest.param([(1, 1, "x"), (1, 1, "x")], id="two retractions"),
        pytest.param([(1, 1, "x"), (3, 1, "y")], id="a retraction, then half a correction"),
        pytest.param([(3, 1, "y"), (2, 1, "x")], id="a correction the wrong way around"),
        pytest.param([(0, 5, "y"), (1, 5, "z")], id="a retraction of what was not added"),
    ],
)
def test_changelog_that_contradicts_the_dataset_is_refused_with_the_key(lake, rows):
    twin = twin_of(lake, "changelog")
    table = pa.table(
        {
            "op": [op for op, _, _ in rows],
            "id": [i for _, i, _ in rows],
            "x": pa.array([x for *_, x in rows], pa.string()),
        }
    )
    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match=str(rows[-1][1])) as caught:
        twin.dataset.write(table)
    assert caught.value.hint
    twin.check_all()


def test_one_contradiction_refuses_the_whole_changelog(lake):
    twin = twin_of(lake, "changelog")
    assert twin.write([{"op": 0, "id": 5, "x": "a"}, {"op": 1, "id": 6, "x": "a"}]) is None
    twin.check_all()


def test_changelog_that_fits_is_passed_through(lake):
    twin = twin_of(lake, "changelog")
    commit = twin.write(
        [
            {"op": 2, "id": 1, "x": "x"},
            {"op": 0, "id": 5, "x": "a"},
            {"op": 3, "id": 1, "x": "y"},
            {"op": 1, "id": 2, "x": "x"},
            {"op": 1, "id": 1, "x": "y"},
            {"op": 0, "id": 1, "x": "z"},
        ]
    )
    assert (commit.new, commit.changed, commit.retracted, commit.rows) == (2, 1, 2, 6)
    twin.check_all()
    assert twin.dataset.verify().ok


def test_empty_snapshot_retracts_everything(lake):
    twin = twin_of(lake, "snapshot")
    assert twin.write([]).retracted == 2
    twin.check_all()
    assert twin.write([{"id": 1, "x": "x"}]).new == 1
    twin.check_all()

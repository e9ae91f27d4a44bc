"""The list of rows that a view's functions failed for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodmark.columns import row_errors
from floodmark.errors import BadMeta
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.local import LocalStore
from floodmark.views import functions
from floodmark.views.commit import discard_files
from floodmark.views.functions import Failures


def errors(*offsets: int) -> pa.Table:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"offset": n, "type": "ValueError", "message": f"of {n}", "attempts": 1, "at": at} for n in offsets]
    return pa.Table.from_pylist(rows, row_errors.SCHEMA)


def listed(found: Failures) -> list[tuple[str, int]]:
    return [(row["column"], row["offset"]) for row in found.table.to_pylist()]


def test_errors_of_several_columns_are_listed_by_row() -> None:
    found = Failures().joined({"a": errors(3, 7), "b": errors(3)})
    assert listed(found) == [("a", 3), ("b", 3), ("a", 7)]
    assert found.offsets.tolist() == [3, 7]


def test_rows_that_were_computed_again_lose_their_errors() -> None:
    found = Failures().joined({"a": errors(3, 7)}).without(np.array([1, 7]))
    assert listed(found.joined({"a": errors(1)})) == [("a", 1), ("a", 3)]


def test_no_errors_are_no_file(tmp_path: Path) -> None:
    objects = DatasetObjects(LocalStore(tmp_path), "datasets/x")
    Failures().put(objects)
    assert Failures().name is None
    assert not list(tmp_path.rglob("checkpoints"))


def test_errors_come_back_from_their_file(tmp_path: Path) -> None:
    objects = DatasetObjects(LocalStore(tmp_path), "datasets/x")
    stored = Failures().joined({"a": errors(3, 7)})
    stored.put(objects)
    assert functions.load_failures("v", stored.name, objects).table.equals(stored.table)


def test_file_that_is_gone_or_damaged_is_an_error(tmp_path: Path) -> None:
    objects = DatasetObjects(LocalStore(tmp_path), "datasets/x")
    stored = Failures().joined({"a": errors(3)})
    assert stored.name is not None
    with pytest.raises(BadMeta, match="is missing"):
        functions.load_failures("v", stored.name, objects)
    stored.put(objects)
    [path] = tmp_path.rglob(stored.name)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadMeta, match="damaged"):
        functions.load_failures("v", stored.name, objects)


def test_list_that_was_replaced_is_deleted_and_the_present_one_is_not(tmp_path: Path) -> None:
    objects = DatasetObjects(LocalStore(tmp_path), "datasets/x")
    old, new = Failures().joined({"a": errors(3)}), Failures().joined({"a": errors(3, 7)})
    for stored in (old, new):
        stored.put(objects)
    assert old.name is not None
    discard_files([old.name], objects)
    assert [info.key.rsplit("/", 1)[-1] for info in objects.checkpoints()] == [new.name]

"""The errors of skipped rows are kept apart from the values, one for each row."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.column_worlds import objects_at
from floodmark.columns import row_errors
from floodmark.columns.checkpoint_batch import ERROR_TYPE
from floodmark.errors import UnreadableColumn
from rows.harm import HARM
from rows.harm import replace as put

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    return objects_at(request.param, tmp_path)


def errors(**messages):
    """Errors by offset: errors(o3="bad")."""
    offsets = np.array([int(name[1:]) for name in messages], np.int64)
    details = [{"type": "ValueError", "message": m, "traceback": "…", "attempts": 2} for m in messages.values()]
    return row_errors.error_table(offsets, pa.array(details, ERROR_TYPE), NOON)


def by_offset(table):
    return dict(zip(table.column("offset").to_pylist(), table.column("message").to_pylist(), strict=True))


def test_rows_without_an_error_are_left_out():
    details = pa.array([None, {"type": "E", "message": "m", "traceback": "t", "attempts": 3}, None], ERROR_TYPE)
    found = row_errors.error_table(np.array([4, 5, 6]), details, NOON)
    assert found.to_pylist() == [
        {"offset": 5, "type": "E", "message": "m", "traceback": "t", "attempts": 3, "at": NOON}
    ]
    assert found.schema == row_errors.SCHEMA


@given(st.lists(st.dictionaries(st.integers(0, 20), st.text(max_size=3), max_size=6), max_size=4))
def test_of_several_errors_of_a_row_the_last_one_counts(given_errors):
    tables = [errors(**{f"o{offset}": message for offset, message in some.items()}) for some in given_errors]
    oracle: dict[int, str] = {}
    for some in given_errors:
        oracle |= some
    merged = row_errors.merge_errors(tables)
    assert list(by_offset(merged).items()) == sorted(oracle.items())
    assert merged.schema == row_errors.SCHEMA


def test_errors_of_some_rows():
    found = row_errors.only(errors(o16="a", o17="b", o19="c"), BitMap([1, 3, 9]), 16)
    assert by_offset(found) == {17: "b", 19: "c"}
    assert row_errors.only(row_errors.EMPTY, BitMap([1]), 0).num_rows == 0


def test_stored_errors_come_back(objects):
    made = errors(o1="a", o9="ü")
    assert row_errors.load(objects, row_errors.put(objects, made)) == made


def test_no_errors_are_no_file(objects):
    assert row_errors.put(objects, row_errors.EMPTY) is None
    assert row_errors.load(objects, None) == row_errors.EMPTY
    assert list(objects.errors()) == []


@pytest.mark.parametrize("harm", HARM)
def test_damaged_errors_are_refused(objects, harm):
    digest = row_errors.put(objects, errors(o1="a"))
    key = objects.errors_key(digest)
    data = objects.store.get(key)
    for harmed in {HARM[harm](data, at) for at in range(0, len(data), 13)} - {data}:
        put(objects.store, key, harmed)
        with pytest.raises(UnreadableColumn) as caught:
            row_errors.load(objects, digest)
        assert caught.value.key == key

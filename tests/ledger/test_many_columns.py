"""Data with many columns: checks look at each column a fixed number of times, not at all others for each."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from floodmark.errors import BadColumnName, MissingColumns, UnknownColumns
from floodmark.ledger.casting import check_columns
from floodmark.ledger.schema import Layout, check_distinct, find_repeated
from floodmark.storage.parquet import Vocabulary

FEW, MANY = 10, 1_000


class Name(str):
    """A column name that counts how often it is compared with another."""

    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def lower(self) -> Name:
        return Name(str.lower(self))


class Columns:
    """A schema that counts how often its names are listed."""

    def __init__(self, names: list[str]) -> None:
        self._schema = pa.schema([pa.field(name, pa.int64()) for name in names])
        self.listed = 0

    @property
    def names(self) -> list[str]:
        self.listed += 1
        return [Name(name) for name in self._schema.names]

    def __iter__(self) -> Any:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schema, name)


def names(count: int) -> list[str]:
    return [f"column_{number}" for number in range(count)]


def work(count: int) -> tuple[int, int]:
    """How often the names were listed, and compared with each other, when a batch with these columns was checked."""
    given, declared = Columns(names(count)), Columns(names(count))
    before = Name.compared
    layout: Any = Layout(Vocabulary(), None, declared)  # type: ignore[arg-type]
    check_columns(given, layout, "the data")  # type: ignore[arg-type]
    return given.listed + declared.listed, Name.compared - before


def test_work_of_a_check_does_not_grow_with_the_square_of_the_columns():
    listed, compared = work(MANY)
    assert listed == work(FEW)[0]
    assert compared <= 10 * MANY


def test_repeated_names_are_found_without_comparing_all_pairs():
    before = Name.compared
    check_distinct([Name(name) for name in names(MANY)])
    assert Name.compared - before <= 5 * MANY


@pytest.mark.parametrize(
    ("given", "ignore_case", "repeated"),
    [
        (["a", "b", "a", "B"], False, ["a", "a"]),
        (["a", "b", "a", "B"], True, ["a", "b", "a", "B"]),
        (["a", "b"], True, []),
        ([], True, []),
    ],
)
def test_repeated_names_are_in_their_order(given, ignore_case, repeated):
    assert find_repeated(given, ignore_case=ignore_case) == repeated


def test_columns_that_differ_are_named_in_their_order():
    layout = Layout(Vocabulary(), None, pa.schema([(name, pa.int64()) for name in names(FEW)]))
    with pytest.raises(UnknownColumns) as unknown:
        check_columns(pa.schema([("z", pa.int64()), ("y", pa.int64()), *layout.data]), layout, "the data")
    assert unknown.value.columns == ["z", "y"]
    with pytest.raises(MissingColumns) as missing:
        check_columns(pa.schema(list(layout.data)[2:]), layout, "the data")
    assert missing.value.columns == ["column_0", "column_1"]
    with pytest.raises(BadColumnName) as twice:
        check_columns(pa.schema([*layout.data, *list(layout.data)[:2]]), layout, "the data")
    assert twice.value.columns == ["column_0", "column_1"]

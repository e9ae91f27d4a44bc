"""Positions: a consumer notices that its dataset was dropped and created again, or replaced by an older copy."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

import floodmark as fm
from ledger.worlds import numbers


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def test_consumer_of_a_dataset_that_was_created_again_is_told_so(lake: fm.Lake) -> None:
    before = lake.create("d")
    before.write(numbers(0, 100))
    position = before.position()
    lake.drop("d")
    after = lake.create("d")
    after.write(numbers(0, 50))
    with pytest.raises(fm.BadPosition, match=f"since=99, but 'd' .dataset {after.id}. ends at offset 49"):
        after.changes_arrow(since=99)
    after.write(numbers(50, 200))
    assert after.changes_arrow(since=99).num_rows == 100  # an offset alone cannot show that it is another dataset
    with pytest.raises(fm.BadPosition, match=f"{position.dataset_id}, but 'd' is now dataset {after.id}") as no:
        after.changes_arrow(since=position)
    assert (no.value.dataset_id, no.value.last_offset) == (str(after.id), 199)


def test_position_continues_where_it_was_taken(lake: fm.Lake) -> None:
    dataset = lake.create("d", schema={"n": "int64"})
    start = dataset.position()
    assert dataset.changes_arrow(since=start).num_rows == 0
    dataset.write(numbers(0, 3))
    first = dataset.position()
    dataset.write(numbers(3, 8))
    assert dataset.changes_arrow(since=start, until=first)["n"].to_pylist() == [0, 1, 2]
    assert dataset.changes_arrow(since=first)["n"].to_pylist() == [3, 4, 5, 6, 7]
    assert dataset.changes_arrow(since=dataset.position(5))["n"].to_pylist() == [6, 7]
    assert dataset.changes_arrow(since=dataset.position()).num_rows == 0
    assert dataset.position(2) == first
    dataset.purge(before=3)
    assert dataset.changes_arrow(since=first)["n"].to_pylist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("records", [0, 3])
def test_position_is_stored_as_text(lake: fm.Lake, records: int) -> None:
    dataset = lake.create("d")
    if records:
        dataset.write(numbers(0, records))
    position = dataset.position()
    assert fm.Position.parse(str(position)) == pickle.loads(pickle.dumps(position)) == position
    assert str(position).startswith(f"{dataset.id}/{records - 1}")


@pytest.mark.parametrize("text", ["", "7", "d/7", "did:odf:fed01/7/00", "did:odf:f" + "0" * 68 + "/7"])
def test_other_text_is_no_position(text: str) -> None:
    with pytest.raises(fm.BadPosition, match="is not a position"):
        fm.Position.parse(text)


def test_text_of_a_position_is_refused_with_what_reads_it(lake: fm.Lake) -> None:
    dataset = lake.create("d")
    dataset.write(numbers(0, 2))
    text = str(dataset.position(0))
    with pytest.raises(TypeError, match=r"Position\.parse reads its text"):
        dataset.changes_arrow(since=text)  # type: ignore[arg-type]
    assert dataset.changes_arrow(since=fm.Position.parse(text)).num_rows == 1


def test_position_of_a_record_that_does_not_exist_is_refused(lake: fm.Lake) -> None:
    dataset = lake.create("d")
    dataset.write(numbers(0, 3))
    with pytest.raises(fm.BadPosition, match=r"offset=3, but 'd' .* ends at offset 2"):
        dataset.position(3)
    with pytest.raises(fm.BadPosition, match=r"since=0, but 'e' .* has no records"):
        lake.create("e", schema={"n": "int64"}).changes_arrow(since=0)


def test_position_does_not_fit_an_older_copy(lake: fm.Lake, tmp_path: Path) -> None:
    """The dataset keeps its id, but the record at the offset is another one."""
    lake.create("d").write(numbers(0, 3))
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    lake["d"].write(numbers(3, 6))
    position = lake["d"].position()
    copy = fm.Lake(tmp_path / "copy")["d"]
    with pytest.raises(fm.BadPosition, match="up to record 5, which does not exist: there are 3 records"):
        copy.changes_arrow(since=position)
    copy.write(numbers(10, 20))
    with pytest.raises(fm.BadPosition, match="up to record 5, which is a different record now"):
        copy.changes_arrow(since=position)
    assert copy.changes_arrow(since=lake["d"].position(2)).num_rows == 10


def keyed(lake: fm.Lake) -> fm.Dataset:
    """A dataset in whose purge two rows are carried."""
    dataset = lake.create("k", key="n")
    dataset.write(numbers(0, 3))
    dataset.delete([1])
    return dataset


def test_rows_that_a_purge_carried_since_the_position_was_made_are_left_out(lake: fm.Lake) -> None:
    dataset = keyed(lake)
    stored = str(dataset.position())
    dataset.write(numbers(5, 6))
    dataset.purge(before=4)
    dataset.write(numbers(6, 7))
    assert dataset.changes_arrow(since=fm.Position.parse(stored))["n"].to_pylist() == [5, 6]
    assert dataset.changes_arrow(since=3)["n"].to_pylist() == [5, 0, 2, 6]  # an offset does not tell what is known


def test_new_reader_that_pages_through_a_purged_dataset_misses_no_carried_row(lake: fm.Lake) -> None:
    dataset = keyed(lake)
    dataset.write(numbers(5, 6))
    dataset.purge(before=4)
    at, found = dataset.position(3), []
    while at.offset < dataset.position().offset:
        after = dataset.position(at.offset + 1)
        found += dataset.changes_arrow(since=fm.Position.parse(str(at)), until=after)["n"].to_pylist()
        at = after
    assert found == [5, 0, 2]

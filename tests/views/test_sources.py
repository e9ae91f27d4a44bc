"""Sources as a view has them: by what they are, not by what they are called, and as of one moment."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark import Lake
from floodmark.errors import SourceGone
from floodmark.views.sources import datasets_of, input_schema_of, take_input_snapshots
from views.sourcing import analysis, use

INT = pa.int64()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path / "lake")
    found.create("s", key="id").write(pa.table({"id": [1, 2], "g": [7, 8]}))
    return found


def test_renamed_source_is_found_though_another_has_its_name_now(lake: Lake):
    known = analysis("groups", {"g": INT}, [use(lake["s"], {"g": "g"}, ["g"])])
    lake.rename("s", "old")
    lake.create("s").write(pa.table({"other": [1]}))
    assert datasets_of(lake, "v", known)["s"].name == "old"
    [input_snapshot] = take_input_snapshots(lake, "v", known)
    assert (input_snapshot.alias, input_snapshot.name, input_snapshot.last_offset) == ("s", "old", 1)


def test_dropped_source_is_said_to_be_gone(lake: Lake):
    known = analysis("groups", {"g": INT}, [use(lake["s"], {"g": "g"}, ["g"])])
    lake.drop("s")
    lake.create("s").write(pa.table({"g": [1]}))
    with pytest.raises(SourceGone, match="view 'v' reads 's'") as error:
        take_input_snapshots(lake, "v", known)
    assert (error.value.view, error.value.source) == ("v", "s")


def test_source_without_computed_columns_is_read_up_to_its_head(lake: Lake):
    [input_snapshot] = take_input_snapshots(
        lake, "v", analysis("groups", {"g": INT}, [use(lake["s"], {"g": "g"}, ["g"])])
    )
    head = lake["s"].head
    lake["s"].write(pa.table({"id": [3], "g": [9]}))
    assert (input_snapshot.block, input_snapshot.last_offset, input_snapshot.waiting) == (head, 1, 0)
    assert input_snapshot.generations == {}


def _twice(g: int) -> int:
    return 2 * g


def test_schema_has_computed_columns_after_those_of_the_records(lake: Lake):
    source = lake["s"]
    source.add_column("twice", fm.udf(returns="int64", version="1", name="twice")(_twice))
    found = input_schema_of(source)
    assert found.schema.names == ["id", "g", "twice"]
    assert (found.key, found.computed, found.offset) == (("id",), ("twice",), "offset")
    assert (found.name, found.dataset_id) == ("s", str(source.id))


def test_schema_before_the_first_write_has_no_columns(lake: Lake):
    assert input_schema_of(lake.create("empty", key="k")).schema.names == []

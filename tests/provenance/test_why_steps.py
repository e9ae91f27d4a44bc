"""`why` of what steps made: exactly the input rows that the run had read, whatever happened since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.provenance.why import why
from provenance.naive import OFFSET
from transforms.worlds import MAP, MOVING_GROUPS, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def test_a_limited_run_reads_further_than_its_positions_say(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("a", (1, 5), (3, 3))
    world.run(run={"max_records": 1})  # of key 2, which is the earliest; or of key 1 as of its newest row

    [row] = world.lake["out"].changes_arrow().to_pylist()
    found = why(world.lake, "out", row[OFFSET])

    assert found.inputs[0].position == 4
    [given] = found.inputs[0].records
    assert given.record.values["id"] == row["id"]


def test_a_retraction_names_the_row_that_it_takes_back_and_what_went(tmp_path: Path) -> None:
    world = make_world(MOVING_GROUPS, tmp_path)
    world.write("a", (1, 7, 10), (2, 7, 20), (3, 7, 30))  # id, group, value
    world.run()
    world.delete("a", 3)  # went long before the row that is taken back was made
    world.run()
    made = why(world.lake, "out", {"g": 7}).record.offset
    world.delete("a", 1)
    world.write("a", (2, 8, 20))
    world.run()

    records = {(r["g"], r["op"]): r[OFFSET] for r in world.lake["out"].changes_arrow().to_pylist()}
    found = why(world.lake, "out", records[7, 1])

    assert (found.record.op, found.ends) == ("-R", made)
    [given] = found.inputs
    assert (given.rows, given.records) == (0, ())
    assert [(one.record.op, one.record.values["id"]) for one in given.gone] == [("-R", 1), ("-C", 2)]


def test_a_row_that_did_not_change_is_traced_to_the_rows_that_made_it_first(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, None))
    world.run()
    made = world.lake["out"].last_offset
    world.write("a", (1, None), (2, 2))
    world.run()

    found = why(world.lake, "out", {"id": 1})

    assert found.record.offset == made
    assert [one.record.offset for one in found.inputs[0].records] == [0]

"""`why` of what steps made: exactly the input rows that the run had read, whatever happened since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from floodmark.provenance.opened import Datasets
from floodmark.provenance.why import Looking, why
from provenance.naive import OFFSET, Naive, disturb, made_of
from transform.worlds import CASES, MAP, MOVING_GROUPS, TWO_OUTPUTS, Case, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def history(case: Case, folder: Path, seed: int, turns: int = 8) -> Naive:
    """A random history: inputs change, runs are whole or limited, datasets are folded."""
    chance = Random(seed)
    world = make_world(case, folder)
    naive = Naive(world)
    for _ in range(turns):
        for _ in range(chance.randrange(1, 4)):
            disturb(world, chance)
        match chance.randrange(5):
            case 0:
                naive.during(lambda: world.run(run={"max_records": chance.randrange(1, 3)}))
            case 1:
                naive.during(lambda: world.run(commit_every=1))
            case 2:
                world.lake[chance.choice(case.sources).name].fold()
            case _:
                naive.during(world.run)
    naive.during(world.run)
    return naive


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_record_is_traced_to_the_rows_that_its_run_had_read(case: Case, tmp_path: Path) -> None:
    naive = history(case, tmp_path, seed=11, turns=9)
    lake = naive.world.lake

    checked = 0
    looking = Looking(Datasets(lake), rows=1000)
    for output in case.outputs:
        for row in lake[output.name].changes_arrow().to_pylist():
            found = looking.at(looking.datasets.named(output.name), row[OFFSET])
            assert made_of(found) == naive.expected(output.name, row[OFFSET], row), (output.name, row)
            assert (found.maker.kind, found.maker.name, found.maker.version) == ("step", "step", "1")
            assert found.is_complete
            checked += 1
    assert checked > 4, checked


@pytest.mark.parametrize("case", [MAP, TWO_OUTPUTS, MOVING_GROUPS], ids=str)
def test_it_stays_exact_when_the_meta_of_that_run_is_long_gone(case: Case, tmp_path: Path) -> None:
    naive = history(case, tmp_path, seed=3)
    world = naive.world
    for number in range(20):  # more commits than old meta is kept for
        disturb(world, Random(100 + number))
        naive.during(world.run)

    looking = Looking(Datasets(world.lake), rows=1000)
    for output in case.outputs:
        for row in world.lake[output.name].changes_arrow().to_pylist():
            found = looking.at(looking.datasets.named(output.name), row[OFFSET])
            assert made_of(found) == naive.expected(output.name, row[OFFSET], row), (output.name, row)


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

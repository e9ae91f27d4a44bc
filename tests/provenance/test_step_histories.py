"""Random histories of steps: `why`, `why_forward` and replay of what they made.

`why` names exactly the input rows that the run had read, whatever happened since; `why_forward` is `why` read the other
way round; replay computes every transaction again alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from floodmark.provenance.forward import forward
from floodmark.provenance.replay import replay
from floodmark.provenance.transactions import OpenedDatasets
from floodmark.provenance.why import ProvenanceTracer
from profiles import IN_FULL, SEED, sample
from provenance.naive import OFFSET, Naive, disturb, made_of, memory_world, write_some
from transforms.worlds import CASES, MOVING_GROUPS, TWO_OUTPUTS, Case, World, in_this_process

IS_LONG = IN_FULL
TURNS = 9 if IS_LONG else 4
WITH_HISTORY = CASES if IS_LONG else CASES[::2]
WITH_FAILURES = CASES if IS_LONG else CASES[1::2]
"""Each case has one of the two in `make test`, and both under `soak`."""


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def random_history(case: Case, folder: Path, seed: int, turns: int) -> Naive:
    """Inputs change, runs are whole or limited, datasets are folded."""
    chance = Random(seed)
    world = memory_world(case, folder)
    naive = Naive(world)
    for source in case.sources:
        write_some(world, source, chance)
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


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Naive]:
    """The history of a case, the same for all tests."""
    cases = {str(case): case for case in CASES}
    made = cache(lambda name: random_history(cases[name], tmp_path_factory.mktemp("history"), SEED + 11, TURNS))
    return lambda case: made(str(case))


def replayed(world: World, *versions: str) -> list[str]:
    steps = [world.step(version) for version in versions]
    return [one.outcome for one in replay(world.lake, [output.name for output in world.case.outputs], steps)]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("case", WITH_HISTORY, ids=str)
def test_every_record_is_traced_to_the_rows_that_its_run_had_read(case: Case, history: Callable[[Case], Naive]) -> None:
    naive = history(case)
    lake = naive.world.lake

    checked = 0
    looking = ProvenanceTracer(OpenedDatasets(lake), rows=1000)
    for output in case.outputs:
        for row in sample(lake[output.name].changes_arrow().to_pylist(), 8):
            found = looking.at(looking.datasets.named(output.name), row[OFFSET])
            assert made_of(found) == naive.expected(output.name, row[OFFSET], row), (output.name, row)
            assert (found.maker.kind, found.maker.name, found.maker.version) == ("step", "step", "1")
            assert found.is_complete
            checked += 1
    assert checked


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("case", WITH_HISTORY, ids=str)
def test_forward_finds_the_records_that_name_a_record_and_no_others(
    case: Case, history: Callable[[Case], Naive]
) -> None:
    lake = history(case).world.lake
    looking = ProvenanceTracer(OpenedDatasets(lake), rows=1000)
    names: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for output in case.outputs:
        opened = looking.datasets.named(output.name)
        for row in lake[output.name].changes_arrow().to_pylist():
            made = looking.at(opened, row[OFFSET])
            for source, offsets in zip(case.sources, made_of(made), strict=True):
                for offset in offsets:
                    names.setdefault((source.name, offset), set()).add((output.name, row[OFFSET]))

    for source in case.sources:
        for row in sample(lake[source.name].changes_arrow().to_pylist(), 3):
            found = forward(lake, source.name, row[OFFSET])
            derived = {(one.record.dataset, one.record.offset) for one in found.derived}
            assert derived == names.get((source.name, row[OFFSET]), set()), (source.name, row)
    assert names


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("case", WITH_HISTORY, ids=str)
def test_every_transaction_is_computed_again_alike(case: Case, history: Callable[[Case], Naive]) -> None:
    outcomes = replayed(history(case).world, "1")

    assert outcomes
    assert set(outcomes) == {"same"}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("case", WITH_FAILURES, ids=str)
def test_a_history_of_failures_and_versions_is_computed_again_alike(case: Case, tmp_path: Path) -> None:
    chance, version = Random(SEED + 5), "1"
    world = memory_world(case, tmp_path)
    for turn in range(5):
        for _ in range(3):
            disturb(world, chance)
        world.calls.fail(*[tuple(chance.randrange(4) for _ in case.keys) for _ in range(turn % 3)])
        version = "2" if turn > 2 else "1"
        world.run(version, **({"commit_every": 1} if turn == 1 else {}))
    world.calls.behave()

    assert set(replayed(world, "1", "2")) == {"same"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [TWO_OUTPUTS, MOVING_GROUPS], ids=str)
def test_old_records_are_traced_and_replayed_when_their_meta_is_long_gone(case: Case, tmp_path: Path) -> None:
    naive = Naive(memory_world(case, tmp_path))
    world = naive.world
    for number in range(20):  # more commits than old meta is kept for
        disturb(world, Random(number))
        naive.during(lambda: world.run(run={"max_records": 2}))

    looking = ProvenanceTracer(OpenedDatasets(world.lake), rows=1000)
    for output in case.outputs:
        for row in sample(world.lake[output.name].changes_arrow().to_pylist(), 5):
            found = looking.at(looking.datasets.named(output.name), row[OFFSET])
            assert made_of(found) == naive.expected(output.name, row[OFFSET], row), (output.name, row)
    assert set(replayed(world, "1")) == {"same"}

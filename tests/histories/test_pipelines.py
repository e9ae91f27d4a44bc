"""Whatever happened before, one good run makes steps, computed columns and views what the sources lead to.

After it a further run does nothing, and when some rows change, functions are called with what these led to alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from histories.calls import in_this_process
from histories.pipelines import FILES, FRAME, KEYED, LOG, SOURCES, Drawn, Row, Rows, World, without_spark
from profiles import examples

MOST_NODES = 5
STEPS = ("map", "join", "table")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Drawn, ...]:
    """Nodes that read sources or what nodes before them write; columns are computed from `n` or from other columns."""
    nodes: list[Drawn] = []
    for number in range(draw(st.integers(2, MOST_NODES))):
        made = [node.name for node in nodes if node.kind != "column"]
        kind = draw(st.sampled_from(["column", "groups", "map", "join", "rows", "function", "table"]))
        others = [LOG] if kind in ("column", "groups") else [FILES, FRAME] if kind in STEPS else []
        there = [*KEYED, *made, *others]
        count = 2 if kind == "join" else draw(st.integers(1, 2)) if kind == "table" else 1
        reads = tuple(draw(st.lists(st.sampled_from(there), min_size=count, max_size=count, unique=True)))
        columns = [node.name for node in nodes if node.kind == "column" and node.reads == reads]
        taken = "n" if kind in STEPS else draw(st.sampled_from([*columns, "n"]))
        nodes.append(Drawn(f"d{number}", kind, reads, taken, kind == "column" and draw(st.booleans())))
    return tuple(nodes)


ids = st.integers(0, 7)
number = st.integers(0, MOST_NODES - 1)  # of a node, or of a source that nodes read
row = st.tuples(st.integers(0, 2), st.integers(0, 20))
rows = st.dictionaries(ids, row, min_size=1, max_size=3)
changes = st.one_of(
    st.tuples(st.just("write"), number, rows),
    st.tuples(st.just("write"), number, rows),
    st.tuples(st.just("delete"), number, st.lists(ids, min_size=1, max_size=3, unique=True)),
)
acts = st.one_of(
    changes,
    changes,
    st.tuples(st.just("failing run"), number, st.sampled_from(["all", "some"])),
    st.tuples(st.just("failing run"), number, st.sampled_from(["all", "some"])),
    st.tuples(st.just("mend")),
    st.tuples(st.just("version"), number, st.integers(1, 3)),
    st.tuples(st.just("again"), number, st.integers(1, 3)),
    st.tuples(st.just("run")),
    st.tuples(st.just("run one"), number),
    st.tuples(st.just("full")),
    st.tuples(st.just("kill"), st.integers(0, 200)),
)


def perform(world: World, act: tuple[Any, ...], workers: int) -> None:
    def chosen(number: int) -> Drawn:
        return world.nodes[number % len(world.nodes)]

    def source(number: int) -> str:
        read = sorted({name for each in world.nodes for name in each.reads if name in SOURCES})
        return read[number % len(read)]

    match act:
        case ("write", number, some):
            world.write(source(number), some)
        case ("delete", number, some):
            if source(number) in KEYED:
                world.delete(source(number), some)
        case ("failing run", number, how):
            world.fail(chosen(number), how)
            world.run(workers)
        case ("mend",):
            world.mend()
        case ("version", number, more):
            world.change(chosen(number), more)
            world.versions[chosen(number).name] = world.versions.get(chosen(number).name, 0) + 1
        case ("again", number, more):  # the function does something else, which only a full run can know
            world.change(chosen(number), more)
            world.run(workers, chosen(number), full=True)
        case ("run",):
            world.run(workers)
        case ("run one", number):
            world.run(workers, chosen(number))
        case ("full",):
            world.run(workers, full=True)
        case ("kill", number):
            world.killed_run(number)


def assert_good_run(world: World, workers: int) -> None:
    """Everything is as it should be after a run in which nothing fails, and then there is nothing to do."""
    ran = world.run(workers)
    assert ran.ok, [(one.node.name, one.why) for one in ran.outcomes]
    assert world.shown() == world.oracle()


def assert_nothing_to_do(world: World, workers: int) -> None:
    standing = world.standing()
    world.called()
    again = world.run(workers)
    assert {one.state for one in again.outcomes} <= {"nothing", "waiting"}
    assert world.standing() == standing
    assert not any(world.called().values())


def differing(before: Rows, after: Rows) -> set[int]:
    return {key for key in {*before, *after} if before.get(key) != after.get(key)}


def assert_called_for_changes(world: World, before: dict[str, Rows], given: list[tuple[str, int, Row]]) -> None:
    """Functions were called at most once for a row, and only for rows that are not what they were or were `given`."""
    after, called = world.oracle(), world.called()
    for each in world.nodes:
        versions = [before[read].items() | after[read].items() for read in each.reads]
        written = {(key, row) for source, key, row in given if source in each.reads}
        ids = {key for read in each.reads for key in differing(before[read], after[read])} | {key for key, _ in written}
        if each.kind == "table":  # is called with all rows, if any has changed
            assert ids or not called[each.name], each
        elif each.kind == "groups":
            groups = {g for key, (g, _) in written.union(*versions) if key in ids}
            assert set(called[each.name]) <= groups, each
        else:
            assert set(called[each.name]) <= ids, each
            assert len(called[each.name]) == len(set(called[each.name])), each


@settings(max_examples=examples(5), phases=[Phase.explicit, Phase.generate])
@given(
    graphs(),
    st.dictionaries(ids, row, min_size=3, max_size=6),
    st.lists(acts, min_size=3, max_size=8),
    st.lists(changes, min_size=1, max_size=3),
    st.sampled_from([1, 3]),
)
def test_after_any_history_a_good_run_makes_what_the_sources_lead_to(
    nodes: tuple[Drawn, ...],
    first: Rows,
    history: list[tuple[Any, ...]],
    late: list[tuple[Any, ...]],
    workers: int,
):
    with tempfile.TemporaryDirectory() as made, in_this_process(), without_spark(nodes, Path(made)):
        world = World(Path(made), nodes)
        for act in [*(("write", number, first) for number in range(len(SOURCES))), *history]:
            perform(world, act, workers)
        world.mend()
        assert_good_run(world, workers)
        assert_nothing_to_do(world, workers)
        for act in late:
            before, known = world.oracle(), len(world.written)
            perform(world, act, workers)
            assert_good_run(world, workers)
            assert_called_for_changes(world, before, world.written[known:])
        assert_nothing_to_do(world, workers)

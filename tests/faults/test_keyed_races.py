"""Writers that upsert the same keys at once: the result is that of some serial order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from faults import keyed_writers, writers
from faults.keyed_writers import NAME, SCHEMA, Deed, assert_agree, assert_serial, table
from faults.writers import COUNT, Crew
from floodmark.dataset import Dataset
from floodmark.errors import BadPrimaryKey
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from profiles import IN_FULL, examples
from rows.harm import lose_all
from rows.naive import Counts, Naive
from waiting import PATIENCE


def assert_sound(lake: fm.Lake) -> None:
    """The chain is whole, the index says what it says, and nothing unfinished is left."""
    assert lake[NAME].verify().problems == ()
    assert list(lake.store.staging().iterdir()) == []


def create(lake: fm.Lake, kind: str = "upsert") -> Dataset:
    return lake.create(NAME, key=["id"], merge=kind, schema=SCHEMA)


# Processes


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with writers.crew() as crew:
        yield crew


@pytest.mark.process
@pytest.mark.soak
def test_processes_upsert_the_same_keys_among_folds_and_losses(tmp_path, crew):
    lake = fm.Lake(tmp_path / "lake")
    create(lake)
    root, times = lake.store.url, examples(10)
    work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (keyed_writers.write_in, (root, 0, times)),
        (keyed_writers.write_and_take_back_in, (root, 1, times)),
        (keyed_writers.fold_and_lose_in, (root, times)),
        (keyed_writers.read_in, (root, 2 * times)),
    ]
    assert len(work) == COUNT
    deeds = [deed for mine in crew.run(work) for deed in mine]
    assert len(deeds) == 2 * times
    assert_serial(lake[NAME], deeds)
    lose_all(lake[NAME])
    assert_serial(lake[NAME], deeds)
    assert_sound(lake)


# Threads


def race(lake: fm.Lake, kind: str, works: list[Callable[[Dataset, int, int], list[Deed]]], times: int) -> list[Deed]:
    create(lake, kind)
    start = Barrier(len(works))

    def work(writer: int) -> list[Deed]:
        dataset = lake[NAME]
        start.wait(PATIENCE)
        return works[writer](dataset, writer, times)

    with ThreadPoolExecutor(len(works)) as pool:
        return [deed for mine in pool.map(work, range(len(works))) for deed in mine]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["upsert", "ledger", "snapshot", "changelog"])
def test_four_threads_race_on_a_store_in_memory(kind):
    lake = fm.Lake(MemoryStore())
    works = {
        "upsert": [keyed_writers.write] * 2 + [keyed_writers.write_and_take_back] * 2,
        "changelog": [keyed_writers.write_changelog] * 4,
    }.get(kind, [keyed_writers.write] * 4)
    times = examples(5)
    deeds = race(lake, kind, works, times)
    assert len(deeds) == 4 * times
    assert_serial(lake[NAME], deeds, kind)
    assert_sound(lake)


def test_threads_may_share_one_dataset_object():
    lake = fm.Lake(MemoryStore())
    dataset = create(lake)
    with ThreadPoolExecutor(4) as pool:
        deeds = [d for mine in pool.map(lambda w: keyed_writers.write(dataset, w, 4), range(4)) for d in mine]
    assert_serial(dataset, deeds)
    assert_sound(lake)


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_readers_that_make_a_lost_index_again_at_once_do_not_disturb_each_other(where, tmp_path):
    """They make the same files, under the same names, at the same moment."""
    lake = fm.Lake(tmp_path / "lake" if where == "folder" else MemoryStore())
    dataset = create(lake)
    for number in range(6):
        dataset.write(table(keyed_writers.rows(0, number)))
    expected = dataset.to_arrow()
    for _ in range(2):
        lose_all(dataset)
        start = Barrier(4)

        def read(_: int, start: Barrier = start) -> pa.Table:
            mine = lake[NAME]
            start.wait(PATIENCE)
            return mine.to_arrow()

        with ThreadPoolExecutor(4) as pool:
            assert all(found.equals(expected) for found in pool.map(read, range(4)))
    assert_sound(lake)


# One race, by hand: another writer commits just before our head moves


def racing(base: type) -> Any:
    class Racing(base):  # type: ignore[misc]
        rivals: tuple[Callable[[], Any], ...] = ()

        def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
            if expected not in (None, new) and self.rivals:
                first, *rest = self.rivals
                self.rivals = ()
                first()
                self.rivals = tuple(rest)
            return bool(super().compare_and_swap(key, expected, new))

        def turn(self, key: str) -> Any:
            return nullcontext()  # all at once, as a store may

    return Racing


@pytest.fixture(params=["memory", *(["folder"] if IN_FULL else [])])
def racing_lake(request, tmp_path):
    store = racing(LocalStore)(tmp_path / "lake") if request.param == "folder" else racing(MemoryStore)()
    return fm.Lake(store, runtime=fm.Runtime(sleep=lambda _: None))


def row(key: int, by: str | None, **op: int) -> dict[str, Any]:
    return {"id": key, "by": by, **op}


DEEDS: dict[str, tuple[str, list[Any], tuple[str, Any], tuple[str, Any]]] = {
    # strategy, what is there, what a rival does first, what we do
    "change what a rival changes": ("upsert", [row(1, "a")], ("write", [row(1, "b")]), ("write", [row(1, "c")])),
    "change to what a rival changes it to": (
        "upsert",
        [row(1, "a")],
        ("write", [row(1, "b")]),
        ("write", [row(1, "b")]),
    ),
    "add what a rival adds": ("upsert", [row(1, "a")], ("write", [row(2, "b")]), ("write", [row(2, "c"), row(3, "c")])),
    "change what a rival deletes": ("upsert", [row(1, "a")], ("delete", [(1,)]), ("write", [row(1, "c")])),
    "repeat what a rival deletes": ("upsert", [row(1, "a")], ("delete", [(1,)]), ("write", [row(1, "a"), row(2, "b")])),
    "delete what a rival deletes": ("upsert", [row(1, "a")], ("delete", [(1,)]), ("delete", [(1,), (2,)])),
    "delete what a rival changes": ("upsert", [row(1, "a")], ("write", [row(1, "b")]), ("delete", [(1,)])),
    "delete what a rival adds": ("upsert", [row(1, "a")], ("write", [row(2, "b")]), ("delete", [(1,), (2,)])),
    "change what a rival leaves alone": ("upsert", [row(1, "a")], ("write", [row(2, "b")]), ("write", [row(1, "c")])),
    "see in a ledger what a rival adds": (
        "ledger",
        [row(1, "a")],
        ("write", [row(2, "b")]),
        ("write", [row(2, "c"), row(3, "c")]),
    ),
    "replace a snapshot that a rival replaces": (
        "snapshot",
        [row(1, "a"), row(2, "a")],
        ("write", [row(2, "b"), row(3, "b")]),
        ("write", [row(1, "a"), row(3, "c"), row(4, "c")]),
    ),
    "empty a snapshot that a rival fills": ("snapshot", [row(1, "a")], ("write", [row(2, "b")]), ("write", [])),
    "pass on what a rival leaves alone": (
        "changelog",
        [row(1, "a", op=0)],
        ("write", [row(2, "b", op=0)]),
        ("write", [row(1, "a", op=2), row(1, "b", op=3)]),
    ),
}


def do(dataset: Dataset, what: str, given: Any) -> fm.Commit:
    if what == "delete":
        return dataset.delete([key for (key,) in given])
    return dataset.write(table(given) if given else SCHEMA.empty_table())


@pytest.mark.parametrize("name", DEEDS)
def test_writer_that_was_overtaken_looks_again_at_what_is_there(racing_lake, name):
    kind, first, rival, ours = DEEDS[name]
    dataset, model = create(racing_lake, kind), Naive(kind, ("id",))
    dataset.write(table(first))
    racing_lake.store.rivals = (lambda: do(racing_lake[NAME], *rival),)
    commit = do(dataset, *ours)
    assert racing_lake.store.rivals == ()
    model.write(first)
    getattr(model, rival[0])(rival[1])
    expected = getattr(model, ours[0])(ours[1])
    assert Counts.of(commit) == expected.counts
    assert commit.rows == len(expected.records)
    assert [(r["op"], r["id"], r["by"]) for r in dataset.changes_arrow().to_pylist()] == [
        (op, r["id"], r["by"]) for op, r in model.records
    ]
    assert_agree(
        dataset, Naive(kind, ("id",), records=[(op, {"id": r["id"], "by": r["by"]}) for op, r in model.records])
    )
    assert_sound(racing_lake)


def test_changelog_that_a_rival_has_made_wrong_is_refused(racing_lake):
    dataset = create(racing_lake, "changelog")
    dataset.write(table([row(1, "a", op=0)]))
    racing_lake.store.rivals = (lambda: racing_lake[NAME].write(table([row(1, "a", op=1)])),)
    with pytest.raises(BadPrimaryKey, match="1"):
        dataset.write(table([row(1, "a", op=2), row(1, "b", op=3)]))
    assert dataset.to_arrow().num_rows == 0
    assert dataset.changes_arrow()["op"].to_pylist() == [0, 1]
    assert_sound(racing_lake)


def test_writer_may_be_overtaken_many_times(racing_lake):
    dataset, model = create(racing_lake), Naive("upsert", ("id",))
    dataset.write(table([row(1, "a")]))
    model.write([row(1, "a")])
    rivals = [[row(1, f"rival {i}"), row(i, "x")] for i in range(2, 6)]
    racing_lake.store.rivals = tuple(lambda batch=batch: racing_lake[NAME].write(table(batch)) for batch in rivals)
    commit = dataset.write(table([row(1, "ours"), row(5, "ours")]))
    for batch in rivals:
        model.write(batch)
    assert Counts.of(commit) == model.write([row(1, "ours"), row(5, "ours")]).counts
    assert_agree(dataset, model)
    assert_sound(racing_lake)


def test_column_that_a_rival_adds_does_not_disturb(racing_lake):
    dataset = create(racing_lake)
    dataset.write(table([row(1, "a"), row(2, "a")]))

    def rival() -> None:
        theirs = racing_lake[NAME]
        theirs.evolve({"new": "string"})
        theirs.write(pa.table({"id": [1], "by": ["a"], "new": ["n"]}))

    racing_lake.store.rivals = (rival,)
    try:
        dataset.write(table([row(1, "b")]))
    except fm.FloodmarkError:
        written = False  # refusing what lacks a column by now is right too
    else:
        written = True
    life = dataset.history([1]).select(["op", "by", "new"]).to_pylist()
    assert life[:3] == [
        {"op": 0, "by": "a", "new": None},
        {"op": 2, "by": "a", "new": None},
        {"op": 3, "by": "a", "new": "n"},
    ]
    assert life[3:] == ([{"op": 2, "by": "a", "new": "n"}, {"op": 3, "by": "b", "new": None}] if written else [])
    assert_sound(racing_lake)


def test_states_are_brought_once_among_overtakings(racing_lake):
    dataset = create(racing_lake)
    dataset.write(table([row(1, "a")]))
    racing_lake.store.rivals = (lambda: racing_lake[NAME].write(table([row(1, "b")]), source="s", state="1"),)
    commit = dataset.write(table([row(1, "b")]), source="s", state="1")
    assert [entry["op"] for entry in dataset.changes_arrow().to_pylist()] == [0, 2, 3]
    assert (commit.start, commit.end) == (1, 3)
    assert_sound(racing_lake)


# Streams can be read once only


@pytest.mark.parametrize("kind", ["upsert", "snapshot"])
@pytest.mark.parametrize("rival", ["reorders the columns", "is the first to write"])
def test_stream_is_not_lost_when_a_rival_sets_the_columns(racing_lake, kind, rival):
    """Looking again at a stream that has been read finds nothing: a snapshot of nothing would retract everything."""
    reordered = pa.schema([SCHEMA.field("by"), SCHEMA.field("id")])
    if rival == "reorders the columns":
        dataset = create(racing_lake, kind)
        dataset.write(table([row(1, "a"), row(2, "a")]))
        racing_lake.store.rivals = (lambda: racing_lake[NAME].evolve(reordered),)
    else:
        dataset = racing_lake.create(NAME, key=["id"], merge=kind)
        racing_lake.store.rivals = (lambda: racing_lake[NAME].write(table([row(1, "a")]).select(["by", "id"])),)
    ours = table([row(1, "b"), row(2, "b")])
    dataset.write(ours.to_reader())
    assert dataset.to_arrow().select(["id", "by"]).to_pylist() == [row(1, "b"), row(2, "b")]
    assert_sound(racing_lake)

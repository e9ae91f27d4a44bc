"""However many write at once: every commit that was acknowledged is there, once, and the chain is one chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import floodmark as fm
from faults import writers
from faults.writers import COUNT, Crew
from floodmark.chain.events import AddData
from floodmark.chain.walk import walk_back
from floodmark.dataset import Dataset
from floodmark.errors import CommitConflict, DatasetExists, UnknownDataset
from floodmark.storage.cloud import CloudStore
from floodmark.storage.memory import MemoryStore
from ledger.s3_server import s3_bucket
from profiles import examples
from waiting import PATIENCE

TIMES = examples(12)
NAME = "trips"
COLUMNS = {"writer": "int64", "number": "int64"}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with writers.crew() as crew:
        yield crew


@pytest.fixture
def lake(tmp_path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def rows_of(dataset: Dataset) -> list[tuple[int, int]]:
    """(writer, number) of every record, in the order of offsets."""
    table = dataset.to_arrow(columns=["writer", "number"])
    return list(zip(*table.to_pydict().values(), strict=True))


def assert_sound(lake: fm.Lake) -> None:
    """The chain is whole, the index says what it says, and nothing unfinished is left."""
    dataset = lake[NAME]
    found = dataset.verify()
    assert found.problems == ()
    snapshot = dataset.snapshot()
    walked = [(h, b) for h, _, b in walk_back(snapshot.objects.get_block, snapshot.head)][::-1]
    chained = [
        (b.sequence_number, h.digest, e.new_data.offset_interval.start, e.new_data.offset_interval.end + 1)
        for h, b in walked
        if isinstance(e := b.event, AddData) and e.new_data is not None
    ]
    indexed = snapshot.all_slices.select(["sequence_number", "block", "start", "end"]).to_pydict()
    assert list(zip(*indexed.values(), strict=True)) == chained
    assert [start for _, _, start, _ in chained[1:]] == [end for _, _, _, end in chained[:-1]]
    assert snapshot.head_block.sequence_number == len(walked) - 1 == found.blocks - 1
    assert list(lake.store.staging().iterdir()) == []


def assert_committed(dataset: Dataset, commits: list[list[fm.Commit]]) -> None:
    """Each writer's rows are where it was told that they are, each once, and there are no others."""
    rows = rows_of(dataset)
    told = {(w, n): (c.start, c.end) for w, mine in enumerate(commits) for n, c in enumerate(mine)}
    assert {row: (offset, offset + 1) for offset, row in enumerate(rows)} == told
    assert len(rows) == len(told)


@pytest.mark.process
@pytest.mark.soak
def test_processes_commit_many_times_each(lake, crew):
    lake.create(NAME, schema=COLUMNS)
    commits = crew.run([(writers.append, (lake.store.url, NAME, writer, TIMES)) for writer in range(COUNT)])
    assert_committed(lake[NAME], commits)
    assert sorted(c.start for mine in commits for c in mine) == list(range(COUNT * TIMES))
    assert_sound(lake)
    assert lake[NAME].verify().blocks == 3 + COUNT * TIMES


@pytest.mark.process
def test_large_write_among_many_small_ones_is_overtaken_once_and_finishes(lake, crew, tmp_path):
    lake.create(NAME, schema=COLUMNS)
    url, marker = lake.store.url, tmp_path / "marker"
    small = [(writers.append_around, (url, NAME, writer, TIMES, marker)) for writer in range(COUNT - 1)]
    *commits, (large, rounds) = crew.run([*small, (writers.append_large, (url, NAME, COUNT, 10, marker))])
    assert rounds == 2
    assert (large.slices, large.rows) == (10, 10)
    rows = rows_of(lake[NAME])
    assert rows[large.start : large.end] == [(COUNT, number) for number in range(10)]
    assert Counter(rows) == Counter(
        [(w, n) for w in range(COUNT - 1) for n in range(TIMES)] + rows[large.start : large.end]
    )
    assert all(rows[c.start] == (w, n) for w, mine in enumerate(commits) for n, c in enumerate(mine))
    assert_sound(lake)


@pytest.mark.process
def test_state_that_everybody_brings_is_committed_once(lake, crew):
    lake.create(NAME, schema=COLUMNS)
    states = [str(number) for number in range(8)]
    orders = [states[writer:] + states[:writer] for writer in range(COUNT)]
    told = crew.run([(writers.append_once, (lake.store.url, NAME, order)) for order in orders])
    assert sorted(number for _, number in rows_of(lake[NAME])) == list(range(8))
    by_state = {
        state: {
            c for order, mine in zip(orders, told, strict=True) for s, c in zip(order, mine, strict=True) if s == state
        }
        for state in states
    }
    assert all(len(commits) == 1 for commits in by_state.values())
    assert_sound(lake)


@pytest.mark.process
def test_one_of_many_creators_gets_the_name(lake, crew):
    made = crew.run([(writers.create, (lake.store.url, NAME))] * COUNT)
    winners = [result for result in made if isinstance(result, str)]
    assert winners == [lake[NAME].id.text]
    assert {type(result) for result in made if result not in winners} == {DatasetExists}
    assert len({info.key.split("/")[1] for info in lake.store.list("datasets")}) == 1
    assert lake[NAME].verify().ok


@pytest.mark.process
def test_all_who_create_or_open_get_the_same_dataset(lake, crew):
    made = crew.run([(writers.create_or_open, (lake.store.url, NAME))] * COUNT)
    assert set(made) == {lake[NAME].id.text}


@pytest.mark.process
def test_first_writes_with_one_schema_all_succeed(lake, crew):
    lake.create(NAME)
    commits = crew.run([(writers.append, (lake.store.url, NAME, writer, 2)) for writer in range(COUNT)])
    assert_committed(lake[NAME], commits)
    assert_sound(lake)


@pytest.mark.process
def test_first_writes_with_different_schemas_leave_one_schema(lake, crew):
    lake.create(NAME)
    tables = [writers.row(writer, 0, **{f"column{writer % 2}": "x"}) for writer in range(COUNT)]
    results = crew.run([(writers.write_first, (lake.store.url, NAME, table)) for table in tables])
    names = lake[NAME].schema.names
    fitting = [w for w, table in enumerate(tables) if table.column_names == names]
    assert [w for w, result in enumerate(results) if isinstance(result, fm.Commit)] == fitting
    assert len(fitting) == COUNT // 2
    assert sorted(rows_of(lake[NAME])) == [(w, 0) for w in fitting]
    assert_sound(lake)


@pytest.mark.process
def test_columns_that_are_added_meanwhile_lose_no_write(lake, crew):
    lake.create(NAME, schema=COLUMNS)
    columns = [f"column{number}" for number in range(3)]
    work = [(writers.append_as_it_evolves, (lake.store.url, NAME, writer, 6)) for writer in range(COUNT - 1)]
    *commits, _ = crew.run([*work, (writers.evolve, (lake.store.url, NAME, columns))])
    assert lake[NAME].schema.names == [*COLUMNS, *columns]
    assert_committed(lake[NAME], commits)
    assert_sound(lake)


@pytest.mark.process
def test_purges_meanwhile_take_only_what_they_say(lake, crew):
    lake.create(NAME, schema=COLUMNS)
    work = [(writers.append, (lake.store.url, NAME, writer, 15)) for writer in range(COUNT - 1)]
    *commits, purged = crew.run([*work, (writers.purge, (lake.store.url, NAME, 5))])
    told = {c.start: (w, n) for w, mine in enumerate(commits) for n, c in enumerate(mine)}
    assert sorted(told) == list(range(15 * (COUNT - 1)))
    assert purged == sorted(purged)
    assert rows_of(lake[NAME]) == [told[offset] for offset in range(purged[-1], len(told))]
    assert_sound(lake)


@pytest.mark.process
def test_drop_meanwhile_is_a_clear_error_and_leaves_no_half_dataset(lake, crew):
    for _ in range(2):
        lake.create(NAME, schema=COLUMNS)
        work = [(writers.append_until_it_is_gone, (lake.store.url, NAME, w, 10**6)) for w in range(COUNT - 1)]
        *ends, _ = crew.run([*work, (writers.drop, (lake.store.url, NAME, 5))])
        assert {type(end) for end in ends} <= {UnknownDataset, CommitConflict}
        assert all(NAME in end.message and end.hint for end in ends)
        assert lake.datasets() == []
        assert list(lake.store.list("datasets")) == []
        assert list(lake.store.staging().iterdir()) == []


def race(lake: fm.Lake, threads: int, times: int) -> None:
    """Threads that append and bring one state all at once, on stores that need no processes."""
    lake.create(NAME, schema=COLUMNS)
    start = Barrier(threads)

    def work(writer: int) -> list[fm.Commit]:
        dataset = lake[NAME]
        start.wait(PATIENCE)
        mine = [dataset.write(writers.row(writer, number)) for number in range(times)]
        dataset.write(writers.row(-1, 0), source="shared", state="1")
        return mine

    with ThreadPoolExecutor(threads) as pool:
        commits = list(pool.map(work, range(threads)))
    rows = rows_of(lake[NAME])
    assert Counter(rows) == Counter([(w, n) for w in range(threads) for n in range(times)] + [(-1, 0)])
    assert all(rows[c.start] == (w, n) for w, mine in enumerate(commits) for n, c in enumerate(mine))
    assert_sound(lake)


def test_threads_race_on_a_store_in_memory():
    race(fm.Lake(MemoryStore()), 4, TIMES)


def test_conditional_puts_decide_a_race_on_s3():
    with s3_bucket() as (url, options):
        race(fm.Lake(CloudStore(f"{url}/lake", **options)), 3, 4)

"""Commands over all datasets of a lake: the work per dataset does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.cli.datasets import summarise
from floodmark.ledger.strategy import declare
from floodmark.maintenance import gc
from floodmark.maintenance.doctor import check_datasets, check_names, check_unnamed
from floodmark.storage.memory import CountingStore, Counts, MemoryStore
from ledger.worlds import Clock
from limits import set_limit

KINDS = 4


def lake_of(datasets: int) -> tuple[fm.Lake, CountingStore]:
    """A lake with this many datasets of each kind."""
    store = CountingStore(MemoryStore())
    lake = fm.Lake(store, runtime=fm.Runtime(clock=Clock()))
    for number in range(datasets):
        rows = pa.table({"id": [1, 2], "at": pa.array([1, 2], pa.timestamp("us", "UTC"))})
        lake.create(f"plain{number}").write(rows)
        lake.create(f"keyed{number}", key="id").write(rows)
        lake.create(f"timeline{number}", event_time="at", partition_by="day").write(rows)
        lake.create_derived(f"derived{number}", key="id")
    return lake, store


def list_all(lake: fm.Lake) -> None:
    listed, damaged = summarise(lake)
    assert not damaged
    assert len(listed) % KINDS == 0


def search_garbage(lake: fm.Lake) -> None:
    assert not list(gc.find_garbage(lake))


def check(lake: fm.Lake) -> None:
    names = list(check_names(lake.store))
    datasets = [finding for one in check_datasets(lake) for finding in one.findings]
    unnamed = list(check_unnamed(lake.store, 0.0))
    assert all(finding.state == "ok" for finding in (*names, *datasets, *unnamed))


def verify(lake: fm.Lake) -> None:
    assert all(dataset.verify().ok for dataset in lake)


COMMANDS: dict[str, Callable[[fm.Lake], None]] = {
    "list": list_all,
    "gc": search_garbage,
    "doctor": check,
    "verify": verify,
}


def requests(counts: Counts) -> tuple[int, ...]:
    return counts.reads, counts.stats, counts.lists, counts.puts


def cost(command: str, datasets: int) -> tuple[int, ...]:
    lake, store = lake_of(datasets)
    before = store.counts
    COMMANDS[command](lake)
    return requests(store.counts - before)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_dataset_costs_the_same_number_of_requests(command):
    one, two, four = (cost(command, datasets) for datasets in (2, 4, 8))
    first = tuple(b - a for a, b in zip(one, two, strict=True))
    second = tuple(b - a for a, b in zip(two, four, strict=True))
    assert second == tuple(2 * more for more in first)


def test_list_reads_four_objects_of_a_dataset():
    lake, store = lake_of(1)
    list_all(lake)  # also writes the index of a dataset that was only created
    before = store.counts
    list_all(lake)
    assert requests(store.counts - before) == (4 * KINDS, 0, 1, 0)  # its name, head, newest block and index segment


def test_overview_of_a_list_is_that_of_the_datasets():
    lake, _ = lake_of(1)
    lake["keyed0"].delete([1])
    for one in summarise(lake)[0]:
        dataset, snapshot = lake[one.name], lake[one.name].snapshot()
        assert (one.id, one.records, one.size, one.head) == (
            dataset.id.text,
            snapshot.records,
            snapshot.size,
            snapshot.head.text,
        )
        assert (one.merge, one.key, one.last_offset) == (
            dataset.strategy.kind,
            dataset.strategy.key,
            dataset.last_offset,
        )
        assert one.watermark == dataset.watermark
    assert declare("upsert", "id", None, None) == lake["derived0"].strategy


@pytest.mark.process
def test_worker_processes_list_the_same_datasets(tmp_path, monkeypatch):
    lake = fm.Lake(tmp_path / "lake")
    for number in range(5):
        lake.create(f"d{number}").write(pa.table({"id": [number]}))
    gone = lake["d3"].parts.ledger.objects
    gone.store.delete(gone.head_key)
    listed, damaged = summarise(lake)
    set_limit(monkeypatch, "run.many", 1)
    set_limit(monkeypatch, "run.share", 2)
    again, broken = summarise(lake)
    assert again == listed
    assert [one.name for one in listed] == ["d0", "d1", "d2", "d4"]
    assert broken.keys() == damaged.keys() == {"d3"}
    assert (type(broken["d3"]), broken["d3"].message) == (type(damaged["d3"]), damaged["d3"].message)

"""The log tells, newest first, what every block did."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import START, blocks, events
from limits import set_limit


@pytest.fixture
def dataset(lake, clock):
    made = lake.create("d", event_time="at")
    made.write(events(1, 2), source="k", state="7")
    clock.tick(60)
    made.write(events(1))
    made.advance_watermark(START + timedelta(days=1))
    made.evolve({"tip": "float64"})
    made.purge(before=2)
    return made


def test_log_reads_as_what_happened(dataset):
    told = [(entry.kind, entry.summary) for entry in dataset.log()]
    size = [e.event.new_data.size for e in dataset.log() if e.kind == "AddData" and e.event.new_data]
    assert told == [
        ("AddData", "purged records before offset 2"),
        ("SetDataSchema", "set columns: offset, op, system_time, at, i, tip"),
        ("AddData", "watermark 2026-03-02 00:00:00+00:00"),
        ("AddData", f"+1 records, offsets 2–2 ({size[0] / 1000:.1f} KB)"),
        (
            "AddData",
            f"+2 records, offsets 0–1 ({size[1] / 1000:.1f} KB); watermark 2026-03-01 00:02:00+00:00; source k at 7",
        ),
        ("SetDataSchema", "set columns: offset, op, system_time, at, i"),
        ("AddPushSource", "takes data from 'default', merged by append"),
        ("SetVocab", "event time is at"),
        ("Seed", f"created root dataset {dataset.id.text}"),
    ]


def test_log_is_the_chain_from_its_head(dataset):
    entries = list(dataset.log())
    assert [e.hash for e in entries] == [h for h, _ in blocks(dataset)][::-1]
    assert entries[0].hash == dataset.head
    assert [e.sequence_number for e in entries] == list(range(len(entries)))[::-1]
    assert entries[-1].system_time == START


def test_first_entries_cost_no_more_than_they_are():
    store = CountingStore(MemoryStore())
    dataset = fm.Lake(store).create("d")
    for day in range(50):
        dataset.advance_watermark(START + timedelta(days=day))
    before = store.counts
    assert len(list(itertools.islice(dataset.log(), 5))) == 5
    assert (store.counts - before).reads <= 8


def people(**cities: str) -> pa.Table:
    return pa.table({"name": list(cities), "city": list(cities.values())})


def summaries(dataset) -> list[str]:
    """What the data blocks are said to have done, oldest first, without sizes and watermarks."""
    told = [entry.summary for entry in dataset.log() if entry.kind == "AddData"][::-1]
    return ["; ".join(p.split(" (")[0] for p in s.split("; ") if not p.startswith("watermark")) for s in told]


def test_merged_batch_says_what_its_rows_came_to(lake):
    dataset = lake.create("d", key="name")
    dataset.write(people(ada="London", bob="Paris", cyd="Rome"))
    twice = pa.table({"name": ["ada", "bob", "dee", "dee"], "city": ["London", "Bern", "Oslo", "Bergen"]})
    dataset.write(twice)
    dataset.delete(["ada", "zoe"])
    assert summaries(dataset) == [
        "+3 new, offsets 0–2",
        "+1 new, 1 changed, 1 unchanged, 1 replaced within the batch, offsets 3–5",
        "1 retracted, 1 not found, offsets 6–6",
    ]


def test_delivery_that_changed_nothing_says_so(lake):
    dataset = lake.create("d", key="name")
    dataset.write(people(ada="London"))
    dataset.write(people(ada="London"), source="files", state="2")
    assert summaries(dataset)[-1] == "nothing changed: 1 unchanged; source files at 2"


def test_time_that_a_writer_gave_is_told(lake, clock):
    dataset = lake.create("d", key="name")
    clock.tick(3600)
    dataset.store_chunk(people(ada="London"), now=START)
    dataset.store_chunk(people(ada="Paris"))
    assert summaries(dataset) == [
        "+1 new, offsets 0–0; now was given as 2026-03-01 00:00:00+00:00",
        "1 changed, offsets 1–2",
    ]


def test_batch_of_several_slices_is_counted_once(lake, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 64)
    set_limit(monkeypatch, "buckets.part_bytes", 2000)
    dataset = lake.create("d", key="n")
    commit = dataset.write(pa.table({"n": list(range(100))}))
    *before, last = summaries(dataset)
    assert commit.slices == len(before) + 1 > 1
    assert all(told.split(" records, ")[0].startswith("+") and "new" not in told for told in before)
    assert last.endswith(f"; the batch of {commit.slices} slices: +100 new")
    assert last.startswith("+")


@pytest.mark.parametrize(
    ("merge", "compare", "told"),
    [
        ("ledger", None, "ledger (key a, b)"),
        ("snapshot", None, "snapshot (key a, b)"),
        ("snapshot", ["c"], "snapshot (key a, b; comparing c)"),
        ("changelog", None, "changelog (key a, b)"),
        ("upsert", None, "upsert (key a, b)"),
    ],
)
def test_log_names_the_merge_strategy_and_its_key(memory_lake, merge, compare, told):
    dataset = memory_lake.create("d", key=["a", "b"], merge=merge, compare=compare, lookup="a")
    attached, source, _ = dataset.log()
    assert source.summary == f"takes data from 'default', merged by {told}"
    assert attached.summary == "attached floodmark.json"

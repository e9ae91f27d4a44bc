"""The log tells, newest first, what every block did."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

import floodmark as fm
from floodmark.storage.counting import CountingStore
from floodmark.storage.memory import MemoryStore
from ledger.worlds import START, blocks, events


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

"""The log of a dataset: its blocks, newest first, each with a sentence about what it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from floodmark.chain import events as ev
from floodmark.chain.hashes import Multihash
from floodmark.chain.walk import walk_back
from floodmark.ledger.attributes import PURGE_SOURCE, purged_before
from floodmark.ledger.commit import to_datetime
from floodmark.ledger.objects import DatasetObjects


@dataclass(frozen=True)
class LogEntry:
    """One block of the chain."""

    hash: Multihash
    sequence_number: int
    system_time: datetime
    kind: str
    summary: str
    event: ev.MetadataEvent


def log(objects: DatasetObjects, head: Multihash) -> Iterator[LogEntry]:
    """Every block, newest first; blocks are read as they are asked for."""
    # What a data block moved shows against the data block before it; until that is read, entries wait.
    waiting: list[tuple[Multihash, ev.MetadataBlock]] = []
    for block_hash, _, block in walk_back(objects.get_block, head):
        if isinstance(block.event, ev.AddData | ev.ExecuteTransform):
            yield from _told(waiting, block.event)
            waiting = []
        waiting.append((block_hash, block))
    yield from _told(waiting, None)


def _told(blocks: list[tuple[Multihash, ev.MetadataBlock]], previous: ev.DataEvent | None) -> Iterator[LogEntry]:
    for block_hash, block in blocks:
        yield LogEntry(
            hash=block_hash,
            sequence_number=block.sequence_number,
            system_time=to_datetime(block.system_time),
            kind=ev.kind(block.event),
            summary=summary(block.event, previous),
            event=block.event,
        )


def summary(event: ev.MetadataEvent, previous: ev.DataEvent | None) -> str:
    """What an event did, in one line; `previous` is the data event before it: what it has too is only carried."""
    match event:
        case ev.AddData():
            return _data_summary(event, previous)
        case ev.ExecuteTransform():
            return _data_summary(event, previous)
        case ev.Seed():
            return f"created {event.dataset_kind.name.lower()} dataset {event.dataset_id.text}"
        case ev.SetDataSchema():
            fields = event.schema.fields if event.schema is not None else ()
            return f"set columns: {', '.join(f.name for f in fields)}"
        case ev.SetVocab():
            return f"event time is {event.event_time_column or 'event_time'}"
        case ev.AddPushSource():
            return f"takes data from {event.source_name!r}, merged by {type(event.merge).__name__[13:].lower()}"
        case ev.SetTransform():
            return f"derived from {', '.join(i.alias or i.dataset_ref for i in event.inputs)}"
        case ev.SetInfo():
            return f"described as {event.description!r}"
        case ev.SetLicense():
            return f"licence {event.short_name}"
        case _:
            return ev.kind(event)


def _data_summary(event: ev.DataEvent, previous: ev.DataEvent | None) -> str:
    moved = []
    if event.new_data is not None:
        new = event.new_data
        interval = new.offset_interval
        moved.append(f"+{new.rows:,} records, offsets {interval.start}–{interval.end} ({_bytes(new.size)})")
    if event.new_watermark is not None and (previous is None or previous.new_watermark != event.new_watermark):
        moved.append(f"watermark {to_datetime(event.new_watermark).isoformat(sep=' ', timespec='seconds')}")
    state = ev.source_state(event)
    if state is not None and (previous is None or ev.source_state(previous) != state):
        if state.source_name == PURGE_SOURCE:
            moved.append(f"purged records before offset {purged_before(state)}")
        else:
            moved.append(f"source {state.source_name} at {state.value}")
    return "; ".join(moved) or "moved nothing visible"


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"

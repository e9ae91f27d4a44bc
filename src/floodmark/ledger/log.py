"""The log of a dataset: its blocks, newest first, each with a one-line summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from floodmark.chain import events as ev
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.chain.source_steps import MergeStrategy, MergeStrategySnapshot
from floodmark.chain.state import parse_input_ids
from floodmark.chain.walk import walk_back
from floodmark.errors import FloodmarkError
from floodmark.ledger.block_attributes import (
    ERASE_SOURCE,
    PURGE_SOURCE,
    BatchTally,
    carried_amount,
    carried_before,
    commit_part,
    erasure_of,
    purged_amount,
    purged_before,
    tally_of,
)
from floodmark.ledger.commit import Commit, describe_commit, ends_transaction, read_commit, to_datetime
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import load_snapshot
from floodmark.storage.parquet import count_operations


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
    """All blocks, newest first. Blocks are read lazily."""
    aliases: dict[DatasetId, str] | None = None
    # A data block is summarised by its difference to the data block before it, so entries wait until that is read.
    waiting: list[tuple[Multihash, ev.MetadataBlock]] = []
    for block_hash, _, block in walk_back(objects.get_block, head):
        if isinstance(block.event, ev.AddData | ev.ExecuteTransform):
            yield from _entries(objects, waiting, block.event, aliases or {})
            waiting = []
        if isinstance(block.event, ev.ExecuteTransform) and aliases is None:
            aliases = _aliases(objects, head)
        waiting.append((block_hash, block))
    yield from _entries(objects, waiting, None, aliases or {})


def _aliases(objects: DatasetObjects, head: Multihash) -> dict[DatasetId, str]:
    """The names that the transform uses for its inputs."""
    try:
        transform = load_snapshot(objects, head, {}).state.transform
    except FloodmarkError:
        return {}  # show ids instead: the walk over a damaged chain goes on and reports where the chain breaks
    if transform is None:
        return {}
    pairs = zip(parse_input_ids(transform), transform.inputs, strict=True)
    return {id_: item.alias for id_, item in pairs if id_ is not None and item.alias}


def _entries(
    objects: DatasetObjects,
    blocks: list[tuple[Multihash, ev.MetadataBlock]],
    previous: ev.DataEvent | None,
    aliases: Mapping[DatasetId, str],
) -> Iterator[LogEntry]:
    for block_hash, block in blocks:
        tally = _result_tally(objects, block.event) if isinstance(block.event, ev.ExecuteTransform) else None
        yield LogEntry(
            hash=block_hash,
            sequence_number=block.sequence_number,
            system_time=to_datetime(block.system_time),
            kind=ev.kind(block.event),
            summary=summary(block.event, previous, aliases, tally),
            event=block.event,
        )


def _result_tally(objects: DatasetObjects, event: ev.ExecuteTransform) -> BatchTally | None:
    """The counts of a slice of results, from the operations of its records; None without a readable slice."""
    if event.new_data is None:
        return None
    found = count_operations(objects.store, objects.data_key(event.new_data.physical_hash), event.new_data.size)
    return None if found is None else BatchTally(new=int(found[0]), retracted=int(found[1]), changed=int(found[3]))


def summary(
    event: ev.MetadataEvent,
    previous: ev.DataEvent | None,
    aliases: Mapping[DatasetId, str] | None = None,
    tally: BatchTally | None = None,
) -> str:
    """A one-line summary of an event.

    `previous` is the data event before it: values that both have did not change. `aliases` are the names of a
    transform's inputs. `tally` has the counts of results, which their blocks lack.
    """
    match event:
        case ev.AddData():
            return _data_summary(event, previous, tally_of(event))
        case ev.ExecuteTransform():
            return _data_summary(event, previous, tally, _read_inputs(event, aliases or {}))
        case ev.Seed():
            return f"created {event.dataset_kind.name.lower()} dataset {event.dataset_id.text}"
        case ev.SetDataSchema() if erasure_of(event) is not None:
            return _erase_summary(event)
        case ev.SetDataSchema():
            columns = event.columns
            return f"set columns: {', '.join(f.name for f in columns.fields) if columns is not None else 'unreadable'}"
        case ev.SetVocab():
            return f"event time is {event.event_time_column or 'event_time'}"
        case ev.AddPushSource():
            return f"takes data from {event.source_name!r}, merged by {_merge(event.merge)}"
        case ev.SetTransform():
            version = f", version {event.transform.version}" if event.transform.version else ""
            return f"derived from {', '.join(i.alias or i.dataset_ref for i in event.inputs)}{version}"
        case ev.SetAttachments():
            return f"attached {', '.join(item.path for item in event.attachments.items)}"
        case ev.SetInfo():
            return f"described as {event.description!r}"
        case ev.SetLicense():
            return f"licence {event.short_name}"
        case _:
            return ev.kind(event)


def format_counts(batch: BatchTally | Commit) -> str:
    """The row counts of a batch by outcome: ``+3 new, 2 changed, 10 unchanged``. Empty if the batch had no rows."""
    counts = [
        (batch.new, "+{:,} new"),
        (batch.changed, "{:,} changed"),
        (batch.retracted, "{:,} retracted"),
        (batch.unchanged, "{:,} unchanged"),
        (batch.duplicates, "{:,} replaced within the batch"),
        (batch.unknown, "{:,} not found"),
    ]
    return ", ".join(template.format(count) for count, template in counts if count)


def _read_inputs(event: ev.ExecuteTransform, aliases: Mapping[DatasetId, str]) -> list[str]:
    """How far a transaction has read each input that it read further."""
    phrases = []
    for item in event.query_inputs:
        if item.new_block_hash is not None:
            name = aliases.get(item.dataset_id, item.dataset_id.text)
            offsets = f"up to offset {item.new_offset}" if item.new_offset is not None else "(no new records)"
            phrases.append(f"read {name} {offsets}")
    return phrases


def _data_summary(
    event: ev.DataEvent, previous: ev.DataEvent | None, tally: BatchTally | None, read: Sequence[str] = ()
) -> str:
    moved = []
    if event.new_data is not None:
        moved.append(_slice_summary(event, event.new_data, tally))
    elif tally is not None:
        moved.append(f"nothing changed: {format_counts(tally) or 'an empty batch'}")
    if tally is not None and tally.now is not None:
        moved.append(f"now was given as {_clock(datetime.fromisoformat(tally.now))}")
    moved += read
    if event.new_watermark is not None and (previous is None or previous.new_watermark != event.new_watermark):
        moved.append(f"watermark {_clock(to_datetime(event.new_watermark))}")
    state = ev.source_state(event)
    if state is not None and (previous is None or ev.source_state(previous) != state):
        if state.source_name == PURGE_SOURCE:
            moved.append(_purge_summary(event, purged_before(state)))
        elif state.source_name == ERASE_SOURCE:
            moved.append(_erase_summary(event))
        else:
            moved.append(f"source {state.source_name} at {state.value}")
    if not moved and event.new_checkpoint is not None:
        moved.append("only recorded which keys were processed")
    return "; ".join(moved) or "no visible change"


def last_change(objects: DatasetObjects, head: Multihash, block: ev.MetadataBlock) -> str:
    """What the newest commit changed, in short; empty if its block does not say so, as for results of steps."""
    event = block.event
    if erasure_of(event) is not None:
        return _erase_summary(event)
    if not isinstance(event, ev.AddData):
        return ""
    if purged_amount(event)[0] and event.new_source_state is not None:
        return _purge_summary(event, purged_before(event.new_source_state))
    is_single = commit_part(event)[0] == 0
    return format_counts(describe_commit([(head, b"", block)], None) if is_single else read_commit(objects, head, None))


def last_result(objects: DatasetObjects, head: Multihash) -> str:
    """What the newest transaction of a step or view changed, in short, from the operations of its records."""
    tally = BatchTally()
    for block_hash, _, block in walk_back(objects.get_block, head):
        event = block.event
        if not isinstance(event, ev.ExecuteTransform) or (block_hash != head and ends_transaction(event)):
            break
        tally += _result_tally(objects, event) or BatchTally()
    return format_counts(tally)


def _purge_summary(event: ev.DataEvent, before: int) -> str:
    carried = carried_amount(event)
    rows = "1 current row of them was" if carried == 1 else f"{carried:,} current rows of them were"
    return f"purged records before offset {before}" + (f"; {rows} carried to new offsets" if carried else "")


def _erase_summary(event: ev.MetadataEvent) -> str:
    erasure = erasure_of(event)
    if erasure is None:
        return "erased records"
    keys = "1 key" if len(erasure.keys) == 1 else f"{len(erasure.keys):,} keys"
    slices = "1 slice" if len(erasure.slices) == 1 else f"{len(erasure.slices):,} slices"
    return f"erased {keys} from {slices}"


def _slice_summary(event: ev.DataEvent, new: ev.DataSlice, tally: BatchTally | None) -> str:
    """The records of one slice. The last slice of a merged batch also has the counts of the whole batch."""
    where = f"offsets {new.offset_interval.start}–{new.offset_interval.end} ({_bytes(new.size)})"
    if before := carried_before(event):
        rows = "1 current row" if new.rows == 1 else f"{new.rows:,} current rows"
        return f"carried {rows} from before offset {before}, {where}"
    _, slices = commit_part(event)
    if tally is None:
        return f"+{new.rows:,} records, {where}"
    if slices == 1:
        return f"{format_counts(tally)}, {where}"
    return f"+{new.rows:,} records, {where}; the batch of {slices} slices: {format_counts(tally)}"


def _merge(merge: MergeStrategy) -> str:
    kind = type(merge).__name__.removeprefix("MergeStrategy").removesuffix("Stream").lower()
    key: tuple[str, ...] = getattr(merge, "primary_key", ())
    if not key:
        return kind
    compared = merge.compare_columns if isinstance(merge, MergeStrategySnapshot) else None
    comparing = "" if compared is None else f"; comparing {', '.join(compared)}"
    return f"{kind} (key {', '.join(key)}{comparing})"


def _clock(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds")


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"

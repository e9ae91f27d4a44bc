"""Small keyed ledgers for the tests of the key index, written below the merge strategies, and a naive index of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

import floodmark as fm
from floodmark.ledger import snapshot as snapshots
from floodmark.ledger.append import with_event_time
from floodmark.ledger.commit import data_events, plan_blocks, publish
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import declare
from floodmark.rows.key_entries import IndexRecords, write_delta
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import Hashes
from floodmark.storage.parquet import write_slice
from floodmark.storage.store import Store

Row = tuple[int, int, int, int]  # op, area, id, value
COLUMNS = ("area", "id", "value")
KEY = ("area", "id")
NAME = "readings"
_NOW_MS = 1_772_323_200_000
ADD, RETRACT, OLD, NEW = 0, 1, 2, 3


@dataclass
class Naive:
    """What a dictionary knows of a sequence of records: keys are any values, in the order of their records."""

    live: dict[object, tuple[int, object]] = field(default_factory=dict)  # key → offset, row
    seen: set[object] = field(default_factory=set)
    kills: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    def add(self, op: int, key: object, row: object) -> int:
        """One more record; the offset of the row that was the key's current one, -1 if there was none."""
        old, _ = self.live.pop(key, (-1, None))
        self.seen.add(key)
        if old >= 0:
            self.kills.append((old, self.end))
        if op in (ADD, NEW):
            self.live[key] = (self.end, row)
        else:
            self.kills.append((self.end, self.end))
        self.end += 1
        return old

    def dead(self, end: int) -> list[int]:
        return sorted(offset for offset, by in self.kills if offset < end and by < end)


class Ledger:
    """A dataset with the columns area, id and value, to which tests commit records as they like."""

    def __init__(self, store: Store, *, lookup: Sequence[str] | None = None) -> None:
        self.store = store
        runtime = fm.Runtime(clock=lambda: _NOW_MS * 10**6, sleep=lambda _: None)
        self.lake = fm.Lake(store, runtime=runtime)
        schema = dict.fromkeys(COLUMNS, "int64")
        self.dataset = self.lake.create(NAME, key=KEY, lookup=lookup, schema=schema, exist_ok=True)
        self.strategy = declare("upsert", KEY, None, lookup)
        self.naive = Naive()
        self.rows: list[Row] = []

    @property
    def objects(self) -> DatasetObjects:
        return self.dataset.snapshot().objects

    def snapshot(self) -> Snapshot:
        head = self.objects.read_head()
        assert head is not None
        return snapshots.load_snapshot(self.objects, head, {})

    def commit(self, *slices: Sequence[Row]) -> tuple[Snapshot, list[IndexRecords]]:
        """Commit slices of records; the snapshot after it, and what the index has to know of each slice."""
        snapshot = self.snapshot()
        layout = snapshot.require_layout("test")
        files, records = [], []
        for rows in slices:
            start = self.naive.end
            old = [self.note(row) for row in rows]
            old = [offset if offset < start else -1 for offset in old]
            data, ops = _widened(table(rows), layout.data), np.array([row[0] for row in rows], np.int32)
            path = self.store.staging() / uuid.uuid4().hex
            payload = with_event_time(data, layout, _NOW_MS).cast(layout.payload_schema)
            files.append(
                write_slice(
                    path, payload, vocab=layout.vocab, start=start, system_time_ms=_NOW_MS, known_digests={}, ops=ops
                )
            )
            records.append(self.records(rows, start, old))
        planned, state = plan_blocks(snapshot.state, data_events(snapshot.state, files, None), _NOW_MS * 10**6)
        assert publish(self.objects, snapshot.head, files, planned)
        return snapshot.after(planned, state), records

    def records(self, rows: Sequence[Row], start: int, old: list[int]) -> IndexRecords:
        data, strategy = table(rows), self.strategy
        lookup = hash_rows(data, strategy.lookup) if strategy.lookup != strategy.key else None
        op = np.array([row[0] for row in rows], np.int32)
        return IndexRecords(
            start, hash_rows(data, strategy.key), hash_rows(data, COLUMNS), op, np.array(old, np.int64), lookup
        )

    def extended(self, index: KeyIndex, snapshot: Snapshot, records: Sequence[IndexRecords]) -> KeyIndex:
        """The index after a commit, as a writer makes it."""
        additions = [write_delta(self.store.staging(), batch) for batch in records]
        return index.extended(newest_block(snapshot), snapshot.next_offset, additions)

    def keys(self, some: Sequence[tuple[int, int]]) -> tuple[Hashes, Hashes | None]:
        """The hashes of keys (area, id) and, when a prefix is declared, of it."""
        data = table([(0, area, number, 0) for area, number in some])
        strategy = self.strategy
        lookup = hash_rows(data, strategy.lookup) if strategy.lookup != strategy.key else None
        return hash_rows(data, strategy.key), lookup

    def note(self, row: Row) -> int:
        """Let the naive index know of a record."""
        op, area, number, value = row
        self.rows.append(row)
        return self.naive.add(op, (area, number), (area, number, value))


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[i + 1] for row in rows], pa.int64()) for i, name in enumerate(COLUMNS)})


def _widened(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns that were added later, which are null."""
    for added in schema.names[len(COLUMNS) :]:
        data = data.append_column(added, pa.nulls(data.num_rows, schema.field(added).type))
    return data


def newest_block(snapshot: Snapshot) -> tuple[int, bytes]:
    last = snapshot.all_slices.slice(snapshot.all_slices.num_rows - 1).to_pylist()[0]
    return last["sequence_number"], last["block"]


def wrong(index: KeyIndex, ledger: Ledger) -> str | None:
    """How the index differs from the naive one, None when it does not."""
    naive = ledger.naive
    known = [*sorted(naive.seen), (-1, -1), (99, 99)]
    found = index.find(*ledger.keys(known))
    expected = [naive.live.get(key, (-1, None))[0] for key in known]
    if found.offset.tolist() != expected:
        return f"find gives {found.offset.tolist()} for {known}, not {expected}"
    rows = hash_rows(table([(0, *naive.live[key][1]) if key in naive.live else (0, 0, 0, 0) for key in known]), COLUMNS)
    if not found.row.same(rows)[found.offset >= 0].all():
        return "find gives wrong row hashes"
    never = [key not in naive.seen for key in known]
    if found.seen[never].any() or (~found.seen & (found.offset >= 0)).any():
        return "find has seen keys that never were"
    offsets = sorted(index.live_between().offset.tolist())
    if offsets != sorted(offset for offset, _ in naive.live.values()):
        return f"live_between gives {offsets}"
    for end in (None, *range(naive.end + 1)):
        if index.dead(end).tolist() != naive.dead(naive.end if end is None else end):
            return f"dead({end}) gives {index.dead(end).tolist()}, not {naive.dead(end or naive.end)}"
    if (index.dead_count, index.live_count) != (len(naive.kills), len(naive.live)):
        return f"it counts {index.dead_count} dead and {index.live_count} live"
    if index.end != naive.end:
        return f"it ends at {index.end}"
    return None

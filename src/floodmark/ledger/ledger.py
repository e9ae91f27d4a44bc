"""The ledger of a dataset: records by offset, and the chain that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from floodmark.chain.events import SourceState
from floodmark.chain.ids import Multihash
from floodmark.engine.progress import Progress
from floodmark.engine.session import Runtime
from floodmark.engine.spark_launch import explain_dead_jvm
from floodmark.errors import ObjectNotFound, UnknownDataset
from floodmark.ledger import log as logs
from floodmark.ledger import snapshot as snapshots
from floodmark.ledger.append import Append, Write
from floodmark.ledger.commit import Commit, describe_commit
from floodmark.ledger.create import commit_events, evolution_events, watermark_events
from floodmark.ledger.data_input import Incoming
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position
from floodmark.ledger.scan import Scan, checked_columns
from floodmark.ledger.schema import Layout, fields_from
from floodmark.ledger.selection import Selection, select_interval
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import VerifyReport, verify

P = ParamSpec("P")
T = TypeVar("T")


class Ledger:
    """The chain of one dataset and its records. Every call reads the present head."""

    def __init__(self, name: str, objects: DatasetObjects, runtime: Runtime) -> None:
        self.name = name
        self.objects = objects
        self.runtime = runtime
        self.latest: Snapshot | None = None  # reused while the head has not moved

    def snapshot(self) -> Snapshot:
        """The dataset as of its present head. It is read again only after the head has moved."""
        head = self.objects.read_head()
        if head is None:
            raise self.gone()
        if self.latest is None or head != self.latest.head:
            known = {} if self.latest is None else self.latest.index.loaded
            try:
                self.latest = snapshots.load_snapshot(self.objects, head, known)
            except ObjectNotFound as error:
                if self.objects.read_head() is None:
                    raise self.gone() from error
                raise
        return self.latest

    def gone(self) -> UnknownDataset:
        """The error for a dataset that was dropped."""
        return UnknownDataset(
            f"dataset {self.name!r} no longer exists", hint="it was dropped: create it again", name=self.name
        )

    def move_to(self, objects: DatasetObjects) -> None:
        """Continue with another dataset, which has replaced this one."""
        self.objects, self.latest = objects, None

    def retry_if_replaced(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a read of several objects. A subclass repeats it if another dataset replaces this one meanwhile."""
        return read(*args, **options)

    # Write

    def append(self, data: Incoming, source_state: SourceState | None) -> Commit:
        """Append every row as a new record, in one commit."""
        return self.write(self.snapshot(), partial(Append, self.name, self.runtime, data, source_state))

    def write(self, snapshot: Snapshot, begin: Callable[[Progress], Write]) -> Commit:
        """Run a write that starts from a snapshot, and keep the snapshot after it."""
        progress = self.runtime.progress()
        progress.start(f"writing {self.name}", None)
        try:
            with explain_dead_jvm():
                written = begin(progress).run(snapshot)
        finally:
            progress.finish()
        self.latest = written.snapshot
        return written.commit

    def advance_watermark(self, to: datetime | date | str) -> Commit | None:
        """Record that the data is complete up to a time; None if the watermark is already at that time."""
        build = partial(watermark_events, self.name, to)
        planned, self.latest = commit_events(self.name, self.snapshot, build, self.runtime)
        return describe_commit(planned, None) if planned else None

    def evolve(self, added: Any) -> pa.Schema:
        """Add optional columns, and return the new schema."""
        build = partial(evolution_events, self.name, fields_from(added))
        _, self.latest = commit_events(self.name, self.snapshot, build, self.runtime)
        return self.latest.require_layout(self.name).data

    # Read

    def layout(self, snapshot: Snapshot) -> Layout:
        """The columns of the records. Raises `NoSchema` before the first write."""
        return snapshot.require_layout(self.name)

    def columns(self, snapshot: Snapshot) -> list[str]:
        """The columns that readers see: the system columns, then the data columns."""
        layout = self.layout(snapshot)
        return [*layout.vocab.reserved, *layout.shown.names]

    def scan(self, snapshot: Snapshot, selection: Selection, columns: Sequence[str] | None) -> Scan:
        """The records of a selection, dead ones included."""
        layout = self.layout(snapshot)
        return Scan(snapshot.objects, layout, selection, checked_columns(layout, columns, self.name))

    def changes(self, since: int | Position | None, until: int | Position | None) -> Scan:
        """The records with offsets after `since`, up to and with `until`, with system columns."""
        snapshot = self.snapshot()
        return self.scan(snapshot, select_interval(snapshot, self.name, since, until), self.columns(snapshot))

    def log(self) -> Iterator[logs.LogEntry]:
        """The blocks, newest first."""
        snapshot = self.snapshot()
        return logs.log(snapshot.objects, snapshot.head)

    def verify(self, expect: str | None = None) -> VerifyReport:
        """Check every block against the rules, and every slice and checkpoint against its hashes."""
        block = None if expect is None else Multihash.parse(expect)
        return verify(self.name, self.objects, self.runtime, self.runtime.progress(), block)

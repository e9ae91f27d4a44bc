"""A dataset and its naive model, which must agree after everything that is done to both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from histories.machines import reopened
from rows.naive import Counts, Key, Naive, Outcome, Refused, Row, exact

SYSTEM = ("offset", "op", "system_time")


class Twin:
    """Does everything twice and compares."""

    def __init__(self, lake: fm.Lake, schema: pa.Schema | dict[str, Any], kind: str, key: Sequence[str] = (), **more):
        compare = more.get("compare")
        self.lake = lake
        self.schema = schema if isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))
        self.model = Naive(kind, tuple(key), None if compare is None else tuple(compare), more.get("event_time"))
        self.dataset = lake.create("d", key=list(key) or None, merge=kind, schema=self.schema, **more)
        self.commits: list[tuple[fm.Commit, int]] = []  # and how many records there were after each

    # What is done

    def write(self, rows: Sequence[Row], **more: Any) -> fm.Commit | None:
        table = self.table(rows)
        return self._both(lambda: self.dataset.write(table, **more), lambda: self.model.write(rows), "source" in more)

    def delete(self, keys: Sequence[Key]) -> fm.Commit | None:
        return self._both(lambda: self.dataset.delete(self.keys(keys)), lambda: self.model.delete(keys))

    def store_chunk(self, rows: Sequence[Row], processed: Sequence[Row] | None = None, **more: Any) -> fm.Commit | None:
        index = None
        if processed is not None:
            names = list(processed[0]) if processed else self.model.key
            fields = pa.schema([self.schema.field(name) for name in names])
            index = pa.Table.from_pylist(list(processed), fields)
        table = self.table(rows)
        return self._both(
            lambda: self.dataset.store_chunk(table, processed_idx=index, **more),
            lambda: self.model.store_chunk(rows, processed or ()),
            "source" in more,
        )

    def evolve(self, name: str, kind: pa.DataType) -> None:
        self.dataset.evolve({name: kind})
        self.schema = self.schema.append(pa.field(name, kind))

    def reopen(self) -> None:
        """As another process would see it."""
        self.lake = reopened(self.lake)
        self.dataset = self.lake["d"]

    def _both(self, real: Callable[[], fm.Commit], naive: Callable[[], Outcome], always: bool = False):
        """The commit, after its counts and records were compared; None when both refuse."""
        head, start = self.dataset.head, len(self.model.records)
        try:
            expected = naive()
        except Refused as refused:
            with pytest.raises(refused.error):
                real()
            assert self.dataset.head == head, "a batch that is refused writes nothing"
            return None
        commit = real()
        assert Counts.of(commit) == expected.counts
        assert (commit.start, commit.end) == (start, start + len(expected.records))
        self._take_order(commit, start)
        assert self.records(start) == [(op, self.exact(row)) for op, row in self.model.records[start:]]
        if not expected.records and not always:
            assert commit.block == head == self.dataset.head, "a batch that changes nothing adds no block"
        else:
            assert commit.block == self.dataset.head != head
        self.commits.append((commit, len(self.model.records)))
        return commit

    def _take_order(self, commit: fm.Commit, start: int) -> None:
        """A large commit has its keys in several slices, and which key comes first is its own affair."""
        if commit.slices > 1:
            found = self.dataset.changes_arrow(since=start - 1).to_pylist()
            places = {key: i for i, key in reversed(list(enumerate(map(self.model.key_of, found))))}
            self.model.records[start:] = sorted(
                self.model.records[start:], key=lambda record: places.get(self.model.key_of(record[1]), -1)
            )

    # What they hold

    def table(self, rows: Sequence[Row]) -> pa.Table:
        with_op = self.model.kind == "changelog" or any("op" in row for row in rows)
        fields = [*self.schema, pa.field("op", pa.int32())] if with_op else list(self.schema)
        filled = [{"op": 0, **row} for row in rows] if with_op else list(rows)
        return pa.Table.from_pylist(filled, pa.schema(fields))

    def keys(self, keys: Iterable[Key]) -> pa.Table:
        fields = pa.schema([self.schema.field(name) for name in self.model.key])
        return pa.Table.from_pylist([dict(zip(self.model.key, key, strict=True)) for key in keys], fields)

    def exact(self, row: Row) -> Any:
        return exact({name: row.get(name) for name in self.schema.names})

    def records(self, start: int = 0) -> list[tuple[int, Any]]:
        """(op, row) of the ledger from an offset on."""
        found = self.dataset.changes_arrow(since=start - 1).to_pylist()
        assert [row["offset"] for row in found] == list(range(start, start + len(found)))
        return [(row["op"], self.exact(row)) for row in found]

    def check(self) -> None:
        """Everything that can be read of the present."""
        expected = self.model.current()
        table = self.dataset.to_arrow()
        assert table.column_names == self.schema.names
        assert [self.exact(row) for row in table.to_pylist()] == [self.exact(row) for _, row in expected]
        assert self.dataset.count() == len(expected)
        offsets = self.dataset.to_batches(columns=["offset"]).read_all().column("offset").to_pylist()
        assert offsets == [offset for offset, _ in expected]
        assert self.records() == [(op, self.exact(row)) for op, row in self.model.records]

    def check_past(self, end: int) -> None:
        """The state after the first `end` records."""
        found = self.dataset.to_arrow(as_of=end - 1).to_pylist()
        assert [self.exact(row) for row in found] == [self.exact(row) for _, row in self.model.current(end)]

    def check_key(self, key: Key) -> None:
        """One key's current row and its life."""
        keys = self.keys([key])
        there = self.model.by_key().get(key)
        assert [self.exact(row) for row in self.dataset.get(keys).to_pylist()] == (
            [] if there is None else [self.exact(there)]
        )
        found = self.dataset.history(keys)
        assert set(found.column_names) == {*SYSTEM, *self.schema.names}
        assert [(row["offset"], row["op"], self.exact(row)) for row in found.to_pylist()] == [
            (offset, op, self.exact(row)) for offset, op, row in self.model.history(key)
        ]

    def check_all(self) -> None:
        """The present, every past, and every key there ever was."""
        self.check()
        for end in range(len(self.model.records) + 1):
            self.check_past(end)
        for commit, end in self.commits:
            found = self.dataset.to_arrow(as_of=commit.block)
            assert [self.exact(r) for r in found.to_pylist()] == [self.exact(r) for _, r in self.model.current(end)]
        if self.model.key:
            for key in sorted({self.model.key_of(row) for _, row in self.model.records}):
                self.check_key(key)

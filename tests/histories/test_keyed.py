"""Whatever is done to a keyed dataset, in whatever order, it agrees with a list of records and a dictionary."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import CommitConflict
from floodmark.ledger import parts
from floodmark.rows import buckets, fold, key_index, key_index_loader
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from histories.machines import Machine, begins, precondition, rule, run_histories
from ledger.worlds import Clock
from rows.harm import HARM, go_back, harm, lose_all, saved
from rows.naive import ADD, NEW, OLD, RETRACT, Row
from rows.twins import Twin

COLUMNS = {"g": pa.string(), "id": pa.int64(), "v": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64())}
KEYS = {"one column": ("id",), "two columns": ("g", "id"), "text": ("g",)}

groups = st.sampled_from(["a", "b", ""])
numbers = st.integers(0, 3)
# Few values, and those that are easily taken for each other, so that rows often come back and nearly come back.
values = {
    "v": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
    "s": st.sampled_from([None, "", "a"]),
    "l": st.sampled_from([None, [], [1, 2], [1, None, 2]]),
}
rows = st.fixed_dictionaries({"g": groups, "id": numbers, **values})
batches = st.lists(rows, max_size=5)
extras = st.sampled_from([None, "x", ""])

# Parts of few rows, slices of few keys, segments of few entries: what large batches come to.
SCATTERED = [
    (parts, "PART_BYTES", 100),
    (buckets.group_buckets, "__defaults__", (100,)),
    (key_index_loader, "GROUP_ROWS", 3),
    (key_index, "FAN_IN", 2),
    (key_index, "SMALLEST_TIER", 2),
    (fold, "WORTH_ROWS", 1),
    (fold.FoldRule.__init__, "__defaults__", (128 << 20, 8, 0.0)),
]


class Histories(Machine):
    """One dataset of one strategy, done to by chance."""

    kind: ClassVar[str]
    compare: ClassVar[tuple[str, ...] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[str, bytes] = {}
        self.harmed = False
        self.steps = 0
        self.patched = ExitStack()

    @begins(
        shape=st.sampled_from(sorted(KEYS)),
        memory=st.booleans(),
        fold_at=st.sampled_from([None, 0.1, 0.5]),
        scattered=st.booleans(),
    )
    def create(self, shape: str, memory: bool, fold_at: float | None, scattered: bool) -> None:
        if memory:
            store: Any = MemoryStore()
        else:
            store = LocalStore(self.root / "lake", HastyFileSystem())
        self.clock = Clock()
        runtime = fm.Runtime(clock=self.clock, sleep=lambda _: None, fold_at=fold_at)
        if scattered:
            for place, name, value in SCATTERED:
                self.patched.enter_context(mock.patch.object(place, name, value))
        more: dict[str, Any] = {}
        key = () if self.kind == "append" else KEYS[shape]
        if len(key) > 1:
            more["lookup"] = ["g"]
        if self.compare is not None:
            more["compare"] = [name for name in self.compare if name not in key]
        self.twin = Twin(fm.Lake(store, runtime=runtime), COLUMNS, self.kind, key, **more)

    def filled(self, given: list[Row], extra: str | None) -> list[Row]:
        """The rows with a value in each column that was added meanwhile."""
        added = [name for name in self.twin.schema.names if name not in COLUMNS]
        return [{**row, **dict.fromkeys(added, extra)} for row in given]

    def once(self, given: list[Row]) -> list[Row]:
        """The first row of each key."""
        first: dict[Any, Row] = {}
        for row in given:
            first.setdefault(self.twin.model.key_of(row), row)
        return list(first.values())

    # What is done to it

    @rule(rows=batches, extra=extras, may_repeat=st.booleans())
    def write(self, rows: list[Row], extra: str | None, may_repeat: bool) -> None:
        if self.kind == "changelog":
            return
        self.clock.tick()
        rows = self.filled(rows, extra)
        if self.kind in ("snapshot", "ledger") and not may_repeat:
            rows = self.once(rows)
        if not rows and self.kind != "snapshot":
            return  # an error that says so; another test's
        self.twin.write(rows)

    @precondition(lambda self: self.kind == "changelog")
    @rule(
        steps=st.lists(
            st.tuples(rows, st.sampled_from(["right"] * 7 + ["wrong"]), st.booleans()), min_size=1, max_size=5
        ),
        op=st.integers(0, 3),
        extra=extras,
    )
    def write_changelog(self, steps: list[tuple[Row, str, bool]], op: int, extra: str | None) -> None:
        """Mostly what fits the rows that are there, and sometimes just anything."""
        self.clock.tick()
        there: dict[Any, Row] = dict(self.twin.model.by_key())
        given: list[Row] = []
        for (row, how, retracts), plain in zip(steps, self.filled([row for row, _, _ in steps], extra), strict=True):
            key = self.twin.model.key_of(row)
            if how == "wrong":
                given.append({**there.get(key, plain), **({} if retracts else plain), "op": op})
            elif key not in there:
                given.append({**plain, "op": ADD})
                there[key] = plain
            elif retracts:
                given.append({**there.pop(key), "op": RETRACT})
            else:
                given += [{**there[key], "op": OLD}, {**plain, "op": NEW}]
                there[key] = plain
        self.twin.write(given)

    @precondition(lambda self: self.kind not in ("append", "ledger"))
    @rule(rows=st.lists(rows, min_size=1, max_size=3))
    def delete(self, rows: list[Row]) -> None:
        self.clock.tick()
        self.twin.delete(sorted({self.twin.model.key_of(row) for row in rows}))

    @precondition(lambda self: self.kind == "upsert")
    @rule(
        rows=batches,
        processed=st.none() | st.lists(rows, max_size=3),
        names=st.sampled_from([("g",), ("id",), ("g", "id")]),
        extra=extras,
    )
    def store_chunk(
        self, rows: list[Row], processed: list[Row] | None, names: tuple[str, ...], extra: str | None
    ) -> None:
        self.clock.tick()
        names = tuple(name for name in names if name in self.twin.model.key) or self.twin.model.key
        if processed is not None:
            parts = {tuple(row[name] for name in names) for row in processed}
            processed = [dict(zip(names, part, strict=True)) for part in sorted(parts)]
        if not rows and not processed:
            return
        self.twin.store_chunk(self.filled(rows, extra), processed)

    @precondition(lambda self: len(self.twin.schema) < len(COLUMNS) + 2)
    @rule()
    def evolve(self) -> None:
        self.twin.evolve(f"x{len(self.twin.schema)}", pa.string())

    # What should make no difference

    @rule()
    def fold(self) -> None:
        try:
            self.twin.dataset.fold()
        except CommitConflict:
            pytest.fail("a fold commits nothing")

    @rule()
    def reopen(self) -> None:
        self.twin.reopen()

    @rule(how=st.sampled_from(sorted(HARM)), which=st.integers(0, 100), at=st.integers(0, 10**6), reopens=st.booleans())
    def harm(self, how: str, which: int, at: int, reopens: bool) -> None:
        harm(self.twin.dataset, how, which, at)
        self.harmed = True
        if reopens:
            self.twin.reopen()

    @rule(reopens=st.booleans())
    def lose_all(self, reopens: bool) -> None:
        lose_all(self.twin.dataset)
        self.harmed = True
        if reopens:
            self.twin.reopen()

    @rule()
    def save(self) -> None:
        self.saved = saved(self.twin.dataset)

    @precondition(lambda self: self.saved)
    @rule(reopens=st.booleans())
    def go_back(self, reopens: bool) -> None:
        go_back(self.twin.dataset, self.saved)
        self.harmed = True
        if reopens:
            self.twin.reopen()

    # What is seen of it

    @precondition(lambda self: len(self.twin.model.key) > 1)
    @rule(name=st.sampled_from(["g", "id"]), row=rows)
    def look_up_by_a_part_of_the_key(self, name: str, row: Row) -> None:
        found = self.twin.dataset.get(pa.table({name: pa.array([row[name]], COLUMNS[name])})).to_pylist()
        expected = [r for _, r in self.twin.model.current() if r[name] == row[name]]
        assert sorted(map(self.twin.exact, found), key=repr) == sorted(map(self.twin.exact, expected), key=repr)

    def check(self) -> None:
        """The present, one moment of the past and one key; all of both in the end."""
        self.twin.check()
        self.steps += 1
        self.twin.check_past(self.steps * 7 % (len(self.twin.model.records) + 1))
        if self.twin.model.key and self.twin.model.records:
            _, row = self.twin.model.records[self.steps * 5 % len(self.twin.model.records)]
            self.twin.check_key(self.twin.model.key_of(row))

    def check_end(self) -> None:
        self.twin.check_all()
        if not self.harmed:
            assert self.twin.dataset.verify().problems == ()

    def close(self) -> None:
        self.patched.close()
        super().close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["append", "ledger", "snapshot", "changelog", "upsert"])
def test_dataset_agrees_with_a_dictionary_whatever_happens(kind):
    run_histories(Histories, ci=2, steps=15, kind=kind)


@pytest.mark.soak
def test_snapshot_that_compares_chosen_columns_agrees_with_a_dictionary():
    run_histories(Histories, ci=1, steps=15, kind="snapshot", compare=("s", "v"))

"""Inputs as of one moment: their heads are pinned before anything is read, and nothing read later is newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.chain.hashes import Multihash
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.current import current
from floodmark.ledger.errors import BadIndex, UnreadableSlice
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.keys.rows import Rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import NOBODY, Selection, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound
from floodmark.transform.errors import BadSpec, InputMoved
from floodmark.transform.lakes import DatasetLike, LakeLike
from floodmark.transform.specs import InputSpec
from floodmark.transform.views.defined.stored import stored


@dataclass(frozen=True)
class TaskInput:
    """What a task needs to read an input: small, and it can be pickled."""

    name: str
    dataset_id: str
    objects: DatasetObjects
    layout: Layout | None
    slices: pa.Table = field(repr=False)
    purged_before: int
    end: int
    head: Multihash
    index: KeyIndex | None = field(repr=False)  # None: it has no key, or nobody will ask

    @cached_property
    def rows(self) -> Rows:
        """Its records by offset."""
        assert self.layout is not None
        return Rows(self.objects, self.slices, self.layout)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "rows"}

    def scan(self, selection: Selection, columns: Sequence[str]) -> Scan:
        assert self.layout is not None
        return Scan(self.objects, self.layout, selection, tuple(columns))

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Say that the plan is to be made again when files of the pinned state were replaced or prove damaged."""
        try:
            yield
        except (BadIndex, UnreadableSlice, ObjectNotFound) as error:
            raise InputMoved(
                f"what was pinned of input {self.name!r} cannot be read any more: {error}",
                hint="it was replaced by a newer state, or is damaged: run again; verify tells which",
                input=self.name,
            ) from error


@dataclass(frozen=True)
class PinnedInput:
    """A dataset as of one head, or before it. Offsets below `end` exist; those below `purged_before` are gone.

    Its columns are those of the head in either case.
    """

    name: str
    dataset_id: str
    snapshot: Snapshot = field(repr=False)
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    stop: int | None = None  # the first record that is left out, where that is not the next to be written

    @property
    def layout(self) -> Layout | None:
        return self.snapshot.layout

    @property
    def end(self) -> int:
        return self.snapshot.next_offset if self.stop is None else self.stop

    @property
    def is_newest(self) -> bool:
        """Whether it is pinned as of its head."""
        return self.end == self.snapshot.next_offset

    @property
    def head(self) -> int:
        """The offset of the newest record, -1 when there is none."""
        return self.end - 1

    @property
    def purged_before(self) -> int:
        return self.snapshot.purged_before

    @property
    def watermark(self) -> int | None:
        """In nanoseconds since the epoch; that of an earlier moment is not known."""
        return self.snapshot.state.watermark if self.is_newest else None

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.snapshot.state)

    @cached_property
    def shown(self) -> pa.Schema | None:
        """The columns that anybody sees, None before the first write; a view has them from its definition."""
        if self.layout is not None:
            return self.layout.shown
        view = stored(self.snapshot.state)
        return None if view is None else view.analysis.columns

    @property
    def shown_key(self) -> tuple[str, ...]:
        """What anybody sees of its key: that of a view may be made of hidden columns, in part or as a whole."""
        key = self.strategy.key
        return key if self.shown is None else tuple(name for name in key if name in self.shown.names)

    @property
    def index(self) -> KeyIndex | None:
        """The key index as of the pinned head, None when the dataset has no key, or is pinned before its head."""
        return self.newest_index if self.is_newest else None

    @cached_property
    def newest_index(self) -> KeyIndex | None:
        """The key index as of the head: it finds rows of the head alone, and knows who was dead before."""
        if not self.strategy.is_keyed:
            return None
        try:
            return key_index.load(self.snapshot, self.cache)
        except BadIndex:
            return key_index.repair(self.snapshot, self.cache)

    @property
    def live_rows(self) -> int:
        """How many rows are current."""
        if self.index is None:
            return self.end - self.purged_before - len(self.dead) + int(np.searchsorted(self.dead, self.purged_before))
        return self.end - self.purged_before - self.index.dead_from(self.purged_before)

    @property
    def row_bytes(self) -> float:
        """About how many bytes a record takes in memory: Parquet is smaller by a factor."""
        return 3.0 * self.snapshot.size / max(self.snapshot.records, 1)

    @cached_property
    def dead(self) -> I64:
        """The offsets that are not current as of the pinned head, sorted."""
        if self.newest_index is None:
            return NOBODY
        with self.steady():
            return self.newest_index.dead(self.end)

    @cached_property
    def for_tasks(self) -> TaskInput:
        """The same for tasks."""
        return TaskInput(
            self.name,
            self.dataset_id,
            self.snapshot.objects,
            self.layout,
            self.snapshot.slices,
            self.purged_before,
            self.end,
            self.snapshot.head,
            self.index,
        )

    @contextmanager
    def steady(self) -> Iterator[None]:
        """As `TaskInput.steady`; a damaged index is mended, so that the next plan can use it."""
        try:
            yield
        except (BadIndex, UnreadableSlice, ObjectNotFound) as error:
            if isinstance(error, BadIndex) and self.snapshot.objects.read_head() == self.snapshot.head:
                key_index.repair(self.snapshot, self.cache)
            raise InputMoved(
                f"what was pinned of input {self.name!r} cannot be read any more: {error}",
                hint="it was replaced by a newer state, or is damaged: run again; verify tells which",
                input=self.name,
            ) from error

    def records(self, start: int) -> Selection:
        """All records from offset `start` on, whatever became of them."""
        return select(self.snapshot, max(start, self.purged_before), self.end)

    def current_rows(self) -> Selection:
        """The current rows, from folded files where there are any."""
        with self.steady():
            return current(self.snapshot, self.purged_before, self.end, self.dead)

    def living_since(self, start: int) -> Selection:
        """The current rows among the records from offset `start` on, from slices alone: those are never replaced."""
        chosen = self.records(start)
        low, high = np.searchsorted(self.dead, [chosen.start, chosen.end])
        return Selection(chosen.start, chosen.end, chosen.files, self.dead[low:high])


def pin(lake: LakeLike, specs: Sequence[InputSpec]) -> tuple[PinnedInput, ...]:
    """The inputs as of their present heads; a dataset that is named twice is pinned once."""
    pinned: dict[str, PinnedInput] = {}
    for spec in specs:
        if spec.name not in pinned:
            pinned[spec.name] = pin_dataset(lake[spec.name])
        _check_columns(spec, pinned[spec.name])
    return tuple(pinned[spec.name] for spec in specs)


def pin_dataset(dataset: DatasetLike) -> PinnedInput:
    """A dataset as of its present head."""
    return PinnedInput(dataset.name, str(dataset.id), dataset.snapshot())


def _check_columns(spec: InputSpec, pinned: PinnedInput) -> None:
    if spec.columns is None or pinned.layout is None:
        return
    known = pinned.layout.data.names
    unknown = [name for name in spec.columns if name not in known]
    if not unknown:
        return
    computed = catalogs.load(ColumnObjects(pinned.snapshot.objects)).find(unknown[0])
    if computed is not None:
        raise BadSpec(
            f"column {unknown[0]!r} of {spec.name!r} is a computed one, which steps do not read yet",
            hint="compute it inside the step's function, or make it with a step of its own",
            column=unknown[0],
        )
    raise BadSpec(
        f"input {spec.name!r} has no column {unknown[0]!r}",
        hint=f"it has {', '.join(pinned.layout.shown.names)}",
        column=unknown[0],
    )

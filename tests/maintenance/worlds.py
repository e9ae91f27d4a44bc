"""Lakes whose objects are as old as a test says, and naive answers to what may be left in them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.walk import walk_back
from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime
from floodmark.lake import Lake
from floodmark.maintenance import gc
from floodmark.maintenance.gc import FailedCollection, GarbageObjects
from floodmark.rows.live_rows import read_manifest
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.local import LocalStore
from floodmark.timeline.settings import read_settings as timeline_settings

DAY = 86_400


@dataclass
class World:
    """A lake in which every act has its day: blocks are stamped with it, and files are from it."""

    folder: Path
    now: float = field(default_factory=time.time)
    _moment: float | None = None

    def copied(self, folder: Path) -> World:
        """The same lake at the same time in another folder."""
        shutil.copytree(self.folder, folder)
        return World(folder, self.now)

    def lake(self, store: LocalStore | None = None) -> Lake:
        return Lake(store or LocalStore(self.folder), runtime=Runtime(clock=self._clock, fold_at=None))

    def _clock(self) -> int:
        return int((self.now if self._moment is None else self._moment) * 10**9)

    @contextmanager
    def days_ago(self, days: float) -> Iterator[Lake]:
        """What is done in here happened so many days ago."""
        before = self.files()
        self._moment = self.now - days * DAY
        yield self.lake()
        for path, status in self.files().items():
            if before.get(path) != status:
                os.utime(self.folder / path, (self._moment, self._moment))
        self._moment = None

    def files(self) -> dict[str, tuple[int, float]]:
        """All files with their sizes and times, those of the store itself too, without its empty locks."""
        found = [
            path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith((".lock", ".turn"))
        ]
        return {str(p.relative_to(self.folder)): (p.stat().st_size, p.stat().st_mtime) for p in found}


class Killed(BaseException):
    """The process dies here."""


class Dying(OsFileSystem):
    """A file system on which the process dies before it removes one file more than so many."""

    def __init__(self, unlinks: int) -> None:
        object.__setattr__(self, "left", [unlinks])

    def unlink(self, path: Path) -> None:
        if ".staging" not in path.parts and "runs" not in path.parts:
            if self.left[0] == 0:  # type: ignore[attr-defined]
                raise Killed
            self.left[0] -= 1  # type: ignore[attr-defined]
        super().unlink(path)


def collected(lake: Lake, *wanted: str) -> dict[tuple[str | None, str], int]:
    """How many objects of which kind went, by dataset; nothing may fail."""
    return _counted(gc.collect_garbage(lake, wanted))


def found(lake: Lake, *wanted: str) -> dict[tuple[str | None, str], int]:
    """The same of what would go."""
    return _counted(gc.find_garbage(lake, wanted))


def _counted(results: Iterator[GarbageObjects | FailedCollection]) -> dict[tuple[str | None, str], int]:
    answer = {}
    for one in results:
        assert isinstance(one, GarbageObjects), one
        answer[one.dataset, one.kind] = len(one.objects)
    return answer


def everything(lake: Lake) -> dict[str, Any]:
    """All that can be read of a lake: now, as of every commit, record by record, in event-time order; and verified."""
    return {dataset.name: _all_of(dataset) for dataset in lake.datasets()}


def _all_of(dataset: Dataset) -> dict[str, Any]:
    snapshot = dataset.snapshot()
    answer: dict[str, Any] = {"head": dataset.head, "ok": dataset.verify().problems}
    if dataset.schema is None:
        return answer
    answer["rows"] = _sorted(dataset.to_arrow())
    answer["changes"] = dataset.changes_arrow().to_pylist()
    ends = [end for end in snapshot.slices.column("end").to_pylist() if end > snapshot.purged_before]
    answer["past"] = [_sorted(dataset.to_arrow(as_of=end - 1)) for end in ends]
    if timeline_settings(snapshot.state) is not None:
        answer["timeline"] = dataset.timeline_batches().read_all().to_pylist()
    return answer


def _sorted(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def needed(dataset: Dataset) -> dict[str, set[str]]:
    """What has to be there of a dataset, folder by folder, when nothing is young: told from the chain alone."""
    snapshot = dataset.snapshot()
    objects = snapshot.objects
    blocks, slices = set(), {}
    for block_hash, _, block in walk_back(objects.get_block, snapshot.head):
        blocks.add(objects.block_key(block_hash))
        data = getattr(block.event, "new_data", None)
        if data is not None and data.offset_interval.end >= snapshot.purged_before:
            slices[objects.data_key(data.physical_hash)] = data
    living = set()
    if dataset.schema is not None:
        offsets = dataset.scan().to_table().column("offset").to_pylist()
        for data in slices.values():
            if any(data.offset_interval.start <= offset <= data.offset_interval.end for offset in offsets):
                living.add(objects.rows_key(data.physical_hash.text))
    folds = {file.key(objects) for file in read_manifest(objects).files}
    return {"blocks": blocks, "data": set(slices), "info/rows": living, "info/fold/files": folds}


def stored(dataset: Dataset, folder: str) -> set[str]:
    objects = dataset.snapshot().objects
    return {info.key for info in objects.store.list(f"{objects.folder}/{folder}")}


Act = Callable[[Lake], None]

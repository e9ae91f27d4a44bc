"""A small dataset with functions that count: the world of tests of computed columns from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from columns.counting import Calls, Plan
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoint_store import CheckpointStore, path_of_checkpoint
from floodmark.dataset import Dataset
from floodmark.storage.cloud import CloudStore
from floodmark.storage.local import LocalStore

FRAGMENT_ROWS = 8


def tenfold(v: int | None) -> int | None:
    return None if v is None else v * 10


def hundredfold(v: int | None) -> int | None:
    return None if v is None else v * 100


TENFOLD = Plan("fold", "1", ("v",), tenfold)
HUNDREDFOLD = Plan("fold", "2", ("v",), hundredfold)


@dataclass
class World:
    """A keyed dataset `d` (id, v), and the calls of functions made for it."""

    lake: fm.Lake
    calls: Calls
    functions: dict[str, fm.Udf] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        return self.lake["d"]

    @property
    def objects(self) -> ColumnObjects:
        return ColumnObjects(self.dataset.snapshot().objects)

    def write(self, ids: Sequence[int], values: Sequence[int | None] | None = None) -> None:
        """Rows with these keys and values; the value is the key unless said otherwise."""
        found = list(ids) if values is None else list(values)
        self.dataset.write(pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(found, pa.int64())}))

    def add(self, plan: Plan = TENFOLD, name: str = "a", **options: Any) -> fm.Udf:
        """Add a column; its function."""
        udf = self.functions[name] = plan.udf(self.calls, **options)
        self.dataset.add_column(name, udf, fragment_rows=FRAGMENT_ROWS)
        return udf

    def alter(self, plan: Plan = HUNDREDFOLD, name: str = "a") -> None:
        """Give a column another function."""
        self.functions[name] = plan.udf(self.calls)
        self.dataset.alter_column(name, self.functions[name])

    def backfill(self, name: str = "a", where: Any = None, **options: Any) -> fm.BackfillReport:
        """A backfill of which the calls are counted from the start; what it counted must be what was called."""
        self.calls.forget()
        done = self.backfill_only(name, where, **options)
        assert done.called == len(self.calls.offsets())
        assert done.computed + done.failed == len(set(self.calls.offsets()))
        return done

    def backfill_only(self, name: str = "a", where: Any = None, **options: Any) -> fm.BackfillReport:
        """A backfill that is not looked at."""
        return self.lake["d"].backfill(name, where, udf=self.functions[name], **options)

    def values(self, name: str = "a") -> dict[int, int | None]:
        """The column's values by the rows' keys."""
        table = self.dataset.to_arrow()
        return dict(zip(table["id"].to_pylist(), table[name].to_pylist(), strict=True))

    def checkpoint_keys(self) -> list[str]:
        return self.objects.checkpoints.list_keys()


class Crash(BaseException):
    """The driver ends here."""


class _Crashing:
    """A part of a store in which the driver can crash at a write; worker processes get an ordinary store."""

    _crash_at: str | None = None

    @contextmanager
    def crash_at(self, part: str) -> Iterator[None]:
        """Crash before the write of any object with this in its key."""
        self._crash_at = part
        try:
            yield
        finally:
            self._crash_at = None

    def put_file(self, key: str, path: Path) -> bool:
        self._check(key)
        return bool(super().put_file(key, path))  # type: ignore[misc]

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self._check(key)
        return bool(super().compare_and_swap(key, expected, new))  # type: ignore[misc]

    def delete(self, key: str) -> None:
        self._check(key)
        super().delete(key)  # type: ignore[misc]

    def _check(self, key: str) -> None:
        if self._crash_at is not None and self._crash_at in key:
            raise Crash


class CrashingStore(_Crashing, LocalStore):
    """Such a folder."""


class CrashingBucket(_Crashing, CloudStore):
    """Such a bucket."""


def checkpoint_path(checkpoints: CheckpointStore, key: str) -> str:
    """The object that holds a checkpoint."""
    place = path_of_checkpoint(key)
    return f"{checkpoints.folder}/batches/{place.group.name}/{place.leaf}"

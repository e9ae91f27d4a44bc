"""The objects of a dataset's computed columns in its store: the catalog, manifests, files of values, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from floodmark.compute.checkpoints.store import CheckpointStore
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import ObjectInfo, Store


@dataclass(frozen=True)
class ColumnObjects:
    """Where the computed columns of a dataset are kept: beside its chain, never in it."""

    dataset: DatasetObjects

    @property
    def store(self) -> Store:
        return self.dataset.store

    @property
    def folder(self) -> str:
        return f"{self.dataset.folder}/columns"

    @property
    def catalog_key(self) -> str:
        """The one object that changes: which columns there are, and the manifest of each."""
        return f"{self.folder}/catalog"

    @property
    def catalog(self) -> Pointer:
        return Pointer(self.store, self.catalog_key)

    def manifest_key(self, digest: str) -> str:
        return f"{self.folder}/manifests/{digest}"

    def file_key(self, digest: str) -> str:
        """A segment's values."""
        return f"{self.folder}/files/{digest}"

    def errors_key(self, digest: str) -> str:
        """The errors of skipped rows."""
        return f"{self.folder}/errors/{digest}"

    def turn_key(self, field_id: int) -> str:
        """What those who fill one column take turns by."""
        return f"{self.folder}/turns/{field_id}"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.store, f"{self.folder}/checkpoints")

    def put(self, key: str, data: bytes) -> None:
        self.dataset.put_named(key, data)

    def manifests(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/manifests")

    def files(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/files")

    def errors(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/errors")

"""The objects of a dataset's timeline in its store: root, manifests, own files, notes of what was replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import ObjectInfo, Store
from floodmark.timeline.stored.own_files import FOLDER


@dataclass(frozen=True)
class TimelineObjects:
    """Where a dataset's timeline is kept: beside its chain, never in it."""

    dataset: DatasetObjects

    @property
    def store(self) -> Store:
        return self.dataset.store

    @property
    def folder(self) -> str:
        return f"{self.dataset.folder}/info/timeline"

    @property
    def root_key(self) -> str:
        """The one object that changes: what is applied, and which manifests belong together."""
        return f"{self.folder}/root"

    @property
    def root(self) -> Pointer:
        return Pointer(self.store, self.root_key)

    def manifest_key(self, digest: str) -> str:
        return f"{self.folder}/manifests/{digest}"

    def key(self, file: str) -> str:
        """The key of a piece's file, the ledger's or an own one: pieces name it below the dataset's folder."""
        return f"{self.dataset.folder}/{file}"

    def file(self, key: str) -> str:
        """The other way round."""
        return key.removeprefix(f"{self.dataset.folder}/")

    def replaced_key(self, name: str) -> str:
        """The note that no root names a file or manifest any more; its age tells since when."""
        return f"{self.folder}/replaced/{name}"

    def turn(self) -> AbstractContextManager[None]:
        """Wait for and hold the turn to change this timeline."""
        return self.store.turn(self.root_key)

    def put(self, key: str, data: bytes) -> None:
        self.dataset.put_named(key, data)

    def manifests(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/manifests")

    def files(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/files")

    def replaced(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/replaced")


def is_own(file: str) -> bool:
    """Whether a piece's file is the timeline's own."""
    return file.startswith(f"{FOLDER}/")


def last_name(key: str) -> str:
    """The last part of a key: what notes are named by."""
    return key.rpartition("/")[2]

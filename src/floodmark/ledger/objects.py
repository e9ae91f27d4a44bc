"""The objects of one dataset in its store: head, blocks, slices, checkpoints, indexes, row copies, folded files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from floodmark.chain.ids import Multihash, parse_head
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import ObjectInfo, Store


@dataclass(frozen=True)
class DatasetObjects:
    """The objects of one dataset: a store and the dataset's folder in it."""

    store: Store
    folder: str

    @property
    def is_local(self) -> bool:
        """Whether the objects are plain files that Spark, pyarrow and other processes can read by their paths."""
        return self.store.local_path(self.head_key) is not None

    @property
    def head_key(self) -> str:
        return f"{self.folder}/refs/head"

    def data_key(self, physical_hash: Multihash) -> str:
        return self.data_prefix + physical_hash.text

    @property
    def data_prefix(self) -> str:
        """The start of a slice's key; its hash follows."""
        return f"{self.folder}/data/"

    def checkpoint_key(self, physical_hash: Multihash) -> str:
        return self.checkpoint_prefix + physical_hash.text

    @property
    def checkpoint_prefix(self) -> str:
        """The start of a checkpoint's key; its hash follows."""
        return f"{self.folder}/checkpoints/"

    def block_key(self, block_hash: Multihash) -> str:
        return f"{self.folder}/blocks/{block_hash.text}"

    def index_key(self, name: str) -> str:
        return f"{self.folder}/info/index/{name}"

    def key_file_key(self, name: str) -> str:
        """A file of the key index."""
        return f"{self.folder}/info/keys/files/{name}"

    def key_manifest_key(self, name: str) -> str:
        """A manifest of the key index: it lists the files that form the index as of one block."""
        return f"{self.folder}/info/keys/manifests/{name}"

    def rows_key(self, name: str) -> str:
        """The uncompressed copy of a slice, for reads of single rows."""
        return f"{self.folder}/info/rows/{name}"

    @property
    def fold_manifest_key(self) -> str:
        return f"{self.folder}/info/fold/manifest"

    def fold_key(self, start: int, physical_hash: Multihash) -> str:
        """A folded file: the rows from this offset on that were live when they were folded."""
        return f"{self.folder}/info/fold/files/{start}-{physical_hash.text}"

    def put_named(self, key: str, data: bytes) -> None:
        """Store an object that is named by its hash, durably. Replace an existing object that is damaged."""
        if not self.store.put_if_absent(key, data) and self.store.get(key) != data:
            self.store.delete(key)
            self.store.put_if_absent(key, data)

    @property
    def head(self) -> Pointer:
        return Pointer(self.store, self.head_key)

    def read_head(self) -> Multihash | None:
        """The newest block's hash, or None if the dataset does not exist (any more)."""
        content = self.head.read()
        return None if content is None else parse_head(content)

    def turn(self) -> AbstractContextManager[None]:
        """Wait for this dataset's turn to commit, and hold it."""
        return self.store.turn(self.head_key)

    def get_block(self, block_hash: Multihash) -> bytes:
        return self.store.get(self.block_key(block_hash))

    def put_block(self, block_hash: Multihash, data: bytes) -> None:
        self.store.put_if_absent(self.block_key(block_hash), data)

    def checkpoints(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/checkpoints")

    def index_segments(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/info/index")

    def key_files(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/info/keys/files")

    def key_manifests(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/info/keys/manifests")

    def fold_files(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/info/fold/files")


@dataclass(frozen=True)
class DerivedObjects:
    """The objects of something that is derived from a dataset. They are stored next to the chain, never in it."""

    FOLDER: ClassVar[str]

    dataset: DatasetObjects

    @property
    def store(self) -> Store:
        return self.dataset.store

    @property
    def folder(self) -> str:
        return f"{self.dataset.folder}/{self.FOLDER}"

    def manifest_key(self, digest: str) -> str:
        return f"{self.folder}/manifests/{digest}"

    def put(self, key: str, data: bytes) -> None:
        self.dataset.put_named(key, data)

    def manifests(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/manifests")

    def files(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/files")

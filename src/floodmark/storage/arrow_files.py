"""A store as pyarrow sees it: a read-only file system, so that one scanner serves local and remote lakes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import Store


def arrow_filesystem(store: Store) -> pa_fs.FileSystem:
    """The store's objects as files under their keys."""
    return pa_fs.PyFileSystem(_StoreFiles(store))


class _StoreFiles(pa_fs.FileSystemHandler):  # type: ignore[misc]
    """What a scanner asks for; everything that writes is refused."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_type_name(self) -> str:
        return "floodmark"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        found = self._store.stat(path)
        if found is None:
            return pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
        return pa_fs.FileInfo(path, pa_fs.FileType.File, size=found.size)

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        listed = self._store.list(selector.base_dir)
        return [pa_fs.FileInfo(info.key, pa_fs.FileType.File, size=info.size) for info in listed]

    def open_input_file(self, path: str) -> pa.NativeFile:
        try:
            return self._store.open(path)
        except ObjectNotFound as error:
            raise FileNotFoundError(path) from error

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _refuse(self, *_: Any) -> Any:
        raise OSError("a lake is read through this file system, never written")

    create_dir = delete_dir = delete_dir_contents = delete_file = move = copy_file = _refuse
    delete_root_dir_contents = open_output_stream = open_append_stream = _refuse

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StoreFiles) and other._store is self._store

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self._store)

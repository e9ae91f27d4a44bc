"""A durable store in a local folder: what a call has acknowledged survives a crash of the machine."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from floodmark.storage.errors import BadStoreUrl, ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.files import FileSystem, OsFileSystem
from floodmark.storage.store import ObjectInfo, check_key, check_prefix, is_segment

_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_STAGING = ".staging"


class LocalStore:
    """Objects as plain files under one folder.

    An object gets its name only when its content is durable, by a hard link, which also decides between two
    writers of one key. Names that start with '.' are the store's own: `.staging/` holds unfinished files
    (a crash may leave some: they are never read), `.NAME.lock` and `.NAME.turn` are locks, which are empty.
    """

    def __init__(self, root: str | Path, fs: FileSystem | None = None) -> None:
        self._root = _folder_of(root)
        self._fs: FileSystem = OsFileSystem() if fs is None else fs
        self._durable_folders: set[Path] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStore, (self._root, self._fs)

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    # reading

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._explained("read", key), self._found(key):
            return self._fs.read(path)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)
        with self._explained("read", key), self._found(key):
            return self._fs.read_range(path, start, end)

    def stat(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._explained("look at", key):
            try:
                info = self._fs.stat(path)
            except _MISSING:
                return None
        return None if info.is_folder else ObjectInfo(key, info.size, info.modified)

    def open(self, key: str) -> pa.NativeFile:
        path = self._path(key)
        with self._explained("open", key), self._found(key):
            if path.is_dir():  # pyarrow's own error for it does not say so
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            return pa.OSFile(str(path), "rb")

    def local_path(self, key: str) -> Path:
        return self._path(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        return self._walk(folder, self._root / folder)

    def _walk(self, prefix: str, folder: Path) -> Iterator[ObjectInfo]:
        with self._explained("list", prefix):
            try:
                found = [info for info in self._fs.scan(folder) if is_segment(info.name)]
            except (FileNotFoundError, NotADirectoryError):
                return
        # A folder sorts as its keys do, with the slash: "a-b" comes before "a/c".
        for info in sorted(found, key=lambda info: info.name + "/" if info.is_folder else info.name):
            key = f"{prefix}/{info.name}" if prefix else info.name
            if info.is_folder:
                yield from self._walk(key, folder / info.name)
            else:
                yield ObjectInfo(key, info.size, info.modified)

    # writing

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._explained("write", key, needed=len(data)):
            self._make_durable_folder(path.parent)
            if self._renew(path):
                return False
            with self._staged(data) as staged:
                self._fs.fsync_file(staged)
                made = self._install(staged, path)
                self._fs.unlink(staged)
                return made

    def put_file(self, key: str, path: Path) -> bool:
        target = self._path(key)
        with self._explained("read the file to put at", key):
            size = self._fs.stat(path).size
        with self._explained("write", key, needed=size):
            self._make_durable_folder(target.parent)
            made = not self._renew(target) and self._install_file(path, target)
            self._fs.unlink(path)
            return made

    def put_derived(self, key: str, data: bytes) -> None:
        # No fsync at all: a cache that a crash may take is not worth the wait.
        path = self._path(key)
        with self._explained("write", key, needed=len(data)):
            self._make_folder(path.parent)
            with self._staged(data) as staged:
                self._fs.rename(staged, path)

    def put_derived_file(self, key: str, path: Path) -> None:
        target = self._path(key)
        with self._explained("read the file to put at", key):
            size = self._fs.stat(path).size
        with self._explained("write", key, needed=size):
            self._make_folder(target.parent)
            try:
                self._fs.rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self._staging_path() as staged:
                    self._fs.copy_new(path, staged)  # it is on another file system, where no rename can reach it
                    self._fs.rename(staged, target)
                self._fs.unlink(path)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        path = self._path(key)
        with self._explained("swap", key, needed=len(new)):
            self._make_durable_folder(path.parent)
            with self._fs.flock(_beside(path, "lock")):
                if self._content(path) != expected:
                    return False
                if expected == new:
                    # Whoever put it there may have died before it was durable, or may not be this store.
                    self._fs.fsync_file(path)
                    self._fs.fsync_dir(path.parent)
                    return True
                with self._staged(new) as staged:
                    self._fs.fsync_file(staged)
                    self._fs.rename(staged, path)
                    self._settle(key, path)
                return True

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        path = self._path(key)
        with ExitStack() as held:
            with self._explained("wait for", key):
                self._make_folder(path.parent)
                held.enter_context(self._fs.flock(_beside(path, "turn")))
            yield

    def delete(self, key: str) -> None:
        # Not synced: an object that comes back after a crash is one that nothing names any more, or one
        # that whoever wanted it gone deletes again.
        path = self._path(key)
        with self._explained("delete", key), suppress(*_MISSING):
            self._fs.unlink(path)

    def staging(self) -> Path:
        folder = self._root / _STAGING
        with self._explained("make", _STAGING):
            self._make_folder(folder)
        return folder

    # the steps of a write

    @contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        """A file with this content under a name of its own, removed if the block fails."""
        with self._staging_path() as staged:
            self._fs.write_new(staged, data)
            yield staged

    @contextmanager
    def _staging_path(self) -> Iterator[Path]:
        path = self.staging() / uuid.uuid4().hex
        try:
            yield path
        except BaseException:
            with suppress(OSError):  # the failure itself says more than one to clean up
                self._fs.unlink(path)
            raise

    def _install(self, staged: Path, path: Path) -> bool:
        """Give a durable file its name, durably; False if another writer was first."""
        while True:
            try:
                self._fs.link(staged, path)
            except FileExistsError:
                if self._renew(path):
                    return False
                continue  # it was deleted meanwhile
            self._fs.fsync_dir(path.parent)
            return True

    def _install_file(self, source: Path, target: Path) -> bool:
        with self._staging_path() as staged:
            try:
                self._fs.link(source, staged)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._fs.copy_new(source, staged)  # it is on another file system, where no link can reach it
            self._fs.fsync_file(staged)
            made = self._install(staged, target)
            self._fs.unlink(staged)
            return made

    def _renew(self, path: Path) -> bool:
        """Make an object young again and durable, if it is there."""
        try:
            self._fs.utime(path)
        except FileNotFoundError:
            return False
        # Its content was durable before it had this name, but its writer may not have synced the name yet.
        self._fs.fsync_dir(path.parent)
        return True

    def _settle(self, key: str, path: Path) -> None:
        try:
            self._fs.fsync_dir(path.parent)
        except OSError as error:
            raise SwapUnknown(
                f"{key!r} in {self.url} was moved, but whether that survives a crash is unknown: {error}.",
                hint="Read it again before deciding; check the disk.",
                key=key,
                url=self.url,
            ) from error

    def _content(self, path: Path) -> bytes | None:
        try:
            return self._fs.read(path)
        except FileNotFoundError:
            return None

    def _make_folder(self, folder: Path) -> None:
        try:
            self._fs.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_folder(folder.parent)
            self._make_folder(folder)

    def _make_durable_folder(self, folder: Path) -> None:
        """Make sure that a folder and those above it, up to the root, are there and stay there.

        One that is there already may have been made a moment ago by a writer that has not synced it, or that
        died before it could; so each is synced once per store object, whoever made it.
        """
        if folder in self._durable_folders and folder.is_dir():  # derived folders may be thrown away at any time
            return
        above = folder.parent
        inside = folder != self._root and folder.is_relative_to(self._root)
        if inside or not above.exists():
            self._make_durable_folder(above)
        try:
            self._fs.mkdir(folder)
        except FileExistsError:
            made = False
        else:
            made = True
        try:
            self._fs.fsync_dir(above)
        except PermissionError:
            # The root may lie in a folder that is not ours to open; then it was not ours to make either.
            if made or folder != self._root:
                raise
        self._durable_folders.add(folder)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _explained(self, action: str, key: str, needed: int = 0) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(action, key, error, needed) from error

    @contextmanager
    def _found(self, key: str) -> Iterator[None]:
        try:
            yield
        except _MISSING as error:
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="It was never written, or it has been purged or dropped.",
                key=key,
                url=self.url,
            ) from error

    def _failure(self, action: str, key: str, error: OSError, needed: int) -> StorageError:
        facts = {"key": key, "url": self.url, "errno": error.errno, "needed": needed}
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"{needed:,} bytes were needed and {self._free():,} are free: make room and try again."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "Check who owns the folder and that this user may write there."
        elif error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            hint = "The file system lacks hard links, locks or fsync of folders: keep the lake on another one."
        elif isinstance(error, _MISSING):
            hint = "A file or folder was removed meanwhile, or a folder's name is taken by a file."
        else:
            hint = "Nothing was acknowledged; check the disk and try again."
        return StorageError(f"Could not {action} {key!r} in {self.url}: {error}.", hint=hint, **facts)

    def _free(self) -> int:
        folder = self._root
        while not folder.exists():
            folder = folder.parent
        return self._fs.free_bytes(folder)


def _beside(path: Path, purpose: str) -> Path:
    return path.with_name(f".{path.name}.{purpose}")


def _folder_of(root: str | Path) -> Path:
    if isinstance(root, str) and root.startswith("file:"):
        parts = urlsplit(root)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise BadStoreUrl(
                f"{root!r} names no folder of this machine.",
                hint="A local folder is written as a path, or as file:///folder with three slashes.",
                url=root,
            )
        root = unquote(parts.path)
    return Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 (resolve() would follow links)

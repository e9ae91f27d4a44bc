"""A durable store in a local folder: acknowledged writes survive a crash of the machine."""

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

from floodmark.errors import BadStoreUrl, ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.file_system import FileSystem, OsFileSystem
from floodmark.storage.store import BytesLike, ObjectInfo, check_key, check_prefix, is_segment

_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_STAGING = ".staging"
_INSTALL_ATTEMPTS = 20


class LocalStore:
    """Objects as plain files under one folder.

    A write first makes the content durable and then gives it its name by a hard link. The link also decides
    between two writers of one key. Names that start with '.' belong to the store: `.staging/` contains unfinished
    files (a crash may leave some; they are never read), and the empty files `.NAME.lock` and `.NAME.turn` are locks.
    """

    def __init__(self, root: str | Path, fs: FileSystem | None = None) -> None:
        self._root = _folder_of(root)
        self._fs: FileSystem = OsFileSystem() if fs is None else fs
        self._durable_folders: set[Path] = set()
        self._real_folders = {str(self._root)}  # folders of the lake that are not reached through a link

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStore, (self._root, self._fs)

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    # Reading

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._explain_errors("read", key), self._raise_not_found(key):
            return self._fs.read(path)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)
        with self._explain_errors("read", key), self._raise_not_found(key):
            return self._fs.read_range(path, start, end)

    def stat(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._explain_errors("look at", key):
            try:
                info = self._fs.stat(path)
            except _MISSING:
                return None
        return None if info.is_folder else ObjectInfo(key, info.size, info.modified)

    def open(self, key: str) -> pa.NativeFile:
        path = self._path(key)
        with self._explain_errors("open", key), self._raise_not_found(key):
            if path.is_dir():  # the error of pyarrow does not name the reason
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            return pa.OSFile(str(path), "rb")

    def local_path(self, key: str) -> Path:
        return self._path(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        return self._walk(folder, self._checked(self._root / folder))

    def _walk(self, prefix: str, folder: Path) -> Iterator[ObjectInfo]:
        with self._explain_errors("list", prefix):
            try:
                entries = [info for info in self._fs.scan(folder) if is_segment(info.name)]
            except (FileNotFoundError, NotADirectoryError):
                return
        for info in entries:
            if info.is_link:
                raise self._is_link(folder / info.name)
        # A folder sorts with its slash, as its keys do: "a-b" comes before "a/c".
        for info in sorted(entries, key=lambda info: info.name + "/" if info.is_folder else info.name):
            key = f"{prefix}/{info.name}" if prefix else info.name
            if info.is_folder:
                yield from self._walk(key, folder / info.name)
            else:
                yield ObjectInfo(key, info.size, info.modified)

    # Writing

    def put_if_absent(self, key: str, data: BytesLike) -> bool:
        path = self._path(key)
        with self._explain_errors("write", key, needed=len(data)):
            self._make_durable_folder(path.parent)
            if self._renew(path):
                return False
            with self._staged(data) as staged:
                self._fs.fsync_file(staged)
                created = self._install(staged, path)
                self._fs.unlink(staged)
                return created

    def put_file(self, key: str, path: Path) -> bool:
        target = self._path(key)
        with self._explain_errors("read the file to put at", key):
            size = self._fs.stat(path).size
        with self._explain_errors("write", key, needed=size):
            self._make_durable_folder(target.parent)
            created = not self._renew(target) and self._install_file(path, target)
            self._fs.unlink(path)
            return created

    def put_derived(self, key: str, data: BytesLike) -> None:
        # No fsync: a crash may lose a derived object.
        path = self._path(key)
        with self._explain_errors("write", key, needed=len(data)):
            self._make_folder(path.parent)
            with self._staged(data) as staged:
                self._fs.rename(staged, path)

    def put_derived_file(self, key: str, path: Path) -> None:
        target = self._path(key)
        with self._explain_errors("read the file to put at", key):
            size = self._fs.stat(path).size
        with self._explain_errors("write", key, needed=size):
            self._make_folder(target.parent)
            try:
                self._fs.rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self._staging_path() as staged:
                    self._fs.copy_new(path, staged)  # a rename does not work between file systems
                    self._fs.rename(staged, target)
                self._fs.unlink(path)

    def compare_and_swap(self, key: str, expected: bytes | None, new: BytesLike) -> bool:
        path, new = self._path(key), bytes(new)
        with self._explain_errors("swap", key, needed=len(new)):
            self._make_durable_folder(path.parent)
            with self._locked(_lock_path(path, "lock")):
                if self._content(path) != expected:
                    return False
                if expected == new:
                    # The writer of this content may have stopped before it was durable, or may be another program.
                    self._fs.fsync_file(path)
                    self._fs.fsync_dir(path.parent)
                    return True
                with self._staged(new) as staged:
                    self._fs.fsync_file(staged)
                    self._fs.rename(staged, path)
                    self._sync_swap(key, path)
                return True

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        path = self._path(key)
        with ExitStack() as stack:
            with self._explain_errors("wait for", key):
                self._make_folder(path.parent)
                stack.enter_context(self._locked(_lock_path(path, "turn")))
            yield

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Hold a lock. A failed unlock is no error: the work under the lock is done."""
        lock = self._fs.flock(path)
        lock.__enter__()
        try:
            yield
        finally:
            with suppress(OSError):
                lock.__exit__(None, None, None)

    def delete(self, key: str) -> None:
        # No fsync: if the object comes back after a crash, either nothing refers to it, or its caller deletes it
        # again.
        path = self._path(key)
        with self._explain_errors("delete", key), suppress(*_MISSING):
            self._fs.unlink(path)

    def staging(self) -> Path:
        folder = self._checked(self._root / _STAGING)
        with self._explain_errors("make", _STAGING):
            self._make_folder(folder)
        return folder

    # The steps of a write

    @contextmanager
    def _staged(self, data: BytesLike) -> Iterator[Path]:
        """A file with this content under a unique name; removed if the block fails."""
        with self._staging_path() as staged:
            self._fs.write_new(staged, bytes(data))
            yield staged

    @contextmanager
    def _staging_path(self) -> Iterator[Path]:
        path = self.staging() / uuid.uuid4().hex
        try:
            yield path
        except BaseException:
            with suppress(OSError):  # report the first error, not one of the cleanup
                self._fs.unlink(path)
            raise

    def _install(self, staged: Path, path: Path) -> bool:
        """Give a durable file its name, durably; False if another writer created the object first."""
        for _ in range(_INSTALL_ATTEMPTS):
            try:
                self._fs.link(staged, path)
            except FileExistsError:
                if self._renew(path):
                    return False
                continue  # the object was deleted meanwhile
            self._fs.fsync_dir(path.parent)
            return True
        raise FileExistsError(errno.EEXIST, "other writers create and delete it again and again", str(path))

    def _install_file(self, source: Path, target: Path) -> bool:
        with self._staging_path() as staged:
            try:
                self._fs.link(source, staged)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._fs.copy_new(source, staged)  # a link does not work between file systems
            self._fs.fsync_file(staged)
            created = self._install(staged, target)
            self._fs.unlink(staged)
            return created

    def _renew(self, path: Path) -> bool:
        """Set the time of an object to now and make it durable; False if it does not exist."""
        try:
            self._fs.utime(path)
        except FileNotFoundError:
            return False
        # The content is durable since before it had this name, but its writer may not have synced the name yet.
        self._fs.fsync_dir(path.parent)
        return True

    def _sync_swap(self, key: str, path: Path) -> None:
        try:
            self._fs.fsync_dir(path.parent)
        except OSError as error:
            raise SwapUnknown(
                f"{key!r} in {self.url} was swapped, but may not survive a crash: {error}.",
                hint="Check the disk, then read the object to see its content.",
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
        """Make sure that a folder and its parents, up to the root, exist and are durable.

        If a folder exists, its writer may not have synced it, or may have stopped before. So each folder is synced
        once per store object.
        """
        if folder in self._durable_folders and folder.is_dir():  # folders of derived objects may be deleted at any time
            return
        parent_folder = folder.parent
        inside = folder != self._root and folder.is_relative_to(self._root)
        if inside or not parent_folder.exists():
            self._make_durable_folder(parent_folder)
        try:
            self._fs.mkdir(folder)
        except FileExistsError:
            created = False
        else:
            created = True
        try:
            self._fs.fsync_dir(parent_folder)
        except PermissionError:
            # We may have no permission for the folder that contains the root. Then we did not create the root either.
            if created or folder != self._root:
                raise
        self._durable_folders.add(folder)

    def _path(self, key: str) -> Path:
        return self._checked(self._root / check_key(key))

    def _checked(self, path: Path) -> Path:
        """The path, if neither it nor a folder above it in the lake is a symbolic link."""
        self._check_links(str(path))
        return path

    def _check_links(self, text: str) -> None:
        # On text: every access to an object comes here, and paths take most of the time of a small read.
        folder = text.rpartition("/")[0]
        if folder not in self._real_folders and text not in self._real_folders:
            self._check_links(folder)
            if os.path.isdir(folder):  # noqa: PTH112
                self._real_folders.add(folder)
        if os.path.islink(text) and text not in self._real_folders:  # noqa: PTH114
            raise self._is_link(Path(text))

    def _is_link(self, path: Path) -> StorageError:
        key = str(path.relative_to(self._root))
        return StorageError(
            f"{str(path)!r} is a symbolic link, and a lake follows no links inside its folder.",
            hint="Remove the link, and copy its target there if it belongs to the lake. Only the lake's own folder may "
            "be a link.",
            key=key,
            url=self.url,
        )

    @contextmanager
    def _explain_errors(self, action: str, key: str, needed: int = 0) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(action, key, error, needed) from error

    @contextmanager
    def _raise_not_found(self, key: str) -> Iterator[None]:
        try:
            yield
        except _MISSING as error:
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="Check the key: the object was never written, or it was purged or dropped.",
                key=key,
                url=self.url,
            ) from error

    def _failure(self, action: str, key: str, error: OSError, needed: int) -> StorageError:
        facts = {"key": key, "url": self.url, "errno": error.errno, "needed": needed}
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"Free disk space, then try again: {needed:,} bytes were needed and {self._free():,} are free."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "Check the owner of the folder and the write permission of this user."
        elif error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            hint = "Keep the lake on another file system: this one lacks hard links, locks or fsync of folders."
        elif isinstance(error, _MISSING):
            hint = "Try again; if that fails, check for a file that has the name of a folder."
        else:
            hint = "Check the disk and try again: no write was acknowledged."
        return StorageError(f"Could not {action} {key!r} in {self.url}: {error}.", hint=hint, **facts)

    def _free(self) -> int:
        folder = self._root
        while not folder.exists():
            folder = folder.parent
        return self._fs.free_bytes(folder)


def remove_empty_folders(folder: Path) -> None:
    """Remove a folder of a store if it and the folders in it have no objects, only locks.

    Its objects must never be written again: another writer may hold a lock that is removed here.
    """
    with suppress(OSError):  # what is left is only untidy
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                remove_empty_folders(path)
            elif is_lock(path.name):
                path.unlink()
        folder.rmdir()


def is_lock(name: str) -> bool:
    """Whether a file of a store's folder is a lock, which has no content."""
    return name.startswith(".") and name.endswith((".lock", ".turn"))


def _lock_path(path: Path, purpose: str) -> Path:
    return path.with_name(f".{path.name}.{purpose}")


def _folder_of(root: str | Path) -> Path:
    if isinstance(root, str) and root.startswith("file:"):
        parts = urlsplit(root)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise BadStoreUrl(
                f"{root!r} is not a folder of this machine.",
                hint="Write a local folder as a path, or as file:///folder with three slashes.",
                url=root,
            )
        root = unquote(parts.path)
    return Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 (resolve() would follow links)

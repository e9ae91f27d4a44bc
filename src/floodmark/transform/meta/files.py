"""Where the files of transform meta are: objects of the step's first output, mapped where they lie or in a copy."""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from floodmark.chain.hashes import Multihash
from floodmark.engine.cache import replace_file, user_cache
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import ObjectNotFound
from floodmark.transform.errors import BadMeta
from floodmark.transform.meta.entry_file import Damaged, EntryFile, OpenEntries

SMALL_BYTES = 1 << 20
"""Files of a remote store up to this size are kept in memory, larger ones as a copy in the user's cache."""

KEEP_COPIES = 30 * 24 * 3600.0
"""Copies that nobody has opened for so many seconds are removed."""

_REMEMBERED = 256
_log = logging.getLogger(__name__)
_opened: dict[tuple[str, str, EntryFile], OpenEntries] = {}
"""Files opened before by this process: they never change."""

_T = TypeVar("_T")


def bad_meta(objects: DatasetObjects, name: str, problem: str) -> BadMeta:
    return BadMeta(
        f"the file {name} of the transform meta of {objects.folder!r} cannot be used: {problem}",
        hint="bring the file back from a copy, or `floodmark reset STEP` makes everything be computed again",
        file=name,
        dataset=objects.folder,
    )


def get_whole(objects: DatasetObjects, name: str) -> bytes:
    """A file that was seen to have the digest that it is named by."""
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise bad_meta(objects, name, "it is gone") from error
    if Multihash.sha3_256(data) != digest:
        raise bad_meta(objects, name, "its bytes do not hash to its name")
    return data


def ask(objects: DatasetObjects, file: EntryFile, question: Callable[[OpenEntries], _T]) -> _T:
    """Ask an entry file something; `BadMeta` when it is gone or is not what it should be."""
    try:
        return question(_open(objects, file))
    except Damaged as error:
        _opened.pop(_identity(objects, file), None)
        if not _forget_copy(objects, file):
            raise bad_meta(objects, file.name, str(error)) from error
    # It was the copy that was damaged, which says nothing of the file.
    try:
        return question(_open(objects, file))
    except Damaged as error:
        raise bad_meta(objects, file.name, str(error)) from error


def _identity(objects: DatasetObjects, file: EntryFile) -> tuple[str, str, EntryFile]:
    return objects.store.url, objects.folder, file


def _open(objects: DatasetObjects, file: EntryFile) -> OpenEntries:
    identity = _identity(objects, file)
    found = _opened.get(identity)
    if found is None:
        while len(_opened) >= _REMEMBERED:
            _opened.pop(next(iter(_opened)), None)
        found = _opened[identity] = OpenEntries.of(file, _data(objects, file))
    return found


def _data(objects: DatasetObjects, file: EntryFile) -> memoryview:
    path = objects.store.local_path(objects.checkpoint_key(Multihash.parse(file.name)))
    if path is None and file.size > SMALL_BYTES:
        path = _copy(objects, file)
    if path is None:
        return memoryview(get_whole(objects, file.name))
    try:
        with path.open("rb") as opened:
            there = os.fstat(opened.fileno()).st_size
            if there != file.size:
                raise Damaged(f"it has {there} bytes, should have {file.size}")
            return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise Damaged("it is gone") from error
    except OSError as error:
        raise Damaged(str(error)) from error


def _copy(objects: DatasetObjects, file: EntryFile) -> Path | None:
    """The copy of a remote file in the user's cache, made if missing; None when there can be none."""
    copy = _copies() / file.name
    try:
        if copy.exists() and copy.stat().st_size == file.size:
            os.utime(copy)
        else:
            _remove_old_copies()
            replace_file(copy, get_whole(objects, file.name))
    except OSError as error:
        _log.warning("%s could not be copied to %s (%s)", file.name, copy.parent, error)
        return None
    return copy


def _forget_copy(objects: DatasetObjects, file: EntryFile) -> bool:
    if objects.store.local_path(objects.checkpoint_key(Multihash.parse(file.name))) is not None:
        return False
    copy = _copies() / file.name
    there = copy.exists()
    copy.unlink(missing_ok=True)
    return there


def _copies() -> Path:
    return user_cache() / "meta"


def _remove_old_copies() -> None:
    folder = _copies()
    if folder.is_dir():
        for copy in folder.iterdir():
            if time.time() - copy.stat().st_mtime > KEEP_COPIES:
                copy.unlink(missing_ok=True)

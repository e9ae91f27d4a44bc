"""The source files of a dataset: size, time and hash of each file when it was last read.

With this document, a run does not read unchanged files again, and it knows which file the rows of a hash on the chain
came from. The chain has only the hash, so the document is written durably: without it, a modified file is treated as a
new file, and a reverted file as already loaded.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.chain.ids import Multihash
from floodmark.errors import BadId, ObjectNotFound
from floodmark.storage.pointer import Pointer

if TYPE_CHECKING:
    from floodmark.ledger.objects import DatasetObjects
    from floodmark.ledger.snapshot import Snapshot


_SETTLED_NS = 2 * 10**9
"""A file modified less than this before it was read may have changed again with the same modification time."""

_NOTE = "info/sources/files.json"


_UNKNOWN_HASH = ""
"""The hash of a file whose rows on the chain are not known. It differs from every hash, so the file has changed."""


_turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)


@contextmanager
def take_files_turn(objects: DatasetObjects) -> Iterator[None]:
    """Wait for other sources of the same dataset, which share the file log.

    Turns of a bucket do not exclude each other. There the lock is enough, because one run at a time uses a lake and all
    its sources are in this process.
    """
    key = f"{objects.folder}/info/sources/files"
    with _turns[objects.store.url, key], objects.store.turn(key):
        yield


@dataclass(frozen=True)
class SourceFile:
    """A file that matches a pattern: its name relative to the project folder, and its path."""

    name: str
    path: Path


@dataclass(frozen=True)
class FileState:
    """A file when it was read: its size and modification time, the hash of its bytes, and the time of the read."""

    size: int
    mtime_ns: int
    sha256: str
    read_ns: int

    def matches(self, path: Path) -> bool:
        """Whether a file has this size and modification time."""
        now = path.stat()
        return (self.size, self.mtime_ns) == (now.st_size, now.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a file with this size and time certainly has this content."""
        return self.read_ns - self.mtime_ns > _SETTLED_NS


class FileLog:
    """The file log of a dataset: by file name, when it was read, the hash of its ingested rows, and files without rows.

    `begun` are the files that a run is about to ingest. If the run is killed, the chain shows which of them were
    ingested, except for the files in `again`, whose hash was on the chain before. `head` is the block at which all
    files in `taken` are on the chain.
    """

    def __init__(self, objects: DatasetObjects, content: dict[str, Any] | None = None) -> None:
        content = content or {"files": {}, "taken": {}, "empty": []}
        self._objects = objects
        self.seen = {name: FileState(**file) for name, file in content["files"].items()}
        self.taken: dict[str, str] = dict(content["taken"])
        self.begun: dict[str, str] = dict(content.get("begun", {}))
        self.again: set[str] = set(content.get("again", []))
        self.empty = set(content["empty"])
        self.head: str | None = content.get("head")
        self._stored = self._text()

    @classmethod
    def of(cls, snapshot: Snapshot) -> FileLog:
        """Load the file log of a dataset. If it is missing or damaged it is empty, and every file is read once more."""
        objects = snapshot.objects
        try:
            log = cls(objects, json.loads(objects.store.get(f"{objects.folder}/{_NOTE}")))
        except (ObjectNotFound, ValueError, KeyError, TypeError, AttributeError):
            return cls(objects)
        if log.head is not None and log.head != snapshot.head.text and not _has_block(objects, log.head):
            log.head = None  # the chain is older than the file log, perhaps restored from a backup
        return log

    def hash_of(self, file: SourceFile) -> str:
        """The hash of a file's bytes. The file is read unless it is certainly unchanged."""
        known = self.seen.get(file.name)
        if known is not None and known.is_settled and known.matches(file.path):
            return known.sha256
        now, read_ns = file.path.stat(), time.time_ns()
        with file.path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if known is None or known.sha256 != digest:
            self.empty.discard(file.name)
        self.seen[file.name] = FileState(now.st_size, now.st_mtime_ns, digest, read_ns)
        return digest

    def is_known(self, file: SourceFile) -> bool:
        """Whether a file has the same size and time as before, and its rows are ingested. Does not read the file."""
        known = self.seen.get(file.name)
        if known is None or not known.matches(file.path):
            return False
        return file.name in self.empty or known.size == 0 or self.taken.get(file.name) == known.sha256

    def is_certainly_known(self, file: SourceFile) -> bool:
        """Whether `is_known` is true, and the file cannot have changed with the same modification time."""
        return self.is_known(file) and self.seen[file.name].is_settled

    def has_changed(self, file: SourceFile) -> bool:
        """Whether rows of a file were ingested when it had other content."""
        now = self.seen[file.name].sha256
        return self.taken.get(file.name, now) != now

    def begin(self, files: Iterable[SourceFile], again: Iterable[SourceFile]) -> None:
        """Record which files are to be ingested, before any of their rows are written."""
        self.begun |= {file.name: self.seen[file.name].sha256 for file in files}
        self.again |= {file.name for file in again}
        self.head = None
        self.keep()

    def has_begun(self, file: SourceFile) -> bool:
        """Whether it is recorded that the file, with its last content, is to be ingested."""
        return file.name in self.again or self.begun.get(file.name) == self.seen[file.name].sha256

    def settle(self, written: Iterable[str]) -> None:
        """Finish a killed run: of the begun files, those with these hashes were ingested, the others were not."""
        on_chain = set(written)
        self.taken |= {name: sha256 for name, sha256 in self.begun.items() if sha256 in on_chain}
        self.taken |= dict.fromkeys(self.again, _UNKNOWN_HASH)
        self.end()

    def end(self) -> None:
        """Record that no ingest is in progress."""
        self.begun, self.again = {}, set()

    def mark_ingested(self, file: SourceFile, sha256: str) -> None:
        """Record that the rows of a file with this hash are on the chain."""
        self.taken[file.name] = sha256
        self.begun.pop(file.name, None)
        self.again.discard(file.name)

    def forget_times(self) -> None:
        """Make `hash_of` read every file again, even with the same size and time."""
        self.seen = {name: FileState(one.size, one.mtime_ns, one.sha256, 0) for name, one in self.seen.items()}

    def keep(self) -> None:
        """Store the file log if it has changed."""
        if (text := self._text()) == self._stored:
            return
        # A pointer is used only for durability: the writer has the turn, or on a bucket the lease of the run.
        _pointer(self._objects).change(lambda _: text, lambda _: False)
        self._stored = text

    def _text(self) -> bytes:
        files = {name: vars(seen) for name, seen in sorted(self.seen.items())}
        content = {"files": files, "taken": self.taken, "begun": self.begun, "empty": sorted(self.empty)}
        return json.dumps({**content, "again": sorted(self.again), "head": self.head}).encode()


def _pointer(objects: DatasetObjects) -> Pointer:
    return Pointer(objects.store, f"{objects.folder}/{_NOTE}")


def _has_block(objects: DatasetObjects, block: str) -> bool:
    try:
        objects.get_block(Multihash.parse(block))
    except (ObjectNotFound, BadId):
        return False
    return True

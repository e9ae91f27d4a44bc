"""The file log of a dataset: for each source file its size, time and hash, and the content whose rows are there.

With it, a run does not read unchanged files again. The chain has the path and the hash of each file that was loaded, so
a lost log is read from the chain. Only the log knows which files were renamed or are gone, and that a file returned to
earlier content.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from floodmark.chain.events import AddData
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.errors import BadId, ObjectNotFound
from floodmark.ledger.position import has_records_of
from floodmark.storage.facts import build, build_row, parse_json
from floodmark.storage.pointer import Pointer

if TYPE_CHECKING:
    from floodmark.ledger.objects import DatasetObjects
    from floodmark.ledger.snapshot import Snapshot


SOURCE = "files"
"""The source name of all files of a dataset. A file that several patterns match is ingested once."""

_SETTLED_NS = 2 * 10**9
"""A file modified less than this before it was read may have changed again with the same modification time."""

KEYS_FOLDER = "info/sources/keys"
"""The folder of a dataset with the keys of each ingested file. They never change."""

_NOTE = "info/sources/files.json"
_HASH = "sha256:"


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
    """A file that matches a pattern: its name relative to the project folder, its path, the pattern's fixed folder."""

    name: str
    path: Path
    base: Path


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


@dataclass(frozen=True)
class Content:
    """A delivery of a file as its source state on the chain names it: hash of the content, number, name at that time.

    The number tells deliveries of the same content under the same name apart: a file may return to earlier content.
    """

    sha256: str
    name: str
    number: int = 1

    @property
    def state(self) -> str:
        return f"{_HASH}{self.sha256}:{self.number}:{self.name}"

    @classmethod
    def parse(cls, state: str) -> Content | None:
        """The content that a source state names; None for the state of another source."""
        sha256, _, rest = state.removeprefix(_HASH).partition(":")
        number, _, name = rest.partition(":")
        return cls(sha256, name, int(number)) if state.startswith(_HASH) and number.isdecimal() else None


class FileLog:
    """By file name: when a file was read, the content whose rows are in the dataset, files without rows, files gone.

    `begun` are the contents that a run is about to ingest. If the run is killed, the chain shows which of them were
    ingested. `head` is the block at which all contents in `taken` are on the chain. `left_keys` names the stored keys
    of files that are gone and have lost some.
    """

    def __init__(self, objects: DatasetObjects, content: dict[str, Any] | None = None) -> None:
        content = content or {}
        self._objects = objects
        self.seen = {name: build(FileState, file) for name, file in content.get("files", {}).items()}
        self.taken = {name: build_row(Content, one) for name, one in content.get("taken", {}).items()}
        self.begun = {name: build_row(Content, one) for name, one in content.get("begun", {}).items()}
        self.empty: set[str] = set(content.get("empty", []))
        self.gone: set[str] = set(content.get("gone", []))
        self.left_keys: dict[str, str] = content.get("left_keys", {})
        self.begun_left_keys: dict[str, dict[str, str]] = content.get("begun_left_keys", {})
        self.head: str | None = content.get("head")
        self.is_ahead = False  # whether it knows contents that the dataset lost
        self._stored = self._text()

    @classmethod
    def of(cls, snapshot: Snapshot) -> FileLog:
        """Load the file log of a dataset. If it is missing or damaged, it is read from the chain."""
        objects = snapshot.objects
        try:
            log = cls(objects, parse_json(objects.store.get(f"{objects.folder}/{_NOTE}")))
        except (ObjectNotFound, ValueError, KeyError, TypeError, AttributeError):
            return cls._from_chain(snapshot)
        if log.head is not None and not _has_records_of(snapshot, log.head):
            log.head = None  # the dataset was replaced by another copy: which contents are there, its chain says
            log.is_ahead = True
        return log

    @classmethod
    def _from_chain(cls, snapshot: Snapshot) -> FileLog:
        log = cls(snapshot.objects)
        for _, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
            state = block.event.new_source_state if isinstance(block.event, AddData) else None
            if state is not None and state.source_name == SOURCE and (content := Content.parse(state.value)):
                log.taken.setdefault(content.name, content)
        return log

    def hash_of(self, file: SourceFile) -> str:
        """The hash of a file's bytes. The file is read unless it is certainly unchanged."""
        known = self.seen.get(file.name)
        if known is not None and known.is_settled and known.matches(file.path):
            return known.sha256
        now, read_ns = file.path.stat(), time.time_ns()
        digest = hash_file(file.path)
        if known is None or known.sha256 != digest:
            self.empty.discard(file.name)
        self.seen[file.name] = FileState(now.st_size, now.st_mtime_ns, digest, read_ns)
        return digest

    def is_known(self, file: SourceFile) -> bool:
        """Whether a file has the same size and time as before, and its rows are ingested. Does not read the file."""
        known = self.seen.get(file.name)
        if known is None or file.name in self.gone or not known.matches(file.path):
            return False
        if file.name in self.empty or self.is_taken(file.name, known.sha256):
            return True
        return known.size == 0 and file.name not in self.taken

    def is_certainly_known(self, file: SourceFile) -> bool:
        """Whether `is_known` is true, and the file cannot have changed with the same modification time."""
        return self.is_known(file) and self.seen[file.name].is_settled

    def is_taken(self, name: str, sha256: str) -> bool:
        """Whether the rows of a file are those of the content with this hash."""
        return name in self.taken and self.taken[name].sha256 == sha256

    def begin(
        self, contents: Iterable[Content], left_keys: Mapping[str, dict[str, str]] = MappingProxyType({})
    ) -> None:
        """Record what is to be ingested, and which keys other files then have left, before any rows are written."""
        self.begun |= {content.name: content for content in contents}
        self.begun_left_keys |= left_keys
        self.head = None
        self.keep()

    def settle(self, written: Iterable[Content]) -> None:
        """Finish a killed run: of the begun files, those with these contents were ingested, the others were not."""
        on_chain = set(written)
        for content in list(self.begun.values()):
            if content in on_chain:
                self.mark_ingested(content)
        self.end()

    def end(self) -> None:
        """Record that no ingest is in progress."""
        self.begun, self.begun_left_keys = {}, {}

    def mark_ingested(self, content: Content) -> None:
        """Record that the rows of a file are those of this content."""
        self.taken[content.name] = content
        self.left_keys.pop(content.name, None)
        self.left_keys |= self.begun_left_keys.pop(content.name, {})
        self.gone.discard(content.name)
        self.begun.pop(content.name, None)

    def rename(self, old: str, new: str) -> None:
        """Record that a file has another name now. The chain keeps the name under which it was ingested."""
        taken = self.taken.pop(old)
        self.taken.setdefault(new, taken)
        self.left_keys.pop(old, None)
        self.gone.discard(old)
        self.seen.pop(old, None)

    def forget_times(self) -> None:
        """Make `hash_of` read every file again, even with the same size and time."""
        self.seen = {name: FileState(one.size, one.mtime_ns, one.sha256, 0) for name, one in self.seen.items()}

    def keep(self) -> None:
        """Store the file log if it has changed."""
        if (text := self._text()) == self._stored:
            return
        # A pointer is used only for durability: the writer has the turn, or on a bucket the lease of the run.
        file_log_pointer(self._objects).change(lambda _: text, lambda _: False)
        self._stored = text

    def _text(self) -> bytes:
        content = {
            "files": {name: vars(seen) for name, seen in sorted(self.seen.items())},
            "taken": {name: astuple(one) for name, one in sorted(self.taken.items())},
            "begun": {name: astuple(one) for name, one in self.begun.items()},
            "empty": sorted(self.empty),
            "gone": sorted(self.gone),
            "left_keys": self.left_keys,
            "begun_left_keys": self.begun_left_keys,
            "head": self.head,
        }
        return json.dumps(content).encode()


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def file_log_pointer(objects: DatasetObjects) -> Pointer:
    """The stored file log of a dataset."""
    return Pointer(objects.store, f"{objects.folder}/{_NOTE}")


def _has_records_of(snapshot: Snapshot, block: str) -> bool:
    try:
        return has_records_of(snapshot, Multihash.parse(block))
    except BadId:
        return False

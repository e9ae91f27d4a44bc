"""What is known of the files of a dataset: kept beside the chain, never believed where a file may have changed.

It spares reading files that nobody has touched, and it says which file the rows of a hash on the chain came from. That
the chain does not say, so no crash may take it: a changed file would be taken for another one, or for none at all.
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

from floodmark.chain.errors import BadHash
from floodmark.chain.hashes import Multihash
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.pointer import Pointer

if TYPE_CHECKING:
    from floodmark.ledger.objects import DatasetObjects
    from floodmark.ledger.snapshot import Snapshot

_SETTLED_NS = 2 * 10**9
"""A file that was written to so shortly before it was read may have changed without its time's showing it."""

_NOTE = "info/sources/files.json"


_NOBODY_KNOWS = ""
"""For a hash: what rows of a file are there. Whatever it is now, it has changed."""


_turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)


@contextmanager
def turn(objects: DatasetObjects) -> Iterator[None]:
    """Wait for the other sources of a dataset, whose note it is, too.

    A bucket gives everyone a turn at once; but a lake has one run at a time, whose sources are all in this process.
    """
    key = f"{objects.folder}/info/sources/files"
    with _turns[objects.store.url, key], objects.store.turn(key):
        yield


@dataclass(frozen=True)
class Found:
    """A file that a pattern names: its path from the folder of the project, and where it is."""

    name: str
    path: Path


@dataclass(frozen=True)
class Seen:
    """A file as it was when it was read: its size and time, the hash of its bytes, and when that was taken."""

    size: int
    mtime_ns: int
    sha256: str
    read_ns: int

    def is_like(self, path: Path) -> bool:
        """Whether a file has this size and time."""
        now = path.stat()
        return (self.size, self.mtime_ns) == (now.st_size, now.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a file of this size and time has this content for sure."""
        return self.read_ns - self.mtime_ns > _SETTLED_NS


class Note:
    """Files by name: how each was seen, with which hash its rows were taken in, and those without rows.

    `begun` are those that a run was about to take in; if it was killed, the chain knows whether it did. It does not
    know that of those which were to be taken in `again`, with a hash that was on the chain before. `head` is the block
    as of which all that was `taken` is on the chain.
    """

    def __init__(self, objects: DatasetObjects, said: dict[str, Any] | None = None) -> None:
        said = said or {"files": {}, "taken": {}, "empty": []}
        self._objects = objects
        self.seen = {name: Seen(**file) for name, file in said["files"].items()}
        self.taken: dict[str, str] = dict(said["taken"])
        self.begun: dict[str, str] = dict(said.get("begun", {}))
        self.again: set[str] = set(said.get("again", []))
        self.empty = set(said["empty"])
        self.head: str | None = said.get("head")
        self._kept = self._text()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Note:
        """The note of a dataset; an empty one where it was lost or torn: every file is read once more then."""
        objects = snapshot.objects
        try:
            found = cls(objects, json.loads(objects.store.get(f"{objects.folder}/{_NOTE}")))
        except (ObjectNotFound, ValueError, KeyError, TypeError, AttributeError):
            return cls(objects)
        if found.head is not None and found.head != snapshot.head.text and not _is_there(objects, found.head):
            found.head = None  # the chain is older than the note, from a backup perhaps
        return found

    def hash_of(self, file: Found) -> str:
        """The hash of a file's bytes, taken anew unless it is known to be as it was."""
        known = self.seen.get(file.name)
        if known is not None and known.is_settled and known.is_like(file.path):
            return known.sha256
        now, read_ns = file.path.stat(), time.time_ns()
        with file.path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if known is None or known.sha256 != digest:
            self.empty.discard(file.name)
        self.seen[file.name] = Seen(now.st_size, now.st_mtime_ns, digest, read_ns)
        return digest

    def is_known(self, file: Found) -> bool:
        """Whether a file is as it was when it was last looked at, and its rows are there: nothing is read."""
        known = self.seen.get(file.name)
        if known is None or not known.is_like(file.path):
            return False
        return file.name in self.empty or known.size == 0 or self.taken.get(file.name) == known.sha256

    def is_sure_of(self, file: Found) -> bool:
        """The same, and it cannot have changed without its time's showing it."""
        return self.is_known(file) and self.seen[file.name].is_settled

    def has_changed(self, file: Found) -> bool:
        """Whether rows of a file were taken in when it was another."""
        now = self.seen[file.name].sha256
        return self.taken.get(file.name, now) != now

    def begin(self, files: Iterable[Found], again: Iterable[Found]) -> None:
        """Say, before anything of them is written, which files are to be taken in now."""
        self.begun |= {file.name: self.seen[file.name].sha256 for file in files}
        self.again |= {file.name for file in again}
        self.head = None
        self.keep()

    def has_begun(self, file: Found) -> bool:
        """Whether it was said of a file, as it was last looked at, that it is to be taken in."""
        return file.name in self.again or self.begun.get(file.name) == self.seen[file.name].sha256

    def settle(self, written: Iterable[str]) -> None:
        """Of what was begun, the files with these hashes were taken in, and the others were not."""
        there = set(written)
        self.taken |= {name: sha256 for name, sha256 in self.begun.items() if sha256 in there}
        self.taken |= dict.fromkeys(self.again, _NOBODY_KNOWS)
        self.end()

    def end(self) -> None:
        """Nothing is about to be taken in any more."""
        self.begun, self.again = {}, set()

    def ingested(self, file: Found, sha256: str) -> None:
        """The rows of a file with this hash are on the chain."""
        self.taken[file.name] = sha256
        self.begun.pop(file.name, None)
        self.again.discard(file.name)

    def forget_times(self) -> None:
        """Have every file read once more, whatever its size and time say."""
        self.seen = {name: Seen(one.size, one.mtime_ns, one.sha256, 0) for name, one in self.seen.items()}

    def keep(self) -> None:
        """Store it, if it says anything new."""
        if (text := self._text()) == self._kept:
            return
        # Swapped only for its durability: whoever writes has the turn, on a bucket the lease of the run.
        _note(self._objects).change(lambda _: text, lambda _: False)
        self._kept = text

    def _text(self) -> bytes:
        files = {name: vars(seen) for name, seen in sorted(self.seen.items())}
        said = {"files": files, "taken": self.taken, "begun": self.begun, "empty": sorted(self.empty)}
        return json.dumps({**said, "again": sorted(self.again), "head": self.head}).encode()


def _note(objects: DatasetObjects) -> Pointer:
    return Pointer(objects.store, f"{objects.folder}/{_NOTE}")


def _is_there(objects: DatasetObjects, block: str) -> bool:
    try:
        objects.get_block(Multihash.parse(block))
    except (ObjectNotFound, BadHash):
        return False
    return True

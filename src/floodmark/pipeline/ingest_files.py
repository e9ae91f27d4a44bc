"""Files as a source: each run takes those in whose content is new, one commit per file.

What was taken in, the chain says, by the hash of each file's bytes. Which file had which hash is noted beside the chain
so that a file that has not been touched is not read again; the note may be lost at any time.
"""

from __future__ import annotations

import glob
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.ledger.errors import NoFiles
from floodmark.pipeline.errors import FileChanged
from floodmark.pipeline.source_state import has_state
from floodmark.pipeline.taking_in import opened, report, written
from floodmark.storage.errors import ObjectNotFound
from floodmark.transform.place import Place
from floodmark.transform.report import RunReport, StepStatus
from floodmark.transform.step import Step

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.incoming import Format
    from floodmark.ledger.snapshot import Snapshot
    from floodmark.pipeline.declared import Dataset

SOURCE = "files"
"""The one source of all files of a dataset: whichever glob finds a file, its rows are taken in once."""

_SETTLED_NS = 2 * 10**9
"""A file that was written to so shortly before it was read may have changed without its time's showing it."""

_NOTE = "info/sources/files.json"


@dataclass(frozen=True)
class Seen:
    """A file as it was when it was read: its size and time, the hash of its bytes, and when that was taken."""

    size: int
    mtime_ns: int
    sha256: str
    read_ns: int

    def still_is(self, size: int, mtime_ns: int) -> bool:
        """Whether a file with this size and time has this content for sure."""
        return (self.size, self.mtime_ns) == (size, mtime_ns) and self.read_ns - mtime_ns > _SETTLED_NS


@dataclass(frozen=True)
class Found:
    """A file that a pattern names: its path from the folder of the project, and where it is."""

    name: str
    path: Path


class IngestFiles(Step):
    """Takes new files into a dataset."""

    def __init__(
        self,
        name: str,
        output: str,
        patterns: Sequence[str],
        read: Format | None = None,
        labels: Mapping[str, str] | None = None,
        declared: Dataset | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(name, (), [output], labels)
        self.patterns = tuple(patterns)
        self.read = read
        self.declared = declared
        self._place = place
        self.folder = folder_of(place)

    @property
    def shares_outputs(self) -> bool:
        return True

    def files(self) -> list[Found]:
        """The files that there are now, each once, by name."""
        found: dict[str, Found] = {}
        for pattern in self.patterns:
            paths = _expanded(self.folder, pattern)
            if not paths and not glob.has_magic(pattern):
                raise NoFiles(
                    f"step {self.name!r} reads {pattern!r}, and there is no such file in {self.folder}",
                    hint="put it there, or use a glob (data/*.csv) for files that are yet to come",
                    path=pattern,
                )
            for path in paths:
                name = str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)
                found[name] = Found(name, path)
        return [found[name] for name in sorted(found)]

    def run(self, lake: Any) -> RunReport:
        """Take in the files that are new."""
        began = time.monotonic()
        files = self.files()
        dataset = opened(lake, self.output_names[0], self.declared)
        snapshot: Snapshot = dataset.snapshot()
        note = _Note.of(snapshot)
        commits: list[Commit] = []
        try:
            for file in files:
                commits += self._take_in(dataset, note, file)
        finally:
            note.keep()
        return report(self.name, lake, commits, len(commits), dataset.strategy.is_keyed, time.monotonic() - began)

    def _take_in(self, dataset: Any, note: _Note, file: Found) -> list[Commit]:
        """Write a file unless its content is there; a file of a keyed dataset may also become what it once was."""
        snapshot = dataset.snapshot()
        if not _is_new(snapshot, note, file, dataset.strategy.is_keyed):
            note.ingested(file)
            return []
        state = _state(note, file)
        is_there = has_state(snapshot, SOURCE, state)
        self._check_unchanged(dataset, note, file)
        # The pair of source and state would be taken for the first commit again.
        told = {} if is_there else {"source": SOURCE, "state": state}
        commits = written(dataset, str(file.path), read=self.read, **told)
        if commits is None:
            note.empty.add(file.name)
            return []
        note.ingested(file)
        return commits

    def status(self, lake: Any) -> StepStatus:
        """How many rows there are; there is nothing in the lake that it could be behind."""
        from floodmark.transform.refresh.generate import status

        return status(self.name, self.output_names, self._in(lake))

    def pending(self, lake: Any) -> list[str]:
        """The files that a run would take in."""
        name = self.output_names[0]
        if name not in lake:
            return [file.name for file in self.files()]
        snapshot = lake[name].snapshot()
        note = _Note.of(snapshot)
        is_keyed = lake[name].strategy.is_keyed
        return [file.name for file in self.files() if _is_new(snapshot, note, file, is_keyed)]

    def _check_unchanged(self, dataset: Any, note: _Note, file: Found) -> None:
        """Without a key nobody can tell which rows of a changed file are there already."""
        if note.has_changed(file) and not dataset.strategy.is_keyed:
            raise FileChanged(
                f"{file.path} has changed since its rows were taken into {dataset.name!r}, which has no key: "
                "they would be there twice",
                hint=f"put new rows into new files, or give {dataset.name!r} a key so that rows can be told apart",
                path=str(file.path),
            )


class _Note:
    """What is known of files: kept beside the chain, never believed where a file may have changed."""

    def __init__(self, snapshot: Snapshot, seen: dict[str, Seen], taken: dict[str, str], empty: set[str]) -> None:
        self._objects = snapshot.objects
        self.seen, self.taken, self.empty = seen, taken, empty
        self._kept = self._text()

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Note:
        try:
            said = json.loads(snapshot.objects.store.get(f"{snapshot.objects.folder}/{_NOTE}"))
            seen = {name: Seen(**file) for name, file in said["files"].items()}
            return cls(snapshot, seen, dict(said["taken"]), set(said["empty"]))
        except (ObjectNotFound, ValueError, KeyError, TypeError, AttributeError):
            return cls(snapshot, {}, {}, set())  # lost or torn: every file is read once more

    def hash_of(self, file: Found) -> str:
        """The hash of a file's bytes, taken anew unless it is known to be as it was."""
        now = file.path.stat()
        known = self.seen.get(file.name)
        if known is not None and known.still_is(now.st_size, now.st_mtime_ns):
            return known.sha256
        read_ns = time.time_ns()
        with file.path.open("rb") as opened_file:
            digest = hashlib.file_digest(opened_file, "sha256").hexdigest()
        if known is None or known.sha256 != digest:
            self.empty.discard(file.name)
        self.seen[file.name] = Seen(now.st_size, now.st_mtime_ns, digest, read_ns)
        return digest

    def has_changed(self, file: Found) -> bool:
        """Whether the rows of a file were taken in when it was another."""
        return self.taken.get(file.name, self.seen[file.name].sha256) != self.seen[file.name].sha256

    def ingested(self, file: Found) -> None:
        self.taken[file.name] = self.seen[file.name].sha256

    def keep(self) -> None:
        if (text := self._text()) != self._kept:
            self._objects.store.put_derived(f"{self._objects.folder}/{_NOTE}", text)

    def _text(self) -> bytes:
        files = {name: vars(seen) for name, seen in sorted(self.seen.items())}
        return json.dumps({"files": files, "taken": self.taken, "empty": sorted(self.empty)}).encode()


def _state(note: _Note, file: Found) -> str:
    return f"sha256:{note.hash_of(file)}"


def _is_new(snapshot: Snapshot, note: _Note, file: Found, is_keyed: bool) -> bool:
    state = _state(note, file)
    if file.name in note.empty:
        return False
    return not has_state(snapshot, SOURCE, state) or (is_keyed and note.has_changed(file))


def folder_of(place: Place | None) -> Path:
    """What relative paths are relative to: the folder of the file that names them."""
    if place is not None and Path(place.file).is_file():
        return Path(place.file).absolute().parent
    return Path.cwd()


def _expanded(folder: Path, pattern: str) -> list[Path]:
    where = folder / Path(pattern).expanduser()
    if where.is_file():
        return [where]
    found = glob.glob(str(where), recursive=True)  # noqa: PTH207 -- absolute globs
    return sorted(path for path in map(Path, found) if path.is_file())

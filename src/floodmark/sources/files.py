"""Files as a source: each run ingests the files with new content, in one commit per file.

The chain has the hash of every ingested file. The file log has the hash of each file by name, so that unchanged files
are not read again and changed files are recognised.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.errors import CodeLocation, UnreadableFile
from floodmark.sources.file_log import FileLog, SourceFile, take_files_turn
from floodmark.sources.ingest import DatasetDeclaration, has_state, ingest_report, open_or_create, write_source_rows
from floodmark.transforms.step import RunReport, Step, StepStatus

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.data_input import Format
    from floodmark.ledger.snapshot import Snapshot


SOURCE = "files"
"""The source name of all files of a dataset. A file that several patterns match is ingested once."""


class IngestFiles(Step):
    """Ingests new files into a dataset."""

    def __init__(
        self,
        name: str,
        output: str,
        patterns: Sequence[str],
        read: Format | None = None,
        labels: Mapping[str, str] | None = None,
        declared: DatasetDeclaration | None = None,
        place: CodeLocation | None = None,
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

    def files(self) -> list[SourceFile]:
        """The existing files that match the patterns, sorted by name."""
        files: dict[str, SourceFile] = {}
        for pattern in self.patterns:
            paths = _expand(self.folder, pattern)
            if not paths and not glob.has_magic(pattern):
                raise UnreadableFile(
                    f"step {self.name!r} reads {pattern!r}, but there is no such file in {self.folder}",
                    hint="create the file, or use a glob (data/*.csv) for files that do not exist yet",
                    path=pattern,
                )
            for path in paths:
                name = path.removeprefix(f"{self.folder}{os.sep}")
                files[name] = SourceFile(name, Path(path))
        return [files[name] for name in sorted(files)]

    def missing(self) -> str | None:
        """A message if no file matches the patterns, else None."""
        if any(not glob.has_magic(pattern) or any(_glob(self.folder, pattern)) for pattern in self.patterns):
            return None
        patterns = " or ".join(repr(pattern) for pattern in self.patterns)
        return f"no file matches {patterns} in {self.folder}"

    def run(self, lake: Any, *, full: bool = False) -> RunReport:
        """Ingest the new files. With `full`, every file is read, even with the same size and time."""
        began = time.monotonic()
        dataset = open_or_create(lake, self.output_names[0], self.declared)
        commits: list[Commit] = []
        objects = dataset.snapshot().objects
        if full or self._may_be_new(dataset.snapshot()):
            with take_files_turn(objects):
                for file_commits in self._ingest_all(dataset, full):
                    commits += file_commits
        return ingest_report(
            self.name, lake, commits, len(commits), dataset.strategy.is_keyed, time.monotonic() - began
        )

    def _may_be_new(self, snapshot: Snapshot) -> bool:
        note = FileLog.of(snapshot)
        return note.head is None or bool(note.begun) or not all(note.is_certainly_known(file) for file in self.files())

    def _ingest_all(self, dataset: Any, full: bool) -> Iterator[list[Commit]]:
        snapshot: Snapshot = dataset.snapshot()
        note, is_keyed = _load_note(snapshot), dataset.strategy.is_keyed
        if full:
            note.forget_times()
        try:
            new = [file for file in self.files() if _is_new(snapshot, note, file, is_keyed)]
            if new:
                _begin(snapshot, note, new, is_keyed)
            for file in new:
                yield self._ingest(dataset, note, file)
            note.end()
            note.head = note.head or dataset.snapshot().head.text
        finally:
            note.keep()

    def _ingest(self, dataset: Any, note: FileLog, file: SourceFile) -> list[Commit]:
        """Write one file. In a keyed dataset, a file may also return to earlier content."""
        snapshot, is_keyed = dataset.snapshot(), dataset.strategy.is_keyed
        if not _is_new(snapshot, note, file, is_keyed):
            return []  # an earlier file of this run has the same content, or the file has changed meanwhile
        if not _is_text(file.name):
            raise UnreadableFile(
                f"the name of {os.fsencode(file.path).decode('utf-8', 'replace')} is not UTF-8",
                hint="rename the file and run again: the files before it were ingested",
                path=str(file.path),
            )
        sha256 = note.hash_of(file)
        if not is_keyed and note.has_changed(file):
            raise self._changed(dataset.name, file, "has changed since its rows were ingested")
        if not note.has_begun(file):  # the file has changed meanwhile
            _begin(snapshot, note, [file], is_keyed)
        # A write with a source and state that are on the chain would be skipped as a repetition.
        delivery = {} if has_state(snapshot, SOURCE, _state(sha256)) else {"source": SOURCE, "state": _state(sha256)}
        commits = write_source_rows(dataset, str(file.path), read=self.read, **delivery)
        if commits is None:
            note.empty.add(file.name)
            return []
        note.mark_ingested(file, sha256)
        if not is_keyed and not note.seen[file.name].matches(file.path):
            raise self._changed(dataset.name, file, "was modified while its rows were ingested")
        return commits

    def status(self, lake: Any) -> StepStatus:
        """The number of rows of the output. A source has no inputs in the lake that it could be behind."""
        from floodmark.transforms.step import refresh_status

        return refresh_status(self.name, self.output_names, self._in(lake))

    def pending(self, lake: Any) -> list[str]:
        """The files that a run would ingest."""
        name = self.output_names[0]
        if name not in lake:
            return [file.name for file in self.files()]
        snapshot = lake[name].snapshot()
        note = _load_note(snapshot)
        is_keyed = lake[name].strategy.is_keyed
        return [file.name for file in self.files() if _is_new(snapshot, note, file, is_keyed)]

    def unseen(self, lake: Any) -> int:
        """The number of files that are new or have another size or time. Does not read them."""
        files, name = self.files(), self.output_names[0]
        if name not in lake:
            return len(files)
        note = FileLog.of(lake[name].snapshot())
        return sum(not note.is_known(file) for file in files)

    def _changed(self, dataset: str, file: SourceFile, what: str) -> UnreadableFile:
        """Without a key, the rows of a changed file that are already in the dataset cannot be identified."""
        return UnreadableFile(
            f"{file.path} {what} into {dataset!r}, which has no key: its rows would be duplicated",
            hint="put new rows into new files, or load the files into a dataset with a key",
            path=str(file.path),
        )


def _state(sha256: str) -> str:
    return f"sha256:{sha256}"


def _load_note(snapshot: Snapshot) -> FileLog:
    """Load the file log. Files that a killed run had begun are looked up on the chain."""
    note = FileLog.of(snapshot)
    note.settle(sha256 for sha256 in note.begun.values() if has_state(snapshot, SOURCE, _state(sha256)))
    return note


def _begin(snapshot: Snapshot, note: FileLog, new: Sequence[SourceFile], is_keyed: bool) -> None:
    """Record the files to ingest, and for which of them the chain cannot show whether the ingest succeeded.

    These are files with earlier content of their own or of other files: their hash is already on the chain, or another
    file of this run adds it. They exist only for keyed datasets, where it is safe to write them once more.
    """
    first: list[SourceFile] = []
    again: list[SourceFile] = []
    hashes: set[str] = set()
    for file in new:
        sha256 = note.hash_of(file)
        is_known = sha256 in hashes or has_state(snapshot, SOURCE, _state(sha256))
        (again if is_keyed and is_known and note.has_changed(file) else first).append(file)
        hashes.add(sha256)
    note.begin(first, again)


def _is_new(snapshot: Snapshot, note: FileLog, file: SourceFile, is_keyed: bool) -> bool:
    """Whether the content of a file is not on the chain, or differs from the last ingested content of this file."""
    sha256 = note.hash_of(file)
    if file.name in note.empty or note.seen[file.name].size == 0:
        return False
    if note.head is not None and note.taken.get(file.name) == sha256:
        return False  # the file log has checked this hash against the chain up to its head
    if not has_state(snapshot, SOURCE, _state(sha256)) or (is_keyed and note.has_changed(file)):
        return True
    note.mark_ingested(file, sha256)
    return False


def _is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8. Python represents other bytes as lone surrogates."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def folder_of(place: CodeLocation | None) -> Path:
    """The base of relative paths: the folder of the file that declares the step."""
    if place is not None and Path(place.file).is_file():
        return Path(place.file).absolute().parent
    return Path.cwd()


def _expand(folder: Path, pattern: str) -> list[str]:
    path = str(folder / Path(pattern).expanduser())
    return [path] if Path(path).is_file() else sorted(_glob(folder, pattern))


def _glob(folder: Path, pattern: str) -> Iterator[str]:
    # Plain strings instead of paths, for speed: an idle run may list tens of thousands of files.
    paths = glob.iglob(str(folder / Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 -- absolute globs
    return (path for path in paths if os.path.isfile(path))  # noqa: PTH113

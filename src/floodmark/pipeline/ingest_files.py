"""Files as a source: each run takes those in whose content is new, one commit per file.

What was taken in, the chain says, by the hash of each file's bytes. Which file had which hash is noted beside it,
durably: a file that has not been touched is not read again, and one that has changed is known to be the same file.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.ledger.errors import NoFiles, UnreadableFile
from floodmark.pipeline.errors import FileChanged
from floodmark.pipeline.files_note import Found, Note, turn
from floodmark.pipeline.source_state import has_state
from floodmark.pipeline.taking_in import opened, report, written
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
                name = path.removeprefix(f"{self.folder}{os.sep}")
                found[name] = Found(name, Path(path))
        return [found[name] for name in sorted(found)]

    def missing(self) -> str | None:
        """What it waits for, if there are no files at all."""
        if any(not glob.has_magic(pattern) or any(_matching(self.folder, pattern)) for pattern in self.patterns):
            return None
        patterns = " or ".join(repr(pattern) for pattern in self.patterns)
        return f"no file is called {patterns} in {self.folder}"

    def run(self, lake: Any, *, full: bool = False) -> RunReport:
        """Take in the files that are new; with `full`, sizes and times do not tell which these are, but bytes."""
        began = time.monotonic()
        dataset = opened(lake, self.output_names[0], self.declared)
        commits: list[Commit] = []
        objects = dataset.snapshot().objects
        if full or self._may_be_new(dataset.snapshot()):
            with turn(objects):
                for commit in self._take_in_all(dataset, full):
                    commits += commit
        return report(self.name, lake, commits, len(commits), dataset.strategy.is_keyed, time.monotonic() - began)

    def _may_be_new(self, snapshot: Snapshot) -> bool:
        note = Note.of(snapshot)
        return note.head is None or bool(note.begun) or not all(note.is_sure_of(file) for file in self.files())

    def _take_in_all(self, dataset: Any, full: bool) -> Iterator[list[Commit]]:
        snapshot: Snapshot = dataset.snapshot()
        note, is_keyed = _note_of(snapshot), dataset.strategy.is_keyed
        if full:
            note.forget_times()
        try:
            new = [file for file in self.files() if _is_new(snapshot, note, file, is_keyed)]
            if new:
                _begin(snapshot, note, new, is_keyed)
            for file in new:
                yield self._take_in(dataset, note, file)
            note.end()
            note.head = note.head or dataset.snapshot().head.text
        finally:
            note.keep()

    def _take_in(self, dataset: Any, note: Note, file: Found) -> list[Commit]:
        """Write a file; one of a keyed dataset may also become what it once was."""
        snapshot, is_keyed = dataset.snapshot(), dataset.strategy.is_keyed
        if not _is_new(snapshot, note, file, is_keyed):
            return []  # an earlier file has the same content, or it was changed meanwhile
        if not _is_text(file.name):
            raise UnreadableFile(
                f"the name of {os.fsencode(file.path).decode('utf-8', 'replace')} is not UTF-8",
                hint="rename the file; those before it were taken in",
                path=str(file.path),
            )
        sha256 = note.hash_of(file)
        if not is_keyed and note.has_changed(file):
            raise self._changed(dataset.name, file, "has changed since its rows were taken")
        if not note.has_begun(file):  # it was changed meanwhile
            _begin(snapshot, note, [file], is_keyed)
        # The pair of source and state would be taken for the first commit again.
        told = {} if has_state(snapshot, SOURCE, _state(sha256)) else {"source": SOURCE, "state": _state(sha256)}
        commits = written(dataset, str(file.path), read=self.read, **told)
        if commits is None:
            note.empty.add(file.name)
            return []
        note.ingested(file, sha256)
        if not is_keyed and not note.seen[file.name].is_like(file.path):
            raise self._changed(dataset.name, file, "was written to while its rows were taken")
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
        note = _note_of(snapshot)
        is_keyed = lake[name].strategy.is_keyed
        return [file.name for file in self.files() if _is_new(snapshot, note, file, is_keyed)]

    def unseen(self, lake: Any) -> int:
        """How many files have not been looked at as they are now; reads none of them."""
        files, name = self.files(), self.output_names[0]
        if name not in lake:
            return len(files)
        note = Note.of(lake[name].snapshot())
        return sum(not note.is_known(file) for file in files)

    def _changed(self, dataset: str, file: Found, what: str) -> FileChanged:
        """Without a key nobody can tell which rows of a changed file are there already."""
        return FileChanged(
            f"{file.path} {what} into {dataset!r}, which has no key: they would be there twice",
            hint=f"put new rows into new files, or give {dataset!r} a key so that rows can be told apart",
            path=str(file.path),
        )


def _state(sha256: str) -> str:
    return f"sha256:{sha256}"


def _note_of(snapshot: Snapshot) -> Note:
    """What is known of the files; what a run had begun that was killed then, the chain knows."""
    note = Note.of(snapshot)
    note.settle(sha256 for sha256 in note.begun.values() if has_state(snapshot, SOURCE, _state(sha256)))
    return note


def _begin(snapshot: Snapshot, note: Note, new: Sequence[Found], is_keyed: bool) -> None:
    """Note what is to be taken in, and for which of it the chain will not tell whether that was done.

    These are files that become what they, or others, were before: their hash is on the chain already, or comes there
    with another file. Only files of a keyed dataset do, so they may be written once more.
    """
    first: list[Found] = []
    again: list[Found] = []
    coming: set[str] = set()
    for file in new:
        sha256 = note.hash_of(file)
        is_there = sha256 in coming or has_state(snapshot, SOURCE, _state(sha256))
        (again if is_keyed and is_there and note.has_changed(file) else first).append(file)
        coming.add(sha256)
    note.begin(first, again)


def _is_new(snapshot: Snapshot, note: Note, file: Found, is_keyed: bool) -> bool:
    """Whether the content of a file is not on the chain, or is not what this file was last."""
    sha256 = note.hash_of(file)
    if file.name in note.empty or note.seen[file.name].size == 0:
        return False
    if note.head is not None and note.taken.get(file.name) == sha256:
        return False  # it was on the chain when that ended with this head
    if not has_state(snapshot, SOURCE, _state(sha256)) or (is_keyed and note.has_changed(file)):
        return True
    note.ingested(file, sha256)
    return False


def _is_text(name: str) -> bool:
    """Whether a file's name can be said; bytes that are not UTF-8 come as lone surrogates."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def folder_of(place: Place | None) -> Path:
    """What relative paths are relative to: the folder of the file that names them."""
    if place is not None and Path(place.file).is_file():
        return Path(place.file).absolute().parent
    return Path.cwd()


def _expanded(folder: Path, pattern: str) -> list[str]:
    where = str(folder / Path(pattern).expanduser())
    return [where] if Path(where).is_file() else sorted(_matching(folder, pattern))


def _matching(folder: Path, pattern: str) -> Iterator[str]:
    # Plain texts: there may be ten thousands of files, and nothing to do.
    found = glob.iglob(str(folder / Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 -- absolute globs
    return (path for path in found if os.path.isfile(path))  # noqa: PTH113

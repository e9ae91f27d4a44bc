"""Files as a source: each run ingests the files with new content, in one commit per file.

The chain has the path and the hash of every ingested file. The file log has the hash of each file by name, so that
unchanged files are not read again and changed files are recognised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from floodmark.errors import CodeLocation, UnreadableFile
from floodmark.ledger.data_input import file_data
from floodmark.sources.file_log import SOURCE, Content, FileLog, SourceFile, take_files_turn
from floodmark.sources.found_files import FileChanges, FilePatterns, FileSearch, find_changes, folder_of, new_delivery
from floodmark.sources.ingest import DatasetDeclaration, has_state, ingest_report, open_or_create, write_source_rows
from floodmark.transforms.step import RunReport, Step, StepStatus

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.data_input import Format
    from floodmark.ledger.snapshot import Snapshot


@dataclass(frozen=True)
class FilesReport(RunReport):
    """What a run over files did, and which files were new, changed, renamed, repeated or gone."""

    files: FileChanges = field(default_factory=FileChanges)

    @property
    def notes(self) -> Sequence[str]:
        """What the counts do not show."""
        return self.files.notes


@dataclass(frozen=True)
class FilesPlan:
    """The files that a run would read into the dataset, and what else it would report."""

    step: str
    output: str
    files: FileChanges


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
        self.read = read
        self.declared = declared
        self._place = place
        self.patterns = FilePatterns(name, folder_of(place), tuple(patterns))

    @property
    def declared_as(self) -> str:
        return "Source"

    @property
    def shares_outputs(self) -> bool:
        return True

    def files(self) -> list[SourceFile]:
        """The existing files that match the patterns, sorted by name."""
        return self.patterns.files()

    def missing(self) -> str | None:
        """A message if no file matches the patterns, else None."""
        return self.patterns.missing()

    def run(self, lake: Any, *, full: bool = False) -> FilesReport:
        """Ingest the new files. With `full`, every file is read, even with the same size and time."""
        began = time.monotonic()
        dataset = open_or_create(lake, self.output_names[0], self.declared)
        commits: list[Commit] = []
        changes = FileChanges()
        objects = dataset.snapshot().objects
        files = self.files()
        if full or self._may_be_new(dataset.snapshot(), files):
            with take_files_turn(objects):
                run = _FilesRun(self, dataset, files, _load_log(dataset.snapshot()))
                changes = run.find(full)
                for file_commits in run.ingest(changes):
                    commits += file_commits
        report = ingest_report(
            self.name, lake, commits, len(commits), dataset.strategy.is_keyed, time.monotonic() - began
        )
        return FilesReport(**vars(report), files=changes)

    def _may_be_new(self, snapshot: Snapshot, files: Sequence[SourceFile]) -> bool:
        log = FileLog.of(snapshot)
        if log.head is None or log.begun or not all(log.is_certainly_known(file) for file in files):
            return True
        left = log.taken.keys() - log.gone - {file.name for file in files}
        return any(self.patterns.is_gone(name) for name in left)

    def status(self, lake: Any) -> StepStatus:
        """The number of rows of the output. A source has no inputs in the lake that it could be behind."""
        from floodmark.transforms.step import refresh_status

        return refresh_status(self.name, self.output_names, self._in(lake))

    def plan(self, lake: Any) -> FilesPlan:
        """The files that a run would read. They are compared by content; nothing is written."""
        name = self.output_names[0]
        if name not in lake:
            return FilesPlan(self.name, name, FileChanges(new=tuple(file.name for file in self.files())))
        run = _FilesRun(self, lake[name], self.files(), _load_log(lake[name].snapshot()))
        return FilesPlan(self.name, name, run.find(full=False))

    def pending(self, lake: Any) -> list[str]:
        """The files that a run would ingest."""
        return list(self.plan(lake).files.to_read)

    def unseen(self, lake: Any) -> int:
        """The number of files that are new or changed. Reads only files that may be others with a new time or name."""
        files, name = self.files(), self.output_names[0]
        if name not in lake:
            return len(files)
        log = FileLog.of(lake[name].snapshot())
        present = {file.name for file in files}
        gone_sizes = {log.seen[n].size for n in log.taken if n in log.seen and n not in present and n not in log.gone}
        doubtful = False
        for file in files:
            known = log.seen.get(file.name)
            sizes = gone_sizes if known is None else {known.size}
            doubtful = doubtful or (not log.is_known(file) and file.path.stat().st_size in sizes)
        return len(self.pending(lake)) if doubtful else sum(not log.is_known(file) for file in files)


@dataclass
class _FilesRun:
    """One run over the files of a step, while it has the turn."""

    step: IngestFiles
    dataset: Any
    files: Sequence[SourceFile]
    log: FileLog

    @property
    def is_keyed(self) -> bool:
        keyed: bool = self.dataset.strategy.is_keyed
        return keyed

    def find(self, full: bool) -> FileChanges:
        """The changes since the last run. With `full`, by content alone."""
        snapshot: Snapshot = self.dataset.snapshot()
        if full:
            self.log.forget_times()
        on_chain = partial(_is_on_chain, snapshot)
        return find_changes(self.log, FileSearch(self.step.patterns, self.files, self.is_keyed, on_chain))

    def ingest(self, changes: FileChanges) -> Iterator[list[Commit]]:
        """Write the files, each in one commit, in the order of their names."""
        log, to_read = self.log, set(changes.to_read)
        new = [file for file in self.files if file.name in to_read]
        try:
            if new:
                log.begin([self._delivery(file) for file in new if _is_text(file.name)])
            for file in new:
                yield self._ingest(file)
            for old, name in changes.renamed:
                log.rename(old, name)
            log.gone = (log.gone - set(changes.repeated)) | set(changes.vanished)
            log.end()
            log.head = log.head or self.dataset.snapshot().head.text
        finally:
            log.keep()

    def _delivery(self, file: SourceFile) -> Content:
        """The present content of a file, as a delivery that is not on the chain yet."""
        snapshot = self.dataset.snapshot()
        return new_delivery(Content(self.log.hash_of(file), file.name), partial(_is_on_chain, snapshot))

    def _ingest(self, file: SourceFile) -> list[Commit]:
        """Write one file."""
        log = self.log
        if not _is_text(file.name):
            raise UnreadableFile(
                f"the name of {os.fsencode(file.path).decode('utf-8', 'replace')} is not UTF-8",
                hint="rename the file and run again: the files before it were ingested",
                path=str(file.path),
            )
        content = self._delivery(file)
        if log.seen[file.name].size == 0:  # it has changed meanwhile
            return []
        if not self.is_keyed and file.name in log.taken:
            raise self._changed(file, "has changed since its rows were ingested")
        if log.begun.get(file.name) != content:  # it has changed meanwhile
            log.begin([content])
        data = file_data(file.path, file.base, self.step.read)
        commits = write_source_rows(self.dataset, data, source=SOURCE, state=content.state)
        if commits is None:
            log.empty.add(file.name)
            return []
        log.mark_ingested(content)
        if not self.is_keyed and not log.seen[file.name].matches(file.path):
            raise self._changed(file, "was modified while its rows were ingested")
        return commits

    def _changed(self, file: SourceFile, what: str) -> UnreadableFile:
        """Without a key, the rows of a changed file that are already in the dataset cannot be identified."""
        return UnreadableFile(
            f"{file.path} {what} into {self.dataset.name!r}, which has no key: its rows would be duplicated",
            hint="put new rows into new files, or load the files into a dataset with a key",
            path=str(file.path),
        )


def _load_log(snapshot: Snapshot) -> FileLog:
    """Load the file log. Files that a killed run had begun are looked up on the chain."""
    log = FileLog.of(snapshot)
    log.settle(content for content in log.begun.values() if _is_on_chain(snapshot, content))
    return log


def _is_on_chain(snapshot: Snapshot, content: Content) -> bool:
    return _is_text(content.name) and has_state(snapshot, SOURCE, content.state)


def _is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8. Python represents other bytes as lone surrogates."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)

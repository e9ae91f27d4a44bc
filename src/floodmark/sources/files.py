"""Files as a source: each run ingests the files with new content, in one commit per file.

The chain has the path and the hash of every ingested file. The file log has the hash of each file by name, so that
unchanged files are not read again and changed files are recognised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from floodmark.errors import CodeLocation, FloodmarkError, UnreadableFile
from floodmark.ledger.data_input import FileData, Incoming, TableData, file_data, with_null_columns
from floodmark.ledger.strategy import MergeKind
from floodmark.sources.file_log import SOURCE, Content, FileLog, SourceFile, take_files_turn
from floodmark.sources.found_files import (
    FileChanges,
    FilePatterns,
    FileSearch,
    find_changes,
    folder_of,
    has_rows,
    list_names,
    new_delivery,
)
from floodmark.sources.ingest import (
    DatasetDeclaration,
    SourceWrites,
    columns_added_later,
    has_state,
    ingest_report,
    open_or_create,
    source_state,
)
from floodmark.sources.keyed_files import FileDelivery, FileKeys, FileMerge
from floodmark.transforms.step import RunReport, Step, StepStatus

if TYPE_CHECKING:
    from floodmark.ledger.data_input import Format
    from floodmark.ledger.snapshot import Snapshot


@dataclass(frozen=True)
class FilesReport(RunReport):
    """What a run over files did, and which files were new, changed, renamed, repeated or gone."""

    files: FileChanges = field(default_factory=FileChanges)
    replaced: int = 0
    """Rows that were not written, because a later file has their keys."""
    superseded: tuple[str, ...] = ()
    """Files that were not written, because the dataset has the snapshot of a later file."""
    keys_lost: tuple[str, ...] = ()
    """Files whose keys at the last load are not known any more: rows of lines that were removed from them stay."""

    @property
    def notes(self) -> Sequence[str]:
        """What the counts do not show."""
        notes = [*self.restored, *self.files.notes]
        if self.replaced:
            rows = "1 row" if self.replaced == 1 else f"{self.replaced:,} rows"
            notes.append(f"{rows} not written, because a later file has their keys")
        if self.superseded:
            notes.append(f"not written, because a later file has a newer snapshot: {list_names(self.superseded)}")
        if self.keys_lost:
            names = list_names(self.keys_lost)
            notes.append(f"the keys of the last load are lost, so rows of removed lines stay: {names}")
        return notes


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
        writes = SourceWrites(dataset)
        changes, run_facts = FileChanges(), {}
        objects = dataset.snapshot().objects
        files = self.files()
        if full or self._may_be_new(dataset.snapshot(), files):
            with take_files_turn(objects):
                run = _FilesRun(self, dataset, files, _load_log(dataset.snapshot()), writes)
                changes = run.find(full)
                run.ingest(changes, full)
                run_facts = run.facts
        report = ingest_report(self.name, lake, writes, len(writes.commits), time.monotonic() - began)
        return FilesReport(**{**vars(report), **run_facts}, files=changes)

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
        dataset = lake[name]
        run = _FilesRun(self, dataset, self.files(), _load_log(dataset.snapshot()), SourceWrites(dataset))
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
    writes: SourceWrites
    superseded: list[str] = field(default_factory=list)
    deliveries: list[FileDelivery] = field(default_factory=list)

    @cached_property
    def kind(self) -> MergeKind:
        kind: MergeKind = self.dataset.strategy.kind
        return kind

    @cached_property
    def keys(self) -> FileKeys:
        return FileKeys(self.dataset.snapshot().objects, self.log)

    @cached_property
    def by_name(self) -> dict[str, SourceFile]:
        return {file.name: file for file in self.files}

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says besides the changes of files and the counts of rows."""
        restored = f"{self.dataset.name!r} was replaced by another copy of it: files that it lacks are read again"
        return {
            "restored": (restored,) if self.log.is_ahead else (),
            "replaced": sum(one.replaced for one in self.deliveries),
            "superseded": tuple(self.superseded),
            "keys_lost": tuple(sorted({name for one in self.deliveries for name in one.unknown})),
        }

    def find(self, full: bool) -> FileChanges:
        """The changes since the last run. With `full`, by content alone."""
        snapshot: Snapshot = self.dataset.snapshot()
        if full:
            self.log.forget_times()
        on_chain = partial(_is_on_chain, snapshot)
        return find_changes(self.log, FileSearch(self.step.patterns, self.files, self.kind == "upsert", on_chain))

    def ingest(self, changes: FileChanges, full: bool) -> None:
        """Write the files, each in one commit, in the order of their names."""
        log, old_names = self.log, {new: old for old, new in changes.renamed}
        new = self._to_read(changes, full)
        try:
            if new:
                log.begin([content for file in new if (content := self._delivered(file)) != log.taken.get(file.name)])
            for file in new:
                self._ingest(file, old_names.get(file.name))
            for old, name in changes.renamed:
                if old in log.taken:
                    log.rename(old, name)
            if self.kind == "snapshot":
                self._restore_snapshot([old for old, _ in changes.renamed])
            log.gone = (log.gone - set(changes.repeated)) | set(changes.vanished)
            log.end()
            log.head = log.head or self.dataset.snapshot().head.text
        finally:
            log.keep()
        if self.deliveries and (changes.changed or changes.renamed or changes.returned or full):
            self.keys.sweep()

    def _to_read(self, changes: FileChanges, full: bool) -> list[SourceFile]:
        names = set(changes.to_read)
        if self.kind == "upsert":
            names |= {new for _, new in changes.renamed}
            names |= {file.name for file in self.files if file.name in self.log.taken} if full else set()
        elif self.kind == "snapshot" and full and self.log.taken:
            names.add(max(self.log.taken))
        return [file for file in self.files if file.name in names]

    def _delivered(self, file: SourceFile) -> Content:
        """The present content of a file: the one that is in the dataset, or a delivery that is not on the chain yet."""
        sha256, taken = self.log.hash_of(file), self.log.taken.get(file.name)
        if taken is not None and taken.sha256 == sha256:
            return taken
        if not _is_text(file.name):
            return Content(sha256, file.name)
        return new_delivery(Content(sha256, file.name), partial(_is_on_chain, self.dataset.snapshot()))

    def _ingest(self, file: SourceFile, old_name: str | None) -> None:
        """Write one file."""
        log = self.log
        if not _is_text(file.name):
            raise UnreadableFile(
                f"the name of {os.fsencode(file.path).decode('utf-8', 'replace')} is not UTF-8",
                hint="rename the file and run again: the files before it were ingested",
                path=str(file.path),
            )
        content, is_again = self._delivered(file), False
        if content == log.taken.get(file.name):
            is_again = True
        elif self.kind in ("append", "changelog") and file.name in log.taken:
            raise self._changed(file, "has changed since its rows were ingested")
        elif log.begun.get(file.name) != content:  # it has changed meanwhile
            log.begin([content])
        if log.seen[file.name].size == 0 and not has_rows(log, file, self.kind == "upsert"):
            return  # it has changed meanwhile
        if self.kind == "snapshot" and any(name > file.name for name in log.taken):
            self.superseded.append(file.name)
            log.mark_ingested(content)
            return
        state = None if is_again else content.state
        if not (self._merge(file, content, state, old_name) if self.kind == "upsert" else self._write(file, state)):
            log.empty.add(file.name)
            return
        log.mark_ingested(content)
        if old_name is not None:
            log.rename(old_name, file.name)
        if self.kind in ("append", "changelog") and not log.seen[file.name].matches(file.path):
            raise self._changed(file, "was modified while its rows were ingested")

    def _write(self, file: SourceFile, state: str | None) -> bool:
        """Write the rows of a file; False if it has none."""
        delivery = {} if state is None else {"source": SOURCE, "state": state}
        data = self._data(file)
        return self.writes.add(lambda: self.dataset.write(data, **delivery))

    def _data(self, file: SourceFile, is_renamed: bool = False) -> FileData:
        """The rows of a file. The types of a new dataset fit all files that are there.

        A file that was loaded before may lack columns that the dataset got since.
        """
        data = file_data(file.path, file.base, self.step.read)
        snapshot: Snapshot = self.dataset.snapshot()
        if snapshot.layout is not None:
            is_known = file.name in self.log.taken or is_renamed
            return with_null_columns(data, columns_added_later(snapshot)) if is_known else data
        found: list[FileData] = []
        for other in (one for one in self.files if _is_text(one.name)):
            with suppress(FloodmarkError):  # its own load raises it
                found.append(file_data(other.path, other.base, self.step.read))
        peers = [one for one in found if one.format == data.format and one.paths != data.paths]
        paths, hive = tuple(one.paths[0] for one in peers), tuple(one.hive[0] for one in peers)
        return replace(data, peers=FileData(paths, data.format, hive))

    def _merge(self, file: SourceFile, content: Content, state: str | None, old_name: str | None) -> bool:
        """Write the rows of a file that belong to it, and those of other files for keys that it has no more.

        False if there are none.
        """
        present = partial(_present, self.by_name, self.step.patterns)
        delivery = FileDelivery(content, self.keys, self.log, present, self.step.read, old_name)
        self.deliveries.append(delivery)
        snapshot, parts = self.dataset.snapshot(), self.dataset.parts
        if self.log.seen[file.name].size == 0:
            data: Incoming = TableData(snapshot.require_layout(self.dataset.name).data.empty_table())
        else:
            data = self._data(file, is_renamed=old_name is not None)
        noted = None if state is None else source_state(SOURCE, state)
        ledger = parts.ledger
        merge = partial(FileMerge, ledger.name, ledger.runtime, data, noted, cache=parts.rows.cache, delivery=delivery)
        written = self.writes.add(lambda: ledger.write(snapshot, merge))
        if written:
            parts.rows.fold_if_due()
            parts.timeline.follow()
        return written

    def _restore_snapshot(self, old_names: Sequence[str]) -> None:
        """Write the last file again if the file after it has another name now, before it."""
        last = max(self.log.taken, default="")
        file = self.by_name.get(last)
        if file is not None and any(old > last for old in old_names):
            self._write(file, None)

    def _changed(self, file: SourceFile, what: str) -> UnreadableFile:
        """The rows of a changed file that are already in the dataset cannot be identified."""
        why = "which has no key: its rows would be duplicated"
        if self.kind == "changelog":
            why = "which is a changelog: its operations would be applied twice"
        return UnreadableFile(
            f"{file.path} {what} into {self.dataset.name!r}, {why}",
            hint="put the file back as it was and new rows into new files, or load the files into a dataset with a key",
            path=str(file.path),
        )


def _load_log(snapshot: Snapshot) -> FileLog:
    """Load the file log. Files that a killed run had begun are looked up on the chain."""
    log = FileLog.of(snapshot)
    log.settle(content for content in log.begun.values() if _is_on_chain(snapshot, content))
    return log


def _present(files: Mapping[str, SourceFile], patterns: FilePatterns, name: str) -> SourceFile | None:
    """The file with this name, if it exists. It may be one of another source."""
    return files.get(name) or patterns.other_file(name)


def _is_on_chain(snapshot: Snapshot, content: Content) -> bool:
    return _is_text(content.name) and has_state(snapshot, SOURCE, content.state)


def _is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8. Python represents other bytes as lone surrogates."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)

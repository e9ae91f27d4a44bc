"""The files of a source: those that match its patterns, and what differs from the last run by path and content."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from floodmark.errors import CodeLocation, UnreadableFile
from floodmark.ledger.data_input import fixed_folder
from floodmark.sources.file_log import Content, FileLog, SourceFile

_LISTED = 3


@dataclass(frozen=True)
class FileChanges:
    """The names of files that differ from the last run. A file is identified by its path and its content."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    """Files that were gone and are there again."""
    copies: tuple[tuple[str, str], ...] = ()
    """New files, each with another file of the same content. Both count."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new names. The old file is gone and the new one has its content, so there are no new rows."""
    repeated: tuple[str, ...] = ()
    """Files that were written again with the same content."""
    vanished: tuple[str, ...] = ()
    """Files that are gone. Their rows stay."""
    emptied: tuple[str, ...] = ()
    """Files that became empty in a dataset whose rows no file takes back. Their rows stay."""

    @property
    def to_read(self) -> tuple[str, ...]:
        """The files with rows that are not in the dataset, in the order of their names."""
        return tuple(sorted({*self.new, *self.changed, *self.returned}))

    @property
    def is_empty(self) -> bool:
        return not any(getattr(self, field.name) for field in fields(self))

    @property
    def notes(self) -> list[str]:
        """What the counts of rows do not show, one sentence per kind of change."""
        notes = []
        if self.renamed:
            notes.append(f"{_files(self.renamed)} renamed, with no new rows: {_pairs(self.renamed, ' → ')}")
        if self.repeated:
            notes.append(f"{_files(self.repeated)} written again with the same content: {list_names(self.repeated)}")
        if self.copies:
            notes.append(f"{_files(self.copies)} with the content of another, both count: {_pairs(self.copies, ' = ')}")
        if self.returned:
            notes.append(f"{_files(self.returned)} there again: {list_names(self.returned)}")
        if self.vanished:
            whose = "its" if len(self.vanished) == 1 else "their"
            notes.append(f"{_files(self.vanished)} gone, {whose} rows stay: {list_names(self.vanished)}")
        if self.emptied:
            whose = "its" if len(self.emptied) == 1 else "their"
            notes.append(f"{_files(self.emptied)} empty now, {whose} rows stay: {list_names(self.emptied)}")
        return notes


def _files(items: Sequence[object]) -> str:
    return "1 file" if len(items) == 1 else f"{len(items):,} files"


def list_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(os.fsencode(name).decode("utf-8", "replace") for name in names[:_LISTED])
    return f"{shown} and {len(names) - _LISTED:,} more" if len(names) > _LISTED else shown


def _pairs(pairs: Sequence[tuple[str, str]], sign: str) -> str:
    return list_names([sign.join(pair) for pair in pairs])


@dataclass(frozen=True)
class FilePatterns:
    """Paths and globs, relative to the folder of the file that declares them."""

    step: str
    folder: Path
    patterns: tuple[str, ...]

    def files(self) -> list[SourceFile]:
        """The existing files that match, sorted by name."""
        files: dict[str, SourceFile] = {}
        for pattern in self.patterns:
            full = self._full(pattern)
            paths = [full] if Path(full).is_file() else sorted(_glob(full))
            if not paths and not glob.has_magic(pattern):
                raise UnreadableFile(
                    f"step {self.step!r} reads {pattern!r}, but there is no such file in {self.folder}",
                    hint="create the file, or use a glob (data/*.csv) for files that do not exist yet",
                    path=pattern,
                )
            base = fixed_folder(full)
            for path in paths:
                files.setdefault(self._name(path), SourceFile(self._name(path), Path(path), base))
        return [files[name] for name in sorted(files)]

    def missing(self) -> str | None:
        """A message if no file matches, else None."""
        if any(not glob.has_magic(pattern) or any(_glob(self._full(pattern))) for pattern in self.patterns):
            return None
        patterns = " or ".join(repr(pattern) for pattern in self.patterns)
        return f"no file matches {patterns} in {self.folder}"

    def is_gone(self, name: str) -> bool:
        """Whether a file that these patterns match does not exist any more."""
        return self._matches(name) and not os.path.lexists(self.folder / name)

    def other_file(self, name: str) -> SourceFile | None:
        """A file of another source of the same folder, by its name; None if it does not exist."""
        path = self.folder / name
        return SourceFile(name, path, path.parent) if path.is_file() else None

    def _matches(self, name: str) -> bool:
        own = (self._name(self._full(pattern)) for pattern in self.patterns)
        return any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name, p.replace("**/", "")) for p in own)

    def _full(self, pattern: str) -> str:
        return os.path.normpath(self.folder / Path(pattern).expanduser())

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.folder}{os.sep}")


def folder_of(place: CodeLocation | None) -> Path:
    """The base of relative paths: the folder of the file that declares the step."""
    if place is not None and Path(place.file).is_file():
        return Path(place.file).absolute().parent
    return Path.cwd()


def _glob(pattern: str) -> Iterator[str]:
    # Plain strings instead of paths, for speed: an idle run may list tens of thousands of files.
    paths = glob.iglob(pattern, recursive=True)  # noqa: PTH207 -- absolute globs
    return (path for path in paths if os.path.isfile(path))  # noqa: PTH113


@dataclass(frozen=True)
class FileSearch:
    """A comparison of the files of a source with the file log."""

    patterns: FilePatterns
    files: Sequence[SourceFile]
    follows_keys: bool
    """Whether the rows of a file may change: a row belongs to the last file that has its key."""
    is_on_chain: Callable[[Content], bool]


def find_changes(log: FileLog, search: FileSearch) -> FileChanges:
    """The files that differ from the log. Reads those that may have changed, and updates the log."""
    patterns, files, is_on_chain = search.patterns, search.files, search.is_on_chain
    if log.head is None:
        log.taken = {name: content for name, content in log.taken.items() if is_on_chain(content)}
    present = {file.name for file in files}
    missing = [name for name in log.taken if name not in present and name not in log.gone and patterns.is_gone(name)]
    left = {log.taken[name].sha256: name for name in sorted(missing, reverse=True)}
    found: dict[str, list[str]] = {"new": [], "changed": [], "returned": [], "repeated": [], "emptied": []}
    renamed: list[tuple[str, str]] = []
    unknown: list[SourceFile] = []
    for file in files:
        before = log.seen.get(file.name)
        sha256 = log.hash_of(file)
        if file.name in log.empty:
            continue
        if log.seen[file.name].size == 0 and not has_rows(log, file, search.follows_keys):
            if file.name in log.taken and (before is None or before.size > 0):  # later runs do not report it again
                found["emptied"].append(file.name)
            continue
        if file.name in log.taken and not log.is_taken(file.name, sha256):
            found["changed"].append(file.name)
        elif file.name in log.gone and search.follows_keys:  # other files may have its keys now
            found["returned"].append(file.name)
        elif file.name in log.taken:
            if file.name in log.gone or (before is not None and not before.matches(file.path)):
                found["repeated"].append(file.name)
        elif (content := _unlogged(log, Content(sha256, file.name), search)) is not None:
            log.mark_ingested(content)
        elif (old := left.pop(sha256, None)) is not None:
            renamed.append((old, file.name))
        else:
            unknown.append(file)
    others = {content.sha256: name for name, content in sorted(log.taken.items(), reverse=True)}
    copies: list[tuple[str, str]] = []
    for file in unknown:
        found["new"].append(file.name)
        other = others.setdefault(log.seen[file.name].sha256, file.name)
        if other != file.name:
            copies.append((file.name, other))
    old_names = {old for old, _ in renamed}
    return FileChanges(
        **{kind: tuple(names) for kind, names in found.items()},
        copies=tuple(copies),
        renamed=tuple(renamed),
        vanished=tuple(sorted(name for name in missing if name not in old_names)),
    )


def has_rows(log: FileLog, file: SourceFile, follows_keys: bool) -> bool:
    """Whether rows of a file are in the dataset that go away when the file becomes empty."""
    return follows_keys and file.name in log.taken


def _unlogged(log: FileLog, content: Content, search: FileSearch) -> Content | None:
    """A delivery of this content that the chain has and the log lacks: the log may be from a backup.

    Rows with a key can be written again. Then the keys that belong to the file are known, too.
    """
    if search.follows_keys or not search.is_on_chain(content):
        return None
    logged = {*log.taken.values()}
    while search.is_on_chain(content):
        if content not in logged:
            return content
        content = replace(content, number=content.number + 1)  # its file has another name now
    return None


def new_delivery(content: Content, is_on_chain: Callable[[Content], bool]) -> Content:
    """The first delivery of this content that the chain does not have."""
    while is_on_chain(content):
        content = replace(content, number=content.number + 1)
    return content

"""Manifests: the files that hold the values of a computed column, and the state of each row, by fragment."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from pyroaring import BitMap

from floodmark.columns.catalog import ColumnDefinition, ColumnObjects
from floodmark.errors import ObjectNotFound, UnreadableColumn
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural, Sha3Hex, build, build_row, parse_json
from floodmark.storage.row_sets import pack, span, unpack

_KIND = "column manifest"
_BITMAPS = ("done", "kept", "hidden", "carried")


@dataclass(frozen=True)
class ColumnSegment:
    """A file with one value for each of the offsets [start, end), null where nothing was computed."""

    start: Natural
    end: Natural
    digest: Sha3Hex  # of the file
    size: Natural
    tail: Natural  # number of bytes after its last page: indexes and footer
    tail_checksum: int  # their CRC-32

    @property
    def rows(self) -> int:
        return self.end - self.start

    def key(self, objects: ColumnObjects) -> str:
        return objects.file_key(self.digest)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> ColumnSegment:
        """The segment of a text that `to_json` returned; ValueError for any other text."""
        return build(ColumnSegment, parse_json(text))


@dataclass(frozen=True)
class Fragment:
    """A window of offsets: its files in offset order, and three disjoint sets of row addresses.

    `carried` rows are in one of these sets. They took over the value of the record that they replaced.
    """

    number: Natural
    segments: tuple[ColumnSegment, ...] = ()
    done: BitMap = field(default_factory=BitMap)  # computed under the manifest's identity
    kept: BitMap = field(default_factory=BitMap)  # a value of an older version, visible until it is replaced
    hidden: BitMap = field(default_factory=BitMap)  # a value whose computed input has changed: it reads as null
    errors: Sha3Hex | None = None  # digest of the file with the errors of skipped rows
    carried: BitMap = field(default_factory=BitMap)

    def outdated(self) -> Fragment:
        """The fragment in a manifest of another identity: every value belongs to an older version."""
        return replace(self, done=BitMap(), kept=self.done | self.kept) if self.done else self

    @property
    def visible(self) -> BitMap:
        """The rows whose values readers see."""
        return self.done | self.kept

    def hide(self, addresses: BitMap) -> Fragment:
        """The fragment with the values of some rows hidden."""
        gone = addresses & self.visible
        return replace(self, done=self.done - gone, kept=self.kept - gone, hidden=self.hidden | gone) if gone else self


def clip_sets(fragment: Fragment, end: int) -> Fragment:
    """A fragment without the addresses from `end` on in its sets."""
    inside = span(0, end)
    return replace(fragment, **{name: getattr(fragment, name) & inside for name in _BITMAPS})


@dataclass(frozen=True)
class ColumnManifest:
    """One version of a column's values: all of its fragments."""

    field_id: int
    identity: str
    fragments: tuple[Fragment, ...] = ()
    digest: str | None = field(default=None, compare=False)  # of the stored manifest that this is, or is derived from

    def fragment(self, number: int) -> Fragment:
        """A fragment by its number, empty if nothing was computed there."""
        place = bisect_left(self.fragments, number, key=lambda f: f.number)
        found = self.fragments[place : place + 1]
        return found[0] if found and found[0].number == number else Fragment(number)

    def keys(self, objects: ColumnObjects) -> set[str]:
        """The object keys of all files that the manifest names."""
        files = {s.key(objects) for f in self.fragments for s in f.segments}
        return files | {objects.errors_key(f.errors) for f in self.fragments if f.errors is not None}

    def with_fragments(self, fragments: Iterable[Fragment]) -> ColumnManifest:
        """The manifest with some fragments added or replaced."""
        merged = {f.number: f for f in (*self.fragments, *fragments)}
        return replace(self, fragments=tuple(merged[number] for number in sorted(merged)))

    def with_identity(self, identity: str) -> ColumnManifest:
        """The manifest under another identity: values computed under this identity become older values there."""
        if identity == self.identity:
            return self
        return replace(self, identity=identity, fragments=tuple(f.outdated() for f in self.fragments))


def encode(manifest: ColumnManifest) -> bytes:
    """A manifest as a document with one section per bitmap."""
    sections = {
        f"{fragment.number}.{name}": pack(getattr(fragment, name))
        for fragment in manifest.fragments
        for name in _BITMAPS
    }
    fragments = [[f.number, [list(vars(s).values()) for s in f.segments], f.errors] for f in manifest.fragments]
    facts = {"field_id": manifest.field_id, "identity": manifest.identity, "fragments": fragments}
    return document.encode(_KIND, 1, facts, sections)


def decode(data: bytes, key: str = "") -> ColumnManifest:
    """The manifest in these bytes; `DamagedDocument` when `encode` did not write them."""
    found = document.decode(data, _KIND, key)
    fragments = []
    with document.parsing(key):
        for number, segments, errors in found.facts["fragments"]:
            sets: dict[str, Any] = {name: unpack(found.section(f"{number}.{name}")) for name in _BITMAPS}
            rows = tuple(build_row(ColumnSegment, row) for row in segments)
            fragments.append(build(Fragment, {"number": number, "errors": errors}, segments=rows, **sets))
        if any(later.number <= earlier.number for earlier, later in pairwise(fragments)):
            raise ValueError("its fragments are not in order")
        own = {name: found.facts[name] for name in ("field_id", "identity")}
        return build(ColumnManifest, own, fragments=tuple(fragments), digest=digest_of(data))


def digest_of(data: bytes) -> str:
    """The name of a manifest: the hash of its content."""
    return hashlib.sha3_256(data).hexdigest()


def put(objects: ColumnObjects, manifest: ColumnManifest) -> ColumnManifest:
    """Store a manifest durably, and return it with its digest."""
    data = encode(manifest)
    digest = digest_of(data)
    objects.put(objects.manifest_key(digest), data)
    return replace(manifest, digest=digest)


def load(objects: ColumnObjects, column: ColumnDefinition) -> ColumnManifest:
    """The manifest of a column's current values, empty before anything was computed."""
    if column.manifest is None:
        return ColumnManifest(column.field_id, "")
    key = objects.manifest_key(column.manifest)
    try:
        data = objects.store.get(key)
        if digest_of(data) != column.manifest:
            raise _bad(column, key, "was changed or damaged")
        manifest = decode(data)
    except ObjectNotFound as error:
        raise _bad(column, key, "is missing") from error
    except DamagedDocument as error:
        raise _bad(column, key, f"is damaged: {error.problem}") from error
    if manifest.field_id != column.field_id:
        raise _bad(column, key, f"belongs to field {manifest.field_id}, not to {column.field_id}")
    return manifest


def find(objects: ColumnObjects, digest: str) -> ColumnManifest | None:
    """A manifest of any column by its digest; None when it is missing or damaged."""
    try:
        data = objects.store.get(objects.manifest_key(digest))
        return decode(data) if digest_of(data) == digest else None
    except (ObjectNotFound, DamagedDocument):
        return None


def _bad(column: ColumnDefinition, key: str, problem: str) -> UnreadableColumn:
    return UnreadableColumn(
        f"the manifest {key!r} of the computed column {column.name!r} {problem}",
        hint=f"call drop_column({column.name!r}) and add it again; values in its checkpoints are not computed again",
        column=column.name,
        key=key,
    )

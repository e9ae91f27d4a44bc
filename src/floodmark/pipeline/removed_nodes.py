"""What was declared before and is not any more: its datasets and columns stay in the lake, and nothing updates them.

A lake has a small record per pipeline file: what its nodes have written so far. A run compares the record with the
pipeline, and updates it. It is derived: without it, removed nodes are only not reported.

    runs/pipelines/{hash of the folder's and the file's name}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import CodeLocation, FloodmarkError, ObjectNotFound
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.names import NameEntry
from floodmark.pipeline.graph import PipelineNode
from floodmark.storage.facts import build, parse_json
from floodmark.storage.store import Store

_FOLDER = "runs/pipelines"


@dataclass(frozen=True)
class RemovedNode:
    """A node that is not in the pipeline any more, and the dataset or column that it left in the lake."""

    name: str
    what: str  # its class in the public API, such as BatchTransform
    dataset: str
    column: str | None = None

    def __str__(self) -> str:
        begin = f"{self.name} ({self.what}) is not in the pipeline any more: "
        if self.column is not None:
            remedy = f"lake[{self.dataset!r}].drop_column({self.column!r}) removes it"
            return f"{begin}column {self.column!r} of {self.dataset!r} stays, and new rows get no value; {remedy}"
        if self.what in _SOURCES:
            return f"{begin}dataset {self.dataset!r} stays, and this pipeline adds no rows to it"
        return f"{begin}dataset {self.dataset!r} stays and is not updated; `floodmark drop {self.dataset}` removes it"


_SOURCES = ("IngestFiles", "IngestFrame", "BatchGenerate", "UpdateExternalTable")


@dataclass(frozen=True)
class _Written:
    """A dataset, or a column of it, that a node has written."""

    dataset_id: str
    dataset: str
    column: str | None
    node: str
    what: str


@dataclass(frozen=True)
class _Record:
    """What the nodes of one pipeline file have written; `written` by the id of the dataset and the column."""

    file: str
    written: Mapping[str, _Written] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps({"file": self.file, "written": [asdict(one) for one in self.written.values()]}).encode()

    @staticmethod
    def parse(data: bytes) -> _Record | None:
        try:
            content: Any = parse_json(data)
            written = [build(_Written, one) for one in content["written"]]
            return build(_Record, {"file": content["file"]}, written={_key(one): one for one in written})
        except (ValueError, TypeError, KeyError):
            return None


def _key(one: _Written) -> str:
    return f"{one.dataset_id}:{one.column or ''}"


def find_removed_nodes(nodes: list[PipelineNode], place: CodeLocation | None, store: Store) -> tuple[RemovedNode, ...]:
    """The nodes that earlier runs of this pipeline file had, if what they wrote is still in the lake."""
    record = None if place is None else _load(store, place)
    return () if record is None else tuple(_as_removed(one, now) for one, now in _removed(record, nodes, store))


def record_nodes(nodes: list[PipelineNode], place: CodeLocation | None, store: Store) -> tuple[RemovedNode, ...]:
    """Record what these nodes have written, and return the removed ones. Call it after a run, in the turn of runs."""
    if place is None:
        return ()
    before = _load(store, place)
    removed = [] if before is None else list(_removed(before, nodes, store))
    known = {} if before is None else {(one.dataset.lower(), one.column): one for one in before.written.values()}
    written = {}
    for node in nodes:
        for dataset, column in _writes(node):
            one = known.get((dataset.lower(), column)) or _look_up(store, dataset, column, node)
            if one is not None:
                one = _Written(one.dataset_id, dataset, column, node.name, node.what)
                written[_key(one)] = one
    written |= {_key(one): one for one, _ in removed}
    after = _Record(_file(place), written)
    if after != before and (written or before is not None):
        store.put_derived(_object_key(place), after.to_bytes())
    return tuple(_as_removed(one, now) for one, now in removed)


def _as_removed(one: _Written, dataset: str) -> RemovedNode:
    return RemovedNode(one.node, one.what, dataset, one.column)


def _removed(record: _Record, nodes: list[PipelineNode], store: Store) -> Iterator[tuple[_Written, str]]:
    """What nobody of these nodes writes any more and still exists, with the present name of its dataset."""
    current = {(dataset.lower(), column) for node in nodes for dataset, column in _writes(node)}
    candidates = [one for one in record.written.values() if (one.dataset.lower(), one.column) not in current]
    if not candidates:
        return
    entries = [entry for entry in names.entries(store) if entry.rows_of is None]
    others = _of_other_files(store, record.file)
    for one in candidates:
        entry = _entry_of(one, entries)
        if entry is None or (entry.name.lower(), one.column) in current or _key(one) in others:
            continue
        if one.column is None or _has_column(store, entry, one.column):
            yield one, entry.name


def _entry_of(one: _Written, entries: list[NameEntry]) -> NameEntry | None:
    """The dataset by its id, or, if it was dropped and created again, by its name."""
    by_id = [entry for entry in entries if any(str(i) == one.dataset_id for i in (entry.id, *entry.previous))]
    by_name = [entry for entry in entries if entry.name.lower() == one.dataset.lower()]
    return next(iter([*by_id, *by_name]), None)


def _of_other_files(store: Store, file: str) -> set[str]:
    records = [_Record.parse(store.get(info.key)) for info in store.list(_FOLDER)]
    return {key for record in records if record is not None and record.file != file for key in record.written}


def _has_column(store: Store, entry: NameEntry, column: str) -> bool:
    try:
        return catalogs.load(ColumnObjects(dataset_objects(store, entry.id))).find(column) is not None
    except FloodmarkError:
        return False  # `status` reports the damage


def _writes(node: PipelineNode) -> Iterator[tuple[str, str | None]]:
    """The datasets, and the columns of datasets, that a node writes."""
    for written in node.writes:
        dataset, _, column = written.partition(":")
        yield dataset, column or None


def _look_up(store: Store, dataset: str, column: str | None, node: PipelineNode) -> _Written | None:
    entry = names.read_entry(store, dataset)
    if entry is None or (column is not None and not _has_column(store, entry, column)):
        return None  # it has not run yet
    return _Written(str(entry.id), dataset, column, node.name, node.what)


def _load(store: Store, place: CodeLocation) -> _Record | None:
    try:
        return _Record.parse(store.get(_object_key(place)))
    except ObjectNotFound:
        return None


def _file(place: CodeLocation) -> str:
    """The names of the file and its folder: a project may be at different places on different machines."""
    return "/".join(Path(place.file).parts[-2:])


def _object_key(place: CodeLocation) -> str:
    return f"{_FOLDER}/{hashlib.sha256(_file(place).encode()).hexdigest()[:32]}"

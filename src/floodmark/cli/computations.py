"""Checkpoints of a dataset, grouped by computation, and those that a collection removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import Catalog
from floodmark.columns.checkpoint_store import CheckpointInfo
from floodmark.columns.garbage import ColumnGarbage
from floodmark.dataset import Dataset
from floodmark.derive.checkpoint_key import DATA, FORMAT, RANGE, CheckpointKey, CheckpointPrefix, hash_text, parse_key
from floodmark.storage import row_sets
from floodmark.storage.sweep import GRACE_SECONDS


@dataclass(frozen=True)
class CollectedCheckpoints:
    """Checkpoints and files that are (or would be) removed. `young` and `needed` count checkpoints that stay."""

    dataset: str
    checkpoints: int
    files: int
    size: int
    young: int
    needed: int
    keys: list[str]

    @classmethod
    def of(cls, dataset: Dataset, garbage: ColumnGarbage) -> CollectedCheckpoints:
        gone = {info.key for info in garbage.checkpoints}
        oldest = time.time() - GRACE_SECONDS
        staying = [info for info in dataset.checkpoints.infos() if info.key not in gone]
        young = sum(info.modified >= oldest for info in staying)
        return cls(
            dataset=dataset.name,
            checkpoints=len(garbage.checkpoints),
            files=len(garbage.files),
            size=garbage.bytes,
            young=young,
            needed=len(staying) - young,
            keys=garbage.keys,
        )


OLD_FORMAT = "older format"


@dataclass(frozen=True)
class Computation:
    """The checkpoints of one computation, for any `where`."""

    dataset: str
    column: str
    udf: str
    version: str
    srcfiles: str
    state: str
    fragments: int
    ranges: int
    files: int
    rows: int
    size: int
    newest: float


@dataclass(frozen=True)
class _StoredCheckpoint:
    key: CheckpointKey | None
    info: CheckpointInfo


def list_computations(dataset: Dataset) -> list[Computation]:
    """The computations of a dataset that have checkpoints, by column and version."""
    groups: dict[CheckpointPrefix | None, list[_StoredCheckpoint]] = {}
    for info in dataset.checkpoints.infos():
        key = parse_key(info.key)
        groups.setdefault(_without_where(key), []).append(_StoredCheckpoint(key, info))
    catalog, dataset_id = dataset.catalog, str(dataset.id)
    found = [
        _total(dataset.name, prefix, stored, _state(catalog, dataset_id, prefix)) for prefix, stored in groups.items()
    ]
    return sorted(found, key=lambda c: (c.column, c.udf, c.version, c.newest))


def _without_where(key: CheckpointKey | None) -> CheckpointPrefix | None:
    """The computation of a key; None for keys of the oldest format, which do not name it."""
    if key is None:
        return None
    prefix = CheckpointPrefix.parse(key.prefix) or CheckpointPrefix.parse(f"fmt-{FORMAT}_{key.prefix}")
    return None if prefix is None else CheckpointPrefix(**{**vars(prefix), "where": hash_text(None)})


def _state(catalog: Catalog, dataset_id: str, prefix: CheckpointPrefix | None) -> str:
    """Whether a column uses this computation now, or what has changed."""
    if prefix is None:
        return OLD_FORMAT
    if prefix.uri != hash_text(dataset_id):
        return "another dataset"
    column = catalog.find(prefix.column)
    if column is None:
        return "column dropped"
    if (prefix.udf, prefix.version) != (column.function.name, column.function.version):
        return "older function"
    return "current" if prefix.srcfiles == catalogs.hash_inputs(catalog, dataset_id, column) else "older inputs"


def _total(
    dataset: str, prefix: CheckpointPrefix | None, stored: Sequence[_StoredCheckpoint], state: str
) -> Computation:
    keys = [one.key for one in stored if one.key is not None]
    names = ("", "", "", "") if prefix is None else (prefix.column, prefix.udf, prefix.version, prefix.srcfiles)
    return Computation(
        dataset,
        *names,
        state,
        fragments=len({key.fragment for key in keys}),
        ranges=sum(key.kind == RANGE for key in keys),
        files=sum(key.kind == DATA for key in keys),
        rows=sum(map(len, _union_of_rows(keys))),
        size=sum(one.info.size for one in stored),
        newest=max(one.info.modified for one in stored),
    )


def _union_of_rows(keys: Sequence[CheckpointKey]) -> Iterator[BitMap]:
    """The union of the row addresses of the keys, per fragment, because ranges may overlap."""
    fragments: dict[int, list[BitMap]] = {}
    for key in keys:
        fragments.setdefault(key.fragment, []).append(row_sets.span(key.start, key.end))
    for spans in fragments.values():
        yield BitMap.union(*spans, BitMap())

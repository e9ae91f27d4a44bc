"""Checkpoints by what they are results of: a function, its version, a column and the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.keys import DATA, FORMAT, RANGE, ParsedKey, Prefix, hash_text, parse_key
from floodmark.compute.checkpoints.store import CheckpointInfo
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import Catalog
from floodmark.dataset import Dataset

OLD_FORMAT = "older format"


@dataclass(frozen=True)
class Computation:
    """The checkpoints of one computation, whichever rows were asked for (`where`)."""

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
class _Stored:
    key: ParsedKey | None
    info: CheckpointInfo


def computations(dataset: Dataset) -> list[Computation]:
    """The computations of a dataset that have checkpoints, by column and version."""
    groups: dict[Prefix | None, list[_Stored]] = {}
    for info in dataset.checkpoints.infos():
        key = parse_key(info.key)
        groups.setdefault(_any_where(key), []).append(_Stored(key, info))
    catalog, dataset_id = dataset.catalog, str(dataset.id)
    found = [
        _summed(dataset.name, prefix, stored, _state(catalog, dataset_id, prefix)) for prefix, stored in groups.items()
    ]
    return sorted(found, key=lambda c: (c.column, c.udf, c.version, c.newest))


def _any_where(key: ParsedKey | None) -> Prefix | None:
    """Which computation a key belongs to; None when it does not say, as the oldest do not."""
    if key is None:
        return None
    prefix = Prefix.parse(key.prefix) or Prefix.parse(f"fmt-{FORMAT}_{key.prefix}")
    return None if prefix is None else Prefix(**{**vars(prefix), "where": hash_text(None)})


def _state(catalog: Catalog, dataset_id: str, prefix: Prefix | None) -> str:
    """Whether a column is computed so now, or else what is different."""
    if prefix is None:
        return OLD_FORMAT
    if prefix.uri != hash_text(dataset_id):
        return "another dataset"
    column = catalog.find(prefix.column)
    if column is None:
        return "column dropped"
    if (prefix.udf, prefix.version) != (column.function.name, column.function.version):
        return "older function"
    return "current" if prefix.srcfiles == catalogs.srcfiles(catalog, dataset_id, column) else "older inputs"


def _summed(dataset: str, prefix: Prefix | None, stored: Sequence[_Stored], state: str) -> Computation:
    keys = [one.key for one in stored if one.key is not None]
    names = ("", "", "", "") if prefix is None else (prefix.column, prefix.udf, prefix.version, prefix.srcfiles)
    return Computation(
        dataset,
        *names,
        state,
        fragments=len({key.fragment for key in keys}),
        ranges=sum(key.kind == RANGE for key in keys),
        files=sum(key.kind == DATA for key in keys),
        rows=sum(map(len, _spans(keys))),
        size=sum(one.info.size for one in stored),
        newest=max(one.info.modified for one in stored),
    )


def _spans(keys: Sequence[ParsedKey]) -> Iterator[BitMap]:
    """The addresses that keys span, per fragment: ranges may overlap."""
    fragments: dict[int, list[BitMap]] = {}
    for key in keys:
        fragments.setdefault(key.fragment, []).append(addresses.span(key.start, key.end))
    for spans in fragments.values():
        yield BitMap.union(*spans, BitMap())

"""Which datasets of a lake are computed from a dataset: outputs of steps that read it, and views.

The chain of a derived dataset names its inputs. What reads a lake from outside is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from floodmark.chain.ids import DatasetId
from floodmark.chain.state import parse_input_ids
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.names import NameEntry
from floodmark.ledger.snapshot import load_snapshot
from floodmark.storage.store import Store

_log = logging.getLogger(__name__)


def find_readers(store: Store, entry: NameEntry) -> tuple[str, ...]:
    """The names of the datasets that are computed from this one, in alphabetical order."""
    return tuple(reader.name for reader in _readers(entry, _inputs(store, entry)))


def find_all_readers(store: Store, ids: set[DatasetId]) -> set[str]:
    """The names of all datasets that are computed from any of these, directly or not."""
    left = {entry.name: (entry, read) for entry, read in _inputs(store)}
    found: dict[str, NameEntry] = {}
    while new := {name: entry for name, (entry, read) in left.items() if name not in found and read & ids}:
        found |= new
        ids = ids | {entry.id for entry in new.values()}
    return set(found)


def find_holders(store: Store, entry: NameEntry) -> tuple[str, ...]:
    """The same, with the old rows of replaced views: datasets that may have values of this one's records."""
    holders = _readers(entry, _inputs(store, entry, replaced=True))
    return tuple(holder.name for holder in holders if holder.name != entry.name)


def drop_order(store: Store, entry: NameEntry) -> list[str]:
    """The names of a dataset and of all datasets that are computed from it, directly or not: each after its readers."""
    inputs = _inputs(store, entry)
    order: dict[str, None] = {}

    def visit(one: NameEntry, above: frozenset[str]) -> None:
        for reader in _readers(one, inputs):
            if reader.name not in order and reader.name not in above:
                visit(reader, above | {one.name})
        order[one.name] = None

    visit(entry, frozenset())
    return list(order)


def _readers(entry: NameEntry, inputs: list[tuple[NameEntry, set[DatasetId]]]) -> Iterator[NameEntry]:
    # A view that replaced a dataset goes by its id, too. The old rows under another name stand for nothing any more.
    return (reader for reader, read in inputs if any(entry.is_name_of(one) for one in read))


def _inputs(
    store: Store, but: NameEntry | None = None, replaced: bool = False
) -> list[tuple[NameEntry, set[DatasetId]]]:
    """The inputs of all datasets but one, by default without rows of replaced views: nothing computes them any more."""
    found = []
    for entry in names.all_entries(store):
        if (replaced or entry.rows_of is None) and (but is None or entry.name != but.name):
            ids = [one for one in (entry.id, entry.pending) if one is not None]
            found.append((entry, {read for one in ids for read in _input_ids(store, entry.name, one)}))
    return found


def _input_ids(store: Store, name: str, dataset_id: DatasetId) -> Iterator[DatasetId]:
    objects = dataset_objects(store, dataset_id)
    try:
        head = objects.read_head()
        transform = None if head is None else load_snapshot(objects, head, {}).state.transform
    except FloodmarkError as error:
        _log.warning("dataset %r cannot be read, so its inputs are not known: %s", name, error.message)
        return
    if transform is not None:
        yield from (read for read in parse_input_ids(transform) if read is not None)

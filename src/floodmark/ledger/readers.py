"""Which datasets of a lake are computed from a dataset: outputs of steps that read it, and views.

The chain of a derived dataset names its inputs. What reads a lake from outside is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from floodmark.chain.events import SetTransform
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import parse_input_ids
from floodmark.chain.walk import read_block
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
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
    """The names of datasets that may have values of this one's records.

    These are its readers, datasets that read it with an earlier declaration, and the old rows of replaced views.
    """
    return tuple(one.name for one in _readers(entry, _inputs_ever(store, entry)) if one.name != entry.name)


def drop_order(store: Store, entry: NameEntry) -> list[str]:
    """The names of a dataset and of all datasets that are computed from it, directly or not: each after its readers."""
    return _order(entry, _inputs(store, entry))


def erase_order(store: Store, entry: NameEntry) -> list[str]:
    """The same, with the datasets that were computed from another one by an earlier declaration."""
    return _order(entry, [(one, read) for one, read in _inputs_ever(store, entry) if one.rows_of is None])


def _order(entry: NameEntry, inputs: Sequence[tuple[NameEntry, set[DatasetId]]]) -> list[str]:
    order: dict[str, None] = {}

    def visit(one: NameEntry, above: frozenset[str]) -> None:
        for reader in _readers(one, inputs):
            if reader.name not in order and reader.name not in above:
                visit(reader, above | {one.name})
        order[one.name] = None

    visit(entry, frozenset())
    return list(order)


def _readers(entry: NameEntry, inputs: Sequence[tuple[NameEntry, set[DatasetId]]]) -> Iterator[NameEntry]:
    # A view that replaced a dataset goes by its id, too. The old rows under another name stand for nothing any more.
    return (reader for reader, read in inputs if any(entry.is_name_of(one) for one in read))


def _inputs(store: Store, but: NameEntry | None = None) -> list[tuple[NameEntry, set[DatasetId]]]:
    """The inputs of all datasets but one, without old rows of replaced views: nothing computes them any more."""
    others = [e for e in names.all_entries(store) if e.rows_of is None and (but is None or e.name != but.name)]
    return [(one, set(_read_each(store, one, _current_inputs))) for one in others]


def _inputs_ever(store: Store, but: NameEntry) -> list[tuple[NameEntry, set[DatasetId]]]:
    """All inputs that every other dataset ever had."""
    others = [one for one in names.all_entries(store) if one.name != but.name]
    return [(one, set(_read_each(store, one, _all_inputs))) for one in others]


def _read_each(
    store: Store, entry: NameEntry, read: Callable[[str, DatasetObjects], Iterator[DatasetId]]
) -> Iterator[DatasetId]:
    for dataset_id in (entry.id, entry.pending):
        if dataset_id is not None:
            yield from read(entry.name, dataset_objects(store, dataset_id))


def _current_inputs(name: str, objects: DatasetObjects) -> Iterator[DatasetId]:
    try:
        head = objects.read_head()
        transform = None if head is None else load_snapshot(objects, head, {}).state.transform
    except FloodmarkError as error:
        _log.warning("dataset %r cannot be read, so its inputs are not known: %s", name, error.message)
        return
    yield from _ids(transform)


def _all_inputs(_: str, objects: DatasetObjects) -> Iterator[DatasetId]:
    head = objects.read_head()
    for ref in () if head is None else load_snapshot(objects, head, {}).non_routine():
        event = read_block(ref.hash, objects.get_block(ref.hash)).event
        yield from _ids(event if isinstance(event, SetTransform) else None)


def _ids(transform: SetTransform | None) -> Iterator[DatasetId]:
    return (one for one in (() if transform is None else parse_input_ids(transform)) if one is not None)

"""A consistent snapshot of a lake while others write: the names, and for each dataset a head and what belongs to it.

A dataset is read after everything that is computed from it, so no reader in the snapshot has read more than its inputs
have. In the same way, the catalog of computed columns and the file log are read before the head of their dataset.
Further outputs of a step are read after its first one, whose meta says what was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from floodmark.backup.checkpoint_notes import CheckpointContent, read_checkpoint
from floodmark.backup.manifest import InputRead, Inventory, entry_ids
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.chain.state import ChainState
from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import BadBackup, BadId, CommitConflict, FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.names import DamagedName, NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import load_snapshot
from floodmark.sources.file_log import KEYS_FOLDER, file_log_pointer
from floodmark.storage.pointer import Pointer, attempt_numbers
from floodmark.storage.store import Store
from floodmark.transforms.meta_entries import DamagedMeta

THREADS = 8
_TRIES = 20

S = TypeVar("S")
T = TypeVar("T")


class Moved(Exception):
    """Something was replaced or removed while it was read: read everything again. The message says what."""


@dataclass(frozen=True)
class PinnedDataset:
    """A dataset as of one head, with the contents of its objects that are swapped, read before the head."""

    id: DatasetId
    head: Multihash
    catalog: bytes | None
    file_log: bytes | None
    file_keys: tuple[str, ...]
    reads: tuple[InputRead, ...] = ()
    first_output: DatasetId | None = None
    last_offset: int | None = None
    checkpoint: Multihash | None = None
    checkpoint_files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LakeSnapshot:
    """The names and datasets of a lake. No dataset is ahead of what it is computed from."""

    names: tuple[NameEntry, ...]
    datasets: Mapping[DatasetId, PinnedDataset] = field(default_factory=dict)


def pin(store: Store, wanted: Sequence[str], known: Callable[[DatasetId], Inventory | None]) -> LakeSnapshot:
    """The snapshot of the whole lake, or of the named datasets, with everything that they need.

    A dataset needs what it is computed from, and the other outputs of its step. `known` returns the last inventory of a
    dataset: what it says about a head is not read again.
    """
    reason = ""
    for _ in attempt_numbers(_TRIES):
        try:
            return _pin_once(store, wanted, _PinReader(store, known))
        except Moved as moved:
            reason = str(moved)
    raise CommitConflict(
        f"{store.url} was not backed up: {reason}, {_TRIES} times", hint="try again when fewer datasets change"
    )


def _pin_once(store: Store, wanted: Sequence[str], read: _PinReader) -> LakeSnapshot:
    entries = _entries(store)
    ids = entry_ids(entries)
    first = dict(zip(ids, in_threads(read.try_pin, ids), strict=True))
    needed = set(ids) if not wanted else _needed(entry_ids(_named(store, entries, wanted)), first)
    for one in ids:
        if one in needed and isinstance(error := first[one], Exception):
            raise error
    seen = {one: pin for one, pin in first.items() if one in needed and isinstance(pin, PinnedDataset)}
    levels = read_order(seen)
    # The first level may stay as it was read: only what it is computed from must be read after it.
    pinned = {one: seen[one] for level in levels[:1] for one in level}
    for level in levels[1:]:
        pinned |= zip(level, in_threads(read.pin, level), strict=True)
    if read_order(pinned) != levels or _entries(store) != entries:
        raise Moved("its datasets were replaced")
    return LakeSnapshot(tuple(entry for entry in entries if entry.id in pinned), pinned)


def _entries(store: Store) -> list[NameEntry]:
    damaged: list[DamagedName] = []
    entries = names.all_entries(store, damaged.append)
    if damaged:
        raise damaged[0]
    return entries


def _named(store: Store, entries: Iterable[NameEntry], wanted: Sequence[str]) -> list[NameEntry]:
    by_name = {entry.name.lower(): entry for entry in entries}
    for name in wanted:
        if name.lower() not in by_name:
            names.require_entry(store, name)  # raises an error with a suggestion
            raise Moved(f"{name!r} was created")
    return [by_name[name.lower()] for name in wanted]


def _needed(ids: Iterable[DatasetId], read: Mapping[DatasetId, PinnedDataset | Exception]) -> set[DatasetId]:
    """These datasets, what they are computed from, and the other outputs of their steps; directly or not."""
    links: dict[DatasetId, set[DatasetId]] = {}
    for one, pin in read.items():
        if isinstance(pin, PinnedDataset):
            links.setdefault(one, set()).update(_inputs(pin))
            if pin.first_output is not None:
                links[one].add(pin.first_output)
                links.setdefault(pin.first_output, set()).add(one)
    found: set[DatasetId] = set()
    waiting = list(ids)
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += [other for other in links.get(one, ()) if other in read]
    return found


def _inputs(dataset: Derived) -> list[DatasetId]:
    return [one.dataset_id for one in dataset.reads]


class Derived(Protocol):
    """A dataset, with what it must not be ahead of."""

    @property
    def reads(self) -> tuple[InputRead, ...]: ...
    @property
    def first_output(self) -> DatasetId | None: ...


def read_order(datasets: Mapping[DatasetId, Derived]) -> list[list[DatasetId]]:
    """The datasets in levels: each one is in a later level than everything that is computed from it.

    In a circle of datasets, which steps can make, one of them comes first.
    """
    after: dict[DatasetId, set[DatasetId]] = {one: set() for one in datasets}
    for one, dataset in datasets.items():
        after[one] |= {read for read in _inputs(dataset) if read in datasets and read != one}
        first = dataset.first_output
        if first is not None and first in datasets and first != one:
            after[first].add(one)
    return order_levels(after)


def order_levels(after: Mapping[S, set[S]]) -> list[list[S]]:
    """The items in levels: those of `after` are in a later level, except for one edge of each circle."""
    order: dict[S, None] = {}
    open_: set[S] = set()
    edges: dict[S, set[S]] = {one: set() for one in after}
    for start in after:
        stack = [(start, iter(sorted(after[start], key=str)))] if start not in order else []
        open_.update(one for one, _ in stack)
        while stack:
            one, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                open_.discard(one)
                order[one] = None
            elif following not in open_:
                edges[one].add(following)
                if following not in order:
                    open_.add(following)
                    stack.append((following, iter(sorted(after[following], key=str))))
    level: dict[S, int] = dict.fromkeys(after, 0)
    for one in reversed(order):  # each comes before those after it
        for following in edges[one]:
            level[following] = max(level[following], level[one] + 1)
    return [sorted((o for o in after if level[o] == n), key=str) for n in range(max(level.values(), default=-1) + 1)]


@dataclass(frozen=True)
class _PinReader:
    """Reads datasets. What belongs to a head is read before the head."""

    store: Store
    known: Callable[[DatasetId], Inventory | None]

    def try_pin(self, dataset_id: DatasetId) -> PinnedDataset | Exception:
        try:
            return self.pin(dataset_id)
        except (BadBackup, Moved) as error:
            return error

    def pin(self, dataset_id: DatasetId) -> PinnedDataset:
        objects = dataset_objects(self.store, dataset_id)
        file_log, file_keys = _read_file_log(objects)
        catalog = Pointer(self.store, ColumnObjects(objects).catalog_key).read()
        head = _read_head(objects, dataset_id)
        pinned = PinnedDataset(dataset_id, head, catalog, file_log, file_keys)
        last = self.known(dataset_id)
        if last is not None and last.head == head:
            return replace(pinned, reads=last.reads, first_output=last.first_output, last_offset=last.last_offset)
        try:
            state = load_snapshot(objects, head, {}).state
            content = CheckpointContent() if state.checkpoint is None else read_checkpoint(objects, state.checkpoint)
        except (FloodmarkError, DamagedMeta) as error:
            if _read_head(objects, dataset_id) != head:
                raise Moved(f"dataset {dataset_id} changed") from error
            raise _unreadable(dataset_id, error) from error
        return replace(
            pinned,
            reads=_reads(state, content),
            first_output=content.first_output,
            last_offset=state.last_offset,
            checkpoint=state.checkpoint,
            checkpoint_files=content.files,
        )


def _read_head(objects: DatasetObjects, dataset_id: DatasetId) -> Multihash:
    try:
        head = objects.read_head()
    except BadId as error:
        raise _unreadable(dataset_id, error) from error
    if head is None:
        raise Moved(f"dataset {dataset_id} has a name but no head")
    return head


def _reads(state: ChainState, content: CheckpointContent) -> tuple[InputRead, ...]:
    """The inputs of a dataset, with the blocks that its chain and its newest checkpoint name as positions."""
    blocks: dict[DatasetId, dict[bytes, None]] = {}
    for position in state.next_inputs:
        found = blocks.setdefault(position.dataset_id, {})
        if position.block_hash is not None:
            found[position.block_hash.digest] = None
    for text, named in content.inputs.items():
        blocks.setdefault(DatasetId.parse(text), {}).update(dict.fromkeys(map(bytes.fromhex, named)))
    return tuple(InputRead(one, tuple(found)) for one, found in blocks.items())


def _read_file_log(objects: DatasetObjects) -> tuple[bytes | None, tuple[str, ...]]:
    """The file log, and the files of keys that exist with it. Files are removed after a newer log was stored."""
    pointer = file_log_pointer(objects)
    before = pointer.read()
    for _ in attempt_numbers(_TRIES):
        if before is None:
            return None, ()
        found = [info.key for info in objects.store.list(f"{objects.folder}/{KEYS_FOLDER}")]
        if (now := pointer.read()) == before:
            return before, tuple(key.removeprefix(f"{objects.folder}/") for key in found)
        before = now
    raise Moved(f"{pointer.key} changed")


def _unreadable(dataset_id: DatasetId, error: Exception) -> BadBackup:
    message = getattr(error, "message", str(error))
    return BadBackup(
        f"dataset {dataset_id} cannot be read, so nothing was backed up: {message}",
        hint="`floodmark verify` shows what is damaged: repair or drop the dataset, or name the others to back up",
        dataset_id=str(dataset_id),
    )


def in_threads(call: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """The results of a call for each item, in their order. Most of the time is spent waiting for the store."""
    if len(items) < 2:
        return [call(one) for one in items]
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(call, one) for one in items]
        try:
            return [one.result() for one in running]
        finally:
            pool.shutdown(cancel_futures=True)

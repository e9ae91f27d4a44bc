"""A lake's health: whether every dataset can be read, and what is behind, damaged or left over. No data is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.refs import BlockRef
from floodmark.chain.walk import read_block
from floodmark.doctor.finding import Finding
from floodmark.errors import FloodmarkError
from floodmark.garbage import staging, unnamed
from floodmark.lake import Lake
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.errors import BadName
from floodmark.ledger.keys.manifest import manifest_name
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.segment import segment_name
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.store import Store
from floodmark.storage.sweep import GRACE_SECONDS
from floodmark.timeline.settings import of as timeline_settings
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects

_CATCHES_UP = "nothing: the next read or write catches up"


@dataclass(frozen=True)
class Examined:
    """A dataset that was looked at: what was found, and when its newest block was made (epoch seconds)."""

    name: str
    findings: tuple[Finding, ...]
    newest: float | None


def check_names(store: Store) -> Iterator[Finding]:
    """Files that should say which dataset a name stands for, and do not."""
    what, count = "names", 0
    for info in store.list("names"):
        try:
            names.exists(store, info.name)
            count += 1
        except (names.DamagedName, BadName) as error:
            yield Finding(what, "bad", error.message, error.hint)
    yield Finding(what, "ok", f"{count} can be read")


def examine(lake: Lake) -> Iterator[Examined]:
    """Every dataset that has a name."""
    for entry in names.entries(lake.store):
        yield _examined(entry.name, dataset_objects(lake.store, entry.id))


def _examined(name: str, objects: DatasetObjects) -> Examined:
    what = f"dataset {name}"
    try:
        lagging = _slice_index_lags(objects)
        head = objects.read_head()
        if head is None:
            gone = Finding(
                what, "bad", "its name is there, its head is not", f"bring it back from a copy, or drop {name}"
            )
            return Examined(name, (gone,), None)
        snapshot = load_at(objects, head, {})
        found = [*_slices(what, snapshot), *_timeline(what, snapshot), *_key_index(what, snapshot)]
    except FloodmarkError as error:
        return Examined(name, (Finding(what, "bad", error.message, error.hint or f"floodmark verify {name}"),), None)
    if lagging:
        found.insert(0, Finding(what, "warn", "its slice index was missing or behind", "nothing: it is caught up now"))
    fine = Finding(what, "ok", f"block {snapshot.head_block.sequence_number:,}, {snapshot.records:,} records")
    return Examined(name, tuple(found) or (fine,), snapshot.head_block.system_time / 10**9)


def _slice_index_lags(objects: DatasetObjects) -> bool:
    """Whether there is no segment of the newest block; a dataset without records may have none yet."""
    head = objects.read_head()
    if head is None:
        return False
    block = read_block(head, objects.get_block(head))
    if objects.store.stat(objects.index_key(segment_name(BlockRef(block.sequence_number, head)))) is not None:
        return False
    return next(iter(objects.index_segments()), None) is not None or block.sequence_number > _FIRST_BLOCKS


_FIRST_BLOCKS = 8
"""A chain that is being begun has no index: there is nothing to look up."""


def _slices(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    """Slices that are gone or cut short, by a listing: what is in them is for `verify` to find out."""
    objects, slices = snapshot.objects, snapshot.slices
    there = {info.name: info.size for info in objects.store.list(f"{objects.folder}/data")}
    names = [Multihash(SHA3_256, digest).text for digest in slices.column("physical").to_pylist()]
    wrong = [n for n, (name, size) in enumerate(zip(names, slices.column("size").to_pylist(), strict=True))
             if there.get(name) != size]  # fmt: skip
    if wrong:
        first = slices.slice(wrong[0], 1).to_pylist()[0]
        state = "gone" if names[wrong[0]] not in there else "of another size"
        detail = f"{len(wrong)} of {len(names)} slices are gone or of another size; the first has the records "
        detail += f"{first['start']}–{first['end'] - 1} and is {state}: {names[wrong[0]]}"
        yield Finding(what, "bad", detail, "put back the file, under data/, from a copy of the dataset")


def _key_index(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    if not strategy_of(snapshot.state).is_keyed or snapshot.all_slices.num_rows == 0:
        return
    newest = snapshot.all_slices.slice(snapshot.all_slices.num_rows - 1).to_pylist()[0]
    name = manifest_name((newest["sequence_number"], newest["block"]))
    if snapshot.objects.store.stat(snapshot.objects.key_manifest_key(name)) is None:
        yield Finding(what, "warn", "its key index is missing or behind", _CATCHES_UP)


def _timeline(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    settings = timeline_settings(snapshot.state)
    if settings is None:
        return
    root = roots.load(TimelineObjects(snapshot.objects))
    behind = snapshot.next_offset - roots.fitting(root, snapshot, settings.digest).applied
    if root.is_damaged:
        yield Finding(what, "warn", "its timeline is damaged; reads take the ledger", "the next write makes it anew")
    elif behind > 0 and settings.mode == "eager":
        yield Finding(what, "warn", f"its timeline is {behind:,} records behind", "nothing: the next write catches up")


def check_staging(store: Store, now: float) -> Iterator[Finding]:
    """Unfinished files that writers left which were killed."""
    files = staging.find(store, now)
    size = sum(info.size for info in files)
    if files:
        yield Finding("staging", "warn", f"{len(files)} leftovers of killed writers ({size:,} bytes)", "floodmark gc")
    else:
        yield Finding("staging", "ok", "no leftovers of killed writers")


def check_unnamed(store: Store, now: float) -> Iterator[Finding]:
    """Datasets without a name."""
    yield from list(_unnamed(store, now)) or [Finding("unnamed datasets", "ok", "none")]


def _unnamed(store: Store, now: float) -> Iterator[Finding]:
    what, oldest = "unnamed datasets", now - GRACE_SECONDS
    if not unnamed.Named.of(store).known and any(True for _ in store.list("datasets")):
        yield Finding(
            what, "warn", "there are datasets, but no names that can be trusted", "bring back names/ from a copy"
        )
        return
    for one in unnamed.find(store):
        if one.is_useless:
            if one.is_old(oldest):
                left = "was to replace a view and never did" if one.records else "was left by a crash, without records"
                yield Finding(what, "warn", f"{one.id} {left}", "floodmark gc")
            continue
        records = "records that cannot be read" if one.records is None else f"{one.records:,} records"
        name = '{"name": "NAME", "id": "%s"}' % one.id  # noqa: UP031  braces of JSON
        remedy = f"`floodmark gc {one.id}` removes it, a file names/NAME with {name} gives it a name"
        yield Finding(what, "warn", f"{one.id} has {records} and no name", remedy)

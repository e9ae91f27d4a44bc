"""The checks of `floodmark doctor` in their order: this machine, then the store of the lake, then the lake itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from floodmark.chain.ids import SHA3_256, BlockRef, Multihash
from floodmark.chain.walk import read_block
from floodmark.errors import BadName, FloodmarkError
from floodmark.lake import Lake
from floodmark.ledger import names as names_module
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_segment import segment_name
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.maintenance import checks, gc, staging
from floodmark.maintenance.checks import Finding, check_conditional, run_check
from floodmark.rows.key_index_files import manifest_name
from floodmark.storage.store import Store, read_store_time
from floodmark.storage.sweep import GRACE_SECONDS
from floodmark.timeline import root as roots
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.settings import read_settings as timeline_settings


def check_machine() -> Iterator[Finding]:
    """Run the checks that need no lake: Python, packages, Java, the clock, temporary files and the cache."""
    yield checks.check_python()
    yield from checks.check_packages()
    yield checks.check_java()
    yield checks.check_clock()
    yield checks.check_temporary()
    yield checks.check_cache()


def check_spark(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Check that a session starts. This check takes several seconds."""
    yield from run_check("spark session", lambda: [checks.check_session(settings)])


def check_lake(lake: Lake) -> Iterator[Finding]:
    """Check the store of the lake and its datasets. Writes small objects to the store and removes them."""
    store = lake.store
    inside = store.local_path("names")
    if inside is not None:
        yield from run_check("disk space", partial(checks.check_disk, inside.parent))
        yield from run_check("files", lambda: checks.check_file_system(store.staging()))
    else:
        yield from run_check("conditional puts", lambda: [check_conditional(store)])
    yield from run_check("object times", lambda: [checks.check_file_times(partial(read_store_time, store))])
    yield from run_check("names", partial(check_names, store))
    yield from run_check("datasets", lambda: _check_datasets(lake))
    yield from run_check("staging", lambda: check_staging(store, time.time()))
    yield from run_check("unnamed datasets", lambda: check_unnamed(store, time.time()))


def _check_datasets(lake: Lake) -> Iterator[Finding]:
    newest: tuple[float, str] | None = None
    for examined in check_datasets(lake):
        yield from examined.findings
        if examined.newest is not None:
            newest = max(newest or (0.0, ""), (examined.newest, examined.name))
    yield checks.check_newest(None) if newest is None else checks.check_newest(*newest)


# Datasets

_CATCHES_UP = "nothing to do: the next read or write catches up"


@dataclass(frozen=True)
class DatasetFindings:
    """The findings about one dataset, and the time of its newest block."""

    name: str
    findings: tuple[Finding, ...]
    newest: float | None  # epoch seconds


def check_names(store: Store) -> Iterator[Finding]:
    """Check that every name file can be read."""
    what, count = "names", 0
    for info in store.list("names"):
        try:
            names_module.exists(store, info.name)
            count += 1
        except (names_module.DamagedName, BadName) as error:
            yield Finding(what, "bad", error.message, error.hint)
    yield Finding(what, "ok", f"{count} can be read")


def check_datasets(lake: Lake) -> Iterator[DatasetFindings]:
    """Check every dataset that has a name."""
    for entry in names_module.entries(lake.store):
        yield _check_dataset(entry.name, dataset_objects(lake.store, entry.id))


def _check_dataset(name: str, objects: DatasetObjects) -> DatasetFindings:
    what = f"dataset {name}"
    try:
        lagging = _slice_index_lags(objects)
        head = objects.read_head()
        if head is None:
            no_head = Finding(
                what, "bad", "its name exists, its head is missing", f"restore the head from a copy, or drop {name}"
            )
            return DatasetFindings(name, (no_head,), None)
        snapshot = load_snapshot(objects, head, {})
        findings = [*_check_slices(what, snapshot), *_check_timeline(what, snapshot), *_check_key_index(what, snapshot)]
    except FloodmarkError as error:
        return DatasetFindings(
            name, (Finding(what, "bad", error.message, error.hint or f"floodmark verify {name}"),), None
        )
    if lagging:
        finding = Finding(what, "warn", "its slice index was missing or behind", "nothing to do: it is up to date now")
        findings.insert(0, finding)
    fine = Finding(what, "ok", f"block {snapshot.head_block.sequence_number:,}, {snapshot.records:,} records")
    return DatasetFindings(name, tuple(findings) or (fine,), snapshot.head_block.system_time / 10**9)


def _slice_index_lags(objects: DatasetObjects) -> bool:
    """Whether the newest block has no segment; a dataset without records may have no index yet."""
    head = objects.read_head()
    if head is None:
        return False
    block = read_block(head, objects.get_block(head))
    if objects.store.stat(objects.index_key(segment_name(BlockRef(block.sequence_number, head)))) is not None:
        return False
    return next(iter(objects.index_segments()), None) is not None or block.sequence_number > _FIRST_BLOCKS


_FIRST_BLOCKS = 8
"""A chain of up to this many blocks may have no index: there is nothing to look up."""


def _check_slices(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    """Find slices that are missing or have the wrong size, from a listing; only `verify` reads their content."""
    objects, slices = snapshot.objects, snapshot.slices
    sizes = {info.name: info.size for info in objects.store.list(f"{objects.folder}/data")}
    names = [Multihash(SHA3_256, digest).text for digest in slices.column("physical").to_pylist()]
    wrong = [n for n, (name, size) in enumerate(zip(names, slices.column("size").to_pylist(), strict=True))
             if sizes.get(name) != size]  # fmt: skip
    if wrong:
        first = slices.slice(wrong[0], 1).to_pylist()[0]
        state = "is missing" if names[wrong[0]] not in sizes else "has the wrong size"
        detail = f"{len(wrong)} of {len(names)} slices are missing or have the wrong size; the first has the records "
        detail += f"{first['start']}–{first['end'] - 1} and {state}: {names[wrong[0]]}"
        yield Finding(what, "bad", detail, "restore the file, under data/, from a copy of the dataset")


def _check_key_index(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    if not strategy_of(snapshot.state).is_keyed or snapshot.all_slices.num_rows == 0:
        return
    newest = snapshot.all_slices.slice(snapshot.all_slices.num_rows - 1).to_pylist()[0]
    name = manifest_name((newest["sequence_number"], newest["block"]))
    if snapshot.objects.store.stat(snapshot.objects.key_manifest_key(name)) is None:
        yield Finding(what, "warn", "its key index is missing or behind", _CATCHES_UP)


def _check_timeline(what: str, snapshot: Snapshot) -> Iterator[Finding]:
    settings = timeline_settings(snapshot.state)
    if settings is None:
        return
    root = roots.load(TimelineObjects(snapshot.objects))
    behind = snapshot.next_offset - roots.root_or_emptied(root, snapshot, settings.digest).applied
    if root.is_damaged:
        remedy = "nothing to do: the next write rebuilds it"
        yield Finding(what, "warn", "its timeline is damaged; reads use the ledger", remedy)
    elif behind > 0 and settings.mode == "eager":
        detail = f"its timeline is {behind:,} records behind"
        yield Finding(what, "warn", detail, "nothing to do: the next write catches up")


# Leftovers of crashes


def check_staging(store: Store, now: float) -> Iterator[Finding]:
    """Find unfinished files of killed writers."""
    files = staging.find(store, now)
    size = sum(info.size for info in files)
    if files:
        yield Finding("staging", "warn", f"{len(files)} leftovers of killed writers ({size:,} bytes)", "floodmark gc")
    else:
        yield Finding("staging", "ok", "no leftovers of killed writers")


def check_unnamed(store: Store, now: float) -> Iterator[Finding]:
    """Find datasets without a name."""
    yield from list(_check_unnamed(store, now)) or [Finding("unnamed datasets", "ok", "none")]


def _check_unnamed(store: Store, now: float) -> Iterator[Finding]:
    what, oldest = "unnamed datasets", now - GRACE_SECONDS
    if not gc.NamedDatasets.of(store).known and any(True for _ in store.list("datasets")):
        yield Finding(
            what, "warn", "there are datasets, but no names that can be trusted", "restore names/ from a copy"
        )
        return
    for one in gc.find_unnamed(store):
        if one.is_useless:
            if one.is_old(oldest):
                origin = "is an unfinished replacement of a view" if one.records else "is left from a crash, no records"
                yield Finding(what, "warn", f"{one.id} {origin}", "floodmark gc")
            continue
        records = "records that cannot be read" if one.records is None else f"{one.records:,} records"
        name = '{"name": "NAME", "id": "%s"}' % one.id  # noqa: UP031  braces of JSON
        remedy = f"remove it: `floodmark gc {one.id}`; or give it a name: write {name} to the file names/NAME"
        yield Finding(what, "warn", f"{one.id} has {records} and no name", remedy)

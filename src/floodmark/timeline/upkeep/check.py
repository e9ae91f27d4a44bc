"""Checking a timeline: every file against its hash, every piece against its rows, and all of it against the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pyroaring import BitMap64

from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.storage.retry import read_steadily
from floodmark.timeline.errors import BadManifest, TimelineError
from floodmark.timeline.order import partitions as units
from floodmark.timeline.order.pieces import Partition, Piece, Place
from floodmark.timeline.order.places import in_order
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.settings import Settings
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.bundles import ManifestRef
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.own_files import own_file
from floodmark.timeline.stored.own_writing import is_whole
from floodmark.timeline.stored.publish import own_files, ref_of
from floodmark.timeline.stored.root import Root
from floodmark.timeline.upkeep.purged_files import files_with_purged

_THREADS = 2
_REMEDY = "the ledger has its records, and fold() makes it anew from there"


@dataclass(frozen=True)
class Ledger:
    """What the ledger says: a snapshot and its dead records' offsets, sorted."""

    snapshot: Snapshot
    dead: I64


def problems(objects: TimelineObjects, settings: Settings, look: Callable[[], Ledger]) -> list[Problem]:
    """Everything that is wrong with a timeline; every byte of its files is read.

    `look` looks at the ledger: after the root was read, so that what is applied is on the chain. Updates, purges and gc
    may go on meanwhile: what they replaced is no reason to complain.
    """
    return read_steadily(
        lambda: roots.load(objects),
        lambda root: list(_problems(objects, root, settings, look())),
        lambda root: roots.load(objects).stored != root.stored,
        doubted=bool,
    )


def _problems(objects: TimelineObjects, root: Root, settings: Settings, ledger: Ledger) -> Iterator[Problem]:
    snapshot = ledger.snapshot
    if root.is_damaged:
        yield _problem(objects.root_key, "the timeline's root is damaged; update_timeline() makes it anew")
        return
    if root.manifests and not roots.fitting(root, snapshot, settings.digest).manifests:
        message = "the timeline was made with other settings or of another chain; update_timeline() makes it anew"
        yield _problem(objects.root_key, message)
        return
    wrong: list[Problem] = []
    partitions = [p for ref in root.manifests for p in _partitions_of(objects, root, ref, wrong)]
    yield from wrong
    for one, other in pairwise(partitions):
        if one.start >= other.start:
            label = units.label(other.start, settings.partition_by)
            yield _problem(objects.root_key, f"partition {label} comes twice or out of order; {_REMEDY}")
    yield from _file_problems(objects, partitions)
    yield from _purged_problems(objects, snapshot.purged_before)
    if partitions and root.purged_before < snapshot.purged_before:
        before = snapshot.purged_before
        message = f"the timeline still holds purged records, before offset {before}: a purge was cut short"
        yield _problem(objects.root_key, f"{message}; update_timeline(), fold() or purge({before}) completes it")
        return  # slices of its pieces may be gone
    layout = snapshot.layout
    if layout is None:
        return
    files = PieceFiles(objects, layout)
    seen = BitMap64()
    readable = not wrong
    for partition in partitions:
        for found in _partition_problems(objects, files, partition, settings, root, seen):
            readable = False
            yield found
    if readable:  # else records are missing for a reason that was told
        yield from _missing(objects, root, ledger, seen)


def _partitions_of(objects: TimelineObjects, root: Root, ref: ManifestRef, wrong: list[Problem]) -> Sequence[Partition]:
    key = objects.manifest_key(ref.digest)
    try:
        data = objects.store.get(key)
        bundle = roots.bundle(objects, root, ref)
    except (BadManifest, StorageError) as error:
        wrong.append(_problem(key, f"{error.message}; {_REMEDY}"))
        return ()
    if ref_of(bundle, data) != ref:
        wrong.append(_problem(key, f"the manifest does not hold what the root says of it; {_REMEDY}"))
    return bundle.partitions


def _file_problems(objects: TimelineObjects, partitions: Sequence[Partition]) -> Iterator[Problem]:
    for file, message in damaged_files(objects, partitions).items():
        yield _problem(objects.key(file), f"the timeline's file {message}; {_REMEDY}")


def damaged_files(objects: TimelineObjects, partitions: Sequence[Partition]) -> dict[str, str]:
    """The own files of some partitions that are gone or do not have their hashes, and what is wrong with each."""
    files = sorted(own_files(partitions))
    with ThreadPoolExecutor(_THREADS) as hashing:  # hashing and reading both release the GIL
        found = zip(files, hashing.map(partial(_damage, objects), files), strict=True)
        return {file: message for file, message in found if message}


def _damage(objects: TimelineObjects, file: str) -> str:
    own = own_file(file)
    if own is None:
        return "has a name that does not say what is in it"
    try:
        return "" if is_whole(objects, own) else "was changed or damaged"
    except (StorageError, OSError) as error:
        return f"cannot be read: {error}"


def _purged_problems(objects: TimelineObjects, before: int) -> Iterator[Problem]:
    files = [objects.file(info.key) for info in objects.files()]
    for file in files_with_purged(objects, files, before):
        yield _problem(
            objects.key(file),
            f"{file!r} holds purged records, before offset {before}; purge({before}) again or fold() removes it",
        )


def _partition_problems(
    objects: TimelineObjects, files: PieceFiles, partition: Partition, settings: Settings, root: Root, seen: BitMap64
) -> Iterator[Problem]:
    """What is wrong with a partition's pieces; the offsets of their rows are added to those that were `seen`."""
    start, unit = partition.start, settings.partition_by
    bounds = range(start, units.end(start, unit))
    where = f"partition {units.label(start, unit)}"
    if not partition.settled:
        yield _problem(objects.root_key, f"{where} has no settled piece")
    for pieces in (partition.settled, *(run.pieces for run in partition.waiting)):
        for one, other in pairwise(pieces):
            if one.last >= other.first:
                yield _problem(objects.key(other.file), f"{where}: pieces overlap at {other.first}; {_REMEDY}")
    for piece in partition.pieces:
        message = _piece_problem(files, piece, bounds, root.applied, seen)
        if message:
            rows = f"rows {piece.row_lo}–{piece.row_hi - 1} of row group {piece.row_group}"
            yield _problem(objects.key(piece.file), f"{where}, {rows}: {message}; {_REMEDY}")


def _piece_problem(files: PieceFiles, piece: Piece, bounds: range, applied: int, seen: BitMap64) -> str:
    try:
        times, offsets = files.places(piece)
    except TimelineError as error:
        return error.message
    if not in_order(times, offsets):
        return "they are not in order"
    ends = Place(int(times[0]), int(offsets[0])), Place(int(times[-1]), int(offsets[-1]))
    if ends != (piece.first, piece.last):
        return f"they lie from {ends[0]} to {ends[1]}, not from {piece.first} to {piece.last}"
    if (int(offsets.min()), int(offsets.max())) != (piece.offset_min, piece.offset_max):
        return f"their offsets are {offsets.min()}–{offsets.max()}, not {piece.offset_min}–{piece.offset_max}"
    if ends[0].time not in bounds or ends[1].time not in bounds:
        return "they belong to another partition"
    if piece.offset_max >= applied:
        return f"offset {piece.offset_max} is not applied yet"
    found = BitMap64(offsets.astype("uint64"))
    if len(found) < len(offsets) or found & seen:
        twice = (found & seen).min() if found & seen else piece.offset_min
        return f"records are in the timeline twice, such as offset {twice}"
    seen.update(found)
    return ""


def _missing(objects: TimelineObjects, root: Root, ledger: Ledger, seen: BitMap64) -> Iterator[Problem]:
    """Records that the pieces should show and do not."""
    living = BitMap64()
    living.add_range(ledger.snapshot.purged_before, max(ledger.snapshot.purged_before, root.applied))
    missing = living - BitMap64(ledger.dead.astype("uint64")) - seen
    if missing:
        message = f"{len(missing)} records are not in the timeline, the first at offset {missing.min()}; {_REMEDY}"
        yield _problem(objects.root_key, message)


def _problem(key: str, message: str) -> Problem:
    return Problem("timeline", key, message)

"""Verify a timeline: files against their hashes, pieces against their rows, and all of it against the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pyroaring import BitMap64

from floodmark.errors import BadManifest, StorageError, TimelineError
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import VerifyProblem
from floodmark.storage.arrays import I64
from floodmark.storage.pointer import read_consistently
from floodmark.timeline import root as roots
from floodmark.timeline import settings as timeline_settings
from floodmark.timeline.bundles import ManifestRef
from floodmark.timeline.commit import own_files, ref_of
from floodmark.timeline.manifest import TimelineObjects, files_with_purged, list_files_with, parse_own_file
from floodmark.timeline.piece_files import PieceFiles, is_intact
from floodmark.timeline.pieces import Partition, Piece, TimePoint, in_order
from floodmark.timeline.root import Root
from floodmark.timeline.settings import Settings

_THREADS = 2
_REMEDY = "the ledger has its records: run fold() to rebuild it"


@dataclass(frozen=True)
class LedgerRecords:
    """The ledger to compare with: a snapshot and the sorted offsets of its dead records."""

    snapshot: Snapshot
    dead: I64


def problems(objects: TimelineObjects, settings: Settings, look: Callable[[], LedgerRecords]) -> list[VerifyProblem]:
    """All problems of a timeline. Reads every byte of its files.

    `look` reads the ledger. It is called after the root was read, so all applied records are on the chain. Updates,
    purges and gc may run meanwhile: the check is repeated if the root changed.
    """
    return read_consistently(
        lambda: roots.load(objects),
        lambda root: list(_problems(objects, root, settings, look())),
        lambda root: roots.load(objects).stored != root.stored,
        doubted=bool,
    )


def _problems(
    objects: TimelineObjects, root: Root, settings: Settings, ledger: LedgerRecords
) -> Iterator[VerifyProblem]:
    snapshot = ledger.snapshot
    if root.is_damaged:
        yield _problem(objects.root_key, "the timeline's root is damaged; run update_timeline() to rebuild it")
        return
    if root.manifests and not roots.root_or_emptied(root, snapshot, settings.digest).manifests:
        message = "the timeline has other settings or belongs to another chain; run update_timeline() to rebuild it"
        yield _problem(objects.root_key, message)
        return
    wrong: list[VerifyProblem] = []
    partitions = [p for ref in root.manifests for p in _partitions_of(objects, root, ref, wrong)]
    yield from wrong
    for one, other in pairwise(partitions):
        if one.start >= other.start:
            label = timeline_settings.partition_label(other.start, settings.partition_by)
            yield _problem(objects.root_key, f"partition {label} is duplicate or out of order; {_REMEDY}")
    yield from _file_problems(objects, partitions)
    yield from _purged_problems(objects, snapshot.purged_before)
    for file in list_files_with(objects, snapshot.erased):
        yield _problem(objects.key(file), f"{file!r} holds erased records; erase their keys again to remove it")
    if partitions and root.purged_before < snapshot.purged_before:
        before = snapshot.purged_before
        message = f"the timeline still holds purged records, before offset {before}: a purge was interrupted"
        yield _problem(objects.root_key, f"{message}; run update_timeline(), fold() or purge({before}) to complete it")
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
    if readable:  # else the missing records are already explained
        yield from _missing_records(objects, root, ledger, seen)


def _partitions_of(
    objects: TimelineObjects, root: Root, ref: ManifestRef, wrong: list[VerifyProblem]
) -> Sequence[Partition]:
    key = objects.manifest_key(ref.digest)
    try:
        data = objects.store.get(key)
        bundle = roots.load_bundle(objects, root, ref)
    except (BadManifest, StorageError) as error:
        wrong.append(_problem(key, f"{error.message}; {_REMEDY}"))
        return ()
    if ref_of(bundle, data) != ref:
        wrong.append(_problem(key, f"the manifest does not match its entry in the root; {_REMEDY}"))
    return bundle.partitions


def _file_problems(objects: TimelineObjects, partitions: Sequence[Partition]) -> Iterator[VerifyProblem]:
    for file, message in damaged_files(objects, partitions).items():
        yield _problem(objects.key(file), f"the timeline's file {message}; {_REMEDY}")


def damaged_files(objects: TimelineObjects, partitions: Sequence[Partition]) -> dict[str, str]:
    """The own files of some partitions that are missing or do not match their hashes; with the problem of each."""
    files = sorted(own_files(partitions))
    with ThreadPoolExecutor(_THREADS) as hashing:  # hashing and reading both release the GIL
        found = zip(files, hashing.map(partial(_file_damage, objects), files), strict=True)
        return {file: message for file, message in found if message}


def _file_damage(objects: TimelineObjects, file: str) -> str:
    own = parse_own_file(file)
    if own is None:
        return "has an invalid name"
    try:
        return "" if is_intact(objects, own) else "was changed or damaged"
    except (StorageError, OSError) as error:
        return f"cannot be read: {error}"


def _purged_problems(objects: TimelineObjects, before: int) -> Iterator[VerifyProblem]:
    files = [objects.file(info.key) for info in objects.files()]
    for file in files_with_purged(objects, files, before):
        yield _problem(
            objects.key(file),
            f"{file!r} holds purged records, before offset {before}; run purge({before}) or fold() to remove it",
        )


def _partition_problems(
    objects: TimelineObjects, files: PieceFiles, partition: Partition, settings: Settings, root: Root, seen: BitMap64
) -> Iterator[VerifyProblem]:
    """The problems of a partition's pieces. The offsets of their rows are added to `seen`."""
    start, unit = partition.start, settings.partition_by
    bounds = range(start, timeline_settings.partition_end(start, unit))
    where = f"partition {timeline_settings.partition_label(start, unit)}"
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
    ends = TimePoint(int(times[0]), int(offsets[0])), TimePoint(int(times[-1]), int(offsets[-1]))
    if ends != (piece.first, piece.last):
        return f"they range from {ends[0]} to {ends[1]}, not from {piece.first} to {piece.last}"
    if (int(offsets.min()), int(offsets.max())) != (piece.offset_min, piece.offset_max):
        return f"their offsets are {offsets.min()}–{offsets.max()}, not {piece.offset_min}–{piece.offset_max}"
    if ends[0].time not in bounds or ends[1].time not in bounds:
        return "they belong to another partition"
    if piece.offset_max >= applied:
        return f"offset {piece.offset_max} is not applied yet"
    found = BitMap64(offsets.astype("uint64"))
    if len(found) < len(offsets) or found & seen:
        twice = (found & seen).min() if found & seen else piece.offset_min
        return f"records are in the timeline twice, for example offset {twice}"
    seen.update(found)
    return ""


def _missing_records(
    objects: TimelineObjects, root: Root, ledger: LedgerRecords, seen: BitMap64
) -> Iterator[VerifyProblem]:
    """The live records that are in no piece."""
    applied = BitMap64()
    applied.add_range(ledger.snapshot.purged_before, max(ledger.snapshot.purged_before, root.applied))
    missing = applied - BitMap64(ledger.dead.astype("uint64")) - seen
    if missing:
        message = f"{len(missing)} records are not in the timeline, the first at offset {missing.min()}; {_REMEDY}"
        yield _problem(objects.root_key, message)


def _problem(key: str, message: str) -> VerifyProblem:
    return VerifyProblem("timeline", key, message)

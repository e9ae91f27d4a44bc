"""The files of the transform meta: entries of processed keys in sorted files, the step's runs, and the manifest.

An entry has the hash of a key, and the time and number of its run; the newest entry of a key counts. All files are
committed state: like every checkpoint they are named by their SHA3-256 and stored durably before the commit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.chain.ids import BlockRef, Multihash
from floodmark.derive.lost_records import LostRecords, Trail, cut_trail, trail_positions
from floodmark.derive.notes import StoredNote
from floodmark.derive.positions import bind_blocks
from floodmark.errors import BadId, BadMeta, ObjectNotFound
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import BEFORE_ALL, Position
from floodmark.storage.arrays import Hashes
from floodmark.storage.facts import build, build_row, natural
from floodmark.storage.run_lookup import entry_count, merge
from floodmark.storage.sorted_runs import Columns, RunFile, RunFiles, RunSpec, write_run
from floodmark.storage.tiers import RetiredFiles, Tiers
from floodmark.transforms.failed_keys import FailedFile

U32 = npt.NDArray[np.uint32]
SPEC = RunSpec("meta", ("high", "low"), {"process_ts": np.int64, "run": np.uint32}, digest="data")


def entry_files(objects: DatasetObjects) -> RunFiles:
    """The entry files of a step's meta; its first output has them."""
    return RunFiles(objects.store, objects.checkpoint_prefix, SPEC.kind, partial(bad_meta, objects))


def bad_meta(objects: DatasetObjects, name: str, problem: str) -> BadMeta:
    return BadMeta(
        f"the file {name} of the transform meta of {objects.folder!r} cannot be used: {problem}",
        hint="restore the file from a copy, or run `floodmark reset STEP`: the next run computes everything again",
        file=name,
        dataset=objects.folder,
    )


def get_meta_file(objects: DatasetObjects, name: str) -> bytes:
    """The bytes of a file, checked against the digest in its name."""
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise bad_meta(objects, name, "it is missing") from error
    if Multihash.sha3_256(data) != digest:
        raise bad_meta(objects, name, "its hash is not its name")
    return data


def make_entries(hashes: Hashes, process_ts: int, run: int) -> Columns:
    """The entries of keys, sorted and distinct, that one run has processed."""
    # All entries share one time and one run number: broadcast views need no memory.
    time, number = (np.broadcast_to(value, len(hashes)) for value in (np.int64(process_ts), np.uint32(run)))
    return {"high": hashes.high, "low": hashes.low, "process_ts": time, "run": number}


def add_entries(
    objects: DatasetObjects, folder: Path, manifest: MetaManifest, entries: Columns, salt: str, tiers: Tiers
) -> tuple[MetaManifest, list[EntryFile]]:
    """Add entries to the manifest of the next commit, merge segments if due, and write the files to the folder.

    The manifest must already have the run of the entries, and the positions after the commit. The salt makes the files
    of each commit unique: a replaced file is never written again, so its late removal cannot hit a file in use.
    """
    if entry_count(entries) == 0:
        return manifest, []
    sizes = [sum(file.entries for file in segment) for segment in manifest.segments]
    merged = tiers.due([entry_count(entries), *sizes]) - 1
    if merged == 0:
        starts = range(0, entry_count(entries), tiers.file_entries)
        parts = ({name: c[start : start + tiers.file_entries] for name, c in entries.items()} for start in starts)
        files = [_write_entries(folder, part, salt) for part in parts]
    else:
        segments = manifest.segments[:merged]
        numbers = {int(entries["run"][0])} | {n for segment in segments for file in segment for n in file.runs}
        one = collapse_runs({n: manifest.runs[n] for n in numbers}, manifest.positions, manifest.next_run)
        files = [
            _write_entries(folder, {**part, "run": _renumber(part["run"], one.number_of)}, salt)
            for part in merge(entry_files(objects), segments, SPEC.order, tiers.file_entries, [entries])
        ]
        runs = {**manifest.runs, **one.runs}
        manifest = replace(manifest, runs=runs, next_run=max(runs) + 1)
    manifest = replace(manifest, segments=(tuple(files), *manifest.segments[merged:]))
    # Runs without entries are dropped.
    return replace(manifest, runs={n: run for n, run in manifest.runs.items() if n in manifest.referred}), files


def _write_entries(folder: Path, entries: Columns, salt: str) -> EntryFile:
    run = entries["run"]
    numbers = np.unique(run[:1] if run.strides == (0,) else run)
    return EntryFile(**vars(write_run(folder, SPEC, "entries", entries, salt)), runs=tuple(numbers.tolist()))


def _renumber(run: U32, number_of: Mapping[int, int]) -> U32:
    old = np.array(sorted(number_of), np.uint32)
    new = np.array([number_of[int(number)] for number in old], np.uint32)
    renumbered: U32 = new[np.searchsorted(old, run)]
    return renumbered


NOTHING = -1
"""The position of an input before its first record was read."""

NEVER = -2
"""The position of a key that was never processed."""

MOST_RUNS = 32
"""The most runs that one merge keeps apart."""

SEVERAL_RUNS = ""
"""The id of an entry that stands for several merged runs."""


@dataclass(frozen=True)
class RunInfo:
    """A run: its id, its time, and by dataset id the newest record of each input that it could see.

    If an input lost records that the run saw, its keys must be processed again: `has_lost`. Several merged runs have in
    `newest` what the newest of them saw, where this is more than what all of them saw.
    """

    id: str
    process_ts: int  # milliseconds: when it began
    last_offsets: Mapping[str, int]  # NOTHING if the input had no records
    newest: Mapping[str, int] = field(default_factory=dict)
    has_lost: bool = False

    def up_to(self, dataset: str) -> int:
        return self.last_offsets.get(dataset, NOTHING)

    def without_lost(self, lost: LostRecords) -> RunInfo:
        """The run after an input lost records: it claims none of them."""
        name, kept = lost.dataset_id, lost.kept.offset
        if self.newest.get(name, self.up_to(name)) <= kept:
            return self
        claims = {**self.last_offsets, name: min(self.up_to(name), kept)}
        newest = {other: offset for other, offset in self.newest.items() if other != name}
        return replace(self, last_offsets=claims, newest=newest, has_lost=True)

    def is_within(self, positions: Mapping[str, int]) -> bool:
        """Whether the run saw no record beyond the positions."""
        return all(offset <= positions.get(dataset, NOTHING) for dataset, offset in self.last_offsets.items())


@dataclass(frozen=True)
class CollapsedRuns:
    """The result of `collapse_runs`: old run numbers mapped to fewer new ones."""

    number_of: Mapping[int, int]  # the new number of each old one
    runs: Mapping[int, RunInfo]  # by new number


def collapse_runs(runs: Mapping[int, RunInfo], positions: Mapping[str, int], next_number: int) -> CollapsedRuns:
    """Merge runs that have seen the same records into one number; new numbers start at `next_number`.

    Above MOST_RUNS, the oldest runs are merged, too: the merged run has only what all of them have seen.
    """
    groups: dict[tuple[_Claim, bool], list[int]] = {}
    for number, run in sorted(runs.items()):
        claim = positions if run.is_within(positions) and not run.has_lost else run.last_offsets
        groups.setdefault((_canonical(claim), run.has_lost), []).append(number)
    kept = sorted(groups.items(), key=lambda item: item[1][-1], reverse=True)
    if len(kept) > MOST_RUNS:
        oldest = [number for _, numbers in kept[MOST_RUNS - 1 :] for number in numbers]
        some = [runs[number] for number in oldest]
        least = _least_seen(some, positions)
        kept = [*kept[: MOST_RUNS - 1], ((_canonical(least), any(run.has_lost for run in some)), oldest)]
    number_of: dict[int, int] = {}
    result: dict[int, RunInfo] = {}
    for (claim_items, has_lost), numbers in kept:
        first = runs[numbers[0]]
        if len(numbers) == 1 and _canonical(first.last_offsets) == claim_items:
            number, one = numbers[0], first
        else:
            number, next_number = next_number, next_number + 1
            some, claims = [runs[n] for n in numbers], dict(sorted(claim_items))
            newest = _newest_seen(some, claims)
            one = RunInfo(SEVERAL_RUNS, max(run.process_ts for run in some), claims, newest, has_lost)
        result[number] = one
        number_of |= dict.fromkeys(numbers, number)
    return CollapsedRuns(number_of, result)


_Claim = frozenset[tuple[str, int]]


def _canonical(last_offsets: Mapping[str, int]) -> _Claim:
    return frozenset((dataset, offset) for dataset, offset in last_offsets.items() if offset != NOTHING)


def _newest_seen(runs: Sequence[RunInfo], claims: Mapping[str, int]) -> dict[str, int]:
    """By dataset id the newest record that one of these runs saw, where it is beyond their common claim."""
    datasets = sorted({dataset for run in runs for dataset in run.last_offsets})
    seen = {d: max(run.newest.get(d, run.up_to(d)) for run in runs) for d in datasets}
    return {dataset: offset for dataset, offset in seen.items() if offset > claims.get(dataset, NOTHING)}


def _least_seen(runs: Iterable[RunInfo], positions: Mapping[str, int]) -> dict[str, int]:
    """By dataset id the newest record that all of these runs saw, but at least the position."""
    some = list(runs)
    datasets = {dataset for run in some for dataset in run.last_offsets} | set(positions)
    return {d: max(min(run.up_to(d) for run in some), positions.get(d, NOTHING)) for d in sorted(datasets)}


# The manifest

KIND = "floodmark.meta"

SeenRecord = tuple[int, str]
"""The offset of a record, and the block that has it."""


class DamagedMeta(Exception):
    """A checkpoint that is not a valid manifest."""


@dataclass(frozen=True)
class EntryFile(RunFile):
    """The manifest's entry for a sorted run of entries."""

    runs: tuple[int, ...] = ()  # the run numbers of its entries


EntrySegment = tuple[EntryFile, ...]
"""Files with ascending, disjoint ranges of hashes, written together."""


@dataclass(frozen=True)
class StoredLastRun:
    """The run that committed last. `keys` and `failed` count the keys of all its commits."""

    id: str
    process_ts: int
    keys: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class RefusedRun:
    """The newest run, if too many keys failed in it: it committed their failures, but neither rows nor positions.

    If another version is in place, `failed` has all failures of this version so far; else they are with the other
    failures of the meta.
    """

    version: str
    problem: str
    run: StoredLastRun
    failed: FailedFile | None


@dataclass(frozen=True)
class MetaManifest:
    """The root document of a step's meta as of one commit."""

    transform_keys: pa.Schema = field(default_factory=lambda: pa.schema([]))
    version: str | None = None  # None before the first commit
    name: str = ""
    segments: tuple[EntrySegment, ...] = ()  # newest first
    runs: Mapping[int, RunInfo] = field(default_factory=dict)  # the runs that entries refer to, by number
    next_run: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, str] = field(default_factory=dict)  # the blocks that have the records at the positions
    seen: Mapping[str, SeenRecord] = field(
        default_factory=dict
    )  # the newest record a run could see, beyond the positions
    trails: Mapping[str, Trail] = field(default_factory=dict)  # by dataset id, earlier positions
    outputs: Mapping[str, BlockRef] = field(default_factory=dict)  # by dataset id, the heads of the other outputs
    failed: FailedFile | None = None
    keys: int = 0
    last_run: StoredLastRun | None = None
    refused: RefusedRun | None = None
    generation: int = 0  # commits so far
    retired: RetiredFiles = field(default=(), repr=False)

    @property
    def read(self) -> list[Position]:
        """The newest records that results refer to. If one was replaced in its input, the history diverged."""
        return [
            *bind_blocks(self.positions, self.blocks),
            *(Position(name, *seen) for name, seen in self.seen.items()),
        ]

    @property
    def earlier(self) -> list[Position]:
        """Earlier positions: some of them are still in an input that lost newer records."""
        return trail_positions(self.trails)

    @property
    def has_lost(self) -> bool:
        """Whether results may include records that an input lost."""
        return any(run.has_lost for run in self.runs.values())

    def without_lost(self, lost: LostRecords) -> MetaManifest:
        """The manifest after an input lost records: it continues from the newest position that the input still has."""
        name, kept = lost.dataset_id, lost.kept
        blocks = {other: block for other, block in self.blocks.items() if other != name}
        if self.positions.get(name, NOTHING) <= kept.offset:  # only records beyond the position are lost
            return replace(self, runs=self._runs_without(lost), seen={n: s for n, s in self.seen.items() if n != name})
        return replace(
            self,
            runs=self._runs_without(lost),
            positions={**self.positions, name: kept.offset},
            blocks=blocks if kept.offset == BEFORE_ALL else {**blocks, name: kept.block},
            seen={other: seen for other, seen in self.seen.items() if other != name},
            trails={**self.trails, name: cut_trail(self.trails.get(name, ()), kept)},
        )

    def _runs_without(self, lost: LostRecords) -> dict[int, RunInfo]:
        return {number: run.without_lost(lost) for number, run in self.runs.items()}

    def without_marks(self) -> MetaManifest:
        """The manifest after all keys whose results included lost records were processed again."""
        if not self.has_lost:
            return self
        return replace(self, runs={number: replace(run, has_lost=False) for number, run in self.runs.items()})

    @property
    def names(self) -> set[str]:
        """The names of all files that the meta needs."""
        entries = {file.name for segment in self.segments for file in segment}
        failed = [self.failed, self.refused and self.refused.failed]
        return entries | {file.name for file in failed if file}

    @property
    def referred(self) -> set[int]:
        """The numbers of the runs that entries refer to."""
        return {number for segment in self.segments for file in segment for number in file.runs}


def encode_meta(manifest: MetaManifest) -> bytes:
    """The bytes of the manifest's file."""
    content = {
        "kind": KIND,
        **vars(manifest),
        "transform_keys": base64.b64encode(manifest.transform_keys.serialize()).decode(),
        "segments": [[asdict(file) for file in segment] for segment in manifest.segments],
        "runs": [
            [number, run.id, run.process_ts, dict(run.last_offsets), dict(run.newest), run.has_lost]
            for number, run in sorted(manifest.runs.items())
        ],
        "positions": dict(manifest.positions),
        "blocks": dict(manifest.blocks),
        "seen": dict(manifest.seen),
        "trails": dict(manifest.trails),
        "outputs": {name: [ref.sequence_number, ref.hash.text] for name, ref in manifest.outputs.items()},
        "failed": manifest.failed and asdict(manifest.failed),
        "last_run": manifest.last_run and asdict(manifest.last_run),
        "refused": manifest.refused and asdict(manifest.refused),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_meta(facts: StoredNote) -> MetaManifest:
    """The manifest in a note; `DamagedMeta` if it has another format. The caller has checked the note's digest."""
    if facts.kind != KIND:
        raise DamagedMeta(f"it has another format ({facts.kind!r}, not {KIND!r})")
    content = facts.facts
    try:
        serialized = base64.b64decode(content["transform_keys"])
        manifest = build(
            MetaManifest,
            dict(content),
            transform_keys=pa.ipc.read_schema(pa.py_buffer(serialized)),
            runs={natural(number): build_row(RunInfo, facts) for number, *facts in content["runs"]},
            outputs={n: BlockRef(natural(at), Multihash.parse(text)) for n, (at, text) in content["outputs"].items()},
        )
        for text in manifest.names:
            Multihash.parse(text)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, BadId, pa.ArrowException) as error:
        raise DamagedMeta(f"it has another format ({error})") from error
    if missing := manifest.referred - set(manifest.runs):
        raise DamagedMeta(f"entries refer to run {min(missing)}, which it does not have")
    return manifest

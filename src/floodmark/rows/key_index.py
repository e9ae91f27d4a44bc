"""The key index: the newest offset of every key, and the dead offsets, as of one block."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from floodmark.errors import BadIndex, StorageError, bad_index
from floodmark.rows import key_entries
from floodmark.rows.key_entries import (
    NO_ROW,
    IndexDelta,
    IndexRecords,
    KeyEntries,
    KeyMatches,
    Kills,
    KillsFile,
    offsets_of,
    order_columns,
    run_spec,
    write_delta,
)
from floodmark.rows.key_index_files import (
    BlockPosition,
    KeyIndexFiles,
    KeyIndexShape,
    KeyManifest,
    KeySegment,
    encode_index,
)
from floodmark.storage import run_lookup, tiers
from floodmark.storage.arrays import I64, Hashes, is_group_start
from floodmark.storage.sorted_runs import END_OF_HASHES, Columns, LookupCounts, RunFile, RunSpec, SortedRun, write_run
from floodmark.storage.tiers import Tiers

NEWEST = "newest"
"""The cache entry with the index that was last opened or extended; the other entries are its runs."""

FAN_IN = 8
SMALLEST_TIER = 4096
CHUNK_ENTRIES = 4 << 20
"""About this many entries or kills are merged at a time, into one file."""

SWEEP_EVERY = 64
"""Commits between two searches for files that no manifest names."""

ORPHANED_AFTER = 24 * 3600.0
"""Seconds before a file that no manifest names is removed: its commit may still be running."""

_log = logging.getLogger(__name__)


@dataclass
class KeyIndex:
    """The key index as of one block. Files are opened on first use. Raises `BadIndex` if a file is unusable."""

    manifest: KeyManifest
    files: KeyIndexFiles
    _written: frozenset[str] = frozenset()  # files written since the last stored manifest, in use or not
    _kept: KeyManifest | None = None  # the last stored manifest
    _dead: BitMap64 | None = field(default=None, repr=False)
    _broken: BadIndex | None = None

    @property
    def end(self) -> int:
        """The index covers all records below this offset."""
        return self.manifest.end

    @property
    def probes(self) -> LookupCounts:
        """Counters of what lookups have read, shared with the indexes extended from this one."""
        return self.files.probes

    @property
    def dead_count(self) -> int:
        """How many records are dead."""
        return self.manifest.kills

    @property
    def live_count(self) -> int:
        """How many keys have a current row."""
        return self.end - self.manifest.start - self.dead_count

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_dead": None}  # large, and fast to read again

    # Lookups

    def find(self, keys: Hashes, lookup_keys: Hashes | None = None) -> KeyMatches:
        """The current row of each key. `lookup_keys` are the hashes of the declared prefix, if there is one."""
        if (lookup_keys is not None) != self.manifest.shape.has_prefix:
            raise ValueError("give hashes of the lookup prefix if, and only if, a prefix is declared")
        found = run_lookup.find(self.files, self._runs(), order_columns(keys, lookup_keys), self._spec)
        offset = np.where(found.seen, found.values["offset"], NO_ROW)
        return KeyMatches(offset, Hashes(found.values["row_high"], found.values["row_low"]), found.seen)

    def find_prefix(self, prefixes: Hashes) -> tuple[I64, KeyEntries]:
        """All current rows of each prefix: ascending positions in `prefixes`, and the entries."""
        which, parts = run_lookup.find_all(self.files, self._runs(), [prefixes.high, prefixes.low])
        return _live_of_each(which, parts) if parts else (which, self._nothing())

    def live_between(self, low: int = 0, high: int = END_OF_HASHES) -> KeyEntries:
        """All current rows with the high half of their (lookup or key) hash in [low, high), sorted by hash."""
        parts = run_lookup.entries_between(self.files, self._runs(), low, high)
        if not parts:
            return self._nothing()
        entries = KeyEntries.of(run_lookup.newest(parts, self._spec.order))
        return entries.take(entries.is_live)

    def dead(self, end: int | None = None) -> I64:
        """The offsets below `end` that are dead as of `end`, ascending. The default is the end of the index."""
        if end is not None and end < self.end:
            ended = [self.files.dead(file).kills().before(end) for file in self._dead_files()]
            return np.sort(np.concatenate([np.empty(0, np.int64), *ended]))
        return offsets_of(self._dead_now())

    def dead_within(self, ranges: Sequence[tuple[int, int]], end: int) -> I64:
        """The dead offsets as of `end` in these ranges [low, high), which are ascending and disjoint.

        As of the end of the index, only dead offsets in the ranges are read from the bitmap.
        """
        if end < self.end:
            dead = self.dead(end)
            parts = [dead[slice(*np.searchsorted(dead, bounds))] for bounds in ranges]
            return np.concatenate([np.empty(0, np.int64), *parts])
        in_ranges = BitMap64()
        for low, high in ranges:
            in_ranges.add_range(low, high)
        return offsets_of(self._dead_now() & in_ranges)

    def ended_by(self, offsets: I64) -> I64:
        """For each record the record that ended it: itself if it never was current, NO_ROW if it is current."""
        result = np.full(len(offsets), NO_ROW, np.int64)
        for file in self._dead_files():
            kills = self.files.dead(file).kills()
            at = np.minimum(np.searchsorted(kills.offset, offsets), len(kills) - 1)
            is_match = kills.offset[at] == offsets
            result[is_match] = kills.killed_by[at[is_match]]
        return result

    def endings(self, start: int, end: int) -> Kills:
        """The records that the records in [start, end) ended, themselves excluded, in the order of what ended them."""
        files = [f for s in self._segments() if s.start < end and s.end > start for f in s.dead]
        found = [self.files.dead(file).kills().by_others(start, end) for file in files]
        nothing = np.empty(0, np.int64)
        killed_by = np.concatenate([nothing, *[kills.killed_by for kills in found]])
        order = np.argsort(killed_by, kind="stable")
        return Kills(np.concatenate([nothing, *[kills.offset for kills in found]])[order], killed_by[order])

    def dead_from(self, start: int) -> int:
        """How many records from offset `start` on are dead."""
        self.require_usable()
        return self.dead_count if start == 0 else int(self._dead_now().range_cardinality(start, self.end))

    def _dead_now(self) -> BitMap64:
        files = self._dead_files()  # first: this raises for a broken index, whose cached bitmap must not be used
        if self._dead is None:
            self._dead = _united(BitMap64(), self.files, files)
        return self._dead

    def _dead_files(self) -> list[KillsFile]:
        return [file for segment in self._segments() for file in segment.dead]

    def check(self) -> None:
        """Read every byte of every file. Raises `BadIndex` if one has changed."""
        for segment in self._segments():
            for file in segment.runs:
                self.files.ask(file, partial(SortedRun.slice, start=0, end=file.entries))
            for dead in segment.dead:
                self.files.dead(dead).check()

    def require_usable(self) -> None:
        """Raise `BadIndex` if the index could not be extended after the last commit."""
        if self._broken is not None:
            raise self._broken

    def _segments(self) -> tuple[KeySegment, ...]:
        self.require_usable()
        return self.manifest.segments

    def _runs(self) -> list[tuple[RunFile, ...]]:
        return [segment.runs for segment in self._segments()]

    @property
    def _spec(self) -> RunSpec:
        return run_spec(self.manifest.shape.has_prefix)

    def _nothing(self) -> KeyEntries:
        return KeyEntries.none(Hashes.joined([]) if self.manifest.shape.has_prefix else None)

    # Extension after a commit

    def extended(self, at: BlockPosition, end: int, deltas: Sequence[IndexDelta]) -> KeyIndex:
        """The index after a commit of these deltas up to block `at`. It is stored if the store allows it.

        The records are already committed, so this does not fail. An index that cannot be extended raises `BadIndex` on
        its next use.
        """
        index = self.with_deltas(end, deltas).kept(at)
        if not index.files.store_accepts:
            index.files.cache.pop(NEWEST, None)  # so that the next load tries to store it again
        return index

    def with_records(self, records: IndexRecords) -> KeyIndex:
        """The index after these records, not stored yet."""
        with self.files.staging_folder() as folder:
            try:
                delta = write_delta(folder, records)
            except OSError as error:
                delta = write_delta(self.files.use_memory(error), records)
            return self.with_deltas(records.end, [delta])

    def with_deltas(self, end: int, deltas: Sequence[IndexDelta]) -> KeyIndex:
        """The index after the records of these deltas, not stored yet. A broken index raises on its next use."""
        try:
            segment = _segment(self.end, end, deltas)
            for delta in deltas:
                if delta.folder is not None:
                    self.files.put(delta.folder, delta.names)
            dead = None if self._dead is None else _united(self._dead, self.files, segment.dead)
            segments, merged = self._tiered((segment, *self.manifest.segments))
        except (BadIndex, OSError, StorageError) as error:
            _log.warning("the key index of %s could not be extended: %s", self.files.objects.folder, error)
            broken = error if isinstance(error, BadIndex) else bad_index("delta", str(error))
            return replace(self, manifest=replace(self.manifest, end=end), _broken=broken)
        manifest = replace(self.manifest, end=end, segments=segments)
        return replace(self, manifest=manifest, _written=self._written | {*segment.names, *merged}, _dead=dead)

    def _tiered(self, segments: tuple[KeySegment, ...]) -> tuple[tuple[KeySegment, ...], set[str]]:
        try:
            count = Tiers(FAN_IN, SMALLEST_TIER).due([segment.entries for segment in segments])
            if count == 1:
                return segments, set()
            one = _merged(self.files, self._spec, segments[:count], is_oldest=count == len(segments))
            return (one, *segments[count:]), set(one.names)
        except (OSError, StorageError) as error:
            _log.warning("the key index of %s could not be merged (%s)", self.files.objects.folder, error)
            return segments, set()

    def kept(self, at: BlockPosition) -> KeyIndex:
        """The same index as of block `at`. It is stored if the store allows it."""
        index = replace(self, manifest=replace(self.manifest, at=at))
        if self._broken is not None:
            _discard(self.files, self._kept)
        elif (stored := _store(self.files, index.manifest, self._kept, self._written)) is not None:
            index = replace(index, manifest=stored, _kept=stored, _written=frozenset())
        index.remember()
        return index

    def remember(self) -> None:
        """Put this index into the cache as the newest one, for the next `load`."""
        self.files.cache[NEWEST] = self
        self.files.forget_all_but(self.manifest.names)


def empty_index(files: KeyIndexFiles, shape: KeyIndexShape, start: int) -> KeyIndex:
    """The index before the record `start`."""
    return KeyIndex(KeyManifest(shape, None, start, start), files)


def open_index(files: KeyIndexFiles, manifest: KeyManifest) -> KeyIndex:
    """The index that a manifest in the store describes."""
    return KeyIndex(manifest, files, frozenset(), manifest)


def _segment(start: int, end: int, deltas: Sequence[IndexDelta]) -> KeySegment:
    """The segment of these deltas. Raises `BadIndex` if they do not cover [start, end) exactly."""
    in_order = sorted(deltas, key=lambda delta: delta.start)
    at = start
    for delta in in_order:
        if delta.start != at:
            raise bad_index("delta", f"records {at} to {delta.start - 1} are in no delta or in two")
        at = delta.end
    if at != end:
        raise bad_index("delta", f"the deltas end at {at}, not at {end}")
    runs = sorted((delta.run for delta in deltas if delta.run is not None), key=lambda run: run.first)
    for run, following in pairwise(runs):
        if run.last >= following.first:
            raise bad_index(run.name, f"its hashes overlap with those of {following.name}")
    return KeySegment(start, end, tuple(runs), tuple(p.dead for p in in_order if p.dead is not None))


def _merged(files: KeyIndexFiles, spec: RunSpec, segments: Sequence[KeySegment], is_oldest: bool) -> KeySegment:
    """Merge adjacent segments (newest first) into one."""
    start, end = segments[-1].start, segments[0].end
    stem = f"{start:012d}-{end:012d}"
    runs, kills = [], []
    with files.staging_folder() as folder:
        for columns in run_lookup.merge(files, [s.runs for s in segments], spec.order, CHUNK_ENTRIES):
            # An entry of a key without a row hides older entries of the key. The oldest segment needs no such entries.
            needed = _live(columns) if is_oldest else columns
            if run_lookup.entry_count(needed):
                runs.append(write_run(folder, spec, stem, needed))
                files.put(folder, [runs[-1].name])
        parts = [files.dead(file).kills() for s in segments for file in s.dead]
        for chunk in key_entries.merge_kills(parts, CHUNK_ENTRIES) if parts else ():
            kills.append(key_entries.write_kills(folder, start, end, chunk))
            files.put(folder, [kills[-1].name])
    return KeySegment(start, end, tuple(runs), tuple(kills))


def _live(columns: Columns) -> Columns:
    live = columns["offset"] != NO_ROW
    return {name: column[live] for name, column in columns.items()}


def _live_of_each(which: I64, parts: Sequence[Columns]) -> tuple[I64, KeyEntries]:
    """For each prefix the newest entry of each key with a current row. There is at least one part."""
    entries = KeyEntries.of({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    order = np.lexsort((entries.key.low, entries.key.high, which))
    groups = [which[order].astype(np.uint64), entries.key.high[order], entries.key.low[order]]
    newest = order[is_group_start(groups)]
    live = newest[entries.is_live[newest]]
    return which[live], entries.take(live)


def _united(bitmap: BitMap64, files: KeyIndexFiles, dead: Sequence[KillsFile]) -> BitMap64:
    return bitmap.union(*(files.dead(file).bitmap() for file in dead)) if dead else bitmap


# Storage: the manifest is written last. Replaced files are removed some commits later.


def _store(
    files: KeyIndexFiles, manifest: KeyManifest, before: KeyManifest | None, written: frozenset[str]
) -> KeyManifest | None:
    """Write the manifest that follows `before`; None if the store refuses it.

    `written` are the files stored since `before`. Those that are already merged into others are removed.
    """
    names = manifest.names
    generation = before.generation + 1 if before else 0
    retired, gone = tiers.retire(before.retired if before else (), before.names if before else (), names, generation)
    previous = [name for name in ((before.name, *before.previous) if before else ()) if name != manifest.name]
    recent, outdated = previous[: tiers.KEEP_RETIRED_COMMITS], previous[tiers.KEEP_RETIRED_COMMITS :]
    manifest = replace(manifest, generation=generation, previous=tuple(recent), retired=retired)
    if not files.store_accepts:
        return None
    objects = files.objects
    try:
        objects.store.put_derived(objects.key_manifest_key(manifest.name), encode_index(manifest))
        for name in outdated:
            objects.store.delete(objects.key_manifest_key(name))
        still_named = names | {name for _, name in manifest.retired}
        _remove(files, (set(gone) | written) - still_named)
        if generation % SWEEP_EVERY == SWEEP_EVERY - 1:
            _sweep(files, manifest)
    except (OSError, StorageError) as error:
        _log.warning("the key index of %s was not stored (%s); it will be rebuilt later", objects.folder, error)
        return None
    return manifest


def _remove(files: KeyIndexFiles, names: set[str]) -> None:
    """Remove files that no manifest names."""
    for name in sorted(names):
        files.objects.store.delete(files.objects.key_file_key(name))
    files.forget(names)


def _discard(files: KeyIndexFiles, manifest: KeyManifest | None) -> None:
    """Remove a manifest that names damaged files, and earlier manifests, so that no reader starts from them."""
    objects = files.objects
    try:
        for name in (manifest.name, *manifest.previous) if manifest else ():
            objects.store.delete(objects.key_manifest_key(name))
    except (OSError, StorageError) as error:
        _log.warning("the damaged key index of %s could not be removed (%s)", objects.folder, error)


def _sweep(files: KeyIndexFiles, manifest: KeyManifest) -> None:
    """Remove old files of crashes and lost races."""
    objects = files.objects
    long_ago = time.time() - ORPHANED_AFTER
    manifests = {manifest.name, *manifest.previous}
    for info in list(objects.key_manifests()):
        if info.modified < long_ago and _name(info.key) not in manifests:
            objects.store.delete(info.key)
    named = manifest.names | {name for _, name in manifest.retired}
    for info in list(objects.key_files()):
        if info.modified < long_ago and _name(info.key) not in named:
            objects.store.delete(info.key)


def _name(key: str) -> str:
    return key.rsplit("/", 1)[-1]

"""The key index: the newest offset of every key and the offsets that are no longer current, as of one block."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from floodmark.ledger.errors import BadIndex, bad_index
from floodmark.ledger.keys import dead as dead_offsets
from floodmark.ledger.keys.addition import Addition, write_addition
from floodmark.ledger.keys.dead import DeadFile, offsets_of
from floodmark.ledger.keys.entries import Entries, Found, order_columns, run_spec
from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.manifest import At, Manifest, Segment, Shape, encode
from floodmark.ledger.keys.records import NOT_THERE, Records
from floodmark.storage import sorted_runs, tiers
from floodmark.storage.arrays import I64, Hashes, starts_of_groups
from floodmark.storage.errors import StorageError
from floodmark.storage.sorted_runs import END_OF_HASHES, Columns, Probes, RunFile, RunSpec, write_run
from floodmark.storage.tiers import Tiers

NEWEST = "newest"
"""Where a cache has the index that was last opened or made, beside its runs."""

FAN_IN = 8
SMALLEST_TIER = 4096
CHUNK = 4 << 20
"""About this many entries, or kills, are merged at a time and lie in one file."""

SWEEP_EVERY = 64
"""After this many commits the folder is searched for files that no manifest names."""

ORPHANED_AFTER = 24 * 3600.0
"""A file that no manifest names stays for this many seconds: its commit may be under way."""

_log = logging.getLogger(__name__)


@dataclass
class KeyIndex:
    """The key index as of one block. Files are opened when they are first needed; `BadIndex` when one is unusable."""

    manifest: Manifest
    files: KeyFiles
    _written: frozenset[str] = frozenset()  # files since the last manifest that was kept, in use or not
    _kept: Manifest | None = None  # the last manifest that was kept
    _dead: BitMap64 | None = field(default=None, repr=False)
    _broken: BadIndex | None = None

    @property
    def end(self) -> int:
        """Records below this offset are covered."""
        return self.manifest.end

    @property
    def probes(self) -> Probes:
        """What lookups through this object and its successors have looked at."""
        return self.files.probes

    @property
    def dead_count(self) -> int:
        """How many of the records are not current."""
        return self.manifest.kills

    @property
    def live_count(self) -> int:
        """How many keys have a row."""
        return self.end - self.manifest.start - self.dead_count

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_dead": None}  # large, and quickly read again where it is needed

    # Asking

    def find(self, keys: Hashes, lookup_keys: Hashes | None = None) -> Found:
        """The current row of each key; `lookup_keys` are the hashes of the declared prefix, if there is one."""
        if (lookup_keys is not None) != self.manifest.shape.has_prefix:
            raise ValueError("hashes of the lookup prefix are needed when one is declared, and only then")
        found = sorted_runs.find(self.files, self._runs(), order_columns(keys, lookup_keys), self._spec)
        offset = np.where(found.seen, found.values["offset"], NOT_THERE)
        return Found(offset, Hashes(found.values["row_high"], found.values["row_low"]), found.seen)

    def find_prefix(self, prefixes: Hashes) -> tuple[I64, Entries]:
        """All current rows of each prefix: positions in `prefixes`, ascending, and the entries."""
        which, parts = sorted_runs.find_all(self.files, self._runs(), [prefixes.high, prefixes.low])
        return _live_of_each(which, parts) if parts else (which, self._nothing())

    def live_between(self, low: int = 0, high: int = END_OF_HASHES) -> Entries:
        """All current rows whose (lookup or key) hash has a high half in [low, high), sorted by hash."""
        parts = sorted_runs.between(self.files, self._runs(), low, high)
        if not parts:
            return self._nothing()
        entries = Entries.of(sorted_runs.newest(parts, self._spec.order))
        return entries.take(entries.is_live)

    def dead(self, end: int | None = None) -> I64:
        """The offsets below `end` that are not current as of it, ascending; None: as of the end of the index."""
        if end is not None and end < self.end:
            ended = [self.files.dead(file).kills().before(end) for file in self._dead_files()]
            return np.sort(np.concatenate([np.empty(0, np.int64), *ended]))
        return offsets_of(self._dead_now())

    def dead_within(self, ranges: Sequence[tuple[int, int]], end: int) -> I64:
        """Those of the dead as of `end` that lie in ranges [low, high), which ascend and are apart.

        As of the end of the index no others are listed, however many there are.
        """
        if end < self.end:
            dead = self.dead(end)
            parts = [dead[slice(*np.searchsorted(dead, bounds))] for bounds in ranges]
            return np.concatenate([np.empty(0, np.int64), *parts])
        wanted = BitMap64()
        for low, high in ranges:
            wanted.add_range(low, high)
        return offsets_of(self._dead_now() & wanted)

    def ended_by(self, offsets: I64) -> I64:
        """For each of these records the one that ended it, itself if it never was current; NOT_THERE if it is."""
        found = np.full(len(offsets), NOT_THERE, np.int64)
        for file in self._dead_files():
            kills = self.files.dead(file).kills()
            at = np.minimum(np.searchsorted(kills.offset, offsets), len(kills) - 1)
            mine = kills.offset[at] == offsets
            found[mine] = kills.killed_by[at[mine]]
        return found

    def dead_from(self, start: int) -> int:
        """How many of the records from offset `start` on are not current."""
        self.require_usable()
        return self.dead_count if start == 0 else int(self._dead_now().range_cardinality(start, self.end))

    def _dead_now(self) -> BitMap64:
        files = self._dead_files()  # first: an index that cannot go on must not answer from what it remembers
        if self._dead is None:
            self._dead = _united(BitMap64(), self.files, files)
        return self._dead

    def _dead_files(self) -> list[DeadFile]:
        return [file for segment in self._segments() for file in segment.dead]

    def check(self) -> None:
        """Read every byte of every file; `BadIndex` when one is not as it was written."""
        for segment in self._segments():
            for file in segment.runs:
                self.files.ask(file, partial(sorted_runs.Run.slice, start=0, end=file.entries))
            for dead in segment.dead:
                self.files.dead(dead).check()

    def require_usable(self) -> None:
        """`BadIndex` when the index could not go on after the last commit."""
        if self._broken is not None:
            raise self._broken

    def _segments(self) -> tuple[Segment, ...]:
        self.require_usable()
        return self.manifest.segments

    def _runs(self) -> list[tuple[RunFile, ...]]:
        return [segment.runs for segment in self._segments()]

    @property
    def _spec(self) -> RunSpec:
        return run_spec(self.manifest.shape.has_prefix)

    def _nothing(self) -> Entries:
        return Entries.none(Hashes.joined([]) if self.manifest.shape.has_prefix else None)

    # Going on

    def extended(self, at: At, end: int, additions: Sequence[Addition]) -> KeyIndex:
        """The index after a commit of these additions up to block `at`; kept beside the chain if the store lets us.

        The records are committed, so this does not fail: an index that cannot go on raises `BadIndex` when it is asked.
        """
        index = self.with_additions(end, additions).kept(at)
        if not index.files.are_kept:
            index.files.cache.pop(NEWEST, None)  # the next one to load it tries to keep it again
        return index

    def with_records(self, records: Records) -> KeyIndex:
        """The index after these records, not kept yet."""
        with self.files.workroom() as folder:
            return self.with_additions(records.end, [write_addition(folder, records)])

    def with_additions(self, end: int, additions: Sequence[Addition]) -> KeyIndex:
        """The index after the records of these additions, not kept yet; one that is broken raises when it is asked."""
        try:
            segment = _segment(self.end, end, additions)
            for addition in additions:
                if addition.folder is not None:
                    self.files.put(addition.folder, addition.names)
            dead = None if self._dead is None else _united(self._dead, self.files, segment.dead)
            segments, merged = self._tiered((segment, *self.manifest.segments))
        except (BadIndex, OSError, StorageError) as error:
            _log.warning("the key index of %s cannot go on: %s", self.files.objects.folder, error)
            broken = error if isinstance(error, BadIndex) else bad_index("addition", str(error))
            return replace(self, manifest=replace(self.manifest, end=end), _broken=broken)
        manifest = replace(self.manifest, end=end, segments=segments)
        return replace(self, manifest=manifest, _written=self._written | {*segment.names, *merged}, _dead=dead)

    def _tiered(self, segments: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], set[str]]:
        try:
            count = Tiers(FAN_IN, SMALLEST_TIER).due([segment.entries for segment in segments])
            if count == 1:
                return segments, set()
            one = _merged(self.files, self._spec, segments[:count], is_oldest=count == len(segments))
            return (one, *segments[count:]), set(one.names)
        except (OSError, StorageError) as error:
            _log.warning("the key index of %s could not be merged (%s)", self.files.objects.folder, error)
            return segments, set()

    def kept(self, at: At) -> KeyIndex:
        """The same index as of block `at`, written beside the chain if the store lets us."""
        index = replace(self, manifest=replace(self.manifest, at=at))
        if self._broken is not None:
            _discard(self.files, self._kept)
        elif (kept := _keep(self.files, index.manifest, self._kept, self._written)) is not None:
            index = replace(index, manifest=kept, _kept=kept, _written=frozenset())
        index.remember()
        return index

    def remember(self) -> None:
        """Be the index that the next `load` with the same cache finds first."""
        self.files.cache[NEWEST] = self
        self.files.forget_all_but(self.manifest.names)


def empty(files: KeyFiles, shape: Shape, start: int) -> KeyIndex:
    """The index before the record `start`."""
    return KeyIndex(Manifest(shape, None, start, start), files)


def opened(files: KeyFiles, manifest: Manifest) -> KeyIndex:
    """The index that a manifest in the store describes."""
    return KeyIndex(manifest, files, frozenset(), manifest)


def _segment(start: int, end: int, additions: Sequence[Addition]) -> Segment:
    """The segment that additions make; `BadIndex` when they do not make the whole of [start, end)."""
    in_order = sorted(additions, key=lambda addition: addition.start)
    at = start
    for addition in in_order:
        if addition.start != at:
            raise bad_index("addition", f"records {at} to {addition.start - 1} are in no addition, or in two")
        at = addition.end
    if at != end:
        raise bad_index("addition", f"the additions end at {at}, not at {end}")
    runs = sorted((addition.run for addition in additions if addition.run is not None), key=lambda run: run.first)
    for run, following in pairwise(runs):
        if run.last >= following.first:
            raise bad_index(run.name, f"its hashes overlap with those of {following.name}")
    return Segment(start, end, tuple(runs), tuple(p.dead for p in in_order if p.dead is not None))


def _merged(files: KeyFiles, spec: RunSpec, segments: Sequence[Segment], is_oldest: bool) -> Segment:
    """Neighbouring segments, newest first, as one."""
    start, end = segments[-1].start, segments[0].end
    stem = f"{start:012d}-{end:012d}"
    runs, kills = [], []
    with files.workroom() as folder:
        for columns in sorted_runs.merge(files, [s.runs for s in segments], spec.order, CHUNK):
            # A mark that a key has no row hides older entries of the key; below the oldest segment there are none.
            kept = _live(columns) if is_oldest else columns
            if sorted_runs.count(kept):
                runs.append(write_run(folder, spec, stem, kept))
                files.put(folder, [runs[-1].name])
        parts = [files.dead(file).kills() for s in segments for file in s.dead]
        for chunk in dead_offsets.merged(parts, CHUNK) if parts else ():
            kills.append(dead_offsets.write_dead(folder, start, end, chunk))
            files.put(folder, [kills[-1].name])
    return Segment(start, end, tuple(runs), tuple(kills))


def _live(columns: Columns) -> Columns:
    live = columns["offset"] != NOT_THERE
    return {name: column[live] for name, column in columns.items()}


def _live_of_each(which: I64, parts: Sequence[Columns]) -> tuple[I64, Entries]:
    """For each prefix the newest entry of each of its keys that has a row; there is at least one part."""
    entries = Entries.of({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    order = np.lexsort((entries.key.low, entries.key.high, which))
    groups = [which[order].astype(np.uint64), entries.key.high[order], entries.key.low[order]]
    kept = order[starts_of_groups(groups)]
    kept = kept[entries.is_live[kept]]
    return which[kept], entries.take(kept)


def _united(bitmap: BitMap64, files: KeyFiles, dead: Sequence[DeadFile]) -> BitMap64:
    return bitmap.union(*(files.dead(file).bitmap() for file in dead)) if dead else bitmap


# Keeping it beside the chain: the manifest is written last, and replaced files go some commits later.


def _keep(files: KeyFiles, manifest: Manifest, before: Manifest | None, written: frozenset[str]) -> Manifest | None:
    """Write a manifest that follows `before`; None when the store does not take it.

    `written` are the files put since then: those that are already merged into others are removed.
    """
    names = manifest.names
    generation = before.generation + 1 if before else 0
    retired, gone = tiers.retire(before.retired if before else (), before.names if before else (), names, generation)
    previous = [name for name in ((before.name, *before.previous) if before else ()) if name != manifest.name]
    stays, goes = previous[: tiers.HISTORY], previous[tiers.HISTORY :]
    manifest = replace(manifest, generation=generation, previous=tuple(stays), retired=retired)
    if not files.are_kept:
        return None
    objects = files.objects
    try:
        objects.store.put_derived(objects.key_manifest_key(manifest.name), encode(manifest))
        for name in goes:
            objects.store.delete(objects.key_manifest_key(name))
        still_named = names | {name for _, name in manifest.retired}
        _remove(files, (set(gone) | written) - still_named)
        if generation % SWEEP_EVERY == SWEEP_EVERY - 1:
            _sweep(files, manifest)
    except (OSError, StorageError) as error:
        _log.warning("the key index of %s could not be kept (%s); it will be caught up later", objects.folder, error)
        return None
    return manifest


def _remove(files: KeyFiles, names: set[str]) -> None:
    """Remove files that no manifest names any more."""
    for name in sorted(names):
        files.objects.store.delete(files.objects.key_file_key(name))
    files.forget(names)


def _discard(files: KeyFiles, manifest: Manifest | None) -> None:
    """Remove a manifest that leads to damaged files, and those before it, so that no reader begins from them."""
    objects = files.objects
    try:
        for name in (manifest.name, *manifest.previous) if manifest else ():
            objects.store.delete(objects.key_manifest_key(name))
    except (OSError, StorageError) as error:
        _log.warning("the damaged key index of %s could not be removed (%s)", objects.folder, error)


def _sweep(files: KeyFiles, manifest: Manifest) -> None:
    """Remove what crashes and lost races left behind."""
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

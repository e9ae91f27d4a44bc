"""The key index: the newest offset of every key and the offsets that are no longer current, as of one block."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys import lookup, shelf, tiers
from floodmark.ledger.keys.addition import Addition, write_addition
from floodmark.ledger.keys.dead import DeadFile, offsets_of
from floodmark.ledger.keys.entries import Entries
from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.lookup import HIGHEST, Found
from floodmark.ledger.keys.manifest import At, Manifest, Segment, Shape
from floodmark.ledger.keys.records import I64, NOT_THERE, Hashes, Records
from floodmark.ledger.keys.sealed import bad
from floodmark.ledger.keys.search import Probes
from floodmark.storage.errors import StorageError

NEWEST = "newest"
"""Where a cache has the index that was last opened or made, beside its runs."""

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
        return lookup.find(self.files, self._segments(), keys, lookup_keys)

    def find_prefix(self, prefixes: Hashes) -> tuple[I64, Entries]:
        """All current rows of each prefix: positions in `prefixes`, ascending, and the entries."""
        which, parts = lookup.find_prefix(self.files, self._segments(), prefixes)
        return lookup.live_of_each(which, parts) if parts else (which, self._nothing())

    def live_between(self, low: int = 0, high: int = HIGHEST) -> Entries:
        """All current rows whose (lookup or key) hash has a high half in [low, high), sorted by hash."""
        parts = lookup.between(self.files, self._segments(), low, high)
        return lookup.live(parts) if parts else self._nothing()

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
                self.files.run(file).slice(0, file.entries)
            for dead in segment.dead:
                self.files.dead(dead).check()

    def require_usable(self) -> None:
        """`BadIndex` when the index could not go on after the last commit."""
        if self._broken is not None:
            raise self._broken

    def _segments(self) -> tuple[Segment, ...]:
        self.require_usable()
        return self.manifest.segments

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
            broken = error if isinstance(error, BadIndex) else bad("addition", str(error))
            return replace(self, manifest=replace(self.manifest, end=end), _broken=broken)
        manifest = replace(self.manifest, end=end, segments=segments)
        return replace(self, manifest=manifest, _written=self._written | {*segment.names, *merged}, _dead=dead)

    def _tiered(self, segments: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], set[str]]:
        try:
            return tiers.tiered(self.files, segments)
        except (OSError, StorageError) as error:
            _log.warning("the key index of %s could not be merged (%s)", self.files.objects.folder, error)
            return segments, set()

    def kept(self, at: At) -> KeyIndex:
        """The same index as of block `at`, written beside the chain if the store lets us."""
        index = replace(self, manifest=replace(self.manifest, at=at))
        if self._broken is not None:
            shelf.discard(self.files, self._kept)
        elif (kept := shelf.keep(self.files, index.manifest, self._kept, self._written)) is not None:
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
            raise bad("addition", f"records {at} to {addition.start - 1} are in no addition, or in two")
        at = addition.end
    if at != end:
        raise bad("addition", f"the additions end at {at}, not at {end}")
    runs = sorted((addition.run for addition in additions if addition.run is not None), key=lambda run: run.first)
    for run, following in pairwise(runs):
        if run.last >= following.first:
            raise bad(run.name, f"its hashes overlap with those of {following.name}")
    return Segment(start, end, tuple(runs), tuple(p.dead for p in in_order if p.dead is not None))


def _united(bitmap: BitMap64, files: KeyFiles, dead: Sequence[DeadFile]) -> BitMap64:
    return bitmap.union(*(files.dead(file).bitmap() for file in dead)) if dead else bitmap

"""Entries of transform meta: the keys that runs have processed, in sorted runs; the newest entry of a key counts.

An entry has the hash of the key, the time and the number of the run. The runs of the files are committed state, so they
are named by their SHA3-256, as everything among the checkpoints is, and stored durably before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from floodmark.chain.hashes import Multihash
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import Hashes
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.sorted_runs import Columns, RunFiles, RunSpec, count, merge, write_run
from floodmark.storage.tiers import Tiers
from floodmark.transform.errors import BadMeta
from floodmark.transform.meta.claims import collapsed
from floodmark.transform.meta.manifest import EntryFile, Manifest

U32 = npt.NDArray[np.uint32]
SPEC = RunSpec("meta", ("high", "low"), {"process_ts": np.int64, "run": np.uint32}, digest="data")


def entry_files(objects: DatasetObjects) -> RunFiles:
    """The files of a step's meta, which are objects of its first output."""
    return RunFiles(objects.store, objects.checkpoint_prefix, SPEC.kind, partial(bad_meta, objects))


def bad_meta(objects: DatasetObjects, name: str, problem: str) -> BadMeta:
    return BadMeta(
        f"the file {name} of the transform meta of {objects.folder!r} cannot be used: {problem}",
        hint="bring the file back from a copy, or `floodmark reset STEP` makes everything be computed again",
        file=name,
        dataset=objects.folder,
    )


def get_whole(objects: DatasetObjects, name: str) -> bytes:
    """A file, checked against the digest that it is named by."""
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise bad_meta(objects, name, "it is gone") from error
    if Multihash.sha3_256(data) != digest:
        raise bad_meta(objects, name, "its bytes do not hash to its name")
    return data


def entries_of(hashes: Hashes, process_ts: int, run: int) -> Columns:
    """Keys, sorted and distinct, that one run has processed."""
    # Views of one value: no memory is used for what all entries share.
    time, number = (np.broadcast_to(value, len(hashes)) for value in (np.int64(process_ts), np.uint32(run)))
    return {"high": hashes.high, "low": hashes.low, "process_ts": time, "run": number}


def with_entries(
    objects: DatasetObjects, folder: Path, manifest: Manifest, entries: Columns, salt: str, tiers: Tiers
) -> tuple[Manifest, list[EntryFile]]:
    """The manifest with more entries on top, after those merges that are due, and the files written to the folder.

    The manifest is that of the commit being prepared: it knows the run of the entries and the positions that hold
    once they are committed. The salt makes each file that of one commit alone: a file that was replaced is never
    written again, so removing it late cannot hit one that is in use.
    """
    if count(entries) == 0:
        return manifest, []
    sizes = [sum(file.entries for file in segment) for segment in manifest.segments]
    merged = tiers.due([count(entries), *sizes]) - 1
    if merged == 0:
        starts = range(0, count(entries), tiers.file_entries)
        parts = ({name: c[start : start + tiers.file_entries] for name, c in entries.items()} for start in starts)
        files = [_written(folder, part, salt) for part in parts]
    else:
        segments = manifest.segments[:merged]
        numbers = {int(entries["run"][0])} | {n for segment in segments for file in segment for n in file.runs}
        one = collapsed({n: manifest.runs[n] for n in numbers}, manifest.positions, manifest.next_run)
        files = [
            _written(folder, {**part, "run": _renumbered(part["run"], one.number_of)}, salt)
            for part in merge(entry_files(objects), segments, SPEC.order, tiers.file_entries, [entries])
        ]
        runs = {**manifest.runs, **one.runs}
        manifest = replace(manifest, runs=runs, next_run=max(runs) + 1)
    manifest = replace(manifest, segments=(tuple(files), *manifest.segments[merged:]))
    # A run that no entry refers to any more claims nothing.
    return replace(manifest, runs={n: run for n, run in manifest.runs.items() if n in manifest.referred}), files


def _written(folder: Path, entries: Columns, salt: str) -> EntryFile:
    run = entries["run"]
    numbers = np.unique(run[:1] if run.strides == (0,) else run)
    return EntryFile(**vars(write_run(folder, SPEC, "entries", entries, salt)), runs=tuple(numbers.tolist()))


def _renumbered(run: U32, number_of: Mapping[int, int]) -> U32:
    old = np.array(sorted(number_of), np.uint32)
    new = np.array([number_of[int(number)] for number in old], np.uint32)
    renumbered: U32 = new[np.searchsorted(old, run)]
    return renumbered

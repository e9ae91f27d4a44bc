"""The transform meta of a step as of one commit: look up processed keys, and prepare the meta of the next commit."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.chain.events import Checkpoint
from floodmark.chain.ids import BlockRef, Multihash
from floodmark.derive import notes
from floodmark.derive.lost_records import LostRecords, extend_trails
from floodmark.derive.positions import bind_blocks
from floodmark.errors import BadStep, DerivationError, OutputTaken
from floodmark.functions import failures as failures_of
from floodmark.functions.failures import empty_failed_keys
from floodmark.functions.on_error import is_due
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import run_lookup
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.storage.scratch import explain_write_errors, staging_area
from floodmark.storage.tiers import Tiers, retire
from floodmark.transforms import failed_keys, meta_entries
from floodmark.transforms.failed_keys import FailedFile
from floodmark.transforms.meta_entries import (
    NEVER,
    NOTHING,
    SEVERAL_RUNS,
    SPEC,
    DamagedMeta,
    MetaManifest,
    RefusedRun,
    RunInfo,
    SeenRecord,
    StoredLastRun,
    add_entries,
    bad_meta,
    entry_files,
    get_meta_file,
    make_entries,
)

TIERS = Tiers()
_TABLE = pa.schema(
    [
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("process_ts", failures_of.TIMESTAMP),
        ("is_success", pa.bool_()),
        ("run", pa.string()),
    ]
)


@dataclass(frozen=True)
class KeyMeta:
    """The meta of some keys, in their order."""

    seen: Mask  # whether the key was ever processed
    process_ts: I64  # 0 if the key was never processed
    last_offsets: I64  # a row for each key, a column for each input; NEVER if the key was never processed


@dataclass(frozen=True)
class ReadBlocks:
    """The blocks of the records that a run has read, by dataset id. They detect a replaced history of an input."""

    blocks: Mapping[str, str]  # the blocks that have the records at the positions
    seen: Mapping[str, SeenRecord]  # the newest record that the run could see
    outputs: Mapping[str, BlockRef] = field(default_factory=dict)  # the heads of the other outputs, which have the rows


NO_BLOCKS = ReadBlocks({}, {})


@dataclass(frozen=True)
class TransformMeta:
    """A step's meta as of one commit. It is immutable and is sent to tasks."""

    objects: DatasetObjects
    checkpoint: Multihash | None
    manifest: MetaManifest
    tiers: Tiers = TIERS

    @staticmethod
    def load(objects: DatasetObjects, checkpoint: Multihash | None, tiers: Tiers = TIERS) -> TransformMeta:
        """The meta with this checkpoint, from one small file; empty for None, or if the checkpoint is another note."""
        if checkpoint is None:
            return TransformMeta(objects, None, MetaManifest(), tiers)
        facts = notes.parse_note(get_meta_file(objects, checkpoint.text), checkpoint.text)
        if facts.kind not in (None, meta_entries.KIND):
            return TransformMeta(objects, checkpoint, MetaManifest(), tiers)
        try:
            manifest = meta_entries.decode_meta(facts)
        except DamagedMeta as error:
            raise bad_meta(objects, checkpoint.text, str(error)) from error
        return TransformMeta(objects, checkpoint, manifest, tiers)

    @property
    def positions(self) -> Mapping[str, int]:
        """By dataset id the offset up to which all records of an input are processed."""
        return self.manifest.positions

    @property
    def version(self) -> str | None:
        """The version of the step that computed the results; None before the first commit."""
        return self.manifest.version

    @property
    def keys(self) -> int:
        """The number of keys that were ever processed by this version."""
        return self.manifest.keys

    @property
    def transform_keys(self) -> pa.Schema:
        """The names and types of the transform keys, from which keys are hashed."""
        return self.manifest.transform_keys

    def find(self, hashes: Hashes, inputs: Sequence[str] = ()) -> KeyMeta:
        """When keys were processed, and for each of these inputs the newest record that their run could see."""
        found = self._look_up(hashes)
        last_offsets = np.full((len(hashes), len(inputs)), NEVER, np.int64)
        if inputs and found.seen.any():
            numbers = np.array(sorted(self.manifest.runs), np.uint32)
            claims = np.array([[self.manifest.runs[int(n)].up_to(i) for i in inputs] for n in numbers], np.int64)
            last_offsets[found.seen] = claims[np.searchsorted(numbers, found.values["run"][found.seen])]
        return KeyMeta(found.seen, found.values["process_ts"], last_offsets)

    def processed_up_to(self, hashes: Hashes, inputs: Sequence[str]) -> I64:
        """For each key and input the last record that its result includes; NEVER if it was never processed."""
        return self.find(hashes, inputs).last_offsets

    def settled(self, dataset: str) -> int | None:
        """The newest record of an input that every processed key includes; None before anything was processed."""
        position = self.positions.get(dataset, NOTHING)
        claims = [max(run.up_to(dataset), position) for run in self.manifest.runs.values()]
        return min(claims, default=None if position == NOTHING else position)

    def is_ahead(self, inputs: Iterable[str]) -> bool:
        """Whether a key may have been processed beyond the positions, so that keys must be looked up."""
        some = list(inputs)
        return any(run.up_to(i) > self.positions.get(i, -1) for run in self.manifest.runs.values() for i in some)

    def failed(self) -> pa.Table:
        """All failed keys with their errors."""
        file = self.manifest.failed
        if file is None:
            return empty_failed_keys(self.transform_keys)
        table = failed_keys.decode(get_meta_file(self.objects, file.name))
        if table.num_rows != file.rows:
            raise bad_meta(self.objects, file.name, f"it has {table.num_rows} keys, but the meta has {file.rows}")
        return table

    def due(self, now_ms: int) -> pa.Table:
        """The failed keys whose next attempt is due."""
        file = self.manifest.failed
        if file is None or file.next_due is None or not is_due(file.next_due, now_ms):
            return empty_failed_keys(self.transform_keys)
        return failed_keys.due(self.failed(), now_ms)

    def of_version(self, version: str) -> TransformMeta:
        """The meta with the failures of a version, also if all its runs were refused, so that another is in place."""
        if self.version == version:
            return self
        refused = self.manifest.refused
        failed = refused.failed if refused is not None and refused.version == version else None
        return replace(self, manifest=MetaManifest(transform_keys=self.transform_keys, failed=failed))

    def without_unused_version(self, version: str) -> TransformMeta:
        """The meta as before the first run, if all runs were refused, with another version. Else the same meta."""
        before = self.manifest
        is_unused = before.last_run is None and before.refused is not None
        if before.version in (None, version) or not is_unused:
            return self
        retired, _ = retire(before.retired, before.names, set(), before.generation)
        unused = MetaManifest(name=before.name, next_run=before.next_run, generation=before.generation, retired=retired)
        return replace(self, manifest=unused)

    def without_lost(self, lost: Iterable[LostRecords]) -> TransformMeta:
        """The meta after inputs lost records: positions are before them, and the keys of their runs are `lost_keys`."""
        manifest = self.manifest
        for one in lost:
            manifest = manifest.without_lost(one)
        return replace(self, manifest=manifest)

    def lost_keys(self, hashes: Hashes) -> Mask:
        """Which keys have results that may include records that an input lost."""
        marked = np.array([number for number, run in self.manifest.runs.items() if run.has_lost], np.uint32)
        found = self._look_up(hashes)
        mask: Mask = found.seen & np.isin(found.values["run"], marked)
        return mask

    def shown_for(self, version: str) -> TransformMeta:
        """The meta with the failures to report: those of a refused run of `version`, else those in place."""
        refused = self.manifest.refused
        return self.of_version(version) if refused is not None and refused.version == version else self

    def drop_retired(self) -> None:
        """Delete all replaced files now: they may have keys and messages of failures. No run may be active."""
        for _, name in self.manifest.retired:
            self.objects.store.delete(self.objects.checkpoint_prefix + name)

    def to_table(self) -> pa.Table:
        """All processed keys: hash, time, whether the last call succeeded, and the run (null if it is not stored)."""
        failed = failed_keys.failed_hashes(self.failed())
        numbers = sorted(self.manifest.runs)
        names = pa.array([self.manifest.runs[n].id or None for n in numbers], pa.string())
        parts = []
        files, most = entry_files(self.objects), self.tiers.file_entries
        for some in run_lookup.merge(files, self.manifest.segments, SPEC.order, most):
            run = names.take(pa.array(np.searchsorted(np.array(numbers, np.uint32), some["run"])))
            columns = [
                pa.array(some["high"]),
                pa.array(some["low"]),
                pa.array(some["process_ts"]).cast(failures_of.TIMESTAMP),
                pa.array(~Hashes(some["high"], some["low"]).among(failed)),
                run,
            ]
            parts.append(pa.table(columns, schema=_TABLE))
        return pa.concat_tables(parts) if parts else _TABLE.empty_table()

    def after(
        self,
        run: RunInfo,
        processed: Iterable[Hashes],
        failures: pa.Table,
        positions: Mapping[str, int],
        version: str,
        *,
        name: str | None = None,
        seconds: float = 0.0,
        read: ReadBlocks = NO_BLOCKS,
        is_complete: bool = False,
    ) -> MetaDraft:
        """The meta after a run has processed these keys, of which `failures` failed.

        `positions` are those after this commit: every record up to them is processed. All processed keys that are not
        in `failures` are no longer failed. If the run is complete, no key is left that lost records had changed.
        """
        before = self.manifest
        keys = self._keys_of(failures)
        if before.version is not None and before.version != version:
            raise BadStep(
                f"the meta of {self.objects.folder!r} has version {before.version!r}, not {version!r}",
                hint="reset the step: the next run computes everything again with the new version",
                version=version,
            )
        if before.version is not None and keys != before.transform_keys:
            raise OutputTaken(
                f"the transform keys of {self.objects.folder!r} are {before.transform_keys}, not {keys}",
                hint="run `floodmark reset STEP`: the next run computes everything again with the new keys",
                dataset=self.objects.folder,
            )
        named = before.name if name is None else name
        base = replace(before, version=version, transform_keys=keys, name=named, refused=None)
        base = base.without_marks() if is_complete else base
        return self._draft(base, run, processed, failures, positions, seconds, read)

    def fresh(
        self,
        run: RunInfo,
        processed: Iterable[Hashes],
        failures: pa.Table,
        positions: Mapping[str, int],
        version: str,
        *,
        name: str | None = None,
        seconds: float = 0.0,
        read: ReadBlocks = NO_BLOCKS,
        is_complete: bool = True,  # noqa: ARG002  no key is left of earlier runs
    ) -> MetaDraft:
        """The meta after the first commit of a new version or after a reset. It has only these processed keys."""
        before = self.manifest
        base = MetaManifest(
            transform_keys=self._keys_of(failures),
            version=version,
            name=before.name if name is None else name,
            next_run=before.next_run,
            generation=before.generation,
        )
        return self._draft(base, run, processed, failures, positions, seconds, read)

    def refused(
        self,
        run: RunInfo,
        failures: pa.Table,
        version: str,
        problem: str,
        *,
        name: str,
        seconds: float,
        read: ReadBlocks,
    ) -> MetaDraft:
        """The meta after a refused run: with its failures, and with the positions and results of before."""
        before = self.manifest
        count = len(failed_keys.failed_hashes(failures).distinct())
        refused = RefusedRun(version, problem, StoredLastRun(run.id, run.process_ts, count, count, seconds), None)
        if before.version in (None, version):
            keys = self._keys_of(failures)
            base = replace(before, version=version, transform_keys=keys, name=name, refused=refused)
            return self._draft(base, run, (), failures, before.positions, seconds, read)
        known = self.of_version(version).failed()
        now = failed_keys.merge_failures(known, Hashes.joined([]), failures) if known.num_rows else failures
        failed, data = _encode_failures(now, f"{run.id}/{before.generation + 1}")
        manifest = replace(before, name=name, refused=replace(refused, failed=failed), generation=before.generation + 1)
        return self._drafted(manifest, {}, {failed.name: data}, ExitStack())

    def _draft(
        self,
        base: MetaManifest,
        run: RunInfo,
        processed: Iterable[Hashes],
        failures: pa.Table,
        positions: Mapping[str, int],
        seconds: float,
        read: ReadBlocks,
    ) -> MetaDraft:
        failing = failed_keys.failed_hashes(failures)
        # A failed key needs an entry, else it counts as never processed.
        done = Hashes.joined([*processed, failing]).distinct()
        number = next((n for n, known in base.runs.items() if known == run), base.next_run)
        salt = f"{run.id}/{base.generation + 1}"
        with ExitStack() as held:
            folder = held.enter_context(staging_area(self.objects.store))
            manifest = replace(
                base,
                runs={**base.runs, number: run} if len(done) else base.runs,
                next_run=max(base.next_run, number + 1),
                positions=dict(positions),
                blocks=dict(read.blocks),
                seen=_seen(base.seen, read.seen, positions),
                outputs=dict(read.outputs),
                trails=extend_trails(base.trails, bind_blocks(positions, read.blocks)),
                keys=base.keys + self._never_seen(base, done),
                last_run=_last_run(self.manifest.last_run, run, len(done), len(failing), seconds)
                if base.refused is None
                else base.last_run,
                generation=base.generation + 1,
            )
            entries = make_entries(done, run.process_ts, number)
            with explain_write_errors("transform meta", folder):
                manifest, files = add_entries(self.objects, folder, manifest, entries, salt, self.tiers)
            manifest, whole = self._with_failures(manifest, base, done, failures, salt)
            paths = {file.name: folder / file.name for file in files}
            return self._drafted(manifest, paths, whole, held.pop_all())

    def _drafted(
        self, manifest: MetaManifest, paths: Mapping[str, Path], whole: Mapping[str, bytes], held: ExitStack
    ) -> MetaDraft:
        """The draft of the next commit with this manifest, which names these new files."""
        manifest, superseded = self._retired(manifest)
        data = meta_entries.encode_meta(manifest)
        checkpoint = Checkpoint(Multihash.sha3_256(data), len(data))
        meta = replace(self, checkpoint=checkpoint.physical_hash, manifest=manifest)
        return MetaDraft(meta, paths, {**whole, checkpoint.physical_hash.text: data}, checkpoint, superseded, held)

    def _keys_of(self, failures: pa.Table) -> pa.Schema:
        if problem := failed_keys.problem_of(failures):
            raise DerivationError(
                problem, hint="give the transform keys and the columns of failures", dataset=self.objects.folder
            )
        return failed_keys.keys_schema(failures.schema)

    def _look_up(self, hashes: Hashes) -> run_lookup.RunLookup:
        return run_lookup.find(entry_files(self.objects), self.manifest.segments, [hashes.high, hashes.low], SPEC)

    def _never_seen(self, base: MetaManifest, done: Hashes) -> int:
        if not base.segments:
            return len(done)
        return len(done) - int(replace(self, manifest=base)._look_up(done).seen.sum())

    def _with_failures(
        self, manifest: MetaManifest, base: MetaManifest, done: Hashes, failures: pa.Table, salt: str
    ) -> tuple[MetaManifest, dict[str, bytes]]:
        """The manifest with the current failed keys, and their file if it changed."""
        before = replace(self, manifest=base).failed()
        if failures.num_rows == 0 and not failed_keys.failed_hashes(before).among(done).any():
            return manifest, {}
        now = failed_keys.merge_failures(before, done, failures)
        if now.num_rows == 0:
            return replace(manifest, failed=None), {}
        file, data = _encode_failures(now, salt)
        return replace(manifest, failed=file), {file.name: data}

    def _retired(self, manifest: MetaManifest) -> tuple[MetaManifest, tuple[str, ...]]:
        """The manifest with the files it replaces, and the object keys of files that were replaced long ago."""
        before = self.manifest
        replaced = before.names | ({self.checkpoint.text} if self.checkpoint else set())
        retired, gone = retire(before.retired, replaced, manifest.names, manifest.generation)
        return replace(manifest, retired=retired), tuple(self.objects.checkpoint_prefix + name for name in gone)


def _encode_failures(failed: pa.Table, salt: str) -> tuple[FailedFile, bytes]:
    """The manifest's entry for a file of failed keys, and the file."""
    data = failed_keys.encode(failed, salt)
    name = Multihash.sha3_256(data).text
    return failed_keys.summary(name, len(data), failed), data


def _last_run(before: StoredLastRun | None, run: RunInfo, keys: int, failed: int, seconds: float) -> StoredLastRun:
    if before is not None and before.id == run.id and run.id != SEVERAL_RUNS:  # an earlier commit of the same run
        keys, failed, seconds = keys + before.keys, failed + before.failed, max(seconds, before.seconds)
    return StoredLastRun(run.id, run.process_ts, keys, failed, seconds)


def _seen(
    before: Mapping[str, SeenRecord], now: Mapping[str, SeenRecord], positions: Mapping[str, int]
) -> dict[str, SeenRecord]:
    """By dataset id the newest record that runs could see, if it is beyond the position."""
    newest = {**before, **{name: max(seen, before.get(name, seen)) for name, seen in now.items()}}
    return {name: seen for name, seen in newest.items() if seen[0] > positions.get(name, NOTHING)}


class MetaDraft:
    """A step's meta that is not committed yet. Its staging folder is removed when it is closed or garbage collected."""

    def __init__(
        self,
        meta: TransformMeta,
        files: Mapping[str, Path],
        whole: Mapping[str, bytes],
        checkpoint: Checkpoint,
        superseded: tuple[str, ...],
        held: ExitStack,
    ) -> None:
        self.meta = meta
        """The meta after the commit; its keys can be looked up after `put`."""
        self.checkpoint = checkpoint
        self.superseded = superseded
        """Keys of objects that can be deleted after the commit."""
        self._files = files
        self._whole = whole
        self.close = weakref.finalize(self, held.close)

    def put(self, objects: DatasetObjects) -> None:
        """Store the files durably, the manifest last. It can be called again."""
        for name, path in self._files.items():
            key = objects.checkpoint_key(Multihash.parse(name))
            # `put_file` moves the file, so a missing file was already put.
            if path.exists():
                objects.store.put_file(key, path)
            elif objects.store.stat(key) is None:
                raise DerivationError(
                    f"the draft of the transform meta of {objects.folder!r} was closed before it was put",
                    hint="nothing was committed: run the step again",
                    dataset=objects.folder,
                )
        for name, data in self._whole.items():
            objects.store.put_if_absent(objects.checkpoint_key(Multihash.parse(name)), data)

    def discard_superseded(self, objects: DatasetObjects) -> None:
        """Delete the superseded objects. Call it after the commit."""
        for key in self.superseded:
            objects.store.delete(key)

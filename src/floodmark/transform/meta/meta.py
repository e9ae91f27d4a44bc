"""What a step remembers, as of one commit: looking keys up, and preparing what the next commit says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from floodmark.chain.events import Checkpoint
from floodmark.chain.hashes import Multihash
from floodmark.derive import notes
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import sorted_runs
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.storage.scratch import explained, staging_area
from floodmark.storage.tiers import Tiers, retire
from floodmark.transform.errors import KeysChanged, NewVersion, TransformError
from floodmark.transform.meta import failed as failures_of
from floodmark.transform.meta import manifest as manifests
from floodmark.transform.meta.claims import NEVER, NOTHING, SEVERAL, RunInfo
from floodmark.transform.meta.draft import Draft
from floodmark.transform.meta.entries import SPEC, bad_meta, entries_of, entry_files, get_whole, with_entries
from floodmark.transform.meta.failed import no_failures
from floodmark.transform.meta.manifest import Damaged, LastRun, Manifest, Seen

TIERS = Tiers()
_TABLE = pa.schema(
    [
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("process_ts", failures_of.MOMENT),
        ("is_success", pa.bool_()),
        ("run", pa.string()),
    ]
)


@dataclass(frozen=True)
class Found:
    """What is known of some keys, position by position; where a key was never processed its time is 0."""

    seen: Mask
    process_ts: I64
    pinned: I64  # a row for each key, a column for each input; NEVER where the key was never processed


@dataclass(frozen=True)
class Read:
    """What binds a run to the records of its inputs, by dataset id."""

    blocks: Mapping[str, str]  # those that hold the records at the positions
    seen: Mapping[str, Seen]  # the newest record that the run could see


NOT_BOUND = Read({}, {})


@dataclass(frozen=True)
class TransformMeta:
    """A step's meta as of one commit. It never changes, and travels to tasks."""

    objects: DatasetObjects
    checkpoint: Multihash | None
    manifest: Manifest
    tiers: Tiers = TIERS

    @staticmethod
    def load(objects: DatasetObjects, checkpoint: Multihash | None, tiers: Tiers = TIERS) -> TransformMeta:
        """The meta that a commit names, from one small file; empty for None, or when the commit left but a note."""
        if checkpoint is None:
            return TransformMeta(objects, None, Manifest(), tiers)
        facts = notes.parse(get_whole(objects, checkpoint.text), checkpoint.text)
        if facts.kind not in (None, manifests.KIND):
            return TransformMeta(objects, checkpoint, Manifest(), tiers)
        try:
            manifest = manifests.decode(facts)
        except Damaged as error:
            raise bad_meta(objects, checkpoint.text, str(error)) from error
        return TransformMeta(objects, checkpoint, manifest, tiers)

    @property
    def positions(self) -> Mapping[str, int]:
        """For each input (a dataset's id) the offset up to which all records are accounted for."""
        return self.manifest.positions

    @property
    def version(self) -> str | None:
        """The version of the function that the results are of; None before the first commit."""
        return self.manifest.version

    @property
    def keys(self) -> int:
        """How many keys were ever processed by this version."""
        return self.manifest.keys

    @property
    def transform_keys(self) -> pa.Schema:
        """The names and types that keys are hashed with."""
        return self.manifest.transform_keys

    def find(self, hashes: Hashes, inputs: Sequence[str] = ()) -> Found:
        """What is known of keys: when they were processed, and which records of these inputs that run could see."""
        found = self._look_up(hashes)
        pinned = np.full((len(hashes), len(inputs)), NEVER, np.int64)
        if inputs and found.seen.any():
            numbers = np.array(sorted(self.manifest.runs), np.uint32)
            claims = np.array([[self.manifest.runs[int(n)].up_to(i) for i in inputs] for n in numbers], np.int64)
            pinned[found.seen] = claims[np.searchsorted(numbers, found.values["run"][found.seen])]
        return Found(found.seen, found.values["process_ts"], pinned)

    def processed_up_to(self, hashes: Hashes, inputs: Sequence[str]) -> I64:
        """For each key and input the last record that its result accounts for; NEVER if it was never processed."""
        return self.find(hashes, inputs).pinned

    def settled(self, dataset: str) -> int | None:
        """The newest record of an input that every processed key accounts for; None before anything was processed."""
        position = self.positions.get(dataset, NOTHING)
        claims = [max(run.up_to(dataset), position) for run in self.manifest.runs.values()]
        return min(claims, default=None if position == NOTHING else position)

    def is_ahead(self, inputs: Iterable[str]) -> bool:
        """Whether some key may have been processed beyond the positions, so that keys have to be looked up."""
        some = list(inputs)
        return any(run.up_to(i) > self.positions.get(i, -1) for run in self.manifest.runs.values() for i in some)

    def failed(self) -> pa.Table:
        """All failed keys with their errors."""
        file = self.manifest.failed
        if file is None:
            return no_failures(self.transform_keys)
        table = failures_of.decode(get_whole(self.objects, file.name))
        if table.num_rows != file.rows:
            raise bad_meta(self.objects, file.name, f"it has {table.num_rows} keys, should have {file.rows}")
        return table

    def due(self, now_ms: int) -> pa.Table:
        """The failed keys that are to be tried again by now."""
        file = self.manifest.failed
        if file is None or file.next_due is None or file.next_due > now_ms:
            return no_failures(self.transform_keys)
        return failures_of.due(self.failed(), now_ms)

    def to_table(self) -> pa.Table:
        """All processed keys as a table: hash, time, whether the last call succeeded, and the run (null: not kept)."""
        failed = failures_of.failed_hashes(self.failed())
        numbers = sorted(self.manifest.runs)
        names = pa.array([self.manifest.runs[n].id or None for n in numbers], pa.string())
        parts = []
        files, most = entry_files(self.objects), self.tiers.file_entries
        for some in sorted_runs.merge(files, self.manifest.segments, SPEC.order, most):
            run = names.take(pa.array(np.searchsorted(np.array(numbers, np.uint32), some["run"])))
            columns = [
                pa.array(some["high"]),
                pa.array(some["low"]),
                pa.array(some["process_ts"]).cast(failures_of.MOMENT),
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
        read: Read = NOT_BOUND,
    ) -> Draft:
        """The meta once a run has processed these keys, of which `failures` failed.

        The positions are those that hold once this is committed: every record up to them is accounted for. All other
        processed keys are failed no longer.
        """
        before = self.manifest
        keys = self._keys_of(failures)
        if before.version is not None and before.version != version:
            raise NewVersion(
                f"the meta of {self.objects.folder!r} is of version {before.version!r}, not {version!r}",
                hint="a new version starts from fresh()",
                version=version,
            )
        if before.version is not None and keys != before.transform_keys:
            raise KeysChanged(
                f"the keys of {self.objects.folder!r} are hashed as {before.transform_keys}, not as {keys}",
                hint="`floodmark reset STEP` makes everything be computed again with the new keys",
                dataset=self.objects.folder,
            )
        base = replace(before, version=version, transform_keys=keys, name=before.name if name is None else name)
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
        read: Read = NOT_BOUND,
    ) -> Draft:
        """The same for a new version or a reset: whatever was processed before is forgotten."""
        before = self.manifest
        base = Manifest(
            transform_keys=self._keys_of(failures),
            version=version,
            name=before.name if name is None else name,
            next_run=before.next_run,
            generation=before.generation,
        )
        return self._draft(base, run, processed, failures, positions, seconds, read)

    def _draft(
        self,
        base: Manifest,
        run: RunInfo,
        processed: Iterable[Hashes],
        failures: pa.Table,
        positions: Mapping[str, int],
        seconds: float,
        read: Read,
    ) -> Draft:
        failing = failures_of.failed_hashes(failures)
        # A failed key without an entry would count as one that was never processed.
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
                keys=base.keys + self._never_seen(base, done),
                last_run=_last_run(self.manifest.last_run, run, len(done), len(failing), seconds),
                generation=base.generation + 1,
            )
            entries = entries_of(done, run.process_ts, number)
            with explained("transform meta", folder):
                manifest, files = with_entries(self.objects, folder, manifest, entries, salt, self.tiers)
            manifest, whole = self._with_failures(manifest, base, done, failures, salt)
            manifest, superseded = self._retired(manifest)
            data = manifests.encode(manifest)
            checkpoint = Checkpoint(Multihash.sha3_256(data), len(data))
            whole[checkpoint.physical_hash.text] = data
            meta = replace(self, checkpoint=checkpoint.physical_hash, manifest=manifest)
            paths = {file.name: folder / file.name for file in files}
            return Draft(meta, paths, whole, checkpoint, superseded, held.pop_all())

    def _keys_of(self, failures: pa.Table) -> pa.Schema:
        if problem := failures_of.problem_of(failures):
            raise TransformError(
                problem, hint="failed_schema(transform_keys) gives the columns", dataset=self.objects.folder
            )
        return failures_of.keys_schema(failures.schema)

    def _look_up(self, hashes: Hashes) -> sorted_runs.Found:
        return sorted_runs.find(entry_files(self.objects), self.manifest.segments, [hashes.high, hashes.low], SPEC)

    def _never_seen(self, base: Manifest, done: Hashes) -> int:
        if not base.segments:
            return len(done)
        return len(done) - int(replace(self, manifest=base)._look_up(done).seen.sum())

    def _with_failures(
        self, manifest: Manifest, base: Manifest, done: Hashes, failures: pa.Table, salt: str
    ) -> tuple[Manifest, dict[str, bytes]]:
        """The manifest with the failed keys there are now, and their file if it is another."""
        before = replace(self, manifest=base).failed()
        if failures.num_rows == 0 and not failures_of.failed_hashes(before).among(done).any():
            return manifest, {}
        now = failures_of.after(before, done, failures)
        if now.num_rows == 0:
            return replace(manifest, failed=None), {}
        data = failures_of.encode(now, salt)
        name = Multihash.sha3_256(data).text
        return replace(manifest, failed=failures_of.summary(name, len(data), now)), {name: data}

    def _retired(self, manifest: Manifest) -> tuple[Manifest, tuple[str, ...]]:
        """The manifest knowing what it replaces, and the keys of what was replaced long enough ago."""
        before = self.manifest
        replaced = before.names | ({self.checkpoint.text} if self.checkpoint else set())
        retired, gone = retire(before.retired, replaced, manifest.names, manifest.generation)
        return replace(manifest, retired=retired), tuple(self.objects.checkpoint_prefix + name for name in gone)


def _last_run(before: LastRun | None, run: RunInfo, keys: int, failed: int, seconds: float) -> LastRun:
    if before is not None and before.id == run.id and run.id != SEVERAL:  # an earlier commit of the same run
        keys, failed, seconds = keys + before.keys, failed + before.failed, max(seconds, before.seconds)
    return LastRun(run.id, run.process_ts, keys, failed, seconds)


def _seen(before: Mapping[str, Seen], now: Mapping[str, Seen], positions: Mapping[str, int]) -> dict[str, Seen]:
    """The newest records that runs could see, where that is beyond the positions."""
    newest = {**before, **{name: max(seen, before.get(name, seen)) for name, seen in now.items()}}
    return {name: seen for name, seen in newest.items() if seen[0] > positions.get(name, NOTHING)}

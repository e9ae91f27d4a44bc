"""Replays what the newest meta of a step claims about all keys, to find missing rows and rows that should be gone.

A transaction only covers the keys that it wrote. The transform meta covers all keys: it has the run that processed each
key last, and the position of each input up to which all keys are processed. So a row that was never written is found as
of the records that its run read, no matter how far the step is behind its inputs now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.chain.events import ExecuteTransform
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.derive.changed_keys import HashGroups, find_changed_keys
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.positions import NO_POSITION
from floodmark.engine.rounds import TaskRunner
from floodmark.ledger.objects import DatasetObjects
from floodmark.provenance.comparison import Comparison, MetaContradiction, NotReplayable
from floodmark.provenance.origin import NO_POSITIONS, InputLink, Origin, explain_missing, origin_of, was_replaced
from floodmark.provenance.replay_steps import KeysReplay, StepReplay, find_input_layout
from floodmark.provenance.transactions import OpenedDataset, Transaction
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transforms.commit import RunProvenance
from floodmark.transforms.existing_keys import find_existing_keys
from floodmark.transforms.failed_keys import failed_hashes, is_stale
from floodmark.transforms.join_keys import find_parts
from floodmark.transforms.live_keys import KeySet, read_output_keys
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.snapshot import RESET

_INTERRUPTED = "a run was interrupted between commits of its outputs: run the step, then replay again"

NO_CLAIM = -1
"""The state number of a key without claims."""


@dataclass(frozen=True)
class CommittedRun:
    """A commit of a step's first output, and the provenance that its run recorded."""

    transaction: Transaction
    made: RunProvenance

    def links(self, like: Sequence[InputLink]) -> tuple[InputLink, ...]:
        """The inputs at the positions that its run read."""
        made = self.made
        return tuple(
            replace(link, position=made.last_offsets[at], block=made.blocks[at], purged=made.purged[at])
            for link in like
            for at in [link.dataset_id]
        )


@dataclass(frozen=True)
class ClaimedKeys:
    """Keys that one run processed last and that no transaction of this run has."""

    replay: KeysReplay
    keys: pa.Table
    is_called: Mask  # the others have no rows: they never succeeded, or the step's filters exclude them

    def compared(self) -> tuple[int, Comparison]:
        """The number of keys, and the comparison of their rows with the rows that they should have."""
        return self.keys.num_rows, self.replay.compare_now(self.keys, self.keys.filter(pa.array(self.is_called)))


def replay_claims(replaying: StepReplay, output: OpenedDataset, origin: Origin) -> Iterator[ClaimedKeys]:
    """The claims about keys that no transaction of the same run has. Raises at the end if some cannot be checked."""
    first = output if origin.primary is None else replaying.datasets.of_id(origin.primary, "")
    if first is None:
        raise NotReplayable("the first output of its step, which has the list of processed keys, was dropped")
    commits = _commits(first)
    checkpoint = commits[0].transaction.event.new_checkpoint
    assert checkpoint is not None
    meta = TransformMeta.load(first.snapshot.objects, checkpoint.physical_hash)
    if meta.manifest.last_run is None:
        return  # all runs were refused: there are no results
    newest = commits[0].transaction if first is output else output.newest
    assert newest is not None
    origin = origin_of(output, newest)
    if origin.doubts:
        raise NotReplayable(origin.doubts[0])
    if origin.noted_version != commits[0].made.version:
        raise NotReplayable(_INTERRUPTED)
    links = commits[0].links(origin.links)
    # After an interrupted run, other outputs may be ahead of the first. The meta has no claims about that part yet.
    is_ahead = _positions_of(links) != _positions_of(origin.links)
    origin = replace(origin, links=links)
    replay = KeysReplay(replaying, output, newest, origin, output.layout_at(newest.sequence_number))
    yield from _Claims(replay, commits, meta, first is output, is_ahead).parts()


def _commits(first: OpenedDataset) -> list[CommittedRun]:
    """The commits of a step's current version, newest first, back to its first run or its reset."""
    found: list[CommittedRun] = []
    objects, end = first.snapshot.objects, first.snapshot.next_offset
    for block_hash, _, block in walk_back(objects.get_block, first.snapshot.head):
        event = block.event
        if not isinstance(event, ExecuteTransform) or event.new_checkpoint is None:
            continue
        checkpoint = event.new_checkpoint.physical_hash
        made = RunProvenance.beside(objects, checkpoint)
        if made is None and not found and _is_reset(objects, checkpoint):
            continue  # no claims since the reset; the rows are unchanged
        if made is not None and not made.has_claims:
            continue
        if made is None or (found and made.version != found[0].made.version):
            break
        transaction = Transaction(block_hash, block.sequence_number, block.system_time, end, end, event)
        found.append(CommittedRun(transaction, made))
    if not found:
        raise NotReplayable(NO_POSITIONS)
    return found


def _is_reset(objects: DatasetObjects, checkpoint: Multihash) -> bool:
    return (TransformMeta.load(objects, checkpoint).version or "").startswith(RESET)


@dataclass(frozen=True)
class _Claims:
    """The claims of a step's meta, compared with one of its outputs."""

    replay: KeysReplay  # as of the newest commit
    commits: Sequence[CommittedRun]
    meta: TransformMeta
    is_first: bool  # whether the output is the step's first output, which has these commits
    is_ahead: bool

    def parts(self) -> Iterator[ClaimedKeys]:
        step, declared, inputs = self.replay.known()
        shape = self.replay.shape(declared, self.meta.transform_keys, inputs)
        there = self._existing_keys(shape, inputs)
        there = KeySet(*_filtered_keys(there, self.replay.kept(step, declared, there.table)))
        keys = KeySet.joined([there, self._having_rows(shape)], shape.keys)
        states = self._states(shape, keys, inputs)
        states[self._is_compared(shape, keys, states, inputs)] = NO_CLAIM
        failures = self.meta.failed()
        stale = failed_hashes(failures).take(is_stale(failures))
        states[keys.hashes.among(stale)] = NO_CLAIM  # their rows are those of an older run
        is_called = keys.hashes.among(there.hashes) & ~keys.hashes.among(failed_hashes(failures))
        for number in np.unique(states[states != NO_CLAIM]).tolist():
            mine = states == number
            yield ClaimedKeys(self._as_of(number), keys.table.filter(pa.array(mine)), is_called[mine])
        if not self.is_ahead and (message := self._contradiction(inputs)) is not None:
            raise MetaContradiction(message)
        for commit in self.commits:
            if self._has_lost(commit, inputs):
                continue  # the keys that it processed were processed again
            for given, link in zip(inputs, commit.links(self.links), strict=True):
                if (missing := explain_missing(given, link)) is not None:
                    raise NotReplayable(f"input {given.name!r}: {missing}")

    @property
    def links(self) -> tuple[InputLink, ...]:
        return self.replay.origin.links

    @property
    def runner(self) -> TaskRunner:
        return TaskRunner(self.replay.replaying.session)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The position of each input up to which all keys are processed."""
        return tuple(self.meta.positions.get(link.dataset_id, NO_POSITION) for link in self.links)

    @cached_property
    def pins(self) -> I64:
        """The position of each input that each commit's run read."""
        return np.array([_positions_of(commit.links(self.links)) for commit in self.commits], np.int64)

    def _has_lost(self, commit: CommittedRun, inputs: Sequence[OpenedDataset]) -> bool:
        """Whether an input has lost records that the run of a commit read."""
        return any(was_replaced(given, link) for given, link in zip(inputs, commit.links(self.links), strict=True))

    def _as_of(self, number: int) -> KeysReplay:
        commit = self.commits[number]
        origin = replace(self.replay.origin, links=commit.links(self.links))
        # Other outputs have their own blocks; which run wrote which of these was not recorded.
        transaction = commit.transaction if self.is_first else self.replay.transaction
        return replace(self.replay, origin=origin, transaction=transaction)

    def _existing_keys(self, shape: KeyShape, inputs: Sequence[OpenedDataset]) -> KeySet:
        """All keys that the inputs had at the positions, and at the later positions that runs read."""
        known = np.array([not self._has_lost(commit, inputs) for commit in self.commits], np.bool_)
        ahead = self.pins[known & (self.pins > np.array(self.positions)).any(axis=1)]
        moments = {self.positions, _positions_of(self.links), *map(tuple, ahead.tolist())}
        found = [find_existing_keys(shape, _inputs_at(inputs, moment), self.runner) for moment in sorted(moments)]
        return KeySet.joined(found, shape.keys)

    def _having_rows(self, shape: KeyShape) -> KeySet:
        output = self.replay.output
        return read_output_keys(output.as_of(output.snapshot.next_offset - 1), shape, None, self.runner)

    def _states(self, shape: KeyShape, keys: KeySet, inputs: Sequence[OpenedDataset]) -> I64:
        """For each key, the number of the commit whose run processed it last; NOWHERE if it is not due yet."""
        ids = [link.dataset_id for link in self.links]
        found = self.meta.find(keys.hashes, ids)
        states: I64 = np.zeros(len(keys), np.int64)
        # No run has processed them. A run should have, unless they changed after the positions.
        never = np.flatnonzero(~found.seen)
        states[never[self._is_changed(shape, keys.table.take(pa.array(never)), inputs)]] = NO_CLAIM
        begun = np.array([commit.made.process_ts for commit in self.commits], np.int64)
        for moment in np.unique(found.process_ts[found.seen]).tolist():
            mine = np.flatnonzero(found.seen & (found.process_ts == moment))
            some = np.flatnonzero(begun == moment)
            for at, claim in _by_claim(mine, found.last_offsets[mine]):
                states[at] = self._one_of(some, claim)
        return states

    def _one_of(self, commits: I64, claim: I64) -> int:
        """The commit of a run, among the commits of runs that started at the same time. Usually there is only one."""
        alike: dict[object, int] = {self._seen_inputs(number): number for number in reversed(commits.tolist())}
        if len(alike) > 1:
            alike = {seen: n for seen, n in alike.items() if (self.pins[n] == claim).all()}
        if len(alike) != 1:
            raise NotReplayable("which of its runs processed some of its keys is no longer known")
        [number] = alike.values()
        return number

    def _seen_inputs(self, number: int) -> tuple[tuple[int, str | None], ...]:
        return tuple((link.position, link.block) for link in self.commits[number].links(self.links))

    def _is_changed(self, shape: KeyShape, keys: pa.Table, inputs: Sequence[OpenedDataset]) -> Mask:
        """The keys with records after the positions, among the records that the newest run read."""
        found = np.zeros(keys.num_rows, np.bool_)
        if keys.num_rows:
            snapshots = _inputs_at(inputs, _positions_of(self.links))
            for number, given in enumerate(snapshots):
                changed = find_changed_keys(given, shape, number, self.positions[number], self.runner)
                parts = find_parts(shape, snapshots, number, keys, self.runner)
                found |= parts.of_any(parts.hashes.among(changed.hashes))
        return found

    def _is_compared(self, shape: KeyShape, keys: KeySet, states: I64, inputs: Sequence[OpenedDataset]) -> Mask:
        """The keys with records in a transaction of the same or a newer run. These were already compared."""
        spoken = np.zeros(len(keys), np.bool_)
        numbers = self._transactions(shape, keys)
        looked = np.flatnonzero((numbers >= 0) & (states != NO_CLAIM))
        pairs, which = np.unique(np.stack([numbers[looked], states[looked]], axis=1), axis=0, return_inverse=True)
        for n, (transaction, state) in enumerate(pairs.tolist()):
            spoken[looked[which.ravel() == n]] = self._covers(transaction, state, inputs)
        return spoken

    def _transactions(self, shape: KeyShape, keys: KeySet) -> I64:
        """For each key, the number of the transaction with its newest record; -1 if it has no record."""
        output = self.replay.output
        if self.replay.layout is None or not self._output_transactions:
            return np.full(len(keys), -1, np.int64)
        given, offset = output.as_of(output.snapshot.next_offset - 1), output.layout.vocab.offset
        records = given.task_input.scan(given.records(0), [offset, *shape.names]).to_table()
        hashes = shape.hash_keys(records.select(list(shape.names)).cast(shape.keys))
        groups = HashGroups.of(hashes)
        last = groups.greatest(records.column(offset).to_numpy())
        at = keys.hashes.positions_in(hashes.take(groups.first))
        ends = np.array([transaction.end for transaction in self._output_transactions], np.int64)
        found: I64 = np.where(at < 0, -1, np.searchsorted(ends, last[at], side="right")) if len(last) else at
        return found

    @cached_property
    def _output_transactions(self) -> list[Transaction]:
        return list(self.replay.output.transactions())

    def _covers(self, number: int, state: int, inputs: Sequence[OpenedDataset]) -> bool:
        """Whether a transaction belongs to the run that processed a key last, or to a run that read further."""
        origin = origin_of(self.replay.output, self._output_transactions[number])
        if origin.doubts or origin.noted_version != self.replay.origin.noted_version:
            return False
        if any(was_replaced(given, link) for given, link in zip(inputs, origin.links, strict=True)):
            return False
        mine, theirs = self.commits[state].links(self.links), origin.links
        if _positions_of(mine) != _positions_of(theirs):
            return any(a.position < b.position for a, b in zip(mine, theirs, strict=True))
        pairs = zip(inputs, mine, theirs, strict=True)
        try:
            return all(find_input_layout(given, a) == find_input_layout(given, b) for given, a, b in pairs)
        except NotReplayable:
            return False

    def _contradiction(self, inputs: Sequence[OpenedDataset]) -> str | None:
        """How the positions on the chain contradict the meta of the same commit; None when they agree."""
        event = self.replay.transaction.event
        assert isinstance(event, ExecuteTransform)
        items = {str(item.dataset_id): item for item in event.query_inputs}
        for given, link, position in zip(inputs, self.links, self.positions, strict=True):
            item = items[link.dataset_id]
            if item.last_block_hash is not None and not given.has_records_of(item.last_block_hash.text):
                continue  # an input lost these records, and the positions of a chain cannot move back
            on_chain = NO_POSITION if item.last_offset is None else item.last_offset
            done = _whole_blocks(given, min(position, link.position), link.position)
            if on_chain > done and not self.is_first:
                raise NotReplayable(_INTERRUPTED)
            if on_chain != done:
                return (
                    f"according to its block, input {given.name!r} was read up to record {on_chain}; according to the "
                    f"meta of the step, up to record {done}"
                )
        return None


def _whole_blocks(given: OpenedDataset, position: int, head: int) -> int:
    """The last record of the newest block that ends at or before a position, when `head` was the newest record."""
    if position >= head:
        return head
    ends = given.slices.column("end").to_numpy()
    whole = int(np.searchsorted(ends, position + 1, side="right"))
    return NO_POSITION if whole == 0 else int(ends[whole - 1]) - 1


def _positions_of(links: Sequence[InputLink]) -> tuple[int, ...]:
    return tuple(link.position for link in links)


def _inputs_at(inputs: Sequence[OpenedDataset], moment: Sequence[int]) -> list[InputSnapshot]:
    return [given.as_of(position) for given, position in zip(inputs, moment, strict=True)]


def _filtered_keys(keys: KeySet, table: pa.Table) -> tuple[pa.Table, Hashes]:
    hashes = row_hash.hash_rows(table, table.column_names) if table.num_rows != len(keys) else keys.hashes
    return table, hashes


def _by_claim(at: I64, claims: I64) -> Iterator[tuple[I64, I64]]:
    """The indices of keys, grouped by equal claims."""
    different, which = np.unique(claims, axis=0, return_inverse=True)
    for number, claim in enumerate(different):
        yield at[which.ravel() == number], claim

"""What a step's newest commit claims of all keys, computed again: rows that no block has, and such as had to go.

A transaction speaks of the keys that it has written. The transform meta speaks of all: which run has processed a key
last, and up to which record every key of every input is accounted for. So a row that was never written is missed as of
the very records that its run had seen, however far the step is behind its inputs by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.chain.events import ExecuteTransform
from floodmark.chain.hashes import Multihash
from floodmark.chain.walk import walk_back
from floodmark.derive.positions import NOTHING
from floodmark.engine.rounds import Runner
from floodmark.ledger.keys import hashing
from floodmark.ledger.objects import DatasetObjects
from floodmark.provenance.comparing import Compared
from floodmark.provenance.inputs import missing_of
from floodmark.provenance.opened import Opened, Transaction
from floodmark.provenance.origin import NOT_PINNED, Link, Origin, origin_of
from floodmark.provenance.replay_steps import KeysReplay, StepReplay, all_keys, layout_then
from floodmark.provenance.replayed import Contradicted, NotReplayable
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transform.changed.alive import Keys, output_keys
from floodmark.transform.changed.changes import Groups, changed_keys
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.made import Made
from floodmark.transform.meta import TransformMeta
from floodmark.transform.meta.failed import failed_hashes
from floodmark.transform.pinned import RESET

_CUT_SHORT = "a run was cut short between the outputs of its step: run the step, and ask again"

NOWHERE = -1
"""The number of the state of a key that nothing is claimed of."""


@dataclass(frozen=True)
class Committed:
    """A commit of a step's first output, and what was noted beside it."""

    transaction: Transaction
    made: Made

    def links(self, like: Sequence[Link]) -> tuple[Link, ...]:
        """The inputs as its run saw them."""
        made = self.made
        return tuple(
            replace(link, position=made.pinned[at], block=made.blocks[at], purged=made.purged[at])
            for link in like
            for at in [link.dataset_id]
        )


@dataclass(frozen=True)
class Claimed:
    """Keys that one run has processed last, and that no transaction of that run speaks of."""

    replay: KeysReplay
    keys: pa.Table
    is_called: Mask  # the others have no rows: they failed, or the step's own filters leave them out

    def compared(self) -> tuple[int, Compared]:
        """How many keys, and how their rows compare with those that they should have."""
        return self.keys.num_rows, self.replay.compare_now(self.keys, self.keys.filter(pa.array(self.is_called)))


def claimed(replaying: StepReplay, output: Opened, origin: Origin) -> Iterator[Claimed]:
    """What is claimed of keys that no transaction of the same run speaks of; in the end, what nobody can tell."""
    first = output if origin.primary is None else replaying.datasets.of_id(origin.primary, "")
    if first is None:
        raise NotReplayable("the first output of its step was dropped, which knows what was processed")
    commits = _commits(first)
    newest = commits[0].transaction if first is output else output.newest
    assert newest is not None
    origin = origin_of(output, newest)
    if origin.doubts:
        raise NotReplayable(origin.doubts[0])
    if origin.noted_version != commits[0].made.version:
        raise NotReplayable(_CUT_SHORT)
    links = commits[0].links(origin.links)
    # Other outputs may be ahead of the first, when a run was cut short between them: of that, nothing is claimed yet.
    is_ahead = _pins(links) != _pins(origin.links)
    origin = replace(origin, links=links)
    checkpoint = commits[0].transaction.event.new_checkpoint
    assert checkpoint is not None
    meta = TransformMeta.load(first.snapshot.objects, checkpoint.physical_hash)
    replay = KeysReplay(replaying, output, newest, origin, output.layout_at(newest.sequence_number))
    yield from _Claims(replay, commits, meta, first is output, is_ahead).parts()


def _commits(first: Opened) -> list[Committed]:
    """The commits of a step's present version, newest first, back to where it has begun or was reset."""
    found: list[Committed] = []
    objects, end = first.snapshot.objects, first.snapshot.next_offset
    for block_hash, _, block in walk_back(objects.get_block, first.snapshot.head):
        event = block.event
        if not isinstance(event, ExecuteTransform) or event.new_checkpoint is None:
            continue
        checkpoint = event.new_checkpoint.physical_hash
        made = Made.beside(objects, checkpoint)
        if made is None and not found and _is_reset(objects, checkpoint):
            continue  # nothing is claimed since; the rows are still those of before
        if made is None or (found and made.version != found[0].made.version):
            break
        transaction = Transaction(block_hash, block.sequence_number, block.system_time, end, end, event)
        found.append(Committed(transaction, made))
    if not found:
        raise NotReplayable(NOT_PINNED)
    return found


def _is_reset(objects: DatasetObjects, checkpoint: Multihash) -> bool:
    return (TransformMeta.load(objects, checkpoint).version or "").startswith(RESET)


@dataclass(frozen=True)
class _Claims:
    """What the meta of a step says, against one of its outputs."""

    replay: KeysReplay  # as of the newest commit
    commits: Sequence[Committed]
    meta: TransformMeta
    is_first: bool  # whether the output is the step's first, of which the commits are
    is_ahead: bool

    def parts(self) -> Iterator[Claimed]:
        step, declared, inputs = self.replay.known()
        shape = self.replay.shape(declared, self.meta.transform_keys, inputs)
        there = self._there(shape, inputs)
        there = Keys(*_kept(there, self.replay.kept(step, declared, there.table)))
        keys = Keys.joined([there, self._having_rows(shape)], shape.keys)
        states = self._states(shape, keys, inputs)
        states[self._is_spoken_of(shape, keys, states, inputs)] = NOWHERE
        is_called = keys.hashes.among(there.hashes) & ~keys.hashes.among(failed_hashes(self.meta.failed()))
        for number in np.unique(states[states != NOWHERE]).tolist():
            mine = states == number
            yield Claimed(self._as_of(number), keys.table.filter(pa.array(mine)), is_called[mine])
        if not self.is_ahead and (said := self._contradiction(inputs)) is not None:
            raise Contradicted(said)
        for commit in self.commits:
            for given, link in zip(inputs, commit.links(self.links), strict=True):
                if (missing := missing_of(given, link)) is not None:
                    raise NotReplayable(f"input {given.name!r}: {missing}")

    @property
    def links(self) -> tuple[Link, ...]:
        return self.replay.origin.links

    @property
    def runner(self) -> Runner:
        return Runner(self.replay.replaying.session)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Up to which record of each input all keys are accounted for."""
        return tuple(self.meta.positions.get(link.dataset_id, NOTHING) for link in self.links)

    @cached_property
    def pins(self) -> I64:
        """What each commit's run saw of each input."""
        return np.array([_pins(commit.links(self.links)) for commit in self.commits], np.int64)

    def _as_of(self, number: int) -> KeysReplay:
        commit = self.commits[number]
        origin = replace(self.replay.origin, links=commit.links(self.links))
        # Other outputs have blocks of their own, and nobody noted which is of which run.
        transaction = commit.transaction if self.is_first else self.replay.transaction
        return replace(self.replay, origin=origin, transaction=transaction)

    def _there(self, shape: Shape, inputs: Sequence[Opened]) -> Keys:
        """All keys that inputs had as of the positions, and as of what runs beyond these could see."""
        ahead = self.pins[(self.pins > np.array(self.positions)).any(axis=1)]
        moments = {self.positions, _pins(self.links), *map(tuple, ahead.tolist())}
        found = [all_keys(shape, _pinned(inputs, moment), self.runner) for moment in sorted(moments)]
        return Keys.joined(found, shape.keys)

    def _having_rows(self, shape: Shape) -> Keys:
        output = self.replay.output
        return output_keys(output.as_of(output.snapshot.next_offset - 1), shape, None, self.runner)

    def _states(self, shape: Shape, keys: Keys, inputs: Sequence[Opened]) -> I64:
        """For each key the number of the commit whose run has processed it last; NOWHERE if it is not its turn yet."""
        ids = [link.dataset_id for link in self.links]
        found = self.meta.find(keys.hashes, ids)
        states: I64 = np.zeros(len(keys), np.int64)
        # Nobody has processed them. If they have not changed beyond the positions, somebody should have.
        never = np.flatnonzero(~found.seen)
        states[never[self._is_changed(shape, keys.table.take(pa.array(never)), inputs)]] = NOWHERE
        begun = np.array([commit.made.process_ts for commit in self.commits], np.int64)
        for moment in np.unique(found.process_ts[found.seen]).tolist():
            mine = np.flatnonzero(found.seen & (found.process_ts == moment))
            some = np.flatnonzero(begun == moment)
            for at, claim in _by_claim(mine, found.pinned[mine]):
                states[at] = self._one_of(some, claim)
        return states

    def _one_of(self, commits: I64, claim: I64) -> int:
        """The commit of a run among those that began at its time: mostly there are no others."""
        alike: dict[object, int] = {self._said(number): number for number in reversed(commits.tolist())}
        if len(alike) > 1:
            alike = {said: n for said, n in alike.items() if (self.pins[n] == claim).all()}
        if len(alike) != 1:
            raise NotReplayable("which of its runs has processed some of its keys cannot be told any more")
        [number] = alike.values()
        return number

    def _said(self, number: int) -> tuple[tuple[int, str | None], ...]:
        return tuple((link.position, link.block) for link in self.commits[number].links(self.links))

    def _is_changed(self, shape: Shape, keys: pa.Table, inputs: Sequence[Opened]) -> Mask:
        """Which keys have records beyond the positions, among those that the newest run could see."""
        found = np.zeros(keys.num_rows, np.bool_)
        if keys.num_rows:
            for number, given in enumerate(_pinned(inputs, _pins(self.links))):
                changed = changed_keys(given, shape, number, self.positions[number], self.runner)
                found |= shape.hash_part(number, keys).among(changed.hashes)
        return found

    def _is_spoken_of(self, shape: Shape, keys: Keys, states: I64, inputs: Sequence[Opened]) -> Mask:
        """Of which keys a transaction of the same run has records, or of one that is newer: these were compared."""
        spoken = np.zeros(len(keys), np.bool_)
        numbers = self._transactions(shape, keys)
        looked = np.flatnonzero((numbers >= 0) & (states != NOWHERE))
        pairs, which = np.unique(np.stack([numbers[looked], states[looked]], axis=1), axis=0, return_inverse=True)
        for n, (transaction, state) in enumerate(pairs.tolist()):
            spoken[looked[which.ravel() == n]] = self._covers(transaction, state, inputs)
        return spoken

    def _transactions(self, shape: Shape, keys: Keys) -> I64:
        """For each key the number of the transaction with its newest record; -1 where there is none."""
        output = self.replay.output
        if self.replay.layout is None or not self._spoken:
            return np.full(len(keys), -1, np.int64)
        given, offset = output.as_of(output.snapshot.next_offset - 1), output.layout.vocab.offset
        records = given.for_tasks.scan(given.records(0), [offset, *shape.names]).to_table()
        hashes = shape.hash_keys(records.select(list(shape.names)).cast(shape.keys))
        groups = Groups.of(hashes)
        last = groups.greatest(records.column(offset).to_numpy())
        at = keys.hashes.positions_in(hashes.take(groups.first))
        ends = np.array([transaction.end for transaction in self._spoken], np.int64)
        found: I64 = np.where(at < 0, -1, np.searchsorted(ends, last[at], side="right")) if len(last) else at
        return found

    @cached_property
    def _spoken(self) -> list[Transaction]:
        return list(self.replay.output.transactions())

    def _covers(self, number: int, state: int, inputs: Sequence[Opened]) -> bool:
        """Whether a transaction is of the run that a key was processed by last, or of one that came no further."""
        origin = origin_of(self.replay.output, self._spoken[number])
        if origin.doubts or origin.noted_version != self.replay.origin.noted_version:
            return False
        mine, theirs = self.commits[state].links(self.links), origin.links
        if _pins(mine) != _pins(theirs):
            return any(a.position < b.position for a, b in zip(mine, theirs, strict=True))
        pairs = zip(inputs, mine, theirs, strict=True)
        try:
            return all(layout_then(given, a) == layout_then(given, b) for given, a, b in pairs)
        except NotReplayable:
            return False

    def _contradiction(self, inputs: Sequence[Opened]) -> str | None:
        """What the chain says of the positions, if it is not what the meta of the same commit does."""
        event = self.replay.transaction.event
        assert isinstance(event, ExecuteTransform)
        for item, given, link, position in zip(event.query_inputs, inputs, self.links, self.positions, strict=True):
            said = NOTHING if item.last_offset is None else item.last_offset
            done = _whole_blocks(given, min(position, link.position), link.position)
            if said > done and not self.is_first:
                raise NotReplayable(_CUT_SHORT)
            if said != done:
                return (
                    f"its block says that input {given.name!r} was read up to record {said}, and what the step has "
                    f"noted there says {done}"
                )
        return None


def _whole_blocks(given: Opened, position: int, head: int) -> int:
    """The newest record of the blocks all of whose records lie up to a position, when `head` was the newest."""
    if position >= head:
        return head
    ends = given.slices.column("end").to_numpy()
    whole = int(np.searchsorted(ends, position + 1, side="right"))
    return NOTHING if whole == 0 else int(ends[whole - 1]) - 1


def _pins(links: Sequence[Link]) -> tuple[int, ...]:
    return tuple(link.position for link in links)


def _pinned(inputs: Sequence[Opened], moment: Sequence[int]) -> list[PinnedInput]:
    return [given.as_of(position) for given, position in zip(inputs, moment, strict=True)]


def _kept(keys: Keys, table: pa.Table) -> tuple[pa.Table, Hashes]:
    hashes = hashing.hash_rows(table, table.column_names) if table.num_rows != len(keys) else keys.hashes
    return table, hashes


def _by_claim(at: I64, claims: I64) -> Iterator[tuple[I64, I64]]:
    """Positions by what is claimed of them."""
    different, which = np.unique(claims, axis=0, return_inverse=True)
    for number, claim in enumerate(different):
        yield at[which.ravel() == number], claim

"""Verify: every block against the rules, every file against its hashes; says exactly what is wrong and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from floodmark.chain import rules
from floodmark.chain.errors import BadHash, ChainError
from floodmark.chain.events import AddData, Checkpoint, ExecuteTransform, MetadataBlock, source_state
from floodmark.chain.hashes import Multihash
from floodmark.chain.state import EMPTY, ChainState, advance
from floodmark.chain.walk import walk_back
from floodmark.engine import Progress, run, run_here
from floodmark.ledger import snapshot as snapshots
from floodmark.ledger.attributes import purged_before
from floodmark.ledger.layout import Layout, from_odf, vocabulary
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.slice_check import CheckpointCheck, Problem, SliceCheck, check
from floodmark.storage.errors import ObjectNotFound, StorageError

SPARK_BYTES = 2 << 30
"""Above this much data the files are checked by Spark's tasks."""

_THREADS = 2


@dataclass(frozen=True)
class Verification:
    """What a verification looked at and what it found."""

    name: str
    blocks: int = 0
    slices: int = 0
    checkpoints: int = 0
    bytes: int = 0
    purged_slices: int = 0
    problems: tuple[Problem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing was found to be wrong."""
        return not self.problems


@dataclass
class _Chain:
    """A chain's blocks, oldest first, as far back as they could be read."""

    blocks: list[tuple[Multihash, MetadataBlock]]
    problems: list[Problem]
    reaches_seed: bool


def verify(name: str, objects: DatasetObjects, runtime: Runtime, progress: Progress) -> Verification:
    """Check one dataset as of its present head."""
    try:
        head = objects.read_head()
    except ChainError as error:
        return Verification(name, problems=(Problem("head", objects.head_key, str(error)),))
    if head is None:
        problem = Problem("head", objects.head_key, "there is no head, so the dataset has no newest block")
        return Verification(name, problems=(problem,))
    chain = _read_chain(objects, head)
    problems = list(chain.problems)
    checks: list[SliceCheck | CheckpointCheck] = []
    state = EMPTY
    states = [source_state(event) for event in _events(chain)]
    gone = max((purged_before(s) for s in states if s is not None), default=0)
    purged = 0
    checkpoints: dict[Multihash, tuple[int, Checkpoint]] = {}
    for block_hash, block in chain.blocks:
        if chain.reaches_seed:
            problems += [_broken(block_hash, block, error) for error in rules.problems(state, block)]
        state = advance(state, block_hash, block)
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        if event.new_data is not None:
            if event.new_data.offset_interval.end < gone:
                purged += 1
            else:
                layout = _layout(state) if chain.reaches_seed else None  # what gave the columns may be out of reach
                checks.append(SliceCheck(objects, block.sequence_number, block_hash, event.new_data, layout))
        if event.new_checkpoint is not None:
            checkpoints[event.new_checkpoint.physical_hash] = (block.sequence_number, event.new_checkpoint)
    checks += _checkpoint_checks(objects, checkpoints, state.checkpoint)
    size = sum(c.size for c in checks)
    runner: Any = partial(run, session=runtime.session) if size > SPARK_BYTES else partial(run_here, threads=_THREADS)
    progress.start(f"verifying {name}", sum(map(_rows, checks)))
    try:
        for found in runner(checks, check, progress=progress, weight=_rows):
            problems += found
    finally:
        progress.finish()
    if not problems:
        problems += _check_index(objects, head, chain)
    return Verification(
        name=name,
        blocks=len(chain.blocks),
        slices=sum(isinstance(c, SliceCheck) for c in checks),
        checkpoints=sum(isinstance(c, CheckpointCheck) for c in checks),
        bytes=size,
        purged_slices=purged,
        problems=tuple(problems),
    )


def _read_chain(objects: DatasetObjects, head: Multihash) -> _Chain:
    blocks: list[tuple[Multihash, MetadataBlock]] = []
    problems: list[Problem] = []
    try:
        for block_hash, _, block in walk_back(objects.get_block, head):
            blocks.append((block_hash, block))
    except ObjectNotFound as error:
        missing = blocks[-1][1].prev_block_hash if blocks else head
        named_by = f"block {blocks[-1][1].sequence_number}" if blocks else "the head"
        message = f"block {missing} is missing; {named_by} names it, and what lies before it cannot be checked"
        problems.append(Problem("block", error.key, message))
    except (ChainError, StorageError) as error:
        damaged = blocks[-1][1].prev_block_hash if blocks else head
        key = objects.block_key(damaged) if damaged is not None else objects.head_key
        problems.append(Problem("block", key, f"{error.message} What lies before it cannot be checked."))
    return _Chain(blocks[::-1], problems, reaches_seed=not problems)


def _checkpoint_checks(
    objects: DatasetObjects, named: Mapping[Multihash, tuple[int, Checkpoint]], newest: Multihash | None
) -> Iterator[CheckpointCheck]:
    """The checkpoints that blocks name, and the files beside them that they consist of: all go by their hashes."""
    for physical, (block, checkpoint) in named.items():
        yield CheckpointCheck(objects, block, checkpoint, physical == newest)
    for info in list(objects.checkpoints()):
        try:
            physical = Multihash.parse(info.key.rsplit("/", 1)[-1])
        except BadHash:
            continue  # nobody will read it as a checkpoint
        if physical not in named:
            yield CheckpointCheck(objects, None, Checkpoint(physical, info.size), is_newest=False)


def _check_index(objects: DatasetObjects, head: Multihash, chain: _Chain) -> Iterator[Problem]:
    """The slice index must list what the chain lists."""
    snapshot = snapshots.load_at(objects, head, {})
    indexed = [(row["start"], row["end"] - 1, row["physical"]) for row in snapshot.all_slices.to_pylist()]
    chained = [
        (e.new_data.offset_interval.start, e.new_data.offset_interval.end, e.new_data.physical_hash.digest)
        for e in _events(chain)
        if e.new_data is not None
    ]
    if indexed != chained:
        key = objects.index_key("")
        yield Problem("index", key, f"the slice index lists {len(indexed)} slices, not the chain's {len(chained)}")


def _events(chain: _Chain) -> Iterator[AddData | ExecuteTransform]:
    for _, block in chain.blocks:
        if isinstance(block.event, AddData | ExecuteTransform):
            yield block.event


def _layout(state: ChainState) -> Layout | None:
    return None if state.schema is None else from_odf(state.schema, vocabulary(state.vocab))


def _broken(block_hash: Multihash, block: MetadataBlock, error: ChainError) -> Problem:
    return Problem("rule", block_hash.text, error.message, block=block.sequence_number)


def _rows(task: SliceCheck | CheckpointCheck) -> int:
    return task.data.rows if isinstance(task, SliceCheck) else 0

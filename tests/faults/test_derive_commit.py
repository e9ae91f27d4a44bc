"""After a crash at any moment of a derived commit its output has all of it or nothing, and doing it again ends well."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from derive.derived_worlds import Row, World, in_order, row, transform
from faults.crash_states import CrashState, Part, chosen_states, parts
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem, fsync_calls, without
from faults.small_lake import open_lake
from floodmark.chain.events import Checkpoint, ExecuteTransform
from floodmark.chain.ids import Multihash
from floodmark.derive import commit as deriving
from floodmark.derive.commit import CommitMoves
from floodmark.rows import key_index_loader as key_index

KEY = ("k", "part")
KEYS = range(3)
BEFORE = in_order(row(k, part, k) for k in KEYS for part in "ab")
AFTER = in_order([row(0, "a", 0), row(1, "a", 9), row(1, "c", 1), row(5, "a", 5)])
PROCESSED = [0, 1, 2, 5]
CHECKPOINT = b"which keys were processed"


def opened(root: Path, fs: Any, hour: int) -> World:
    return World(open_lake(root / "lake", fs, hour), root.parent / "results", KEY)


def second(world: World) -> None:
    """What is crashed: slices, a checkpoint, a new version and positions in one transaction."""
    physical = Multihash.sha3_256(CHECKPOINT)
    objects = world.output.snapshot().objects
    moves = CommitMoves(
        inputs=world.moved_input().inputs,
        definitions=(transform(world.input, version="2"),),
        checkpoint=Checkpoint(physical, len(CHECKPOINT)),
        put=lambda: objects.store.put_if_absent(objects.checkpoint_key(physical), CHECKPOINT) and None,
    )
    with mock.patch.object(deriving, "SLICE_BYTES", 200):
        assert world.derive(AFTER, PROCESSED, moves).commit.slices > 1


def recorded(folder: Path, altered: Any = lambda fs: fs) -> Recording:
    """The second commit of a small world, and every file-system call that it made."""
    first = opened(folder, HastyFileSystem(), hour=0)
    first.derive(BEFORE, KEYS)
    recording = RecordingFileSystem(folder)
    world = opened(folder, altered(recording), hour=1)
    second(world)
    recording.mark("second")
    return recording.recording


def problem(state: CrashState, folder: Path) -> str | None:
    """What is wrong with a state, None if nothing is."""
    try:
        lake = state.materialise(folder)
        world = opened(lake, HastyFileSystem(), hour=2)
        held: list[Row] = world.rows()
        is_done = held == AFTER
        if not is_done and (held != BEFORE or "second" in state.acknowledged):
            return f"{state.story}: {state.acknowledged} acknowledged, and it holds {held}"
        # What is derived is not durable; verify says so, and the next who needs it makes it again.
        wrong = [p for p in world.output.verify().problems if p.kind not in ("keys", "index")]
        if wrong:
            return f"{state.story}: {wrong}"
        if not is_done:
            second(world)
        key_index.rebuild(world.output.snapshot(), {})
        again = opened(lake, HastyFileSystem(), hour=3)
        if again.rows() != AFTER or again.output.verify().problems:
            return f"{state.story}: done again it holds {again.rows()}, {again.output.verify().problems}"
        moves = [e for e in world.transactions() if e.query_inputs[0].new_block_hash is not None]
        if len(moves) != 1 or not isinstance(moves[0], ExecuteTransform):
            return f"{state.story}: the input moved {len(moves)} times"
        return None
    finally:
        shutil.rmtree(folder)


DURABLE = (".staging", "info")  # what is in "info" is derived, and never durable


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(8), ids=str)
@pytest.mark.parametrize("volatile", [DURABLE, (".staging",)], ids=["commit", "derived"])
def test_every_crash_of_a_derived_commit_leaves_all_of_it_or_nothing(volatile, part: Part, tmp_path):
    states = chosen_states(recorded(tmp_path / "run"), 12, part, volatile)
    problems = (problem(state, tmp_path / str(number)) for number, state in enumerate(states))
    assert next(filter(None, problems), None) is None


@pytest.mark.parametrize("of", ["checkpoints", "blocks", "data", "refs"])
def test_leaving_out_one_fsync_of_a_derived_commit_is_noticed(tmp_path, of):
    """The test above can fail: without the sync of a file, or of a folder, some crash loses what was acknowledged."""
    calls = [c for c in fsync_calls(recorded(tmp_path / "run")) if f"/{of}" in c[2]]
    assert calls
    call, nth, _ = calls[-1]
    recording = recorded(tmp_path / "without", lambda fs: without(fs, call, nth))
    states = enumerate(chosen_states(recording, 2, volatile=DURABLE))
    found = (_failed(state, tmp_path / str(number)) for number, state in states if state.acknowledged)
    assert any(found)


def _failed(state: CrashState, folder: Path) -> bool:
    try:
        return problem(state, folder) is not None
    except Exception:
        return True

"""A derived transaction is one move of the head: data, positions, checkpoint and definitions, or nothing."""

from __future__ import annotations

import threading
from datetime import timedelta

import pyarrow as pa
import pytest

from derive.derived_worlds import COLUMNS, World, row, transform
from floodmark.chain.events import Checkpoint, SetDataSchema, SetTransform
from floodmark.chain.ids import Multihash
from floodmark.derive.commit import CommitMoves, KeyResults, commit_whole_result, evolve_layout
from floodmark.engine.progress import SilentProgress
from floodmark.errors import BadPrimaryKey, CommitConflict, DuplicateKeys, MissingColumns, ReadOnlyDataset, TypeMismatch
from floodmark.ledger.data_input import TableData
from floodmark.ledger.moments import to_nanos
from ledger.worlds import START, blocks, keys, untouched
from limits import set_limit

MANY = range(40)


@pytest.fixture
def world(lake, tmp_path):
    return World(lake, tmp_path / "results", ("k",))


@pytest.fixture
def in_many_slices(monkeypatch):
    set_limit(monkeypatch, "derive.slice_bytes", 300)


def checkpoint(world: World, text: str, **others) -> CommitMoves:
    """A checkpoint with this content, that is put when it is asked for."""
    data = text.encode()
    physical = Multihash.sha3_256(data)
    objects = world.output.snapshot().objects

    def put() -> None:
        objects.store.put_if_absent(objects.checkpoint_key(physical), data)

    return CommitMoves(checkpoint=Checkpoint(physical, len(data)), put=put, **others)


@pytest.mark.slow
def test_only_the_last_block_of_a_transaction_moves_inputs_and_checkpoint(world, in_many_slices):
    moves = checkpoint(world, "one", inputs=world.moved_input().inputs, watermark=to_nanos(START))
    commit = world.derive([row(k, "a", k) for k in MANY], MANY, moves).commit
    events = world.transactions()
    assert commit.slices == len(events) > 2
    assert [e.new_checkpoint is not None for e in events] == [False] * (len(events) - 1) + [True]
    assert [e.query_inputs[0].new_offset for e in events] == [None] * (len(events) - 1) + [2]
    assert [e.query_inputs[0].new_block_hash for e in events][-1] == world.input.head
    assert [e.new_watermark for e in events][-2:] == [None, to_nanos(START)]
    assert world.output.verify().ok


def test_inputs_that_moved_without_a_change_advance_and_carry_the_offset(world):
    world.derive([row(1, "a", 1)], [1], world.moved_input())
    world.input.write(pa.table({"k": [4]}))
    commit = world.derive([row(1, "a", 1)], [1], world.moved_input()).commit
    last = world.transactions()[-1]
    assert (last.new_data, last.prev_offset, last.query_inputs[0].prev_offset) == (None, 0, 2)
    assert last.query_inputs[0].new_offset == 3
    assert (commit.start, commit.end, commit.unchanged) == (1, 1, 1)


def test_nothing_changed_and_nothing_moved_adds_no_block_and_puts_nothing(world):
    moves = checkpoint(world, "one", inputs=world.moved_input().inputs)
    world.derive([row(1, "a", 1)], [1], moves)
    with untouched(world.output):
        commit = world.derive([row(1, "a", 1)], [1], moves).commit
    assert (commit.block, commit.rows, commit.unchanged) == (world.output.head, 0, 1)


def test_first_run_without_a_single_row_moves_on_without_columns(lake, tmp_path):
    lake.create("input", key="k").write(pa.table({"k": [1]}))
    lake.create_derived("output", key="k", transform=transform(lake["input"]))
    world = World(lake, tmp_path / "results", ("k",))
    world.commit(KeyResults((), ()), world.moved_input())
    assert world.output.schema is None
    assert world.transactions()[-1].query_inputs[0].new_offset == 0
    assert world.output.count() == 0


def test_checkpoint_lies_there_before_the_first_block_of_its_transaction(world):
    seen = []
    moves = checkpoint(world, "one")
    blocks = keys(world.output, "blocks")

    def put() -> None:
        moves.put()
        seen.append(keys(world.output, "blocks"))

    world.derive([row(1, "a", 1)], [1], CommitMoves(checkpoint=moves.checkpoint, put=put))
    assert seen == [blocks]


def test_watermark_never_goes_back(world):
    later = to_nanos(START + timedelta(days=1))
    world.derive([row(1, "a", 1)], [1], CommitMoves(watermark=later))
    world.derive([row(1, "a", 2)], [1], CommitMoves(watermark=to_nanos(START)))
    world.derive([row(1, "a", 3)], [1])
    assert [e.new_watermark for e in world.transactions()] == [later] * 3


def test_derive_from_a_head_that_is_no_longer_one_conflicts_and_changes_nothing(world):
    before = world.output.snapshot()
    world.derive([row(1, "a", 1)], [1])
    checkpoints = keys(world.output, "checkpoints")
    with untouched(world.output), pytest.raises(CommitConflict, match="moved the head"):
        world.derive([row(1, "a", 2)], [1], checkpoint(world, "late"), snapshot=before)
    assert keys(world.output, "checkpoints") == checkpoints
    assert world.rows() == [row(1, "a", 1)]


def test_of_two_derives_from_one_snapshot_one_wins_and_nothing_is_there_twice(world):
    snapshot = world.output.snapshot()
    outcomes: list[object] = []
    ready = threading.Barrier(2)

    def run(value: int) -> None:
        results = world.results([row(k, "a", value) for k in range(5)], range(5))
        twin = World(world.lake, world.folder, world.key)
        ready.wait()
        try:
            outcomes.append(twin.commit(results, world.moved_input(), snapshot))
        except CommitConflict as conflict:
            outcomes.append(conflict)

    threads = [threading.Thread(target=run, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(o).__name__ for o in outcomes) == ["CommitConflict", "WriteResult"]
    assert world.output.last_offset == 4
    assert len({r["value"] for r in world.rows()}) == 1
    assert world.output.verify().ok


def test_key_that_was_processed_twice_or_returned_twice_is_refused(world):
    world.derive([row(1, "a", 1)], [1])
    with untouched(world.output), pytest.raises(DuplicateKeys, match="processed twice"):
        world.derive([row(1, "a", 2)], [1, 1])
    with untouched(world.output), pytest.raises(DuplicateKeys, match="several rows with the same key: k=7"):
        world.derive([row(7, "a", 2), row(7, "b", 3)], [7])


def test_rows_returned_twice_are_refused_in_a_first_large_load_too(world, in_many_slices):
    with untouched(world.output), pytest.raises(DuplicateKeys):
        world.derive([*(row(k, "a", k) for k in MANY), row(3, "b", 1)], MANY)


def test_null_is_a_key_like_any_other_but_only_where_inputs_have_it(lake, tmp_path):
    world = World(lake, tmp_path / "results", ("k", "part"))
    world.derive([row(None, "a", 1), row(1, "a", 2)], [None, 1])
    world.derive([row(None, "a", 3)], [None])
    assert world.output.get([{"k": None}]).column("value").to_pylist() == [3]
    with pytest.raises(BadPrimaryKey, match="'part'"):
        world.results([{**row(1, "a", 1), "part": None}], [1])


# The columns of results


def test_new_version_may_return_one_more_column_in_the_same_transaction(world):
    world.derive([row(1, "a", 1), row(2, "a", 2)], [1, 2])
    wider = COLUMNS.append(pa.field("score", pa.float64()))
    layout, definitions = evolve_layout("output", world.output.snapshot().layout, wider)
    definitions = (transform(world.input, version="2"), *definitions)
    results = world.results([{**row(1, "a", 1), "score": 0.5}, {**row(2, "a", 2), "score": None}], [1, 2], layout.data)
    commit = world.commit(results, CommitMoves(definitions=definitions)).commit
    assert (commit.changed, commit.unchanged) == (1, 1)  # a null in a new column is no change
    assert world.output.schema.names == wider.names
    assert [r["score"] for r in world.rows()] == [0.5, None]
    assert [type(e) for e in world.events()[-3:-1]] == [SetTransform, SetDataSchema]
    assert world.output.verify().ok


@pytest.mark.parametrize(
    ("columns", "refusal", "said"),
    [
        (COLUMNS.remove(0), MissingColumns, "has no column 'k' any more"),
        (
            COLUMNS.set(2, pa.field("value", pa.string())),
            TypeMismatch,
            "column 'value' of 'output' is int64, the result has string",
        ),
    ],
)
def test_result_that_lacks_a_column_or_gives_it_another_type_is_refused_by_name(world, columns, refusal, said):
    with pytest.raises(refusal, match=said) as refused:
        evolve_layout("output", world.output.snapshot().layout, columns, key=["k"])
    assert "drop the output" in refused.value.hint


def test_columns_that_stay_as_they_are_need_no_event(world):
    layout = world.output.snapshot().layout
    assert evolve_layout("output", layout, COLUMNS) == (layout, [])


# The past


@pytest.mark.slow
def test_point_inside_a_transaction_reads_what_was_before_it(world, clock, in_many_slices):
    world.derive([row(1, "a", 1)], [1], world.moved_input())
    first_time = clock.tick()
    clock.tick()
    commit = world.derive([row(k, "a", k + 1) for k in MANY], MANY).commit
    inside = [h for h, b in blocks(world.output) if b.sequence_number == commit.sequence_number - 2]
    assert commit.slices > 3
    for as_of in (commit.start + 5, inside[0], commit.end - 2, first_time):
        assert world.rows(as_of=as_of) == [row(1, "a", 1)]
    for as_of in (commit.end - 1, commit.block, None):
        assert len(world.rows(as_of=as_of)) == len(MANY)


# What else a dataset can do


def test_log_says_what_a_transaction_read_and_which_version_wrote(world):
    world.derive([row(1, "a", 1), row(2, "a", 1)], [1, 2], checkpoint(world, "1", inputs=world.moved_input().inputs))
    world.derive([], [7], checkpoint(world, "2"))
    said = [entry.summary for entry in world.output.log()]
    assert said[0] == "only recorded which keys were processed"
    assert said[1].startswith("+2 new, offsets 0–1")
    assert said[1].endswith("; read input up to offset 2")
    assert "derived from input, version 1" in said


def test_log_counts_new_changed_and_retracted_rows(world):
    world.derive([row(1, "a", 1), row(2, "a", 1)], [1, 2], world.moved_input())
    world.derive([row(1, "a", 5), row(3, "a", 1)], [1, 2, 3])
    newest = next(iter(world.output.log()))
    assert newest.summary.startswith("+1 new, 1 changed, 1 retracted, offsets 2–5")


@pytest.mark.parametrize(
    "act",
    [
        lambda d: d.write(pa.table({"k": [1]})),
        lambda d: d.store_chunk(pa.table({"k": [1]}), [1]),
        lambda d: d.delete([1]),
        lambda d: d.purge(1),
        lambda d: d.advance_watermark("2030-01-01"),
        lambda d: d.evolve({"more": "int64"}),
    ],
)
def test_nobody_but_its_step_changes_a_derivative(world, act):
    world.derive([row(1, "a", 1)], [1])
    with untouched(world.output), pytest.raises(ReadOnlyDataset, match="derived from other datasets") as refused:
        act(world.output)
    assert refused.value.hint


def test_root_dataset_is_no_output(world):
    """Of a step that replaces all rows. Rows by key may be written beside those of users."""
    snapshot, data = world.input.snapshot(), TableData(pa.table({"k": [1]}))
    with pytest.raises(ReadOnlyDataset, match="is written by users or sources"):
        commit_whole_result("input", world.lake.runtime, snapshot, data, CommitMoves(), SilentProgress(), {})


def test_verify_misses_the_newest_checkpoint_only_and_checks_the_others_that_are_there(world):
    for text in ("first", "second", "third"):
        world.derive([row(1, "a", len(text))], [1], checkpoint(world, text))
    objects = world.output.snapshot().objects
    first, second, third = (
        objects.checkpoint_key(Multihash.sha3_256(t.encode())) for t in ("first", "second", "third")
    )
    objects.store.delete(first)
    assert problems(world) == set()
    objects.store.put_derived(second, b"SECOND")
    stray = objects.checkpoint_key(Multihash.sha3_256(b"part of one"))
    objects.store.put_derived(stray, b"part of two")
    assert problems(world) == {second, stray}
    objects.store.delete(second)
    objects.store.delete(stray)
    objects.store.delete(third)
    assert problems(world) == {third}


def problems(world) -> set[str]:
    """What `verify` finds, but for the notes of steps, which these transactions do not have."""
    return {p.object for p in world.output.verify().problems if p.kind != "note"}


# All at once


def test_whole_result_replaces_all_that_was_there(world):
    world.derive([row(k, "a", k) for k in range(5)], range(5))
    whole = pa.Table.from_pylist([row(1, "a", 1), row(2, "a", 7), row(9, "a", 9)], schema=COLUMNS)
    moves = world.moved_input()
    runtime, snapshot = world.lake.runtime, world.output.snapshot()
    commit = commit_whole_result(
        "output", runtime, snapshot, TableData(whole), moves, SilentProgress(), world.cache
    ).commit
    assert (commit.new, commit.changed, commit.unchanged, commit.retracted) == (1, 1, 1, 3)
    assert world.rows() == [row(1, "a", 1), row(2, "a", 7), row(9, "a", 9)]
    with pytest.raises(CommitConflict):
        commit_whole_result("output", runtime, snapshot, TableData(whole), moves, SilentProgress(), world.cache)


def test_first_whole_result_gives_the_columns(lake):
    lake.create("input", key="k").write(pa.table({"k": [1]}))
    output = lake.create_derived("output", key="k", transform=transform(lake["input"]))
    whole = pa.table({"k": [2, 1], "n": [0.5, None]})
    commit_whole_result(
        "output", lake.runtime, output.snapshot(), TableData(whole), CommitMoves(), SilentProgress(), {}
    )
    assert output.to_arrow().to_pylist() == [{"k": 1, "n": None}, {"k": 2, "n": 0.5}]
    nothing = TableData(whole.slice(0, 0))
    commit_whole_result("output", lake.runtime, output.snapshot(), nothing, CommitMoves(), SilentProgress(), {})
    assert output.count() == 0

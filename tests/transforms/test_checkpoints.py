"""A checkpoint is found whole or not at all, and nobody's text becomes a path."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import StorageError
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import derive_layout
from floodmark.storage.arrays import Hashes
from floodmark.storage.memory import MemoryStore
from floodmark.storage.parquet import Vocabulary
from floodmark.transforms.chunk_results import StoredChunk
from floodmark.transforms.result_lookup import ResultIndex, identity
from floodmark.transforms.stored_results import ChunkStore
from floodmark.transforms.task import TransformTask, run_task
from transforms.apply_world import Keys, T, World, hashes, processed_of, rows_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def store(world: World, *units: Keys) -> list[StoredChunk]:
    """One checkpoint of these keys."""
    return list(run_task(world.work(), TransformTask("task", units, 1000, float("inf"))).stored)


def test_checkpoint_is_found_as_it_was_stored(world):
    world.tell("raise", 5)
    (stored,) = store(world, Keys(0, 40, gone=frozenset({3})))
    (found,) = world.store.found(world.outputs)
    assert found == stored
    assert rows_of([found]) == {k: 2 * k for k in range(40) if k not in (3, 5)}
    assert processed_of([found], range(40)) == list(range(40))
    assert found.failed_table().equals(stored.failed_table())
    entries = world.store.entries(found)
    assert entries.attempts[hashes([5]).positions_in(entries.hashes)].tolist() == [1]
    assert int(entries.attempts.sum()) == 1
    assert len(entries) == 39


@pytest.mark.parametrize("damage", ["cut", "emptied", "flipped", "grown", "deleted"])
@pytest.mark.parametrize("which", range(5))
def test_damaged_checkpoint_is_deleted_with_all_its_files_and_the_others_stay(world, which, damage):
    world.tell("raise", 5)
    store(world, Keys(0, 40, gone=frozenset({3})))
    files = world.files()
    assert len(files) == 5
    world.behave()
    store(world, Keys(40, 50))
    whole = set(world.files()) - set(files)
    harm(files[which], damage)
    (found,) = world.store.found(world.outputs)
    assert sorted(rows_of([found])) == list(range(40, 50))
    assert set(world.files()) == whole


def harm(file: Path, damage: str) -> None:
    data = bytearray(file.read_bytes())
    match damage:
        case "cut":
            file.write_bytes(data[:-1])
        case "emptied":
            file.write_bytes(b"")
        case "flipped":
            data[len(data) * 2 // 3] ^= 1
            file.write_bytes(data)
        case "grown":
            file.write_bytes(data + b"\0")
        case "deleted":
            file.unlink()


def test_checkpoint_that_is_damaged_during_a_run_ends_it_and_is_deleted_by_the_next(world):
    (stored,) = store(world, Keys(0, 10))
    (descriptor,) = [f for f in world.files() if f.parent.name == "done"]
    harm(descriptor, "flipped")
    with pytest.raises(StorageError, match="cannot be used") as caught:
        world.store.entries(stored)
    assert "run the step again" in caught.value.hint
    assert world.store.found(world.outputs) == []


def test_files_of_a_checkpoint_that_was_never_finished_are_swept(world):
    store(world, Keys(0, 10))
    (descriptor,) = [f for f in world.files() if f.parent.name == "done"]
    descriptor.unlink()
    assert world.store.found(world.outputs) == []
    assert world.files() == []


def test_descriptor_under_another_name_is_foreign(world):
    store(world, Keys(0, 10))
    (descriptor,) = [f for f in world.files() if f.parent.name == "done"]
    shutil.copy(descriptor, descriptor.with_name("other-000000000000"))
    (found,) = world.store.found(world.outputs)
    assert found.id == descriptor.name
    assert not descriptor.with_name("other-000000000000").exists()


def test_somebody_elses_file_is_no_checkpoint(world):
    store(world, Keys(0, 10))
    (descriptor,) = [f for f in world.files() if f.parent.name == "done"]
    (descriptor.parent / "README").write_text("hello")
    (descriptor.parent / "empty").write_text("")
    assert len(world.store.found(world.outputs)) == 1
    assert len(world.files()) == 3


OUT = OutputShape("out", ("k",), T, None)


@pytest.mark.parametrize(
    "outputs",
    [
        (replace(OUT, name="other"),),
        (replace(OUT, key=("k", "y")),),
        (replace(OUT, keys=pa.schema([pa.field("k", pa.int32())])),),
        (replace(OUT, event_time="t"),),
        (OUT, replace(OUT, name="second")),
        (replace(OUT, layout=derive_layout(pa.schema([("k", pa.int64()), ("y", pa.float64())]), Vocabulary(), None)),),
    ],
    ids=["name", "key", "type of a transform key", "event time", "one more", "columns"],
)
def test_checkpoint_for_other_outputs_is_not_used(world, outputs):
    store(world, Keys(0, 10))
    assert world.store.found(outputs) == []
    assert world.files() == []


def test_versions_do_not_see_each_others_checkpoints(world):
    store(world, Keys(0, 10))
    assert replace(world, version="2").store.found(world.outputs) == []
    assert len(world.store.found(world.outputs)) == 1
    replace(world, version="2").store.clear()
    assert world.files() == []


@pytest.mark.parametrize("version", ["../../../../x", "/etc", "", "a/b", "\ud800", ".", "x" * 5000, "\0"])
def test_version_never_becomes_a_path(world, version):
    odd = replace(world, version=version)
    store(odd, Keys(0, 10))
    (found,) = odd.store.found(world.outputs)
    assert len(rows_of([found])) == 10
    root = world.folder / "lake" / "datasets" / "d" / "info" / "transform" / "chunks"
    assert all(root in file.parents for file in world.files())
    odd.store.discard([found])
    assert world.files() == []


def test_discarded_checkpoint_is_gone_and_others_stay(world):
    (first,) = store(world, Keys(0, 10))
    (second,) = [s for s in store(world, Keys(0, 10), Keys(10, 20)) if s.id != first.id]
    world.store.discard([first])
    assert [s.id for s in world.store.found(world.outputs)] == [second.id]


def test_identity_differs_when_key_or_signature_does():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 63, (4, 5000)).astype(np.uint64)
    ours = identity(Hashes(values[0], values[1]), Hashes(values[2], values[3]))
    for column in range(4):
        other = values.copy()
        other[column] += np.uint64(1)
        theirs = identity(Hashes(other[0], other[1]), Hashes(other[2], other[3]))
        assert not ours.same(theirs).any()
    assert len(ours.first_positions()) == 5000


def test_index_of_found_results_agrees_with_a_dictionary(world):
    parts = [*store(world, Keys(0, 30)), *store(world, Keys(20, 50, changed=frozenset(range(20, 25))))]
    found = world.store.found(world.outputs)
    assert len(found) == len({s.id for s in parts})
    index = ResultIndex.make(world.store, found)
    naive: set[tuple[int, ...]] = set()
    for s in found:
        e = world.store.entries(s)
        columns = (e.hashes.high, e.hashes.low, e.signature.high, e.signature.low)
        naive |= set(zip(*(c.tolist() for c in columns), strict=True))
    known = index.open()
    (chunk,) = Keys(0, 60, changed=frozenset(range(22, 28))).chunks(100)
    at = known.find(identity(chunk.hashes, chunk.signature))
    columns = (chunk.hashes.high, chunk.hashes.low, chunk.signature.high, chunk.signature.low)
    wanted = [row in naive for row in zip(*(c.tolist() for c in columns), strict=True)]
    assert (at >= 0).tolist() == wanted
    assert True in wanted
    assert False in wanted
    index.delete()


def test_checkpoints_in_a_bucket_are_found_and_discarded(world):
    objects = DatasetObjects(MemoryStore(), "datasets/d")
    work = replace(world.work(), store=ChunkStore(objects, "1"))
    world.tell("raise", 5)
    (stored,) = run_task(work, TransformTask("task", (Keys(0, 40, gone=frozenset({3})),), 1000, float("inf"))).stored
    (found,) = work.store.found(world.outputs)
    assert found == stored
    assert rows_of([found]) == {k: 2 * k for k in range(40) if k not in (3, 5)}
    known = ResultIndex.make(work.store, [found])
    (chunk,) = Keys(0, 3).chunks(10)
    assert (known.open().find(identity(chunk.hashes, chunk.signature)) >= 0).all()
    known.delete()
    work.store.discard([found])
    assert list(objects.store.list("")) == []


def test_files_of_another_run_in_a_bucket_are_left_alone(world):
    objects = DatasetObjects(MemoryStore(), "datasets/d")
    work = replace(world.work(), store=ChunkStore(objects, "1"))
    (stored,) = run_task(work, TransformTask("task", (Keys(0, 10),), 1000, float("inf"))).stored
    (descriptor,) = [info.key for info in objects.store.list("") if "/done/" in info.key]
    data = objects.store.get(descriptor)
    objects.store.delete(descriptor)  # it is not finished yet
    assert work.store.found(world.outputs) == []
    objects.store.put_derived(descriptor, data)
    assert work.store.found(world.outputs) == [stored]

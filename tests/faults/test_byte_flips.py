"""Whatever happens to a file of a dataset, verify finds it and says which file and what about it."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from faults.crash_states import Part, parts
from faults.small_lake import NAME, rows, runtime
from floodmark.chain import wire
from floodmark.chain.events import AddData, Checkpoint, DatasetKind, MetadataBlock, OffsetInterval, Seed, SetDataSchema
from floodmark.chain.ids import LOGICAL, DatasetId, Multihash, format_head
from floodmark.chain.walk import walk_back
from floodmark.dataset import Dataset
from floodmark.ledger.commit import empty_event, plan_blocks, publish
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.verify import VerifyProblem
from floodmark.storage.logical_hash import table_digests
from floodmark.storage.memory import MemoryStore
from floodmark.storage.parquet import DIGESTS_KEY
from profiles import sample

KINDS = {"blocks": "block", "data": "data", "checkpoints": "checkpoint", "refs": "head"}


@dataclass(frozen=True)
class World:
    """A small dataset with one of everything, whose objects can be changed behind its back."""

    dataset: Dataset
    objects: DatasetObjects
    content: dict[str, bytes]

    def keys(self, folder: str) -> list[str]:
        return [key for key in self.content if f"/{folder}/" in key]

    def after(self, *changes: tuple[str, bytes | None]) -> tuple[VerifyProblem, ...]:
        """What verify says when these objects are other bytes, or are gone."""
        for key, data in changes:
            self._put(key, data)
        found = self.dataset.verify()
        for key, _ in changes:
            self._put(key, self.content.get(key))
        assert found.ok == (not found.problems)
        return found.problems

    def _put(self, key: str, data: bytes | None) -> None:
        self.objects.store.delete(key)
        if data is not None:
            self.objects.store.put_if_absent(key, data)


def build() -> World:
    dataset = fm.Lake(MemoryStore(), runtime=runtime()).create(NAME, event_time="at")
    dataset.write(rows(1, 2, 3).append_column("city", pa.array(["Aa", "Bb", None])), source="kafka", state="1")
    snapshot = dataset.snapshot()
    objects, state, store = snapshot.objects, snapshot.state, snapshot.objects.store
    memory = b"the state of a computation"
    checkpoint = Checkpoint(Multihash.sha3_256(memory), len(memory))
    store.put_if_absent(objects.checkpoint_key(checkpoint.physical_hash), memory)
    event = replace(empty_event(state), new_checkpoint=checkpoint)
    planned, _ = plan_blocks(state, [event], (state.system_time or 0) + 1)
    assert publish(objects, snapshot.head, (), planned)
    dataset.write(rows(4, columns=["city"]))
    found = dataset.verify()
    assert found.ok
    assert (found.blocks, found.slices, found.checkpoints) == (7, 2, 1)
    content = {info.key: store.get(info.key) for info in store.list(objects.folder) if "/info/" not in info.key}
    return World(dataset, objects, content)


@pytest.fixture(scope="module")
def world() -> World:
    return build()


def flips(data: bytes) -> Iterator[bytes]:
    """The data with one bit flipped: the lowest, and the one that tells capitals from small letters."""
    for at in range(len(data)):
        for bit in (0, 5):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def assert_named(world: World, key: str, problems: tuple[VerifyProblem, ...]) -> None:
    """The damaged object, and no other, is the one that the report names."""
    assert problems
    if key.endswith("/refs/head") and {p.kind for p in problems} != {"head"}:
        # It names a block as well as any other text of its form does, but there is no such block.
        assert [(p.kind, "named by the head" in p.message) for p in problems] == [("block", True)]
        return
    assert {p.object for p in problems} == {key}
    assert {p.kind for p in problems} == {KINDS[key.split("/")[-2]]}


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize("folder", KINDS)
def test_every_flipped_byte_is_found(world, folder, part: Part):
    for key in world.keys(folder):
        for flipped in sample(flips(world.content[key]), 16)[part.number :: part.of]:
            assert_named(world, key, world.after((key, flipped)))


@pytest.mark.parametrize("folder", KINDS)
def test_file_that_is_missing_is_found(world, folder):
    for key in world.keys(folder):
        problems = world.after((key, None))
        assert_named(world, key, problems)
        assert any("missing" in p.message for p in problems)


@pytest.mark.parametrize("folder", KINDS)
def test_file_that_is_cut_or_has_grown_is_found(world, folder):
    for key in world.keys(folder):
        data = world.content[key]
        for other in (b"", data[:1], data[: len(data) // 2], data[:-1], data + b"\0", data + b"\n", data + data):
            assert_named(world, key, world.after((key, other)))


@pytest.mark.parametrize("folder", ["blocks", "data"])
def test_two_files_that_are_swapped_are_found(world, folder):
    keys = world.keys(folder)
    for one, other in itertools.combinations(keys, 2):
        problems = world.after((one, world.content[other]), (other, world.content[one]))
        assert {p.object for p in problems} <= {one, other}
        assert {p.kind for p in problems} == {KINDS[folder]}


def test_block_in_place_of_data_and_data_in_place_of_a_checkpoint_are_found(world):
    block, data, checkpoint = (world.keys(folder)[0] for folder in ("blocks", "data", "checkpoints"))
    assert_named(world, data, world.after((data, world.content[block])))
    assert_named(world, checkpoint, world.after((checkpoint, world.content[data])))
    assert_named(world, block, world.after((block, world.content[checkpoint])))


# Inside a data file


def chunks(data: bytes) -> dict[str, range]:
    """Where the values of each column lie."""
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    found = {}
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        found[column.path_in_schema] = range(start, start + column.total_compressed_size)
    return found


@pytest.mark.soak
def test_column_whose_values_are_damaged_is_named(world):
    for key in world.keys("data"):
        data, found = world.content[key], []
        for column, where in chunks(data).items():
            named = []
            for at in sample(where, 6):
                problems = world.after((key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
                named += [p.column for p in problems if p.column is not None]
            assert set(named) <= {column}
            found += named
        assert set(found) == set(chunks(data))


def other_content(world: World, key: str, column: str) -> bytes:
    """The same file with one value of a column changed, written as Floodmark would write it."""
    table = pq.read_table(pa.BufferReader(world.content[key]))
    index = table.schema.get_field_index(column)
    values = table.column(column).to_pylist()
    table = table.set_column(index, table.schema.field(index), pa.array([*values[:-1], 77], table.schema.types[index]))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        digests = {name: [d.hex() for d in parts] for name, parts in table_digests(table).items()}
        writer.add_key_value_metadata({DIGESTS_KEY: json.dumps(digests).encode()})
    return sink.getvalue()


def test_whole_file_with_other_content_under_the_right_name_is_found(world):
    for key in world.keys("data"):
        problems = world.after((key, other_content(world, key, "n")))
        assert_named(world, key, problems)
        messages = " ".join(p.message for p in problems)
        assert "does not match the hash in its name" in messages
        assert "do not match the logical hash in the block" in messages


# Forged blocks


def forged(world: World, number: int, change: Callable[[MetadataBlock], MetadataBlock]) -> list[tuple[str, bytes]]:
    """The chain with one block changed, and every hash after it made to fit again."""
    changes: list[tuple[str, bytes]] = []
    head: Multihash | None = None
    for _, block in chain(world):
        block = replace(block, prev_block_hash=head)
        data = wire.encode(change(block) if block.sequence_number == number else block)
        head = Multihash.sha3_256(data)
        changes.append((world.objects.block_key(head), data))
    assert head is not None
    return [*changes, (world.objects.head_key, format_head(head))]


def chain(world: World) -> list[tuple[Multihash, MetadataBlock]]:
    walked = walk_back(world.objects.get_block, world.dataset.head)
    return [(block_hash, block) for block_hash, _, block in walked][::-1]


def event_of(block: MetadataBlock, **fields: Any) -> MetadataBlock:
    return replace(block, event=replace(block.event, **fields))  # type: ignore[type-var]


def data_of(block: MetadataBlock, **fields: Any) -> MetadataBlock:
    assert isinstance(block.event, AddData)
    assert block.event.new_data is not None
    return event_of(block, new_data=replace(block.event.new_data, **fields))


FIRST_DATA, CHECKPOINT, LAST_DATA = 4, 5, 6
OTHER = Multihash.sha3_256(b"other")

FORGERIES: dict[str, tuple[int, Callable[[MetadataBlock], MetadataBlock], str]] = {
    "time went back": (LAST_DATA, lambda b: replace(b, system_time=b.system_time - 10**12), "system_time"),
    "watermark went back": (LAST_DATA, lambda b: event_of(b, new_watermark=1), "the watermark goes back"),
    "watermark lost": (LAST_DATA, lambda b: event_of(b, new_watermark=None), "watermark"),
    "last offset": (LAST_DATA, lambda b: event_of(b, prev_offset=1), "prev_offset is 1"),
    "gap": (LAST_DATA, lambda b: data_of(b, offset_interval=OffsetInterval(9, 9)), "new data starts at offset 9"),
    "reversed": (LAST_DATA, lambda b: data_of(b, offset_interval=OffsetInterval(3, 2)), "before its start"),
    "nothing moved": (CHECKPOINT, lambda b: event_of(b, new_checkpoint=None), "adds no data and moves no checkpoint"),
    "other checkpoint": (LAST_DATA, lambda b: event_of(b, prev_checkpoint=OTHER), "prev_checkpoint"),
    "source state lost": (LAST_DATA, lambda b: event_of(b, new_source_state=None), "state of source 'kafka'"),
    "second seed": (LAST_DATA, lambda b: replace(b, event=Seed(SEED_ID, DatasetKind.ROOT)), "a Seed can only be"),
    "schema repeated": (LAST_DATA, lambda b: replace(b, event=SetDataSchema()), "SetDataSchema contains no schema"),
    "wrong kind": (0, lambda b: event_of(b, dataset_kind=DatasetKind.DERIVATIVE), "AddData"),
}
SEED_ID = DatasetId.generate(runtime().random_bytes)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_block_is_named_with_the_rule_that_it_breaks(world, forgery):
    number, change, message = FORGERIES[forgery]
    problems = world.after(*forged(world, number, change))
    assert message in " ".join(p.message for p in problems if p.kind == "rule")
    culprits = {p.block for p in problems if p.kind == "rule"}
    assert number in culprits or forgery == "wrong kind"


def test_forged_number_of_a_block_is_found(world):
    changes = forged(world, LAST_DATA, lambda b: replace(b, sequence_number=9))
    problems = world.after(*changes)
    assert [p.kind for p in problems] == ["block"]
    assert "has number 5; the next block requires number 8" in problems[0].message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("logical_hash", Multihash(LOGICAL, bytes(32)), "do not match the logical hash in the block"),
        ("physical_hash", OTHER, "the file is missing"),
        ("size", 7, "bytes, should be 7"),
    ],
)
def test_forged_hash_or_size_of_a_slice_is_found(world, field, value, message):
    problems = world.after(*forged(world, LAST_DATA, lambda b: data_of(b, **{field: value})))
    assert [p.block for p in problems] == [LAST_DATA]
    assert message in problems[0].message


def test_forged_size_of_a_checkpoint_is_found(world):
    [problem] = world.after(
        *forged(world, CHECKPOINT, lambda b: event_of(b, new_checkpoint=replace(b.event.new_checkpoint, size=7)))
    )
    assert (problem.kind, problem.block) == ("checkpoint", CHECKPOINT)
    assert "26 bytes, should be 7" in problem.message

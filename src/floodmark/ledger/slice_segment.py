"""Index segments: the slices and source states of a span of blocks, in one small derived file.

A segment also has the skip pointers and totals of the whole chain up to its last block, and the names of the older
segments that cover the rest. It is named after its last block and has a checksum. Missing or damaged segments are
rebuilt from the chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.chain import wire
from floodmark.chain.events import ROUTINE_KINDS, AddData, ExecuteTransform, MetadataBlock, SourceState, kind
from floodmark.chain.ids import SHA3_256, BlockRef, Multihash
from floodmark.chain.walk import SkipPointers, read_block
from floodmark.chain.walk import merge as merge_skips
from floodmark.errors import ChainError, ObjectNotFound
from floodmark.ledger.block_attributes import (
    carried_before,
    erasure_of,
    event_time_bounds,
    purged_amount,
    purged_before,
)
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument, Document
from floodmark.storage.facts import Natural, build, build_row, natural

_KIND = "slice index"
_VERSION = 7
"""Since version 2 a segment says that all blocks up to its last one were checked; since 3 it marks carried rows; since
5 it has erased records; since 6 empty tables take no bytes; since 7 it names the block of the newest purge.

Older segments are rebuilt.
"""

SLICES = pa.schema(
    [
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("block", pa.binary(32), nullable=False),
        pa.field("system_time", pa.int64(), nullable=False),  # nanoseconds
        pa.field("start", pa.int64(), nullable=False),  # half open, unlike the block's interval
        pa.field("end", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("physical", pa.binary(32), nullable=False),
        pa.field("event_min", pa.int64()),  # microseconds: nanoseconds end in 2262; null if the writer noted no bounds
        pa.field("event_max", pa.int64()),
        pa.field("carried", pa.int64(), nullable=False),  # the offset before which its rows were written first, else 0
    ]
)
ERASED = pa.schema(
    [
        pa.field("start", pa.int64(), nullable=False),  # of the slice
        pa.field("physical", pa.binary(32), nullable=False),  # of the file that replaced its file
        pa.field("before", pa.binary(32), nullable=False),  # the file that it replaced, which must not exist any more
        pa.field("size", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),  # of an erased record of the slice
        pa.field("sequence_number", pa.int64(), nullable=False),  # of the block that erased it
    ]
)
"""The erased records, newest erasure last: a slice may have been written again several times."""

STATES = pa.schema(
    [
        pa.field("key", pa.binary(16), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("block", pa.binary(32), nullable=False),
    ]
)


# `Schema.empty_table` would import pandas, and this module is imported by a run that has nothing to do.
_EMPTY = {
    name: pa.Table.from_batches([], schema)
    for name, schema in (("slices", SLICES), ("states", STATES), ("erased", ERASED))
}
_TABLES = tuple(_EMPTY)


class BadSegment(Exception):
    """A segment file that is incomplete, damaged or in another format."""


@dataclass(frozen=True)
class Totals:
    """Sums over the whole chain without purged slices, so that a list of datasets reads no blocks."""

    slices: Natural = 0
    bytes: Natural = 0
    purged_before: Natural = 0  # offsets below this are purged
    last_state: SourceState | None = None
    data_block: str | None = None  # the hash of the block with the last record
    carried_end: Natural = 0  # the offset after the last record that a purge carried
    erasures: Natural = 0  # how many blocks erased records
    purge_block: str | None = None  # the hash of the block with the newest purge: it proves `purged_before`


@dataclass(frozen=True)
class OlderSegment:
    """A reference to an older segment: its name and how many blocks it spans."""

    name: str
    blocks: Natural


@dataclass(frozen=True)
class SliceSegment:
    """The index of one span of blocks, up to and including `skips.at`."""

    skips: SkipPointers
    blocks: int
    totals: Totals
    older: tuple[OlderSegment, ...]
    definitions: dict[str, bytes] = field(repr=False)  # the newest non-routine block of each kind, as bytes
    slices: pa.Table = field(repr=False)
    states: pa.Table = field(repr=False)
    erased: pa.Table = field(repr=False, default_factory=lambda: ERASED.empty_table())

    @property
    def name(self) -> str:
        return segment_name(self.skips.at)

    @property
    def before(self) -> int:
        """The sequence number of the block before this span; -1 for a span that begins with the Seed."""
        return self.skips.at.sequence_number - self.blocks

    @property
    def as_older(self) -> OlderSegment:
        return OlderSegment(self.name, self.blocks)


def segment_name(at: BlockRef) -> str:
    return f"{at.sequence_number:012d}-{at.hash.digest.hex()}"


def state_key(state: SourceState) -> bytes:
    """The lookup key of a source state. Its kind is not part of a source's identity."""
    return hashlib.sha3_256(json.dumps([state.source_name, state.value]).encode()).digest()[:16]


def span(previous: SliceSegment | None, blocks: Iterable[tuple[Multihash, bytes, MetadataBlock]]) -> SliceSegment:
    """A new segment of the blocks (oldest first) that follow `previous`."""
    skips = previous.skips if previous else None
    totals = previous.totals if previous else Totals()
    definitions = dict(previous.definitions) if previous else {}
    rows: list[tuple[Any, ...]] = []
    states: list[tuple[Any, ...]] = []
    count = 0
    n_slices, n_bytes, purged, last_state = totals.slices, totals.bytes, totals.purged_before, totals.last_state
    data_block, carried_end, erasures = totals.data_block, totals.carried_end, totals.erasures
    purge_block = totals.purge_block
    erased: list[tuple[Any, ...]] = []
    for block_hash, data, block in blocks:
        ref, event = BlockRef(block.sequence_number, block_hash), block.event
        if skips is None:
            skips = SkipPointers.first(ref, kind(event))
        elif count == 0:
            skips = skips.start_next_span(ref, kind(event))
        else:
            skips = skips.extended(ref, kind(event))
        count += 1
        if kind(event) not in ROUTINE_KINDS:
            definitions[kind(event)] = data
        if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
            new = event.new_data
            low, high = (None if bound is None else bound // 1000 for bound in event_time_bounds(event))
            start, end = new.offset_interval.start, new.offset_interval.end + 1
            carried = carried_before(event)
            rows.append(
                (
                    ref.sequence_number,
                    block_hash.digest,
                    block.system_time,
                    start,
                    end,
                    new.size,
                    new.physical_hash.digest,
                    low,
                    high,
                    carried,
                )
            )
            carried_end = end if carried else carried_end
            n_slices += 1
            n_bytes += new.size
            data_block = block_hash.digest.hex()
        if (erasure := erasure_of(event)) is not None:
            erasures += 1
            for one in erasure.slices:
                files = (Multihash.parse(one.after).digest, Multihash.parse(one.before).digest)
                erased += [(one.start, *files, one.size, offset, ref.sequence_number) for offset in one.erased]
                n_bytes += one.size - one.size_before
        if isinstance(event, AddData) and event.new_source_state not in (None, last_state):
            last_state = event.new_source_state
            assert last_state is not None
            states.append((state_key(last_state), ref.sequence_number, block_hash.digest))
            if purged_before(last_state) > purged:
                purged, purge_block = purged_before(last_state), block_hash.text
            gone_slices, gone_bytes = purged_amount(event)
            n_slices, n_bytes = n_slices - gone_slices, n_bytes - gone_bytes
    if skips is None:
        raise ValueError("a segment spans at least one block")
    return SliceSegment(
        skips=skips,
        blocks=count,
        totals=Totals(n_slices, n_bytes, purged, last_state, data_block, carried_end, erasures, purge_block),
        older=(previous.as_older, *previous.older) if previous else (),
        definitions=definitions,
        slices=_table(rows, SLICES),
        states=_table(states, STATES),
        erased=_table(erased, ERASED),
    )


def with_replaced_files(slices: pa.Table, erased: pa.Table) -> pa.Table:
    """The slices with the files and sizes that erasures gave them."""
    if erased.num_rows == 0:
        return slices
    newest = {row["start"]: (row["physical"], row["size"]) for row in erased.to_pylist()}
    rows = zip(*(slices.column(name).to_pylist() for name in ("start", "physical", "size")), strict=True)
    now = [newest.get(start, (physical, size)) for start, physical, size in rows]
    for place, name in enumerate(("physical", "size")):
        at = slices.schema.get_field_index(name)
        values = pa.array([one[place] for one in now], slices.schema.field(at).type)
        slices = slices.set_column(at, slices.schema.field(at), values)
    return slices


def merge_segments(segments: Sequence[SliceSegment]) -> SliceSegment:
    """Merge adjacent segments (newest first) into one."""
    for newer, older in pairwise(segments):
        if newer.before != older.skips.at.sequence_number:
            raise BadSegment(f"segments {newer.name} and {older.name} are not adjacent")
    newest, oldest = segments[0], segments[-1]
    skips = oldest.skips
    for newer in reversed(segments[:-1]):
        skips = merge_skips(skips, newer.skips)
    in_order = list(reversed(segments))
    return SliceSegment(
        skips=skips,
        blocks=sum(s.blocks for s in segments),
        totals=newest.totals,
        older=oldest.older,
        definitions=newest.definitions,
        slices=pa.concat_tables([s.slices for s in in_order]).combine_chunks(),
        states=pa.concat_tables([s.states for s in in_order]).combine_chunks(),
        erased=pa.concat_tables([s.erased for s in in_order]).combine_chunks(),
    )


def encode(segment: SliceSegment) -> bytes:
    """The segment as a file."""
    totals = segment.totals
    state = totals.last_state
    facts = {
        "skips": segment.skips.to_json(),
        "blocks": segment.blocks,
        "totals": {
            "slices": totals.slices,
            "bytes": totals.bytes,
            "purged_before": totals.purged_before,
            "last_state": None if state is None else [state.source_name, state.kind, state.value],
            "data_block": totals.data_block,
            "carried_end": totals.carried_end,
            "erasures": totals.erasures,
            "purge_block": totals.purge_block,
        },
        "older": [[o.name, o.blocks] for o in segment.older],
        "definitions": segment.definitions,
    }
    return document.encode(_KIND, _VERSION, facts, {name: _ipc(getattr(segment, name)) for name in _TABLES})


def decode(data: bytes) -> SliceSegment:
    """The segment in a file. Raises `BadSegment` for anything but a complete result of `encode`."""
    try:
        decoded = document.decode(data, _KIND, "segment", _VERSION)
        if decoded.version < _VERSION:
            raise BadSegment(f"the segment has format {decoded.version}, whose blocks were not checked")
        meta = decoded.facts
        with document.parsing("segment"):
            state = meta["totals"]["last_state"]
            last_state = None if state is None else build_row(SourceState, state)
            return SliceSegment(
                skips=SkipPointers.from_json(meta["skips"]),
                blocks=natural(meta["blocks"]),
                totals=build(Totals, meta["totals"], last_state=last_state),
                older=tuple(build_row(OlderSegment, row) for row in meta["older"]),
                definitions={k: bytes.fromhex(v) for k, v in meta["definitions"].items()},
                slices=_table_in(decoded, "slices"),
                states=_table_in(decoded, "states"),
                erased=_table_in(decoded, "erased"),
            )
    except (DamagedDocument, ChainError) as error:
        raise BadSegment(str(error)) from error


def check_definitions(segment: SliceSegment) -> None:
    """Check the newest non-routine block of each kind against the skip pointers."""
    for event_kind, data in segment.definitions.items():
        named = segment.skips.newest.get(event_kind)
        if named is None or Multihash.sha3_256(data) != named.hash:
            raise BadSegment(f"the {event_kind} block in the segment is not the one that the skip pointers name")


def check_purge(segment: SliceSegment, get_block: Callable[[Multihash], bytes]) -> None:
    """Check the newest purge against its block: an index alone must not hide records."""
    totals = segment.totals
    proven = 0
    if totals.purge_block is not None:
        try:
            name = Multihash.parse(totals.purge_block)
            event = read_block(name, get_block(name)).event
        except (ChainError, ObjectNotFound) as error:
            raise BadSegment(f"the block of the purge cannot be read: {error.message}") from error
        state = event.new_source_state if isinstance(event, AddData) else None
        proven = 0 if state is None else purged_before(state)
    if totals.purged_before != proven:
        raise BadSegment(f"the segment says that records before {totals.purged_before} are purged, its block {proven}")


def definition_blocks(segment: SliceSegment, without: Container[str] = ()) -> dict[str, MetadataBlock]:
    """The newest non-routine block of each kind, decoded. They were checked when the segment was read."""
    return {name: wire.decode(data) for name, data in segment.definitions.items() if name not in without}


def find_state(segment: SliceSegment, key: bytes) -> list[BlockRef]:
    """The blocks of this span that recorded a source state with this key, oldest first."""
    if segment.states.num_rows == 0:
        return []
    keys = segment.states.column("key").combine_chunks()
    buffer = np.frombuffer(keys.buffers()[1], dtype="V16")[keys.offset : keys.offset + len(keys)]
    hits = np.flatnonzero(buffer == np.frombuffer(key, dtype="V16")[0])
    # Slices, not `take`: to build an array from Python values, Arrow imports pandas, which is slow.
    rows = [row for hit in hits for row in segment.states.slice(int(hit), 1).to_pylist()]
    return [BlockRef(r["sequence_number"], Multihash(SHA3_256, r["block"])) for r in rows]


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _ipc(table: pa.Table) -> pa.Buffer:
    """A table as bytes; none for an empty table, because most segments have one or two of them."""
    if table.num_rows == 0:
        return pa.py_buffer(b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _table_in(segment: Document, section: str) -> pa.Table:
    content = segment.section(section)
    if len(content) == 0:
        return _EMPTY[section]
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    table.validate()
    if table.schema != _EMPTY[section].schema:
        raise ValueError(f"{section} has the columns {table.schema.names}")
    return table

"""The record that somebody asks about: by its offset, or by the key of a current row."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.errors import Purged
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.merge.lookup import given_keys, located_rows
from floodmark.provenance.errors import NoSuchRecord, SeveralRecords
from floodmark.provenance.opened import Opened, Transaction
from floodmark.provenance.tree import Block, Record

OPS = ("+A", "-R", "-C", "+C")

Asked = int | Mapping[str, Any]
"""An offset, or the columns of a key."""


def offset_of(given: Opened, asked: Asked | Any) -> int:
    """The offset of the record that is asked about, which can be read."""
    if isinstance(asked, Mapping | pa.Table):
        return _by_key(given, asked)
    try:
        offset = operator.index(asked)
    except TypeError as error:
        raise NoSuchRecord(
            f"{asked!r} is neither an offset nor a key of {given.name!r}", hint="give an integer, or {column: value}"
        ) from error
    end, purged = given.snapshot.next_offset, given.snapshot.purged_before
    if not 0 <= offset < end:
        raise NoSuchRecord(
            f"dataset {given.name!r} has no record {offset}",
            hint=f"offsets go from 0 to {end - 1}" if end else "it has no records yet",
            dataset=given.name,
            offset=offset,
        )
    if offset < purged:
        raise Purged(
            f"record {offset} of {given.name!r} is purged",
            hint=f"the first record that is left is {purged}",
            purged_before=purged,
        )
    return offset


def _by_key(given: Opened, key: Any) -> int:
    keys = given_keys(key, given.snapshot, given.name)
    found = key_index.mended(given.snapshot, {}, lambda index: located_rows(given.snapshot, keys, index))
    said = ", ".join(f"{name}={value}" for name, value in keys.to_pylist()[0].items())
    if len(found.offsets) == 0:
        raise NoSuchRecord(
            f"dataset {given.name!r} has no row with {said} now",
            hint=f"`floodmark history {given.name}` shows whether it ever had: ask for one of these offsets",
            dataset=given.name,
        )
    if len(found.offsets) > 1:
        some = ", ".join(map(str, found.offsets[:5].tolist()))
        raise SeveralRecords(
            f"{len(found.offsets)} rows of {given.name!r} have {said}",
            hint=f"give all columns of its key, or one of the offsets: {some}{' …' if len(found.offsets) > 5 else ''}",
            dataset=given.name,
            offsets=found.offsets.tolist(),
        )
    return int(found.offsets[0])


def records_at(given: Opened, offsets: Any) -> list[Record]:
    """The records at these offsets, which are sorted and can be read, as users see them."""
    table = given.records(np.asarray(offsets, np.int64))
    vocab, shown = given.layout.vocab, given.layout.shown.names
    rows = table.select([vocab.offset, vocab.op, vocab.system_time, *shown]).to_pylist()
    return [
        Record(
            given.name,
            given.id,
            row[vocab.offset],
            OPS[row[vocab.op]],
            row[vocab.system_time],
            {name: row[name] for name in shown},
        )
        for row in rows
    ]


def block_of(transaction: Transaction) -> Block:
    return Block(transaction.block.text, transaction.sequence_number, transaction.start, transaction.end)

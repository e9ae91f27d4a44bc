"""The rows of an input that belong to a row of an output, as of the record up to which the input was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys import hashing
from floodmark.ledger.merge.batch import CORRECT_FROM, RETRACT
from floodmark.ledger.scan import alive
from floodmark.ledger.selection import NOBODY
from floodmark.provenance.opened import Opened
from floodmark.provenance.origin import Link, Pairs
from floodmark.storage.arrays import I64
from floodmark.transform.changed.casting import cast_where_it_fits
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import InputShape, Shape
from floodmark.transform.views.reading.found import Limits, find_rows

_ANY = Limits(1 << 62)


@dataclass(frozen=True)
class Matching:
    """Rows of an input: how many there are, and the offsets of those that belong to one row in particular."""

    rows: int
    offsets: I64  # none where all rows of the input belong to it
    missing: str | None = None  # why some may be missing


def rows_of(given: Opened, link: Link, values: pa.Table) -> Matching:
    """The rows of an input that belong to output rows with these values, each once, as of the link's position."""
    pinned = given.as_of(link.position)
    missing = missing_of(given, link)
    if pinned.end <= pinned.purged_before or pinned.layout is None:
        return Matching(0, NOBODY, missing)
    if link.by is None:
        return Matching(pinned.live_rows, NOBODY, missing)
    if link.by and {column for _, column in link.by} == {pinned.layout.vocab.offset}:
        offsets = _by_offset(pinned, values.column(link.by[0][0]))
    else:
        names = [name for name, _ in link.by]
        keys = values.select(names)
        keys = keys.take(pa.array(hashing.hash_rows(keys, names).first_of_each()))
        offsets = find_rows(pinned, shape_of(pinned, link.by, keys.schema), 0, keys, [], _ANY).offsets
    is_one = missing is not None and len(offsets) == values.num_rows and _is_key(pinned, link.by)
    return Matching(len(offsets), offsets, None if is_one else missing)


def gone_between(given: Opened, link: Link, values: pa.Table, since: int) -> I64:
    """The retractions of such rows after a record, up to and with the link's position."""
    pinned = given.as_of(link.position)
    if not link.by or pinned.layout is None or pinned.end <= since + 1:
        return NOBODY
    vocab = pinned.layout.vocab
    columns = [column for _, column in link.by]
    if vocab.offset in columns:
        return NOBODY
    scan = pinned.for_tasks.scan(pinned.records(since + 1), list(dict.fromkeys([vocab.offset, vocab.op, *columns])))
    records = scan.to_reader(pc.field(vocab.op).isin([RETRACT, CORRECT_FROM])).read_all()
    wanted, fits = cast_where_it_fits(
        [values.column(name) for name, _ in link.by], [pinned.layout.data.field(column) for column in columns]
    )
    keys = pa.table(wanted, names=columns).filter(pa.array(fits))
    there = hashing.hash_rows(records, columns).among(hashing.hash_rows(keys, columns))
    offsets: I64 = np.sort(records.column(vocab.offset).to_numpy()[there])
    return offsets


def shape_of(pinned: PinnedInput, by: Pairs, keys: pa.Schema) -> Shape:
    """What finding rows by these columns needs to know."""
    assert pinned.layout is not None
    strategy = pinned.strategy
    plain = pa.schema([pa.field(f.name, f.type) for f in keys])
    given = InputShape(
        pinned.name, pinned.dataset_id, dict(by), strategy.key, strategy.lookup, pinned.layout.data, False, True
    )
    return Shape(plain, (given,), "keyed")


def _by_offset(pinned: PinnedInput, column: pa.ChunkedArray) -> I64:
    offsets = np.unique(column.drop_null().to_numpy())
    offsets = offsets[(offsets >= pinned.purged_before) & (offsets < pinned.end)]
    kept = alive(offsets, pinned.dead)
    return offsets if kept is None else offsets[kept]


def _is_key(pinned: PinnedInput, by: Pairs) -> bool:
    return bool(pinned.strategy.key) and {column for _, column in by} >= set(pinned.strategy.key)


def missing_of(given: Opened, link: Link) -> str | None:
    """Why rows that there were may not be found any more."""
    pinned = given.as_of(link.position)
    if link.position >= given.snapshot.next_offset:
        return f"it has no record {link.position} any more: it is not the dataset that was read"
    if pinned.purged_before > link.purged and link.position >= 0:
        return f"its records before offset {pinned.purged_before} are purged: rows among them cannot be told any more"
    return None

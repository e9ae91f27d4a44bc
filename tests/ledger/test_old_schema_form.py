"""A chain whose schema is in the form of older writers is read and written like any other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from chain.arrow_schemas import raw_schema
from floodmark.chain.events import AddData, DataSlice, OffsetInterval, SetDataSchema
from floodmark.chain.ids import Multihash
from floodmark.storage.logical_hash import logical_hash
from floodmark.storage.memory import MemoryStore
from ledger.other_writers import add_event, chain_state, move_head, put_blocks, relinked
from ledger.worlds import Clock, blocks, events

ROWS = events(3, 1, 2)


def opened(store):
    return fm.Lake(store, runtime=fm.Runtime(clock=Clock()))["d"]


def world(**options):
    dataset = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=Clock())).create("d", event_time="at", **options)
    dataset.write(ROWS.slice(0, 2))
    dataset.write(ROWS.slice(2))
    return dataset


def in_old_form(dataset, encoded=lambda schema: schema):
    """The same dataset with its schema in the old form, in a store of its own."""
    objects = dataset.snapshot().objects
    raw = raw_schema(encoded(dataset.snapshot().layout.slice_schema))
    chain = relinked(
        [block for _, block in blocks(dataset)],
        lambda event: SetDataSchema(raw) if isinstance(event, SetDataSchema) else event,
    )
    store = MemoryStore()
    for info in objects.store.list(""):
        if "/info/" not in info.key:
            store.put_derived(info.key, objects.store.get(info.key))
    copied = type(objects)(store, objects.folder)
    move_head(copied, put_blocks(copied, chain)[-1])
    return opened(store)


def optional_offset(schema):
    """Some older writers declared the offset as optional."""
    return schema.set(0, schema.field(0).with_nullable(True))


@pytest.mark.parametrize("options", [{}, {"key": "i"}], ids=["append", "keyed"])
@pytest.mark.parametrize("encoded", [lambda schema: schema, optional_offset], ids=["as is", "optional offset"])
def test_chain_in_the_old_form_is_used_like_the_same_chain_in_the_new_form(options, encoded):
    new = world(**options)
    old = in_old_form(new, encoded)
    more, column = events(9, 9, 9, 4), {"c": "string"}

    for step in (
        lambda d: None,
        lambda d: d.write(more) and None,
        lambda d: d.evolve(column) and None,
        lambda d: d.write(more.slice(3).append_column("c", pa.array(["x"]))) and None,
    ):
        step(new)
        step(old)
        names = new.to_arrow().column_names
        assert sorted(old.schema.names) == sorted(names)
        assert old.to_arrow(columns=names).equals(new.to_arrow(columns=names))
        assert old.changes_arrow().select(names).equals(new.changes_arrow().select(names))
        assert old.event_time == "at"
        assert old.verify().ok
    assert "set columns: offset, op, system_time, at, i" in [entry.summary for entry in old.log()]


def test_slices_in_other_encodings_are_read_and_verified():
    """Older writers stored text as Arrow's wide strings or views, in the schema and in the files."""
    dataset = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=Clock())).create("d", schema={"s": "string"})
    dataset.write(pa.table({"s": ["a", "b"]}))
    for encoding in (pa.large_string(), pa.string_view()):
        old = in_old_form(dataset, lambda schema, e=encoding: schema.set(4, schema.field(4).with_type(e)))
        assert old.schema.field("s").type == pa.string()
        objects = old.snapshot().objects
        add_event(objects, data_block(objects, old.changes_arrow().slice(0, 1), encoding))
        assert old.to_arrow(columns=["s"]).column("s").to_pylist() == ["a", "b", "a"]
        assert old.verify().problems == ()


def data_block(objects, record, encoding) -> AddData:
    """A block with this record again, in a file of another encoding."""
    state = chain_state(objects)
    at = state.next_offset
    names = ["offset", "op", "system_time", "event_time", "s"]
    row = record.set_column(0, record.schema.field("offset"), pa.array([at])).select(names)
    row = row.set_column(4, pa.field("s", encoding), row.column("s").cast(encoding))
    logical = logical_hash(row)
    sink = pa.BufferOutputStream()
    pq.write_table(row, sink)
    data = sink.getvalue().to_pybytes()
    physical = Multihash.sha3_256(data)
    objects.put_named(objects.data_key(physical), data)
    new_data = DataSlice(logical, physical, OffsetInterval(at, at), len(data))
    return AddData(prev_offset=state.last_offset, new_data=new_data, new_watermark=state.watermark)

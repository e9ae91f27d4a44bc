"""Hypothesis strategies for blocks with any content of every event kind, valid in a chain or not."""

from functools import cache

from hypothesis import strategies as st

from conformance.wire import ENUMS, FIELDS, MEMBERS, dataclass_of
from floodmark.chain.events import MetadataBlock, SetDataSchema, SetPollingSource
from floodmark.chain.ids import LOGICAL, SHA3_256, DatasetId, Multihash
from floodmark.chain.schema import DataField, DataSchema
from floodmark.chain.source_steps import FetchStepUrl, MergeStrategyAppend, PrepStepWrapper, ReadStepParquet

YEAR_1, YEAR_10000 = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9
MAX_DEPTH = 3
NESTED = {"DataTypeList", "DataTypeMap", "DataTypeOption", "DataTypeStruct"}


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    # Often the ends of the range: a slot one bit too narrow must not stay hidden.
    return st.sampled_from([low, 0, high]) | st.integers(low, high)


texts = st.text(max_size=8)
digests = st.binary(min_size=32, max_size=32)
LEAVES = {
    "bool": st.booleans(),
    "i16": _integers(-(2**15), 2**15 - 1),
    "i32": _integers(-(2**31), 2**31 - 1),
    "u32": _integers(0, 2**32 - 1),
    "u64": _integers(0, 2**63 - 1),  # no dataset can have more records or bytes; larger numbers are refused
    "string": texts,
    "bytes": st.binary(max_size=9),
    "hash": st.builds(Multihash, st.sampled_from([SHA3_256, LOGICAL]), digests),
    "id": st.builds(DatasetId, digests),
    "timestamp": st.integers(YEAR_1, YEAR_10000 - 1),
}


def blocks_with(event: str) -> st.SearchStrategy[MetadataBlock]:
    """Blocks whose event is of this kind."""
    return st.builds(
        MetadataBlock,
        system_time=LEAVES["timestamp"],
        prev_block_hash=st.none() | LEAVES["hash"],
        sequence_number=LEAVES["u64"],
        event=_table(event, 0),
    )


def any_block() -> st.SearchStrategy[MetadataBlock]:
    return st.one_of([blocks_with(event) for event in MEMBERS["MetadataEvent"]])


def blocks_around(union: str, member: str) -> st.SearchStrategy[MetadataBlock]:
    """Blocks with this member of this union in them."""
    value = _table(member, MAX_DEPTH)
    polling = {"fetch": FetchStepUrl("url"), "read": ReadStepParquet(), "merge": MergeStrategyAppend()}
    event = {
        "DataType": lambda type_: SetDataSchema(schema=DataSchema((DataField("a", type_),))),
        "FetchStep": lambda step: SetPollingSource(**{**polling, "fetch": step}),
        "EventTimeSource": lambda time: SetPollingSource(**{**polling, "fetch": FetchStepUrl("url", time)}),
        "PrepStep": lambda step: SetPollingSource(**polling, prepare=(PrepStepWrapper(step),)),
        "ReadStep": lambda step: SetPollingSource(**{**polling, "read": step}),
        "MergeStrategy": lambda merge: SetPollingSource(**{**polling, "merge": merge}),
    }[union]
    return value.map(lambda drawn: MetadataBlock(system_time=0, sequence_number=0, event=event(drawn)))


@cache
def _table(name: str, depth: int) -> st.SearchStrategy:
    return st.builds(dataclass_of(name), **{field.name: _field(field, depth) for field in FIELDS[name]})


def _field(field, depth):
    strategy = _kind(field.kind, depth)
    return st.none() | strategy if field.optional else strategy


def _kind(kind, depth):
    if kind in LEAVES:
        return LEAVES[kind]
    if kind in ENUMS:
        return st.sampled_from(dataclass_of(kind))
    if kind.startswith("["):
        return st.lists(_kind(kind[1:-1], depth), max_size=3).map(tuple)
    if kind in MEMBERS:
        names = [name for name in MEMBERS[kind] if depth < MAX_DEPTH or name not in NESTED]
        return st.one_of([_table(name, depth + 1) for name in names])
    return _table(kind, depth)

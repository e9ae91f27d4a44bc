"""Datasets with very long chains for benchmarks. All blocks are valid, but most are written without fsync."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import floodmark as fm
from floodmark.chain.ids import Multihash, format_head
from floodmark.chain.state import apply_block
from floodmark.ledger import slice_index
from floodmark.ledger.commit import empty_event, plan_blocks
from floodmark.ledger.objects import DatasetObjects
from trips import trips

ROWS = 100
"""The rows of each data block."""


def long_chain(root: Path, lake: fm.Lake, name: str, blocks: int, data_blocks: int, real: int = 0) -> DatasetObjects:
    """A dataset with this many blocks, most of them empty, like a year of a quiet sensor.

    Every block is planned like a commit, checked against all rules, and named by its hash. But there is no fsync, and
    the index is rebuilt only before a data block and at the end. The last `real` blocks are normal commits, so the
    index is as far behind as in a normal lake.
    """
    dataset = lake.create(name, event_time="pickup_at")
    dataset.write(trips(0, ROWS))
    objects, state = dataset.snapshot().objects, dataset.snapshot().state
    folder = root / objects.folder / "blocks"
    every = max(1, blocks // data_blocks)
    while state.next_sequence_number < blocks - real:
        number = state.next_sequence_number
        if number % every == 0 and number > every:
            assert state.head is not None
            _publish(objects, state.head.hash)
            dataset = lake[name]
            dataset.write(trips(state.next_offset, ROWS))
            state = dataset.snapshot().state
            continue
        event = replace(empty_event(state), new_watermark=(state.watermark or 0) + 1_000)
        [(block_hash, data, block)], _ = plan_blocks(state, [event], state.system_time or 0)
        (folder / block_hash.text).write_bytes(data)  # no fsync: this is the input of a benchmark, not what it measures
        state = apply_block(state, block_hash, block)
    assert state.head is not None
    _publish(objects, state.head.hash)
    for number in range(real):
        lake[name].write(trips(state.next_offset + number * ROWS, ROWS))
    return objects


def _publish(objects: DatasetObjects, head: Multihash) -> None:
    if objects.read_head() != head:
        old = objects.read_head()
        objects.head.swap(None if old is None else format_head(old), format_head(head), lambda _: None)
    slice_index.rebuild(objects, head)

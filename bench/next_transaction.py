"""Preparing the next commit on a very long chain against a very short one, with the objects read counted.

Run: python bench/next_transaction.py --blocks 100000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import floodmark as fm
from floodmark.chain.events import AddData
from floodmark.chain.hashes import Multihash
from floodmark.chain.state import advance
from floodmark.ledger import index, snapshot
from floodmark.ledger.commit import empty_event, plan_blocks
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.counting import CountingStore
from floodmark.storage.local import LocalStore
from measuring import Figure, alternate, measured
from trips import trips

DATA_BLOCKS = 12
SHORT = 10


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    blocks, repeats = args.blocks, args.repeats
    store = CountingStore(LocalStore(root / "lake"))
    lake = fm.Lake(store)
    long = _chain(root, lake, "long", blocks)
    short = _chain(root, lake, "short", SHORT)
    reads = {name: _reads(store, lambda o=objects: _prepare(o)) for name, objects in (("long", long), ("short", short))}
    opened = _reads(store, lambda: [(d.name, d.count(), d.watermark) for d in lake.datasets()])
    slow, fast = alternate(lambda: _prepare(long), lambda: _prepare(short), repeats)
    return [
        Figure(
            f"preparing a commit on {blocks:,} blocks ÷ on {SHORT}",
            slow / fast,
            1.5,
            f"{slow * 1e3:.2f} ms ÷ {fast * 1e3:.2f} ms",
        ),
        Figure("objects read on the long chain", reads["long"], 4, f"{reads['short']} on the short one"),
        Figure("objects read on the short chain", reads["short"], 4, ""),
        Figure("objects read to open and list both datasets", opened, 12, "names, heads, blocks, segments"),
    ]


def _prepare(objects: DatasetObjects) -> None:
    """Everything up to the publication of an event that moves the watermark."""
    head = objects.read_head()
    assert head is not None
    seen = snapshot.load_at(objects, head, {})
    event = replace(empty_event(seen.state), new_watermark=(seen.state.watermark or 0) + 1)
    plan_blocks(seen.state, [event], seen.state.system_time or 0)


def _reads(store: CountingStore, action: Callable[[], object]) -> int:
    before = store.counts.reads
    action()
    return store.counts.reads - before


def _chain(root: Path, lake: fm.Lake, name: str, blocks: int) -> DatasetObjects:
    """A dataset of so many blocks, all but twelve of the data blocks empty: a year of a quiet sensor."""
    dataset = lake.create(name, event_time="pickup_at")
    dataset.write(trips(0, 100))
    seen = dataset.snapshot()
    objects, state = seen.objects, seen.state
    folder = root / "lake" / objects.folder / "blocks"
    every = max(1, blocks // DATA_BLOCKS)
    while state.head is not None and state.head.sequence_number < blocks - 1:
        if state.head.sequence_number % every == every - 1 and state.head.sequence_number > every:
            seen = _published(objects, state.head.hash)
            dataset = lake[name]
            dataset.write(trips(state.next_offset, 100))
            state = dataset.snapshot().state
            continue
        event: AddData = replace(empty_event(state), new_watermark=(state.watermark or 0) + 1)
        [(block_hash, data, block)], _ = plan_blocks(state, [event], state.system_time or 0)
        (folder / block_hash.text).write_bytes(data)  # no fsync: this is a benchmark's input, not its subject
        state = advance(state, block_hash, block)
    assert state.head is not None
    _published(objects, state.head.hash)
    return objects


def _published(objects: DatasetObjects, head: Multihash) -> snapshot.Snapshot:
    objects.move_head(objects.read_head(), head)
    index.rebuild(objects, head)
    return snapshot.load_at(objects, head, {})


if __name__ == "__main__":
    measured(__doc__ or "", _measure, blocks=20_000, repeats=201)

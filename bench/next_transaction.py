"""Prepare the next commit on a very long chain against a very short one, with a count of objects read.

Run: python bench/next_transaction.py --blocks 100000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import floodmark as fm
from chains import long_chain
from floodmark.ledger import snapshot
from floodmark.ledger.commit import empty_event, plan_blocks
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore
from measuring import Curve, Figure, Growth, alternate, measured

DATA_BLOCKS = 12
SHORT = 10


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    blocks, repeats = args.blocks, args.repeats
    store = CountingStore(LocalStore(root / "lake"))
    lake = fm.Lake(store)
    long = long_chain(root / "lake", lake, "long", blocks, DATA_BLOCKS)
    short = long_chain(root / "lake", lake, "short", SHORT, DATA_BLOCKS)
    reads = {name: _reads(store, lambda o=objects: _prepare(o)) for name, objects in (("long", long), ("short", short))}
    opened = _reads(store, lambda: [(d.name, d.count(), d.watermark) for d in lake.datasets()])
    slow, fast = alternate(lambda: _prepare(long), lambda: _prepare(short), repeats)
    growth = Growth("next_transaction", "Preparing the next commit", "blocks of the chain", "ms", x_scale="log")
    growth.add("floodmark", SHORT, fast * 1e3)
    growth.add("floodmark", blocks, slow * 1e3)
    for between in (blocks // 100, blocks // 10):
        other = long_chain(root / "lake", lake, f"blocks{between}", between, DATA_BLOCKS)
        growth.add(
            "floodmark", between, alternate(lambda o=other: _prepare(o), lambda: _prepare(short), repeats)[0] * 1e3
        )
    return [
        Figure(
            "time",
            f"preparing a commit on {blocks:,} blocks ÷ on {SHORT}",
            slow / fast,
            f"{slow * 1e3:.2f} ms ÷ {fast * 1e3:.2f} ms",
        ),
        Figure("reads.long", "objects read on the long chain", reads["long"], f"{reads['short']} on the short one"),
        Figure("reads.short", "objects read on the short chain", reads["short"], f"{reads['long']} on the long one"),
        Figure(
            "reads.opening", "objects read to open and list both datasets", opened, "names, heads, blocks, segments"
        ),
        growth.curve(),
    ]


def _prepare(objects: DatasetObjects) -> None:
    """Prepare an event that moves the watermark, up to but without its publication."""
    head = objects.read_head()
    assert head is not None
    seen = snapshot.load_snapshot(objects, head, {})
    event = replace(empty_event(seen.state), new_watermark=(seen.state.watermark or 0) + 1)
    plan_blocks(seen.state, [event], seen.state.system_time or 0)


def _reads(store: CountingStore, action: Callable[[], object]) -> int:
    before = store.counts.reads
    action()
    return store.counts.reads - before


if __name__ == "__main__":
    measured(__doc__ or "", _measure, blocks=20_000, repeats=201)

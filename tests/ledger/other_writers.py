"""Another program that adds blocks to a dataset: it hashes them correctly and checks no rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from floodmark.chain.events import AddData, MetadataBlock, MetadataEvent
from floodmark.chain.ids import Multihash, format_head
from floodmark.chain.state import EMPTY, ChainState, apply_block
from floodmark.chain.walk import walk_back
from floodmark.chain.wire import encode
from floodmark.ledger.objects import DatasetObjects


def chain_state(objects: DatasetObjects) -> ChainState:
    """The state at the head, from all blocks."""
    head = objects.read_head()
    state = EMPTY
    for block_hash, _, block in [] if head is None else reversed(list(walk_back(objects.get_block, head))):
        state = apply_block(state, block_hash, block)
    return state


def add_event(objects: DatasetObjects, event: MetadataEvent, seconds: int = 1) -> Multihash:
    """Add a block with this event, and move the head to it."""
    state = chain_state(objects)
    block = MetadataBlock(
        system_time=(state.system_time or 0) + seconds * 10**9,
        prev_block_hash=state.head_hash,
        sequence_number=state.next_sequence_number,
        event=event,
    )
    [added] = put_blocks(objects, [block])
    move_head(objects, added)
    return added


def put_blocks(objects: DatasetObjects, blocks: Sequence[MetadataBlock]) -> list[Multihash]:
    """Store blocks, and return their hashes."""
    hashes = []
    for block in blocks:
        data = encode(block)
        hashes.append(Multihash.sha3_256(data))
        objects.put_block(hashes[-1], data)
    return hashes


def relinked(
    blocks: Sequence[MetadataBlock], change: Callable[[MetadataEvent], MetadataEvent] = lambda event: event
) -> list[MetadataBlock]:
    """The same chain with changed events: each block has the hash of the one before it again."""
    chain: list[MetadataBlock] = []
    for block in blocks:
        before = Multihash.sha3_256(encode(chain[-1])) if chain else None
        chain.append(replace(block, event=change(block.event), prev_block_hash=before))
    return chain


def replace_slice(objects: DatasetObjects, path: Path) -> None:
    """Let this file of the same records be the only slice, as if another program had written the dataset."""
    head = objects.read_head()
    assert head is not None
    data = path.read_bytes()
    physical = Multihash.sha3_256(data)
    objects.store.put_if_absent(objects.data_key(physical), data)

    def change(event: MetadataEvent) -> MetadataEvent:
        if not isinstance(event, AddData) or event.new_data is None:
            return event
        return replace(event, new_data=replace(event.new_data, physical_hash=physical, size=len(data)))

    blocks = [block for _, _, block in walk_back(objects.get_block, head)][::-1]
    move_head(objects, put_blocks(objects, relinked(blocks, change))[-1])


def move_head(objects: DatasetObjects, to: Multihash) -> None:
    """Let the head name this block."""
    head = objects.read_head()
    old = None if head is None else format_head(head)
    assert objects.store.compare_and_swap(objects.head_key, old, format_head(to))

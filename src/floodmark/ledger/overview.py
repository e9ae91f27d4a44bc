"""What a list of datasets shows of each. It reads only the head, the newest block and the newest index segment.

A snapshot would also decode the columns, the query and the notes on how slices are stored: most of the time of a list.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.chain.events import MetadataBlock, SetDataSchema, SetInfo, SetLicense, SetTransform
from floodmark.chain.ids import Multihash
from floodmark.chain.state import ChainState
from floodmark.chain.walk import read_block
from floodmark.errors import ObjectNotFound, UnknownDataset
from floodmark.ledger import slice_index
from floodmark.ledger.log import last_change
from floodmark.ledger.names import NameEntry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_segment import Totals

_NOT_SHOWN = frozenset(event.__name__ for event in (SetDataSchema, SetTransform, SetInfo, SetLicense))


@dataclass(frozen=True)
class DatasetOverview:
    """A dataset as of its head. Its state has neither columns nor a transform."""

    entry: NameEntry
    head: Multihash
    block: MetadataBlock
    state: ChainState
    totals: Totals
    objects: DatasetObjects

    @property
    def records(self) -> int:
        """How many records can be read."""
        return self.state.next_offset - self.totals.purged_before

    @property
    def last_change(self) -> str:
        """What the newest commit changed, in short."""
        return last_change(self.objects, self.head, self.block)


def load_overview(entry: NameEntry, objects: DatasetObjects) -> DatasetOverview:
    """The overview of the dataset with this name. Raises an error if it cannot be read or does not exist any more."""
    head = objects.read_head()
    if head is None:
        raise _gone(entry)
    try:
        data = objects.get_block(head)
        block = read_block(head, data)
        index = slice_index.load(objects, head, data, block, {})
        return DatasetOverview(entry, head, block, index.state(block, _NOT_SHOWN), index.newest.totals, objects)
    except ObjectNotFound as error:
        if objects.read_head() is None:
            raise _gone(entry) from error
        raise


def _gone(entry: NameEntry) -> UnknownDataset:
    return UnknownDataset(
        f"dataset {entry.name!r} no longer exists", hint="it was dropped: create it again", name=entry.name
    )

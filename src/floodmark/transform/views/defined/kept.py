"""Which checkpoints a view still needs: the values that its functions computed are nowhere else by source offset."""

from __future__ import annotations

from floodmark.chain.ids import DatasetId
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import FRAGMENT_ROWS
from floodmark.compute.stored.gc import Used
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.values import prefix_of
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.views.defined.stored import stored


def used_by(snapshot: Snapshot) -> tuple[Used, ...]:
    """What a view has of its source's records; nothing if it is no view, was replaced, or its source is gone."""
    found = stored(snapshot.state)
    if found is None or not found.definition.udfs or _was_replaced(snapshot):
        return ()
    [use] = found.analysis.sources  # functions compute columns of one source's rows
    objects = dataset_objects(snapshot.objects.store, DatasetId.parse(use.dataset_id))
    head = objects.read_head()
    if head is None:
        return ()
    source = PinnedInput(use.alias, use.dataset_id, load_at(objects, head, {}))
    catalog = catalogs.load(ColumnObjects(objects))
    return tuple(
        Used(
            prefix_of(catalog, use.dataset_id, udf.field, udf.function.name, udf.function.version, udf.inputs),
            FRAGMENT_ROWS,
            source.dead,
            source.purged_before,
        )
        for udf in found.definition.udfs
    )


def _was_replaced(snapshot: Snapshot) -> bool:
    """Whether these are the old rows of a view, which nothing refreshes any more."""
    entries = names.all_entries(snapshot.objects.store)
    named = [entry for entry in entries if snapshot.state.dataset_id in (entry.id, entry.pending)]
    return bool(named) and all(entry.rows_of is not None for entry in named)

"""The input rows of records of joined and other views: found by running the query again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from floodmark.errors import QueryFailed
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.provenance.origin import InputLink, Origin, view_at
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets
from floodmark.rows.key_entries import NO_ROW
from floodmark.storage.arrays import I64
from floodmark.views.evaluator import IsolatedSession
from floodmark.views.lineage import NotTraced, trace_rows
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.stored_definition import StoredView

RowOrigins = dict[str, I64]
"""By the id of an input, the offsets of its rows that a record came from."""


@dataclass(frozen=True)
class ViewTracer:
    """Finds the rows that records of views came from, and caches them."""

    datasets: OpenedDatasets
    _known: dict[tuple[str, int], RowOrigins | None] = field(default_factory=dict, repr=False)

    def offsets(self, output: OpenedDataset, offset: int, origin: Origin) -> RowOrigins | None:
        """The rows that a record came from.

        Empty if the query has no such row over the inputs that it read; None if it cannot be run or traced.
        """
        return self.offsets_of_all(output, np.array([offset], np.int64), origin)[0]

    def offsets_of_all(self, output: OpenedDataset, offsets: I64, origin: Origin) -> list[RowOrigins | None]:
        """The same for sorted records of one transaction, with one run of the query."""
        missing = [offset for offset in offsets.tolist() if (output.id, offset) not in self._known]
        if missing:
            found = self._trace(output, np.array(missing, np.int64), origin)
            self._known.update({(output.id, offset): one for offset, one in zip(missing, found, strict=True)})
        return [self._known[output.id, offset] for offset in offsets.tolist()]

    def _trace(self, output: OpenedDataset, offsets: I64, origin: Origin) -> list[RowOrigins | None]:
        unknown: list[RowOrigins | None] = [None] * len(offsets)
        view = view_at(output, output.transaction_at(int(offsets[0])))
        sources = None if view is None else self._sources(view, origin)
        if view is None or sources is None:
            return unknown
        session = IsolatedSession(self.datasets.lake.runtime.session, view.analysis.settings)
        if not session.has_plans:
            return unknown
        try:
            found = trace_rows(output.name, view.analysis, sources, session, output.records(offsets))
        except (NotTraced, QueryFailed):  # over rows of which some are gone, the query may fail where it did not then
            return unknown
        ids = {source.alias: source.dataset_id for source in sources}
        return [{} if one is None else {ids[alias]: rows for alias, rows in one.items()} for one in found]

    def _sources(self, view: StoredView, origin: Origin) -> list[ViewInputSnapshot] | None:
        """The inputs as of the positions of a refresh; None if one is gone, or its computed columns are needed."""
        links = {link.dataset_id: link for link in origin.links}
        sources = []
        for use in view.analysis.sources:
            link = links.get(use.dataset_id)
            given = None if link is None else self.datasets.of_id(use.dataset_id, use.alias)
            if link is None or given is None or given.snapshot.layout is None or use.computed:
                return None
            sources.append(ViewInputSnapshot(use, given.as_of(link.position)))
        return sources


def find_ended(given: OpenedDataset, link: InputLink, offsets: I64) -> I64:
    """The records up to the link's position that ended these rows of an input."""
    index = given.as_of(link.position).newest_index
    if index is None or not len(offsets):
        return NO_OFFSETS
    ended = index.ended_by(offsets)
    return np.unique(ended[(ended != NO_ROW) & (ended <= link.position)])

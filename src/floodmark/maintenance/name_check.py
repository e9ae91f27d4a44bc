"""Checks that every dataset with records has a name, and that every name can be read."""

from __future__ import annotations

from collections.abc import Iterator

from floodmark.ledger import names
from floodmark.ledger.verify import VerifyProblem
from floodmark.maintenance import gc
from floodmark.storage.store import Store


def find_name_problems(store: Store) -> Iterator[VerifyProblem]:
    """Names that cannot be read, and datasets with records that no name refers to."""
    damaged: list[names.DamagedName] = []
    names.all_entries(store, damaged.append)
    for error in {one.message: one for one in damaged}.values():
        yield VerifyProblem("name", "names", f"{error.message}; {error.hint}")
    if damaged:
        return  # the datasets of these names are not known
    for one in gc.find_all_unnamed(store):
        if one.has_head and one.records != 0 and not one.was_replacement:
            records = "unreadable records" if one.records is None else f"{one.records} records"
            found = f"dataset {one.id} has {records} and no name: its file in names/ was lost, or a drop stopped"
            hint = f"restore the file from a copy, or write it again; to remove the dataset: floodmark gc {one.id}"
            yield VerifyProblem("name", str(one.id), f"{found}; {hint}")

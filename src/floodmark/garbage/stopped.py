"""What stopped work left beside a dataset: results of runs that nobody went on with, and in a bucket staged objects."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from floodmark.garbage.found import GRACE_SECONDS, young
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.store import ObjectInfo

RESULTS_SECONDS = 30 * 86_400.0
"""How long results of a stopped run stay: the next run of the step, if there is one, need not compute them again."""

_RESULTS = "info/transform/chunks"
_STAGED = ("staging", "info/transform/leaving")


def find_results(objects: DatasetObjects, now: float) -> tuple[ObjectInfo, ...]:
    """Results of versions of a step that no run has stored anything of for a month."""
    return _abandoned(objects, _RESULTS, now - RESULTS_SECONDS)


def find_staged(objects: DatasetObjects, now: float) -> tuple[ObjectInfo, ...]:
    """Objects that a write or run staged in a bucket and never came back to; in a folder these are files elsewhere."""
    return tuple(info for part in _STAGED for info in _abandoned(objects, part, now - GRACE_SECONDS))


def _abandoned(objects: DatasetObjects, part: str, oldest: float) -> tuple[ObjectInfo, ...]:
    """What lies in folders of a part in which nothing was written since a moment: each is one writer's."""
    prefix = f"{objects.folder}/{part}"

    def writer(info: ObjectInfo) -> str:
        return info.key.removeprefix(f"{prefix}/").partition("/")[0]

    listed = sorted(objects.store.list(prefix), key=lambda info: info.key)
    groups: Iterable[list[ObjectInfo]] = (list(some) for _, some in groupby(listed, writer))
    return tuple(info for some in groups if not any(young(one, oldest) for one in some) for info in some)

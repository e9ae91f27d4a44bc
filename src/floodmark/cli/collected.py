"""What a collection took away from a dataset, and why the rest stays."""

from __future__ import annotations

import time
from dataclasses import dataclass

from floodmark.compute.stored.gc import Garbage
from floodmark.dataset import Dataset
from floodmark.storage.sweep import GRACE_SECONDS


@dataclass(frozen=True)
class Collected:
    """Checkpoints and files that went or would go; `young` and `needed` are the checkpoints that stay."""

    dataset: str
    checkpoints: int
    files: int
    size: int
    young: int
    needed: int
    keys: list[str]

    @classmethod
    def of(cls, dataset: Dataset, garbage: Garbage) -> Collected:
        gone = {info.key for info in garbage.checkpoints}
        oldest = time.time() - GRACE_SECONDS
        staying = [info for info in dataset.checkpoints.infos() if info.key not in gone]
        young = sum(info.modified >= oldest for info in staying)
        return cls(
            dataset=dataset.name,
            checkpoints=len(garbage.checkpoints),
            files=len(garbage.files),
            size=garbage.bytes,
            young=young,
            needed=len(staying) - young,
            keys=garbage.keys,
        )

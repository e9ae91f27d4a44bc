"""What a step needs of the lake it runs in, and of what is known about its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from floodmark.chain.events import SetTransform
from floodmark.chain.ids import DatasetId
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.store import Store


class DatasetLike(Protocol):
    """A dataset of the lake."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> DatasetId: ...

    def snapshot(self) -> Snapshot:
        """The dataset as of its present head."""


class LakeLike(Protocol):
    """A lake, as steps see it: `floodmark.lake.Lake` is one."""

    @property
    def store(self) -> Store: ...

    @property
    def runtime(self) -> Runtime: ...

    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: object) -> bool: ...

    def create_derived(
        self,
        name: str,
        *,
        key: Sequence[str] | str,
        lookup: Sequence[str] | str | None = None,
        event_time: str | None = None,
        schema: Any = None,
        transform: SetTransform | None = None,
    ) -> Any:
        """Make a dataset that a step computes from others."""


class KnownKeys(Protocol):
    """What is known of the keys that were processed: `TransformMeta` is one. It travels to tasks."""

    @property
    def keys(self) -> int:
        """How many keys were processed."""

    @property
    def positions(self) -> Mapping[str, int]:
        """By dataset id the offset up to which every change is processed, -1 when nothing is."""

    def processed_up_to(self, hashes: Hashes, inputs: Sequence[str]) -> I64:
        """Per key and input the newest offset that the run which processed the key knew of; NEVER when none did."""

    def settled(self, dataset: str) -> int | None:
        """The newest offset of an input that every result accounts for; None when there is nothing to account for."""

    def is_ahead(self, inputs: Sequence[str]) -> bool:
        """Whether some key may have been processed beyond the positions."""

    def failed(self) -> pa.Table:
        """The keys whose last call failed."""

    def due(self, now_ms: int) -> pa.Table:
        """Those of them that are to be tried again."""


NEVER = -2
"""Stands for the offset up to which a key was processed that never was."""

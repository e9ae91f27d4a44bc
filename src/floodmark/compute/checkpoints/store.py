"""The checkpoints of columns: stored results under readable keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.compute.checkpoints.keys import parse_key
from floodmark.compute.checkpoints.paths import Group, fragment_folder, place_of
from floodmark.compute.errors import BadCheckpoint
from floodmark.derive.result_cache import ResultCache
from floodmark.storage.document import Damaged
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo, Store


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint: its key, its size in bytes and when it was put (epoch seconds)."""

    key: str
    size: int
    modified: float


class CheckpointStore:
    """Checkpoints in a folder of a store. Threads and processes may share it, and it can be pickled into tasks.

    `list_keys` is the truth about what is there. Checkpoints can be lost (a crash of the machine may tear the last
    ones); what is lost is computed again.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = folder
        self._results = ResultCache(store, f"{folder}/batches")
        self._named: set[str] = set()  # groups whose text is known to be there
        self._groups: dict[str, Group] = {}  # by the names of their folders; what a name means never changes

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointStore, (self.store, self.folder)

    def __repr__(self) -> str:
        return f"CheckpointStore({self.store!r}, {self.folder!r})"

    def put(self, key: str, batch: pa.RecordBatch) -> None:
        """Store a batch, in place of what the key had."""
        self._results.put(self._named_place(key), key, batch)

    def keep(self, key: str, batch: pa.RecordBatch) -> bool:
        """Store a batch that takes the place of others, durably; False when the key has one already."""
        return self._results.keep(self._named_place(key), key, batch)

    def get(self, key: str) -> pa.RecordBatch:
        """The batch of a key; `ObjectNotFound` when there is none, `BadCheckpoint` when it cannot be trusted."""
        try:
            return self._results.get(place_of(key).path, key).batch
        except Damaged as error:
            raise BadCheckpoint(
                f"The checkpoint {key!r} cannot be used: {error.problem}.",
                hint="Delete it; the next backfill computes its range again.",
                key=key,
                problem=error.problem,
            ) from error

    def has(self, key: str) -> bool:
        """Whether there is a checkpoint under this key; it may still prove bad."""
        return self._results.stat(place_of(key).path) is not None

    def info(self, key: str) -> CheckpointInfo | None:
        """The size and age of a checkpoint, None when it is not there."""
        found = self._results.stat(place_of(key).path)
        return None if found is None else CheckpointInfo(key, found.size, found.modified)

    def delete(self, key: str) -> None:
        """Remove a checkpoint; one that is not there is fine."""
        self._results.delete(place_of(key).path)

    def object_key(self, key: str) -> str:
        """Under which key the store has a checkpoint."""
        return self._results.object_key(place_of(key).path)

    def list_keys(self, prefix: str = "") -> list[str]:
        """Every key that begins with this text, sorted."""
        return sorted(info.key for info in self.infos(prefix))

    def list_any_where(self, prefix: str, fragment: int) -> list[str]:
        """The keys of one fragment of a computation and of the same one under every other `where`, sorted."""
        group = Group.of(prefix)
        return sorted(key for _, key in self._listed(group, fragment_folder(fragment)) if key is not None)

    def fragment_infos(self, prefix: str, fragment: int) -> list[CheckpointInfo]:
        """The checkpoints of one fragment of a computation, whatever their `where`, by their keys."""
        return self._infos(Group.of(prefix), fragment_folder(fragment))

    def computation_infos(self, prefix: str) -> Iterator[tuple[int, CheckpointInfo]]:
        """The checkpoints of all fragments of a computation, whatever their `where`, with the fragment of each."""
        for info in self._infos(Group.of(prefix), ""):
            if (parsed := parse_key(info.key)) is not None:
                yield parsed.fragment, info

    def infos(self, prefix: str = "") -> Iterator[CheckpointInfo]:
        """Every checkpoint whose key begins with this text."""
        for group in self._all_groups():
            if group.may_hold(prefix):
                for info, key in self._listed(group):
                    if key is not None and key.startswith(prefix):
                        yield CheckpointInfo(key, info.size, info.modified)

    def prefixes(self) -> list[str]:
        """The text of every prefix that has checkpoints, sorted."""
        parsed = (parse_key(info.key) for info in self.infos())
        return sorted({found.prefix for found in parsed if found is not None})

    def strays(self) -> Iterator[ObjectInfo]:
        """What lies in the folder and no key can mean: names of groups without checkpoints, and what others put there.

        Its keys are the store's, not checkpoints'.
        """
        groups = {group.name: group for group in self._all_groups()}
        used = set()
        for path, info in self._results.list():
            name, _, leaf = path.partition("/")
            used.add(name)
            if name not in groups or groups[name].key_at(leaf) is None:
                yield info
        for info in self.store.list(f"{self.folder}/names"):
            if info.key.rpartition("/")[2] not in used:
                yield info

    def _infos(self, group: Group, within: str) -> list[CheckpointInfo]:
        listed = self._listed(group, within)
        found = [CheckpointInfo(key, info.size, info.modified) for info, key in listed if key is not None]
        return sorted(found, key=lambda info: info.key)

    def _listed(self, group: Group, within: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
        """The objects in a group's folder, or in one folder of it, with the key that each belongs to."""
        for path, info in self._results.list(f"{group.name}/{within}"):
            yield info, group.key_at(path.removeprefix(f"{group.name}/"))

    def group_names(self) -> Iterator[str]:
        """The names of the groups' folders, each of which begins as the text of its keys does."""
        for info in self.store.list(f"{self.folder}/names"):
            yield info.key.rpartition("/")[2]

    def _all_groups(self) -> Iterator[Group]:
        for name in self.group_names():
            if name not in self._groups:
                try:
                    group = Group.from_bytes(self.store.get(f"{self.folder}/names/{name}"), name)
                except ObjectNotFound:
                    continue  # removed meanwhile
                if group is None:
                    continue  # damaged; the next put of the group mends it
                self._groups[name] = group
            yield self._groups[name]

    def _named_place(self, key: str) -> str:
        """Where a key's checkpoint goes; its group has a name then, without which its keys could not be listed."""
        place = place_of(key)
        group = place.group
        if group.name in self._named:
            return place.path
        name, text = f"{self.folder}/names/{group.name}", group.to_bytes()
        try:
            there = self.store.get(name)
        except ObjectNotFound:
            # Durable, unlike the checkpoints themselves: there is one name, and thousands of them may depend on it.
            self.store.put_if_absent(name, text)
        else:
            if there != text:
                self.store.put_derived(name, text)
        self._named.add(group.name)
        return place.path

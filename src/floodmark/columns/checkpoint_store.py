"""The checkpoint store of computed columns, and the paths under which it stores each checkpoint key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.derive.checkpoint_key import parse_key
from floodmark.derive.result_cache import ResultCache
from floodmark.errors import BadCheckpoint, ObjectNotFound
from floodmark.ledger.position import Position
from floodmark.storage.document import DamagedDocument
from floodmark.storage.store import ObjectInfo, Store

_READ = "read"
"""The fact that has the newest record that a checkpoint was computed from."""


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint: its key, its size in bytes, and when it was stored (epoch seconds)."""

    key: str
    size: int
    modified: float


class CheckpointStore:
    """Checkpoints in a folder of a store. Threads and processes may share it, and it can be pickled into tasks.

    `list_keys` is authoritative about which checkpoints exist. Checkpoints can be lost: a crash of the machine may
    damage the last ones. Lost rows are computed again.
    """

    def __init__(self, store: Store, folder: str, read: Position | None = None) -> None:
        self.store = store
        self.folder = folder
        self._read = read
        self._has_records: Callable[[Position], bool] = lambda _: True
        self._results = ResultCache(store, f"{folder}/batches")
        self._named: set[str] = set()  # groups whose text is known to be stored
        self._groups: dict[
            str, CheckpointGroup
        ] = {}  # by the names of their folders; the meaning of a name never changes

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointStore, (self.store, self.folder, self._read)

    def __repr__(self) -> str:
        return f"CheckpointStore({self.store!r}, {self.folder!r})"

    def bound_to(
        self, read: Position | None, has_records: Callable[[Position], bool] = lambda _: True
    ) -> CheckpointStore:
        """The same checkpoints. New ones name the newest record that they are computed from.

        `has_records` says whether the dataset still has the records up to a position. If not, a checkpoint counts as
        damaged, because other records have its offsets.
        """
        bound = CheckpointStore(self.store, self.folder, read)
        bound._has_records = has_records
        return bound

    @property
    def _facts(self) -> dict[str, str]:
        return {} if self._read is None else {_READ: str(self._read)}

    def put(self, key: str, batch: pa.RecordBatch) -> None:
        """Store a batch. It replaces the batch that the key had."""
        self._results.put(self._path_in_named_group(key), key, batch, self._facts)

    def keep(self, key: str, batch: pa.RecordBatch) -> bool:
        """Durably store a batch that replaces other checkpoints; False when the key already has a batch."""
        return self._results.keep(self._path_in_named_group(key), key, batch, self._facts)

    def get(self, key: str) -> pa.RecordBatch:
        """The batch of a key; `ObjectNotFound` when it does not exist, `BadCheckpoint` when it is damaged."""
        try:
            found = self._results.get(path_of_checkpoint(key).path, key)
            read = found.facts.get(_READ)
            if read is not None and not self._has_records(Position.parse(read)):
                raise DamagedDocument(key, "the dataset does not have the records that it was computed from any more")
            return found.batch
        except DamagedDocument as error:
            raise BadCheckpoint(
                f"The checkpoint {key!r} cannot be used: {error.problem}.",
                hint="Delete it; the next backfill computes its range again.",
                key=key,
                problem=error.problem,
            ) from error

    def has(self, key: str) -> bool:
        """Whether a checkpoint exists under this key. It may be damaged."""
        return self._results.stat(path_of_checkpoint(key).path) is not None

    def info(self, key: str) -> CheckpointInfo | None:
        """The size and age of a checkpoint, None when it does not exist."""
        found = self._results.stat(path_of_checkpoint(key).path)
        return None if found is None else CheckpointInfo(key, found.size, found.modified)

    def delete(self, key: str) -> None:
        """Remove a checkpoint. It need not exist."""
        self._results.delete(path_of_checkpoint(key).path)

    def object_key(self, key: str) -> str:
        """The object key of a checkpoint in the store."""
        return self._results.object_key(path_of_checkpoint(key).path)

    def list_keys(self, prefix: str = "") -> list[str]:
        """Every checkpoint key that begins with this text, sorted."""
        return sorted(info.key for info in self.infos(prefix))

    def list_any_where(self, prefix: str, fragment: int) -> list[str]:
        """The keys of one fragment of a computation, under every `where`, sorted."""
        group = CheckpointGroup.of(prefix)
        return sorted(key for _, key in self._listed(group, fragment_folder(fragment)) if key is not None)

    def fragment_infos(self, prefix: str, fragment: int) -> list[CheckpointInfo]:
        """The checkpoints of one fragment of a computation, under every `where`, sorted by key."""
        return self._infos(CheckpointGroup.of(prefix), fragment_folder(fragment))

    def computation_infos(self, prefix: str) -> Iterator[tuple[int, CheckpointInfo]]:
        """The checkpoints of all fragments of a computation, under every `where`, with the fragment of each."""
        for info in self._infos(CheckpointGroup.of(prefix), ""):
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
        """Objects in the folder that belong to no checkpoint: names of groups without checkpoints, and foreign files.

        Their keys are object keys, not checkpoint keys.
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

    def _infos(self, group: CheckpointGroup, within: str) -> list[CheckpointInfo]:
        listed = self._listed(group, within)
        found = [CheckpointInfo(key, info.size, info.modified) for info, key in listed if key is not None]
        return sorted(found, key=lambda info: info.key)

    def _listed(self, group: CheckpointGroup, within: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
        """The objects in a group's folder, or in one of its subfolders, with the checkpoint key of each."""
        for path, info in self._results.list(f"{group.name}/{within}"):
            yield info, group.key_at(path.removeprefix(f"{group.name}/"))

    def group_names(self) -> Iterator[str]:
        """The names of the groups' folders. Each starts with the first characters of its checkpoint keys."""
        for info in self.store.list(f"{self.folder}/names"):
            yield info.key.rpartition("/")[2]

    def _all_groups(self) -> Iterator[CheckpointGroup]:
        for name in self.group_names():
            if name not in self._groups:
                try:
                    group = CheckpointGroup.from_bytes(self.store.get(f"{self.folder}/names/{name}"), name)
                except ObjectNotFound:
                    continue  # removed meanwhile
                if group is None:
                    continue  # damaged; the next put of the group repairs it
                self._groups[name] = group
            yield self._groups[name]

    def _path_in_named_group(self, key: str) -> str:
        """The path for a key's checkpoint. Stores the text of its group first: without it, keys cannot be listed."""
        place = path_of_checkpoint(key)
        group = place.group
        if group.name in self._named:
            return place.path
        name, text = f"{self.folder}/names/{group.name}", group.to_bytes()
        try:
            there = self.store.get(name)
        except ObjectNotFound:
            # Durable, unlike checkpoints: thousands of checkpoints may depend on this one name.
            self.store.put_if_absent(name, text)
        else:
            if there != text:
                self.store.put_derived(name, text)
        self._named.add(group.name)
        return place.path


# Groups and paths

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_HASH = "[0-9a-f]{32}"
_KIND = "[a-z]{1,16}"
_KEY = re.compile(rf"(?s)(.*)_frag-({_NUMBER})_({_KIND})-({_NUMBER})-({_NUMBER})")
_WITH_WHERE = re.compile(rf"(?s)(.*_where-)({_HASH})((?:_uri-{_HASH}_srcfiles-{_HASH})?)")
_WITHOUT_WHERE = re.compile(rf"(?s)(.*_where-)((?:_uri-{_HASH}_srcfiles-{_HASH})?)")
_LEAF = re.compile(rf"frag-({_NUMBER})/({_KIND}-{_NUMBER}-{_NUMBER})(?:-({_HASH}))?")
_WHOLE = "whole"
_SLUG = 60


@dataclass(frozen=True)
class CheckpointGroup:
    """The checkpoints of one computation, under every `where`."""

    text: str

    @staticmethod
    def of(prefix: str) -> CheckpointGroup:
        """The group of a prefix."""
        found = _WITH_WHERE.fullmatch(prefix)
        return CheckpointGroup(found[1] + found[3] if found else prefix)

    @property
    def name(self) -> str:
        slug = re.sub("[^A-Za-z0-9_-]", "-", self.text[:_SLUG])
        return f"{slug}-{hashlib.sha256(_encoded(self.text)).hexdigest()[:24]}"

    def to_bytes(self) -> bytes:
        return _encoded(self.text)

    @staticmethod
    def from_bytes(data: bytes, name: str) -> CheckpointGroup | None:
        """The group whose folder has this name, None when the bytes are not its text."""
        try:
            found = CheckpointGroup(data.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None
        return found if found.name == name else None

    def key_at(self, leaf: str) -> str | None:
        """The key whose checkpoint is at this path within the group's folder, None when no key has this path."""
        key = self._key_at(leaf)
        return key if key is not None and path_of_checkpoint(key) == CheckpointPath(self, leaf) else None

    def _key_at(self, leaf: str) -> str | None:
        if leaf == _WHOLE:
            return self.text
        found = _LEAF.fullmatch(leaf)
        if found is None:
            return None
        fragment, rest, where = found.groups()
        if where is None:
            return f"{self.text}_frag-{fragment}_{rest}"
        gap = _WITHOUT_WHERE.fullmatch(self.text)
        return f"{gap[1]}{where}{gap[2]}_frag-{fragment}_{rest}" if gap else None

    def may_hold(self, beginning: str) -> bool:
        """Whether a key of this group may begin with this text. False is certain, True is not."""
        gap = _WITHOUT_WHERE.fullmatch(self.text)
        common = gap[1] if gap else self.text
        return common.startswith(beginning) or beginning.startswith(common)


@dataclass(frozen=True)
class CheckpointPath:
    """A group and a path within its folder."""

    group: CheckpointGroup
    leaf: str

    @property
    def path(self) -> str:
        return f"{self.group.name}/{self.leaf}"


def path_of_checkpoint(key: str) -> CheckpointPath:
    """The path of a key's checkpoint. Every text is a valid key, and no two keys have the same path."""
    found = _KEY.fullmatch(key)
    if found is None:
        return CheckpointPath(CheckpointGroup(key), _WHOLE)
    prefix, fragment, kind, start, end = found.groups()
    where = _WITH_WHERE.fullmatch(prefix)
    ending = f"-{where[2]}" if where else ""
    return CheckpointPath(CheckpointGroup.of(prefix), f"{fragment_folder(int(fragment))}/{kind}-{start}-{end}{ending}")


def fragment_folder(fragment: int) -> str:
    """The folder of a fragment within the folder of its group."""
    return f"frag-{fragment}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

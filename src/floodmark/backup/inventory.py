"""Build the inventory of a pinned dataset: the objects that its chain, its checkpoints and its columns name.

Only the chain decides which slices are needed. Of a dataset that was backed up before, only new blocks are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from floodmark.backup.manifest import BackedObject, BackedSlice, Inventory
from floodmark.backup.snapshot import PinnedDataset
from floodmark.chain.events import AddData, ExecuteTransform, MetadataBlock, source_state
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as column_manifests
from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import BadBackup, BadId
from floodmark.ledger.block_attributes import Erasure, erasure_of, purged_before
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.store import Store

FOLDERS = (
    "blocks",
    "data",
    "checkpoints",
    "columns/manifests",
    "columns/files",
    "columns/errors",
    "info/transform/made",
    "info/transform/declared",
    "info/sources/keys",
)
"""The folders of a dataset with objects that a backup copies. All others have derived or unfinished files."""

_STATE_FOLDERS = ("checkpoints", "info/transform/made", "info/transform/declared")


@dataclass(frozen=True)
class _BlockContent:
    """What one block says about the objects of its dataset."""

    digest: bytes
    size: int
    new: BackedSlice | None
    purged_before: int
    erasure: Erasure | None


def _read(block_hash: Multihash, data: bytes, block: MetadataBlock) -> _BlockContent:
    event = block.event
    new, purged = None, 0
    if isinstance(event, AddData | ExecuteTransform):
        if (added := event.new_data) is not None:
            offsets = added.offset_interval
            new = BackedSlice(offsets.start, offsets.end + 1, added.physical_hash.digest, added.size)
        if (state := source_state(event)) is not None:
            purged = purged_before(state)
    return _BlockContent(block_hash.digest, len(data), new, purged, erasure_of(event))


@dataclass
class ChainContent:
    """The blocks of a chain, and the files of the slices that are neither purged nor replaced."""

    blocks: dict[bytes, int] = field(default_factory=dict)
    slices: dict[int, BackedSlice] = field(default_factory=dict)  # by first offset
    purged_before: int = 0

    @staticmethod
    def of(inventory: Inventory) -> ChainContent:
        slices = {one.start: one for one in inventory.slices}
        return ChainContent(dict(inventory.blocks), slices, inventory.purged_before)

    def extend(self, blocks: Iterable[_BlockContent]) -> None:
        """Add the next blocks, oldest first."""
        for block in blocks:
            self.blocks[block.digest] = block.size
            if block.new is not None:
                self.slices[block.new.start] = block.new
            if block.erasure is not None:
                self._replace(block.erasure)
            self.purged_before = max(self.purged_before, block.purged_before)
        self.slices = {start: one for start, one in self.slices.items() if one.end > self.purged_before}

    def _replace(self, erasure: Erasure) -> None:
        for one in erasure.slices:
            if (erased := self.slices.get(one.start)) is not None:
                file = Multihash.parse(one.after).digest
                self.slices[one.start] = replace(erased, digest=file, size=one.size)


def read_chain(objects: DatasetObjects, head: Multihash, last: Inventory | None) -> ChainContent:
    """The content of a chain. The blocks of the last inventory are not read again, if the chain continues from them."""
    new: list[_BlockContent] = []
    known = {} if last is None else last.blocks
    for block_hash, data, block in walk_back(objects.get_block, head):
        if block_hash.digest in known:
            break
        new.append(_read(block_hash, data, block))
    else:
        content = ChainContent()
        content.extend(reversed(new))
        return content
    assert last is not None
    if block_hash == last.head:
        content = ChainContent.of(last)
        content.extend(reversed(new))
        return content
    return read_chain(objects, head, None)  # the chain does not have the newest blocks of the last backup


@dataclass(frozen=True)
class Required:
    """An object that a backup must have; its size and digest, if they are known without reading it."""

    path: str
    size: int | None = None
    digest: bytes | None = None


@dataclass(frozen=True)
class DatasetContent:
    """What a backup of a pinned dataset must have."""

    pinned: PinnedDataset
    chain: ChainContent
    others: tuple[Required, ...]

    @property
    def objects(self) -> Iterator[Required]:
        """All objects: first those that may be replaced soon."""
        yield from self.others
        yield from (Required(one.path, one.size, one.digest) for one in self.inventory(()).objects)

    def inventory(self, files: Iterable[BackedObject]) -> Inventory:
        """The inventory, when the sizes and digests of all files are known."""
        pinned = self.pinned
        return Inventory(
            dataset_id=pinned.id,
            head=pinned.head,
            blocks=self.chain.blocks,
            slices=tuple(self.chain.slices[start] for start in sorted(self.chain.slices)),
            purged_before=self.chain.purged_before,
            files=tuple(sorted(files, key=lambda one: one.path)),
            catalog=pinned.catalog,
            file_log=pinned.file_log,
            reads=pinned.reads,
            first_output=pinned.first_output,
            last_offset=pinned.last_offset,
        )


def is_unchanged(pinned: PinnedDataset, last: Inventory) -> bool:
    """Whether a dataset is as in the last backup."""
    return (pinned.head, pinned.catalog, pinned.file_log) == (last.head, last.catalog, last.file_log)


def read_content(store: Store, pinned: PinnedDataset, last: Inventory | None) -> DatasetContent:
    """The objects of a pinned dataset. An object that is missing already is found when it is copied."""
    objects = dataset_objects(store, pinned.id)
    if last is not None and last.head == pinned.head:
        chain = ChainContent.of(last)
        known = [Required(o.path, o.size, o.digest) for o in last.files if o.path.startswith(_STATE_FOLDERS)]
    else:
        chain, known = read_chain(objects, pinned.head, last), list(_state_objects(objects, pinned))
    columns = () if pinned.catalog is None else _column_objects(objects, pinned)
    keys = map(Required, pinned.file_keys)
    others = {one.path: one for one in (*known, *columns, *keys)}
    return DatasetContent(pinned, chain, tuple(others.values()))


def _state_objects(objects: DatasetObjects, pinned: PinnedDataset) -> Iterator[Required]:
    """Checkpoints and notes: those that exist, and those that the newest checkpoint needs."""
    for folder in _STATE_FOLDERS:
        for info in objects.store.list(f"{objects.folder}/{folder}"):
            path = info.key.removeprefix(f"{objects.folder}/")
            yield Required(path, info.size, _digest_in(info.name) if folder == "checkpoints" else None)
    if pinned.checkpoint is not None:
        for name in (pinned.checkpoint.text, *sorted(pinned.checkpoint_files)):
            yield Required(f"checkpoints/{name}", digest=_digest_in(name))


def _digest_in(name: str) -> bytes | None:
    """The digest in the name of a file that is named by its hash."""
    try:
        found = Multihash.parse(name)
    except BadId:
        return None
    return found.digest if found.code == SHA3_256 else None


def _column_objects(objects: DatasetObjects, pinned: PinnedDataset) -> Iterator[Required]:
    columns = ColumnObjects(objects)
    catalog = catalogs.decode(pinned.catalog or b"", columns.catalog_key)
    for column in catalog.columns:
        if column.manifest is None:
            continue
        manifest = column_manifests.load(columns, column)
        for key in sorted({columns.manifest_key(column.manifest), *manifest.keys(columns)}):
            path = key.removeprefix(f"{objects.folder}/")
            yield Required(path, digest=bytes.fromhex(path.rpartition("/")[2]))


def refuse_damaged(key: str, url: str, problem: str) -> BadBackup:
    """The error for an object that is not what its hash says."""
    return BadBackup(
        f"{key!r} in {url} {problem}",
        hint="`floodmark verify` lists what is damaged: restore it from an older backup, or drop the dataset",
        key=key,
        url=url,
    )

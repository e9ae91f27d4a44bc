"""What the newest checkpoint of a derived dataset names: further files, and how far it has read its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from floodmark.chain.ids import DatasetId, Multihash
from floodmark.derive import notes
from floodmark.derive.notes import BadNote, NoteGone, StoredNote
from floodmark.ledger.objects import DatasetObjects
from floodmark.transforms.meta_entries import KIND, DamagedMeta, decode_meta
from floodmark.transforms.outputs import SecondaryNote
from floodmark.transforms.whole_inputs import DatatableNote
from floodmark.views.snapshot import ViewNote


@dataclass(frozen=True)
class CheckpointContent:
    """The files that a checkpoint needs besides itself, its inputs by id with blocks of them, and its first output.

    Readers with an older checkpoint may still use the `retired` files. The first output is the dataset whose meta says
    what was computed; None for that dataset itself, and for datasets of other kinds.
    """

    files: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    first_output: DatasetId | None = None


def read_checkpoint(objects: DatasetObjects, checkpoint: Multihash) -> CheckpointContent:
    """The content of a checkpoint; `DamagedMeta` if it cannot be read, `NoteGone` if it is missing."""
    try:
        return _content(notes.load_note(objects, checkpoint))
    except NoteGone:
        raise
    except BadNote as error:
        raise DamagedMeta(f"it {error.problem}") from error


def _content(note: StoredNote) -> CheckpointContent:
    if note.kind == KIND:
        meta = decode_meta(note)
        inputs = _with_blocks((*meta.positions, *meta.seen), meta.blocks)
        seen = {name: (*inputs[name], block) for name, (_, block) in meta.seen.items() if block}
        retired = frozenset(name for _, name in meta.retired)
        return CheckpointContent(frozenset(meta.names), retired, inputs | seen)
    if (view := note.read_as(ViewNote)) is not None:
        return CheckpointContent(view.files, inputs=_with_blocks(view.positions, view.blocks))
    if (second := note.read_as(SecondaryNote)) is not None:
        read = _with_blocks(second.last_offsets or (), {})
        return CheckpointContent(inputs=read, first_output=DatasetId.parse(second.primary))
    if (table := note.read_as(DatatableNote)) is not None:
        return CheckpointContent(inputs=_with_blocks(table.positions, table.blocks))
    raise DamagedMeta("its kind is not known, so it may name other files")


def _with_blocks(ids: Iterable[str], blocks: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {one: (blocks[one],) if blocks.get(one) else () for one in ids}

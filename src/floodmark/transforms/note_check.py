"""Checks the notes of a step's commits, which are not on the chain: that they exist, and that they are unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.derive import notes
from floodmark.errors import ObjectNotFound
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.verify import VerifyProblem
from floodmark.transforms import meta_entries
from floodmark.transforms.commit import (
    RunProvenance,
    StepDeclaration,
    declaration_key,
    list_declarations,
    list_provenance,
    provenance_key,
    read_note,
)

_REMEDY = "restore it from a copy; until then `why` cannot tell exactly what these results were computed from"


def find_note_problems(objects: DatasetObjects, head: Multihash) -> Iterator[VerifyProblem]:
    """What is wrong with the notes of a first output; nothing for other datasets.

    The chain says for which commits there is a note, and the notes say for which versions there is a declaration.
    """
    known = {info.key for info in list_provenance(objects)}
    expected = {provenance_key(objects, checkpoint) for checkpoint in _expected(objects, head)}
    declared = [info.key for info in list_declarations(objects)]
    versions: set[str] = set()
    for key in sorted(known):
        note = read_note(objects, key, RunProvenance)
        if note is None and objects.store.stat(key) is not None:  # gc may have removed it
            yield _problem(key, "was changed or damaged")
        elif note is not None and note.has_claims and key in expected:  # a version that was always refused is forgotten
            versions.add(note.version)
    for key in declared:
        if read_note(objects, key, StepDeclaration) is None and objects.store.stat(key) is not None:
            yield _problem(key, "was changed or damaged")
    for version in sorted(versions):
        first = declaration_key(objects, version)
        if not any(key.startswith(first) for key in declared):
            yield _problem(first, "is missing")
    for key in sorted(expected - known):
        yield _problem(key, "is missing")


def _problem(key: str, what: str) -> VerifyProblem:
    return VerifyProblem("note", key, f"the note {what}; {_REMEDY}")


def _expected(objects: DatasetObjects, head: Multihash) -> Iterator[Multihash]:
    """The checkpoints of commits with rows of a step's first output. Reads nothing for datasets without a step."""
    checkpoint: Multihash | None = None
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        if event.new_checkpoint is not None:
            checkpoint = event.new_checkpoint.physical_hash
        if event.new_data is not None and checkpoint is not None:
            if _is_meta(objects, checkpoint):
                yield checkpoint
            checkpoint = None


def _is_meta(objects: DatasetObjects, checkpoint: Multihash) -> bool:
    """Whether a checkpoint is the meta of a first output. Only replaced ones of these are removed."""
    try:
        data = objects.store.get(objects.checkpoint_key(checkpoint))
    except ObjectNotFound:
        return True
    return notes.parse_note(data, checkpoint.text).kind == meta_entries.KIND

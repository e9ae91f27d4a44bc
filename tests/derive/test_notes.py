"""Commit notes: each kind reads its own, and what was changed on disk is not believed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.chain.ids import Multihash
from floodmark.derive import notes
from floodmark.derive.notes import BadNote, CommitNote, NoteGone
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.memory import MemoryStore


@dataclass(frozen=True)
class Copied(CommitNote):
    KIND = "test.copied"

    source: str
    rows: int = 0


@dataclass(frozen=True)
class Moved(CommitNote):
    KIND = "test.moved"

    source: str


@pytest.fixture
def objects() -> DatasetObjects:
    return DatasetObjects(MemoryStore(), "d")


def test_a_note_is_found_by_the_checkpoint_of_its_commit(objects: DatasetObjects) -> None:
    note = Copied("a", 3)
    note.put(objects)

    facts = notes.load_note(objects, note.checkpoint.physical_hash)

    assert facts.kind == "test.copied"
    assert facts.read_as(Copied) == note
    assert facts.read_as(Moved) is None
    assert note.checkpoint.size == len(note.to_bytes())


def test_a_note_that_is_gone_is_told_apart_from_a_damaged_one(objects: DatasetObjects) -> None:
    note = Copied("a")
    with pytest.raises(NoteGone, match="is gone"):
        notes.load_note(objects, note.checkpoint.physical_hash)

    key = objects.checkpoint_key(note.checkpoint.physical_hash)
    objects.store.put_if_absent(key, Copied("b").to_bytes())
    with pytest.raises(BadNote, match="was changed or damaged") as caught:
        notes.load_note(objects, note.checkpoint.physical_hash)
    assert not isinstance(caught.value, NoteGone)


def test_a_note_of_another_format_is_refused() -> None:
    facts = notes.parse_note(b'{"kind": "test.copied", "columns": 3}', "n")

    with pytest.raises(BadNote, match="is of another format"):
        facts.read_as(Copied)


@given(st.one_of(st.binary(), st.sampled_from([b"[]", b"1", b"{}", b'{"kind": 1}', b'"kind"', b"\xff"])))
def test_what_others_have_written_is_of_no_kind(data: bytes) -> None:
    assert notes.parse_note(data, Multihash.sha3_256(data).text).kind is None

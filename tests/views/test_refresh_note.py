"""What a view notes of its refreshes, and what becomes of a note that is lost or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import BadMeta, NotAView
from floodmark.view import View
from floodmark.views.snapshot import ViewNote, read_note
from views.refresh_worlds import Answers, lake_without_spark, orders, view_of, write


def refreshed(folder: Path) -> View:
    lake = lake_without_spark(folder)
    source = orders(lake)
    write(source, {11: 11, 12: 12})
    view = view_of(lake, source)
    with Answers().instead_of_spark():
        view.refresh()
    return view


def checkpoint_file(folder: Path, view: View) -> Path:
    checkpoint = view.snapshot().state.checkpoint
    assert checkpoint is not None
    [found] = folder.rglob(checkpoint.text)
    return found


def test_note_says_exactly_how_far_sources_were_read(tmp_path: Path) -> None:
    view = refreshed(tmp_path)
    note = read_note(view.name, view.snapshot())
    assert note is not None
    assert list(note.positions.values()) == [1]
    assert list(note.purged.values()) == [0]
    assert (note.records, note.errors) == (2, None)


def test_view_that_was_never_refreshed_has_no_note(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    view = view_of(lake, orders(lake))
    assert read_note(view.name, view.snapshot()) is None
    assert view.positions == {"orders": -1}


def test_note_that_is_gone_is_an_error_that_names_view_and_file(tmp_path: Path) -> None:
    view = refreshed(tmp_path)
    path = checkpoint_file(tmp_path, view)
    path.unlink()
    with pytest.raises(BadMeta, match="checkpoint of view 'doubled' is gone") as raised:
        view.refresh()
    assert raised.value.file == path.name
    assert view.to_arrow().num_rows == 2


def test_note_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    view = refreshed(tmp_path)
    path = checkpoint_file(tmp_path, view)
    path.write_bytes(path.read_bytes().replace(b'"records": 2', b'"records": 3'))
    with pytest.raises(BadMeta, match="changed or damaged"):
        view.refresh()


def test_checkpoint_of_a_step_is_no_note_of_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = refreshed(tmp_path)
    monkeypatch.setattr("floodmark.views.snapshot.ViewNote.KIND", "something else")
    with pytest.raises(NotAView, match="is the output of a step"):
        read_note(view.name, view.snapshot())


def test_notes_that_say_the_same_are_the_same_file() -> None:
    one, other = (ViewNote("v", {"a": 1}, run="r"), ViewNote("v", {"a": 1}, run="r"))
    assert one.checkpoint == other.checkpoint
    assert ViewNote("v", {"a": 2}, run="r").checkpoint != one.checkpoint

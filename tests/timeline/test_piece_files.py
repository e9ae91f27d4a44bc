"""Reading pieces: their rows alone, later columns as nulls, and damage found and said."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.errors import UnreadablePiece
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.timeline import piece_files
from floodmark.timeline.manifest import parse_own_file
from floodmark.timeline.piece_files import PieceFiles
from limits import set_limit
from timeline.piece_worlds import LAYOUT, WIDER, objects_in, table, write_piece

ROWS = [(10, 0), (20, 4), (20, 5), (30, 1), (40, 7)]
NAMES = LAYOUT.slice_schema.names


@pytest.fixture(params=["local", "memory"])
def objects(request, tmp_path):
    return objects_in(LocalStore(tmp_path) if request.param == "local" else MemoryStore())


def test_a_piece_of_a_row_group_has_its_own_rows_alone(objects):
    piece = write_piece(objects, ROWS)
    part = replace(piece, row_lo=1, row_hi=4)
    files = PieceFiles(objects, LAYOUT)
    for columns in (["v"], NAMES, ["v", "offset"]):
        assert files.read(part, columns) == table(ROWS[1:4]).select(columns)
    assert [array.tolist() for array in files.places(part)] == [[20, 20, 30], [4, 5, 1]]


def test_a_column_that_came_later_is_null_in_older_files(objects):
    older, newer = write_piece(objects, ROWS), write_piece(objects, ROWS, WIDER)
    files = PieceFiles(objects, WIDER)
    found = files.read(older, ["more", "v"])
    assert found.schema.names == ["more", "v"]
    assert found.schema.types == files.read(newer, ["more", "v"]).schema.types
    assert found["more"].to_pylist() == [None] * 5
    assert files.read(newer, ["more"])["more"].to_pylist() == [0, 40, 50, 10, 70]


def test_a_row_group_is_decoded_once_for_all_pieces_that_it_was_cut_into(objects, monkeypatch):
    decoded = []
    decode = piece_files._OpenFile.decode
    monkeypatch.setattr(
        piece_files._OpenFile, "decode", lambda self, *args: decoded.append(args[:2]) or decode(self, *args)
    )
    piece = write_piece(objects, ROWS)
    files = PieceFiles(objects, LAYOUT)
    for row in range(5):
        assert files.read(replace(piece, row_lo=row, row_hi=row + 1), ["v"]).num_rows == 1
    files.read(piece, ["v", "offset"])
    assert decoded == [(0, ["v"]), (0, ["offset"])]


def test_no_more_is_kept_than_allowed(objects, monkeypatch):
    set_limit(monkeypatch, "sources.kept_bytes", 100)
    set_limit(monkeypatch, "sources.open_files", 2)
    files = PieceFiles(objects, LAYOUT)
    for n in range(5):
        files.read(write_piece(objects, [(n, n)]), NAMES)
    assert len(files._opened._kept) == 2
    assert sum(weight for _, weight in files._decoded._kept.values()) == files._decoded._weight <= 100


def test_what_is_kept_does_not_travel(objects):
    files = PieceFiles(objects, LAYOUT)
    piece = write_piece(objects, ROWS)
    files.read(piece, NAMES)
    there = pickle.loads(pickle.dumps(files))
    assert len(there._opened._kept) == 0
    assert there.read(piece, NAMES) == files.read(piece, NAMES)


def test_a_changed_byte_of_an_own_file_is_found_wherever_it_is(tmp_path):
    objects = objects_in(LocalStore(tmp_path))
    piece = write_piece(objects, ROWS)
    path = objects.store.local_path(objects.key(piece.file))
    whole = path.read_bytes()
    for at in range(4, len(whole), 3):  # the first four say that it is Parquet, and nobody reads them
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        with pytest.raises(UnreadablePiece, match=piece.file):
            PieceFiles(objects, LAYOUT).read(piece, NAMES)


def test_a_changed_byte_of_a_large_page_is_found_in_the_columns_that_are_read(objects):
    piece = write_piece(objects, [(offset**3, offset) for offset in range(3000)])
    key = objects.key(piece.file)
    whole = objects.store.get(key)
    group = pq.read_metadata(pa.BufferReader(whole)).row_group(0)
    page = group.column(NAMES.index("v"))
    for at in range(page.data_page_offset + 1000, page.data_page_offset + page.total_compressed_size, 500):
        objects.store.delete(key)
        objects.store.put_if_absent(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        files = PieceFiles(objects, LAYOUT)
        assert len(files.places(piece)[0]) == 3000
        with pytest.raises(UnreadablePiece, match=piece.file):
            files.read(piece, ["v"])


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_file_that_was_cut_short_is_found(tmp_path, kept):
    objects = objects_in(LocalStore(tmp_path))
    piece = write_piece(objects, ROWS)
    path = objects.store.local_path(objects.key(piece.file))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnreadablePiece) as caught:
        PieceFiles(objects, LAYOUT).read(piece, NAMES)
    assert caught.value.file == piece.file


def test_a_file_that_is_gone_is_named(objects):
    piece = write_piece(objects, ROWS)
    objects.store.delete(objects.key(piece.file))
    with pytest.raises(UnreadablePiece, match=piece.file):
        PieceFiles(objects, LAYOUT).places(piece)
    with pytest.raises(UnreadablePiece, match=piece.file):
        PieceFiles(objects, LAYOUT).row_groups(piece.file)


@pytest.mark.parametrize("change", [{"row_group": 1}, {"group_rows": 6}], ids=str)
def test_a_piece_that_its_file_does_not_have_is_refused(objects, change):
    piece = replace(write_piece(objects, ROWS), **change)
    with pytest.raises(UnreadablePiece, match="should have a row group"):
        PieceFiles(objects, LAYOUT).read(piece, NAMES)


def test_names_of_own_files_say_what_they_are_checked_by(objects):
    name = write_piece(objects, ROWS).file
    assert parse_own_file(name).name == name
    assert parse_own_file("data/f1620" + "0" * 64) is None


def test_texts_may_be_read_as_dictionaries_until_one_has_many_values(objects, monkeypatch):
    first, second = write_piece(objects, ROWS), write_piece(objects, [(50, offset) for offset in range(20, 40)])
    files = PieceFiles(objects, LAYOUT)
    for piece in (first, second):
        found = files.read_encoded(piece, ["v", "offset"])
        assert found.schema.types == [pa.dictionary(pa.int32(), pa.string()), pa.int64()]
        assert found.to_pylist() == files.read(piece, ["v", "offset"]).to_pylist()
        assert files.read(piece, ["v"]).schema.types == [pa.string()]
    set_limit(monkeypatch, "sources.few_texts", 5)
    files = PieceFiles(objects, LAYOUT)
    types = [files.read_encoded(piece, ["v"]).schema.types[0] for piece in (first, second, first, second)]
    assert [pa.types.is_dictionary(t) for t in types] == [True, True, False, False]
    older = PieceFiles(objects, WIDER).read_encoded(first, ["more", "v"])
    assert older.to_pylist() == PieceFiles(objects, WIDER).read(first, ["more", "v"]).to_pylist()

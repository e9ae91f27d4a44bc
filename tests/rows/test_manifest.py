"""A manifest is believed only as a whole, under its own name, and when its segments follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.errors import BadIndex
from floodmark.rows.key_entries import KillsFile
from floodmark.rows.key_index_files import KeyIndexShape, KeyManifest, KeySegment, decode_index, encode_index
from floodmark.storage.sorted_runs import RunFile

RUN = RunFile("a.run", 5, 400, 300, (0, 2**64 - 1), (7, 7))
SEGMENTS = (KeySegment(5, 9, (), (KillsFile("b.dead", 2, 90),)), KeySegment(0, 5, (RUN,), ()))
MANIFEST = KeyManifest(
    shape=KeyIndexShape(("area", "id"), ("area",)),
    at=(12, bytes(range(32))),
    start=0,
    end=9,
    segments=SEGMENTS,
    generation=3,
    previous=("x",),
    retired=((2, "c.dead"),),
)


def test_manifest_reads_back_as_it_was_written():
    assert decode_index(MANIFEST.name, encode_index(MANIFEST)) == MANIFEST
    assert MANIFEST.names == {"a.run", "b.dead"}
    assert MANIFEST.kills == 2


def test_manifest_with_any_byte_damaged_or_missing_is_refused():
    whole = encode_index(MANIFEST)
    for at in range(len(whole)):
        for harmed in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            with pytest.raises(BadIndex):
                decode_index(MANIFEST.name, harmed)


def test_manifest_under_another_name_is_refused():
    other = replace(MANIFEST, at=(13, bytes(32)))
    with pytest.raises(BadIndex, match="its content belongs to 000000000012-"):
        decode_index(other.name, encode_index(MANIFEST))


@pytest.mark.parametrize(
    "change",
    [
        {"segments": SEGMENTS[:1]},
        {"segments": SEGMENTS[1:]},
        {"segments": SEGMENTS[::-1]},
        {"segments": ()},
        {"segments": (replace(SEGMENTS[0], start=6), SEGMENTS[1])},
        {"end": 10},
        {"start": 1},
    ],
)
def test_manifest_whose_segments_do_not_follow_each_other_is_refused(change):
    broken = replace(MANIFEST, **change)
    with pytest.raises(BadIndex, match="segment"):
        decode_index(broken.name, encode_index(broken))


def test_manifest_of_another_format_is_refused(monkeypatch):
    monkeypatch.setattr("floodmark.rows.key_index_files.vars", lambda _: {"something": "else"}, raising=False)
    with pytest.raises(BadIndex, match="another format"):
        decode_index(MANIFEST.name, encode_index(MANIFEST))

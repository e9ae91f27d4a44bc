"""Documents: what was written is read, and any other bytes are refused before they are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.storage.document import DamagedDocument, decode, encode, header_digest

facts = st.dictionaries(st.text(max_size=8), st.integers() | st.text() | st.lists(st.integers()), max_size=4)
sections = st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=200), max_size=3)


def read_all(data: bytes | memoryview, kind: str = "fold", version: int = 1) -> tuple[dict, dict]:
    found = decode(data, kind, "info/x", version)
    return found.facts, {name: bytes(found.section(name)) for name in found.sections}


@given(facts, sections, st.sampled_from([1, 8, 64]))
def test_facts_and_sections_are_read_as_they_were_written(said, parts, align):
    data = encode("fold", 1, said, parts, align)
    assert isinstance(data, bytes)
    assert read_all(data) == (said, parts)
    assert read_all(memoryview(data)) == (said, parts)


@given(facts, sections)
def test_equal_input_gives_equal_bytes(said, parts):
    other = dict(reversed(said.items()))
    assert encode("fold", 1, said, parts) == encode("fold", 1, other, parts)


@given(facts, sections, st.sampled_from([1, 8, 64]), st.data())
def test_every_byte_that_changes_is_seen(said, parts, align, data):
    whole = encode("fold", 1, said, parts, align)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedDocument):
        read_all(bytes(changed))


@given(facts, sections, st.data())
def test_bytes_that_are_cut_short_or_too_many_are_refused(said, parts, data):
    whole = encode("fold", 1, said, parts)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(DamagedDocument):
            read_all(wrong)


def test_section_is_checked_only_when_it_is_taken():
    whole = bytearray(encode("fold", 1, {}, {"a": b"first", "b": b"second"}))
    whole[-1] ^= 1
    found = decode(bytes(whole), "fold", "info/x")
    assert bytes(found.section("a")) == b"first"
    with pytest.raises(DamagedDocument, match="the checksum of section 'b' does not match"):
        found.section("b")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is empty"),
        (b"FMD1", "it is cut short"),
        (b"PAR1" + bytes(40), "not a document"),
        (encode("root", 1, {}), "it is a root, not a fold"),
        (encode("fold", 3, {}), "its format 3 is newer than this release, which reads 2"),
    ],
)
def test_problem_is_said_with_the_key(data: bytes, problem: str):
    with pytest.raises(DamagedDocument, match=problem) as caught:
        decode(data, "fold", "info/x", 2)
    assert (caught.value.key, str(caught.value).partition(":")[0]) == ("info/x", "info/x")


@pytest.mark.parametrize("align", [8, 64])
def test_sections_are_aligned_and_not_copied(align: int):
    data = encode("run", 1, {"n": 1}, {"a": b"x", "b": np.arange(5)}, align)
    found = decode(data, "run", "k")
    array = found.array("b", np.int64)
    assert array.tolist() == [0, 1, 2, 3, 4]
    start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    assert (array.__array_interface__["data"][0] - start) % align == 0


def test_small_document_has_an_envelope_below_120_bytes():
    assert len(encode("timeline manifest", 1, {}, {"data": b""}, align=1)) < 120


def test_header_digest_tells_documents_apart_by_any_section():
    one, other = (encode("run", 1, {}, {"a": part}) for part in (b"1", b"2"))
    assert header_digest(one) != header_digest(other)
    assert header_digest(one) == header_digest(encode("run", 1, {}, {"a": b"1"}))


@dataclass
class Point:
    x: int
    raw: bytes


def test_objects_are_written_as_their_fields_and_bytes_as_hex():
    assert read_all(encode("fold", 1, {"points": [Point(1, b"\xff")]}))[0] == {"points": [{"x": 1, "raw": "ff"}]}

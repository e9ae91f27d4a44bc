"""A manifest says what was put into it, or that it cannot be believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.column_worlds import add, column, fill, manifest, objects_at
from floodmark.columns import manifest as manifests
from floodmark.columns.manifest import ColumnManifest, ColumnSegment, Fragment, decode, encode
from floodmark.errors import UnreadableColumn
from floodmark.storage.document import DamagedDocument
from rows.harm import HARM
from rows.harm import replace as put


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    return objects_at(request.param, tmp_path)


bitmaps = st.sets(st.integers(0, 300)).map(BitMap)
hexes = st.binary(min_size=32, max_size=32).map(bytes.hex)
counts = st.integers(0, 2**40)
segments = st.builds(ColumnSegment, counts, counts, hexes, counts, counts, counts)
fragments = st.builds(
    Fragment,
    st.integers(0, 10**6),
    st.lists(segments, max_size=3).map(tuple),
    bitmaps,
    bitmaps,
    bitmaps,
    st.none() | hexes,
)
some = st.lists(fragments, max_size=4, unique_by=lambda f: f.number).map(lambda fs: sorted(fs, key=lambda f: f.number))


@given(st.builds(ColumnManifest, counts, st.text(max_size=5), some.map(tuple)))
def test_a_manifest_comes_back_as_it_was(manifest):
    assert decode(encode(manifest)) == manifest


@pytest.mark.slow
@given(some, some)
def test_replaced_fragments_take_the_place_of_those_of_their_number(before, new):
    oracle = {f.number: f for f in before} | {f.number: f for f in new}
    after = ColumnManifest(1, "i", tuple(before)).with_fragments(new)
    assert {f.number: f for f in after.fragments} == oracle
    assert [f.number for f in after.fragments] == sorted(oracle)
    for number in [*oracle, 5, 0]:
        assert after.fragment(number) == oracle.get(number, Fragment(number))


@given(fragments, bitmaps)
def test_hidden_rows_leave_done_and_kept(fragment, rows):
    after = fragment.hide(rows)
    for address in range(301):
        had = address in fragment.done or address in fragment.kept
        assert (address in after.hidden) == (address in fragment.hidden or (had and address in rows))
        assert (address in after.done) == (address in fragment.done and address not in rows)
        assert (address in after.kept) == (address in fragment.kept and address not in rows)


@given(fragments)
def test_values_of_another_identity_are_kept_ones(fragment):
    before = ColumnManifest(1, "old", (fragment,))
    assert before.with_identity("old") is before
    (after,) = before.with_identity("new").fragments
    assert (after.done, after.kept, after.hidden) == (BitMap(), fragment.done | fragment.kept, fragment.hidden)
    assert after.segments == fragment.segments


@given(segments)
def test_a_segment_comes_back_from_its_text(segment):
    assert ColumnSegment.from_json(segment.to_json()) == segment


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"start": 1}', "nonsense"])
def test_other_texts_are_no_segments(text):
    with pytest.raises(ValueError, match=r"is not a ColumnSegment|Expecting"):
        ColumnSegment.from_json(text)


def test_a_column_without_values_has_an_empty_manifest(objects):
    made = add(objects, "a")
    assert manifests.load(objects, made) == ColumnManifest(made.field_id, "")


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_manifest_is_refused(objects, harm):
    add(objects, "a")
    fill(objects, "a", 0, [1.0, 2.0])
    key = objects.manifest_key(column(objects, "a").manifest)
    data = objects.store.get(key)
    for harmed in {HARM[harm](data, at) for at in range(0, len(data), 7)} - {data}:
        put(objects.store, key, harmed)
        with pytest.raises(UnreadableColumn) as caught:
            manifest(objects, "a")
        assert (caught.value.column, caught.value.key) == ("a", key)


def test_damage_is_noticed_even_without_the_name():
    data = encode(ColumnManifest(1, "i", (Fragment(0, (), BitMap([1]), BitMap([2]), BitMap([3])),)))
    for cut in range(len(data)):
        with pytest.raises(DamagedDocument):
            decode(data[:cut])


def test_the_manifest_of_another_field_is_refused(objects):
    add(objects, "a")
    fill(objects, "a", 0, [1.0])
    other = add(objects, "b")
    with pytest.raises(UnreadableColumn, match="belongs to field 1, not to 2"):
        manifests.load(objects, type(other)(**{**vars(other), "manifest": column(objects, "a").manifest}))


def test_putting_a_manifest_again_mends_a_damaged_one(objects):
    stored = manifests.put(objects, ColumnManifest(1, "i"))
    key = objects.manifest_key(stored.digest)
    put(objects.store, key, b"other")
    manifests.put(objects, ColumnManifest(1, "i"))
    assert decode(objects.store.get(key)) == ColumnManifest(1, "i")

"""Checkpoint keys are read from the right, whatever the names in them look like."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.columns.checkpoint_store import CheckpointGroup, path_of_checkpoint
from floodmark.derive.checkpoint_key import CheckpointKey, CheckpointPrefix, data_key, hash_text, parse_key, range_key
from floodmark.storage.store import check_key

HASHES = f"_where-{hash_text('a')}_uri-{hash_text('b')}_srcfiles-{hash_text('c')}"
PARTS = [
    "_range-",
    "_frag-3_range-0-5",
    "_ver-",
    "_col-",
    "_where-",
    "_uri-",
    "_srcfiles-",
    "_data-1-2",
    "udf-",
    "fmt-1_",
]
names = st.lists(
    st.one_of(st.sampled_from([*PARTS, HASHES, "/", "..", "%", "%2D", "_", "-", "\n"]), st.text(max_size=4))
)
hostile = names.map("".join)
hashes = st.sampled_from([hash_text(None), hash_text("x > 1"), hash_text("other")])
prefixes = st.builds(CheckpointPrefix, hostile, hostile, hostile, hashes, hashes, hashes)
numbers = st.integers(0, 2**40)


def test_a_key_reads_as_in_the_seed():
    prefix = CheckpointPrefix("bright", "1a2b", "brightness", hash_text(None), hash_text("did"), hash_text("src"))
    assert range_key(prefix.text, 3, 0, 512) == (
        "fmt-1_udf-bright_ver-1a2b_col-brightness_where-d41d8cd98f00b204e9800998ecf8427e"
        f"_uri-{hash_text('did')}_srcfiles-{hash_text('src')}_frag-3_range-0-512"
    )
    assert data_key(prefix.text, 3, 0, 512).endswith("_frag-3_data-0-512")


@given(prefixes, numbers, numbers, numbers)
@example(CheckpointPrefix("a_frag-3_range-0-5", "_range-", "c_frag-1_data-2-3", *[hash_text(None)] * 3), 7, 1, 2)
def test_a_key_says_what_it_was_made_of(prefix, fragment, one, other):
    start, end = sorted((one, other))
    for make, kind in ((range_key, "range"), (data_key, "data")):
        parsed = parse_key(make(prefix.text, fragment, start, end))
        assert parsed == CheckpointKey(prefix.text, fragment, kind, start, end)
    assert CheckpointPrefix.parse(prefix.text) == prefix


@given(prefixes, prefixes)
@example(
    CheckpointPrefix("a", "b_ver-c", "d", *[hash_text(None)] * 3),
    CheckpointPrefix("a_ver-b", "c", "d", *[hash_text(None)] * 3),
)
@example(
    CheckpointPrefix("a", "b", "c_ver%2Dd", *[hash_text(None)] * 3),
    CheckpointPrefix("a", "b", "c_ver-d", *[hash_text(None)] * 3),
)
def test_two_computations_never_have_the_same_text(one, other):
    assert (one.text == other.text) == (one == other)


@given(st.one_of(hostile, st.text()), numbers, numbers)
def test_any_text_can_be_a_prefix(text, fragment, end):
    parsed = parse_key(range_key(text, fragment, 0, end))
    assert parsed == CheckpointKey(text, fragment, "range", 0, end)


@pytest.mark.parametrize(
    "key",
    [
        *("", "a", "a_frag-1", "a_frag-1_range-0", "a_frag-1_range-5-4", "a_frag-1_range-00-5", "a_frag--1_range-0-5"),
        *("a_frag-1_range-0-5x", "a_frag-1_range-0-5\n", "a_frag-1_task-0-5", "a_frag-١_range-0-5", "e3b0c44298fc1c14"),
    ],
)
def test_other_texts_are_no_keys(key):
    assert parse_key(key) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", f"udf-a_ver-b_col-c{HASHES}", f"fmt-2_udf-a_ver-b_col-c{HASHES}", f"fmt-1_udf-a_ver-b_col-c{HASHES}0"),
        *(f"fmt-1_udf-a_ver-b_ver-c_col-d{HASHES}", f"fmt-1_udf-a_ver-b_col-c{HASHES.upper()}"),
    ],
)
def test_other_texts_are_no_prefixes(text):
    assert CheckpointPrefix.parse(text) is None


def test_a_prefix_takes_hashes_and_not_the_texts_themselves():
    with pytest.raises(ValueError, match="where"):
        CheckpointPrefix("a", "b", "c", "x > 1", hash_text("b"), hash_text("c"))


@pytest.mark.parametrize(("fragment", "start", "end"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1)])
def test_impossible_ranges_have_no_key(fragment, start, end):
    with pytest.raises(ValueError, match="no checkpoint can cover"):
        range_key("a", fragment, start, end)


anything = st.one_of(
    hostile, st.text(), st.builds(range_key, st.one_of(hostile, prefixes.map(lambda p: p.text)), *[st.just(1)] * 3)
)


@given(anything)
@example("a_where-_uri-" + hash_text("b") + "_srcfiles-" + hash_text("c") + "_frag-1_range-0-5")
@example("whole")
def test_every_text_has_a_place_that_a_store_can_hold_and_that_leads_back(key):
    place = path_of_checkpoint(key)
    check_key(f"{place.group.name}/{place.leaf}")
    assert len(place.group.name) <= 60 + 1 + 24
    assert place.group.key_at(place.leaf) == key
    assert CheckpointGroup.from_bytes(place.group.to_bytes(), place.group.name) == place.group


@given(anything, st.integers(0, 300))
def test_a_group_is_never_overlooked_by_the_beginning_of_its_keys(key, length):
    assert path_of_checkpoint(key).group.may_hold(key[:length])


@given(prefixes, hashes)
def test_the_same_computation_under_another_where_is_in_the_same_group(prefix, where):
    other = CheckpointPrefix(prefix.udf, prefix.version, prefix.column, where, prefix.uri, prefix.srcfiles)
    assert CheckpointGroup.of(prefix.text) == CheckpointGroup.of(other.text)
    again = CheckpointPrefix(prefix.udf, prefix.version, prefix.column, where, prefix.uri, hash_text("new inputs"))
    assert CheckpointGroup.of(again.text) != CheckpointGroup.of(prefix.text)

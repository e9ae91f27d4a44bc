"""A manifest says of its pieces exactly what was said of them, in few bytes, or it says that it is damaged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import BadManifest
from floodmark.timeline.manifest import decode, encode
from floodmark.timeline.pieces import Bundle, Partition, Piece, PieceOrigin, TimePoint, WaitingRun
from profiles import examples
from timeline.root_worlds import DAY, own_name, partition, piece

NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**63 - 1)
PLACES = st.builds(TimePoint, NUMBERS, NUMBERS)
PIECES = st.builds(
    Piece,
    file=st.sampled_from(["data/a", "data/b", "info/timeline/files/ü", ""]),
    row_group=COUNTS,
    row_lo=COUNTS,
    row_hi=COUNTS,
    group_rows=COUNTS,
    first=PLACES,
    last=PLACES,
    offset_min=COUNTS,
    offset_max=COUNTS,
    size=COUNTS,
    how=st.sampled_from(PieceOrigin),
    since=COUNTS,
    dead=COUNTS,
)
MANY = st.lists(PIECES, max_size=4).map(tuple)
RUNS = st.builds(WaitingRun, COUNTS, COUNTS, MANY)
PARTITIONS = st.builds(Partition, NUMBERS, MANY, st.lists(RUNS, max_size=3).map(tuple), COUNTS, COUNTS, COUNTS)
BUNDLES = st.builds(Bundle, st.lists(PARTITIONS, max_size=4).map(tuple))


@pytest.mark.slow
@settings(max_examples=examples(13))
@given(BUNDLES)
def test_any_bundle_comes_back_as_it_was(bundle):
    assert decode(encode(bundle)) == bundle


def test_the_same_bundle_has_the_same_bytes():
    bundle = Bundle((partition(1, 3, waiting=[piece(DAY, file=own_name(1))]),))
    assert encode(bundle) == encode(decode(encode(bundle)))


def test_every_flipped_byte_and_every_cut_is_noticed():
    data = encode(Bundle((partition(1, 3),)))
    for at in range(len(data)):
        with pytest.raises(BadManifest, match="damaged"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "some/key")
        with pytest.raises(BadManifest):
            decode(data[:at])


def test_a_damaged_manifest_tells_its_key():
    with pytest.raises(BadManifest, match="some/key") as raised:
        decode(b"", "some/key")
    assert raised.value.key == "some/key"


def test_a_hundred_referenced_row_groups_take_little_more_than_their_times():
    chance = random.Random(7)
    times = sorted(chance.sample(range(DAY), 200))
    pieces = tuple(_row_group(i, times[2 * i], times[2 * i + 1]) for i in range(100))
    alone = len(encode(Bundle((Partition(0, pieces[:1]),))))
    assert (len(encode(Bundle((Partition(0, pieces),)))) - alone) / 99 < 16


def _row_group(number, first, last):
    low, high = number * 1000, number * 1000 + 999
    places = TimePoint(first, low), TimePoint(last, high)
    return Piece(own_name(1), number, 0, 1000, 1000, *places, low, high, 20_000, PieceOrigin.SLICE, 1)

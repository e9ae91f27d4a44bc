"""A stream's positions: batch after batch they cover every record once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import StreamLost
from floodmark.spark_source.reader import StreamPosition, check_follows, next_position, parse_position


def at(offset: int) -> StreamPosition:
    return StreamPosition("did:odf:one", offset)


@given(
    heads=st.lists(st.integers(0, 30), min_size=1, max_size=10).map(sorted),
    most=st.none() | st.integers(1, 7),
    target=st.none() | st.integers(-1, 30),
)
def test_batches_cover_every_record_once_and_none_is_larger_than_asked(heads, most, target):
    position, seen = at(-1), []
    end_of = None if target is None else at(target)
    for head in [*heads, *[heads[-1]] * 40]:  # the dataset grows, then rests
        end = next_position(position, at(head), most, end_of)
        batch = list(range(position.offset + 1, end.offset + 1))
        assert most is None or len(batch) <= most
        assert end.offset <= head
        seen += batch
        position = end
    assert seen == list(range(min(heads[-1], heads[-1] if target is None else target) + 1))


def test_a_target_behind_the_position_moves_nothing_back():
    assert next_position(at(9), at(20), None, at(4)) == at(9)


def test_a_position_is_what_spark_noted():
    assert parse_position(at(7).to_json(), "trips") == at(7)


@pytest.mark.parametrize("noted", [{}, {"offset": 3}, {"dataset": "x", "offset": -2}, {"dataset": 1, "offset": 3}, 5])
def test_a_position_of_something_else_is_refused(noted: object):
    with pytest.raises(StreamLost, match="did not write"):
        parse_position(noted, "trips")


def test_a_position_in_another_dataset_or_beyond_the_end_is_refused():
    check_follows(at(7), at(7), "trips")
    with pytest.raises(StreamLost, match="another dataset"):
        check_follows(StreamPosition("did:odf:two", 3), at(7), "trips")
    with pytest.raises(StreamLost, match="ends at 7"):
        check_follows(at(8), at(7), "trips")

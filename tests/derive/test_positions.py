"""How far a run may move its positions, and which blocks of the inputs that is."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from floodmark.chain.ids import SHA3_256, DatasetId, Multihash
from floodmark.chain.state import InputPosition
from floodmark.derive.positions import ReachedBlock, advance_positions, find_block, find_moves, minimum_watermark


def _hash(number: int) -> Multihash:
    return Multihash(SHA3_256, bytes([number]) * 32)


def _slices(*ends: int) -> pa.Table:
    blocks = [_hash(i).digest for i in range(len(ends))]
    return pa.table({"end": pa.array(ends, pa.int64()), "block": pa.array(blocks, pa.binary(32))})


HEAD = _hash(99)
ID = DatasetId(b"\x01" * 32)


def test_position_moves_to_the_head_when_no_key_is_left() -> None:
    assert advance_positions({"a": 3}, {"a": 9}, {}) == {"a": 9}


def test_position_stops_before_the_first_change_of_a_key_that_is_left() -> None:
    assert advance_positions({"a": 3}, {"a": 9}, {"a": 7}) == {"a": 6}


def test_position_never_goes_back() -> None:
    assert advance_positions({"a": 5}, {"a": 9}, {"a": 2}) == {"a": 5}


def test_key_that_is_left_holds_back_only_the_inputs_in_which_it_changed() -> None:
    assert advance_positions({}, {"a": 4, "b": 4}, {"a": None, "b": 2}) == {"a": 4, "b": 1}


def test_input_without_records_stays_before_its_first() -> None:
    assert advance_positions({}, {"a": -1}, {}) == {"a": -1}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20),
    st.integers(-1, 19),
)
def test_position_is_the_largest_offset_below_which_every_changed_key_is_done(
    records: list[tuple[int, bool]], since: int
) -> None:
    """Record number i changes the key records[i][0]; a key is done if its first mention beyond `since` says so."""
    head = len(records) - 1
    since = min(since, head)
    done: dict[int, bool] = {}
    first: dict[int, int] = {}
    for offset in range(since + 1, head + 1):
        key, is_done = records[offset]
        done.setdefault(key, is_done)
        first.setdefault(key, offset)
    left = [first[key] for key, is_done in done.items() if not is_done]
    naive = since
    while naive < head and done[records[naive + 1][0]]:
        naive += 1

    assert advance_positions({"a": since}, {"a": head}, {"a": min(left, default=None)}) == {"a": naive}


def test_position_at_the_head_is_the_head_block_with_all_that_follows_the_last_record() -> None:
    assert find_block(9, _slices(5, 10), HEAD, 9) == ReachedBlock(HEAD, 9, is_head=True)


def test_position_inside_a_block_is_the_block_before() -> None:
    slices = _slices(5, 10, 12)

    assert find_block(3, slices, HEAD, 11) is None
    assert find_block(4, slices, HEAD, 11) == ReachedBlock(_hash(0), 4)
    assert find_block(8, slices, HEAD, 11) == ReachedBlock(_hash(0), 4)
    assert find_block(9, slices, HEAD, 11) == ReachedBlock(_hash(1), 9)


def test_input_that_moved_is_named_with_block_and_offset() -> None:
    assert find_moves([InputPosition(ID, None, None)], {ID: ReachedBlock(_hash(0), 4)}) == {ID: (_hash(0), 4)}


def test_input_that_did_not_move_is_absent() -> None:
    at_head = InputPosition(ID, HEAD, 9)

    assert find_moves([at_head], {ID: ReachedBlock(HEAD, 9, is_head=True)}) == {}
    assert find_moves([at_head], {ID: None}) == {}


def test_block_never_goes_back_where_the_offset_stays() -> None:
    beyond_its_data = InputPosition(ID, HEAD, 4)  # the head was a block without records then

    assert find_moves([beyond_its_data], {ID: ReachedBlock(_hash(0), 4)}) == {}


def test_head_without_new_records_moves_the_block_alone() -> None:
    assert find_moves([InputPosition(ID, _hash(0), 4)], {ID: ReachedBlock(HEAD, 4, is_head=True)}) == {ID: (HEAD, None)}


def test_watermark_is_the_least_of_the_inputs_and_never_goes_back() -> None:
    assert minimum_watermark([30, 20], None) == 20
    assert minimum_watermark([30, 20], 25) == 25
    assert minimum_watermark([30, None], 25) == 25
    assert minimum_watermark([30, None], None) is None

"""Chunks can be cut into chunks that hold exactly the rows of their keys."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pyarrow as pa

from floodmark.rows.row_hash import hash_rows
from floodmark.transforms.chunks import Chunk, Side, cut_product, rectangles


def _chunk(parts: list[list[int]], owners: list[list[int]], *, axes: tuple[int, ...] = ()) -> Chunk:
    """A chunk whose keys have these parts on each side, and rows of these parts with offsets 0, 1, …"""
    keys = pa.table({f"k{n}": pa.array(part, pa.int64()) for n, part in enumerate(parts)})
    sides = tuple(
        Side(pa.table({"part": pa.array(o, pa.int64())}), np.arange(len(o)), np.array(o, np.int64), np.array(p), seed=n)
        for n, (p, o) in enumerate(zip(parts, owners, strict=True))
    )
    return Chunk(keys, hash_rows(keys, keys.column_names), sides, axes=axes)


def _leaves(chunk: Chunk) -> list[Chunk]:
    halves = chunk.halves()
    return [chunk] if halves is None else [leaf for half in halves for leaf in _leaves(half)]


def test_halving_ends_at_single_keys_with_exactly_their_rows() -> None:
    chunk = _chunk([[0, 1, 2, 3], [0, 0, 1, 1]], [[3, 0, 1, 0, 2], [1, 0, 0]])
    leaves = _leaves(chunk)
    assert [leaf.keys.to_pylist() for leaf in leaves] == [[row] for row in chunk.keys.to_pylist()]
    assert [leaf.frames[0].column("part").to_pylist() for leaf in leaves] == [[0, 0], [1], [2], [3]]
    assert [leaf.sides[1].offsets.tolist() for leaf in leaves] == [[1, 2], [1, 2], [0], [0]]


def test_a_signature_depends_on_a_keys_rows_alone() -> None:
    chunk = _chunk([[0, 1, 2], [0, 0, 1]], [[2, 0, 1, 0], [1, 0]])
    for at, leaf in enumerate(_leaves(chunk)):
        assert leaf.signature.same(chunk.signature.take(np.array([at]))).all()
    assert not chunk.signature.take(np.array([0])).same(chunk.signature.take(np.array([1]))).any()
    moved = _chunk([[0, 1, 2], [0, 0, 1]], [[2, 0, 1, 1], [1, 0]])
    assert moved.signature.same(chunk.signature).tolist() == [False, False, True]


def test_rows_of_two_inputs_with_the_same_offsets_have_different_signatures() -> None:
    one, other = _chunk([[0], [0]], [[0], []]), _chunk([[0], [0]], [[], [0]])
    assert not one.signature.same(other.signature).any()


def test_halves_of_a_rectangle_are_rectangles() -> None:
    pairs = list(product(range(3), range(2)))
    chunk = _chunk([[x for x, _ in pairs], [y for _, y in pairs]], [[0, 1, 2], [0, 1, 1]], axes=(0, 1))
    halves = chunk.halves()
    assert halves is not None
    for half in halves:
        sides = [set(half.keys.column(n).to_pylist()) for n in range(2)]
        assert len(half) == len(sides[0]) * len(sides[1])
    assert sorted(len(leaf) for leaf in _leaves(chunk)) == [1] * 6


def test_chosen_keys_of_a_cross_join_are_covered_by_rectangles_that_hold_no_others() -> None:
    pairs = list(product(range(3), range(3)))
    chunk = _chunk([[x for x, _ in pairs], [y for _, y in pairs]], [[0, 1, 2], [0, 1, 2]], axes=(0, 1))
    wanted = [n for n, pair in enumerate(pairs) if pair != (1, 1)]
    parts = chunk.chosen(np.array(wanted))
    found = [tuple(row.values()) for part in parts for row in part.keys.to_pylist()]
    assert sorted(found) == sorted(pairs[n] for n in wanted)
    for part in parts:
        assert len(part) == part.frames[0].num_rows * part.frames[1].num_rows
    assert chunk.chosen(np.array([], np.int64)) == []


def test_any_set_of_tuples_is_cut_into_products_that_hold_each_once() -> None:
    seed = random.Random(5)
    for _ in range(200):
        sides = [seed.randrange(1, 5) for _ in range(seed.randrange(1, 4))]
        chosen = [t for t in product(*(range(s) for s in sides)) if seed.random() < seed.choice([0.3, 0.8])]
        if not chosen:
            continue
        parts = [np.array(column) for column in zip(*chosen, strict=True)]
        groups = rectangles(parts)
        assert sorted(n for group in groups for n in group.tolist()) == list(range(len(chosen)))
        for group in groups:
            mine = {chosen[n] for n in group.tolist()}
            assert mine == set(product(*({t[i] for t in mine} for i in range(len(sides)))))


def test_large_rectangles_are_cut_into_blocks_that_are_small_enough_and_cover_all() -> None:
    for sizes, largest in (((10, 7), 6), ((1, 100), 30), ((5, 5, 5), 20), ((3, 4), 100), ((4, 4), 1)):
        made = cut_product(sizes, largest)
        grid = np.zeros(sizes, np.int64)
        for block in made:
            assert grid[block].size <= largest
            grid[block] += 1
        assert (grid == 1).all()

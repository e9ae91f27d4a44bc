"""Lines of a tree on a narrow terminal: they go on below, in their place in the tree, and nothing is lost."""

from __future__ import annotations

import pytest

from floodmark.provenance.tree import TextNode, render_lines, wrap_line

TREE = TextNode(
    "daily 17 +A  day=2026-11-01 origin=JFK flights=305 delayed=41 cancelled=2 mean_delay=12.25",
    ("step daily (keyed) version 6f0c2b1a9d3e, block 12 (a1b2c3d4)",),
    (
        TextNode("305 rows of flights with day=2026-11-01 origin=JFK, as of record 336775", ("not all is known",)),
        TextNode("1 row of airports with faa=JFK, as of record 1457"),
    ),
)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    whole = list(render_lines(TREE))
    shown = [part for line in whole for part in wrap_line(line, width)]

    assert max(map(len, shown)) <= width < max(map(len, whole))
    assert " ".join(shown).replace("│", "").split() == " ".join(whole).replace("│", "").split()


def test_a_line_goes_on_in_its_place_in_the_tree() -> None:
    assert wrap_line("├─ 305 rows of flights with origin=JFK, as of record 336775", 40) == [
        "├─ 305 rows of flights with origin=JFK,",
        "│    as of record 336775",
    ]
    assert wrap_line("   └─ flights 4 +A  id=4 origin=JFK", 30) == ["   └─ flights 4 +A  id=4", "        origin=JFK"]
    assert wrap_line("daily 17 +A  day=1", 40) == ["daily 17 +A  day=1"]


def test_a_word_that_is_too_long_goes_on_as_well() -> None:
    shown = wrap_line(f"└─ {'x' * 70}", 40)
    assert max(map(len, shown)) <= 40
    assert "".join(shown).count("x") == 70

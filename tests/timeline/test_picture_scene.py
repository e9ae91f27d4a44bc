"""A scene shows every piece once, at its time, and says what the last update did with it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.timeline.pieces import PieceOrigin
from floodmark.timeline.scene import PictureSize, Scene, Shade, compose
from floodmark.timeline.sections import Range, parse_range
from profiles import examples
from timeline.drawn import DAY, HOUR, day, even, piece

SIZE = PictureSize(cells=48, letter=1, lanes=3, panels=4)  # a day has two cells for each hour


def scene_of(*partitions, version: int = 9, size: PictureSize = SIZE) -> Scene:
    return compose(partitions, "day", version, size, Range())


def cells(lane) -> list[tuple[int, int]]:
    return [(box.lo, box.hi) for box in lane.boxes]


def test_pieces_lie_at_their_times():
    (panel,) = scene_of(day("2026-11-01", [piece(0, 6 * HOUR - 1), piece(12 * HOUR, DAY - 1)])).panels
    assert panel.label == "2026-11-01"
    assert panel.settled is not None
    assert cells(panel.settled) == [(0, 12), (24, 48)]


def test_one_moment_is_a_box_of_one_cell():
    (panel,) = scene_of(day("2026-11-01", [piece(5 * HOUR, 5 * HOUR)])).panels
    assert panel.settled is not None
    assert cells(panel.settled) == [(10, 11)]
    (panel,) = scene_of(day("2026-11-01", [piece(DAY - 1, DAY - 1)])).panels
    assert panel.settled is not None
    assert cells(panel.settled) == [(47, 48)]


def test_a_gap_of_less_than_a_cell_is_none():
    (panel,) = scene_of(day("2026-11-01", [piece(0, 45 * HOUR // 10), piece(48 * HOUR // 10, DAY - 1)])).panels
    assert panel.settled is not None
    assert cells(panel.settled) == [(0, 10), (10, 48)]


def test_a_narrow_merged_middle_can_be_seen():
    cut = [
        piece(0, 6 * HOUR),
        piece(6 * HOUR + 1, 6 * HOUR + 9, since=9, how=PieceOrigin.MERGED),
        piece(6 * HOUR + 10, DAY - 1),
    ]
    (panel,) = scene_of(day("2026-11-01", cut)).panels
    assert panel.settled is not None
    assert cells(panel.settled) == [(0, 12), (12, 13), (13, 48)]
    assert [box.shade for box in panel.settled.boxes] == [Shade.REFERENCED, Shade.MERGED, Shade.REFERENCED]


def test_shades_say_what_the_last_update_did():
    touched = [
        piece(0, HOUR),
        piece(2 * HOUR, 3 * HOUR, since=9, how=PieceOrigin.MERGED),
        piece(4 * HOUR, 5 * HOUR, since=9, how=PieceOrigin.SLICE),
        piece(6 * HOUR, 7 * HOUR, since=9, how=PieceOrigin.SORTED),
        piece(8 * HOUR, 9 * HOUR, since=9, how=PieceOrigin.FOLDED),
        piece(10 * HOUR, 11 * HOUR, since=8, how=PieceOrigin.MERGED),
    ]
    first, second = scene_of(day("2026-11-01", even(2)), day("2026-11-02", touched)).panels
    assert first.settled is not None
    assert second.settled is not None
    assert {box.shade for box in first.settled.boxes} == {Shade.UNTOUCHED}
    assert [box.shade for box in second.settled.boxes] == [
        Shade.REFERENCED,
        Shade.MERGED,
        Shade.NEW,
        Shade.NEW,
        Shade.MERGED,
        Shade.REFERENCED,
    ]


def test_waiting_runs_lie_above_and_share_a_lane_where_they_can():
    runs = [[piece(0, 2 * HOUR)], [piece(HOUR, 3 * HOUR)], [piece(5 * HOUR, 6 * HOUR)]]
    (panel,) = scene_of(day("2026-11-01", even(4), runs)).panels
    assert [cells(lane) for lane in panel.waiting] == [[(0, 4), (10, 12)], [(2, 6)]]
    assert panel.lanes == (panel.waiting[1], panel.waiting[0], panel.settled)
    assert (panel.waiting_rows, panel.waiting_pieces, panel.settled_rows, panel.settled_pieces) == (30, 3, 40, 4)


def test_runs_without_a_lane_of_their_own_share_the_last():
    runs = [[piece(0, 6 * HOUR)] for _ in range(20)]
    (panel,) = scene_of(day("2026-11-01", even(1), runs)).panels
    assert [sum(box.pieces for box in lane.boxes) for lane in panel.waiting] == [1, 1, 18]


def test_five_thousand_pieces_share_boxes_and_the_new_one_is_seen():
    pieces = even(5000)
    pieces[1234] = replace(pieces[1234], since=9)
    scene = scene_of(day("2026-11-01", pieces))
    assert (scene.pieces, scene.rows) == (5000, 50_000)
    assert len(scene.boxes) == SIZE.cells
    assert sum(box.pieces for box in scene.boxes) == 5000
    assert scene.fullest >= 5000 // SIZE.cells
    assert [box.lo for box in scene.boxes if box.shade is Shade.NEW] == [round(1234 * SIZE.cells / 5000)]


def test_few_pieces_of_a_small_part_get_the_whole_axis():
    (panel,) = scene_of(day("2026-11-01", [piece(12 * HOUR, 13 * HOUR - 1)])).panels
    assert panel.settled is not None
    assert cells(panel.settled) == [(0, 48)]
    assert panel.ticks[0].text == "12:00"


def test_partitions_that_were_touched_are_shown_before_the_newest():
    days = [day(f"2026-11-{n:02}", even(1, since=9 if n == 2 else 1)) for n in range(1, 11)]
    scene = scene_of(*days)
    assert [panel.label for panel in scene.panels] == ["2026-11-02", "2026-11-08", "2026-11-09", "2026-11-10"]
    assert (scene.partitions, scene.left_out) == (10, 6)


def test_a_range_shows_only_its_pieces_on_its_axis():
    wanted = parse_range("2026-11-01T06:00Z", "2026-11-01T12:00Z")
    days = [
        day("2026-11-01", even(24), [[piece(0, HOUR)], [piece(7 * HOUR, 8 * HOUR - 1)]]),
        day("2026-11-02", even(1)),
    ]
    (panel,) = compose(days, "day", 9, SIZE, wanted).panels
    assert panel.settled_pieces == 6
    assert [cells(lane) for lane in panel.waiting] == [[(8, 16)]]
    assert panel.ticks[0].text == "06:00"


def test_nothing_is_an_empty_scene():
    scene = scene_of()
    assert (scene.panels, scene.boxes, scene.legend, scene.fullest, scene.left_out) == ((), [], [], 0, 0)


spans = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 500), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=examples(50))
@given(spans, st.lists(spans, max_size=6), st.integers(20, 90))
def test_every_piece_is_in_one_box_and_no_boxes_overlap(settled, runs, width):
    def laid(drawn):
        at, made = 0, []
        for gap, length, is_new in drawn:
            if (at + gap + length) * 10**5 >= DAY:
                break
            last = (at + gap + length) * 10**5
            made.append(piece((at + gap) * 10**5, last - 1, since=9 if is_new else 1))
            at += gap + length
        return made

    world = day("2026-11-01", laid(settled), [run for run in map(laid, runs) if run])
    scene = scene_of(world, size=PictureSize(width, 1, 3, 4))
    (panel,) = scene.panels
    for lane in panel.lanes:
        borders = [border for box in lane.boxes for border in (box.lo, box.hi)]
        assert borders == sorted(borders)
        assert all(box.lo < box.hi for box in lane.boxes)
        assert 0 <= borders[0] <= borders[-1] <= width
    assert sum(box.pieces for box in scene.boxes) == len(world.pieces)
    assert sum(box.rows for box in scene.boxes) == world.rows
    assert any(box.shade is Shade.NEW for box in scene.boxes) == any(p.since == 9 for p in world.pieces)
    assert panel.settled is not None
    times = [box.first for box in panel.settled.boxes]
    assert times == sorted(times)

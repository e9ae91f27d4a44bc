"""What a picture says in words: the same on a terminal and in a file."""

from __future__ import annotations

from floodmark.timeline.picture.scene import Box, Panel, Scene

SETTLED = "settled"
WAITING = "waiting"


def headline(panel: Panel) -> str:
    """What a partition has, in one line."""
    text = f"{many(panel.settled_rows, 'row')} in {many(panel.settled_pieces, 'piece')}"
    if panel.waiting_pieces:
        text += f"; {many(panel.waiting_rows, 'late row')} in {many(panel.waiting_pieces, 'piece')} above"
    if panel.dead:
        text += f"; {panel.dead:,} dead"
    return text


def summary(scene: Scene) -> str:
    """What all partitions have together."""
    partitions = many(scene.partitions, "partition")
    return f"{partitions}, {many(scene.rows, 'row')}, {many(scene.pieces, 'piece')}"


def left_out(scene: Scene) -> str:
    """What is not shown, and how to see it; empty when all is."""
    if not scene.left_out:
        return ""
    return f"{many(scene.left_out, 'more partition')}: name a time FROM and TO to see them"


def crowding(scene: Scene, mark: str) -> str:
    """How many pieces one mark stands for; empty when each has its own."""
    return "" if scene.fullest <= 1 else f"up to {scene.fullest:,} pieces to a {mark}"


def detail(box: Box) -> str:
    """What a box stands for."""
    if box.pieces > 1:
        return f"{many(box.pieces, 'piece')}, {many(box.rows, 'row')}, {box.shade.meaning}"
    return f"{many(box.rows, 'row')} of row group {box.row_group} in {box.file}, {box.shade.meaning}"


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

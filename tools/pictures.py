"""Draw the pictures of the documentation into docs/pictures. Run it again after each change here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from drawing import Sheet

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"


def overview() -> Sheet:
    """A ledger, and the read positions of the things derived from it."""
    sheet = Sheet(312, "A ledger of numbered records, and how far each derived thing has read it")
    left, cell = 164, 39
    sheet.head(24, 52, "the ledger")
    sheet.words(24, 70, "records by offset", "faint")
    for start, count, kind in ((0, 4, "plain"), (4, 5, "plain"), (9, 3, "new")):
        sheet.cells(left + start * cell + start // 4, 42, cell, [str(start + i) for i in range(count)], kind)
    sheet.words(left + 10.5 * cell, 30, "just committed", "blue", at="middle")
    rows = (
        ("a computed column", 12, "done", "nothing to do"),
        ("a transform", 9, "done", "3 new"),
        ("a view", 9, "done", "3 new"),
        ("a timeline", 12, "done", "nothing to do"),
        ("your own reader", 4, "done", "8 new"),
    )
    for index, (name, mark, kind, left_to_do) in enumerate(rows):
        y = 96 + index * 36
        sheet.words(24, y + 15, name)
        end = left + mark * cell + 2
        sheet.box(left, y, mark * cell + 2, 20, kind)
        if mark < 12:
            sheet.box(end, y, (12 - mark) * cell, 20, "gone")
        sheet.line((end, y - 5), (end, y + 25), kind="new")
        sheet.words(end - 8, y + 14.5, f"has read up to {mark - 1}", "green", at="end")
        sheet.words(left + 12 * cell + 14, y + 14.5, left_to_do, "faint" if mark == 12 else "blue")
    sheet.words(
        24,
        294,
        "The position is a number, stored with the result. Only the new records to its right are read.",
        "faint",
    )
    return sheet


def ledger() -> Sheet:
    """Slices, the chain of blocks, and consumers with their offsets."""
    sheet = Sheet(336, "Slices with numbered records, the chain of blocks that names them, and two consumers")
    left, cell = 138, 36
    slices = ((left, "0 1 2 … 41"), (left + 5 * cell + 12, "42 43 … 57"), (left + 9 * cell + 24, "58 59 … 99"))
    end = slices[-1][0] + 4 * cell
    sheet.head(24, 46, "slices")
    sheet.words(24, 63, "Parquet files", "faint")
    sheet.head(24, 140, "blocks")
    sheet.words(24, 157, "what was added", "faint")
    before = 0.0
    for index, (x, labels) in enumerate(slices):
        cells = labels.split()
        sheet.cells(x, 40, cell, cells)
        middle = x + len(cells) * cell / 2
        sheet.box(middle - 44, 126, 88, 36, "new", "AddData")
        sheet.arrow((middle, 126), (middle, 69))
        if index == 0:
            sheet.words(middle + 8, 104, "hash of the data", "faint")
        else:
            sheet.arrow((middle - 44, 144), (before + 46, 144), kind="new")
        before = middle
    sheet.words(slices[1][0], 182, "hash of the previous block", "faint", at="middle")
    sheet.words(before + 66, 134, "the head", "blue")
    sheet.arrow((before + 124, 144), (before + 46, 144), kind="new")
    sheet.line((24, 200), (736, 200), kind="gone")
    readers = (("consumer A", 57, slices[2][0] - 6), ("consumer B", 99, end))
    for index, (name, mark, x) in enumerate(readers):
        y = 220 + index * 42
        sheet.words(24, y + 16, name)
        sheet.box(left, y, x - left, 22, "done")
        sheet.words(x - 8, y + 15.5, f"has read up to {mark}", "green", at="end")
        sheet.line((x, y - 6), (x, y + 28), kind="new")
    sheet.code(slices[2][0] + 6, 235.5, "changes(since=57): 58 … 99", "blue")
    sheet.words(end + 10, 277.5, "nothing to do", "faint")
    sheet.words(24, 318, "New records never appear before an offset that was already read.", "faint")
    return sheet


def keyed() -> Sheet:
    """The records of three writes, and how long each is a current row."""
    sheet = Sheet(348, "The records of a keyed dataset, and how long each of them is a current row")
    sheet.code(28, 34, "offset  op  id  city", "faint")
    sheet.words(308, 34, "is a current row …", "faint")
    records = (
        ("   0    +A   1  London", 0, None, ""),
        ("   1    +A   2  Paris", 0, 1, "ended by 3"),
        ("   2    +A   3  Rome", 0, 2, "ended by 6"),
        ("   3    -C   2  Paris", 1, 1, "repeats the old row"),
        ("   4    +C   2  Berlin", 1, None, ""),
        ("   5    +A   4  Oslo", 1, None, ""),
        ("   6    -R   3  Rome", 2, 2, "repeats the old row"),
    )
    columns = (308, 440, 580)
    for x, name in zip(columns, ("write", "write", "delete"), strict=True):
        sheet.line((x, 46), (x, 280), kind="gone")
        sheet.words(x, 296, name, "faint", at="middle")
    for index, (text, start, end, why) in enumerate(records):
        y = 52 + index * 32
        dead = start == end
        kind = "gone" if dead or end is not None else "done"
        sheet.box(24, y, 210, 25, kind)
        sheet.code(28, y + 16.5, text, "faint" if kind == "gone" else "text")
        x = columns[start]
        if dead:
            sheet.words(x + 10, y + 17, why, "faint")
        elif end is None:
            sheet.arrow((x, y + 12.5), (730, y + 12.5), kind="done")
        else:
            sheet.line((x, y + 12.5), (columns[end], y + 12.5), kind="late")
            sheet.line((columns[end], y + 6), (columns[end], y + 19), kind="late")
            sheet.words(columns[end] + 10, y + 17, why, "orange")
    sheet.words(
        24,
        332,
        "Green: current rows. +A new, -C and +C before and after a change, -R removed. Records always stay.",
        "faint",
    )
    return sheet


def transforms() -> Sheet:
    """Only the keys of new records go through the function."""
    sheet = Sheet(336, "New records of an input lead to the keys that changed; only these go through the function")
    sheet.head(24, 34, "input: reviews")
    for index, (offset, what) in enumerate(
        ((0, "+A id=1"), (1, "+A id=2"), (2, "+A id=3"), (3, "-C id=2"), (4, "+C id=2"), (5, "+A id=4"))
    ):
        kind = "plain" if offset < 3 else "new"
        y = 46 + index * 34
        sheet.box(24, y, 150, 26, kind)
        sheet.code(34, y + 17, f"{offset}  {what}")
    sheet.line((14, 145), (184, 145), kind="done")
    sheet.words(190, 143, "read up to 2", "green")
    sheet.head(240, 180, "changed keys")
    sheet.arrow((174, 216), (238, 216), kind="new")
    sheet.cells(240, 203, 48, ["2", "4"], "new")
    sheet.words(240, 250, "all their rows,", "faint")
    sheet.words(240, 267, "from every input", "faint")
    sheet.arrow((336, 216), (368, 216), kind="new")
    sheet.box(370, 190, 126, 52, "new")
    sheet.words(433, 212, "your function", at="middle")
    sheet.words(433, 229, "called for 2 keys", "faint", at="middle")
    sheet.arrow((496, 216), (560, 216), kind="new")
    sheet.words(528, 206, "compare", "faint", at="middle")
    sheet.head(562, 34, "output: scores")
    for index, (words, kind) in enumerate(
        (("id=1", "plain"), ("id=3", "plain"), ("id=2  -C +C", "new"), ("id=4  +A", "new"))
    ):
        y = 46 + index * 34 + (68 if index > 1 else 0)
        sheet.box(562, y, 172, 26, kind)
        sheet.code(572, y + 17, words)
    sheet.words(562, 132, "untouched", "faint")
    sheet.words(562, 266, "one commit: these rows,", "faint")
    sheet.words(562, 283, "and “read up to 5”", "green")
    sheet.words(
        24,
        318,
        "Unchanged results are not written, so steps that read the output have nothing to do for them.",
        "faint",
    )
    return sheet


def columns() -> Sheet:
    """Fragments, and checkpoints that survive a killed run."""
    sheet = Sheet(
        330, "A column is filled in ranges; a killed run leaves checkpoints, and the next one computes the rest"
    )
    left, width = 150, 190
    sheet.head(24, 52, "records")
    for index in range(3):
        sheet.box(left + index * width, 36, width - 4, 26, "plain", f"fragment {index}")
    sheet.code(left, 80, "0", "faint")
    sheet.code(left + width, 80, "1,048,576", "faint")
    sheet.code(left + 2 * width, 80, "2,097,152", "faint")
    sheet.head(24, 120, "first run")
    sheet.box(left, 104, width - 4, 26, "done", "committed")
    sheet.box(left + width, 104, 55, 26, "new")
    sheet.box(left + width + 55, 104, 48, 26, "new")
    sheet.box(left + width + 103, 104, 22, 26, "bad")
    sheet.words(left + width + 132, 121, "killed", "red")
    sheet.words(left + width, 148, "checkpoints, about 10 s of work each", "blue")
    sheet.head(24, 196, "next run")
    sheet.box(left, 180, width - 4, 26, "done", "stays")
    sheet.box(left + width, 180, 103, 26, "new", "taken over")
    sheet.box(left + width + 103, 180, width - 107, 26, "late", "computed")
    sheet.box(left + 2 * width, 180, width - 4, 26, "late", "computed")
    sheet.words(left + width + 103, 224, "the function is called for these rows only", "orange")
    sheet.head(24, 266, "then")
    for index in range(3):
        sheet.box(left + index * width, 250, width - 4, 26, "done", "one file of values")
    sheet.words(
        24,
        312,
        "The name of a checkpoint contains the function, its version, the inputs and the range.",
        "faint",
    )
    return sheet


def views() -> Sheet:
    """New records, the groups they affect, the query over these groups, and the changed rows."""
    sheet = Sheet(
        318, "New records affect some groups; the query is evaluated for these, and changed rows are committed"
    )
    sheet.head(24, 34, "source: flights")
    for index, (words, kind) in enumerate(
        (
            ("0  AA  day 1", "plain"),
            ("1  AA  day 1", "plain"),
            ("2  DL  day 1", "plain"),
            ("3  DL  day 2", "plain"),
            ("4  DL  day 2", "new"),
        )
    ):
        sheet.box(24, 46 + index * 34, 150, 26, kind)
        sheet.code(34, 63 + index * 34, words)
    sheet.words(24, 236, "4 is new", "blue")
    sheet.arrow((174, 195), (216, 195), kind="new")
    sheet.head(218, 172, "affected")
    sheet.box(218, 182, 92, 26, "new")
    sheet.code(264, 199, "DL  day 2", at="middle")
    sheet.words(218, 228, "its rows: 3, 4", "faint")
    sheet.arrow((310, 195), (354, 195), kind="new")
    sheet.box(356, 152, 170, 86, "new")
    sheet.code(368, 174, "select carrier, day,")
    sheet.code(368, 191, "  avg(delay)")
    sheet.code(368, 208, "from flights")
    sheet.code(368, 225, "group by 1, 2")
    sheet.arrow((526, 195), (568, 195), kind="new")
    sheet.head(570, 34, "view: daily")
    for index, (words, kind) in enumerate((("AA  day 1", "plain"), ("DL  day 1", "plain"))):
        sheet.box(570, 46 + index * 34, 166, 26, kind)
        sheet.code(580, 63 + index * 34, words)
    sheet.words(570, 132, "not read", "faint")
    sheet.box(570, 182, 166, 26, "new")
    sheet.code(580, 199, "DL  day 2  -C +C")
    sheet.words(570, 228, "and “read up to 4”", "green")
    sheet.words(
        24,
        280,
        "This query has groups. Other operators have other rules: rows alone, join keys, partitions of windows.",
        "faint",
    )
    sheet.words(
        24,
        299,
        "A query with an operator that has no rule is evaluated as a whole, and the plan shows the reason.",
        "faint",
    )
    return sheet


def timeline() -> Sheet:
    """Late rows above row groups, and a row group that is cut by reference."""
    sheet = Sheet(
        380, "Late rows wait above row groups until merging pays; a narrow late part cuts a row group by reference"
    )
    left, width = 170, 184
    times = ("06:00", "09:00", "12:00")
    for index, label in enumerate(times):
        sheet.code(left + index * width, 30, label, "faint")
    for index in range(4):
        sheet.line((left + index * width, 36), (left + index * width, 136), kind="gone")
        sheet.line((left + index * width, 184), (left + index * width, 322), kind="gone")
    sheet.head(24, 68, "late rows, spread")
    sheet.words(24, 85, "wait", "orange")
    for x in (20, 96, 150, 205, 300, 330, 470):
        sheet.box(left + x, 54, 10, 24, "late")
    sheet.arrow((left + 101, 80), (left + 101, 100), kind="late")
    sheet.arrow((left + 335, 80), (left + 335, 100), kind="late")
    for index in range(3):
        sheet.box(left + index * width + 3, 102, width - 6, 30, "plain", f"row group {index}")
    sheet.words(24, 114, "row groups of", "faint")
    sheet.words(24, 131, "the ledger's files", "faint")
    sheet.words(
        left,
        152,
        "Readers merge them. They are merged on disk at one late row per eight rows.",
        "faint",
    )
    sheet.line((24, 170), (736, 170), kind="plain")
    sheet.head(24, 206, "late rows, narrow")
    for x in (248, 264, 280, 296):
        sheet.box(left + x, 190, 10, 24, "late")
    sheet.line((left + 246, 216), (left + 246, 234), kind="late")
    sheet.line((left + 310, 216), (left + 310, 234), kind="late")
    sheet.box(left + width + 3, 236, width - 6, 30, "plain", "row group 1")
    sheet.words(24, 256, "cut by reference", "faint")
    sheet.head(24, 304, "afterwards")
    sheet.box(left + 3, 286, width - 6, 30, "plain", "by reference")
    sheet.box(left + width + 3, 286, 56, 30, "plain", "by ref.")
    sheet.box(left + width + 62, 286, 64, 30, "new", "merged")
    sheet.box(left + width + 129, 286, 52, 30, "plain", "by ref.")
    sheet.box(left + 2 * width + 3, 286, width - 6, 30, "plain", "by reference")
    sheet.words(left + width + 94, 338, "only these rows are written", "blue", at="middle")
    sheet.words(
        24,
        364,
        "Grey is not rewritten: a piece is a part of a row group of any file, the ledger's or its own.",
        "faint",
    )
    return sheet


def pipelines() -> Sheet:
    """A graph of a source, steps, a column and a view, with offsets."""
    sheet = Sheet(336, "A pipeline: a source, datasets and the steps that read them, with offsets and read positions")

    def dataset(x: int, y: int, name: str, offset: str) -> None:
        sheet.box(x, y, 104, 46, "plain")
        sheet.words(x + 52, y + 20, name, at="middle", head=" head")
        sheet.code(x + 52, y + 37, offset, "faint", at="middle")

    def step(x: int, y: int, name: str, state: str, kind: str, colour: str) -> None:
        sheet.box(x, y, 116, 46, kind)
        sheet.words(x + 58, y + 20, name, at="middle")
        sheet.words(x + 58, y + 37, state, colour, at="middle")

    step(24, 112, "data/*.csv", "1 new file", "new", "blue")
    sheet.arrow((140, 135), (178, 135), kind="new")
    dataset(180, 112, "orders", "head 104")
    sheet.arrow((284, 135), (326, 135), kind="new")
    step(328, 112, "to_cents", "behind by 5", "new", "blue")
    sheet.arrow((304, 135), (304, 51), (326, 51), kind="new")
    step(328, 28, "orders.size", "behind by 5", "new", "blue")
    sheet.words(456, 56, "a computed column of orders", "faint")
    step(24, 218, "bank#rates", "nothing new", "done", "green")
    sheet.arrow((140, 241), (178, 241), kind="done")
    dataset(180, 218, "rates", "head 12")
    sheet.arrow((284, 241), (386, 241), (386, 160), kind="done")
    sheet.arrow((444, 135), (478, 135), kind="new")
    dataset(480, 112, "cents", "head 99")
    sheet.arrow((584, 135), (618, 135), kind="new")
    step(620, 112, "by_client", "after to_cents", "new", "blue")
    sheet.words(736, 102, "a view: a stored query", "faint", at="end")
    sheet.arrow((532, 158), (532, 216), kind="new")
    step(474, 218, "add_up", "after to_cents", "new", "blue")
    sheet.arrow((590, 241), (624, 241), kind="new")
    dataset(626, 218, "total", "head 12")
    sheet.words(24, 300, "Blue runs now, for the new records of its inputs. Independent steps run in parallel.", "blue")
    sheet.words(24, 319, "Green has nothing to do.", "green")
    return sheet


def provenance() -> Sheet:
    """A record, the rows it was computed from, and the source of these rows."""
    sheet = Sheet(290, "A record, the run that wrote it, the rows it was computed from, and the file they came from")
    sheet.head(24, 34, "totals")
    sheet.box(24, 46, 190, 46, "new")
    sheet.code(34, 66, "5  +C  client=bob")
    sheet.code(34, 83, "       amount=50")
    sheet.arrow((119, 140), (119, 94), kind="new")
    sheet.box(24, 142, 190, 62, "plain")
    sheet.words(34, 163, "written by the step “totals”")
    sheet.words(34, 180, "version 4f19…, block …a3", "faint")
    sheet.words(34, 197, "orders as of record 4", "green")
    sheet.head(300, 34, "orders, as of record 4")
    rows = (
        ("0  +A  id=1  ada  10", "gone", "faint"),
        ("1  +A  id=2  bob  20", "done", "text"),
        ("2  +A  id=3  ada  30", "gone", "faint"),
        ("3  -C  id=3  ada  30", "gone", "faint"),
        ("4  +C  id=3  bob  30", "done", "text"),
        ("5  +A  id=9  bob  70", "gone", "faint"),
    )
    for index, (words, kind, colour) in enumerate(rows):
        y = 46 + index * 32 + (12 if index == 5 else 0)
        sheet.box(300, y, 190, 25, kind)
        sheet.code(310, y + 16.5, words, colour)
    sheet.arrow((300, 90), (258, 90), (258, 173), (216, 173), kind="done")
    sheet.line((300, 186), (258, 186), (258, 173), kind="done")
    sheet.line((290, 211), (500, 211), kind="late")
    sheet.words(508, 235, "written later: not used", "orange")
    sheet.arrow((570, 90), (492, 90), kind="plain")
    sheet.words(578, 87, "written from", "faint")
    sheet.code(578, 104, "monday.csv")
    sheet.arrow((570, 186), (492, 186), kind="plain")
    sheet.words(578, 190, "a correction, by hand", "faint")
    sheet.words(
        24, 274, "Inputs are read as of the snapshot of the run, without records that were written later.", "faint"
    )
    return sheet


PICTURES: dict[str, Callable[[], Sheet]] = {
    drawn.__name__: drawn
    for drawn in (overview, ledger, keyed, transforms, columns, views, timeline, pipelines, provenance)
}


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the pictures")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), "utf-8")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()

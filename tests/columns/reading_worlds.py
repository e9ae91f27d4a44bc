"""What the tests of reading build their worlds from: a keyed dataset with a column that is computed in part."""

from __future__ import annotations

from dataclasses import replace

from pyroaring import BitMap

from columns.column_worlds import ROWS, column, definition, manifest, segment, values_of
from floodmark.columns import catalog as catalogs
from floodmark.columns import definition as define
from floodmark.columns import manifest as manifests
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.manifest import ColumnManifest, Fragment
from rows.current_worlds import replayed


def put(objects: ColumnObjects, name: str, pieces: dict[int, list[float | None]], hidden: set[int]) -> None:
    """Give a column segments that start at some offsets, and hide the values of some of these offsets."""
    owner = column(objects, name)
    fragments = []
    for number in sorted({start // ROWS for start in pieces}):
        starts = sorted(start for start in pieces if start // ROWS == number)
        segments = tuple(segment(objects, owner, start, pieces[start]) for start in starts)
        unseen = BitMap(o % ROWS for o in hidden if o // ROWS == number)
        done = BitMap(o % ROWS for s in segments for o in range(s.start, s.end)) - unseen
        fragments.append(Fragment(number, segments, done, BitMap(), unseen))
    stored = manifests.put(objects, ColumnManifest(owner.field_id, "i", tuple(fragments)))
    catalogs.change(objects, lambda c: c.with_column(replace(owner, manifest=stored.digest)))


def fill_half(dataset) -> None:
    objects = ColumnObjects(dataset.snapshot().objects)
    define.add(objects, definition("w", inputs=("id",)), ("id", "v"), ROWS)
    half = dataset.last_offset // 2 // ROWS * ROWS
    pieces = {at: [float(o) for o in range(at, at + ROWS)] for at in range(0, half, ROWS)}
    put(objects, "w", pieces, set(range(0, half, 5)))


def shown(dataset, end=None) -> list[dict]:
    """The rows by the records and by the column's files, one by one."""
    objects = ColumnObjects(dataset.snapshot().objects)
    found = values_of(objects, "w")
    current = sorted(replayed(dataset, end).values(), key=lambda r: r["offset"])
    return [{"id": r["id"], "v": r["v"], "w": found.get(r["offset"])} for r in current]


def damage(dataset, at: int = 10) -> str:
    """Change a byte of a page of the file with the values of the second fragment."""
    objects = ColumnObjects(dataset.snapshot().objects)
    [part] = manifest(objects, "w").fragment(1).segments
    data = bytearray(objects.store.get(part.key(objects)))
    data[at] ^= 1
    if (path := objects.store.local_path(part.key(objects))) is not None:
        path.write_bytes(bytes(data))
    else:
        objects.store.delete(part.key(objects))
        objects.store.put_if_absent(part.key(objects), bytes(data))
    return part.key(objects)
